"""A federation small enough to be run thousands of times: four clients with Gaussian classes."""

from pathlib import Path
from typing import Any

import numpy as np
import torch

import fedgraft as fg
from fedgraft.data.federation import Federation
from fedgraft.runs.run import Run


def small_federation() -> Federation:
    """Four clients of different size; client i lacks class i."""
    rng = np.random.default_rng(0)
    centres = 2 * rng.standard_normal((3, 6))

    def draw(client: int, count: int) -> tuple[np.ndarray, np.ndarray]:
        y = np.array([c for c in range(3) if c != client % 3] * count)[:count]
        return (centres[y] + rng.standard_normal((count, 6))).astype(np.float32), y

    sites = [fg.Site(*draw(c, size), *draw(c, 6)) for c, size in enumerate((9, 5, 12, 8))]
    return fg.own_data(sites, task="classification:3")


def network() -> torch.nn.Module:
    """Two layers, with statistics between them."""
    return torch.nn.Sequential(
        torch.nn.Linear(6, 4), torch.nn.BatchNorm1d(4), torch.nn.ReLU(), torch.nn.Linear(4, 3)
    )  # fmt: skip


def small_run(method: str, *, rounds: int, out: Path | None = None, **settings: Any) -> Run:
    """Run a method on it."""
    return fg.run(
        method, small_federation(), model=network, rounds=rounds, out=out, workers=1, batch_size=8, epochs=1, **settings
    )
