"""Small federations for all tests, and one thread: two threads fighting for a core make a suite crawl."""

import os
from collections.abc import Callable

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
import torch

from fedgraft.core.method import Spec
from fedgraft.core.model import Architecture
from fedgraft.core.settings import Training
from fedgraft.data.federation import Federation, Site, own_data

torch.set_num_threads(1)

CLASSES = 3


def blobs(sizes: tuple[int, ...] = (20, 13, 31, 8), *, seed: int = 0, dims: int = 6) -> Federation:
    """A federation of Gaussian classes: client i lacks class i, so that its best model is its own."""
    rng = np.random.default_rng(seed)
    centres = 2 * rng.standard_normal((CLASSES, dims))

    def draw(client: int, count: int) -> tuple[np.ndarray, np.ndarray]:
        held = [c for c in range(CLASSES) if c != client % CLASSES]
        y = np.array([held[i % len(held)] for i in range(count)])
        return (centres[y] + rng.standard_normal((count, dims))).astype(np.float32), y

    return own_data(
        [Site(*draw(client, size), *draw(client, 10)) for client, size in enumerate(sizes)],
        classes=CLASSES,
        name="blobs",
    )


def small_network(dims: int = 6, *, norm: bool = False) -> Callable[[], torch.nn.Module]:
    def build() -> torch.nn.Module:
        layers: list[torch.nn.Module] = [torch.nn.Linear(dims, 5)]
        if norm:
            layers.append(torch.nn.BatchNorm1d(5))
        return torch.nn.Sequential(*layers, torch.nn.ReLU(), torch.nn.Linear(5, CLASSES))

    return build


def specification(
    fed: Federation,
    *,
    rounds: int = 3,
    seed: int = 0,
    norm: bool = False,
    build: Callable[[], torch.nn.Module] | None = None,
    **settings: object,
) -> Spec:
    build = build or small_network(fed.input_shape[0], norm=norm)
    with torch.random.fork_rng():
        dtype = next(build().parameters()).dtype
    architecture = Architecture(build, fed.example.to(dtype))
    # not validated: some tests have no rate at all
    training = Training().but(**({"lr": 0.1, "momentum": 0.5, "epochs": 2, "batch_size": 4} | settings))
