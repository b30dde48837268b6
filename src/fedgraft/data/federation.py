"""A federation: the data of all clients, each with its own training, validation and test samples."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from fedgraft.core import streams
from fedgraft.core.errors import UserError
from fedgraft.core.samples import ClientData, Preparation, Samples
from fedgraft.data.datasets import Dataset, load
from fedgraft.data.datasets.entries import ENTRIES
from fedgraft.data.partition import Partition, Scheme, parse

Array = np.ndarray[Any, Any]
Normalisation = Literal["half", "standard"]
OWN = "own"
"""The partition of data that was never split: it lies at its sites."""


@dataclass(frozen=True, eq=False)
class Federation:
    """Clients and their data."""

    name: str
    clients: tuple[ClientData, ...]
    classes: int
    partition: str
    seed: int

    def __len__(self) -> int:
        return len(self.clients)

    @property
    def example(self) -> Tensor:
        """Two prepared samples: enough to see what a network is fed."""
        train = self.clients[0].train
        return train.batch(slice(0, 2))[0]

    @property
    def input_shape(self) -> tuple[int, ...]:
        return tuple(self.example.shape[1:])

    @property
    def samples(self) -> tuple[int, ...]:
        """Training samples of each client."""
        return tuple(len(client.train) for client in self.clients)

    def everyone(self) -> Samples:
        """The test samples of all clients together: what no single client's model was made for."""
        tests = [client.test for client in self.clients]
        inputs, labels = torch.cat([t.inputs for t in tests]), torch.cat([t.labels for t in tests])
        return Samples(inputs, labels, tests[0].preparation)

    def counts(self) -> Array:
        """Clients x classes: how many training samples of each class each client has."""
        return np.stack([client.train.counts(self.classes).numpy() for client in self.clients])


@dataclass(frozen=True, eq=False)
class Site:
    """One client's own arrays. Images are bytes (N, H, W) or (N, H, W, C); anything else is taken as it is."""

    x_train: Array
    y_train: Array
    x_test: Array
    y_test: Array


def federate(
    dataset: str | Path | Dataset = "digits",
    clients: int = 10,
    partition: str | Scheme | Partition = "dirichlet:0.1",
    seed: int = 0,
    *,
    validation: float = 0.0,
    normalise: Normalisation = "half",
    augment: bool = False,
    resize: int | None = None,
    data_dir: str | Path | None = None,
) -> Federation:
    """Split a dataset over clients.

    ``validation`` is the share of each client's training samples that is put aside. ``normalise`` maps pixels to
    [-1, 1] (``half``) or by the dataset's own mean and deviation (``standard``). ``augment`` turns on random crops
    and mirror images in training, ``resize`` scales images to that many pixels a side. A ``partition`` that ends in
    .json is a saved one. A folder as ``dataset`` holds one .npz file for each site, and is not split further.
    """
    if isinstance(dataset, str | Path) and str(dataset) not in ENTRIES and Path(dataset).is_dir():
        return own_data(
            read_sites(Path(dataset)), name=Path(dataset).name, seed=seed, validation=validation,
            preparation=prepare(augment=augment), resize=resize,
        )  # fmt: skip
    source = dataset if isinstance(dataset, Dataset) else load(dataset, None if data_dir is None else Path(data_dir))
    if clients < 1:
        raise UserError(f"a federation has at least one client, not {clients}")
    available = len(source.y_train) + len(source.y_test)
    if clients > available:
        raise UserError(f"{source.name} has {available} samples, too few for {clients} clients")
    if isinstance(partition, str):
        partition = Partition.load(partition) if partition.endswith(".json") else parse(partition)
    if not isinstance(partition, Partition):
        partition = partition.split(source.y_train, source.y_test, clients, seed)
    elif len(partition.train) != clients:
        raise UserError(f"the partition is for {len(partition.train)} clients, not {clients}")
    inputs = _inputs(np.concatenate([source.x_train, source.x_test]), resize)
    labels = torch.from_numpy(np.concatenate([source.y_train, source.y_test]).astype(np.int64))
    customary = normalise == "standard" and source.mean and source.std
    preparation = prepare(source.mean, source.std, augment=augment) if customary else prepare(augment=augment)

    def samples(index: Array) -> Samples:
        chosen = torch.from_numpy(np.array(index))
        return Samples(inputs[chosen], labels[chosen], preparation)

    members = tuple(
        _client(samples(train), samples(test), validation, seed, client)
        for client, (train, test) in enumerate(zip(partition.train, partition.test, strict=True))
    )
    return Federation(source.name, members, source.classes, partition.scheme, seed)


def own_data(
    sites: Sequence[Site],
    *,
    name: str = "own data",
    classes: int | None = None,
    seed: int = 0,
    validation: float = 0.0,
    preparation: Preparation | None = None,
    resize: int | None = None,
) -> Federation:
    """Make a federation of data that already lies at sites: one client for each."""
    if not sites:
        raise UserError("own data needs at least one site")
    members = [
        site_data(site, number, seed=seed, validation=validation, preparation=preparation, resize=resize)
        for number, site in enumerate(sites)
    ]
    largest = max(int(np.max(labels)) for site in sites for labels in (site.y_train, site.y_test))
    if classes is not None and largest >= classes:
        raise UserError(f"there is a label {largest}, but only {classes} classes were announced")
    shapes = {tuple(member.train.inputs.shape[1:]) for member in members}
    if len(shapes) > 1:
        raise UserError(f"the sites' samples have different shapes: {', '.join(map(str, sorted(shapes)))}")
    return Federation(name, tuple(members), classes or largest + 1, OWN, seed)


def site_data(
    site: Site,
    number: int,
    *,
    seed: int = 0,
    validation: float = 0.0,
    preparation: Preparation | None = None,
    resize: int | None = None,
) -> ClientData:
    """Make the data of one client, the ``number``-th of its federation, of what lies at its site."""
    parts = {"train": (site.x_train, site.y_train), "test": (site.x_test, site.y_test)}
    for part, (x, y) in parts.items():
        _insist(f"site {number}, {part}", x, y)
    train, test = (
        Samples(_inputs(x, resize), torch.from_numpy(np.asarray(y).astype(np.int64)), preparation or Preparation())
        for x, y in parts.values()
    )
    return _client(train, test, validation, seed, number)


def read_sites(folder: Path) -> list[Site]:
    """Read a folder with one .npz file (x_train, y_train, x_test, y_test) for each site, in order of their names."""
    files = sorted(folder.glob("*.npz"))
    if not files:
        raise UserError(
            f"{folder} holds no .npz file; put one there for each site, with x_train, y_train, x_test, y_test"
        )
    loaded = [load(file) for file in files]
    return [Site(d.x_train, d.y_train, d.x_test, d.y_test) for d in loaded]


def _client(train: Samples, test: Samples, validation: float, seed: int, client: int) -> ClientData:
    """Put a random share of the training samples aside for validation."""
    if not 0 <= validation < 1:
        raise UserError(f"validation is a share between 0 and 1, not {validation}")
    order = torch.from_numpy(streams.frozen_generator(seed, "validation", client).permutation(len(train)))
    aside = min(int(validation * len(train)), len(train) - 1)
    if aside == 0:
        return ClientData(train, test, train.subset(order[:0]))
    return ClientData(train.subset(order[aside:].sort().values), test, train.subset(order[:aside].sort().values))


def _inputs(x: Array, resize: int | None = None) -> Tensor:
    """Images as bytes, channels last; other whole numbers, such as tokens, as int64; anything else as float32."""
    if x.dtype != np.uint8:
        whole = np.issubdtype(x.dtype, np.integer)
        return torch.from_numpy(np.ascontiguousarray(x, dtype=np.int64 if whole else np.float32))
    images = torch.from_numpy(np.ascontiguousarray(x))
    if images.dim() == 3:
        images = images.unsqueeze(-1)
    if resize is not None and images.shape[1:3] != (resize, resize):
        images = torch.cat([_resized(chunk, resize) for chunk in torch.split(images, 1000)])
    return images


def _resized(images: Tensor, side: int) -> Tensor:
    floats = images.permute(0, 3, 1, 2).float()
    small = torch.nn.functional.interpolate(floats, size=(side, side), mode="bilinear", antialias=True)
    return small.round_().clamp_(0, 255).to(torch.uint8).permute(0, 2, 3, 1).contiguous()


def prepare(
    mean: tuple[float, ...] | None = None, std: tuple[float, ...] | None = None, *, augment: bool = False
) -> Preparation:
    """Say how inputs are prepared: pixels to [-1, 1] unless by a ``mean`` and ``std`` of their own."""
    return Preparation(mean or (0.5,), std or (0.5,), crop=4 if augment else 0, flip=augment)


def _insist(where: str, x: Array, y: Array) -> None:
    """Refuse arrays that no training could use, and say which."""
    if len(x) != len(y):
        raise UserError(f"{where}: {len(x)} samples but {len(y)} labels")
    if len(y) == 0:
        raise UserError(f"{where}: no samples")
    if np.asarray(y).ndim != 1 or not np.issubdtype(np.asarray(y).dtype, np.integer):
        raise UserError(f"{where}: labels are whole numbers in one dimension")
    if int(np.min(y)) < 0:
        raise UserError(f"{where}: there is a negative label")
    if not np.all(np.isfinite(x)):
        raise UserError(f"{where}: the inputs hold values that are not finite")
