"""The table of a comparison: what each method gave, over all seeds, and whether it is better than another."""

import math
import statistics
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any, NamedTuple

from fedgraft.core.evaluation import POINTS, Point
from fedgraft.runs.config import AT, At
from fedgraft.runs.results import unheard
from fedgraft.runs.statistics import Difference, paired, together

Result = Mapping[str, Any]
Finished = Mapping[str, Sequence[Result]]
"""The results of each method, by its label."""
Measure = Callable[[Result, Point], float | None]


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
    """One method of a comparison, over all seeds."""

    method: str
    reconstruction: bool
    headline: Point
    """The method's own point: where its paper measures."""
    point: Point
    """Where it is compared with the others."""
    mean: dict[Point, Spread]
    pooled: dict[Point, Spread]
    worst_tenth: dict[Point, Spread]
    unevenness: dict[Point, Spread]
    """The deviation of the accuracy across clients."""
    best: dict[Point, Spread]
    """The client mean in the round that validation data chose; empty without such data."""
    everyone: dict[Point, Spread]
    """The clients' mean accuracy on the test samples of all clients; empty without ``global_test``."""
    everyone_best: dict[Point, Spread]
    """The same in the best round of the client mean."""
    bytes_up: float
    bytes_down: float
    seconds: float
    clients: int
    refused: int
    unheard: int
    """In how many of its runs the server took no reply at all."""
    difference: Difference | None
    """Against Local, at ``point``; none without a run of Local."""
    diverged: dict[Point, tuple[str, ...]]
    """Clients whose model answered with numbers that are none, in the last round that was tested."""
    untested: tuple[str, ...]
    """Clients that never were tested: they count in no figure."""
    stale: tuple[str, ...]
    """Clients that were not tested in the last round: their figure is of an earlier one."""

    def __repr__(self) -> str:
        against = ""
        if self.difference is not None:
            noise = "more than noise" if self.difference.more_than_noise else "within noise"
            against = f", {points(self.difference.mean)} against local, {noise}"
        return f"Row({self.method}: client mean {percent(self.mean[self.point].mean)} % {self.point}{against})"


class Pair(NamedTuple):
    """Two methods against each other, client by client; the difference is the first less the second."""

    one: str
    other: str
    at: At
    difference: Difference


def rows(finished: Finished, at: At = AT[0]) -> list[Row]:
    """The table, from the results of each method; a client is compared with Local's of the same seed."""
    against = {pair.one: pair.difference for pair in _family(finished, _with_local(finished), at)}
    return [_row(name, each, at, against.get(name)) for name, each in finished.items()]


def pairs(finished: Finished, at: At = AT[0], *, with_best: bool = False) -> list[Pair]:
    """Every two methods, or (``with_best``) each with Local and with the best of the others only.

    Those against Local are one family of tests, all others another; p values are corrected in each.
    """
    others = list(combinations([label for label in reversed(list(finished)) if label != "local"], 2))
    if with_best:
        leading = next((label for label in orders(rows(finished, at))[at] if label != "local"), None)
        others = [(leading, label) for label in finished if leading and label not in ("local", leading)]
    return [*_family(finished, _with_local(finished), at), *_family(finished, others, at)]


def _with_local(finished: Finished) -> list[tuple[str, str]]:
    return [(label, "local") for label in finished if label != "local"] if "local" in finished else []


def orders(table: Sequence[Row]) -> dict[At, list[str]]:
    """The methods by their client mean, the best first, wherever they may be compared."""

    def worth(row: Row, at: At) -> float:
        mean = row.mean[row.headline if at == "own" else at].mean
        return math.inf if math.isnan(mean) else -mean

    return {at: [row.method for row in sorted(table, key=lambda row: worth(row, at))] for at in AT}


def plain(value: Any) -> Any:
    """A row, a pair or a part of one as JSON has it; what never was measured is null."""
    if hasattr(value, "_asdict"):
        return plain(value._asdict())
    if isinstance(value, Mapping):
        return {key: plain(inner) for key, inner in value.items()}
    if isinstance(value, tuple):
        return [plain(inner) for inner in value]
    return None if isinstance(value, float) and math.isnan(value) else value


def _family(finished: Finished, chosen: Iterable[tuple[str, str]], at: At) -> Iterator[Pair]:
    looked_at = [(one, other, paired(differences(finished[one], finished[other], at))) for one, other in chosen]
    known = [(one, other, difference) for one, other, difference in looked_at if difference is not None]
    for (one, other, _), difference in zip(known, together([found for *_, found in known]), strict=True):
        yield Pair(one, other, at, difference)


def differences(one: Sequence[Result], other: Sequence[Result], at: At) -> list[list[float]]:
    """The differences of two methods' clients, seed by seed; clients with the same data in all seeds count once.

    A partition is drawn anew for each seed, and then its clients are other clients.
    """
    theirs = {result["seed"]: result for result in other}
    common = [(result, theirs[result["seed"]]) for result in one if result["seed"] in theirs]
    each = [benefits(result, reference, at) for result, reference in common]
    if len(common) > 1 and all(_data(result) == _data(common[0][0]) for result, _ in common):
        over_seeds = (Spread.of(gains).mean for gains in zip(*each, strict=True))
        return [[gain for gain in over_seeds if not math.isnan(gain)]]
    return [[gain for gain in gains if gain is not None] for gains in each]


def _data(result: Result) -> Any:
    """What tells one set of clients from another: the digest of their data, or else how many samples they have."""
    digest = result.get("digest") or {}
    return digest.get("data") or (result["label_counts"], result.get("samples"))


def _row(name: str, finished: Sequence[Result], at: At, difference: Difference | None) -> Row:
    first, point = finished[0], measured(finished[0], at)
    return Row(
        method=name, reconstruction=first["reconstruction"], headline=first["headline"], point=point,
        **{figure: _spreads(finished, measure) for figure, measure in _FIGURES.items()},
        **{figure: _spreads(finished, measure, optional=True) for figure, measure in _EXTRAS.items()},
        bytes_up=statistics.fmean(result["bytes_up_per_client"] for result in finished),
        bytes_down=statistics.fmean(result["bytes_down_per_client"] for result in finished),
        seconds=statistics.fmean(result["seconds"] for result in finished),
        clients=sum(result["clients"] for result in finished),
        refused=sum(result.get("refused", 0) for result in finished),
        unheard=sum(unheard(result["rounds"]) for result in finished),
        difference=difference,
        diverged={place: _told(finished, {r["seed"]: diverged(r, place) for r in finished}) for place in POINTS},
        untested=_told(finished, {r["seed"]: untested(r, point) for r in finished}),
        stale=_told(finished, {r["seed"]: stale(r, point) for r in finished}),
    )  # fmt: skip


def _spreads(finished: Sequence[Result], measure: Measure, *, optional: bool = False) -> dict[Point, Spread]:
    """A figure over seeds at both points; nothing, if it is ``optional`` and no run has it."""
    found = {point: Spread.of(measure(result, point) for result in finished) for point in POINTS}
    return {} if optional and all(math.isnan(spread.mean) for spread in found.values()) else found


def _told(finished: Sequence[Result], clients: Mapping[int, Iterable[int] | Mapping[int, int]]) -> tuple[str, ...]:
    """Clients by their names, with the seed where there are several, and the round where one is known."""
    found = []
    for result in finished:
        seed, chosen = result["seed"], clients[result["seed"]]
        for client in chosen:
            remarks = [f"seed {seed}"] if len(finished) > 1 else []
            remarks += [f"round {chosen[client]}"] if isinstance(chosen, Mapping) else []
            found.append(names(result)[client] + (f" ({', '.join(remarks)})" if remarks else ""))
    return tuple(found)


def measured(result: Result, at: At) -> Point:
    """The point at which a method is compared."""
    return result["headline"] if at == "own" else at


def benefits(result: Result, alone: Result, at: At = AT[0]) -> list[float | None]:
    """What each client gains over another run, as a rule Local's; nothing is known of one that was not tested."""
    ours, theirs = (last_accuracies(each, measured(each, at)) for each in (result, alone))
    return [None if mine is None or other is None else mine - other for mine, other in zip(ours, theirs, strict=True)]


def last_accuracies(result: Result, point: Point) -> list[float | None]:
    """Every client's accuracy in the last round, or when it was last tested; nothing, if it never was."""
    return [None if test is None else test[1] for test in _last_tests(result, point)]


def untested(result: Result, point: Point) -> list[int]:
    """Clients that were never tested."""
    return [client for client, test in enumerate(_last_tests(result, point)) if test is None]


def stale(result: Result, point: Point) -> dict[int, int]:
    """Clients that were not tested when the last round was, and the round in which they last were."""
    last = max((record["round"] for record in result["rounds"] if point in record), default=0)
    tests = enumerate(_last_tests(result, point))
    return {client: test[0] for client, test in tests if test is not None and test[0] < last}


def diverged(result: Result, point: Point) -> list[int]:
    """Clients whose model had answers that are no numbers when the last round was tested."""
    return list((result.get("diverged") or {}).get(point, ()))


def names(result: Result) -> list[str]:
    """The clients by name: their sites', or numbers."""
    return list(result.get("names") or (f"client {client}" for client in range(result["clients"])))


def worst_tenth(accuracies: Sequence[float]) -> float:
    """Mean accuracy of the worst tenth of the clients (of one client at least)."""
    return statistics.fmean(sorted(accuracies)[: max(1, len(accuracies) // 10)])


def _last_tests(result: Result, point: Point) -> list[tuple[int, float] | None]:
    """The round in which each client was last tested, and its accuracy then."""
    found: list[tuple[int, float] | None] = [None] * result["clients"]
    for record in reversed(result["rounds"]):
        for client, accuracy in enumerate(record.get(point, {}).get("per_client", ())):
            if found[client] is None and accuracy is not None:
                found[client] = record["round"], accuracy
        if None not in found:
            break
    return found


def _over_clients(figure: Callable[[Sequence[float]], float]) -> Measure:
    def measure(result: Result, point: Point) -> float | None:
        known = [accuracy for accuracy in last_accuracies(result, point) if accuracy is not None]
        return figure(known) if known else None

    return measure


def _last(figure: str) -> Measure:
    return lambda result, point: (result["last"].get(point) or {}).get(figure)


def _best(result: Result, point: Point) -> float | None:
    """The client mean of the round that validation data chose: a figure that has not seen the test data it is of."""
    best = result.get("best", {})
    return (_best_round(result, point) or {}).get("accuracy") if best.get("chosen_on") == "validation" else None


def _best_round(result: Result, point: Point) -> Mapping[str, Any] | None:
    found: Mapping[str, Any] | None = ((result.get("best") or {}).get(point) or {}).get("mean")
    return found


def _everyone(result: Result, point: Point) -> float | None:
    known = [record[f"{point}_global"]["mean"] for record in result["rounds"] if f"{point}_global" in record]
    return known[-1] if known else None


def _everyone_best(result: Result, point: Point) -> float | None:
    best = _best_round(result, point)
    for record in result["rounds"]:
        if best is not None and record["round"] == best["round"]:
            return record.get(f"{point}_global", {}).get("mean")  # type: ignore[no-any-return]
    return None


_FIGURES: dict[str, Measure] = {
    "mean": _last("mean"),
    "pooled": _last("pooled"),
    "worst_tenth": _over_clients(worst_tenth),
    "unevenness": _over_clients(statistics.pstdev),
}
_EXTRAS: dict[str, Measure] = {
    "best": _best,
    "everyone": _everyone,
    "everyone_best": _everyone_best,
}


def percent(fraction: float) -> str:
    """A fraction in percent, as every table has it; a dash for what never was measured."""
    return "–" if math.isnan(fraction) else f"{100 * fraction:.1f}"


def points(difference: float) -> str:
    """A difference of fractions in percentage points, with its sign, as every table and picture has it."""
    rounded = round(100 * difference, 1)
    return f"{rounded:+.1f}".replace("-", "\N{MINUS SIGN}") if rounded else "0.0"
