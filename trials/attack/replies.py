"""Replies and test reports of a client that lies: the others' result has to survive it."""

import random
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor

import fedgraft
from fedgraft.core.client import ClientId
from fedgraft.core.evaluation import POINTS, Point, Score, Scores
from fedgraft.core.exchange import Outcome
from fedgraft.core.message import Message
from fedgraft.engines.local import LocalEngine
from fedgraft.runs.run import Run
from fedgraft.testing import classified
from trials.attack import BreachError, attack

LIAR = 1
Forge = Callable[[Scores], Scores]


@contextmanager
def reporting(forge: Forge, rounds: frozenset[int], only: bool) -> Iterator[None]:
    """Let the liar's test reports of some rounds pass through ``forge``; ``only``: nobody else is tested in them."""
    honest = LocalEngine.evaluate

    def evaluate(self: LocalEngine, round: int, messages: Mapping[ClientId, Message]) -> Mapping[ClientId, Scores]:
        found = dict(honest(self, round, messages))
        if round not in rounds:
            return found
        lie = {LIAR: forge(found[LIAR])}
        return lie if only else found | lie

    with patch.object(LocalEngine, "evaluate", evaluate):
        yield


def _both(score: Score) -> dict[Point, Score]:
    return dict.fromkeys(POINTS, score)


LIES: Mapping[str, Forge] = {
    "validation figures": lambda s: replace(s, validation=_both(classified(9, 10, 1.0))),
    "figures of everyone": lambda s: replace(s, everyone=_both(classified(9, 10, 1.0))),
    "no samples": lambda _: Scores(_both(classified(0, 0, 0.0))),
    "more right than there are": lambda _: Scores(_both(classified(11, 10, 1.0))),
    "a million samples": lambda _: Scores(_both(classified(10**6, 10**6, 1.0))),
    "one point": lambda _: Scores({"trained": classified(9, 10, 1.0)}),
}


@attack("replies: a test report with figures that were not agreed on", "a result, and the report is refused by name")
def false_reports(_: Path, rng: random.Random) -> str:
    lie = rng.choice(sorted(LIES))
    rounds, only = frozenset({1, rng.choice([1, 2])}), rng.random() < 0.5
    with reporting(LIES[lie], rounds, only):
        run: Run = fedgraft.run("fedavg", clients=4, rounds=4, workers=1, seed=rng.randrange(100))
    named = [r["client"] for n in rounds for r in run.records[n]["refused"] if "figures" in r["reason"]]
    if named != [LIAR] * len(rounds):
        raise BreachError(f"{lie}: refused were {named} in {sorted(rounds)}")
    if run.result["last"]["round"] != 4 or "validation" in run.result["best"]["chosen_on"]:
        raise BreachError(f"{lie}: the result is {run.result['last']}, {run.result['best']}")
    return f"refused: {lie}"


@contextmanager
def answering(forge: Callable[[Tensor], Tensor]) -> Iterator[None]:
    """Let the liar send other numbers than its training gave, in every round."""
    honest = LocalEngine.train

    def train(self: LocalEngine, round: int, messages: Mapping[ClientId, Message]) -> Mapping[ClientId, Any]:
        found = dict(honest(self, round, messages))
        if isinstance(true := found.get(LIAR), Outcome):
            told = {name: forge(t) if t.is_floating_point() else t for name, t in true.reply.items()}
            found[LIAR] = replace(true, reply=Message(**told))
        return found

    with patch.object(LocalEngine, "train", train):
        yield


def _pooled(run: Run) -> float:
    found = run.facts.last.trained["accuracy"].pooled
    assert found is not None
    return found


@attack("replies: weights a million times too large", "the reply is refused by name, and the others learn on")
def poisoned(_: Path, rng: random.Random) -> str:
    size = 10.0 ** rng.uniform(2, 7) * rng.choice([-1, 1])
    method = rng.choice(["fedavg", "fedper", "fedapa", "scaffold", "ditto"])
    settings = {"clients": 4, "rounds": 4, "workers": 1, "seed": rng.randrange(100)}
    with answering(lambda t: torch.full_like(t, size)):
        run: Run = fedgraft.run(method, **settings)
    if any([r["client"] for r in record["refused"]] != [LIAR] for record in run.records):
        raise BreachError(f"{method} took {size:.3g} for each weight")
    best, found = (_pooled(each) for each in (fedgraft.run(method, **settings), run))
    if found < best - 0.3:
        raise BreachError(f"{method}: {100 * found:.0f} % with the liar, {100 * best:.0f} % without")
    return "refused in every round"
