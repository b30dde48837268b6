"""Repeat a paper's tables: which runs a cell needs, what is there of them, and what they give beside the paper's."""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cache
from math import inf
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np

from fedgraft.base import disk
from fedgraft.base.errors import UserError
from fedgraft.data.datasets import DATASETS, catalogue, load
from fedgraft.data.partition import SCHEMES
from fedgraft.methods import METHODS
from fedgraft.papers import recipes
from fedgraft.papers.tables import ACCURACY, SCALES, Cell, Item, Paper, paper, papers
from fedgraft.runs import measurement
from fedgraft.runs.agenda import Entry, Planner, complete
from fedgraft.runs.conducting import Watcher
from fedgraft.runs.config import RunConfig, configure
from fedgraft.runs.directory import folder_name
from fedgraft.runs.measurement import Measurement, cell_config, deciding, measured, scale_of, top_share
from fedgraft.runs.reading import Finished, read_run
from fedgraft.runs.results import RESULT
from fedgraft.runs.run import start
from fedgraft.runs.statistics import Interval, over_seeds

ALONE = "local"


@dataclass(frozen=True)
class Request:
    """A run that cells need, and where it has its directory."""

    cells: tuple[Cell, ...]
    config: RunConfig
    folder: Path


@dataclass(frozen=True)
class Outcome:
    """A cell, and what was measured for it: a run for each draw."""

    item: Item
    cell: Cell
    runs: tuple[Measurement, ...]
    values: tuple[float, ...]

    @property
    def mean(self) -> float | None:
        return sum(self.values) / len(self.values) if self.values else None

    @property
    def interval(self) -> Interval | None:
        """Where the mean over many draws lies, as far as these say; of one draw nothing is known."""
        return over_seeds(self.values)

    @property
    def apart(self) -> float | None:
        """How far ours is from the published figure."""
        return None if self.mean is None or self.cell.published is None else self.mean - self.cell.published

    @property
    def scale(self) -> str:
        return "; ".join(dict.fromkeys(run.scale for run in self.runs))

    @property
    def seeds(self) -> tuple[int, ...]:
        return tuple(run.seed for run in self.runs)


@dataclass(frozen=True)
class Draw:
    """How hard one draw of a column is."""

    column: str
    seed: int
    top_share: float | None
    samples: tuple[int, ...]
    alone: float | None
    """What clients reach without each other, by the paper's measure."""


class Evidence:
    """All that was measured for one paper."""

    def __init__(self, told: Paper, found: Iterable[Measurement]) -> None:
        self.paper = told
        self.runs = [run for run in found if run.recipe == told.name]
        self._by_cell: dict[str, list[Measurement]] = {}
        for run in [*self.runs, *self._tested_in_others()]:
            self._by_cell.setdefault(deciding(run.config), []).append(run)

    def _tested_in_others(self) -> Iterator[Measurement]:
        """What runs say of methods that are not theirs."""
        for method, where in self.paper.tested_in.items():
            yield from (run.of_another(method, where.point) for run in self.runs if run.method == where.method)

    def of(self, cell: Cell, scale: str | None = None) -> list[Measurement]:
        """The measurements of a cell, one for each draw: of the scale that was asked for, or else of the longest runs.

        Of several with one seed it is the one that was tested in more rounds, with the usual kernels, and of those the
        one of the older arithmetic, which was there first.
        """
        score = self.paper.score
        there = [run for run in self.all_of(cell)
                 if run.value(score, cell.quantity) is not None]  # fmt: skip
        wanted = scale or max((run.scale for run in there), key=lambda one: _rank(one, there), default="full")
        chosen: dict[int, Measurement] = {}
        for run in sorted(there, key=lambda run: ("kernels" in run.settings, -len(run.rounds), run.arithmetic)):
            if run.scale == wanted:
                chosen.setdefault(run.seed, run)
        return [chosen[seed] for seed in sorted(chosen)]

    def all_of(self, cell: Cell) -> list[Measurement]:
        """Every measurement of a cell, also further ones of the same draw."""
        return self._by_cell.get(_key(self.paper.name, cell.method, cell.column), [])

    def outcome(self, item: Item, cell: Cell, scale: str | None = None, seeds: Sequence[int] | None = None) -> Outcome:
        """What a cell gave, over the draws that were asked for or over all."""
        runs = [run for run in self.of(cell, scale) if seeds is None or run.seed in seeds]
        values = [run.value(self.paper.score, cell.quantity) for run in runs]
        return Outcome(item, cell, tuple(runs), tuple(value for value in values if value is not None))

    def shared(self, cells: Iterable[Cell], scale: str | None = None) -> list[int]:
        """The draws that all of these cells have, of those of which anything was measured."""
        each = [{run.seed for run in runs} for cell in cells if (runs := self.of(cell, scale))]
        return sorted(set.intersection(*each)) if each else []

    def course(self, cell: Cell, scale: str | None = None, seeds: Collection[int] | None = None) -> dict[int, float]:
        """A cell's accuracy by round, as the paper has it: the mean over draws, in the rounds that all of them have."""
        runs = [run for run in self.of(cell, scale) if seeds is None or run.seed in seeds]
        each = [{number: value for number, value in run.course(self.paper.score).items() if value is not None}
                for run in runs]  # fmt: skip
        common = sorted(set.intersection(*map(set, each))) if each else []
        return {number: fmean(one[number] for one in each) for number in common}

    def traffic(self, cell: Cell, scale: str | None = None, seeds: Collection[int] | None = None) -> dict[float, float]:
        """What accuracies cost: each that is above all before, with the bytes of a client until then, up and down.

        They are those of a round on average, times the rounds.
        """
        runs = [run for run in self.of(cell, scale) if seeds is None or run.seed in seeds]
        found: dict[float, float] = {}
        for number, value in self.course(cell, scale, seeds).items():
            if value > max(found, default=-inf):
                found[value] = number * fmean(run.bytes_up + run.bytes_down for run in runs)
        return found

    def draws(self, cells: Iterable[Cell], scale: str | None = None) -> list[Draw]:
        """How hard the draws of these cells are, column by column."""
        found: dict[tuple[str, int], Draw] = {}
        for cell in cells:
            alone = {run.seed: run.value(self.paper.score) for run in self.of(alone_in(cell), scale)}
            for run in self.of(cell, scale):
                told = Draw(cell.column, run.seed, run.top_share, tuple(run.samples), alone.get(run.seed))
                known = found.setdefault((cell.column, run.seed), told)
                if known.top_share is None:
                    found[cell.column, run.seed] = told if told.top_share is not None else _looked_up(told, run)
        return [found[key] for key in sorted(found)]


def _looked_up(draw: Draw, run: Measurement) -> Draw:
    """What a measurement does not tell of its draw, from the labels, where they are here."""
    if lacking(run.config.dataset):
        return draw
    counts = label_counts(run.config)
    return replace(draw, top_share=top_share(counts), samples=tuple(counts.sum(axis=1).tolist()))


def _rank(scale: str, among: Iterable[Measurement]) -> tuple[int, int]:
    """Longer runs first: a scale that has a name by its name, others by their rounds."""
    longest = max(run.config.rounds for run in among if run.scale == scale)
    return (SCALES.index(scale) if scale in SCALES else 0), longest


def alone_in(cell: Cell) -> Cell:
    """The cell of Local in the same column."""
    return Cell(ALONE, cell.column, ACCURACY, ALONE, cell.settings)


# ---- what is there


def found_in(places: Iterable[Path], machine: str = "") -> list[Measurement]:
    """Take in finished runs wherever they lie, and files of measurements; what belongs to no cell is left out."""
    found = []
    for place in places:
        if not place.exists():
            raise UserError(f"there is no folder {place}")
        found += [run for each in measurement.read(place).values() for run in each]
        for run in finished_in(place):
            if told := recognised(run.config):
                found.append(measured(run, told.name, scale_of(told, run.config), machine))
    return found


def finished_in(place: Path) -> Iterator[Finished]:
    """Every finished run below a folder."""
    for config in sorted(place.rglob("config.toml")):
        if (config.parent / RESULT).exists():
            yield read_run(config.parent)


def recognised(config: RunConfig) -> Paper | None:
    """The paper that has a cell with these settings, if one has."""
    if config.method not in METHODS:
        return None
    key = deciding(config)
    return next((_paper(name) for name in recipes() if key in _homes(name)), None)


@cache
def _paper(name: str) -> Paper:
    return paper(name)


@cache
def _key(name: str, method: str, column: str) -> str:
    """What decides the result of a paper's cell."""
    told = _paper(name)
    return deciding(cell_config(told, Cell("", column, ACCURACY, method, told.columns[column]), 0))


@cache
def _homes(name: str) -> dict[str, str]:
    """The table in which each cell of a paper is first, by what decides its result; Local is in every column."""
    homes: dict[str, str] = {}
    ordered = sorted(_paper(name).cells, key=lambda each: not each[0].name.startswith("table"))
    for methods in (lambda cell: cell.method, lambda _: ALONE):
        for item, cell in ordered:
            homes.setdefault(_key(name, methods(cell), cell.column), item.name)
    return homes


# ---- what is missing


def setting(told: Paper, column: str) -> RunConfig:
    """The settings of a column: those of Local on the first draw."""
    return cell_config(told, Cell("", column, ACCURACY, ALONE, told.columns[column]), 0)


@cache
def lacking(dataset: str) -> bool:
    """Whether a dataset is not on this machine."""
    return dataset in DATASETS and not next(one.available for one in catalogue() if one.name == dataset)


def absent(told: Paper, columns: Iterable[str]) -> list[str]:
    """The datasets that columns of a paper need and that are not on this machine."""
    return sorted(filter(lacking, {setting(told, name).dataset for name in columns}))


@cache
def _labels(dataset: str, data_dir: str | None) -> tuple["np.ndarray[Any, Any]", "np.ndarray[Any, Any]"]:
    source = load(dataset, None if data_dir is None else Path(data_dir))
    return source.y_train, source.y_test


def label_counts(config: RunConfig) -> "np.ndarray[Any, Any]":
    """Clients x classes of a draw, from the labels alone."""
    train, test = _labels(config.dataset, config.data_dir)
    drawn = SCHEMES.make(config.partition).split(train, test, config.clients, config.drawn_by)
    return np.asarray(drawn.counts(np.concatenate([train, test]))[0])


def obtain(datasets: Iterable[str]) -> dict[str, str]:
    """Fetch datasets that are not on this machine; of those that cannot be had, why."""
    gone = {}
    for name in sorted({*datasets}):
        if lacking(name):
            try:
                load(name)
            except UserError as error:
                gone[name] = str(error)
    lacking.cache_clear()
    return gone


def requests(
    told: Paper, cells: Iterable[Cell], seeds: Iterable[int], scale: str, root: Path, *, alone: bool = True
) -> list[Request]:
    """The runs that cells need, each once; those of Local too, unless told: they say how hard a draw is.

    Of two methods that one run tests, that run is made if both are wanted.
    """
    chosen = list(cells)
    chosen += [alone_in(cell) for cell in chosen] if alone else []
    methods = {(cell.method, cell.column) for cell in chosen}
    found: dict[tuple[str, int], Request] = {}
    for seed in seeds:
        for cell in chosen:
            where = told.tested_in.get(cell.method)
            made = where.method if where and (where.method, cell.column) in methods else cell.method
            config = cell_config(told, replace(cell, method=made), seed, scale)
            label = METHODS.label(METHODS.make(config.method, **config.params))
            folder = root / told.name / cell.column / scale / f"{folder_name(label)}-seed{seed}"
            key = deciding(config) + str(config.global_test), seed
            known = found.setdefault(key, Request((), config, folder))
            found[key] = replace(known, cells=(*known.cells, cell))
    return list(found.values())


def left(wanted: Iterable[Request], evidence: Evidence, scale: str) -> list[Request]:
    """Those that measure something of which nothing is there yet."""
    return [
        each
        for each in wanted
        if any(each.config.seed not in {run.seed for run in evidence.of(cell, scale)} for cell in each.cells)
    ]


def make(wanted: Iterable[Request], watchers: Sequence[Watcher] = ()) -> None:
    """Make these runs, one after another; one that was interrupted goes on, one that is finished is kept.

    A run that another process is at work on is left to it; one that was computed before below the folder of all runs
    is copied from there.
    """
    planner = Planner()
    for each in wanted:
        run = planner(Entry.of(str(each.folder), each.config))
        with suppress(disk.HeldError):
            complete(run, each.folder, watchers)


def finished_for(told: Paper, cells: Iterable[Cell], places: Iterable[Path]) -> dict[tuple[str, str], Finished]:
    """A finished run for each method and column of these cells, with the matrices that only its directory has."""
    names: dict[str, list[tuple[str, str]]] = {}
    for cell in cells:
        makers = {cell.method, *([where.method] if (where := told.tested_in.get(cell.method)) else [])}
        for method in makers:
            names.setdefault(_key(told.name, method, cell.column), []).append((cell.method, cell.column))
    found: dict[tuple[str, str], Finished] = {}
    for place in places:
        for run in finished_in(place):
            for name in names.get(deciding(run.config), []) if run.config.method in METHODS else []:
                if name not in found or found[name].config.rounds < run.config.rounds:
                    found[name] = run
    return found


def of_cells(told: Paper, cells: Iterable[Cell], found: Iterable[Measurement]) -> list[Measurement]:
    """Those of the measurements that are of cells of a paper, in any scale."""
    keys = {_key(told.name, cell.method, cell.column) for cell in cells}
    return [run for run in found if run.recipe == told.name and deciding(run.config) in keys]


def again(told: Measurement, workers: str | None = None, watchers: Sequence[Watcher] = ()) -> Measurement:
    """Make a measurement once more; nothing is written."""
    config = told.config if workers is None else configure(told.config, {"workers": workers})
    return measured(start(Planner()(Entry.of("", config)), None, watchers), told.recipe, told.scale)


# ---- kept as data


def keep(place: Path, found: Iterable[Measurement]) -> list[Path]:
    """Add measurements to a folder of them, a file for each table; of one command the newest stays."""
    kept = {run.command + run.computed: run for each in measurement.read(place).values() for run in each}
    kept |= {run.command + run.computed: run for run in found}
    by_file: dict[tuple[str, str], list[Measurement]] = {}
    for run in kept.values():
        by_file.setdefault((run.recipe, _homes(run.recipe)[deciding(run.config)]), []).append(run)
    for (name, item), runs in by_file.items():
        measurement.write(place / f"{name}-{item}.json", name, item, runs)
    return [place / f"{name}-{item}.json" for name, item in by_file]


def everything(place: Path) -> Mapping[str, Evidence]:
    """What a folder of measurements holds, paper by paper."""
    runs = [run for each in measurement.read(place).values() for run in each]
    return {name: Evidence(told, runs) for name, told in papers().items()}
