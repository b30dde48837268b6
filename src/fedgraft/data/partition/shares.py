"""From shares to counts: cut both files by one share matrix, redraw while a client gets too little, then repair.

A share matrix says which part of each class a client gets (clients x classes, columns sum to at most 1). The same
matrix cuts the training and the test file, so that a client is tested on the class distribution it was trained on.
Counts have three axes: files x clients x classes.
"""

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from fedgraft.base.errors import UserError

from .partition import Ints
from .scheme import require_whole

Shares = NDArray[np.float64]

MAX_REDRAWS = 1_000
"""So many draws are tried before the best of them is repaired."""

MAX_DRAWN_SHARES = 5_000_000
"""Redrawing also ends after so many single shares, a second or less, however many clients and classes there are."""


def require_minimum(name: str, asked: int | None, lowest: int = 1) -> None:
    """Refuse a minimum size that is neither left out nor a whole number."""
    if asked is not None:
        require_whole(name, asked, lowest)


def settle_minimum(name: str, asked: int | None, paper: int, samples: int, clients: int) -> int:
    """Settle a minimum size: what was asked for, else the paper's, or a quarter of a fair share if that is less."""
    if asked is None:
        return min(paper, max(1, samples // clients // 4))
    if asked * clients > samples:
        raise UserError(
            f"{name}={asked} for {clients} clients needs {asked * clients} samples, but there are {samples}: "
            f"choose {samples // clients} or less"
        )
    return asked


def cut_each(shares: Shares, sizes: Ints) -> Ints:
    """Round every count down; what is left over at the end of a class goes to nobody."""
    return np.floor(shares * sizes[:, None]).astype(np.int64)


def cut_all(shares: Shares, sizes: Ints) -> Ints:
    """Round the ends of the pieces down, so that every sample of a class whose shares sum to 1 goes to somebody."""
    return np.stack([pieces(shares, size) for size in sizes])


def cut_tiny(shares: Shares, sizes: Ints) -> Ints:
    """As ``cut_all``, fit for shares of less than one sample.

    Only those who got training samples of a class share its test samples. And each class begins at another fraction
    of a sample: else the last client would get the last sample of every class, and the first client none.
    """
    golden_ratio = (1 + 5**0.5) / 2
    start = golden_ratio * np.arange(1, shares.shape[1] + 1) % 1
    train_sizes, *other_sizes = sizes
    train = pieces(shares, train_sizes, start)
    trained = shared_out(np.where(train > 0, shares, 0.0)) * shares.sum(axis=0)
    return np.stack([train, *(pieces(trained, size, start) for size in other_sizes)])


def pieces(shares: Shares, sizes: Ints, start: Shares | float = 0.0) -> Ints:
    """Cut classes of these sizes into pieces one after the other (along the first axis of the shares)."""
    # 0.29 * 100 is a hair below 29: without rounding first, exact shares would lose a sample.
    ends = np.floor(np.round(np.cumsum(shares, axis=0) * sizes, 6) + start).astype(np.int64)
    return np.diff(ends, axis=0, prepend=0)


def shared_out(weights: NDArray[np.float64]) -> Shares:
    """Divide each class in proportion to the weights; a class without any weight stays unused."""
    return np.asarray(weights / np.maximum(weights.sum(axis=0), np.finfo(float).tiny))


def draw_until_enough(
    draw: Callable[[], Shares],
    cut: Callable[[Shares, Ints], Ints],
    sizes: Ints,
    minimum: tuple[int, ...],
    may_hold: NDArray[np.bool_],
    max_redraws: int = MAX_REDRAWS,
) -> Ints:
    """Draw and cut shares until every client has the ``minimum`` of each file; if none will do, repair the best draw.

    ``sizes`` are files x classes; ``may_hold`` (clients x classes) says which classes a repair may give to a client.
    """
    best, best_met = None, -1.0
    for _ in range(max(1, min(max_redraws, MAX_DRAWN_SHARES // may_hold.size))):
        shares = draw()
        counts = cut(shares, sizes)
        met = float((counts.sum(axis=2).min(axis=1) / minimum).min())
        if met >= 1:
            return counts
        if met > best_met:
            best, best_met = shares, met
    assert best is not None
    # With many clients most shares are below one sample; rounding each one down would leave them all empty-handed.
    return repair(cut_tiny(best, sizes), sizes, minimum, may_hold)


def repair(counts: Ints, sizes: Ints, minimum: tuple[int, ...], may_hold: NDArray[np.bool_]) -> Ints:
    """Move samples from the richest clients to those below the minimum, the poorest first, until there are none.

    A gift is the same share of one class in every file, preferably of the class that the poor client has most of:
    it stays as one-sided as it was drawn. No giver falls below the minimum, so every gift brings the end nearer.
    Nothing here is random.
    """
    counts = counts.copy()
    needed = np.array(minimum)[:, None]
    while ((spare := counts.sum(axis=2) - needed) < 0).any():
        poor = int(np.argmin((spare / needed).min(axis=0)))
        kind, giver, gift = _find_gift(poor, counts, spare, sizes, may_hold[poor])
        counts[:, giver, kind] -= gift
        counts[:, poor, kind] += gift
    return counts


def _find_gift(poor: int, counts: Ints, spare: Ints, sizes: Ints, may_hold: NDArray[np.bool_]) -> tuple[int, int, Ints]:
    """Find a class, a giver and a number of samples of each file that help the poor client."""
    lack = np.maximum(-spare[:, poor], 0)
    in_stock = np.minimum(counts, np.maximum(spare, 0)[:, :, None]).sum(axis=0).max(axis=0)
    preferred = [kind for kind in np.lexsort((-in_stock, -counts[:, poor].sum(axis=0))) if may_hold[kind]]
    # A gift of one file only would part the test samples of the class from its training samples: the last resort.
    for files in (np.all, np.any):
        for kind in preferred:
            share = (lack / np.maximum(sizes[:, kind], 1)).max()
            wanted = np.ceil(share * sizes[:, kind]).astype(np.int64)
            gifts = np.clip(np.minimum(counts[:, :, kind], spare), 0, wanted[:, None])
            helps = files(gifts > 0, axis=0) & (gifts[lack > 0] > 0).any(axis=0)
            if helps.any():
                giver = int(np.argmax(np.where(helps, spare.sum(axis=0), -1)))
                return int(kind), giver, gifts[:, giver]
    raise UserError(
        f"there is no way to give client {poor} enough samples of the classes it may hold: "
        f"choose fewer clients or smaller minimum sizes"
    )
