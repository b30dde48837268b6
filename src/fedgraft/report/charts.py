"""What the page's charts are drawn from: curves, clients and matrices, as JSON has them; accuracies in percent."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from fedgraft.core.evaluation import POINTS, Point
from fedgraft.report.matrices import Observation, fair_share, pack
from fedgraft.report.reading import Array, Finished
from fedgraft.report.study import Study, Value
from fedgraft.runs.compare import REFERENCES
from fedgraft.runs.config import AT, At
from fedgraft.runs.statistics import Interval
from fedgraft.runs.table import diverged, orders

PATHS_BUDGET = 1_000_000


@dataclass(frozen=True)
class Measure:
    """A figure of every round that can be drawn as a curve; ``part`` is what a record calls the samples it is of."""

    key: str
    name: str
    axis: str
    part: str
    figure: str
    percent: bool = True

    @property
    def points(self) -> bool:
        """Whether it is measured at both points; training is not."""
        return self.key != "training"

    def curve(self, study: Study, label: str, point: Point) -> list[Value]:
        """The figure after each round in which all seeds have it."""
        return study.curve(label, f"{point}{self.part}", self.figure) if self.points else study.training_loss(label)


MEASURES = (
    Measure("mean", "accuracy, mean over clients", "Test accuracy (%)", "", "mean"),
    Measure("pooled", "accuracy, pooled over samples", "Test accuracy (%)", "", "pooled"),
    Measure("everyone", "accuracy on everybody’s test data", "Accuracy on all test data (%)", "_global", "mean"),
    Measure("validation", "validation accuracy, mean over clients", "Validation accuracy (%)", "_validation", "mean"),
    Measure("loss", "test loss", "Test loss", "", "loss", percent=False),
    Measure("training", "training loss", "Training loss", "", "loss", percent=False),
)


def measures(study: Study) -> list[Measure]:
    """Whatever the runs of a study have measured; the client mean is always there, if only as empty axes."""
    return [
        measure
        for measure in MEASURES
        if measure.key == "mean" or any(measure.curve(study, label, point) for label in study.runs for point in POINTS)
    ]


def drawn(study: Study, seen: Sequence[Observation], budget: int, at: At) -> dict[str, Any]:
    """All that the scripts draw of a study; ``budget`` is what each matrix may take."""
    paths = [path(run, point) for _, run in _runs(study) for point in POINTS]
    share = fair_share((each for each in paths if len(each)), PATHS_BUDGET)
    return {
        "clients": study.clients,
        "names": study.names(study.seeds[0]),
        "rounds": study.config.rounds,
        "seeds": study.seeds,
        "point": at,
        "best": {choice: _best(study, choice) for choice in AT},
        "tested": [study.any_run(seed).result.get("test_samples") for seed in study.seeds],
        "figures": [_figure(measure) for measure in measures(study)],
        "methods": [_method(study, label, share) for label in study.runs],
        "labels": [study.any_run(seed).result["label_counts"] for seed in study.seeds],
        "observed": [_observed(study, each, budget) for each in seen],
    }


def _runs(study: Study) -> Iterable[tuple[str, Finished]]:
    return ((label, run) for label, each in study.runs.items() for run in each.values())


def _best(study: Study, at: At) -> str:
    """The method that helps most, or, where there is nothing to compare with, the most accurate."""
    verdicts = study.verdicts(at)
    return verdicts[0].label if verdicts else orders(study.rows(at))[at][0]


def _figure(measure: Measure) -> dict[str, Any]:
    return {
        "key": measure.key,
        "name": measure.name,
        "axis": measure.axis,
        "percent": measure.percent,
        "points": measure.points,
        "caption": None if measure.points else "Loss in local training, mean over the round’s clients and batches.",
    }


def _method(study: Study, label: str, share: int) -> dict[str, Any]:
    each = study.runs[label]
    return {
        "label": label,
        "shown": study.starred(label),
        "reference": label in REFERENCES,
        "headline": next(iter(each.values())).result["headline"],
        "curves": {measure.key: _curves(study, label, measure) for measure in measures(study)},
        "traffic": {number: round(mib, 5) for number, mib in study.traffic(label).items()},
        "clients": _at_points(study, label, _clients),
        "benefit": _at_points(study, label, _benefit),
        "paths": {
            point: [_path(each[seed], point, share) if seed in each else None for seed in study.seeds]
            for point in POINTS
        },
    }


def _at_points(study: Study, label: str, tell: Any) -> dict[Point, list[Any]]:
    """What there is to tell of a method's clients at each point, for every seed that it was run with."""
    return {
        point: [tell(study, label, seed, point) if seed in study.runs[label] else None for seed in study.seeds]
        for point in POINTS
    }


def _curves(study: Study, label: str, measure: Measure) -> dict[Point, dict[str, Any]]:
    found = {point: measure.curve(study, label, point) for point in (POINTS if measure.points else POINTS[:1])}
    scale = 100 if measure.percent else 1
    return {
        point: {
            "rounds": [value.round for value in values],
            "values": [round(scale * value.spread.mean, 4) for value in values],
            "deviations": [round(scale * (value.spread.deviation or 0.0), 4) for value in values],
        }
        for point, values in found.items()
    }


def _clients(study: Study, label: str, seed: int, point: Point) -> dict[str, Any]:
    """Every client's accuracy, how sure it is, and what has to be said of it."""
    stale = study.stale(label, seed, point)
    return {
        "accuracy": percents(study.accuracies(label, seed, point)),
        "interval": [_interval(interval) for interval in study.intervals(label, seed, point)],
        "round": [stale.get(client) for client in range(study.clients)],
        "diverged": diverged(study.runs[label][seed].result, point),
    }


def _benefit(study: Study, label: str, seed: int, point: Point) -> dict[str, Any] | None:
    """What every client gains over training alone, how sure that is, and how many test samples make it up."""
    gains = study.gains(label, seed, point)
    if gains is None:
        return None
    return {
        "gain": percents(None if gain is None else gain.value for gain in gains),
        "interval": [None if gain is None else _interval(gain.interval) for gain in gains],
        "net": [None if gain is None else gain.net for gain in gains],
    }


def _interval(interval: Interval | None) -> list[float | None] | None:
    return None if interval is None else percents(interval)


def path(run: Finished, point: Point) -> Array:
    """Every client's accuracy in each round that was tested, in percent; NaN where a client was not."""
    tested = [record[point]["per_client"] for record in run.result["rounds"] if point in record]
    return 100 * np.array(tested, dtype=np.float64).reshape(len(tested), run.result["clients"])


def _path(run: Finished, point: Point, share: int) -> dict[str, Any] | None:
    values = path(run, point)
    packed = pack(values, share) if len(values) else None
    if packed is None:
        return None
    numbers = [record["round"] for record in run.result["rounds"] if point in record]
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


def percents(values: Iterable[float | None]) -> list[float | None]:
    """Fractions in percent, exact enough that rounding them gives what the tables have."""
    return [None if value is None or math.isnan(value) else round(100 * value, 6) for value in values]
