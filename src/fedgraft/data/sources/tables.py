"""Tables: one file for each site, or one file with a column that names the site."""

from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from fedgraft.base.errors import UserError, unknown
from fedgraft.data.datasets.formats import Array
from fedgraft.data.site import Site
from fedgraft.data.sources import frames as columns
from fedgraft.data.sources import splitting, windows
from fedgraft.data.sources.fitted import Announcement, Fitted, announced_task
from fedgraft.data.sources.frames import (
    SET,
    TABLES,
    announce,
    cells,
    find_target,
    insist_on,
    read_frame,
    target_words,
    typed,
)
from fedgraft.data.sources.source import Found, Reading, Source, stems

MOST_SITES = 10_000


class TableFolder(Source):
    """A folder with one table for each site, which is called by its file's name."""

    name: ClassVar[str] = "tables"
    about: ClassVar[str] = "a folder with one .csv or .parquet file for each site"
    takes: ClassVar[frozenset[str]] = frozenset({"target", "split", "test_share", "window", "ignore", "categories"})

    @classmethod
    def fits(cls, path: Path) -> bool:
        return path.is_dir() and bool(stems(path, TABLES))

    @classmethod
    def serves(cls, path: Path) -> bool:
        return path.suffix.lower() in TABLES

    @cached_property
    def _kept(self) -> dict[Reading, Mapping[str, Any]]:
        """What was read already: who looks at tables and then prepares them reads the files once."""
        return {}

    def frames(self, reading: Reading) -> Mapping[str, Any]:
        if reading not in self._kept:
            self._kept[reading] = self._frames(reading)
        return self._kept[reading]

    def _frames(self, reading: Reading) -> Mapping[str, Any]:
        files = stems(self.path, TABLES)
        names = [file.stem for file in files]
        if twice := [name for name in names if names.count(name) > 1]:
            raise UserError(f"{self.path} holds two tables of the site {twice[0]!r}: keep one")
        return {file.stem: typed(read_frame(file), _as_written(reading)) for file in files}

    def read(self, reading: Reading, task: str | None, seed: int, fitted: Fitted | None = None) -> Found:
        return prepared(self.frames(reading), reading, task, seed, fitted)

    @classmethod
    def own(cls, path: Path, reading: Reading, task: str | None, seed: int, fitted: Fitted | None, site: str) -> Site:
        """Read one site's table; without an agreed preparation its columns are numbers, and taken as they are."""
        table = read_frame(path)
        target = find_target(table.columns, fitted.target if fitted else reading.target, path.name)
        if fitted is None:
            return _plain(table, target, reading, task, path, seed, site)
        parts = _parts(table, target, reading, task, site, seed)
        return _site(table, parts, fitted, reading, site)


class Table(TableFolder):
    """One table with a column that names the site of each row."""

    name: ClassVar[str] = "table"
    about: ClassVar[str] = "a .csv or .parquet file with a column that names the site (--site-column)"
    takes: ClassVar[frozenset[str]] = TableFolder.takes | {"site_column"}

    @classmethod
    def fits(cls, path: Path) -> bool:
        return path.suffix.lower() in TABLES and path.is_file()

    @classmethod
    def serves(cls, path: Path) -> bool:
        return False

    def _frames(self, reading: Reading) -> Mapping[str, Any]:
        return by_site(typed(read_frame(self.path), _as_written(reading)), reading.site_column, self.path.name)


def _as_written(reading: Reading) -> set[str]:
    """The columns whose cells are words, also where they look like numbers: 01 is not 1."""
    named = (reading.target or columns.LABEL, reading.site_column, splitting.column_of(reading.split), SET)
    return {name for name in named if name is not None} | {*reading.categories}


def by_site(table: Any, site_column: str | None, where: str) -> dict[str, Any]:
    """Cut one table into those of its sites, in the order of their names."""
    if site_column is None:
        listed = ", ".join(list(table.columns)[:8])
        raise UserError(f"say with --site-column which column of {where} names the site of a row: {listed}")
    insist_on(table.columns, [site_column], where)
    names = cells(table[site_column], "category", where)
    if (gone := sum(name is None for name in names)) > 0:
        raise UserError(f"{gone} rows of {where} have no {site_column}: every row belongs to a site")
    distinct = sorted(set(names))
    if len(distinct) > min(MOST_SITES, max(1, len(names) // 2)):
        raise UserError(f"{site_column} has {len(distinct)} values in {len(names)} rows: that names rows, not sites")
    rest = table.drop(columns=[site_column])
    return {str(name): rest[names == name].reset_index(drop=True) for name in distinct}


def prepared(
    tables: Mapping[str, Any], reading: Reading, task: str | None, seed: int, fitted: Fitted | None = None
) -> Found:
    """Prepare the tables of all sites, of which each has told no more than its announcement.

    With a preparation that was ``fitted`` earlier nothing is fitted: columns that it does not know are left out.
    """
    everything = list(dict.fromkeys(name for table in tables.values() for name in table.columns))
    insist_on(everything, (*reading.ignore, *reading.categories), "the tables")
    parts, told = {}, {}
    for site, table in tables.items():
        target = find_target(table.columns, reading.target, site)
        parts[site] = _parts(table, target, reading, task, site, seed)
        told[site] = announce(
            table, parts[site] == "train", target, features(table.columns, target, reading), reading.categories, site
        )
    _insist_on_common(told)
    if fitted is None:
        fitted, learned, notes = Fitted.of(told, task, reading.window)
    else:
        learned, notes = _as_before(tables, told, fitted, task, reading)
    if fitted.labels:
        notes += [f"every row of {site} is {each.labels[0]!r}" for site, each in told.items() if len(each.labels) == 1]
    found = [_site(table, parts[site], fitted, reading, site) for site, table in tables.items()]
    return Found(found, fitted, learned, tuple(notes))


def _as_before(
    tables: Mapping[str, Any], told: Mapping[str, Announcement], fitted: Fitted, task: str | None, reading: Reading
) -> tuple[str, list[str]]:
    """Hold tables against an earlier preparation; return the task, and sentences worth reading."""
    target = next(iter(told.values())).target
    if target != fitted.target or reading.window != fitted.window:
        raise UserError(
            f"the run that this one starts from learned {fitted.target} with window {fitted.window}, not {target} with "
            f"window {reading.window}"
        )
    for site, table in tables.items():
        insist_on_columns(table, fitted, site)
    known = {each.name for each in fitted.inputs}
    strange = dict.fromkeys(name for each in told.values() for name in each.columns if name not in known)
    notes = [f"the run that this one starts from did not know the column {name}: it is left out" for name in strange]
    return task or (f"classification:{len(fitted.labels)}" if fitted.labels else "regression"), notes


def _insist_on_common(told: Mapping[str, Announcement]) -> None:
    """Refuse a site that shares no column with any other: nothing could be learned from each other."""
    for site, each in told.items():
        others = dict.fromkeys(name for other in told if other != site for name in told[other].columns)
        if others and not each.columns.keys() & others.keys():
            ours, theirs = (", ".join(list(names)[:5]) for names in (each.columns, others))
            raise UserError(f"{site} has none of the other sites' columns ({theirs}) but {ours}: call them alike")


def features(names: Any, target: str, reading: Reading) -> list[str]:
    """Name the columns that are learned from: all but the target, those that only arrange rows, and the ignored."""
    arranging = {target, SET, splitting.column_of(reading.split), *reading.ignore}
    return [name for name in names if name not in arranging]


def _parts(table: Any, target: str, reading: Reading, task: str | None, site: str, seed: int) -> Array:
    """Split a site's rows; windows of consecutive rows are split where they lie."""
    if reading.window is not None and reading.split is None and SET not in table.columns:
        return windows.in_order(len(table), reading, site)
    return splitting.parts_of(table, _strata(table[target], task, site), reading, site, seed)


def _strata(target: Any, task: str | None, site: str) -> Array:
    """Classes, or the tenths of a target that is an amount."""
    kind, labels = target_words(target, site)
    if kind != "number" and announced_task(task)[0] != "regression":
        return np.unique(np.array(labels, dtype=object).astype(str), return_inverse=True)[1]
    values = cells(target, "number", site)
    edges = np.quantile(values, np.arange(1, 10) / 10)
    return np.searchsorted(edges, values, side="right").astype(np.int64)


def _site(table: Any, parts: Array, fitted: Fitted, reading: Reading, site: str) -> Site:
    """Turn one site's table into arrays."""
    x, y = samples_of(table, fitted, site), targets_of(table, fitted, site)
    arrays = {f"{letter}_{part}": values[parts == part] for letter, values in (("x", x), ("y", y))
              for part in splitting.PARTS if part != "val" or "val" in parts}  # fmt: skip
    if fitted.window is not None:
        arrays = windows.of_rows(x, y, parts, _runs(table, parts, reading, site), fitted.window, site)
    return Site(**arrays, name=site)


def samples_of(table: Any, fitted: Fitted, where: str) -> Array:
    """Rows x inputs: what a network takes of a table; a column that is not there is missing in every row."""
    absent = np.full(len(table), np.nan)
    held = {}
    for each in fitted.inputs:
        nothing = np.full(len(table), None, dtype=object) if each.kind == "category" else absent
        held[each.name] = cells(table[each.name], each.kind, where) if each.name in table.columns else nothing
    return fitted.sample_values(held)


def insist_on_columns(table: Any, fitted: Fitted, where: str) -> None:
    """Refuse a table without a column that was always there; what was missing elsewhere too may be missing here."""
    for each in fitted.inputs:
        if each.name not in table.columns and not each.indicator:
            raise unknown(f"column of {where}", each.name, table.columns)
    if not any(each.name in table.columns for each in fitted.inputs):
        names = ", ".join(each.name for each in fitted.inputs[:8])
        raise UserError(f"{where} has none of the columns that are learned from: {names}")


def targets_of(table: Any, fitted: Fitted, where: str) -> Array:
    """Each row's target: the number of its class, or its value."""
    assert fitted.target is not None
    insist_on(table.columns, [fitted.target], where)
    kind, labels = target_words(table[fitted.target], where)
    if fitted.labels:
        return fitted.numbers_of(labels if kind != "number" else table[fitted.target].astype(str).tolist(), where)
    with np.errstate(over="ignore"):  # infinite then, and refused as that
        return cells(table[fitted.target], "number", where).astype(np.float32)


def _runs(table: Any, parts: Array, reading: Reading, site: str) -> list[Array]:
    """Order rows by time, and number the stretches that a window may not leave: a part, and a group inside it."""
    kind, column = (reading.split or "").partition(":")[0], splitting.column_of(reading.split)
    order = np.arange(len(table))
    if kind == "time" and column:
        when = cells(table[column], columns.kind_of(table[column], site), site)
        order = np.argsort(when, kind="stable")
    group = cells(table[column], "category", site) if kind == "group" and column else np.full(len(table), None, object)
    return windows.stretches(order, parts, group)


def _plain(table: Any, target: str, reading: Reading, task: str | None, path: Path, seed: int, site: str) -> Site:
    """A table of numbers, none of them missing: all that can be read where nothing was agreed on."""
    reading.insist(frozenset({"target", "split", "test_share", "ignore"}), f"{path.name} without a preparation")
    names = features(table.columns, target, reading)
    if not names:
        raise UserError(f"{path} has no column but {target}: there is nothing to learn from")
    for name in names:
        kind = columns.kind_of(table[name], str(path))
        if kind != "number" or not columns.known(table[name]).all():
            raise UserError(
                f"the column {name} of {path} has {'missing cells' if kind == 'number' else 'no numbers'}: the "
                "federation has to agree on a preparation first (docs/data.md)"
            )
    parts = _parts(table, target, reading, task, site, seed)
    with np.errstate(over="ignore"):  # infinite then, and refused as that
        x = np.stack([cells(table[name], "number", str(path)) for name in names], axis=1).astype(np.float32)
    if columns.kind_of(table[target], str(path)) != "number":
        raise UserError(f"{target} of {path} holds words: the federation has to agree on its classes first")
    y = cells(table[target], "number", str(path))
    whole = bool((y == np.floor(y)).all()) and announced_task(task)[0] != "regression"
    y = y.astype(np.int64 if whole else np.float32)
    pairs = (("x", x), ("y", y))
    return Site(
        **{f"{letter}_{part}": v[parts == part] for letter, v in pairs for part in dict.fromkeys(parts)}, name=None
    )
