"""What lies at sites, before anything is trained: who has what, and what somebody should look at first."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from fedgraft.base.errors import UserError
from fedgraft.core.task import Task
from fedgraft.data.datasets.dataset import task_of
from fedgraft.data.datasets.formats import Array, Arrays
from fedgraft.data.sources import beside
from fedgraft.data.sources import frames as tables
from fedgraft.data.sources.fitted import Fitted
from fedgraft.data.sources.frames import SET
from fedgraft.data.sources.source import Reading, Source
from fedgraft.data.sources.splitting import column_of

FEW_TESTS = 20
"""Test samples below which a figure moves in steps of more than five points."""
FAR_APART = 100
"""How many times as large a column's deviation may be as another's before they hinder each other."""
_SHOWN = 6


@dataclass(frozen=True)
class Inspection:
    """What was found: ``problem`` is why it cannot be trained on as it is."""

    source: str
    task: str | None
    sample: str | None
    sites: list[dict[str, Any]]
    columns: list[dict[str, Any]]
    warnings: list[str]
    problem: str | None = None

    def to_json(self) -> dict[str, Any]:
        """Return everything for programs."""
        return asdict(self)


def inspect(source: Source, reading: Reading, task: str | None = None, seed: int = 0) -> Inspection:
    """Look at the data of all sites of a source."""
    held = source.frames(reading)
    columns = [] if held is None else list(_columns(held, reading))
    warnings = [] if held is None else [*_suspicions(held, reading), *_gaps(columns)]
    try:
        found = source.read(reading, task, seed)
        arrays = {site.name or str(number): site.arrays(number, found.task or task)
                  for number, site in enumerate(found.sites)}  # fmt: skip
        learned = task_of(arrays, found.task or task)
    except UserError as error:
        rows = [] if held is None else [{"site": site, "rows": len(table)} for site, table in held.items()]
        return Inspection(source.name, task, None, rows, columns, warnings, str(error))
    first = next(iter(arrays.values()))["x_train"]
    sample = f"{first.dtype} {'x'.join(map(str, first.shape[1:]))}"
    sites = [_site(name, each, learned, found.fitted) for name, each in arrays.items()]
    warnings += [*beside(source.path, source), *found.notes, *_doubts(arrays, learned, scaled=held is not None)]
    return Inspection(source.name, learned.name, sample, sites, columns, warnings)


def _site(name: str, held: Arrays, task: Task, fitted: Fitted | None) -> dict[str, Any]:
    words = {"train": "train", "val": "validation", "test": "test"}
    counts = {word: len(held[f"y_{part}"]) for part, word in words.items() if f"y_{part}" in held}
    y = np.concatenate([values for key, values in held.items() if key.startswith("y")])
    if task.has_classes:
        named = fitted.labels if fitted is not None and fitted.labels else [str(n) for n in range(task.classes)]
        numbers = np.bincount(y, minlength=task.classes).tolist()
        classes = {name: count for name, count in zip(named, numbers, strict=False) if count}
        return {"site": name, **counts, "classes": classes}
    if y.dtype.kind == "f":
        return {"site": name, **counts, "mean": float(y.mean()), "deviation": float(y.std())}
    return {"site": name, **counts}


# ---- columns of tables


def _columns(held: Mapping[str, Any], reading: Reading) -> Iterator[dict[str, Any]]:
    for name in dict.fromkeys(name for table in held.values() for name in table.columns):
        parts = {site: table[name] for site, table in held.items() if name in table.columns}
        kinds: dict[str, str] = {}
        odd = None
        for site, series in parts.items():
            try:
                kinds[site] = tables.kind_of(series, site, name in reading.categories)
            except UserError as error:
                kinds[site], odd = "mixed", str(error)
        known = {site: series[tables.known(series)] for site, series in parts.items()}
        distinct = sorted({str(value) for series in known.values() for value in series.unique()})
        yield {
            "column": name,
            "use": _use(name, reading, held),
            "kind": " or ".join(dict.fromkeys(kind for kind in kinds.values() if kind != "empty")) or "empty",
            "missing": sum(len(table) - len(known.get(site, ())) for site, table in held.items()),
            "missing_at": [site for site, table in held.items() if site not in known or known[site].empty],
            "values": len(distinct),
            "range": _range(known, set(kinds.values()) - {"empty"}, distinct),
            **({"problem": odd} if odd else {}),
        }


def _use(name: str, reading: Reading, held: Mapping[str, Any]) -> str:
    if name == reading.target or (reading.target is None and name == tables.LABEL):
        return "target"
    if name == SET or name == column_of(reading.split):
        return "split"
    return "ignored" if name in reading.ignore else "input"


def _range(known: Mapping[str, Any], kinds: set[str], distinct: Sequence[str]) -> str:
    if kinds == {"number"}:
        values = np.concatenate([tables.cells(series, "number", site) for site, series in known.items()])
        return f"{values.min():g} to {values.max():g}"
    if kinds == {"date"}:
        return f"{distinct[0][:10]} to {distinct[-1][:10]}"
    return ", ".join(value[:20] for value in distinct[:_SHOWN]) + (", ..." if len(distinct) > _SHOWN else "")


def _suspicions(held: Mapping[str, Any], reading: Reading) -> Iterator[str]:
    """Columns that tell more than they should."""
    target = reading.target or tables.LABEL
    for name in dict.fromkeys(name for table in held.values() for name in table.columns):
        if _use(name, reading, held) != "input" or any(name not in table.columns for table in held.values()):
            continue
        words = {site: table[name].astype(str)[tables.known(table[name])] for site, table in held.items()}
        count, distinct = sum(map(len, words.values())), set().union(*(set(each) for each in words.values()))
        if names_the_site(words.values()) and len(distinct) <= count / 2:
            yield f"the column {name} names the site: no two sites have a value in common; --ignore {name}?"
        if count > 20 and len(distinct) == count and not _fractions(words.values()):
            yield f"the column {name} has another value in every row, as a number of a person has; --ignore {name}?"
        if all(target in table.columns for table in held.values()) and tells_the_target(held, name, target):
            yield f"the column {name} tells {target} exactly: is it known before {target} is? --ignore {name}?"


def _gaps(columns: Iterable[Mapping[str, Any]]) -> Iterator[str]:
    for column in columns:
        if column["missing_at"] and column["use"] == "input":
            yield f"the column {column['column']} has no value at {_listed(column['missing_at'])}"


def names_the_site(words: Iterable[Any]) -> bool:
    """Whether a column has values at every site, and none at two."""
    sets = [set(each) for each in words]
    return len(sets) > 1 and all(sets) and sum(map(len, sets)) == len(set().union(*sets))


def _fractions(words: Iterable[Any]) -> bool:
    return any("." in word for each in words for word in each)


def tells_the_target(held: Mapping[str, Any], name: str, target: str) -> bool:
    """Whether the target follows from one column: value by value, by a threshold, or on a line."""
    pd = tables.pandas()
    both = pd.concat([table[[name, target]] for table in held.values()], ignore_index=True).dropna().astype(str)
    if len(both) < 20 or both[target].nunique() < 2:
        return False
    x, y = (pd.to_numeric(both[each], errors="coerce") for each in (name, target))
    if both[target].nunique() > len(both) / 4:
        return bool(x.notna().all() and y.notna().all() and x.nunique() > 2 and abs(np.corrcoef(x, y)[0, 1]) > 0.999)
    if both[name].nunique() <= len(both) / 4 and bool((both.groupby(name)[target].nunique() == 1).all()):
        return True
    groups = [x[both[target] == label] for label in both[target].unique()]
    if x.isna().any() or len(groups) != 2:
        return False
    return bool(groups[0].max() < groups[1].min() or groups[1].max() < groups[0].min())


# ---- samples of any source


def _doubts(arrays: Mapping[str, Arrays], task: Task, *, scaled: bool) -> Iterator[str]:
    if task.has_classes:
        for site, held in arrays.items():
            if len(np.unique(held["y_train"])) == 1 and not scaled:  # tables say it themselves, by the class's name
                yield f"every training sample of {site} is of one class"
    few = [site for site, held in arrays.items() if len(held["y_test"]) < FEW_TESTS]
    if few:
        yield f"fewer than {FEW_TESTS} test samples at {_listed(few)}: figures of single sites move in large steps"
    repeated = {site: count for site, count in _repeated(arrays) if count}
    if repeated:
        listed = _listed([f"{site} ({count})" for site, count in repeated.items()])
        yield f"test samples that are also among somebody's training samples, which flatters: {listed}"
    first = next(iter(arrays.values()))["x_train"]
    if first.dtype == np.float32 and first.ndim == 2 and not scaled:
        deviations = np.concatenate([held["x_train"] for held in arrays.values()]).astype(np.float64).std(axis=0)
        moving = deviations[deviations > 0]
        if len(moving) and moving.max() > FAR_APART * moving.min():
            yield (
                f"columns are on very different scales (deviations from {moving.min():.2g} to {moving.max():.2g}), and "
                "arrays are taken as they are: scale them first; tables are scaled"
            )


def _repeated(arrays: Mapping[str, Arrays]) -> Iterator[tuple[str, int]]:
    """How many test samples of each site are, bit by bit and with their target, among the training samples of any."""
    trained = set().union(*(set(_marks(held, "train")) for held in arrays.values()))
    for site, held in arrays.items():
        yield site, sum(mark in trained for mark in _marks(held, "test"))


def _marks(held: Arrays, part: str) -> list[bytes]:
    x: Array = held[f"x_{part}"]
    y: Array = held[f"y_{part}"]
    return [a.tobytes() + b.tobytes() for a, b in zip(x, y, strict=True)]


def _listed(names: Sequence[str]) -> str:
    return ", ".join(names[:_SHOWN]) + (f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else "")
