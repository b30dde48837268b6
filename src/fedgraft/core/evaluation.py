"""How good is each client's own model? Measured at two points, on all clients, and never changing anything."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor
from torch.nn import functional

from fedgraft.core.client import Client, ClientId, Predictor
from fedgraft.core.samples import Samples

Point = Literal["received", "trained"]
POINTS: tuple[Point, ...] = ("received", "trained")
Kind = Literal["test", "validation", "everyone"]
KINDS: tuple[Kind, ...] = ("test", "validation", "everyone")
BATCH = 500


@dataclass(frozen=True)
class Score:
    """Counts on one split of one client.

    ``broken`` are the samples for which the model's outputs are not finite: wrong answers, of which no loss is known.
    """

    correct: int
    total: int
    loss: float
    broken: int = 0

    @property
    def possible(self) -> bool:
        """Whether a test can have given these counts: of no samples there is none."""
        return self.total > 0 and min(self.correct, self.broken) >= 0 and self.correct + self.broken <= self.total

    @property
    def accuracy(self) -> float:
        return self.correct / self.total if self.total else float("nan")


@dataclass(frozen=True)
class Scores:
    """One client's model at both points, on its own test samples and, where there are some, on other sets.

    ``validation`` is what the client put aside of its training samples, ``everyone`` the test samples of all clients.
    """

    test: Mapping[Point, Score]
    validation: Mapping[Point, Score] | None = None
    everyone: Mapping[Point, Score] | None = None

    @property
    def sets(self) -> dict[Kind, Mapping[Point, Score]]:
        """The sets that there are."""
        found: dict[Kind, Mapping[Point, Score] | None] = {
            "test": self.test, "validation": self.validation, "everyone": self.everyone,
        }  # fmt: skip
        return {kind: points for kind, points in found.items() if points is not None}

    @property
    def possible(self) -> bool:
        """Whether both points are there in every set, with counts that a test of the same samples can have given."""
        return all(
            set(points) == set(POINTS)
            and all(score.possible for score in points.values())
            and len({score.total for score in points.values()}) == 1
            for points in self.sets.values()
        )

    @property
    def totals(self) -> dict[Kind, int]:
        """How many samples each set has."""
        return {kind: points["trained"].total for kind, points in self.sets.items()}


@dataclass(frozen=True)
class Summary:
    """All clients at one point: the mean over clients, the pooled accuracy over samples, and each client's own.

    A client that was not tested, or has no test samples, has NaN for its own accuracy and counts in no other figure;
    nor does a loss that is not finite. ``tested`` are the test samples of each client, and ``diverged`` the clients
    whose model gave outputs that are not finite.
    """

    mean: float
    pooled: float
    loss: float
    per_client: tuple[float, ...]
    tested: tuple[int, ...]
    diverged: tuple[ClientId, ...]

    @classmethod
    def of(cls, scores: Mapping[ClientId, Score], clients: int) -> "Summary":
        tested = {client: scores[client] for client in sorted(scores) if scores[client].total}
        total = sum(score.total for score in tested.values())
        losses = [(score.loss, score.total - score.broken) for score in tested.values() if math.isfinite(score.loss)]
        return cls(
            mean=_ratio(sum(score.accuracy for score in tested.values()), len(tested)),
            pooled=_ratio(sum(score.correct for score in tested.values()), total),
            loss=_ratio(sum(loss for loss, _ in losses), sum(weight for _, weight in losses)),
            per_client=tuple(tested[c].accuracy if c in tested else math.nan for c in range(clients)),
            tested=tuple(tested[c].total if c in tested else 0 for c in range(clients)),
            diverged=tuple(client for client, score in tested.items() if score.broken),
        )


def _ratio(amount: float, count: int) -> float:
    return amount / count if count else math.nan


def score(client: Client, predict: Predictor, samples: Samples) -> Score:
    """Count what ``predict`` gets right on ``samples``, in large batches, in evaluation mode."""
    correct, loss, broken = 0, 0.0, 0
    with client.model().evaluating():
        for start in range(0, len(samples), BATCH):
            x, y = samples.batch(slice(start, start + BATCH))
            y = y.to(client.device)
            logits = predict(x.to(client.device))
            if (sound := _finite(logits)) is not None:  # of outputs that are none, argmax would make class 0
                broken += int((~sound).sum())
                logits, y = logits[sound], y[sound]
            correct += int((logits.argmax(dim=1) == y).sum())
            loss += float(functional.cross_entropy(logits, y, reduction="sum"))
    return Score(correct, len(samples), loss, broken)


def _finite(logits: Tensor) -> Tensor | None:
    """Say which samples have finite outputs; nothing, if all have."""
    finite = torch.isfinite(logits)
    return None if bool(finite.all()) else finite.all(dim=1)
