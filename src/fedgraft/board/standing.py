"""What the board says of a setting: a row for each method, paired differences, and ranks.

A method is measured at its own point, in the last round. Clients of a synthetic setting are others in every draw; sites
of a natural one are the same in all draws in which they take part, so that each of them counts once, by its mean.
"""

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from fedgraft.board.record import Entry, Outcome, Record
from fedgraft.runs import table
from fedgraft.runs.metric import MetricInfo
from fedgraft.runs.statistics import Difference, Ranks, crossed, paired, ranks, together
from fedgraft.runs.table import Spread

ALONE, TUNED = "local", "fedavg-ft"
AGAINST = (ALONE, TUNED)


@dataclass(frozen=True)
class Row:
    """A method with figures of at least one draw."""

    entry: Entry
    draws: int
    mean: Spread
    """The client mean, over draws."""
    pooled: Spread
    worst_tenth: Spread
    unseen: Spread
    """The mean over clients that were held out and joined afterwards."""
    harmed: float | None
    """The share of clients that are worse off than by themselves; of all draws."""
    traffic: float
    """Bytes of a client in a round, up and down."""
    seconds: float | None
    """Of one core, in all rounds."""
    against: Mapping[str, Difference]
    """Paired differences to Local and to FedAvg with fine-tuning, positive if the method is better."""
    rank: float | None = None
    """The mean rank over draws; none, if not all draws are there."""

    @property
    def method(self) -> str:
        return self.entry.method

    @property
    def label(self) -> str:
        return self.method + "*" * self.entry.reconstruction


@dataclass(frozen=True)
class Standing:
    """One setting of the board."""

    record: Record
    rows: tuple[Row, ...]
    """The best first, by the client mean."""
    ranks: Ranks | None
    """Over the draws, of the methods that have all of them."""

    @property
    def metric(self) -> MetricInfo | None:
        return self.record.metric

    @property
    def without(self) -> list[Entry]:
        """Methods that have no figures, and why."""
        known = {row.method for row in self.rows}
        return [each for each in self.record.entries if each.method not in known]

    @property
    def counted(self) -> dict[str, int]:
        """How many methods are in which state."""
        found: dict[str, int] = {}
        for each in self.record.entries:
            found[each.state] = found.get(each.state, 0) + 1
        return found

    def to_json(self) -> dict[str, Any]:
        """For programs."""
        rows = [
            {"method": row.method, "state": row.entry.state, "point": row.entry.point, "chosen": row.entry.chosen,
             **{name: table.plain(getattr(row, name)) for name in _TOLD}, "against": table.plain(row.against)}
            for row in self.rows
        ]  # fmt: skip
        others = [{"method": each.method, "state": each.state, "reason": each.reason} for each in self.without]
        told = None if self.metric is None else self.metric.model_dump()
        return {"setting": self.record.setting, "metric": told, "rows": rows, "without": others,
                "ranks": None if self.ranks is None else table.plain(self.ranks)}  # fmt: skip


_TOLD = ("draws", "mean", "pooled", "worst_tenth", "unseen", "harmed", "traffic", "seconds", "rank")


def of(record: Record) -> Standing:
    """Work out what a setting's results say."""
    metric = record.metric
    measured = [each for each in record.entries if each.done]
    if metric is None or not measured:
        return Standing(record, (), None)
    against = {label: _family(record, measured, label, metric) for label in AGAINST}
    found = ranked(record, measured, metric)
    order = _complete(record, measured)
    place = dict(zip(order, found.mean, strict=True)) if found else {}
    rows = [
        _row(record, each, metric, {label: family[each.method] for label, family in against.items()
                                    if each.method in family}, place.get(each.method))
        for each in measured
    ]  # fmt: skip
    return Standing(record, tuple(sorted(rows, key=lambda row: _order(row, metric))), found)


def _order(row: Row, metric: MetricInfo) -> float:
    return math.inf if math.isnan(row.mean.mean) else -metric.worth(row.mean.mean)


def _row(
    record: Record, entry: Entry, metric: MetricInfo, against: Mapping[str, Difference], rank: float | None
) -> Row:  # fmt: skip
    each = list(entry.done.values())
    gains = [gain for group in _paired(record, entry, ALONE, metric) for gain in group]
    return Row(
        entry=entry, draws=sum(bool(outcome.known) for outcome in each),
        mean=Spread.of(_mean(outcome.figures) for outcome in each),
        pooled=Spread.of(outcome.pooled for outcome in each),
        worst_tenth=Spread.of(metric.worst_tenth(outcome.known) for outcome in each if outcome.known),
        unseen=Spread.of(_mean(outcome.unseen) for outcome in each),
        harmed=sum(gain < 0 for gain in gains) / len(gains) if gains and entry.method != ALONE else None,
        traffic=statistics.fmean(outcome.bytes_up + outcome.bytes_down for outcome in each),
        seconds=_mean([outcome.seconds for outcome in each]), against=against, rank=rank,
    )  # fmt: skip


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return statistics.fmean(known) if known else None


# ---- differences


def _gains(record: Record, entry: Entry, other: str, metric: MetricInfo) -> dict[int, list[float | None]]:
    """What each client gains over another method on every draw that both have, in the order of the draw's clients."""
    reference = record.entry(other)
    theirs: dict[int, Outcome] = reference.done if reference else {}
    return {
        seed: [
            None if mine is None or its is None else metric.gain(mine, its)
            for mine, its in zip(outcome.figures, theirs[seed].figures, strict=True)
        ]
        for seed, outcome in entry.done.items()
        if seed in theirs
    }


def _family(record: Record, entries: Sequence[Entry], other: str, metric: MetricInfo) -> dict[str, Difference]:
    """The differences of all methods to one of them, corrected for being looked at together."""
    found = {}
    for entry in entries:
        if entry.method != other and (difference := _difference(record, entry, other, metric)) is not None:
            found[entry.method] = difference
    return dict(zip(found, together(list(found.values())), strict=True))


def _difference(record: Record, entry: Entry, other: str, metric: MetricInfo) -> Difference | None:
    found = paired(_paired(record, entry, other, metric))
    if found is None or not record.natural:
        return found
    by_site = sites(record, _gains(record, entry, other, metric))
    there = int(np.isfinite(by_site).any(axis=1).sum())
    return found._replace(interval=crossed(list(by_site)), seeds=there)


def _paired(record: Record, entry: Entry, other: str, metric: MetricInfo) -> list[list[float]]:
    """What clients gain over another method: draw by draw, or of sites, which are the same in all draws, once each."""
    gains = _gains(record, entry, other, metric)
    if not record.natural:
        return [[gain for gain in values if gain is not None] for values in gains.values()]
    by_site = sites(record, gains)
    return [np.nanmean(by_site, axis=0).tolist()] if by_site.size else []


def sites(record: Record, gains: Mapping[int, Sequence[float | None]]) -> "np.ndarray[Any, Any]":
    """Draws x sites, with NaN where a site took no part; sites without a figure are left out."""
    names = sorted({name for seed in gains for name in record.clients(seed).names})
    found = np.full((len(gains), len(names)), np.nan)
    for row, (seed, values) in enumerate(gains.items()):
        for name, gain in zip(record.clients(seed).names, values, strict=True):
            if gain is not None:
                found[row, names.index(name)] = gain
    return found[:, np.isfinite(found).any(axis=0)]


# ---- ranks


def _complete(record: Record, entries: Sequence[Entry]) -> list[str]:
    """The methods that have figures of all draws."""
    seeds = {each.seed for each in record.draws}
    return [each.method for each in entries if set(each.done) == seeds and len(seeds) == record.terms["draws"]]


def ranked(record: Record, entries: Sequence[Entry], metric: MetricInfo) -> Ranks | None:
    """Mean ranks over the draws, by the client mean."""
    chosen = _complete(record, entries)
    seeds = sorted(each.seed for each in record.draws)
    found = {each.method: each for each in entries}
    rows = [[_worth(found[method].done[seed], metric) for method in chosen] for seed in seeds]
    return ranks(rows) if len(chosen) > 1 else None


def _worth(outcome: Outcome, metric: MetricInfo) -> float:
    mean = _mean(outcome.figures)
    return -math.inf if mean is None else metric.worth(mean)


@dataclass(frozen=True)
class Overall:
    """Ranks over settings, of the methods that are complete in all of them."""

    methods: tuple[str, ...]
    settings: tuple[str, ...]
    ranks: Ranks

    @property
    def order(self) -> list[tuple[str, float]]:
        return sorted(zip(self.methods, self.ranks.mean, strict=True), key=lambda each: each[1])


def overall(standings: Mapping[str, Standing]) -> Overall | None:
    """Rank methods over the settings in which most are complete; nothing can be said of one setting or method."""
    told = {name: {row.method: row for row in each.rows if row.rank is not None}
            for name, each in standings.items() if each.ranks is not None}  # fmt: skip
    if len(told) < 2:
        return None
    methods = sorted(set.intersection(*(set(rows) for rows in told.values())))
    if len(methods) < 2:
        return None
    rows = [[-_order(found[method], _metric(standings[name])) for method in methods] for name, found in told.items()]
    found = ranks(rows)
    return None if found is None else Overall(tuple(methods), tuple(told), found)


def _metric(standing: Standing) -> MetricInfo:
    assert standing.metric is not None
    return standing.metric
