"""Tables: read from CSV and Parquet files, and what their columns are."""

import csv
import re
import warnings
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np

from fedgraft.base.errors import UserError, unknown
from fedgraft.data.datasets.formats import Array, affordable, sentences
from fedgraft.data.sources.fitted import MOST_CLASSES, OFTEN, Announcement, Column, Kind

TABLES = frozenset({".csv", ".tsv", ".parquet"})
MISSING = ("", "?", "NA", "N/A", "n/a", "nan", "NaN", "null", "NULL", "None", "<NA>")
SET, LABEL = "set", "label"
"""Columns with a meaning of their own: which part a row belongs to, and the target unless another is named."""
_DATE = r"\d{4}-\d{2}-\d{2}([ T]\d{2}:\d{2}.*)?"
_DECIMAL = r"[+-]?\d+(,\d+)?([eE][+-]?\d+)?"
_SHOWN = 8
_LARGEST = 1e100
"""A number beyond which sums of squares are in danger of being infinite."""


def pandas() -> Any:
    """Import pandas, which only tables need."""
    try:
        import pandas as pd
    except ImportError:
        raise UserError("tables are read with pandas: pip install 'fedgraft[tables]'") from None
    return pd


def read_frame(path: Path) -> Any:
    """Read a table: text cells of a CSV file, the types of a Parquet file."""
    pd = pandas()
    with sentences(path):
        affordable(path.stat().st_size)
        if path.suffix.lower() == ".parquet":
            try:
                frame = pd.read_parquet(path)
            except ImportError:
                raise UserError("Parquet files are read with pyarrow: pip install 'fedgraft[tables]'") from None
        else:
            frame = _read_csv(path)
    frame.columns = _header([str(name) for name in frame.columns], path)
    if frame.empty:
        raise UserError(f"{path} holds no rows")
    return frame


def _read_csv(path: Path) -> Any:
    pd = pandas()
    try:
        with path.open(newline="", encoding="utf-8-sig") as stream:
            line = stream.readline(1_000_000)
            comma = max(",;\t", key=line.count)
            names = _header(next(csv.reader([line], delimiter=comma), []), path)
        with warnings.catch_warnings():
            warnings.simplefilter("error", pd.errors.ParserWarning)  # cells that no column is named for
            frame = pd.read_csv(
                path, sep=comma, header=0, names=names, index_col=False, dtype=object, keep_default_na=False,
                na_values=list(MISSING), skipinitialspace=True, encoding="utf-8-sig",
            )  # fmt: skip
        return frame.apply(_pointed) if comma == ";" else frame
    except UnicodeDecodeError:
        raise UserError(f"{path} is not a text in UTF-8: save it as CSV in UTF-8") from None
    except pd.errors.ParserWarning:
        raise UserError(_overfull(path, comma, len(names))) from None
    except (pd.errors.ParserError, pd.errors.EmptyDataError, csv.Error) as error:
        raise UserError(f"{path} is not a table: {_told(error)}") from None


def _overfull(path: Path, comma: str, width: int) -> str:
    """Say where a row has more cells than there are columns: which of them belongs to which, nobody can tell."""
    with path.open(newline="", encoding="utf-8-sig") as stream:
        rows = csv.reader(stream, delimiter=comma, skipinitialspace=True)
        line = next((rows.line_num for row in rows if any(row[width:])), None)
    where = "" if line is None else f" in line {line}"
    hint = ": write 3.5 for 3,5, and put a cell with a comma in quotes" if comma == "," else ""
    return f"{path} has more cells{where} than the {width} columns that its first line names{hint}"


def _told(error: Exception) -> str:
    return str(error).strip().partition("\n")[0].removeprefix("Error tokenizing data. C error: ")[:200]


def _pointed(series: Any) -> Any:
    """Write 3,5 as 3.5 in a column of numbers: in a table with semicolons a comma stands before the decimals."""
    held = series.dropna().str.strip()
    numbers = held.str.fullmatch(_DECIMAL)
    if held.empty or not numbers.all() or not held.str.contains(",").any():
        return series
    return series.str.strip().str.replace(",", ".")


def _header(names: Iterable[str], path: Path) -> list[str]:
    """Read the first line; a label that a second column repeats, in any spelling, would be a feature too."""
    header = [name.strip() for name in names]
    if not any(header):
        raise UserError(f"{path} has no first line that names its columns")
    if not header[0] and all(header[1:]):
        raise UserError(
            f"the first column of {path} has no name: are these the numbers of rows that pandas writes? "
            "to_csv(..., index=False) leaves them out"
        )
    if any(len(name) > 100 or not name.isprintable() or not name for name in header):
        raise UserError(f"{path} has a column without a name that can be printed; its first line names the columns")
    spelled = [name.casefold() for name in header]
    if twice := [name for name, same in zip(header, spelled, strict=True) if spelled.count(same) > 1]:
        raise UserError(f"{path} has two columns called {twice[0][:50]!r}; every column needs a name of its own")
    return header


# ---- columns


def known(series: Any) -> Array:
    """Which cells have a value."""
    there: Array = pandas().notna(series.to_numpy())
    return there


def _several(series: Any) -> Array:
    """Which cells hold several values, as lists and records in a Parquet file do."""
    if series.dtype != object or pandas().api.types.infer_dtype(series, skipna=True) != "mixed":
        return np.zeros(len(series), dtype=bool)
    return np.array([isinstance(cell, list | tuple | set | dict | np.ndarray) for cell in series], dtype=bool)


def _insist_on_single(series: Any, where: str) -> None:
    several = _several(series)
    if several.any():
        row = int(np.flatnonzero(several)[0])
        raise UserError(
            f"{series.name} in row {row + 1} of {where} is {str(series.iloc[row])[:50]!r}, several values in one cell: "
            f"give each a column of its own, or leave the column out with --ignore {series.name}"
        )


def flat(table: Any) -> Any:
    """Write cells that hold several values as texts, which can be counted and compared."""
    lists = {name: series.map(str, na_action="ignore") for name, series in table.items() if _several(series).any()}
    return table.assign(**lists) if lists else table


def kind_of(series: Any, where: str, category: bool = False) -> Kind:
    """Tell what a column holds at one site; numbers among words are a mistake that somebody has to mend."""
    pd = pandas()
    _insist_on_single(series, where)
    there = known(series)
    if not there.any():
        return "empty"
    if category:
        return "category"
    if pd.api.types.is_datetime64_any_dtype(series):
        return "date"
    if pd.api.types.is_numeric_dtype(series) and not pd.api.types.is_bool_dtype(series):
        return "number"
    words = _texts(series)[there]
    numbers = ~np.isnan(pd.to_numeric(words, errors="coerce"))
    if numbers.all():
        return "number"
    if all(re.fullmatch(_DATE, word) for word in words):
        return "date"
    if numbers.mean() >= 0.5:
        row = int(np.flatnonzero(there)[~numbers][0])
        raise UserError(
            f"the column {series.name} of {where} has {int(numbers.sum())} numbers and {int((~numbers).sum())} cells "
            f"that are none, such as {str(series.iloc[row])[:50]!r} in row {row + 1}: leave a cell empty where a value "
            "is missing"
        )
    return "category"


def _texts(series: Any) -> Array:
    """A column's cells as texts; those of a CSV file are."""
    cells_: Array = series.to_numpy(dtype=object)
    if all(type(cell) is str for cell in cells_):
        return cells_
    return np.array([cell if type(cell) is str else str(cell) for cell in cells_], dtype=object)


def typed(frame: Any, as_written: Iterable[str]) -> Any:
    """Turn columns of texts that are all numbers into numbers, once; not those of which the spelling counts."""
    pd = pandas()
    numbers: dict[str, Array] = {}
    for name in frame.columns.difference([*as_written], sort=False):
        if pd.api.types.infer_dtype(frame[name], skipna=True) != "string":
            continue
        texts = frame[name].to_numpy(dtype=object)
        read: Array = pd.to_numeric(texts, errors="coerce")
        if bool((np.isnan(read) == pd.isna(texts)).all()):
            numbers[name] = read.astype(np.float64)
    rest = {name: numbers.get(name, frame[name]) for name in frame.columns}
    return pd.DataFrame(rest, index=frame.index, copy=False) if numbers else frame


def cells(series: Any, kind: str, where: str) -> Array:
    """Return a column's cells as numbers (NaN where missing; dates as days since 1970), or as words and None."""
    pd = pandas()
    _insist_on_single(series, where)
    if kind == "category":
        words = series[known(series)].map(_word)
        full = np.full(len(series), None, dtype=object)
        full[known(series)] = words.to_numpy(dtype=object)
        return full
    if kind == "date":
        days = pd.to_datetime(series, errors="coerce", utc=True, format="ISO8601" if series.dtype.kind != "M" else None)
        values: Array = (days - pd.Timestamp("1970-01-01", tz="UTC")) / pd.Timedelta(days=1)
        values = np.asarray(values, dtype=np.float64)
    elif series.dtype == np.float64:
        values = series.to_numpy(dtype=np.float64)
    else:
        values = pd.to_numeric(series, errors="coerce").to_numpy(dtype=np.float64, na_value=np.nan)
    bad = np.isnan(values) & known(series) | np.isinf(values)
    if bad.any():
        row = int(np.flatnonzero(bad)[0])
        wanted = "a date such as 2024-12-31" if kind == "date" else "a number"
        raise UserError(f"{series.name} in row {row + 1} of {where} is {str(series.iloc[row])[:50]!r}, not {wanted}")
    return values


def _word(value: Any) -> str:
    if isinstance(value, float) and value.is_integer():
        return str(int(value))
    return str(value).strip()[:100]


# ---- the target


def find_target(columns: Iterable[str], target: str | None, where: str) -> str:
    """Return the column that is learned: the one that was named, or `label`."""
    names = list(columns)
    if target is None and LABEL in names:
        return LABEL
    if target is None:
        listed = ", ".join(names[:_SHOWN]) + (", ..." if len(names) > _SHOWN else "")
        raise UserError(f"say with --target which column of {where} is to be learned: {listed}")
    insist_on(names, [target], where)
    return target


def insist_on(columns: Iterable[str], wanted: Iterable[str], where: str) -> None:
    """Refuse a column that is not there, with the nearest that is."""
    for name in wanted:
        if name not in (names := list(columns)):
            raise unknown(f"column of {where}", name, names)


def target_words(series: Any, where: str) -> tuple[str, list[str]]:
    """Return what a target holds (words, whole, number) and, of words and whole numbers, each row's as a text."""
    gone = int((~known(series)).sum())
    if gone:
        raise UserError(
            f"{series.name} is missing in {gone} of {len(series)} rows of {where}: leave rows out of which nobody "
            f"knows the answer (in a CSV file, cells that say {', '.join(MISSING[1:])} are missing too)"
        )
    kind = kind_of(series, where)
    if kind == "date":
        raise UserError(
            f"{series.name} of {where} holds dates, which are neither classes nor amounts: write the days from a "
            "beginning on as numbers, or learn another column"
        )
    if kind != "number":
        return "words", [_word(value) for value in series]
    values = cells(series, "number", where)
    if bool((values == np.floor(values)).all()) and bool((np.abs(values) < 2**53).all()):
        return "whole", [str(int(value)) for value in values]
    return "number", []


# ---- what a site tells


def announce(
    frame: Any, training: Array, target: str, features: Iterable[str], categories: Iterable[str], where: str
) -> Announcement:
    """Look at one site's table and say what leaves the site: counts, sums and frequent words of the training rows."""
    kind, labels = target_words(frame[target], where)
    distinct = list(dict.fromkeys(labels))
    few = kind == "words" or len(distinct) <= 10 * MOST_CLASSES
    return Announcement(
        target=target,
        kind=kind,
        labels=tuple(distinct) if few else tuple(distinct[: 10 * MOST_CLASSES]),
        columns={name: _column(frame[name], training, name in set(categories), where) for name in features},
    )


def _column(series: Any, training: Array, category: bool, where: str) -> Column:
    kind = kind_of(series, where, category)
    if kind == "empty":
        return Column(kind=kind, missing=int(training.sum()))
    values = cells(series, kind, where)
    if kind != "category" and (np.abs(values) > _LARGEST).any():
        row = int(np.flatnonzero(np.abs(values) > _LARGEST)[0])
        raise UserError(
            f"{series.name} in row {row + 1} of {where} is {str(series.iloc[row])[:50]!r}, and numbers beyond "
            f"{_LARGEST:g} cannot be scaled: leave the cell empty where a value is missing, or use another unit"
        )
    values = values[training]
    if kind == "category":
        words = [value for value in values if value is not None]
        often = tuple(sorted(word for word, count in Counter(words).items() if count >= OFTEN))
        return Column(kind=kind, known=len(words), missing=len(values) - len(words), values=often)
    held = values[~np.isnan(values)]
    if not len(held):
        return Column(kind="empty", missing=len(values))
    total = float(held.sum())
    squares = float(np.square(held - total / len(held)).sum())
    return Column(kind=kind, known=len(held), missing=len(values) - len(held), total=total, squares=squares)
