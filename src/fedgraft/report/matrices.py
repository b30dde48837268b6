"""What the methods let us see in every round, packed so that a page can hold it."""

import base64
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from fedgraft.methods import METHODS
from fedgraft.runs.comparison import Comparison

Array = np.ndarray[Any, Any]
LEVELS = 65534
MISSING = 65535


@dataclass(frozen=True, eq=False)
class Observation:
    """One named tensor of one method, for every seed: (rounds, rows, slices, columns), or (rounds, rows) for lines."""

    label: str
    name: str
    meaning: str
    values: dict[int, Array]

    @property
    def is_matrix(self) -> bool:
        return next(iter(self.values.values())).ndim == 4

    @property
    def shape(self) -> tuple[int, int, int]:
        """Rows, slices, columns."""
        first = next(iter(self.values.values()))
        rows, slices, columns = (*first.shape[1:], 1, 1)[:3]
        return int(rows), int(slices), int(columns)


def observations(comparison: Comparison[Any]) -> list[Observation]:
    """All that the methods of a comparison let us see."""
    found = []
    for label, each in comparison.runs.items():
        names = sorted(set.intersection(*(set(run.observed) for run in each)))
        for name in names:
            values = {run.config.seed: _arranged(np.asarray(run.observed[name])) for run in each}
            if len({array.shape for array in values.values()}) == 1:
                known = METHODS.get(each[0].config.method)
                shows = next(iter(comparison.facts[label].values())).shows or (known.shows if known else {})
                found.append(Observation(label, name, shows.get(name, ""), values))
    return found


def _arranged(array: Array) -> Array:
    """Bring a tensor into one of two shapes: figures per round, or matrices per round, in slices where it has more.

    In double precision, in which no difference of its numbers overflows; what is not finite is missing.
    """
    array = np.where(np.isfinite(array), array.astype(np.float64), np.nan)
    if array.ndim <= 2:
        return array.reshape(len(array), -1)
    return array.reshape(len(array), array.shape[1], -1, array.shape[-1])


def fair_share(arrays: Iterable[Array], total: int) -> int:
    """The largest budget for each array with which all need at most ``total``: small ones leave theirs over."""
    needs = sorted(int(_per_round(array) * len(array)) + 1 for array in arrays)
    for position, need in enumerate(needs):
        share = total // (len(needs) - position)
        if need > share:
            return share
        total -= need
    return needs[-1] if needs else total


def _per_round(array: Array) -> float:
    """Characters that one round takes: two bytes for a value, four characters for three bytes."""
    return max(1, int(array[0].size)) * 8 / 3


def pack(array: Array, budget: int) -> dict[str, Any] | None:
    """Pack as many rounds as fit into ``budget`` characters, the first and the last among them; none if two do not fit.

    Values become whole numbers of 16 bits between the smallest and the largest: a 65,000th of the range is far
    below what anybody can see.
    """
    rounds = _kept(len(array), int(budget / _per_round(array)))
    if not rounds:
        return None
    kept = np.asarray(array[np.array(rounds) - 1], dtype=np.float64)
    finite = np.isfinite(kept)
    low, high = (float(kept[finite].min()), float(kept[finite].max())) if finite.any() else (0.0, 0.0)
    levels = np.full(kept.shape, MISSING, dtype="<u2")
    levels[finite] = np.round((kept[finite] - low) / ((high - low) or 1.0) * LEVELS)
    data = base64.b64encode(levels.tobytes()).decode()
    return {"rounds": rounds, "of": len(array), "low": low, "high": high, "data": data}


def _kept(rounds: int, affordable: int) -> Sequence[int]:
    if affordable >= rounds:
        return list(range(1, rounds + 1))
    if affordable < 2:
        return []
    return sorted({int(number) for number in np.linspace(1, rounds, affordable).round()})
