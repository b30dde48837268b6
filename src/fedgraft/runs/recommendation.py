"""What a race of methods says: whether joining pays, for whom, with which method and at what cost."""

import statistics
import textwrap
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

from fedgraft.base import disk
from fedgraft.runs import learning, results, table
from fedgraft.runs.comparison import Comparison
from fedgraft.runs.config import At
from fedgraft.runs.directory import RECOMMENDATION
from fedgraft.runs.metric import MetricInfo
from fedgraft.runs.resultfile import Result
from fedgraft.runs.statistics import Difference, Interval, between_areas, more_than_chance, over_seeds, paired

OWN: At = "own"
ALONE, TUNED = "local", table.TUNED
MOST_NAMED = 8
Say = Mapping[str, Sequence[int]]
"""By metric: how much each site's figure counts in the choice; sites count alike by a metric that is not here."""


class Standing(NamedTuple):
    """Where a method is after a rung: its figures on validation data, the leading metric first, and what it costs."""

    figures: tuple[float, ...]
    """Mean over clients and seeds; NaN where nothing could be measured."""
    traffic: float
    """Bytes of one client in a round, up and down."""
    seconds: float
    """For a round, with its tests."""
    lost: int = 0
    """Sites whose model could not be judged by any metric, in some seed: its training went astray."""

    @classmethod
    def of(cls, each: Sequence[Result], metrics: Sequence[MetricInfo], say: "Say") -> "Standing":
        rounds = sum(len(result.rounds) for result in each)
        return cls(
            tuple(
                statistics.fmean(table.on_validation(result, metric, OWN, say.get(metric.name)) for result in each)
                for metric in metrics
            ),
            sum(sum(traffic(result)) for result in each) / rounds,
            sum(result.seconds for result in each) / rounds,
            max(table.unjudged(result, OWN) for result in each),
        )


def traffic(result: Result) -> tuple[float, float]:
    """Bytes that one client sends and receives in a whole run, on average."""
    ups, downs = ([getattr(record, name) for record in result.rounds] for name in ("bytes_up", "bytes_down"))
    return sum(ups) / result.clients, sum(downs) / result.clients


class SiteAnswer(NamedTuple):
    """Whether joining pays for one site, on its own test samples."""

    name: str
    alone: float | None
    joined: float | None
    gain: float | None
    interval: Interval | None
    samples: int | None
    """How many test samples it has."""

    @property
    def verdict(self) -> str:
        if self.interval is None:
            return "unknown"
        if self.interval.low > 0:
            return "pays"
        return "does not pay" if self.interval.high < 0 else "not more than noise"


@dataclass(frozen=True, eq=False, repr=False)
class Recommendation:
    """The answer, and the runs that it rests on."""

    final: Comparison[Any]
    """The finalists and the references, with all seeds."""
    standings: Mapping[str, Standing]
    """How these stand on validation data: what the choice was made by."""
    best: str
    """The federated method that is best on validation data and within the budget."""
    tried: int
    """How many federated methods were in the race."""
    runs: int
    left_out: Mapping[str, str]
    """Methods that were not, or not to the end, and why; those that were merely worse are not here."""
    notes: tuple[str, ...] = ()
    directory: Path | None = None
    classes: Sequence[tuple[int, int]] | None = None
    """Of each site: its test samples of the two classes that an AUC sets against each other."""

    @cached_property
    def metric(self) -> MetricInfo:
        return self.final.metric()

    @property
    def leads(self) -> bool:
        """Whether the best method is better than training alone on validation data, too."""
        ours, alone = (self.metric.worth(self.standings[label].figures[0]) for label in (self.best, ALONE))
        return ours > alone

    @cached_property
    def difference(self) -> Difference | None:
        """The best method against training alone, on test data, over sites: one test, as validation data chose it."""
        return self._against(ALONE)

    @cached_property
    def against_tuned(self) -> Difference | None:
        """The same against FedAvg with fine-tuning."""
        return None if self.best == TUNED else self._against(TUNED)

    def _against(self, other: str) -> Difference | None:
        found = self.final.results
        return paired(table.differences(found[self.best], found[other], self.metric, OWN))

    @cached_property
    def sites(self) -> tuple[SiteAnswer, ...]:
        """What joining with the best method does for each site."""
        seeds = self.final.seeds
        ours, alone = (
            list(zip(*(self.final.values(label, seed, OWN) for seed in seeds), strict=True))
            for label in (self.best, ALONE)
        )
        known: list[int] | None = self.final.facts[self.best][seeds[0]].test_samples
        tested = [None] * len(self.final.names(seeds[0])) if known is None else known
        names = self.final.names(seeds[0])
        classes: Sequence[tuple[int, int] | None] = self.classes or [None] * len(names)
        return tuple(_site(self.metric, *each) for each in zip(names, ours, alone, tested, classes, strict=True))

    def told(self, verdict: str) -> list[str]:
        """The sites of which this is true."""
        return [site.name for site in self.sites if site.verdict == verdict]

    @property
    def pays(self) -> bool:
        """Whether joining pays for the sites as a whole, or for more single ones than chance would have."""
        found = self.difference
        return (found is not None and found.more_than_noise and found.mean > 0) or self.pays_for_some

    @property
    def pays_for_some(self) -> bool:
        """Whether single sites gain, more of them than lose; of many sites a few would seem to by chance alone."""
        gaining, losing = len(self.told("pays")), len(self.told("does not pay"))
        few = self.difference is None or self.difference.too_few
        return gaining > losing and (few or more_than_chance(gaining, len(self.sites)))

    @property
    def take(self) -> str:
        """The method to take; ``local`` if it is not clear that joining pays."""
        return self.best if self.pays else ALONE

    @property
    def headline(self) -> str:
        """The answer in a sentence."""
        found = self.difference
        if self.pays and found is not None and found.more_than_noise and found.mean > 0:
            return f"Joining pays: take {self.best}."
        if self.pays:
            return f"Joining pays for {listed(self.told('pays'))}, not for everybody: take {self.best} there."
        if found is not None and found.more_than_noise:
            return f"Joining does not pay: sites lose with {self.best}, the best of the race. Stay with local."
        noise = "differs from training alone by no more than noise"
        return f"It is not clear that joining pays: {self.best}, the best of the race, {noise}."

    @property
    def lines(self) -> list[str]:
        """The answer and what is behind it, in sentences."""
        said = [self.headline, self._on_average()]
        for verdict, words in _WORDS.items():
            if names := self.told(verdict):
                said.append(f"{words} {len(names)} of {len(self.sites)} sites: {listed(names)}.")
        if not self.leads:
            said.append("On validation data, training alone was as good as every method or better.")
        if (other := self.against_tuned) is not None:
            said.append(f"Against fedavg-ft, the simple choice: {self._written(other)}; {_sure(other)}.")
        return [*said, *learning.doubts({ALONE: self.final.results[ALONE]}), self._cost(), self._how(), *self.notes]

    def _on_average(self) -> str:
        metric, found = self.metric, self.difference
        alone, ours = (_mean(self.final, label) for label in (ALONE, self.best))
        said = f"{metric.title} on test data, mean over sites: {metric.shown(alone)}{metric.unit} alone, "
        said += f"{metric.shown(ours)}{metric.unit} with {self.best}"
        if found is None:
            return said + "."
        return f"{said}: {self._written(found)}; {_sure(found)}."

    def _written(self, found: Difference) -> str:
        low, high = map(self.metric.difference, found.interval)
        better = "" if self.metric.higher else ", + is better"
        return f"{self.metric.difference(found.mean)} {self.metric.step}, 95 % interval {low} to {high}{better}"

    @cached_property
    def cost(self) -> tuple[float, float, float]:
        """Bytes up and down of one client in a whole run of the best method, and its seconds here."""
        each = self.final.results[self.best]
        ups, downs = zip(*map(traffic, each), strict=True)
        return statistics.fmean(ups), statistics.fmean(downs), statistics.fmean(result.seconds for result in each)

    def _cost(self) -> str:
        up, down, seconds = self.cost
        rounds = self.final.config.rounds
        spent = f"{up:,.0f} bytes up and {down:,.0f} down per site in {rounds} rounds"
        return f"Cost of {self.best}: {spent}; {seconds:.1f} s for all sites, simulated on this machine."

    def _how(self) -> str:
        seeds = len(self.final.seeds)
        out = f" ({len(self.left_out)} did not fit)" if self.left_out else ""
        known = self.metric.counted or self.classes is not None
        over = "the number of test samples and seeds" if known else "seeds alone"
        return (
            f"{self.tried} federated methods were tried{out}, in {self.runs} runs; validation data chose between them, "
            f"test data were looked at once, for these figures. Final: {seeds} seed{'s' if seeds > 1 else ''}. "
            f"A site's interval is over {over}."
        )

    def __repr__(self) -> str:
        return f"Recommendation({self.take}: {self.headline})"

    def __str__(self) -> str:
        """The first screen: the answer, the sites, how it was found."""
        sentences = [_filled(line) for line in self.lines]
        return "\n".join([*sentences[:2], "", *_columns(self._cells()), "", *sentences[2:]])

    def _cells(self) -> Iterator[tuple[str, ...]]:
        metric = self.metric
        yield "site", "alone", self.best, "gain", "95 % interval", "joining"
        for site in self.sites:
            gain = "–" if site.gain is None else metric.difference(site.gain)
            low_to_high = "–" if site.interval is None else " to ".join(map(metric.difference, site.interval))
            yield site.name, metric.shown(site.alone), metric.shown(site.joined), gain, low_to_high, site.verdict

    def to_json(self) -> dict[str, Any]:
        """All of it, for programs."""
        up, down, seconds = self.cost
        return {
            "take": self.take, "best": self.best, "pays": self.pays, "headline": self.headline,
            "lines": self.lines, "metric": self.metric.model_dump(),
            "difference": table.plain(self.difference), "against_fedavg_ft": table.plain(self.against_tuned),
            "sites": [table.plain(site) | {"verdict": site.verdict} for site in self.sites],
            "validation": {label: table.plain(each) for label, each in self.standings.items()},
            "bytes_up": up, "bytes_down": down, "seconds": seconds,
            "tried": self.tried, "runs": self.runs, "left_out": dict(self.left_out),
        }  # fmt: skip

    def report(self, path: str | Path) -> Path:
        """Write the report of the finalists' runs; the answer stands above it."""
        return self.final.report(path, OWN, answer=self.lines, sites=list(self._cells()))

    def write(self, place: Path) -> None:
        """Leave the answer beside the runs: as text, for programs, and as a report."""
        results.write_json(place / RECOMMENDATION, self.to_json())
        disk.write(place / "recommendation.txt", f"{self}\n".encode())
        self.report(place / "report.html")


_WORDS = {
    "pays": "Joining pays for",
    "does not pay": "It does not pay, and makes worse off,",
    "not more than noise": "Not more than noise for",
    "unknown": "Too little was measured to say anything of",
}


def listed(names: Sequence[str]) -> str:
    """A few names, and how many more there are; the table has them all."""
    more = len(names) - MOST_NAMED
    return ", ".join(names[:MOST_NAMED]) + (f" and {more} more" if more > 0 else "")


def _sure(found: Difference) -> str:
    if found.too_few:
        return f"{found.pairs} sites are too few for a test over all of them"
    return "more than noise" if found.more_than_noise else "not more than noise"


def _site(
    metric: MetricInfo,
    name: str,
    ours: Sequence[float | None],
    alone: Sequence[float | None],
    samples: int | None,
    classes: tuple[int, int] | None,
) -> SiteAnswer:
    """Put a site's figures of all seeds together; an interval has to cover what samples and what seeds leave open."""
    known = [(mine, other) for mine, other in zip(ours, alone, strict=True) if mine is not None and other is not None]
    if not known:
        return SiteAnswer(name, None, None, None, None, samples)
    joined, lone = (statistics.fmean(each) for each in zip(*known, strict=True))
    made = table.Gain.of(metric, joined, lone, samples)
    assert made is not None
    tested = made.interval if classes is None or not all(classes) else between_areas(joined, lone, *classes)
    spans = [span for span in (tested, over_seeds([metric.gain(*pair) for pair in known])) if span is not None]
    interval = Interval(min(low for low, _ in spans), max(high for _, high in spans)) if spans else None
    return SiteAnswer(name, lone, joined, made.value, interval, samples)


def _mean(final: Comparison[Any], label: str) -> float:
    row = next(row for row in final.rows(OWN) if row.method == label)
    return row.mean[row.point].mean


def _filled(text: str) -> str:
    return textwrap.fill(text, 80, subsequent_indent="  ", break_on_hyphens=False)


def _columns(rows: Iterable[Sequence[str]]) -> list[str]:
    """Cells in line: the first column to the left, the others to the right."""
    table_ = [list(row) for row in rows]
    widths = [max(map(len, column)) for column in zip(*table_, strict=True)]
    return [
        "  " + "  ".join(cell.rjust(width) if place else cell.ljust(width)
                         for place, (cell, width) in enumerate(zip(row, widths, strict=True))).rstrip()
        for row in table_
    ]  # fmt: skip
