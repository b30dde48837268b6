"""What every contestant has in common: the work, the textbook network, and taking turns.

It needs numpy and torch only, for it runs in the environment of each peer.
"""

import json
import os
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn


@dataclass(frozen=True)
class Work:
    """FedAvg on images: client i holds the samples from ``edges[i]`` to ``edges[i + 1]``."""

    images: np.ndarray
    labels: np.ndarray
    edges: np.ndarray
    test_images: np.ndarray
    test_labels: np.ndarray
    weights: dict[str, np.ndarray]
    lr: float
    epochs: int
    batch_size: int
    cohort: int

    @classmethod
    def read(cls, path: str | Path) -> "Work":
        stored = np.load(path)
        weights = {name.removeprefix("weights/"): stored[name] for name in stored.files if name.startswith("weights/")}
        settings = json.loads(str(stored["settings"]))
        arrays = {name: stored[name] for name in ("images", "labels", "edges", "test_images", "test_labels")}
        return cls(**arrays, weights=weights, **settings)

    def write(self, path: Path) -> None:
        settings = {name: getattr(self, name) for name in ("lr", "epochs", "batch_size", "cohort")}
        arrays = {name: getattr(self, name) for name in ("images", "labels", "edges", "test_images", "test_labels")}
        weights: dict[str, Any] = {f"weights/{name}": value for name, value in self.weights.items()}
        np.savez(path, settings=np.array(json.dumps(settings)), **arrays, **weights)

    @property
    def clients(self) -> int:
        return len(self.edges) - 1

    def samples(self, client: int) -> tuple[Tensor, Tensor]:
        """A client's samples as a peer wants them: normalised floats (N, 3, H, W), made once and not timed."""
        held = slice(int(self.edges[client]), int(self.edges[client + 1]))
        return floats(self.images[held]), torch.from_numpy(self.labels[held])

    def network(self) -> nn.Module:
        """LeNet-5 as every tutorial has it, with the weights that all contestants start from."""
        net = nn.Sequential(
            nn.Conv2d(3, 6, 5), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(6, 16, 5), nn.ReLU(), nn.MaxPool2d(2),
            nn.Flatten(), nn.Linear(400, 120), nn.ReLU(), nn.Linear(120, 84), nn.ReLU(), nn.Linear(84, 10),
        )  # fmt: skip
        net.load_state_dict({name: torch.from_numpy(value) for name, value in self.weights.items()})
        return net

    def accuracy(self, net: nn.Module) -> float:
        net.eval()
        with torch.no_grad():
            guesses = torch.cat([net(floats(part)).argmax(1) for part in np.array_split(self.test_images, 10)])
        return float((guesses == torch.from_numpy(self.test_labels)).double().mean())


def floats(images: np.ndarray) -> Tensor:
    """Map bytes (N, H, W, 3) to [-1, 1]."""
    return torch.from_numpy(images).permute(0, 3, 1, 2).float().div_(127.5).sub_(1).contiguous()


class OverError(Exception):
    """There is no further turn."""


class Turns:
    """Waits for its turn on standard input, and answers in lines of JSON where standard output was."""

    def __init__(self) -> None:
        self._answers = os.fdopen(os.dup(1), "w", buffering=1)
        os.dup2(2, 1)  # whatever a framework prints goes to the log

    def answer(self, **facts: Any) -> None:
        self._answers.write(json.dumps(facts) + "\n")

    def wait(self) -> bool:
        """Whether there is another round to do."""
        return sys.stdin.readline().strip() == "go"

    def insist(self) -> None:
        """Wait for the next round where only an exception ends a framework's loop."""
        if not self.wait():
            raise OverError

    def taken(self) -> Iterator[int]:
        """Rounds, each when its turn comes."""
        number = 0
        while self.wait():
            yield number
            number += 1
