"""The picture of a partition in the terminal."""

import io

import numpy as np
import pytest
from rich.console import Console

from fedgraft.data.partition import IID, Dirichlet, Partition, draw
from fedgraft.data.partition.picture import label_entropy


def lines(partition: Partition, y: tuple[np.ndarray, np.ndarray], width: int = 80) -> list[str]:
    screen = io.StringIO()
    Console(file=screen, width=200).print(draw(partition, *y, width=width))
    return [line.rstrip() for line in screen.getvalue().splitlines()]


def test_a_small_picture_mark_by_mark() -> None:
    y = np.array([0] * 64 + [1] * 16 + [2]), np.array([0, 1])
    partition = Partition("by hand", 0, (np.arange(64), np.arange(64, 81)), (np.array([81]), np.array([82])))
    title, header, first, second, *_ = lines(partition, y)
    assert "by hand, seed 0, 2 clients" in title
    assert header.split() == ["client", "0", "1", "2", "train", "test", "classes", "entropy"]
    # Square roots of 64, 16 and 1 are as 8 : 4 : 1, and there are eight heights.
    assert first.split() == ["0", "██", "·", "·", "64", "1", "1", "0.00"]
    assert second.split()[:6] == ["1", "·", "▄▄", "▁▁", "17", "1"]


def test_20_clients_with_10_classes_fit_80_columns() -> None:
    y = np.arange(50_000) % 10, np.arange(10_000) % 10
    picture = lines(Dirichlet(0.1).split(*y, clients=20, seed=0), y)
    assert max(map(len, picture)) <= 80
    assert sum(line.split()[:1] == [str(client)] for client in range(20) for line in picture) == 20
    assert not any("…" in line for line in picture)


@pytest.mark.parametrize("width", [60, 80, 120])
def test_100_classes_share_bars_and_many_clients_are_cut_off(width: int) -> None:
    y = np.arange(5_000) % 100, np.arange(1_000) % 100
    picture = lines(IID().split(*y, clients=100, seed=0), y, width)
    assert max(map(len, picture)) <= width
    assert any("class 0 … 99" in line for line in picture)
    assert any("40 more" in line for line in picture)
    assert any("classes share a bar" in line for line in picture)
    assert any("6000 of 6000 samples are used" in line for line in picture)


def test_entropy_of_labels() -> None:
    assert label_entropy(np.array([5, 0])) == 0
    assert label_entropy(np.array([3, 3, 3, 3])) == 2
    np.testing.assert_allclose(label_entropy(np.array([1, 1, 2])), 1.5)
