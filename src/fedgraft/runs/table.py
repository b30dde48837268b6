"""The table of a comparison: what each method gave, over all seeds, and what its clients gain over training alone."""

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from fedgraft.core.evaluation import POINTS, Point

Result = Mapping[str, Any]


class Spread(NamedTuple):
    """A figure over seeds: mean and sample standard deviation (none for a single seed)."""

    mean: float
    deviation: float | None

    @classmethod
    def of(cls, values: Sequence[float]) -> "Spread":
        return cls(statistics.fmean(values), statistics.stdev(values) if len(values) > 1 else None)


@dataclass(frozen=True)
class Row:
    """One method of a comparison, over all seeds. ``unevenness`` is the deviation of the accuracy across clients."""

    method: str
    reconstruction: bool
    headline: Point
    mean: dict[Point, Spread]
    pooled: dict[Point, Spread]
    worst_tenth: dict[Point, Spread]
    unevenness: dict[Point, Spread]
    bytes_up: float
    bytes_down: float
    seconds: float
    gaining: int | None
    clients: int
    refused: int


def rows(finished: Mapping[str, Sequence[Result]]) -> list[Row]:
    """The table, from the results of each method; a client is compared with Local's of the same seed."""
    alone = {result["seed"]: result for result in finished.get("local", ())}
    return [_row(name, each, None if name == "local" else alone) for name, each in finished.items()]


def _row(name: str, finished: Sequence[Result], alone: Mapping[int, Result] | None) -> Row:
    first = finished[0]
    figures: dict[str, dict[Point, Spread]] = {"mean": {}, "pooled": {}, "worst_tenth": {}, "unevenness": {}}
    for point in POINTS:
        for figure in ("mean", "pooled"):
            figures[figure][point] = Spread.of([result["last"][point][figure] for result in finished])
        each = [last_accuracies(result, point) for result in finished]
        figures["worst_tenth"][point] = Spread.of([worst_tenth(accuracies) for accuracies in each])
        figures["unevenness"][point] = Spread.of([statistics.pstdev(accuracies) for accuracies in each])
    pairs = [(result, alone[result["seed"]]) for result in finished if alone and result["seed"] in alone]
    gains = [gain for result, local in pairs for gain in benefits(result, local)]
    return Row(
        method=name, reconstruction=first["reconstruction"], headline=first["headline"], **figures,
        bytes_up=statistics.fmean(result["bytes_up_per_client"] for result in finished),
        bytes_down=statistics.fmean(result["bytes_down_per_client"] for result in finished),
        seconds=statistics.fmean(result["seconds"] for result in finished),
        gaining=sum(gain > 0 for gain in gains) if gains else None,
        clients=sum(result["clients"] for result in finished),
        refused=sum(result.get("refused", 0) for result in finished),
    )  # fmt: skip


def benefits(result: Result, alone: Result) -> list[float]:
    """What each client gains over training alone: its accuracy at the method's own point, less that of Local."""
    ours, theirs = last_accuracies(result, result["headline"]), last_accuracies(alone, "trained")
    return [mine - other for mine, other in zip(ours, theirs, strict=True)]


def last_accuracies(result: Result, point: Point) -> list[float]:
    """Every client's accuracy in the last round, or when it was last tested; nothing, if it never was."""
    found = [0.0] * len(result["rounds"][-1][point]["per_client"])
    for record in result["rounds"]:
        for client, accuracy in enumerate(record.get(point, {}).get("per_client", ())):
            found[client] = found[client] if accuracy is None else accuracy
    return found


def worst_tenth(accuracies: Sequence[float]) -> float:
    """Mean accuracy of the worst tenth of the clients (of one client at least)."""
    return statistics.fmean(sorted(accuracies)[: max(1, len(accuracies) // 10)])
