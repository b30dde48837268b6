"""A federation: the data of all clients, each with its own training, validation and test samples."""

import html
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from fedgraft.base.errors import UserError
from fedgraft.core import streams
from fedgraft.core.samples import ClientData, Preparation, Samples
from fedgraft.core.task import Task
from fedgraft.data.datasets import DATASETS, Dataset, brings_sites, is_own, lies_at_sites, load, sites_of
from fedgraft.data.datasets.dataset import Constants, pixel_constants, task_of
from fedgraft.data.datasets.formats import Array, Arrays
from fedgraft.data.digest import Fingerprint, fingerprint
from fedgraft.data.members import Members
from fedgraft.data.partition import OWN as OWN
from fedgraft.data.partition import SCHEMES
from fedgraft.data.partition.partition import Partition
from fedgraft.data.partition.scheme import Scheme
from fedgraft.data.site import Site as Site
from fedgraft.data.sources import beside, find
from fedgraft.data.sources.arrays import ArrayFolder
from fedgraft.data.sources.fitted import Fitted
from fedgraft.data.sources.source import Reading, Source

Normalisation = Literal["half", "standard"]
LONGEST_NAME = 100
MANY = 10_000
"""Above so many clients, each one's data are made when they are asked for."""
UNUSED = (
    "{} has validation samples (x_val), which a split over clients does not use: `validation` puts a share of each "
    "client's training samples aside"
)
BROUGHT = "validation = {:g} is not for the sites that bring validation samples of their own (x_val): {}"


@dataclass(frozen=True, eq=False)
class Federation:
    """Clients and their data, and how they were prepared: a run on them has no say in that any more."""

    name: str
    clients: Sequence[ClientData]
    task: Task
    partition: str
    seed: int
    names: tuple[str, ...] = ()
    """What the clients are called: the sites by their names, others by their numbers."""
    validation: float = 0.0
    normalise: Normalisation = "half"
    augment: bool = False
    resize: int | None = None
    reading: Reading = field(default_factory=Reading)
    fitted: Fitted | None = None
    """How rows, folders or characters became samples, of data that are read from sites' files."""
    unseen: tuple[tuple[str, ClientData], ...] = ()
    """Clients by name that were taken out of it: they are not there in training, and join when that is over."""
    notes: tuple[str, ...] = ()
    """Sentences about the data that whoever runs on them should read."""

    def __post_init__(self) -> None:
        if not self.names:
            object.__setattr__(self, "names", tuple(f"client {number}" for number in range(len(self.clients))))

    def __repr__(self) -> str:
        learned = f"{self.task.classes} classes" if self.task.has_classes else self.task.name
        held = f"{len(self)} clients, {sum(self.samples):,} training samples, {learned}"
        return f"Federation({self.name}, {self.partition}, seed {self.seed}: {held})"

    def _repr_html_(self) -> str:
        return f"<pre>{html.escape(repr(self))}</pre>"

    def __len__(self) -> int:
        return len(self.clients)

    @property
    def classes(self) -> int:
        """How many classes there are, if the task has any."""
        return self.task.classes

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
        if isinstance(self.clients, Members) and not self.clients.validated:
            return tuple(self.clients.samples.tolist())
        return tuple(len(client.train) for client in self.clients)

    @cached_property
    def fingerprints(self) -> tuple[Fingerprint, ...]:
        """What tells the data of each client from any other; those that were taken out come last.

        Of more than ``MANY`` clients it is one for all of them: so many by name would be most of what a run writes.
        """
        if isinstance(self.clients, Members) and len(self) > MANY:
            return (self.clients.fingerprint,)
        return tuple(fingerprint(client) for client in (*self.clients, *(data for _, data in self.unseen)))

    def without(self, chosen: Collection[int]) -> "Federation":
        """Take some clients out; the others keep their names."""
        left = [number for number in range(len(self)) if number not in chosen]
        return replace(
            self,
            clients=tuple(self.clients[number] for number in left),
            names=tuple(self.names[number] for number in left),
            unseen=(*self.unseen, *((self.names[number], self.clients[number]) for number in sorted(chosen))),
        )

    def without_test(self) -> "Federation":
        """The same clients, also those that are held out, without their test samples."""

        def untested(data: ClientData) -> ClientData:
            return replace(data, test=data.test.subset(torch.zeros(0, dtype=torch.long)))

        unseen = tuple((name, untested(data)) for name, data in self.unseen)
        return replace(self, clients=tuple(map(untested, self.clients)), unseen=unseen)

    def everyone(self) -> Samples:
        """The test samples of all clients together."""
        tests = [client.test for client in self.clients]
        inputs, labels = torch.cat([t.inputs for t in tests]), torch.cat([t.labels for t in tests])
        return Samples(inputs, labels, tests[0].preparation)

    def counts(self) -> Array | None:
        """Clients x classes: how many training samples of each class each client has, if there are classes."""
        if not self.task.has_classes:
            return None
        if isinstance(self.clients, Members) and not self.clients.validated:
            return self.clients.counts(self.classes)
        return np.stack([client.train.counts(self.classes).numpy() for client in self.clients])


def federate(
    dataset: str | Path | Dataset = "digits",
    clients: int | None = None,
    partition: str | Scheme | Partition | None = None,
    seed: int = 0,
    *,
    validation: float = 0.0,
    normalise: Normalisation = "half",
    augment: bool = False,
    resize: int | None = None,
    data_dir: str | Path | None = None,
    task: str | None = None,
    target: str | None = None,
    site_column: str | None = None,
    split: str | None = None,
    test_share: float = 0.25,
    window: int | None = None,
    ignore: Sequence[str] = (),
    categories: Sequence[str] = (),
    on_disk: bool = False,
    fitted: Fitted | None = None,
) -> Federation:
    """Make a federation: a dataset that is split over clients, or data of sites.

    Args:
        dataset: a name; an .npz file; ``./file.py:load``, a function that gives arrays; or a folder or table with the
            data of sites (docs/data.md), which is not split further.
        clients: how many (default: 10, or as many as a saved partition has).
        partition: how it is split (default: dirichlet:0.1). A text that ends in .json is a saved partition. Schemes
            by class use deciles of the target in regression, and a sample's first label where it has several.
        seed: determines the split.
        validation: the share of each client's training samples that is set aside for validation.
        normalise: scales pixels to [-1, 1] (``half``) or by mean and standard deviation (``standard``): the customary
            ones of a known dataset, those of the training pixels of your own.
        augment: whether to train on random crops and mirror images.
        resize: scales images to that many pixels a side.
        data_dir: where datasets are (default: FEDGRAFT_DATA, or the user's cache).
        task: what is learned (default: recognized from the targets; docs/tasks.md).
        target: of a table, the column to predict.
        site_column: of a single table, the column that names the site.
        split: how a site's rows are split: stratified, random, group:COLUMN, time:COLUMN.
        test_share: how much of them is for testing.
        window: how many rows or characters make a sample.
        ignore: columns that are left out.
        categories: columns of numbers that are codes of categories.
        on_disk: whether samples of a dataset that is split are in a file (in $TMPDIR), from which those in use are
            mapped.
        fitted: the preparation of an earlier federation, by which the data of sites are prepared again.

    Returns:
        The clients with their data.
    """
    reading = Reading(target, site_column, split, test_share, window, tuple(ignore), tuple(categories))
    own = is_own(dataset)
    if own and data_dir is not None:
        raise UserError(
            f"data_dir is where datasets are found by their names; {_called(dataset)} is not one: leave data_dir out"
        )
    if isinstance(dataset, str | Path) and lies_at_sites(dataset):
        if task is None and brings_sites(str(dataset)):
            entry = DATASETS[str(dataset).lower()]
            task = f"{entry.task}:{entry.outputs}"
        lying = source_of(dataset, reading, data_dir)
        found = lying.read(reading, task, seed, fitted)
        _insist_on_sites(dataset, len(found.sites), clients, partition)
        made = own_data(
            found.sites, name=Path(dataset).stem, seed=seed, task=found.task or task,
            validation=validation, normalise=normalise, augment=augment, resize=resize,
        )  # fmt: skip
        notes = (*_cautions(str(dataset)), *beside(lying.path, lying), *found.notes, *made.notes)
        return replace(made, reading=reading, fitted=found.fitted, notes=notes)
    reading.insist(frozenset(), f"{_called(dataset)}, which is no folder or table of sites")
    source = dataset if isinstance(dataset, Dataset) else _loaded(dataset, data_dir, task)
    drawn = _drawn(source, clients, partition, seed)
    preparation = _preparation(source.name, [source.x_train], normalise, augment, resize, (source.mean, source.std))
    files = as_inputs(source.x_train, resize), as_inputs(source.x_test, resize)
    labels = torch.from_numpy(np.concatenate([source.y_train, source.y_test]))

    members: Sequence[ClientData]
    if on_disk or len(drawn.train) > MANY:
        members = Members(
            files, labels, drawn.train, drawn.test, preparation,
            lambda train, test, client: _client(train, test, validation, seed, client),
            validated=validation > 0, on_disk=on_disk,
        )  # fmt: skip
    else:
        inputs = torch.cat(files)

        def samples(index: Array) -> Samples:
            chosen = torch.from_numpy(np.array(index))
            return Samples(inputs[chosen], labels[chosen], preparation)

        members = tuple(
            _client(samples(train), samples(test), validation, seed, client)
            for client, (train, test) in enumerate(zip(drawn.train, drawn.test, strict=True))
        )
    return Federation(
        source.name, members, source.task, drawn.scheme, seed,
        validation=validation, normalise=normalise, augment=augment, resize=resize,
        notes=(UNUSED.format(source.name),) if own and source.x_val is not None else (),
    )  # fmt: skip


def source_of(dataset: str | Path, reading: Reading, data_dir: str | Path | None = None) -> Source:
    """Return the source that reads what lies at a path, or the sites of a dataset that brings them."""
    if not brings_sites(str(dataset)):
        return find(Path(dataset).expanduser(), reading)
    reading.insist(ArrayFolder.takes, f"{dataset}, which is prepared already")
    return ArrayFolder(sites_of(str(dataset), None if data_dir is None else Path(data_dir)))


def _cautions(name: str) -> tuple[str, ...]:
    return (f"{name}: {DATASETS[name.lower()].caution}",) if brings_sites(name) else ()


def own_data(
    sites: Sequence[Site],
    *,
    name: str = "own data",
    task: str | None = None,
    seed: int = 0,
    validation: float = 0.0,
    normalise: Normalisation = "half",
    augment: bool = False,
    resize: int | None = None,
) -> Federation:
    """Make a federation of sites with data of their own: one client for each.

    Args:
        sites: their arrays. Sites with validation samples of their own keep these.
        name: the name of the data.
        task: what is learned; ``"classification:5"`` says that there are five classes, even if no site has the fifth.
        seed: determines which samples are set aside for validation.
        validation: the share of training samples that is set aside at sites without validation samples.
        normalise: how pixels are scaled, as in :func:`federate`.
        augment: whether to train on random crops and mirror images.
        resize: scales images to that many pixels a side.

    Returns:
        The clients with their data.
    """
    if not sites:
        raise UserError("own data needs at least one site")
    names = _names(sites)
    held = {f"site {number if site.name is None else repr(site.name)}": site.arrays(number, task)
            for number, site in enumerate(sites)}  # fmt: skip
    kinds = {(str(arrays["x_train"].dtype), arrays["x_train"].shape[1:]) for arrays in held.values()}
    if len({shape for _, shape in kinds}) > 1:
        shapes = sorted({shape for _, shape in kinds})
        raise UserError(f"the sites' samples have different shapes: {', '.join(map(str, shapes))}")
    if len(kinds) > 1:
        raise UserError(f"the sites' samples are of different types: {', '.join(sorted(dtype for dtype, _ in kinds))}")
    learned = task_of(held, task)
    pixels = [arrays["x_train"] for arrays in held.values()]
    preparation = _preparation(name, pixels, normalise, augment, resize)
    members = tuple(
        _at_site(arrays, number, seed, validation, preparation, resize) for number, arrays in enumerate(held.values())
    )
    bringing = [called for called, arrays in zip(names, held.values(), strict=True) if "x_val" in arrays]
    return Federation(
        name, members, learned, OWN, seed, names,
        validation=validation, normalise=normalise, augment=augment, resize=resize,
        notes=(BROUGHT.format(validation, ", ".join(bringing)),) if validation and bringing else (),
    )  # fmt: skip


def site_data(
    site: Site,
    number: int,
    *,
    seed: int = 0,
    validation: float = 0.0,
    preparation: Preparation | None = None,
    resize: int | None = None,
    task: str | None = None,
) -> ClientData:
    """Make the data of one client, the ``number``-th of its federation, of what lies at its site."""
    return _at_site(site.arrays(number, task), number, seed, validation, preparation or Preparation(), resize)


def _at_site(
    held: Arrays, number: int, seed: int, validation: float, preparation: Preparation, resize: int | None
) -> ClientData:
    def samples(part: str) -> Samples:
        return Samples(as_inputs(held[f"x_{part}"], resize), torch.from_numpy(held[f"y_{part}"]), preparation)

    if "x_val" in held:
        return ClientData(samples("train"), samples("test"), samples("val"))
    return _client(samples("train"), samples("test"), validation, seed, number)


def _names(sites: Sequence[Site]) -> tuple[str, ...]:
    """What the sites are called, each in a line of a table or a picture; those without a name by their numbers."""
    names = tuple(f"client {number}" if site.name is None else site.name for number, site in enumerate(sites))
    for name in names:
        if not isinstance(name, str) or not name.strip() or not name.isprintable():
            raise UserError(f"a site's name is a text in one line, not {name!r:.100}")
        if len(name) > LONGEST_NAME:
            raise UserError(f"the site's name {name[:20]}... has {len(name)} characters; {LONGEST_NAME} are enough")
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise UserError(f"two sites are called {twice[0]!r}")
    return names


def _insist_on_sites(
    folder: str | Path, sites: int, clients: int | None, partition: str | Scheme | Partition | None
) -> None:
    """Refuse to split what is split already."""
    if clients is not None and clients != sites:
        raise UserError(f"{folder} holds the files of {sites} sites, so there cannot be {clients} clients")
    if partition is not None and partition != OWN:
        text = partition if isinstance(partition, str) else "a partition"
        raise UserError(f"{folder} is a folder of sites: their data are not split by {text}; leave partition out")


def _called(dataset: str | Path | Dataset) -> str:
    return dataset.name if isinstance(dataset, Dataset) else str(dataset)


def _loaded(dataset: str | Path, data_dir: str | Path | None, task: str | None) -> Dataset:
    return load(dataset, None if data_dir is None else Path(data_dir), task=task)


def _drawn(source: Dataset, clients: int | None, partition: str | Scheme | Partition | None, seed: int) -> Partition:
    """Split by a scheme, or as a saved partition says."""
    if clients is not None and clients < 1:
        raise UserError(f"a federation has at least one client, not {clients}")
    available = len(source.y_train) + len(source.y_test)
    if clients is not None and clients > available:
        raise UserError(f"{source.name} has {available} samples, too few for {clients} clients")
    if partition is None:
        partition = "dirichlet:0.1"
    if isinstance(partition, str):
        partition = Partition.load(partition) if partition.endswith(".json") else SCHEMES.make(partition)
    if not isinstance(partition, Partition):
        return partition.split(*source.strata, 10 if clients is None else clients, seed)
    if clients is not None and len(partition.train) != clients:
        raise UserError(f"the partition is for {len(partition.train)} clients, not {clients}")
    partition.check(available)
    return partition


def _client(train: Samples, test: Samples, validation: float, seed: int, client: int) -> ClientData:
    """Put a random share of the training samples aside for validation."""
    if not 0 <= validation < 1:
        raise UserError(f"validation is a share between 0 and 1, not {validation}")
    aside = min(int(validation * len(train)), len(train) - 1)
    if aside <= 0:
        return ClientData(train, test, train.subset(torch.zeros(0, dtype=torch.int64)))
    order = torch.from_numpy(streams.frozen_generator(seed, "validation", client).permutation(len(train)))
    return ClientData(train.subset(order[aside:].sort().values), test, train.subset(order[:aside].sort().values))


def as_inputs(x: Array, resize: int | None = None) -> Tensor:
    """Images as bytes, channels last; tokens as they are; anything else as float32."""
    if x.dtype != np.uint8:
        kind = np.int64 if np.issubdtype(x.dtype, np.integer) else np.float32
        return torch.from_numpy(np.ascontiguousarray(x, dtype=kind))
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


def _preparation(
    name: str,
    training: Sequence[Array],
    normalise: Normalisation,
    augment: bool,
    resize: int | None,
    customary: tuple[Constants, Constants] = (None, None),
) -> Preparation:
    """Say how the samples of ``name`` are prepared, whose ``training`` samples lie at one or several places."""
    if training[0].dtype != np.uint8:
        for wish, made in (("normalise = standard", normalise != "half"), ("augment", augment), ("resize", resize)):
            if made:
                raise UserError(f"{wish} is for images given as bytes (uint8); {name} holds {training[0].dtype}")
    if normalise == "half":
        return prepare(augment=augment)
    mean, std = customary if all(customary) else pixel_constants(training)
    return prepare(mean, std, augment=augment)
