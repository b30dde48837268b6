"""Make the pages of docs/results from the measurements that lie beside them: `make results`.

    python -m docs.evidence                          # every page and figure, from the data
    python -m docs.evidence --from DIR [--from DIR]  # take in finished runs first, wherever they lie
    python -m docs.evidence --partitions 300         # draw so many partitions first, for the page on draws
    python -m docs.evidence --board DIR              # take in what a board's directory holds

The words are in docs/results/*.md.jinja; every figure that was measured comes from the JSON files. A test holds that no
page is stale.
"""

import argparse
import json
import statistics
from collections.abc import Iterable, Sequence
from functools import cache, cached_property
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
from jinja2 import Environment, FileSystemLoader, StrictUndefined

from benchmarks.machine import facts
from docs.board_page import Board
from docs.board_page import keep as keep_board
from docs.tables import table
from fedgraft.core.evaluation import Point
from fedgraft.papers.tables import ACCURACY, Cell, Item
from fedgraft.runs import measurement, reproduce
from fedgraft.runs.measurement import Measurement, cell_config
from fedgraft.runs.reproduce import Evidence, Outcome
from fedgraft.runs.statistics import Components, Difference, components, draws_needed, line, paired, standing

RESULTS = Path(__file__).parent / "results"
PARTITIONS = RESULTS / "draws.json"
PAGES = ("fedapa", "apple", "fedppa", "fedgpa", "draws", "board")
NOT_HAD = {"emnist", "cinic10", "pathmnist"}
"""Datasets that could not be had without a download where these runs were made."""
OTHER_MACHINE = "AMD"
CORE = ("local", "fedavg-ft", "fedper", "fedapa")
FEWEST = 3
"""Draws of which something can be said."""


class Words:
    """What the page of a paper is written with."""

    def __init__(self, evidence: Evidence) -> None:
        self.evidence, self.paper = evidence, evidence.paper

    def outcome(self, item: str, cell: str, seeds: Sequence[int] | None = None) -> Outcome:
        chosen = self.paper.item(item)
        return self.evidence.outcome(chosen, chosen.chosen([cell])[0], seeds=seeds)

    def ours(self, item: str, cell: str, seeds: Sequence[int] | None = None) -> str:
        """Our figure, by the paper's measure."""
        mean = self.outcome(item, cell, seeds).mean
        return "not run" if mean is None else f"{mean:.2f}"

    def draws(self, item: str, cell: str) -> int:
        return len(self.outcome(item, cell).values)

    def apart(self, item: str, cell: str) -> str:
        return signed(self.outcome(item, cell).apart or 0.0)

    def last(self, item: str, cell: str, point: str = "trained", figure: str | None = None) -> str:
        """The last round at a point, over the draws."""
        runs = self.outcome(item, cell).runs
        return _mean([last(run, point, figure or self.paper.score.figure) for run in runs]) or "not run"

    def ahead(self, item: str, one: str, other: str, point: str = "", figure: str | None = None) -> str:
        """By how many points one cell is above another on the draws that both have; by the paper's measure, or last."""
        both = self._alike(item, one, other)
        common = set(both[0].seeds) & set(both[1].seeds)
        means = []
        for each in both:
            values = dict(zip(each.seeds, each.values, strict=True))
            if point:
                values = {run.seed: last(run, point, figure or self.paper.score.figure) for run in each.runs}
            means.append(statistics.fmean(values[seed] for seed in common))
        return signed(means[0] - means[1])

    def _alike(self, item: str, *cells: str) -> list[Outcome]:
        """What cells gave in runs of one length: the longest that all of them have."""
        chosen = self.paper.item(item)
        each = [chosen.chosen([name])[0] for name in cells]
        lengths = {run.scale: run.config.rounds for cell in each for run in self.evidence.all_of(cell)}
        for scale in sorted(lengths, key=lambda scale: -lengths[scale]):
            found = [self.evidence.outcome(chosen, cell, scale) for cell in each]
            if set.intersection(*(set(outcome.seeds) for outcome in found)):
                return found
        raise SystemExit(f"{' and '.join(cells)} of {item} have no draw in common at any scale: mend the words")

    def place(self, item: str, cell: str) -> int:
        """Which place a cell has among the paper's rows of its column, on the draws that all of them have."""
        chosen = self.outcome(item, cell).cell
        column = [each for each in self.paper.item(item).cells if each.column == chosen.column]
        found = {each.row: self.outcome(item, each.name) for each in column if each.published is not None}
        found = {row: each for row, each in found.items() if each.values}
        common = set.intersection(*(set(each.seeds) for each in found.values()))
        means = {row: statistics.fmean(v for v, seed in zip(each.values, each.seeds, strict=True) if seed in common)
                 for row, each in found.items()}  # fmt: skip
        return sorted(means, key=lambda row: -means[row]).index(chosen.row) + 1

    def columns(self, item: str) -> list[str]:
        """The columns of a table of which anything was measured."""
        chosen = self.paper.item(item)
        return [column for column in chosen.columns
                if any(self.evidence.of(cell) for cell in chosen.cells if cell.column == column)]  # fmt: skip

    def measured(self, item: str, column: str) -> str:
        """A table of one column: ours at both points, by the paper's measure, and as published."""
        chosen, figure = self.paper.item(item), self.paper.score.figure
        cells = [cell for cell in chosen.cells if cell.column == column and cell.quantity == ACCURACY]
        head = ["row", "draws", "received, last", "trained, last", "ours", "95 % interval", "published", "apart",
                "KiB up/down", "scale"]  # fmt: skip
        rows = []
        for each in (self.evidence.outcome(chosen, cell) for cell in cells):
            if not each.runs:
                rows.append([each.cell.row, "not run", "", "", "", "", _published(each.cell), "", "", ""])
                continue
            lasts = [_mean([last(run, point, figure) for run in each.runs]) for point in ("received", "trained")]
            rows.append([
                each.cell.row + _other(each.runs), str(len(each.values)), *lasts, f"{each.mean:.2f}", _interval(each),
                _published(each.cell), "" if each.apart is None else f"{each.apart:+.2f}", _traffic(each.runs),
                each.scale,
            ])  # fmt: skip
        return table(head, rows)

    def by_draw(self, item: str, cells: Sequence[tuple[str, str]]) -> str:
        """The last round on every draw: rows of a cell and a point."""
        figure = self.paper.score.figure
        found = [(cell, point, {run.seed: run for run in self.outcome(item, cell).runs}) for cell, point in cells]
        seeds = sorted({seed for *_, runs in found for seed in runs})
        rows = []
        for cell, point, runs in found:
            values = {seed: last(run, point, figure) for seed, run in runs.items()}
            each = [f"{values[seed]:.2f}" if seed in values else "" for seed in seeds]
            rows.append([cell.partition("/")[0], point, *each, _mean(list(values.values()))])
        return table(["row", "point", *(f"draw {seed}" for seed in seeds), "mean"], rows)

    def changes(self, item: str, base: str) -> str:
        """What each row changes against one of them, on the draws that both have, beside the published change."""
        column = base.partition("/")[2]
        usual = self.outcome(item, base).cell.published or 0.0
        rows = []
        for cell in self.paper.item(item).cells:
            if cell.column == column and cell.name != base and self.outcome(item, cell.name).values:
                told = "" if cell.published is None else signed(cell.published - usual)
                common = set(self.outcome(item, cell.name).seeds) & set(self.outcome(item, base).seeds)
                rows.append([cell.row, self.ahead(item, cell.name, base), told, " ".join(map(str, sorted(common)))])
        return table(["row", "change", "published change", "draws"], rows)

    def again(self, item: str, column: str) -> str:
        """Runs of one draw that were computed more than once: `trained`, last round."""
        rows = []
        for cell in self.paper.item(item).cells:
            by_seed: dict[int, list[Measurement]] = {}
            for run in self.evidence.all_of(cell) if cell.column == column else ():
                by_seed.setdefault(run.seed, []).append(run)
            for seed, runs in sorted(by_seed.items()):
                for run in runs if len(runs) > 1 else ():
                    how = f"{run.settings.get('kernels', 'auto')} ({run.kernels})"
                    often = f"every {run.settings.get('evaluate_every', 1)}"
                    value = self.paper.score.figure
                    rows.append([cell.row, str(seed), how, often, f"{last(run, 'trained', value):.2f}"])
        return table(["row", "draw", "kernels", "tested", "trained, last"], rows)

    def course(self, item: str, cells: Sequence[str], rounds: Sequence[int], point: Point, seed: int = 0) -> str:
        """One draw's figures after some rounds, and pooled in the last."""
        rows = []
        for cell in cells:
            run = next((run for run in self.outcome(item, cell).runs if run.seed == seed), None)
            if run is None:
                rows.append([cell.partition("/")[0], *[""] * len(rounds), "not run"])
                continue
            there = dict(zip(run.rounds, getattr(run.curve(point), self.paper.score.figure), strict=True))
            each = [f"{100 * there[number]:.2f}" if there.get(number) is not None else "" for number in rounds]
            rows.append([cell.partition("/")[0] + _other([run]), *each, f"{last(run, point, 'pooled'):.2f}"])
        return table(["row", *(f"round {number}" for number in rounds), "pooled, last"], rows)

    def agenda(self) -> str:
        """What is done of every table, and what waits."""
        rows = []
        for item in self.paper.items.values():
            if item.not_run:
                rows.append([item.name, item.title, "nothing to run", item.not_run])
            elif not item.cells:
                rows.append(
                    [
                        item.name,
                        item.title,
                        "drawn from the data",
                        f"`fedgraft reproduce {self.paper.name} {item.name} --plot`",
                    ]
                )
            else:
                rows.append([item.name, item.title, *self._state(item)])
        return table(["item", "what", "cells measured", "waiting"], rows)

    def _state(self, item: Item) -> tuple[str, str]:
        found = {cell.name: self.evidence.outcome(item, cell) for cell in item.cells}
        done = [each for each in found.values() if each.values]
        gone = {cell_config(self.paper, cell, 0).dataset for cell in item.cells} & NOT_HAD
        waiting = [f"{len(found) - len(done)} cells"] if len(done) < len(found) else []
        if few := sum(len(each.values) < self.paper.draws for each in done):
            waiting.append(f"draws of {few} (the paper has {self.paper.draws})")
        if short := sum(each.scale != "full" for each in done):
            waiting.append(f"the full length of {short}")
        if gone:
            waiting.append(f"{', '.join(sorted(gone))}: cannot be had without a download")
        return f"{len(done)} of {len(found)}", "; ".join(waiting) or "nothing"

    @cached_property
    def machines(self) -> str:
        """Where the runs were made."""
        told = sorted({f"{run.machine} ({run.kernels}, torch {run.torch}, fedgraft {run.fedgraft})"
                       for run in self.evidence.runs})  # fmt: skip
        return "; ".join(told)

    @property
    def runs(self) -> int:
        return len(self.evidence.runs)

    @property
    def scales(self) -> str:
        """What the shorter runs are."""
        told = {name: ", ".join(f"{key} {value}" for key, value in changes.items())
                for name, changes in self.paper.scales.items() if changes}  # fmt: skip
        return "; ".join(f"{name}: {changes}" for name, changes in told.items())


def signed(value: float) -> str:
    """Points with a sign; none is none."""
    return f"{value:+.1f}" if round(value, 1) else "0.0"


def last(run: Measurement, point: str, figure: str) -> float:
    """Percent in the last round."""
    return 100 * float(getattr(run.curve(point), figure)[-1])  # type: ignore[arg-type]


def _mean(values: Sequence[float]) -> str:
    return f"{statistics.fmean(values):.2f}" if values else ""


def _interval(each: Outcome) -> str:
    found = each.interval
    return "one draw" if found is None else f"{found.low:.2f} to {found.high:.2f}"


def _published(cell: Cell) -> str:
    return "" if cell.published is None else f"{cell.published:.2f}"


def _traffic(runs: Sequence[Measurement]) -> str:
    up, down = (statistics.fmean(getattr(run, way) for run in runs) / 1024 for way in ("bytes_up", "bytes_down"))
    return f"{up:,.0f}/{down:,.0f}"


def _other(runs: Iterable[Measurement]) -> str:
    return "†" if any(OTHER_MACHINE in run.machine for run in runs) else ""


# ---- how hard a draw is


class Draws:
    """FedAPA's CIFAR-10 setting on many draws: how much of a figure is the draw."""

    def __init__(self, evidence: Evidence, partitions: dict[str, Any]) -> None:
        self.evidence, self.paper = evidence, evidence.paper
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
            found = self.difference(one, other)
            deviation, together, alone, apart = self.needed(one, other)
            rows.append([
                f"{one} - {other}", f"{found.mean:+.2f}", f"{found.interval.low:+.2f} to {found.interval.high:+.2f}",
                f"{found.p:.3f}", f"{found.improvement:.2f}", f"{deviation:.2f}", str(together), f"{alone:.2f}",
                str(apart),
            ])  # fmt: skip
        head = ["pair", "difference", "95 % interval", "p", "probability of improvement", "deviation of the difference",
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
                rows.append([method, name, slope, f"{100 * fit.explained:.0f} %", f"{fit.p:.3f}"])
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
                rows.append([cell.row, str(len(each.values)), *ours, f"{found.deviations:+.1f}", f"{found.p:.3f}"])
        return table(
            ["method", "draws", "ours", "deviation", "our highest", "published", "deviations above", "p"], rows
        )

    @cached_property
    def noise(self) -> list[float]:
        """How far two runs of one draw with other kernels, or on another machine, end apart: the last bits alone."""
        found = []
        for cell in {cell.method: cell for _, cell in self.paper.cells if cell.column == "cifar10"}.values():
            by_seed: dict[int, dict[str, Measurement]] = {}
            for run in self.evidence.all_of(cell):
                computed = f"{run.settings.get('kernels', '')} {run.kernels}"
                by_seed.setdefault(run.seed, {}).setdefault(computed, run)
            for runs in by_seed.values():
                found += [abs(last(a, "trained", "pooled") - last(b, "trained", "pooled"))
                          for a, b in combinations(runs.values(), 2)]  # fmt: skip
        return found


def partitions(count: int) -> dict[str, Any]:
    """Draw so many partitions of FedAPA's setting, and keep what their labels say."""
    told = reproduce.everything(RESULTS)["fedapa"].paper
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


def figures(draws: Draws) -> None:
    """The page's two figures."""
    import matplotlib as mpl
    from matplotlib.figure import Figure

    with mpl.rc_context({"svg.fonttype": "none", "svg.hashsalt": "fedgraft", "font.size": 9}):
        for name, drawn in (("draws-labels", _labels), ("draws-methods", _methods)):
            figure = Figure(figsize=(6.2, 3.0), layout="constrained")
            drawn(figure.add_subplot(), draws)
            figure.savefig(RESULTS / f"{name}.svg", metadata={"Date": None})


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


# ---- the pages


@cache
def board() -> Board:
    """The board, for both of its pages: its intervals are drawn once."""
    return Board(RESULTS)


def render(page: str) -> str:
    """One page, from the data."""
    words = Environment(
        loader=FileSystemLoader(RESULTS), undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    evidence = reproduce.everything(RESULTS)
    if page == "board":
        told: Any = board()
    elif page == "draws":
        told = Draws(evidence["fedapa"], json.loads(PARTITIONS.read_text("utf-8")))
    else:
        told = Words(evidence[page])
    return words.get_template(f"{page}.md.jinja").render(p=told).rstrip() + "\n"


def main() -> None:
    """Do what was asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--from", dest="taken", type=Path, action="append", default=[])
    parser.add_argument("--machine", help="where the runs of --from were made, if not here")
    parser.add_argument("--partitions", type=int)
    parser.add_argument("--board", type=Path)
    asked = parser.parse_args()
    if asked.partitions:
        PARTITIONS.write_text(json.dumps(partitions(asked.partitions)) + "\n", "utf-8")
    here = facts()
    cores = "1 core" if here["cores"] == 1 else f"{here['cores']} cores"
    machine = asked.machine or f"{cores} of an {here['cpu']}, {here['memory_gib']} GiB"
    if asked.board:
        keep_board(asked.board, RESULTS, machine)
    if asked.taken:
        reproduce.keep(RESULTS, reproduce.found_in(asked.taken, machine))
    for page in PAGES:
        (RESULTS / f"{page}.md").write_text(render(page), "utf-8")
    (RESULTS / "board.html").write_text(board().page(), "utf-8")
    figures(Draws(reproduce.everything(RESULTS)["fedapa"], json.loads(PARTITIONS.read_text("utf-8"))))


if __name__ == "__main__":
    main()
