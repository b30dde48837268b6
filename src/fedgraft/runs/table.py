"""The figures of a comparison: what each method gave, over all seeds, and whether it is better than another.

Everything here is of one metric, in its own direction: a difference that is positive is one for the better.
"""

import math
import statistics
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, combinations, product
from typing import Any, NamedTuple

from pydantic import BaseModel

from fedgraft.core.evaluation import POINTS, Point
from fedgraft.data.partition import steady
from fedgraft.runs.config import AT, At
from fedgraft.runs.metric import MetricInfo
from fedgraft.runs.resultfile import ClientFigures, Guarantee, Result
from fedgraft.runs.results import unheard
from fedgraft.runs.statistics import Difference, Interval, between_shares, net_samples, paired, together

Results = Mapping[str, Sequence[Result]]
"""The results of each method, by its label."""
Measure = Callable[[Result, MetricInfo, Point], float | None]


class Spread(NamedTuple):
    """A figure over seeds: mean and sample standard deviation (none for a single seed); NaN if never measured."""

    mean: float
    deviation: float | None

    @classmethod
    def of(cls, values: Iterable[float | None]) -> "Spread":
        known = [value for value in values if value is not None]
        if not known:
            return cls(math.nan, None)
        return cls(statistics.fmean(known), statistics.stdev(known) if len(known) > 1 else None)


@dataclass(frozen=True)
class Row:
    """One method of a comparison, over all seeds, by one metric."""

    method: str
    metric: MetricInfo
    reconstruction: bool
    headline: Point
    """The method's own point: where its paper measures."""
    point: Point
    """Where it is compared with the others."""
    mean: dict[Point, Spread]
    pooled: dict[Point, Spread]
    worst_tenth: dict[Point, Spread]
    unevenness: dict[Point, Spread]
    """The deviation of the metric across clients."""
    best: dict[Point, Spread]
    """The client mean in the round that validation data chose; empty without such data."""
    everyone: dict[Point, Spread]
    """The clients' mean on the test samples of all clients; empty without ``global_test``."""
    everyone_best: dict[Point, Spread]
    """The same in the best round of the client mean."""
    unseen: dict[Point, Spread]
    """The mean over clients that were held out of training and joined afterwards; empty without ``hold_out``."""
    unseen_pooled: dict[Point, Spread]
    """The same over all their test samples."""
    bytes_up: float
    bytes_down: float
    seconds: float
    clients: int
    refused: int
    unheard: int
    """In how many of its runs the server took no reply at all."""
    privacy: tuple[Guarantee, ...]
    """What was spent of the clients' privacy in the run that spent most."""
    difference: Difference | None
    """Against Local, at ``point``, positive if better; none without a run of Local."""
    diverged: dict[Point, tuple[str, ...]]
    """Clients whose model answered with numbers that are none, in the last round that was tested."""
    untested: tuple[str, ...]
    """Clients that have no figure in any round: they count in none."""
    stale: tuple[str, ...]
    """Clients that have no figure of the last round: theirs is of an earlier one."""

    def __repr__(self) -> str:
        against = ""
        if self.difference is not None:
            noise = "more than noise" if self.difference.more_than_noise else "within noise"
            against = f", {self.metric.difference(self.difference.mean)} against local, {noise}"
        mean = f"{self.metric.title} {self.metric.shown(self.mean[self.point].mean)}{self.metric.unit}"
        return f"Row({self.method}: client mean of {mean} {self.point}{against})"


class Pair(NamedTuple):
    """Two methods against each other, client by client; the difference says by how much the first is better."""

    one: str
    other: str
    at: At
    difference: Difference


class Gain(NamedTuple):
    """What a client gains over training alone, how sure that is, and how many of its test samples make it up."""

    value: float
    interval: Interval | None
    net: int | None
    samples: int | None

    @classmethod
    def of(cls, metric: MetricInfo, ours: float | None, alone: float | None, samples: int | None) -> "Gain | None":
        """The gain in the metric's direction; only of a share of samples do their number say how sure it is."""
        if ours is None or alone is None:
            return None
        value = metric.gain(ours, alone)
        if not samples or not metric.counted:
            return cls(value, None, None, samples or None)
        return cls(value, between_shares(ours, alone, samples), net_samples(value, samples), samples)


TUNED = "fedavg-ft"
"""FedAvg with fine-tuning: the simple choice that others have to beat."""


@dataclass(frozen=True)
class Verdict:
    """What a method does to the clients, against training alone; over all seeds."""

    label: str
    point: Point
    gains: tuple[float, ...]
    """A client that is the same in all seeds counts once."""
    difference: Difference
    names: tuple[str, ...] = ()
    """Whose gains these are, where they are those of the same clients in all seeds."""

    @property
    def harmed(self) -> tuple[str, ...]:
        """Who is worse off, by name, most of all first."""
        losses = sorted((gain, name) for gain, name in zip(self.gains, self.names, strict=False) if gain < 0)
        return tuple(name for _, name in losses)

    @property
    def better(self) -> int:
        return sum(gain > 0 for gain in self.gains)

    @property
    def worse(self) -> int:
        return sum(gain < 0 for gain in self.gains)

    @property
    def same(self) -> int:
        return len(self.gains) - self.better - self.worse

    @property
    def mean(self) -> float:
        return self.difference.mean

    @property
    def answer(self) -> str:
        """Whether federation helped, in a few words."""
        if self.difference.too_few:
            return "Too few clients to tell."
        if not self.difference.more_than_noise:
            return "Not more than chance."
        if self.difference.mean < 0:
            return "No, clients lose."
        return "Yes, most clients." if self.difference.most_gain else "Yes, some clients."


def rows(results: Results, metric: MetricInfo, at: At = AT[0]) -> list[Row]:
    """The table, from the results of each method; a client is compared with Local's of the same seed."""
    against = {pair.one: pair.difference for pair in _family(results, _with_local(results), metric, at)}
    return [_row(name, each, metric, at, against.get(name)) for name, each in results.items()]


def pairs(results: Results, metric: MetricInfo, at: At = AT[0], *, with_best: bool = False) -> list[Pair]:
    """Every two methods, or (``with_best``) each with Local, with the best of the others and with fedavg-ft only.

    Those against Local are one family of tests, all others another; p values are corrected in each, whether all of it
    is told or not.
    """
    labels = [label for label in results if label != "local"]
    told, others = [*combinations(reversed(labels), 2)], []
    if with_best:
        means = {label: _spreads(results[label], metric, _last_mean) for label in labels}
        at_point = {label: means[label][measured(results[label][0], at)].mean for label in labels}
        leading = _ranked(at_point, metric)[:1]
        tuned = [TUNED] if TUNED in labels and TUNED not in leading else []
        rest = [label for label in labels if label not in (*leading, *tuned)]
        told, others = [*product(leading, [*rest, *tuned]), *product(rest, tuned)], [*combinations(rest, 2)]
    return [
        *_family(results, _with_local(results), metric, at),
        *(pair for pair in _family(results, [*told, *others], metric, at) if (pair.one, pair.other) in told),
    ]


def verdicts(results: Results, table: Sequence[Row], at: At) -> list[Verdict]:
    """Whom each method helps; the method that helps most first."""
    found = []
    for row in table:
        if row.difference is not None:
            ours, alone = results[row.method], results["local"]
            gains = tuple(chain(*differences(ours, alone, row.metric, at)))
            names = tuple(by_site(ours, alone, row.metric, at))
            found.append(Verdict(row.method, row.point, gains, row.difference, names))
    return sorted(found, key=lambda verdict: -verdict.mean)


def _with_local(results: Results) -> list[tuple[str, str]]:
    return [(label, "local") for label in results if label != "local"] if "local" in results else []


def orders(table: Sequence[Row]) -> dict[At, list[str]]:
    """The methods by their client mean, the best first, wherever they may be compared."""
    metric = table[0].metric
    means = {
        at: {row.method: row.mean[row.headline if at == "own" else at].mean for row in table} for at in AT
    }  # fmt: skip
    return {at: _ranked(each, metric) for at, each in means.items()}


def _ranked(means: Mapping[str, float], metric: MetricInfo) -> list[str]:
    """The best first; whoever was never measured last."""
    return sorted(means, key=lambda label: math.inf if math.isnan(means[label]) else -metric.worth(means[label]))


def plain(value: Any) -> Any:
    """A row, a pair or a part of one as JSON has it; what never was measured is null."""
    if isinstance(value, BaseModel):
        return value.model_dump()
    if hasattr(value, "_asdict"):
        return plain(value._asdict())
    if isinstance(value, Mapping):
        return {key: plain(inner) for key, inner in value.items()}
    if isinstance(value, tuple):
        return [plain(inner) for inner in value]
    return None if isinstance(value, float) and math.isnan(value) else value


def _family(results: Results, chosen: Iterable[tuple[str, str]], metric: MetricInfo, at: At) -> Iterator[Pair]:
    looked_at = [(one, other, paired(differences(results[one], results[other], metric, at))) for one, other in chosen]
    known = [(one, other, difference) for one, other, difference in looked_at if difference is not None]
    for (one, other, _), difference in zip(known, together([found for *_, found in known]), strict=True):
        yield Pair(one, other, at, difference)


def differences(one: Sequence[Result], other: Sequence[Result], metric: MetricInfo, at: At) -> list[list[float]]:
    """What two methods' clients differ by, seed by seed; clients that are the same in all seeds count once."""
    if sites := by_site(one, other, metric, at):
        return [[*sites.values()]]
    return [[gain for gain in benefits(*each, metric, at) if gain is not None] for each in _common(one, other)]


def by_site(one: Sequence[Result], other: Sequence[Result], metric: MetricInfo, at: At) -> dict[str, float]:
    """What each client gains, by name, over the seeds in which it took part; empty where seeds have other clients.

    Most partitions are drawn anew for each seed, and then its clients are other clients. Sites stay who they are, also
    if a seed keeps some of their samples for validation, or one of them out of training: several seeds are then several
    looks at one client.
    """
    common = _common(one, other)
    found: dict[str, list[float]] = {}
    if not _same_clients([result for result, _ in common]):
        return {}
    for result, reference in common:
        for name, gain in zip(result.called, benefits(result, reference, metric, at), strict=True):
            if gain is not None:
                found.setdefault(name, []).append(gain)
    return {name: statistics.fmean(gains) for name, gains in found.items()}


def _common(one: Sequence[Result], other: Sequence[Result]) -> list[tuple[Result, Result]]:
    """The runs of one method with those of another of the same seeds."""
    theirs = {result.seed: result for result in other}
    return [(result, theirs[result.seed]) for result in one if result.seed in theirs]


def _same_clients(results: Sequence[Result]) -> bool:
    """Whether a client of one seed is that of another: by the partition, or because they have the same samples."""
    held = [result.digest.get("data") or (result.label_counts, result.samples) for result in results]
    return all(steady(result.partition) for result in results) or all(each == held[0] for each in held[1:])


def _row(
    name: str, results: Sequence[Result], metric: MetricInfo, at: At, difference: Difference | None
) -> Row:  # fmt: skip
    first, point = results[0], measured(results[0], at)
    return Row(
        method=name, metric=metric, reconstruction=first.reconstruction, headline=first.headline, point=point,
        **{figure: _spreads(results, metric, measure) for figure, measure in _FIGURES.items()},
        **{figure: _spreads(results, metric, measure, optional=True) for figure, measure in _EXTRAS.items()},
        bytes_up=statistics.fmean(result.bytes_up_per_client for result in results),
        bytes_down=statistics.fmean(result.bytes_down_per_client for result in results),
        seconds=statistics.fmean(result.seconds for result in results),
        clients=sum(result.clients for result in results),
        refused=sum(result.refused for result in results),
        unheard=sum(unheard([record.accepted for record in result.rounds]) for result in results),
        privacy=_most_spent(results),
        difference=difference,
        diverged={place: _told(results, [diverged(r, place) for r in results]) for place in POINTS},
        untested=_told(results, [untested(r, metric, point) for r in results]),
        stale=_told(results, [stale(r, metric, point) for r in results]),
    )  # fmt: skip


def _most_spent(results: Sequence[Result]) -> tuple[Guarantee, ...]:
    """The weakest guarantee for each unit; none, if one of the runs has none."""
    units = {each.unit for each in results[0].privacy}
    found = []
    for unit in sorted(units, reverse=True):
        each = [guarantee for result in results for guarantee in result.privacy if guarantee.unit == unit]
        if len(each) == len(results):
            found.append(max(each, key=lambda one: math.inf if one.epsilon is None else one.epsilon))
    return tuple(found)


def _spreads(
    results: Sequence[Result], metric: MetricInfo, measure: Measure, *, optional: bool = False
) -> dict[Point, Spread]:
    """A figure over seeds at both points; nothing, if it is ``optional`` and no run has it."""
    found = {point: Spread.of(measure(result, metric, point) for result in results) for point in POINTS}
    return {} if optional and all(math.isnan(spread.mean) for spread in found.values()) else found


def _told(results: Sequence[Result], clients: Sequence[Iterable[int] | Mapping[int, int]]) -> tuple[str, ...]:
    """Clients by their names, with the seed where there are several, and the round where one is known."""
    found = []
    for result, chosen in zip(results, clients, strict=True):
        for client in chosen:
            remarks = [f"seed {result.seed}"] if len(results) > 1 else []
            remarks += [f"round {chosen[client]}"] if isinstance(chosen, Mapping) else []
            found.append(result.called[client] + (f" ({', '.join(remarks)})" if remarks else ""))
    return tuple(found)


def on_validation(result: Result, metric: MetricInfo, at: At, say: Sequence[int] | None = None) -> float:
    """The client mean on validation data, when it was last measured; NaN where it never was.

    ``say`` is how much each client counts in it; without, all count alike.
    """
    for record in reversed(result.rounds):
        found = record.figures(measured(result, at), metric.name, "_validation")
        if found is not None and found.mean is not None:
            return found.mean if say is None else weighed(found.per_client, say)
    return math.nan


def unjudged(result: Result, at: At) -> int:
    """How many clients have no figure by any metric on validation data, when it was last measured."""
    for record in reversed(result.rounds):
        found = [record.figures(measured(result, at), metric.name, "_validation") for metric in result.metrics]
        if any(each is not None and each.mean is not None for each in found):
            figures = zip(*(each.per_client for each in found if each is not None), strict=True)
            return sum(all(value is None for value in client) for client in figures)
    return result.clients


def weighed(figures: Sequence[float | None], say: Sequence[int]) -> float:
    """The mean over the clients that have a figure, each by its say."""
    known = [(value, weight) for value, weight in zip(figures, say, strict=True) if value is not None and weight]
    return (
        math.fsum(value * weight for value, weight in known) / sum(weight for _, weight in known) if known else math.nan
    )


def measured(result: Result, at: At) -> Point:
    """The point at which a method is compared."""
    return result.headline if at == "own" else at


def benefits(result: Result, alone: Result, metric: MetricInfo, at: At = AT[0]) -> list[float | None]:
    """What each client gains over another run, as a rule Local's; nothing is known of one that was not tested."""
    ours, theirs = (last_figures(each, metric, measured(each, at)) for each in (result, alone))
    return [
        None if mine is None or other is None else metric.gain(mine, other)
        for mine, other in zip(ours, theirs, strict=True)
    ]


def last_figures(result: Result, metric: MetricInfo, point: Point) -> list[float | None]:
    """Every client's figure in the last round, or when it last had one; nothing, if it never did."""
    return [None if test is None else test[1] for test in _last_tests(result, metric, point)]


def untested(result: Result, metric: MetricInfo, point: Point) -> list[int]:
    """Clients that never had a figure."""
    return [client for client, test in enumerate(_last_tests(result, metric, point)) if test is None]


def stale(result: Result, metric: MetricInfo, point: Point) -> dict[int, int]:
    """Clients that had no figure when the last round was tested, and the round in which they last had one."""
    last = max((record.round for record in result.rounds if record.test(point)), default=0)
    tests = enumerate(_last_tests(result, metric, point))
    return {client: test[0] for client, test in tests if test is not None and test[0] < last}


def diverged(result: Result, point: Point) -> list[int]:
    """Clients whose model had answers that are no numbers when the last round was tested."""
    return list(result.diverged.get(point, ()))


def _last_tests(result: Result, metric: MetricInfo, point: Point) -> list[tuple[int, float] | None]:
    """The round in which each client last had a figure, and the figure."""
    found: list[tuple[int, float] | None] = [None] * result.clients
    for record in reversed(result.rounds):
        figures = record.figures(point, metric.name)
        for client, value in enumerate(figures.per_client if figures else ()):
            if found[client] is None and value is not None:
                found[client] = record.round, value
        if None not in found:
            break
    return found


def _over_clients(figure: Callable[[MetricInfo, Sequence[float]], float]) -> Measure:
    def measure(result: Result, metric: MetricInfo, point: Point) -> float | None:
        known = [value for value in last_figures(result, metric, point) if value is not None]
        return figure(metric, known) if known else None

    return measure


def _last_mean(result: Result, metric: MetricInfo, point: Point) -> float | None:
    found = result.last.figures(point, metric.name)
    return None if found is None else found.mean


def _last_pooled(result: Result, metric: MetricInfo, point: Point) -> float | None:
    found = result.last.figures(point, metric.name)
    return None if found is None else found.pooled


def _best(result: Result, metric: MetricInfo, point: Point) -> float | None:
    """The client mean of the round that validation data chose: a figure that has not seen the test data it is of."""
    return _mean_in_best_round(result, metric, point, "") if result.best.chosen_on == "validation" else None


def _everyone(result: Result, metric: MetricInfo, point: Point) -> float | None:
    known = [figures.mean for r in result.rounds if (figures := r.figures(point, metric.name, "_global"))]
    return known[-1] if known else None


def _everyone_best(result: Result, metric: MetricInfo, point: Point) -> float | None:
    return _mean_in_best_round(result, metric, point, "_global")


def _mean_in_best_round(result: Result, metric: MetricInfo, point: Point, kind: Any) -> float | None:
    best = result.best.choice(point).mean
    figures = next((r.figures(point, metric.name, kind) for r in result.rounds if best and r.round == best.round), None)
    return None if figures is None else figures.mean


def _unseen(result: Result, metric: MetricInfo, point: Point) -> ClientFigures | None:
    return None if result.unseen is None else result.unseen.test(point).metrics.get(metric.name)


_FIGURES: dict[str, Measure] = {
    "mean": _last_mean,
    "pooled": _last_pooled,
    "worst_tenth": _over_clients(MetricInfo.worst_tenth),
    "unevenness": _over_clients(lambda _, values: statistics.pstdev(values)),
}
_EXTRAS: dict[str, Measure] = {
    "best": _best,
    "everyone": _everyone,
    "everyone_best": _everyone_best,
    "unseen": lambda result, metric, point: found.mean if (found := _unseen(result, metric, point)) else None,
    "unseen_pooled": lambda result, metric, point: found.pooled if (found := _unseen(result, metric, point)) else None,
}
