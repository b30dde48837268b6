"""A partition as a picture for the terminal: one row per client, one bar per class."""

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import ArrayLike

from .partition import Ints, Partition

if TYPE_CHECKING:
    from rich.table import Table

BARS = "▁▂▃▄▅▆▇█"
NONE = "·"

_NUMBERS = ("train", "test", "classes", "entropy")
_GAP = 2
_MOST_ROWS = 60


def draw(partition: Partition, y_train: ArrayLike, y_test: ArrayLike, width: int = 80) -> "Table":
    """Draw the training samples of each client by class, with sizes, classes held and label entropy.

    The height of a bar grows with the square root of the count, so that small counts stay visible beside large
    ones. Where the classes do not fit into ``width``, neighbouring ones share a bar.
    """
    from rich.table import Table
    from rich.text import Text

    labels = np.concatenate([np.asarray(y_train), np.asarray(y_test)])
    train, test = partition.counts(labels)
    classes = train.shape[1]
    numbers = [
        (str(own.sum()), str(tested.sum()), str(np.count_nonzero(own)), f"{label_entropy(own):.2f}")
        for own, tested in zip(train, test, strict=True)
    ]
    number_widths = [max(map(len, column)) for column in zip(_NUMBERS, *numbers, strict=True)]
    room = max(8, width - len("client") - sum(number_widths) - _GAP * (len(_NUMBERS) + 1))
    classes_per_bar = -(-classes // room)
    bars = np.add.reduceat(train, np.arange(0, classes, classes_per_bar), axis=1)
    cell = min(3, room // bars.shape[1])

    table = Table(
        box=None,
        pad_edge=False,
        padding=(0, _GAP, 0, 0),
        title=Text(f"{partition.scheme}, seed {partition.seed}, {partition.clients} clients"),
        title_justify="left",
        caption=_caption(partition, train, bars, classes_per_bar, len(labels)),
        caption_justify="left",
    )
    table.add_column("client", justify="right", no_wrap=True)
    table.add_column(header(classes, cell), no_wrap=True)
    for name in _NUMBERS:
        table.add_column(name, justify="right", no_wrap=True)
    for client in range(min(partition.clients, _MOST_ROWS)):
        table.add_row(str(client), marks(bars[client], int(bars.max()), cell), *numbers[client])
    if partition.clients > _MOST_ROWS:
        table.add_row("…", f"{partition.clients - _MOST_ROWS} more")
    return table


def label_entropy(counts: Ints) -> float:
    """Return the entropy of the labels in bits: 0 for one class, log2(K) for K classes of equal size."""
    present = counts[counts > 0] / counts.sum()
    return abs(float((present * np.log2(present)).sum()))


def header(classes: int, cell: int) -> str:
    """Name the classes above their marks, ``cell`` characters for each."""
    if cell == 3:
        return "".join(str(kind).ljust(cell) for kind in range(classes))
    return f"class 0 … {classes - 1}"


def marks(counts: Ints, largest: int, cell: int) -> str:
    """Draw counts as bars of ``cell`` characters; the height grows with the square root."""
    heights = np.ceil(np.sqrt(counts / largest) * len(BARS)).astype(int)
    bars = (NONE if height == 0 else BARS[height - 1] * max(1, cell - 1) for height in heights)
    return "".join(bar.ljust(cell) for bar in bars)


def _caption(partition: Partition, train: Ints, bars: Ints, classes_per_bar: int, samples: int) -> str:
    sizes = train.sum(axis=1)
    used = len(np.unique(np.concatenate([*partition.train, *partition.test])))
    shared = f"; {classes_per_bar} classes share a bar" if classes_per_bar > 1 else ""
    return (
        f"{NONE} none, {BARS[0]} few, {BARS[-1]} {bars.max()} training samples{shared}\n"
        f"training samples per client: {sizes.min()} to {sizes.max()}, median {np.median(sizes):.0f}; "
        f"entropy in bits\n"
        f"{used} of {samples} samples are used, for training or testing"
    )
