"""What the columns of tables hold, and which of them tell more than they should."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from fedgraft.base.errors import UserError
from fedgraft.data.datasets.formats import Array
from fedgraft.data.sources import frames as tables
from fedgraft.data.sources.frames import SET
from fedgraft.data.sources.source import Reading
from fedgraft.data.sources.splitting import column_of

CLOSE = 0.9
"""A correlation with a target from which on somebody should ask how it comes about."""
SHOWN = 6
Say = Callable[[str], None]


@dataclass(frozen=True)
class Part:
    """One column at one site: what it holds, and its cells that have a value."""

    kind: str
    rows: int
    known: Array
    odd: str | None = None

    @classmethod
    def of(cls, series: Any, site: str, category: bool) -> "Part":
        values = series.to_numpy()[tables.known(series)]
        try:
            return cls(tables.kind_of(series, site, category), len(series), values)
        except UserError as error:
            return cls("mixed", len(series), values, str(error))

    @cached_property
    def distinct(self) -> set[Any]:
        return set(self.known.tolist())

    @property
    def numbers(self) -> Array:
        """Its values as numbers, NaN where they are none."""
        return np.asarray(tables.pandas().to_numeric(self.known, errors="coerce"), dtype=np.float64)


def look(held: Mapping[str, Any], reading: Reading, say: Say) -> tuple[list[dict[str, Any]], list[str]]:
    """Return what is told of every column, and what somebody should look at."""
    told: list[dict[str, Any]] = []
    warnings: list[str] = []
    held = {site: tables.flat(table) for site, table in held.items()}
    names = dict.fromkeys(name for table in held.values() for name in table.columns)
    for number, name in enumerate(names, 1):
        say(f"looking at column {number} of {len(names)}")
        category = name in reading.categories
        parts = {site: Part.of(table[name], site, category) for site, table in held.items() if name in table.columns}
        told.append(_facts(name, parts, held, reading))
        if told[-1]["use"] == "input" and len(parts) == len(held):
            warnings += _suspicions(name, parts, held, reading.target or tables.LABEL)
    return told, [*warnings, *_gaps(told)]


def _facts(name: str, parts: Mapping[str, Part], held: Mapping[str, Any], reading: Reading) -> dict[str, Any]:
    kinds = dict.fromkeys(part.kind for part in parts.values() if part.kind != "empty")
    distinct = set().union(*(part.distinct for part in parts.values()))
    odd = next((part.odd for part in parts.values() if part.odd), None)
    return {
        "column": name,
        "use": _use(name, reading),
        "kind": " or ".join(kinds) or "empty",
        "missing": sum(len(table) - (len(parts[site].known) if site in parts else 0) for site, table in held.items()),
        "missing_at": [site for site in held if site not in parts or not len(parts[site].known)],
        "values": len(distinct),
        "range": _range(list(parts.values()), set(kinds), distinct),
        **({"problem": odd} if odd else {}),
    }


def _use(name: str, reading: Reading) -> str:
    if name == reading.target or (reading.target is None and name == tables.LABEL):
        return "target"
    if name == SET or name == column_of(reading.split):
        return "split"
    return "ignored" if name in reading.ignore else "input"


def _range(parts: Sequence[Part], kinds: set[str], distinct: set[Any]) -> str:
    if kinds == {"number"}:
        values = np.concatenate([part.numbers for part in parts])
        return f"{values.min():g} to {values.max():g}"
    words = sorted(map(str, distinct))
    if kinds == {"date"}:
        return f"{words[0][:10]} to {words[-1][:10]}"
    return ", ".join(word[:20] for word in words[:SHOWN]) + (", ..." if len(words) > SHOWN else "")


def _suspicions(name: str, parts: Mapping[str, Part], held: Mapping[str, Any], target: str) -> Iterator[str]:
    """Say what a column tells that it should not."""
    sets = [part.distinct for part in parts.values()]
    count, distinct = sum(len(part.known) for part in parts.values()), set().union(*sets)
    if len(sets) > 1 and len(distinct) > 1 and all(len(each) == 1 for each in sets):
        yield f"the column {name} has one value at each site: it tells sites apart and nothing else; --ignore {name}?"
    elif names_the_site(sets) and len(distinct) <= count / 2:
        yield f"the column {name} names the site: no two sites have a value in common; --ignore {name}?"
    if count > 20 and len(distinct) == count and not _fractions(distinct):
        yield f"the column {name} has another value in every row, as a number of a person has; --ignore {name}?"
    if not all(target in table.columns for table in held.values()):
        return
    how = ties(*_both(held, name, target))
    if how == 1:
        yield f"the column {name} tells {target} exactly: is it known before {target} is? --ignore {name}?"
    elif how > CLOSE:
        yield f"the column {name} goes with {target} (correlation {how:.2f}): is it known before? --ignore {name}?"


def _gaps(told: Iterable[Mapping[str, Any]]) -> Iterator[str]:
    for column in told:
        if column["missing_at"] and column["use"] == "input":
            yield f"the column {column['column']} has no value at {listed(column['missing_at'])}"


def names_the_site(sets: Sequence[set[Any]]) -> bool:
    """Whether a column has values at every site, and none at two."""
    return len(sets) > 1 and all(sets) and sum(map(len, sets)) == len(set().union(*sets))


def _fractions(values: set[Any]) -> bool:
    return any(not value.is_integer() if isinstance(value, float) else "." in str(value) for value in values)


def _both(held: Mapping[str, Any], name: str, target: str) -> tuple[Array, Array]:
    """A column and the target in all rows that have both."""
    x, y = (np.concatenate([table[each].to_numpy(dtype=object) for table in held.values()]) for each in (name, target))
    pd = tables.pandas()
    both = pd.notna(x) & pd.notna(y)
    return x[both], y[both]


def ties(x: Array, y: Array) -> float:
    """How closely a target follows from a column: 1 if exactly, value by value, by a threshold or on a line."""
    pd = tables.pandas()
    codes, labels = pd.factorize(y)
    if len(y) < 20 or len(labels) < 2:
        return 0.0
    numbers = np.asarray(pd.to_numeric(x, errors="coerce"), dtype=np.float64)
    if len(labels) > len(y) / 4:
        return _line(numbers, np.asarray(pd.to_numeric(y, errors="coerce"), dtype=np.float64))
    values, kinds = pd.factorize(x)
    if len(kinds) <= len(y) / 4 and len(np.unique(values * len(labels) + codes)) == len(kinds):
        return 1.0
    if len(labels) != 2 or not np.isfinite(numbers).all():
        return 0.0
    one, other = numbers[codes == 0], numbers[codes == 1]
    return float(one.max() < other.min() or other.max() < one.min())


def _line(x: Array, y: Array) -> float:
    """The correlation of two columns of amounts, as what it comes to: one on a line is 1."""
    if not (np.isfinite(x).all() and np.isfinite(y).all()) or len(np.unique(x)) < 3:
        return 0.0
    with np.errstate(over="ignore", invalid="ignore"):  # of numbers too large to be squared: no answer then
        found = abs(float(np.corrcoef(x, y)[0, 1]))
    if not np.isfinite(found):
        return 0.0
    return 1.0 if found > 0.999 else min(found, 0.99)


def listed(names: Sequence[str], most: int = SHOWN) -> str:
    """A few names, and how many more there are."""
    return ", ".join(names[:most]) + (f" and {len(names) - most} more" if len(names) > most else "")
