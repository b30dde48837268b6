"""Compare methods on the same federations: the same partitions, starts, batches and participants for each seed."""

import re
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from fedgraft import methods
from fedgraft.core.errors import UserError
from fedgraft.core.evaluation import POINTS, Point
from fedgraft.core.method import Method
from fedgraft.data.federation import Federation
from fedgraft.runs import directory, results, setting
from fedgraft.runs.config import RunConfig, configure
from fedgraft.runs.run import Run, Watcher, plan, start
from fedgraft.runs.setting import Model

REFERENCES = ("local", "fedavg")
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


@dataclass
class Comparison:
    """Runs of several methods over several seeds."""

    config: RunConfig
    seeds: tuple[int, ...]
    runs: dict[str, list[Run]]

    @property
    def clients(self) -> int:
        return next(runs[0].spec.clients for runs in self.runs.values())

    def rows(self) -> list[Row]:
        """The table: references first, then the methods in the order asked for."""
        return rows({name: [run.result for run in runs] for name, runs in self.runs.items()})

    def report(self, path: str | Path) -> Path:
        """Write the whole comparison into one HTML file."""
        from fedgraft.report.page import report_runs

        return report_runs([run for runs in self.runs.values() for run in runs], Path(path))

    def to_json(self) -> dict[str, Any]:
        def plain(value: Any) -> Any:
            if isinstance(value, Spread):
                return value._asdict()
            if isinstance(value, dict):
                return {key: plain(inner) for key, inner in value.items()}
            return value

        rows = [{name: plain(value) for name, value in vars(row).items()} for row in self.rows()]
        return {"seeds": list(self.seeds), "config": self.config.model_dump(), "rows": rows}


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
    )  # fmt: skip


def benefits(result: Result, alone: Result) -> list[float]:
    """What each client gains over training alone: its accuracy at the method's own point, less that of Local."""
    ours, theirs = last_accuracies(result, result["headline"]), last_accuracies(alone, "trained")
    return [mine - other for mine, other in zip(ours, theirs, strict=True)]


def last_accuracies(result: Result, point: Point) -> list[float]:
    """Every client's accuracy in the last round."""
    return [value if value is not None else 0.0 for value in result["rounds"][-1][point]["per_client"]]


def worst_tenth(accuracies: Sequence[float]) -> float:
    """Mean accuracy of the worst tenth of the clients (of one client at least)."""
    return statistics.fmean(sorted(accuracies)[: max(1, len(accuracies) // 10)])


def contestants(chosen: Iterable[str | Method]) -> dict[str, Method]:
    """Return the methods of a comparison by their labels, the references first, nobody twice."""
    members: dict[str, Method] = {}
    for method in (*REFERENCES, *chosen):
        made = methods.parse(method) if isinstance(method, str) else method
        if made in members.values():
            continue
        members[methods.label(made)] = made
    return members


def compare(
    chosen: Iterable[str | Method],
    *,
    seeds: int = 3,
    config: RunConfig | None = None,
    recipe: str | None = None,
    federation: Callable[[int], Federation] | None = None,
    model: Model | str | None = None,
    watchers: Sequence[Watcher] = (),
    out: str | Path | None = None,
    **settings: Any,
) -> Comparison:
    """Run every chosen method, and local and fedavg, for ``seeds`` seeds.

    A method is chosen by name, as a text with settings (``"fedapa:mu=0.3"``) or as an object. ``settings`` and
    ``model`` are those of :func:`fedgraft.run`; ``federation`` may make your own for each seed. Every seed draws a
    new partition, new initial weights and new batches, the same for all methods.
    """
    if seeds < 1:
        raise UserError(f"a comparison needs at least one seed, not {seeds}")
    if isinstance(model, str):
        settings["model"], model = model, None
    config = config or configure(settings, recipe_name=recipe)
    members = contestants(chosen)
    first = config.seed
    place = None if out is None else directory.fresh(Path(out))
    comparison = Comparison(config, tuple(range(first, first + seeds)), {name: [] for name in members})
    for seed in comparison.seeds:
        this = config.model_copy(update={"seed": seed})
        fed = setting.federation(this) if federation is None else federation(seed)
        for name, method in members.items():
            folder = re.sub(r"[^\w.+=-]+", "-", f"{name}-seed{seed}")
            planned = plan(method, fed, this, model, given=federation is not None)
            comparison.config = planned.config.model_copy(update={"seed": first, "method": config.method, "params": {}})
            comparison.runs[name].append(start(planned, None if place is None else place / folder, watchers))
    if place is not None:
        results.write_json(place / "comparison.json", comparison.to_json())
    return comparison
