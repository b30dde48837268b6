"""Compare methods on the same federations: the same partitions, starts, batches and participants for each seed."""

import statistics
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from fedgraft import methods
from fedgraft.core.errors import UserError
from fedgraft.core.evaluation import POINTS, Point
from fedgraft.core.method import Method
from fedgraft.data.federation import Federation
from fedgraft.runs import results
from fedgraft.runs.config import RunConfig, configure
from fedgraft.runs.run import Run, Watcher, _federation, _fresh_directory, run

REFERENCES = ("local", "fedavg")


class Spread(NamedTuple):
    """A figure over seeds: mean and sample standard deviation (none for a single seed)."""

    mean: float
    deviation: float | None

    @classmethod
    def of(cls, values: Sequence[float]) -> "Spread":
        return cls(statistics.fmean(values), statistics.stdev(values) if len(values) > 1 else None)


@dataclass(frozen=True)
class Row:
    """One method of a comparison, over all seeds."""

    method: str
    reconstruction: bool
    headline: Point
    mean: dict[Point, Spread]
    pooled: dict[Point, Spread]
    worst_tenth: dict[Point, Spread]
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

    def rows(self) -> list[Row]:
        """The table: references first, then the methods in the order asked for."""
        return [self._row(name) for name in self.runs]

    def to_json(self) -> dict[str, Any]:
        def plain(value: Any) -> Any:
            if isinstance(value, Spread):
                return value._asdict()
            if isinstance(value, dict):
                return {key: plain(inner) for key, inner in value.items()}
            return value

        rows = [{name: plain(value) for name, value in vars(row).items()} for row in self.rows()]
        return {"seeds": list(self.seeds), "config": self.config.model_dump(), "rows": rows}

    def _row(self, name: str) -> Row:
        runs = self.runs[name]
        headline: Point = "trained" if runs[0].method.headline == "trained" else "received"
        spreads: dict[str, dict[Point, Spread]] = {"mean": {}, "pooled": {}, "worst": {}}
        for point in POINTS:
            for figure in ("mean", "pooled"):
                spreads[figure][point] = Spread.of([r.result["last"][point][figure] for r in runs])
            spreads["worst"][point] = Spread.of([worst_tenth(last_accuracies(r, point)) for r in runs])
        return Row(
            method=name, reconstruction=runs[0].method.reconstruction, headline=headline,
            mean=spreads["mean"], pooled=spreads["pooled"], worst_tenth=spreads["worst"],
            bytes_up=statistics.fmean(r.result["bytes_up_per_client"] for r in runs),
            bytes_down=statistics.fmean(r.result["bytes_down_per_client"] for r in runs),
            seconds=statistics.fmean(r.result["seconds"] for r in runs),
            gaining=self._gaining(name, headline), clients=sum(r.spec.clients for r in runs),
        )  # fmt: skip

    def _gaining(self, name: str, point: Point) -> int | None:
        """How many clients, over all seeds, are better off than with local training."""
        if name == "local" or "local" not in self.runs:
            return None
        return sum(
            ours > alone
            for ours_run, local_run in zip(self.runs[name], self.runs["local"], strict=True)
            for ours, alone in zip(last_accuracies(ours_run, point), last_accuracies(local_run, "trained"), strict=True)
        )


def last_accuracies(run: Run, point: Point) -> list[float]:
    """Every client's accuracy in the last round."""
    return [value if value is not None else 0.0 for value in run.records[-1][point]["per_client"]]


def worst_tenth(accuracies: Sequence[float]) -> float:
    """Mean accuracy of the worst tenth of the clients (of one client at least)."""
    return statistics.fmean(sorted(accuracies)[: max(1, len(accuracies) // 10)])


def compare(
    chosen: Iterable[str | Method],
    *,
    seeds: int = 3,
    config: RunConfig | None = None,
    recipe: str | None = None,
    federation: Callable[[int], Federation] | None = None,
    watchers: Callable[[Method, int, int], Sequence[Watcher]] | None = None,
    out: str | Path | None = None,
    **settings: Any,
) -> Comparison:
    """Run every chosen method, and local and fedavg, for ``seeds`` seeds.

    ``settings`` are those of :func:`fedgraft.run`; ``federation`` may make your own for each seed. Every seed draws
    a new partition, new initial weights and new batches, the same for all methods.
    """
    if seeds < 1:
        raise UserError(f"a comparison needs at least one seed, not {seeds}")
    config = config or configure(settings, recipe_name=recipe)
    members: dict[str, Method] = {}
    for method in (*REFERENCES, *chosen):
        made = methods.make(method) if isinstance(method, str) else method
        label = made.name if made.name not in members or isinstance(method, str) else f"{made.name} {len(members)}"
        members.setdefault(label, made)
    first = config.seed
    directory = None if out is None else _fresh_directory(Path(out))
    comparison = Comparison(config, tuple(range(first, first + seeds)), {name: [] for name in members})
    for position, seed in enumerate(comparison.seeds):
        this = config.model_copy(update={"seed": seed})
        fed = _federation(this) if federation is None else federation(seed)
        for number, (name, method) in enumerate(members.items()):
            done = position * len(members) + number
            place = None if directory is None else directory / f"{name.replace(' ', '-')}-seed{seed}"
            seen_by = () if watchers is None else watchers(method, seed, done)
            comparison.runs[name].append(run(method, fed, config=this, out=place, watchers=seen_by))
    if directory is not None:
        results.write_json(directory / "comparison.json", comparison.to_json())
    return comparison
