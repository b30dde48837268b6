"""A folder such as the pages speak of: made-up hospitals, images, texts, datasets and a file of one's own."""

import csv
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

SHAPES = {"mnist": (28, 28), "fashion-mnist": (28, 28), "cifar10": (32, 32, 3)}
"""Datasets that would have to be fetched, and what a sample of each looks like."""
MY = '''
from dataclasses import dataclass

import numpy as np
import torch
from torch import nn

import fedgraft as fg
from fedgraft.engines.local import LocalEngine


@dataclass(frozen=True)
class Mine(fg.FedAvg):
    """Training begins between the client's own last model and the server's."""

    name = "mine"
    idea = "a client starts between its own last model and the one it receives"
    beta: float = fg.hyper(0.5, "weight of the client's own last model", low=0.0, high=1.0)

    def assemble(self, client, message):
        return torch.lerp(super().assemble(client, message), client.own, self.beta)


@dataclass(frozen=True)
class ByHospital(fg.Scheme):
    """Every client gets the next samples of each class in turn."""

    name = "by-hospital"

    def assign(self, files, clients, rng):
        def dealt(members):
            whole = np.concatenate(members)
            return tuple(whole[client::clients] for client in range(clients))

        return dealt(files.train), dealt(files.test)


def load():
    x = np.random.default_rng(0).normal(size=(400, 30)).astype("float32")
    y = (x[:, 0] > 0).astype("int64")
    return {"x_train": x[:300], "y_train": y[:300], "x_test": x[300:], "y_test": y[300:]}


def network():
    return nn.Sequential(nn.Linear(30, 16), nn.ReLU(), nn.Linear(16, 2))


def build():
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 16), nn.ReLU(), nn.Linear(16, 10))


class MyEngine(LocalEngine):
    """Clients are trained as always."""
'''


def furnish(folder: Path) -> None:
    """Write everything that a reader is taken to have."""
    folder.mkdir()
    (folder / "hospitals").mkdir()
    for number, name in enumerate(("basel", "graz", "ulm")):
        table(folder / "hospitals" / f"{name}.csv", number)
    table(folder / "jena.csv", 7)
    table(folder / "new-patients.csv", 8, rows=3, outcome=False)
    table(folder / "new-patients-with-outcome.csv", 9)
    for number, name in enumerate(("basel", "graz", "ulm")):
        images(folder / "clinics" / name, number)
    images(folder / "scans", 9, count=3)
    (folder / "plays").mkdir()
    for name, line in (("hamlet", "to be, or not to be "), ("iago", "I am not what I am ")):
        (folder / "plays" / f"{name}.txt").write_text(line * 20)
    (folder / "speech.txt").write_text("to be, or not to be, that is")
    (folder / "my.py").write_text(MY)
    np.savez(folder / "hospital.npz", **arrays((30,), 2, 0))
    (folder / "arrays").mkdir()
    for number, name in enumerate(("north", "south")):
        np.savez(folder / "arrays" / f"{name}.npz", **arrays((30,), 2, number))


def datasets(folder: Path) -> None:
    """Write small datasets under the names of those that would be fetched."""
    folder.mkdir()
    for number, (name, shape) in enumerate(SHAPES.items()):
        np.savez(folder / f"{name}.npz", **arrays(shape, 10, number, 1000, images=True))


def arrays(shape: tuple[int, ...], classes: int, seed: int, count: int = 80, images: bool = False) -> dict[str, Any]:
    """Samples of all classes, of which the first half is brighter the higher the class."""
    rng = np.random.default_rng(seed)
    found: dict[str, Any] = {}
    for part, many in (("train", count), ("test", count // 2)):
        y = np.arange(many) % classes
        x = rng.normal(size=(many, *shape)) + y.reshape(-1, *[1] * len(shape)) / classes
        found[f"x_{part}"] = (40 * (x + 3)).clip(0, 255).astype("uint8") if images else x.astype("float32")
        found[f"y_{part}"] = y.astype("int64")
    return found


def table(path: Path, seed: int, rows: int = 60, outcome: bool = True) -> None:
    """Patients of one hospital, with words, codes and missing cells."""
    rng = np.random.default_rng(seed)
    with path.open("w", newline="") as stream:
        lines = csv.writer(stream)
        lines.writerow(["patient", "visit", "age", "sex", "chest_pain", "pressure", *(["disease"] if outcome else [])])
        for number in range(rows):
            age = rng.normal(52 + seed, 10)
            ill = "yes" if rng.random() < 1 / (1 + np.exp(-(age - 55) / 5)) else "no"
            pressure = "" if rng.random() < 0.1 else f"{rng.normal(120, 10):.1f}"
            visit = f"2024-{1 + number // 28:02d}-{1 + number % 28:02d}"
            row = [f"{path.stem}-{number}", visit, f"{age:.0f}", rng.choice(["f", "m"]), rng.integers(1, 5), pressure]
            lines.writerow([*row, *([ill] if outcome else [])])


def images(folder: Path, seed: int, count: int = 30) -> None:
    """Images of two classes, in folders."""
    rng = np.random.default_rng(seed)
    for name, light in (("ill", 150), ("well", 80)):
        (folder / name).mkdir(parents=True)
        for number in range(count):
            pixels = rng.normal(light, 20, (16, 16)).clip(0, 255).astype("uint8")
            Image.fromarray(pixels).save(folder / name / f"{number}.png")


class Tokenizer:
    """One of somebody's own."""

    vocab_size = 128

    def encode(self, text: str) -> list[int]:
        return [ord(letter) % 128 for letter in text]


def names() -> dict[str, Any]:
    """What pieces of Python on the pages take as given."""
    import torch

    import fedgraft as fg
    from fedgraft.models import build

    whole, more = arrays((30,), 10, 0, 4000), arrays((30,), 10, 5)
    sites = [(name, *(arrays((30,), 2, seed)[key] for key in _KEYS)) for seed, name in enumerate(("ulm", "jena"))]
    return whole | {
        "fg": fg, "np": np, "my_hospitals": sites, "my_tokenizer": Tokenizer(), "x_val": more["x_test"],
        "y_val": more["y_test"], "labels": np.concatenate([whole["y_train"], whole["y_test"]]),
        "images": torch.rand(4, 3, 32, 32), "example": torch.rand(10, 3, 32, 32),
        "module": build("lenet5", (3, 32, 32), classes=10), "hamlet": "to be, or not to be " * 20,
        "iago": "I am not what I am " * 20, "fed": fg.federate("digits", clients=4),
    }  # fmt: skip


_KEYS = ("x_train", "y_train", "x_test", "y_test")
