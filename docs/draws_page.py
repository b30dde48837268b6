"""The page on draws: how much of a figure is the partition that happened to be drawn."""

import statistics
from collections.abc import Callable
from functools import cached_property
from itertools import combinations
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from docs.paper_page import FEWEST, coarser, last
from docs.pictures import save
from docs.tables import table
from fedgraft.papers.tables import Paper
from fedgraft.report.page import chance
from fedgraft.runs import measurement, reproduce
from fedgraft.runs.measurement import Measurement, cell_config
from fedgraft.runs.reproduce import Evidence
from fedgraft.runs.statistics import (
    Components,
    Difference,
    Interval,
    components,
    draws_needed,
    line,
    over_seeds,
    paired,
    standing,
)

if TYPE_CHECKING:
    from matplotlib.figure import Figure

CORE = ("local", "fedavg-ft", "fedper", "fedapa")


class Draws:
    """FedAPA's CIFAR-10 setting on many draws: how much of a figure is the draw."""

    def __init__(self, evidence: Evidence, partitions: dict[str, Any], wanted: int) -> None:
        self.evidence, self.paper, self.wanted = evidence, evidence.paper, wanted
        self.shares: list[float] = partitions["top_share"]
        cells = {cell.row: cell for cell in self.paper.item("table1").cells if cell.column == "cifar10"}
        self._cells = {method: cells[method] for method in CORE}
        self.runs = {m: {run.seed: run for run in evidence.of(cell, "full")} for m, cell in self._cells.items()}
        self.methods = [method for method in CORE if len(self.runs[method]) >= FEWEST]

    @property
    def mean_share(self) -> float:
        return statistics.fmean(self.shares)

    @property
    def share_deviation(self) -> float:
        return statistics.stdev(self.shares)

    @property
    def left(self) -> bool:
        """Whether any method has fewer draws than are wanted."""
        return any(len(runs) < self.wanted for runs in self.runs.values())

    @property
    def counts(self) -> str:
        return ", ".join(f"{method} {len(runs)}" for method, runs in self.runs.items())

    @cached_property
    def seeds(self) -> list[int]:
        """The draws that all methods with enough of them have."""
        return sorted(set.intersection(*(set(self.runs[method]) for method in self.methods)))

    def figure(self, method: str, seed: int) -> float:
        """What clients have in hand when a run is over: `trained`, pooled, last round."""
        return last(self.runs[method][seed], "trained", "pooled")

    def figures(self, method: str) -> list[float]:
        return [self.figure(method, seed) for seed in self.seeds]

    @cached_property
    def components(self) -> Components:
        return components([[self.figure(method, seed) for method in self.methods] for seed in self.seeds])

    def each(self) -> str:
        """Every draw's labels and figures."""
        rows = [[str(seed), f"{100 * self.shares[seed]:.1f}", *(f"{self.figure(m, seed):.2f}" for m in self.methods)]
                for seed in self.seeds]  # fmt: skip
        middle = [statistics.fmean(self.figures(method)) for method in self.methods]
        spread = [statistics.stdev(self.figures(method)) for method in self.methods]
        share = [100 * self.shares[seed] for seed in self.seeds]
        rows += [["mean", f"{statistics.fmean(share):.1f}", *(f"{value:.2f}" for value in middle)],
                 ["deviation", f"{statistics.stdev(share):.1f}", *(f"{value:.2f}" for value in spread)]]  # fmt: skip
        return table(["draw", "most frequent class, %", *self.methods], rows)

    def difference(self, one: str, other: str) -> Difference:
        found = paired([[self.figure(one, seed) - self.figure(other, seed)] for seed in self.seeds])
        assert found is not None
        return found

    def sure(self, one: str, other: str) -> Interval:
        """Student's interval of the mean difference: the bootstrap's is too narrow for few draws."""
        found = over_seeds([self.figure(one, seed) - self.figure(other, seed) for seed in self.seeds])
        assert found is not None
        return found

    def needed(self, one: str, other: str) -> tuple[float, int | None, float, int | None]:
        """The deviation and the draws that a point takes: of pairs on the same draws, and of methods on their own."""
        deviation = statistics.stdev(self.figure(one, seed) - self.figure(other, seed) for seed in self.seeds)
        alone = statistics.fmean(statistics.variance(self.figures(each)) for each in (one, other)) ** 0.5
        return deviation, draws_needed(1.0, deviation, pairs=True), alone, draws_needed(1.0, alone, pairs=False)

    def range_needed(self, *, pairs: bool) -> str:
        """From how many to how many draws a point takes, over all pairs."""
        each = [self.needed(one, other)[1 if pairs else 3] for one, other in combinations(self.methods, 2)]
        counts = [count for count in each if count is not None]
        return f"{min(counts)} to {max(counts)}"

    def pairs(self) -> str:
        """Two methods on the same draws: their difference, and how many draws would tell one point."""
        rows = []
        for other, one in combinations(self.methods, 2):
            found, sure = self.difference(one, other), self.sure(one, other)
            deviation, together, alone, apart = self.needed(one, other)
            rows.append([
                f"{one} - {other}", f"{found.mean:+.2f}", f"{sure.low:+.2f} to {sure.high:+.2f}",
                chance(found.p), f"{found.better} of {found.pairs}", f"{deviation:.2f}", str(together), f"{alone:.2f}",
                str(apart),
            ])  # fmt: skip
        head = ["pair", "difference", "95 % interval", "p", "better on", "deviation of the difference",
                "draws for 1 point, paired", "deviation of one method", "draws of each, unpaired"]  # fmt: skip
        return table(head, rows)

    def lines(self) -> str:
        """What labels, and what Local reaches, say of the others."""
        rows = []
        shares = [100 * self.shares[seed] for seed in self.seeds]
        for method in self.methods:
            for name, x in (("most frequent class", shares), ("Local", self.figures("local"))):
                if (method, name) == ("local", "Local") or (fit := line(x, self.figures(method))) is None:
                    continue
                slope = f"{fit.slope:.2f} ({fit.interval.low:.2f} to {fit.interval.high:.2f})"
                rows.append([method, name, slope, f"{100 * fit.explained:.0f} %", chance(fit.p)])
        return table(["method", "along", "points for each point (95 % interval)", "of the variance", "p"], rows)

    def published(self) -> str:
        """Where the paper's figures lie among ours, by its own measure: means of three draws, best round."""
        rows = []
        for cell in self.paper.item("table1").cells:
            each = self.evidence.outcome(self.paper.item("table1"), cell, "full")
            if cell.column == "cifar10" and cell.published is not None and len(each.values) >= FEWEST:
                found = standing(cell.published, each.values, of=self.paper.draws)
                deviation = statistics.stdev(each.values)
                ours = [f"{value:.2f}" for value in (each.mean, deviation, max(each.values), cell.published)]
                rows.append([cell.row, str(len(each.values)), *ours, f"{found.deviations:+.1f}", chance(found.p)])
        return table(
            ["method", "draws", "ours", "deviation", "our highest", "published", "deviations above", "p"], rows
        )

    @property
    def ambition(self) -> str:
        """How many of our draws of FedAPA are below the published mean, by the paper's measure."""
        table1 = self.paper.item("table1")
        cell = table1.chosen(["fedapa/cifar10"])[0]
        values = self.evidence.outcome(table1, cell, "full").values
        assert cell.published is not None
        below = sum(value < cell.published for value in values)
        which = "all" if below == len(values) else str(below)
        told = f"{cell.published:.2f}, a mean of {self.paper.draws} draws"
        return f"The published FedAPA ({told}) lies above {which} of our {len(values)} draws"

    @property
    def short_tables(self) -> str:
        """What follows for tables of as many draws as the papers have."""
        least = min(
            count for one, other in combinations(self.methods, 2) for count in [self.needed(one, other)[1]]
            if count is not None
        )  # fmt: skip
        few = self.paper.draws
        if least > few:
            return f"By that, tables of {few} draws, as the papers have, are too short for any of these pairs."
        return f"By that, tables of {few} draws, as the papers have, are long enough for some of these pairs only."

    @property
    def least_p(self) -> float:
        """What Wilcoxon's test gives if one method is better on every draw."""
        return 2.0 ** (1 - len(self.seeds))

    @property
    def coarser(self) -> str:
        """What testing every fifth round alone costs."""
        return coarser(self.evidence)

    @cached_property
    def noise(self) -> list[float]:
        """How far two runs of one draw with other kernels, or older ones, end apart: the last bits alone."""
        found = []
        for cell in {cell.method: cell for _, cell in self.paper.cells if cell.column == "cifar10"}.values():
            by_seed: dict[int, dict[str, Measurement]] = {}
            for run in self.evidence.all_of(cell):
                by_seed.setdefault(run.seed, {}).setdefault(run.computed, run)
            for runs in by_seed.values():
                found += [abs(last(a, "trained", "pooled") - last(b, "trained", "pooled"))
                          for a, b in combinations(runs.values(), 2)]  # fmt: skip
        return found


def partitions(told: Paper, count: int) -> dict[str, Any]:
    """Draw so many partitions of FedAPA's setting, and keep what their labels say."""
    cell = told.item("table1").chosen(["fedapa/cifar10"])[0]
    found: dict[str, Any] = {
        "kind": "draws",
        "setting": "cifar10, 20 clients, dirichlet:0.1",
        "top_share": [],
        "sizes": [],
    }
    for seed in range(count):
        counts = reproduce.label_counts(cell_config(told, cell, seed))
        found["top_share"].append(round(measurement.top_share(counts), 4))
        found["sizes"].append([int(size) for size in np.percentile(counts.sum(axis=1), (0, 50, 100))])
    return found


def figures(draws: Draws, place: Path) -> None:
    """Draw the page's two figures."""
    save(place / "draws-labels.svg", lambda: _figure(_labels, draws))
    save(place / "draws-methods.svg", lambda: _figure(_methods, draws))


def _figure(fill: Callable[[Any, Draws], None], draws: Draws) -> "Figure":
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6.2, 3.0), layout="constrained")
    fill(figure.add_subplot(), draws)
    return figure


def _labels(axes: Any, draws: Draws) -> None:
    shares = [100 * share for share in draws.shares]
    axes.hist(shares, bins=30, color="#0072b2", alpha=0.6)
    for seed in draws.seeds:
        axes.axvline(shares[seed], color="#d55e00", lw=1)
        axes.text(
            shares[seed], axes.get_ylim()[1] * (0.97 - 0.05 * (seed % 4)), str(seed), fontsize=7, ha="left", va="top"
        )
    axes.set(xlabel="Samples of their client's most frequent class (%)", ylabel=f"Draws (of {len(shares)})")


def _methods(axes: Any, draws: Draws) -> None:
    order = sorted(draws.seeds, key=lambda seed: draws.figure("local", seed))
    colours = ("black", "#009e73", "#cc79a7", "#0072b2")
    for method, marker, colour in zip(CORE, "os^D", colours, strict=True):
        if method in draws.methods:
            axes.plot(
                [draws.figure(method, seed) for seed in order], marker=marker, color=colour, ms=4, lw=1, label=method
            )
    published = draws.paper.item("table1").chosen(["fedapa/cifar10"])[0].published
    axes.axhline(published, color="#0072b2", ls=":", lw=1, label="FedAPA as published (best round)")
    axes.set_xticks(range(len(order)), [str(seed) for seed in order])
    axes.set(xlabel="Draw, the hardest for Local first", ylabel="Accuracy, pooled, last round (%)")
    axes.legend(frameon=False, fontsize=7)
