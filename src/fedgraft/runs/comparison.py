"""A comparison: runs that differ in their methods and seeds and in nothing else, made just now or read from a disk.

Where the learning rate was chosen for each method, by as many trials for all, it may differ as well.
Tables, report, text, JSON and frames all show what it works out.
"""

import statistics
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

from rich.console import RenderableType

from fedgraft.base import characters
from fedgraft.base.errors import UserError, unknown
from fedgraft.core.evaluation import Point
from fedgraft.runs import table
from fedgraft.runs.config import AT, MACHINE, At, RunConfig
from fedgraft.runs.frame import Frame, frame, observations
from fedgraft.runs.metric import MetricInfo
from fedgraft.runs.resultfile import Record, Result, Set
from fedgraft.runs.statistics import Interval, wilson
from fedgraft.runs.table import Gain, Pair, Row, Spread, Verdict

REFERENCES = ("local", "fedavg")
MIB = 1024 * 1024
_NOT_THE_SETTING = MACHINE | {"method", "params", "seed", "evaluate_every", "global_test", "metrics", "task"}
"""What may differ in a comparison; the task may not, but an older version did not write it down."""


class FinishedRun(Protocol):
    """What is known of a run that is over, made in this process or read from its directory."""

    @property
    def label(self) -> str: ...

    @property
    def config(self) -> RunConfig: ...

    @property
    def facts(self) -> Result: ...

    @property
    def observed(self) -> Any:
        """What the method showed in each round, by name."""
        ...

    @property
    def directory(self) -> Path | None: ...


AnyRun = TypeVar("AnyRun", bound=FinishedRun)


class Value(NamedTuple):
    """A figure after a round, over seeds."""

    round: int
    spread: Spread


@dataclass(eq=False, repr=False)
class Comparison(Generic[AnyRun]):
    """Runs of several methods over several seeds; of one method and one seed, too.

    ``at`` says where methods are compared: as ``trained``, as ``received``, or each at its ``own`` paper's point.
    ``metric`` is the name of what they are judged by; the leading one unless told.
    """

    config: RunConfig
    runs: dict[str, list[AnyRun]]
    """The runs of each method, in the order of their seeds; the references come first."""

    def __repr__(self) -> str:
        config, seeds = self.config, f"{len(self.seeds)} seed{'s' if len(self.seeds) > 1 else ''}"
        where = f"{config.dataset}, {self.clients} clients, {config.partition}, {config.rounds} rounds, {seeds}"
        return f"Comparison({', '.join(self.runs)} on {where})"

    def __str__(self) -> str:
        return characters.as_text(self._picture())

    def _repr_html_(self) -> str:
        return characters.as_html(self._picture())

    def _picture(self) -> RenderableType:
        from fedgraft.report.comparison import view

        return view(self)

    @cached_property
    def facts(self) -> dict[str, dict[int, Result]]:
        """The results of each method by seed."""
        return {label: {run.config.seed: run.facts for run in each} for label, each in self.runs.items()}

    @property
    def results(self) -> dict[str, list[Result]]:
        """The results of each method, seed by seed."""
        return {label: list(each.values()) for label, each in self.facts.items()}

    @property
    def seeds(self) -> tuple[int, ...]:
        return tuple(sorted({seed for each in self.facts.values() for seed in each}))

    @property
    def clients(self) -> int:
        return self.any_result(self.seeds[0]).clients

    @property
    def title(self) -> str:
        config = self.config
        return f"{config.dataset}, {self.clients} clients, {config.partition}, {config.model}, {config.rounds} rounds"

    @cached_property
    def metrics(self) -> tuple[MetricInfo, ...]:
        """What all its runs were judged by; the first leads."""
        each = [result for several in self.results.values() for result in several]
        common = set.intersection(*({metric.name for metric in result.metrics} for result in each))
        return tuple(metric for metric in each[0].metrics if metric.name in common)

    def metric(self, name: str | None = None) -> MetricInfo:
        """The metric of that name, or the leading one."""
        known = {metric.name: metric for metric in self.metrics}
        if not known:
            raise UserError(f"the runs of {self.title} have no metric in common")
        if name is not None and name not in known:
            raise unknown("metric", name, known)
        return known[name] if name is not None else self.metrics[0]

    @property
    def tuned(self) -> dict[str, dict[str, float | int]]:
        """What tuning chose for each method; nothing, where nothing was tuned."""
        first = {label: each[0].facts.tuned for label, each in self.runs.items()}
        return {label: dict(chosen) for label, chosen in first.items() if chosen}

    def any_result(self, seed: int) -> Result:
        """Some result with this seed: what does not depend on the method can be read from it."""
        return next(each[seed] for each in self.facts.values() if seed in each)

    def names(self, seed: int) -> list[str]:
        """The clients by name."""
        return self.any_result(seed).called

    def starred(self, label: str) -> str:
        """The label, marked if the method is a reconstruction."""
        return label + "*" * next(iter(self.facts[label].values())).reconstruction

    def rows(self, at: At = AT[0], metric: str | None = None) -> list[Row]:
        """The table: references first, then the methods in the order asked for."""
        judged = self.metric(metric)
        if (at, judged) not in self._rows:
            self._rows[at, judged] = table.rows(self.results, judged, at)
        return self._rows[at, judged]

    @cached_property
    def _rows(self) -> dict[tuple[At, MetricInfo], list[Row]]:
        """Tables that were worked out already: intervals and tests take a while, and several views want them."""
        return {}

    def pairs(self, at: At = AT[0], metric: str | None = None, *, with_best: bool = False) -> list[Pair]:
        """Every two methods against each other, client by client, and whether the difference is more than noise.

        With many methods there are very many pairs: ``with_best`` takes those with Local, with the best one and
        with fedavg-ft only.
        """
        return table.pairs(self.results, self.metric(metric), at, with_best=with_best)

    def verdicts(self, at: At = AT[0], metric: str | None = None) -> list[Verdict]:
        """Whom each method helps, against training alone; the method that helps most first."""
        return table.verdicts(self.results, self.rows(at, metric), at)

    def values(self, label: str, seed: int, at: At = AT[0], metric: str | None = None) -> list[float | None]:
        """Every client's last figure; none of one that never was tested."""
        result = self.facts[label][seed]
        return table.last_figures(result, self.metric(metric), table.measured(result, at))

    def intervals(self, label: str, seed: int, at: At = AT[0], metric: str | None = None) -> list[Interval | None]:
        """How sure every client's figure is, where the number of its test samples says so."""
        counted = self.metric(metric).counted
        return [
            wilson(value, count) if counted and value is not None and count is not None else None
            for value, count in zip(self.values(label, seed, at, metric), self._tested(label, seed), strict=True)
        ]

    def stale(self, label: str, seed: int, at: At = AT[0], metric: str | None = None) -> dict[int, int]:
        """Clients whose last figure is of an earlier round than the others', and of which."""
        result = self.facts[label][seed]
        return table.stale(result, self.metric(metric), table.measured(result, at))

    def gains(
        self, label: str, seed: int, at: At = AT[0], metric: str | None = None
    ) -> list[Gain | None] | None:  # fmt: skip
        """What each client gains over training alone; nothing without a run of Local with the same seed."""
        if label == "local" or seed not in self.facts.get("local", {}):
            return None
        judged = self.metric(metric)
        both = (self.values(each, seed, at, metric) for each in (label, "local"))
        return [Gain.of(judged, *each) for each in zip(*both, self._tested(label, seed), strict=True)]

    def _tested(self, label: str, seed: int) -> list[int | None]:
        """How many test samples each client has; runs of an older version do not say."""
        known: list[int] | None = self.facts[label][seed].test_samples
        return [None] * self.clients if known is None else list(known)

    def curve(
        self, label: str, point: Point, figure: str = "mean", metric: str | None = None, kind: Set = ""
    ) -> list[Value]:
        """A figure after each round in which all seeds have it."""
        name = self.metric(metric).name

        def read(record: Record) -> float | None:
            found = record.figures(point, name, kind)
            return None if found is None else found.mean if figure == "mean" else found.pooled

        return self._over_seeds(label, read)

    def training_loss(self, label: str) -> list[Value]:
        """What was left of the loss in each round's training."""
        return self._over_seeds(label, lambda record: record.loss)

    def _over_seeds(self, label: str, read: Callable[[Record], float | None]) -> list[Value]:
        each = [
            {record.round: value for record in result.rounds if (value := read(record)) is not None}
            for result in self.facts[label].values()
        ]
        common = sorted(set.intersection(*map(set, each)))
        return [Value(number, Spread.of([values[number] for values in each])) for number in common]

    def traffic(self, label: str) -> dict[int, float]:
        """MiB that one client has sent and received up to each round, on average over clients and seeds."""
        totals: dict[int, list[float]] = {}
        for result in self.facts[label].values():
            so_far = 0.0
            for record in result.rounds:
                so_far += (record.bytes_up + record.bytes_down) / self.clients / MIB
                totals.setdefault(record.round, []).append(so_far)
        return {number: statistics.fmean(values) for number, values in totals.items()}

    def report(
        self,
        path: str | Path,
        at: At = AT[0],
        metric: str | None = None,
        *,
        answer: Sequence[str] = (),
        sites: Sequence[Sequence[str]] = (),
    ) -> Path:
        """Write the whole comparison into one HTML file; ``at`` and ``metric`` are what it shows at first.

        ``answer`` are sentences that stand above it, ``sites`` the rows of a table among them, headings first.
        """
        from fedgraft.report.page import write

        return write(Reading([self], answer=answer, sites=sites), Path(path), at, metric)

    def frame(self) -> Frame:
        """Every figure that was measured, one in a row: a DataFrame where pandas is installed, else a list of dicts.

        The columns are method, seed, round, set (test, validation, everyone or unseen), point, client (a name, or
        ``mean`` and ``pooled`` over all), metric and value; what was not measured has no row.
        """
        return frame(
            row for label, each in self.facts.items() for result in each.values() for row in observations(label, result)
        )

    def to_json(self, at: At = AT[0], metric: str | None = None) -> dict[str, Any]:
        """The table and the pairs, for programs; differences are positive where the first is better."""
        rows = [table.plain(vars(row)) for row in self.rows(at, metric)]
        pairs = [
            table.plain(pair) | {"more_than_noise": pair.difference.more_than_noise} for pair in self.pairs(at, metric)
        ]
        return {
            "seeds": list(self.seeds), "config": self.config.model_dump(), "compared_at": at,
            "metric": self.metric(metric).model_dump(), "rows": rows, "pairs": pairs,
        }  # fmt: skip


@dataclass(frozen=True, eq=False)
class Reading:
    """What a report is made of: comparisons, and sentences about what was left out.

    ``answer`` is what they were made to find out: the first of its sentences is the answer, the others are behind it.
    """

    comparisons: Sequence[Comparison[Any]]
    notes: list[str] = field(default_factory=list)
    answer: Sequence[str] = ()
    sites: Sequence[Sequence[str]] = ()

    @property
    def runs(self) -> list[Any]:
        """All runs."""
        return [run for each in self.comparisons for several in each.runs.values() for run in several]


def comparisons(runs: Iterable[AnyRun]) -> list[Comparison[AnyRun]]:
    """Group runs that may be compared: those whose settings are the same but for method, seed and what was tuned."""
    groups: dict[str, list[AnyRun]] = {}
    for run in runs:
        setting = run.config.model_copy(update={name: _DEFAULTS[name] for name in _NOT_THE_SETTING})
        if setting.tuned:
            setting = setting.model_copy(update={"training": setting.training.but(lr=_DEFAULTS["training"].lr)})
        groups.setdefault(run.facts.task + setting.model_dump_json(), []).append(run)
    return [Comparison(each[0].config, _by_label(each)) for each in groups.values()]


def _by_label(runs: Sequence[AnyRun]) -> dict[str, list[AnyRun]]:
    """The runs of each method, the references first, each in the order of seeds."""
    labels = list(dict.fromkeys(run.label for run in runs))
    order = sorted(labels, key=lambda label: REFERENCES.index(label) if label in REFERENCES else len(REFERENCES))
    return {label: sorted((r for r in runs if r.label == label), key=lambda r: r.config.seed) for label in order}


_DEFAULTS: dict[str, Any] = {
    name: info.get_default(call_default_factory=True) for name, info in RunConfig.model_fields.items()
}
