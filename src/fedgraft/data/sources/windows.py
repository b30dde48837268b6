"""Windows: samples that are made of consecutive rows of a table, or of consecutive characters."""

import numpy as np

from fedgraft.base.errors import UserError
from fedgraft.data.datasets.formats import Array, Arrays
from fedgraft.data.sources.source import FEWEST, Reading


def in_order(rows: int, reading: Reading, site: str) -> Array:
    """Train on the first rows and test on the last: neighbours are alike, and drawn at random they would tell."""
    if rows < FEWEST:
        raise UserError(f"{site} has {rows} rows, too few to split: a site needs {FEWEST}")
    border = rows - min(max(round(reading.test_share * rows), 1), rows - 1)
    return np.where(np.arange(rows) < border, "train", "test")


def stretches(order: Array, parts: Array, group: Array) -> list[Array]:
    """Cut the rows, in their order, wherever the part or the group changes."""
    marks = [(parts[row], group[row]) for row in order]
    borders = [at for at in range(1, len(order)) if marks[at] != marks[at - 1]]
    return np.split(order, borders)


def starts(length: int, window: int) -> range:
    """Where windows begin: each overlaps the next by half."""
    return range(0, length - window + 1, max(1, window // 2))


def of_rows(x: Array, y: Array, parts: Array, runs: list[Array], window: int, site: str) -> Arrays:
    """Make samples of ``window`` rows x columns; the target is that of the last row."""
    made: dict[str, list[Array]] = {}
    for run in runs:
        part = str(parts[run[0]])
        for start in starts(len(run), window):
            rows = run[start : start + window]
            made.setdefault(f"x_{part}", []).append(x[rows])
            made.setdefault(f"y_{part}", []).append(y[rows[-1]])
    for part in ("train", "test"):
        if f"x_{part}" not in made:
            raise UserError(f"{site} has no {window} rows in a row to {part} on: choose a shorter --window")
    return {name: np.stack(values) for name, values in made.items()}
