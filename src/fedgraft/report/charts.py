"""What the page's charts are drawn from: curves, clients and matrices as JSON has them, figures as people read them."""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from fedgraft.core.evaluation import POINTS, Point
from fedgraft.report.matrices import Array, Observation, fair_share, pack
from fedgraft.runs.comparison import REFERENCES, Comparison, Value
from fedgraft.runs.config import AT, At
from fedgraft.runs.metric import MetricInfo
from fedgraft.runs.resultfile import Result, Set
from fedgraft.runs.statistics import Interval
from fedgraft.runs.table import diverged, orders

PATHS_BUDGET = 1_000_000
Study = Comparison[Any]


@dataclass(frozen=True)
class Measure:
    """A figure of every round that can be drawn as a curve; ``kind`` is what a record calls the samples it is of."""

    key: str
    name: str
    axis: str
    """With a place for the metric."""
    kind: Set = ""
    figure: str = "mean"

    @property
    def points(self) -> bool:
        """Whether it is measured at both points; training is not."""
        return self.key != "training"

    def curve(self, study: Study, label: str, point: Point, metric: MetricInfo) -> list[Value]:
        """The figure after each round in which all seeds have it."""
        if not self.points:
            return study.training_loss(label)
        return study.curve(label, point, self.figure, metric.name, self.kind)

    def heading(self, metric: MetricInfo) -> str:
        """What stands at the axis."""
        return self.axis.format(metric.heading)

    def scale(self, metric: MetricInfo) -> float:
        """By how much figures are multiplied."""
        return metric.scale if self.points else 1.0


MEASURES = (
    Measure("mean", "mean over clients", "Test {}"),
    Measure("pooled", "pooled over samples", "Test {}", figure="pooled"),
    Measure("everyone", "mean over clients, on everybody’s test data", "On all test data: {}", "_global"),
    Measure("validation", "mean over clients, on validation data", "Validation {}", "_validation"),
    Measure("training", "training loss", "Training loss"),
)


def measures(study: Study, metric: MetricInfo) -> list[Measure]:
    """Whatever the runs of a study have measured; the client mean is always there, if only as empty axes."""

    def there(measure: Measure) -> bool:
        return any(measure.curve(study, label, point, metric) for label in study.runs for point in POINTS)

    return [measure for measure in MEASURES if measure.key == "mean" or there(measure)]


def drawn(study: Study, seen: Sequence[Observation], budget: int, at: At, metric: MetricInfo) -> dict[str, Any]:
    """All that the scripts draw of a study, by metric where it matters; ``budget`` is what each matrix may take."""
    paths = [path(run, point, each) for run in _results(study) for point in POINTS for each in study.metrics]
    share = fair_share((each for each in paths if len(each)), PATHS_BUDGET)
    drawable = {each.name: measures(study, each) for each in study.metrics}
    return {
        "clients": study.clients,
        "names": study.names(study.seeds[0]),
        "rounds": study.config.rounds,
        "seeds": study.seeds,
        "point": at,
        "metric": study.metrics.index(metric),
        "metrics": [_metric(each, drawable[each.name]) for each in study.metrics],
        "best": {choice: [_best(study, choice, each) for each in study.metrics] for choice in AT},
        "tested": [study.any_result(seed).test_samples for seed in study.seeds],
        "methods": [_method(study, label, drawable, share) for label in study.runs],
        "labels": [study.any_result(seed).label_counts for seed in study.seeds],
        "observed": [_observed(study, each, budget) for each in seen],
    }


def _results(study: Study) -> Iterable[Result]:
    return (result for each in study.facts.values() for result in each.values())


def _best(study: Study, at: At, metric: MetricInfo) -> str:
    """The method that helps most, or, where there is nothing to compare with, the best."""
    verdicts = study.verdicts(at, metric.name)
    return verdicts[0].label if verdicts else orders(study.rows(at, metric.name))[at][0]


def _metric(metric: MetricInfo, drawable: Sequence[Measure]) -> dict[str, Any]:
    """A metric as the scripts need it, and what can be drawn of it."""
    bounds = (metric.low, metric.high)
    return {
        "name": metric.name,
        "title": metric.title,
        "heading": metric.heading,
        "step": metric.step,
        "higher": metric.higher,
        "percent": metric.percent,
        "counted": metric.counted,
        "bounds": [None if bound is None else metric.scale * bound for bound in bounds],
        "figures": [_figure(measure, metric) for measure in drawable],
    }


def _figure(measure: Measure, metric: MetricInfo) -> dict[str, Any]:
    return {
        "key": measure.key,
        "choice": measure.name,
        "name": f"{metric.title}, {measure.name}" if measure.points else measure.name,
        "axis": measure.heading(metric),
        "percent": metric.percent and measure.points,
        "higher": metric.higher and measure.points,
        "points": measure.points,
        "caption": None if measure.points else "Loss in local training, mean over the round’s clients and batches.",
    }


def _method(study: Study, label: str, drawable: Mapping[str, Sequence[Measure]], share: int) -> dict[str, Any]:
    each = study.facts[label]
    return {
        "label": label,
        "shown": study.starred(label),
        "reference": label in REFERENCES,
        "headline": next(iter(each.values())).headline,
        "traffic": {number: round(mib, 5) for number, mib in study.traffic(label).items()},
        "judged": [_judged(study, label, metric, drawable[metric.name], share) for metric in study.metrics],
    }


def _judged(study: Study, label: str, metric: MetricInfo, drawable: Sequence[Measure], share: int) -> dict[str, Any]:
    """What one metric says of a method."""
    each = study.facts[label]
    return {
        "curves": {measure.key: _curves(study, label, measure, metric) for measure in drawable},
        "clients": _at_points(study, label, metric, _clients),
        "benefit": _at_points(study, label, metric, _benefit),
        "paths": {
            point: [_path(each[seed], point, metric, share) if seed in each else None for seed in study.seeds]
            for point in POINTS
        },
    }


Teller = Callable[[Study, str, int, Point, MetricInfo], Any]


def _at_points(study: Study, label: str, metric: MetricInfo, tell: Teller) -> dict[Point, list[Any]]:
    """What there is to tell of a method's clients at each point, for every seed that it was run with."""
    return {
        point: [tell(study, label, seed, point, metric) if seed in study.facts[label] else None for seed in study.seeds]
        for point in POINTS
    }


def _curves(study: Study, label: str, measure: Measure, metric: MetricInfo) -> dict[Point, dict[str, Any]]:
    found = {p: measure.curve(study, label, p, metric) for p in (POINTS if measure.points else POINTS[:1])}
    scale = measure.scale(metric)
    return {
        point: {
            "rounds": [value.round for value in values],
            "values": [_rounded(scale * value.spread.mean, 4) for value in values],
            "deviations": [_rounded(scale * (value.spread.deviation or 0.0), 4) for value in values],
        }
        for point, values in found.items()
    }


def _clients(study: Study, label: str, seed: int, point: Point, metric: MetricInfo) -> dict[str, Any]:
    """Every client's figure, how sure it is, and what has to be said of it."""
    stale = study.stale(label, seed, point, metric.name)
    return {
        "value": scaled(study.values(label, seed, point, metric.name), metric),
        "interval": [_interval(each, metric) for each in study.intervals(label, seed, point, metric.name)],
        "round": [stale.get(client) for client in range(study.clients)],
        "diverged": diverged(study.facts[label][seed], point),
    }


def _benefit(study: Study, label: str, seed: int, point: Point, metric: MetricInfo) -> dict[str, Any] | None:
    """What every client gains over training alone, how sure that is, and how many test samples make it up."""
    gains = study.gains(label, seed, point, metric.name)
    if gains is None:
        return None
    return {
        "gain": scaled((None if gain is None else gain.value for gain in gains), metric),
        "interval": [None if gain is None else _interval(gain.interval, metric) for gain in gains],
        "net": [None if gain is None else gain.net for gain in gains],
    }


def _interval(interval: Interval | None, metric: MetricInfo) -> list[float | None] | None:
    return None if interval is None else scaled(interval, metric)


def path(result: Result, point: Point, metric: MetricInfo) -> Array:
    """Every client's figure in each round that was tested, as it is shown; NaN where a client has none."""
    tested = [figures.per_client for record in result.rounds if (figures := record.figures(point, metric.name))]
    return metric.scale * np.array(tested, dtype=np.float64).reshape(len(tested), result.clients)


def rounds_tested(result: Result, point: Point) -> list[int]:
    """The rounds of a path."""
    return [record.round for record in result.rounds if record.test(point)]


def _path(result: Result, point: Point, metric: MetricInfo, share: int) -> dict[str, Any] | None:
    values = path(result, point, metric)
    packed = pack(values, share) if len(values) else None
    if packed is None:
        return None
    numbers = rounds_tested(result, point)
    return {**packed, "rounds": [numbers[place - 1] for place in packed["rounds"]]}


def _observed(study: Study, each: Observation, budget: int) -> dict[str, Any]:
    packed = [pack(each.values[seed], budget) if seed in each.values else None for seed in study.seeds]
    return {
        "title": f"{study.starred(each.label)}: {each.name}",
        "name": each.name,
        "meaning": each.meaning,
        "matrix": each.is_matrix,
        "shape": each.shape,
        "seeds": packed,
    }


def scaled(values: Iterable[float | None], metric: MetricInfo) -> list[float | None]:
    """Figures as they are shown, exact enough that rounding them gives what the tables have."""
    return [None if value is None or math.isnan(value) else _rounded(metric.scale * value, 6) for value in values]


def _rounded(value: float, digits: int) -> float:
    """Few enough characters for a page; what is small keeps its leading digits."""
    return round(value, digits) if abs(value) >= 1 else float(f"{value:.{digits}g}")
