"""The papers' own cells on the real label files."""

import os
from pathlib import Path

import numpy as np
import pytest

from fedgraft.data.partition import SCHEMES

pytestmark = pytest.mark.real_data


def real_labels(name: str) -> tuple[np.ndarray, np.ndarray]:
    path = Path(os.environ.get("FEDGRAFT_DATA", ".")) / f"{name}.npz"
    if not path.exists():
        pytest.skip(f"FEDGRAFT_DATA does not hold {name}.npz")
    with np.load(path) as data:
        return data["y_train"], data["y_test"]


@pytest.mark.parametrize(
    ("name", "text", "clients", "min_train", "min_test"),
    [
        ("fashion-mnist", "pathological:2", 20, 129, 3),
        ("fashion-mnist", "dirichlet:0.1", 50, 129, 3),
        ("cifar10", "dirichlet:0.1", 20, 129, 3),
        ("cifar10", "dirichlet:0.1", 50, 129, 3),
        ("cifar100", "pathological:10", 50, 129, 3),
        ("cifar100", "dirichlet:0.01", 50, 129, 3),
        ("mnist", "pathological-random:2", 12, 1, 1),
        ("organamnist", "practical", 12, 200, 100),
        ("mnist", "dirichlet-balanced:0.01", 8, 30, 10),
        ("cifar10", "dominant-1:20", 20, 600, 300),
        ("cifar10", "dominant-3:20", 100, 300, 300),
        ("cifar100", "dominant-1*:20", 20, 4000, 300),
        ("cifar100", "dirichlet-client:0.3", 20, 1200, 300),
        ("fashion-mnist", "dirichlet:0.1", 1000, 15, 2),
    ],
)
def test_cells_of_the_papers(name: str, text: str, clients: int, min_train: int, min_test: int) -> None:
    partition = SCHEMES.make(text).split(*real_labels(name), clients=clients, seed=0)
    assert partition.clients == clients
    assert min(map(len, partition.train)) >= min_train
    assert min(map(len, partition.test)) >= min_test
