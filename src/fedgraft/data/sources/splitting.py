"""Which of a site's rows are for training and which for testing."""

from typing import Any

import numpy as np

from fedgraft.base.errors import UserError
from fedgraft.core import streams
from fedgraft.data.datasets.formats import Array
from fedgraft.data.sources.frames import SET, cells, insist_on, kind_of
from fedgraft.data.sources.source import FEWEST, Reading

PARTS = ("train", "test", "val")


def column_of(split: str | None) -> str | None:
    """The column that a split goes by."""
    return (split or "").partition(":")[2] or None


def parts_of(frame: Any, strata: Array, reading: Reading, site: str, seed: int) -> Array:
    """Return `train`, `test` or `val` for each row: as its column `set` says, or as the reading asks for."""
    if reading.split is None and SET in frame.columns:
        return _told(frame[SET], site)
    return drawn(frame, strata, reading, site, seed)


def drawn(frame: Any, strata: Array, reading: Reading, site: str, seed: int) -> Array:
    """Split a site's rows."""
    rows = len(strata)
    if rows < FEWEST:
        raise UserError(
            f"{site} has {rows} rows, too few to split: a site needs {FEWEST}, or a column `{SET}` that says train or "
            "test for each row"
        )
    kind, _, column = (reading.split or "stratified").partition(":")
    if column:
        insist_on(frame.columns, [column], site)
    random = streams.frozen_generator(seed, "split", site)
    wanted = min(max(round(reading.test_share * rows), 1), rows - 1)
    if kind == "time":
        when = cells(frame[column], kind_of(frame[column], site), site)
        if when.dtype == object or np.isnan(when).any():
            raise UserError(f"{column} of {site} has to be a date or a number in every row, to split by time")
        # rows of one moment stay together
        border = np.sort(when)[rows - wanted]
        test = when >= border if (when < border).any() else when > border
    elif kind == "group":
        test = _by_group(cells(frame[column], "category", site), wanted, random)
    elif kind == "random":
        test = np.isin(np.arange(rows), random.permutation(rows)[:wanted])
    else:
        test = _stratified(strata, reading.test_share, random)
    if test.all() or not test.any():
        raise UserError(
            f"split = {reading.split or 'stratified'} leaves {site} without rows to train on, or without any to test on"
        )
    return np.where(test, "test", "train")


def _told(column: Any, site: str) -> Array:
    words: Array = column.fillna("").astype(str).str.strip().to_numpy(dtype=object)
    for row, word in enumerate(words):
        if word not in PARTS:
            raise UserError(f"row {row + 1} of {site}: the column {SET} says train, test or val, not {word[:50]!r}")
    for part in ("train", "test"):
        if part not in words:
            raise UserError(f"no row of {site} says {part} in its column {SET}")
    return words.astype(str)


def _stratified(strata: Array, share: float, random: np.random.RandomState) -> Array:
    """The same share of every class; those of which a site has a single row are taken together."""
    _, where, counts = np.unique(strata, return_inverse=True, return_counts=True)
    strata = np.where(counts[where] == 1, -1, where)
    test = np.zeros(len(strata), dtype=bool)
    for stratum in np.unique(strata):
        rows = random.permutation(np.flatnonzero(strata == stratum))
        count = min(max(round(share * len(rows)), 1), len(rows) - 1)
        test[rows[:count]] = True
    return test


def _by_group(groups: Array, wanted: int, random: np.random.RandomState) -> Array:
    """Whole groups (patients, days, devices) go to one side; a row without a group is one of its own."""
    names = np.array([f"row {row}" if group is None else f"={group}" for row, group in enumerate(groups)])
    test = np.zeros(len(names), dtype=bool)
    for group in random.permutation(np.unique(names)):
        if test.sum() >= wanted:
            break
        test |= names == group
    return test
