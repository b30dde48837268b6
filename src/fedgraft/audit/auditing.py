"""The audit of a finished run: attacks on what its clients sent, and what came of them."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from fedgraft.audit import labels
from fedgraft.audit.eavesdrop import Candidates, Heard, Shadow, heard, insist_on_replies, same_figures, shadows
from fedgraft.audit.labels import Guess
from fedgraft.audit.membership import Attacked, Attacker, attacked, rebuilt
from fedgraft.audit.verdict import Bound, Verdict, least_epsilon
from fedgraft.base.errors import UserError
from fedgraft.core import streams
from fedgraft.core.client import ClientId
from fedgraft.core.samples import ClientData, Samples
from fedgraft.data.federation import Federation
from fedgraft.runs import results
from fedgraft.runs.run import Run, load

FILE = "audit.json"
FORMAT = 1
SHADOWS = 16
KNOWN = 1000
"""Samples of others with which an attacker fits a head."""
FEW = 2
"""Members, or others, with fewer of which a client is not attacked."""
SECONDARY = 1e-5
"""The delta of the bound where the run has none."""

Tell = Callable[[str], None]


@dataclass(frozen=True, eq=False)
class Audit:
    """What attacks found: on each client, and on the samples of all clients together."""

    run: Run
    attacks: dict[ClientId, Attacked]
    guesses: dict[ClientId, Guess]
    shadows: int
    view: str
    notes: tuple[str, ...] = ()

    @property
    def names(self) -> list[str]:
        """The attacks on membership."""
        return list(next(iter(self.attacks.values())).scores) if self.attacks else []

    def verdict(self, attack: str, client: ClientId | None = None) -> Verdict | None:
        """How well an attack does on one client, or on all."""
        members, others = self._scores(attack, client)
        return Verdict.of(members, others) if min(len(members), len(others)) >= FEW else None

    def bound(self, attack: str) -> Bound | None:
        """The least epsilon that an attack on all clients proves, at the run's delta."""
        return least_epsilon(*self._scores(attack), self.delta)

    def _scores(self, attack: str, client: ClientId | None = None) -> tuple[Any, Any]:
        chosen = [each for number, each in self.attacks.items() if client in (None, number)]
        both = [each.split(attack) for each in chosen]
        return np.concatenate([one for one, _ in both]), np.concatenate([other for _, other in both])

    @property
    def guarantee(self) -> dict[str, Any] | None:
        """What the run promises for single samples, if it does."""
        kept = self.run.result.get("privacy") or []
        return next((each for each in kept if each["unit"] == "sample"), None)

    @property
    def delta(self) -> float:
        return SECONDARY if self.guarantee is None else float(self.guarantee["delta"])

    @property
    def epsilon(self) -> float | None:
        """The largest epsilon of a client; none, if the run is not private or spent without limit."""
        return None if self.guarantee is None else self.guarantee["epsilon"]

    @property
    def guessed(self) -> tuple[float, float] | None:
        """The mean error of guessed labels, and that of the guess without updates."""
        if not self.guesses:
            return None
        each = self.guesses.values()
        return math.fsum(g.error for g in each) / len(each), math.fsum(g.prior for g in each) / len(each)

    def facts(self) -> dict[str, Any]:
        """All of it, as audit.json has it."""
        called = self.run.spec.called
        told = {attack: self._told(attack) for attack in self.names}
        per_client = [
            {
                "client": called(client),
                **{attack: _facts(self.verdict(attack, client)) for attack in self.names if client in self.attacks},
                **({"labels": vars(self.guesses[client])} if client in self.guesses else {}),
            }
            for client in sorted(self.attacks.keys() | self.guesses.keys())
        ]
        guessed = None if self.guessed is None else dict(zip(("error", "prior"), self.guessed, strict=True))
        return {
            "format": FORMAT, "digest": self.run.result["digest"], "method": self.run.result["label"],
            "epsilon": self.epsilon, "delta": self.delta, "shadows": self.shadows, "view": self.view,
            "membership": told, "labels": guessed, "per_client": per_client, "notes": list(self.notes),
        }  # fmt: skip

    def _told(self, attack: str) -> dict[str, Any] | None:
        found, bound = self.verdict(attack), self.bound(attack)
        if found is None:
            return None
        proven = None
        if bound is not None:
            rates = {"right": bound.right.value, "right_interval": list(bound.right.interval)}
            rates |= {"wrong": bound.wrong.value, "wrong_interval": list(bound.wrong.interval)}
            proven = {"epsilon": bound.epsilon, "tells": "members" if bound.positive else "others", **rates}
        return {**found.facts(), "at_least": proven}


def _facts(verdict: Verdict | None) -> dict[str, Any] | None:
    return None if verdict is None else verdict.facts()


def audit(
    place: str | Path, *, shadows: int = SHADOWS, workers: int = 1, tell: Tell = lambda _: None, **given: Any
) -> Audit:
    """Attack what the clients of a finished run sent, and write what came of it beside its result.

    The run is done again to hear what was sent, and ``shadows`` times more on other samples. ``given`` are federation,
    method and model, where the run had such as no configuration can name.
    """
    run = load(place, **given)
    _insist(run, shadows)
    found = _audited(run, shadows, workers, tell)
    results.write_json(Path(place) / FILE, found.facts())
    return found


def _insist(run: Run, shadows: int) -> None:
    if run.spec.task.name != "classification":
        raise UserError(f"the audit's attacks are on classifiers, and this run learns {run.spec.task.name}")
    if shadows < 0:
        raise UserError(f"the audit needs a number of shadow runs, not {shadows}")
    data = run.federation.clients if isinstance(run.federation, Federation) else ()
    if not any(_attackable(each) for each in data):
        raise UserError("no client has test samples, so there is nothing to tell training samples from")


def _attackable(data: ClientData) -> bool:
    return len(data.train) >= FEW and len(data.test) + len(data.validation) >= FEW


def _audited(run: Run, count: int, workers: int, tell: Tell) -> Audit:
    assert isinstance(run.federation, Federation)
    data = run.federation.clients
    tell(f"{run.label}: the run is done again, to hear what was sent")
    told = heard(run, data, workers=workers)
    insist_on_replies(told, run)
    candidates = [Candidates.of(each) for each in data]
    made: list[Shadow] = []
    for shadow in shadows(run, candidates, count, workers):
        made.append(shadow)
        tell(f"{run.label}: shadow {len(made)} of {count}")
    notes = [] if same_figures(run, told) else [
        "Done again on this machine, the run ends in other figures than result.json has: what was attacked is a run "
        "with the same settings, not the same bits."
    ]  # fmt: skip
    known = {client: _known(data, client, run.spec.seed) for client in range(run.spec.clients)}
    attacks, view, skipped = _membership(run, candidates, told, made, known)
    guesses = labels.guesses(run.method, run.spec, candidates, told, made, known)
    return Audit(run, attacks, guesses, count, view, (*notes, *skipped))


def _membership(
    run: Run,
    candidates: Sequence[Candidates],
    told: Heard,
    made: Sequence[Shadow],
    known: Mapping[ClientId, Samples | None],
) -> tuple[dict[ClientId, Attacked], str, list[str]]:
    """Attack every client that sent a network and has samples to tell apart."""
    assert isinstance(run.federation, Federation)
    spec, data = run.spec, run.federation.clients
    parts = {client: rebuilt(run.method, spec, client, each) for client, each in told.last.items()}
    attacks: dict[ClientId, Attacked] = {}
    for client, part in sorted(parts.items()):
        if part is not None and _attackable(data[client]):
            attacker = Attacker(run.method, spec, known[client])
            attacks[client] = attacked(attacker, client, candidates[client], told, made)
    silent = [spec.called(client) for client in range(spec.clients) if client not in attacks]
    notes = [f"Not attacked for membership: {', '.join(silent)}."] if silent else []
    kinds = {"nothing that is a network" if part is None else part[1] for part in parts.values()}
    return attacks, " or ".join(sorted(kinds)), notes


def _known(data: Sequence[ClientData], client: ClientId, seed: int) -> Samples | None:
    """Test samples of the other clients, which nobody trained on."""
    there = [each.test for number, each in enumerate(data) if number != client and len(each.test)]
    if not there:
        return None
    whole = Samples(
        torch.cat([each.inputs for each in there]), torch.cat([each.labels for each in there]), there[0].preparation
    )
    order = streams.generator("audit", seed, "known", client).permutation(len(whole))[:KNOWN]
    return whole.subset(torch.from_numpy(order))
