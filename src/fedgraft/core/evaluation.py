"""How good is each client's own model? Measured at two points, on all clients, and never changing anything."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from torch.nn import functional

from fedgraft.core.client import Client, ClientId, Predictor
from fedgraft.core.samples import Samples

Point = Literal["received", "trained"]
POINTS: tuple[Point, ...] = ("received", "trained")
BATCH = 500


@dataclass(frozen=True)
class Score:
    """Counts on one split of one client."""

    correct: int
    total: int
    loss: float

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


@dataclass(frozen=True)
class Summary:
    """All clients at one point: the mean over clients, the pooled accuracy over samples, and each client's own."""

    mean: float
    pooled: float
    loss: float
    per_client: tuple[float, ...]

    @classmethod
    def of(cls, scores: Mapping[ClientId, Score]) -> "Summary":
        ordered = [scores[client] for client in sorted(scores)]
        total = sum(score.total for score in ordered)
        return cls(
            mean=sum(score.accuracy for score in ordered) / len(ordered),
            pooled=sum(score.correct for score in ordered) / total,
            loss=sum(score.loss for score in ordered) / total,
            per_client=tuple(score.accuracy for score in ordered),
        )


def score(client: Client, predict: Predictor, samples: Samples) -> Score:
    """Count what ``predict`` gets right on ``samples``, in large batches, in evaluation mode."""
    correct, loss = 0, 0.0
    with client.model().evaluating():
        for start in range(0, len(samples), BATCH):
            x, y = samples.batch(slice(start, start + BATCH))
            y = y.to(client.device)
            logits = predict(x.to(client.device))
            correct += int((logits.argmax(dim=1) == y).sum())
            loss += float(functional.cross_entropy(logits, y, reduction="sum"))
    return Score(correct, len(samples), loss)
