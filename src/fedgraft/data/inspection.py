"""What lies at sites, before anything is trained: who has what, and what somebody should look at first."""

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from fedgraft.base.errors import UserError
from fedgraft.core.task import Task
from fedgraft.data import columns as tables
from fedgraft.data.columns import Say, listed
from fedgraft.data.datasets.dataset import task_of
from fedgraft.data.datasets.formats import Array, Arrays
from fedgraft.data.sources import beside
from fedgraft.data.sources.fitted import Fitted
from fedgraft.data.sources.source import Reading, Source

FEW_TESTS = 20
"""Test samples below which a figure moves in steps of more than five points."""
FAR_APART = 100
"""How many times as large a column's deviation may be as another's before they hinder each other."""


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


def _nobody(sentence: str) -> None:
    """Nobody listens."""


def inspect(source: Source, reading: Reading, task: str | None = None, seed: int = 0, say: Say = _nobody) -> Inspection:
    """Look at the data of all sites of a source; ``say`` is told what is being done."""
    say("reading")
    held = source.frames(reading)
    columns, warnings = ([], []) if held is None else tables.look(held, reading, say)
    say("preparing samples")
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
        return {"site": name, **counts, "mean": float(y.mean(dtype=float)), "deviation": float(y.std(dtype=float))}
    return {"site": name, **counts}


# ---- samples of any source


def _doubts(arrays: Mapping[str, Arrays], task: Task, *, scaled: bool) -> Iterator[str]:
    if task.has_classes:
        for site, held in arrays.items():
            if len(np.unique(held["y_train"])) == 1 and not scaled:  # tables say it themselves, by the class's name
                yield f"every training sample of {site} is of one class"
    few = [site for site, held in arrays.items() if len(held["y_test"]) < FEW_TESTS]
    if few:
        yield f"fewer than {FEW_TESTS} test samples at {listed(few)}: figures of single sites move in large steps"
    for whose, repeated in _repeated(arrays).items():
        counts = listed([f"{site} ({count})" for site, count in repeated.items()])
        yield f"test samples that are also among {whose} training samples, which flatters: {counts}"
    first = next(iter(arrays.values()))["x_train"]
    if first.dtype == np.float32 and first.ndim == 2 and not scaled:
        deviations = np.concatenate([held["x_train"] for held in arrays.values()]).astype(np.float64).std(axis=0)
        moving = deviations[deviations > 0]
        if len(moving) and moving.max() > FAR_APART * moving.min():
            yield (
                f"columns are on very different scales (deviations from {moving.min():.2g} to {moving.max():.2g}), and "
                "arrays are taken as they are: scale them first; tables are scaled"
            )


def _repeated(arrays: Mapping[str, Arrays]) -> dict[str, dict[str, int]]:
    """How many test samples of each site are, bit by bit and with their target, among its own or others' training."""
    owners: dict[bytes, set[str]] = {}
    for site, held in arrays.items():
        for mark in _marks(held, "train"):
            owners.setdefault(mark, set()).add(site)
    found: dict[str, dict[str, int]] = {}
    for site, held in arrays.items():
        for trained_by in filter(None, (owners.get(mark) for mark in _marks(held, "test"))):
            counts = found.setdefault("the site's own" if site in trained_by else "another site's", {})
            counts[site] = counts.get(site, 0) + 1
    return found


def _marks(held: Arrays, part: str) -> list[bytes]:
    x: Array = held[f"x_{part}"]
    y: Array = held[f"y_{part}"]
    return [a.tobytes() + b.tobytes() for a, b in zip(x, y, strict=True)]
