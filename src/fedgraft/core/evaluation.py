"""How good is each client's own model? Measured at two points, on all clients, and never changing anything."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

import numpy as np

from fedgraft.core.client import Client, ClientId, Predictor
from fedgraft.core.metrics import Array, Metric
from fedgraft.core.samples import Samples

Point = Literal["received", "trained"]
POINTS: tuple[Point, ...] = ("received", "trained")
Kind = Literal["test", "validation", "everyone"]
KINDS: tuple[Kind, ...] = ("test", "validation", "everyone")
BATCH = 500


@dataclass(frozen=True, eq=False)
class Score:
    """What the metrics counted on one split of one client.

    ``broken`` are the samples for which the model's outputs are not finite. ``values`` are those of metrics whose
    tally did not come along: of a ranking metric, a site sends nothing else.
    """

    total: int
    tallies: Mapping[str, Array]
    broken: int = 0
    values: Mapping[str, float] = field(default_factory=dict)

    def value(self, metric: Metric) -> float:
        """Read a metric; NaN where nothing is known."""
        if not self.total:
            return math.nan
        if metric.name in self.tallies:
            return metric.value(self.tallies[metric.name])
        return self.values.get(metric.name, math.nan)

    def possible(self, metrics: Sequence[Metric]) -> bool:
        """Whether a test can have given these counts: of no samples there is none."""
        if not 0 <= self.broken <= self.total or self.total == 0:
            return False
        return all(self._possible(metric) for metric in metrics)

    def _possible(self, metric: Metric) -> bool:
        if metric.name in self.tallies:
            return metric.possible(self.tallies[metric.name], self.total, self.broken)
        value = self.values.get(metric.name)
        return value is not None and metric.single and (not metric.bounded or not (value < 0 or value > 1))

    def leaving(self, metrics: Sequence[Metric]) -> "Score":
        """Return what may leave a site: of a metric whose tally holds single samples, the value."""
        single = {metric.name: self.value(metric) for metric in metrics if metric.single}
        kept = {name: tally for name, tally in self.tallies.items() if name not in single}
        return Score(self.total, kept, self.broken, single)


@dataclass(frozen=True)
class Scores:
    """One client's model at both points, on its own test samples and on other sets, where there are some.

    ``validation`` is what the client put aside of its training samples, ``everyone`` the test samples of all clients.
    """

    test: Mapping[Point, Score] | None = None
    validation: Mapping[Point, Score] | None = None
    everyone: Mapping[Point, Score] | None = None

    @property
    def sets(self) -> dict[Kind, Mapping[Point, Score]]:
        """The sets that there are."""
        found: dict[Kind, Mapping[Point, Score] | None] = {
            "test": self.test, "validation": self.validation, "everyone": self.everyone,
        }  # fmt: skip
        return {kind: points for kind, points in found.items() if points is not None}

    def possible(self, metrics: Sequence[Metric]) -> bool:
        """Whether both points are there in every set, with counts that a test of the same samples can have given."""
        return all(
            set(points) == set(POINTS)
            and all(score.possible(metrics) for score in points.values())
            and len({score.total for score in points.values()}) == 1
            for points in self.sets.values()
        )

    @property
    def totals(self) -> dict[Kind, int]:
        """How many samples each set has."""
        return {kind: points["trained"].total for kind, points in self.sets.items()}


@dataclass(frozen=True)
class Figure:
    """One metric over all clients: the mean of their values, the value of their joined tallies, and each client's."""

    mean: float
    pooled: float
    per_client: tuple[float, ...]

    @classmethod
    def of(cls, metric: Metric, scores: Mapping[ClientId, Score], clients: int) -> "Figure":
        """A client without a finite value has NaN for its own and counts in no other figure."""
        values = {client: score.value(metric) for client, score in scores.items()}
        finite = [value for value in values.values() if math.isfinite(value)]
        tallies = [score.tallies.get(metric.name) for score in scores.values()]
        return cls(
            mean=sum(finite) / len(finite) if finite else math.nan,
            pooled=_pooled(metric, [tally for tally in tallies if tally is not None and np.isfinite(tally).all()])
            if all(tally is not None for tally in tallies) else math.nan,
            per_client=tuple(values.get(client, math.nan) for client in range(clients)),
        )  # fmt: skip


@dataclass(frozen=True)
class Summary:
    """All clients at one point, metric by metric, the leading one first.

    A client that was not tested, or has no test samples, counts in no figure. ``tested`` are the test samples of each
    client, and ``diverged`` the clients whose model gave outputs that are not finite.
    """

    figures: Mapping[str, Figure]
    tested: tuple[int, ...]
    diverged: tuple[ClientId, ...]

    @property
    def leading(self) -> Figure:
        return next(iter(self.figures.values()))

    @property
    def mean(self) -> float:
        """The leading metric's mean over clients."""
        return self.leading.mean

    @property
    def pooled(self) -> float:
        """The leading metric over all samples."""
        return self.leading.pooled

    @property
    def per_client(self) -> tuple[float, ...]:
        """The leading metric of each client."""
        return self.leading.per_client

    @classmethod
    def of(cls, scores: Mapping[ClientId, Score], clients: int, metrics: Sequence[Metric]) -> "Summary":
        tested = {client: scores[client] for client in sorted(scores) if scores[client].total}
        return cls(
            figures={metric.name: Figure.of(metric, tested, clients) for metric in metrics},
            tested=tuple(tested[c].total if c in tested else 0 for c in range(clients)),
            diverged=tuple(client for client, score in tested.items() if score.broken),
        )


def _pooled(metric: Metric, tallies: Sequence[Array]) -> float:
    return metric.value(_joined(metric, tallies)) if tallies else math.nan


def _joined(metric: Metric, tallies: Sequence[Array]) -> Array:
    whole = tallies[0]
    for tally in tallies[1:]:
        whole = metric.add(whole, tally)
    return whole


def score(client: Client, predict: Predictor, samples: Samples) -> Score:
    """Judge what ``predict`` answers on ``samples``, in large batches, in evaluation mode."""
    task, metrics, broken = client.spec.task, client.spec.metrics, 0
    found: dict[str, list[Array]] = {metric.name: [] for metric in metrics}
    with client.model().evaluating():
        for start in range(0, len(samples), BATCH):
            x, y = samples.batch(slice(start, start + BATCH))
            tallies, lost = task.judge(predict(x.to(client.device)), y.to(client.device), metrics)
            broken += lost
            for name, tally in tallies.items():
                found[name].append(tally)
    whole = {metric.name: _joined(metric, found[metric.name]) for metric in metrics if found[metric.name]}
    return Score(len(samples), whole, broken)


def mean_loss(client: Client, predict: Predictor, samples: Samples) -> float:
    """Return the task's loss of ``predict`` on ``samples``, for a method that weighs models by it."""
    total = 0.0
    with client.model().evaluating():
        for start in range(0, len(samples), BATCH):
            x, y = samples.batch(slice(start, start + BATCH))
            total += float(client.task.loss(predict(x.to(client.device)), y.to(client.device))) * len(y)
    return total / len(samples)
