"""The page of a paper: what we measured beside what it printed."""

import statistics
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property, partial
from pathlib import Path

from docs.pictures import save
from docs.tables import table
from fedgraft.core.evaluation import Point
from fedgraft.papers.tables import ACCURACY, Cell, Item
from fedgraft.report.paperfigures import PLOTS, Drawing
from fedgraft.runs.measurement import Measurement, cell_config
from fedgraft.runs.reproduce import Evidence, Outcome
from fedgraft.runs.statistics import over_seeds

NOT_HAD = {"emnist", "cinic10", "pathmnist"}
"""Datasets that could not be had without a download where these runs were made."""
OTHER_KERNELS = "kernels avx2"
"""Those of the fewer runs, which are marked; the others have AVX-512."""
FEWEST = 3
"""Draws of which an interval says anything."""


FIGURES = {
    "fedapa": (("figure2", "curves"), ("table2", "traffic"), ("table4", "sweep")),
    "apple": (("figure6", "curves"),),
    "fedppa": (("figure4", "curves"),),
    "fedgpa": (("figure7", "curves"),),
}
"""What each page shows: an item of the paper, and how it is drawn."""


def figures(evidence: Evidence, place: Path) -> None:
    """Draw the figures of a paper's page, from the measurements."""
    for item, kind in FIGURES[evidence.paper.name]:
        drawing = Drawing(evidence, evidence.paper.item(item), {})
        save(place / f"{evidence.paper.name}-{item}-{kind}.svg", partial(PLOTS[kind], drawing))


class Words:
    """What the page of a paper is written with."""

    def __init__(self, evidence: Evidence) -> None:
        self.evidence, self.paper = evidence, evidence.paper

    def outcome(self, item: str, cell: str, seeds: Sequence[int] | None = None, scale: str = "") -> Outcome:
        chosen = self.paper.item(item)
        return self.evidence.outcome(chosen, chosen.chosen([cell])[0], scale or None, seeds)

    def ours(self, item: str, cell: str, seeds: Sequence[int] | None = None, scale: str = "") -> str:
        """Our figure, by the paper's measure; of the longest runs, unless told."""
        mean = self.outcome(item, cell, seeds, scale).mean
        return "not run" if mean is None else f"{mean:.2f}"

    def draws(self, item: str, cell: str) -> int:
        return len(self.outcome(item, cell).values)

    def apart(self, item: str, cell: str) -> str:
        return signed(self.outcome(item, cell).apart or 0.0)

    def printed(self, item: str, cell: str) -> float:
        """The published figure of a cell."""
        found = self.outcome(item, cell).cell.published
        if found is None:
            raise SystemExit(f"{cell} of {item} has no published figure: mend the words")
        return found

    def about(self, item: str) -> str:
        """What a reader of one of its tables has to know."""
        return self.paper.item(item).about

    def published(self, item: str, one: str, other: str) -> str:
        """By how many points one cell is above another in the paper."""
        above, below = (self.outcome(item, name).cell.published for name in (one, other))
        if above is None or below is None:
            raise SystemExit(f"{one} or {other} of {item} has no published figure: mend the words")
        return signed(above - below)

    def last(self, item: str, cell: str, point: str = "trained", figure: str | None = None) -> str:
        """The last round at a point, over the draws."""
        runs = self.outcome(item, cell).runs
        return _mean([last(run, point, figure or self.paper.score.figure) for run in runs]) or "not run"

    def ahead(
        self, item: str, one: str, other: str, point: str = "", figure: str | None = None, scale: str = ""
    ) -> str:
        """By how many points one cell is above another on the draws that both have; by the paper's measure, or last."""
        first, second = self._alike(item, one, other, scale=scale)
        if not point:
            return signed(statistics.fmean(self._between(first, second).values()))
        ours, theirs = ({run.seed: last(run, point, figure or self.paper.score.figure) for run in each.runs}
                        for each in (first, second))  # fmt: skip
        return signed(statistics.fmean(ours[seed] - theirs[seed] for seed in ours.keys() & theirs.keys()))

    def lost(self, item: str, cell: str) -> str:
        """By how many points the last round is below the best one, by the paper's measure, over the draws."""
        each = self.outcome(item, cell)
        ends = [run.value(self.paper.score, within=run.rounds[-1:]) for run in each.runs]
        both = zip(each.values, ends, strict=True)
        return f"{statistics.fmean(best - end for best, end in both if end is not None):.1f}"

    def best_round(self, item: str, cell: str) -> str:
        """In which rounds, from the earliest to the latest over the draws, a cell has its figure."""
        each = self.outcome(item, cell)
        return _span([next(number for number in run.rounds if run.value(self.paper.score, within=[number]) == best)
                      for run, best in zip(each.runs, each.values, strict=True)])  # fmt: skip

    def _between(self, one: Outcome, other: Outcome) -> dict[int, float]:
        """By how much one cell is above another, draw by draw, by the paper's measure.

        Of the rounds in which both runs were tested: the best of fifty is above the best of ten.
        """
        found = {}
        theirs = {run.seed: run for run in other.runs}
        for run in (run for run in one.runs if run.seed in theirs):
            shared = {*run.rounds} & {*theirs[run.seed].rounds}
            ours, its = (each.value(self.paper.score, within=shared) for each in (run, theirs[run.seed]))
            if ours is not None and its is not None:
                found[run.seed] = ours - its
        return found

    def _alike(self, item: str, *cells: str, scale: str = "") -> list[Outcome]:
        """What cells gave in runs of one length: the one that was asked for, or the longest that all of them have."""
        chosen = self.paper.item(item)
        each = [chosen.chosen([name])[0] for name in cells]
        lengths = {run.scale: run.config.rounds for cell in each for run in self.evidence.all_of(cell)}
        for length in [scale] if scale else sorted(lengths, key=lambda length: -lengths[length]):
            found = [self.evidence.outcome(chosen, cell, length) for cell in each]
            if set.intersection(*(set(outcome.seeds) for outcome in found)):
                return found
        lacking = f"no draw in common at {scale or 'any scale'}"
        raise SystemExit(f"{' and '.join(cells)} of {item} have {lacking}: mend the words")

    def place(self, item: str, cell: str) -> tuple[int, int]:
        """Which place a cell has among the paper's rows of its column, and on how many draws: those that all have."""
        chosen = self.outcome(item, cell)
        common = {*chosen.seeds}
        apart = [each for other, each in self._against(item, cell) if other.published is not None]
        for each in apart:
            common &= {*each}
        return 1 + sum(statistics.fmean(each[seed] for seed in common) > 0 for each in apart), len(common)

    def columns(self, item: str) -> list[str]:
        """The columns of a table of which anything was measured."""
        chosen = self.paper.item(item)
        return [column for column in chosen.columns
                if any(self.evidence.of(cell) for cell in chosen.cells if cell.column == column)]  # fmt: skip

    def measured(self, item: str, column: str, seeds: Sequence[int] | None = None, *, shorter: bool = False) -> str:
        """A table of one column: ours at both points, by the paper's measure, and as published.

        Of the draws that were asked for, or of all; with ``shorter`` runs in rows of their own, or the longest alone.
        """
        chosen, figure = self.paper.item(item), self.paper.score.figure
        cells = [cell for cell in chosen.cells if cell.column == column and cell.quantity == ACCURACY]
        head = ["row", "draws", "received, last", "trained, last", "ours", "95 % interval", "published", "apart",
                "KiB up/down", "scale"]  # fmt: skip
        rows = []
        lengths = [(cell, scale) for cell in cells for scale in (self._scales(cell) if shorter else [None])]
        for each in (self.evidence.outcome(chosen, cell, scale, seeds) for cell, scale in lengths):
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

    def _scales(self, cell: Cell) -> list[str | None]:
        """How long its runs are, the longest first; the longest, whatever it is, if there are none."""
        rounds = {run.scale: run.config.rounds for run in self.evidence.all_of(cell)}
        return [*sorted(rounds, key=lambda scale: -rounds[scale])] or [None]

    def quantities(self, item: str, column: str, *names: str) -> str:
        """A table of one column: what else than accuracy was measured, each beside what was published."""
        chosen = self.paper.item(item)
        cells = {(cell.row, cell.quantity): cell for cell in chosen.cells if cell.column == column}
        rows = []
        for row in chosen.rows:
            line = [row]
            for each in (self.evidence.outcome(chosen, cells[row, name]) for name in names):
                line += ["not run" if each.mean is None else f"{each.mean:,.0f}", f"{each.cell.published or 0:,.0f}"]
            rows.append(line)
        return table(["row", *(head for name in names for head in (f"{name}, ours", f"{name}, published"))], rows)

    def by_draw(self, item: str, cells: Sequence[tuple[str, str]]) -> str:
        """The last round on every draw that is more than one row's: rows of a cell and a point."""
        figure = self.paper.score.figure
        found = [(cell, point, {run.seed: run for run in self.outcome(item, cell).runs}) for cell, point in cells]
        times = Counter(seed for *_, runs in found for seed in runs)
        seeds = sorted(seed for seed, count in times.items() if count > 1)
        rows = []
        for cell, point, runs in found:
            values = {seed: last(run, point, figure) for seed, run in runs.items()}
            each = [f"{values[seed]:.2f}" if seed in values else "" for seed in seeds]
            mean = _mean([values[seed] for seed in seeds if seed in values])
            rows.append([cell.partition("/")[0], point, *each, mean])
        return table(["row", "point", *(f"draw {seed}" for seed in seeds), "mean"], rows)

    def costs(self, item: str, column: str, targets: Sequence[float], seeds: Sequence[int]) -> str:
        """What a client sends and receives until a row's mean over these draws is at a target, and in which round.

        Local training, which sends nothing, is left out.
        """
        cells = [cell for cell in self.paper.item(item).cells if cell.column == column and cell.quantity == ACCURACY]
        rows = []
        for cell in cells:
            course, costs = self.evidence.course(cell, None, seeds), self.evidence.traffic(cell, None, seeds)
            if not any(costs.values()):
                continue
            line = [cell.row, f"{max(costs):.2f}"]
            for target in targets:
                paid = next((each for value, each in costs.items() if value >= target), None)
                number = next((number for number, value in course.items() if value >= target), None)
                line.append("" if paid is None else f"{_mebibytes(paid)} ({number})")
            rows.append(line)
        return table(["row", "best", *(f"{target:g} %" for target in targets)], rows)

    def changes(self, item: str, base: str) -> str:
        """What each row changes against one of them, on the draws that both have, beside the published change."""
        usual = self.outcome(item, base).cell.published or 0.0
        rows = []
        for cell, apart in self._against(item, base):
            told = "" if cell.published is None else signed(cell.published - usual)
            values = list(apart.values())
            above = f"{sum(value > 0 for value in values)} of {len(values)}"
            rows.append([cell.row, signed(statistics.fmean(values), 2), _sure(values), above, told, _counted([*apart])])
        return table(["row", "difference", "95 % interval", "above it on", "published", "draws"], rows)

    def above(self, item: str, base: str) -> str:
        """The rows of the paper that are above one of them on every draw that both have, where these are a few."""
        found = [
            f"{cell.row} ({signed(statistics.fmean(apart.values()))} on {len(apart)})"
            for cell, apart in self._against(item, base)
            if cell.published is not None and len(apart) >= FEWEST and min(apart.values()) > 0
        ]
        return ", ".join(found) or "none"

    def exceeded(self, item: str, column: str, by: str = "") -> str:
        """How many of a column's published figures are below ours: those of the same rows, or of one cell."""
        pairs = [
            (self.outcome(item, by or cell.name).mean, cell.published)
            for cell in self.paper.item(item).cells
            if cell.column == column and cell.quantity == ACCURACY
        ]
        found = [ours > theirs for ours, theirs in pairs if ours is not None and theirs is not None]
        return f"{sum(found)} of {len(found)}"

    def _against(self, item: str, base: str) -> Iterator[tuple[Cell, dict[int, float]]]:
        """The other cells of a column, with their difference to one of them by draw."""
        first = self.outcome(item, base)
        for cell in self.paper.item(item).cells:
            if cell.column != first.cell.column or cell.quantity != ACCURACY or cell.name == base:
                continue
            if apart := self._between(self.outcome(item, cell.name), first):
                yield cell, apart

    def draws_of(self, item: str, column: str) -> str:
        """From how many to how many draws the rows of a column have."""
        found = [self.draws(item, cell.name) for cell in self.paper.item(item).cells if cell.column == column]
        return _span(found)

    def again(self, item: str, column: str) -> str:
        """Runs of one draw that were computed more than once: `trained`, last round."""
        rows = []
        for cell in self.paper.item(item).cells:
            by_seed: dict[int, list[Measurement]] = {}
            for run in self.evidence.all_of(cell) if cell.column == column else ():
                by_seed.setdefault(run.seed, []).append(run)
            for seed, runs in sorted(by_seed.items()):
                for run in runs if len(runs) > 1 else ():
                    often = f"every {run.settings.get('evaluate_every', 1)}"
                    value = self.paper.score.figure
                    rows.append([cell.row, str(seed), run.computed, often, f"{last(run, 'trained', value):.2f}"])
        return table(["row", "draw", "kernels", "tested", "trained, last"], rows)

    def course(
        self, item: str, cells: Sequence[str], rounds: Sequence[int], point: Point | None = None, scale: str = ""
    ) -> str:
        """The first draw's figures after some rounds, and pooled in the last: at one point, or each row at its own."""
        rows = []
        for cell in cells:
            run = next((run for run in self.outcome(item, cell, scale=scale).runs if run.seed == 0), None)
            if run is None:
                rows.append([cell.partition("/")[0], *[""] * len(rounds), "not run"])
                continue
            at = point or run.headline
            there = dict(zip(run.rounds, getattr(run.curve(at), self.paper.score.figure), strict=True))
            each = [f"{100 * there[number]:.2f}" if there.get(number) is not None else "" for number in rounds]
            rows.append([cell.partition("/")[0] + _other([run]), *each, f"{last(run, at, 'pooled'):.2f}"])
        return table(["row", *(f"round {number}" for number in rounds), "pooled, last"], rows)

    def spans(self, item: str, cell: str, rounds: Sequence[int], scale: str = "") -> list[str]:
        """From the lowest to the highest of all draws after some rounds, at the row's own point."""
        runs = self.outcome(item, cell, scale=scale).runs
        curves = [getattr(run.curve(run.headline), self.paper.score.figure) for run in runs]
        found = [[100 * curve[run.rounds.index(number)] for run, curve in zip(runs, curves, strict=True)]
                 for number in rounds]  # fmt: skip
        return [f"{min(each):.1f} to {max(each):.1f}" for each in found]

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
        waiting = [_cells(len(found) - len(done))] if len(done) < len(found) else []
        if few := sum(len(each.values) < self.paper.draws for each in done):
            waiting.append(f"more draws of {_cells(few)}, which have fewer than the paper's {self.paper.draws}")
        if short := sum(each.scale != "full" for each in done):
            waiting.append(f"the full length of {_cells(short)}")
        if gone:
            waiting.append(f"{', '.join(sorted(gone))}: cannot be had without a download")
        return f"{len(done)} of {len(found)}", "; ".join(waiting) or "nothing"

    @cached_property
    def machines(self) -> str:
        """Where the runs were made, and by which versions."""
        versions: dict[str, set[str]] = {}
        for run in self.evidence.runs:
            versions.setdefault(f"{run.machine} ({run.kernels}, torch {run.torch}", set()).add(run.fedgraft)
        return "; ".join(f"{made}, fedgraft {', '.join(sorted(by))})" for made, by in sorted(versions.items()))

    @property
    def runs(self) -> int:
        return len(self.evidence.runs)

    @cached_property
    def coarser(self) -> str:
        """What runs that were tested in every round would have lost had they been tested every fifth."""
        return coarser(self.evidence)

    @property
    def scales(self) -> str:
        """What the shorter runs are."""
        told = {name: ", ".join(f"{key} {value}" for key, value in changes.items())
                for name, changes in self.paper.scales.items() if changes}  # fmt: skip
        return "; ".join(f"{name}: {changes}" for name, changes in told.items())


def signed(value: float, digits: int = 1) -> str:
    """Points with a sign; none is none."""
    return f"{value:+.{digits}f}" if round(value, digits) else f"{0:.{digits}f}"


def coarser(evidence: Evidence, every: int = 5) -> str:
    """By how much the paper's measure falls, on average and at most, if only some rounds of a run are tested."""
    score, lost = evidence.paper.score, []
    for run in evidence.runs:
        whole, part = run.value(score), run.value(score, within=range(every, run.config.rounds + 1, every))
        if len(run.rounds) == run.config.rounds and whole is not None and part is not None:
            lost.append(whole - part)
    return f"{statistics.fmean(lost):.1f} points on average and {max(lost):.1f} at most, over {len(lost)} runs"


def last(run: Measurement, point: str, figure: str) -> float:
    """Percent in the last round."""
    return 100 * float(getattr(run.curve(point), figure)[-1])  # type: ignore[arg-type]


def _mean(values: Sequence[float]) -> str:
    return f"{statistics.fmean(values):.2f}" if values else ""


def _cells(count: int) -> str:
    return "1 cell" if count == 1 else f"{count} cells"


def _interval(each: Outcome) -> str:
    found = each.interval if len(each.values) >= FEWEST else None
    return "" if found is None else f"{found.low:.2f} to {found.high:.2f}"


def _mebibytes(count: float) -> str:
    told = count / 2**20
    return f"{told:.2g}" if told < 1 else f"{told:.1f}" if told < 100 else f"{told:,.0f}"


def _published(cell: Cell) -> str:
    return "" if cell.published is None else f"{cell.published:.2f}"


def _traffic(runs: Sequence[Measurement]) -> str:
    up, down = (statistics.fmean(getattr(run, way) for run in runs) / 1024 for way in ("bytes_up", "bytes_down"))
    return f"{up:,.0f}/{down:,.0f}"


def _sure(apart: Sequence[float]) -> str:
    found = over_seeds(apart) if len(apart) >= FEWEST else None
    return "" if found is None else f"{found.low:+.2f} to {found.high:+.2f}"


def _span(counts: Sequence[int]) -> str:
    return str(min(counts)) if min(counts) == max(counts) else f"{min(counts)} to {max(counts)}"


def _counted(seeds: Sequence[int]) -> str:
    """0 to 4, or each by itself."""
    whole = len(seeds) > 2 and seeds[-1] - seeds[0] == len(seeds) - 1
    return f"{seeds[0]} to {seeds[-1]}" if whole else " ".join(map(str, seeds))


def _other(runs: Iterable[Measurement]) -> str:
    return "†" if any(OTHER_KERNELS in run.kernels for run in runs) else ""
