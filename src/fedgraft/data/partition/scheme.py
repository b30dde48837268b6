"""What every scheme has in common: its text, its random stream, and the files that it deals out."""

import dataclasses
import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from numbers import Integral, Real
from typing import ClassVar

import numpy as np
from numpy.typing import ArrayLike

from fedgraft.base.errors import UserError
from fedgraft.core.streams import frozen_generator

from .partition import Ints, Partition, cut, plain

Lists = tuple[Ints, ...]


@dataclass(frozen=True)
class Files:
    """The official training and test file, as one list of sample indices per class, in file order."""

    train: Lists
    test: Lists

    @classmethod
    def of(cls, y_train: ArrayLike, y_test: ArrayLike) -> "Files":
        """Sort the samples of both files by class; a class is a label that occurs in either."""
        first, second = _labels(y_train, "training"), _labels(y_test, "test")
        classes = np.unique(np.concatenate([first, second]))
        return cls(_by_class(first, classes, 0), _by_class(second, classes, len(first)))

    @property
    def classes(self) -> int:
        """How many classes there are."""
        return len(self.train)

    @cached_property
    def sizes(self) -> Ints:
        """Samples of each class in the training file (row 0) and in the test file (row 1)."""
        return np.array([[len(members) for members in file] for file in (self.train, self.test)], dtype=np.int64)


@dataclass(frozen=True)
class Scheme(ABC):
    """A way to split a dataset over clients: a frozen dataclass of its parameters.

    The fields are also the parameters on the command line; the only field without a default is written bare there
    (``dirichlet:0.1``), every other one by name (``dirichlet:0.1,min_train=50``).
    """

    name: ClassVar[str]
    syntax: ClassVar[str]
    about: ClassVar[str]
    paper: ClassVar[str]
    steady: ClassVar[bool] = False
    """Whether client 3 of one seed is client 3 of another: the same source of samples."""

    @classmethod
    def required(cls) -> list[str]:
        """Name the parameters that have no default."""
        return [field.name for field in dataclasses.fields(cls) if field.default is dataclasses.MISSING]

    @property
    def text(self) -> str:
        """The canonical text: equal schemes have equal texts, and ``parse`` reads it back."""
        words = []
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            if self.required() == [field.name]:
                words.append(spell(value))
            elif value != field.default:
                words.append(f"{field.name}={spell(value)}")
        return ":".join([self.name, ",".join(words)] if words else [self.name])

    def split(self, y_train: ArrayLike, y_test: ArrayLike, clients: int, seed: int) -> Partition:
        """Split the samples; the same arguments give the same partition on every machine."""
        files = Files.of(y_train, y_test)
        if clients < 1:
            raise UserError(f"clients must be 1 or more, not {clients}")
        self.require(files, clients)
        rng = frozen_generator(int(seed), "partition", self.stream(files), int(clients))
        train, test = self.assign(files, int(clients), rng)
        return Partition(self.text, int(seed), _sorted(train), _sorted(test))

    def require(self, files: Files, clients: int) -> None:
        """Refuse more clients than there are samples to give them."""
        for kind, samples in zip(("training", "test"), files.sizes.sum(axis=1), strict=True):
            if clients > samples:
                raise UserError(
                    f"{clients} clients need at least one {kind} sample each, but there are {samples}: "
                    f"choose {samples} clients or fewer"
                )

    def stream(self, files: Files) -> str:
        """Name the stream of random numbers; two texts for the same thing share one."""
        return self.text

    @abstractmethod
    def assign(self, files: Files, clients: int, rng: np.random.RandomState) -> tuple[Lists, Lists]:
        """Say which training and which test samples each client gets."""


def deal(members: Lists, counts: Ints, start: int = 0) -> Lists:
    """Let each client in turn take its count (clients x classes) of the next samples of every class.

    A class begins at its sample number ``start`` and goes round: when it is used up, it is dealt again.
    """
    clients = len(counts)
    taken, owners = [], []
    for of_class, wanted in zip(members, counts.T, strict=True):
        total = int(wanted.sum())
        if total:
            taken.append(np.take(of_class, start % len(of_class) + np.arange(total), mode="wrap"))
            owners.append(np.repeat(np.arange(clients), wanted))
    if not taken:
        return tuple(np.empty(0, np.int64) for _ in range(clients))
    owner = np.concatenate(owners)
    samples = np.concatenate(taken)[np.argsort(owner, kind="stable")]
    return cut(samples, np.bincount(owner, minlength=clients))


def shuffled(members: Lists, rng: np.random.RandomState) -> Lists:
    """Put the samples inside each class into a random order."""
    return tuple(rng.permutation(of_class) for of_class in members)


def number(value: object) -> bool:
    """Whether this is a finite number, and not a truth value."""
    return isinstance(value, Real) and not isinstance(value, bool) and math.isfinite(value)


def require_whole(name: str, value: object, lowest: int, highest: int | None = None) -> None:
    """Refuse anything but a whole number from ``lowest`` up, or up to ``highest``."""
    most = math.inf if highest is None else highest
    if not isinstance(value, Integral) or isinstance(value, bool) or not lowest <= int(value) <= most:
        end = "up" if highest is None else f"to {highest}"
        raise UserError(f"{name} must be a whole number from {lowest} {end}, not {value!r}")


def spell(value: object) -> str:
    """Write a parameter as on the command line: 0.1, 1 (also for 1.0), 300/900/1500, 3..7, 30..70..5."""
    if isinstance(value, Real) and not isinstance(value, Integral):
        return repr(float(value)).removesuffix(".0")
    if isinstance(value, tuple):
        return _spell_choices(value)
    return str(value)


def _spell_choices(values: Sequence[int]) -> str:
    steps = {later - earlier for earlier, later in pairwise(values)}
    if len(values) > 3 and len(steps) == 1 and (step := steps.pop()) > 0:
        return f"{values[0]}..{values[-1]}" + ("" if step == 1 else f"..{step}")
    return "/".join(map(str, values))


def _labels(y: ArrayLike, kind: str) -> Ints:
    labels = np.asarray(y)
    if labels.ndim != 1:
        raise UserError(f"the {kind} labels must be one list of class numbers, not an array of {labels.ndim} axes")
    if labels.size and (labels.dtype.kind not in "iu" or labels.min() < 0):
        raise UserError(f"the {kind} labels must be whole numbers from 0 up")
    return labels.astype(np.int64)


def _by_class(labels: Ints, classes: Ints, offset: int) -> Lists:
    order = np.argsort(labels, kind="stable")
    ends = np.searchsorted(labels[order], classes[1:])
    return tuple(part.astype(np.int64) + offset for part in np.split(order, ends))


def _sorted(lists: Lists) -> Lists:
    # File order: the official files are shuffled, so that even a plain cut through a client's list sees all classes.
    if not plain(lists):
        return tuple(np.sort(indices) for indices in lists)
    sizes = [len(indices) for indices in lists]
    samples = np.concatenate(lists)
    return cut(samples[np.lexsort((samples, np.repeat(np.arange(len(sizes)), sizes)))], sizes)
