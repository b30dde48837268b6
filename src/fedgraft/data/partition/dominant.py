"""A few dominant classes per client over a floor of all classes (FedGPA)."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np

from fedgraft.base.errors import UserError

from .partition import Ints
from .scheme import Files, Lists, Scheme, deal, number, require_whole
from .shares import require_minimum

Choices = int | Sequence[int] | str
"""One number for all clients, or several of which each client draws one: 300/900/1500, 3..7, 30..70..5."""

Remainder = Literal["even", "last"]

TEST_SIZE = 300


@dataclass(frozen=True)
class Dominant(Scheme):
    """Each client has ``n`` samples: ``s`` percent spread over all classes, the rest over ``k`` random ones.

    ``n`` and ``k`` may be several numbers, of which each client draws one. The test set has ``test_size`` samples
    (300, or what the smallest class allows) with the same s and the same dominant classes. Samples come from a
    pointer that goes round in each class, beginning at ``train_start`` and ``test_start``: clients may share
    samples, but none has one twice.

    ``remainder="even"`` spreads what equal parts leave over, one sample each, over random classes (the same in
    training and test). ``"last"`` gives all of it to the last class, as the authors' program does; then a client
    may have a sample twice (CIFAR-100, s=20: 104 test samples of class 99, which has 100).
    """

    n: Choices
    k: Choices
    s: float
    test_size: int | None = None
    remainder: Remainder = "even"
    train_start: int = 0
    test_start: int = 0

    name: ClassVar[str] = "dominant"
    syntax: ClassVar[str] = (
        "dominant:n=600,k=5,s=20[,test_size=300][,remainder=even|last][,train_start=0][,test_start=0]"
    )
    about: ClassVar[str] = "n samples: s % over all classes, the rest over k dominant ones; samples may be shared"
    paper: ClassVar[str] = "FedGPA"

    def __post_init__(self) -> None:
        object.__setattr__(self, "n", as_choices("n", self.n))
        object.__setattr__(self, "k", as_choices("k", self.k))
        if not number(self.s) or not 0 <= self.s <= 100:
            raise UserError(f"s must be a percentage between 0 and 100, not {self.s!r}")
        require_minimum("test_size", self.test_size)
        if self.remainder not in ("even", "last"):
            raise UserError(f"remainder must be even or last, not {self.remainder!r}")
        require_whole("train_start", self.train_start, 0)
        require_whole("test_start", self.test_start, 0)

    def assign(self, files: Files, clients: int, rng: np.random.RandomState) -> tuple[Lists, Lists]:
        n, k = as_choices("n", self.n), as_choices("k", self.k)
        if max(k) > files.classes:
            raise UserError(f"k must be between 1 and {files.classes}, the classes of the dataset, not {max(k)}")
        if files.sizes.min() == 0:
            raise UserError(f"{self.name} needs samples of every class in the training and in the test file")
        test_size = self._test_size(min(k), files)
        train = np.empty((clients, files.classes), dtype=np.int64)
        test = np.empty_like(train)
        for client in range(clients):
            size = n[rng.randint(len(n))]
            dominant = rng.permutation(files.classes)[: k[rng.randint(len(k))]]
            order = rng.permutation(files.classes)
            train[client] = self.class_counts(size, dominant, order)
            test[client] = self.class_counts(test_size, dominant, order)
        if self.remainder == "even":
            self._require_fit("n", train, files.sizes[0], max(n), min(k))
            self._require_fit("test_size", test, files.sizes[1], test_size, min(k))
        return deal(files.train, train, self.train_start), deal(files.test, test, self.test_start)

    def class_counts(self, size: int, dominant: Ints, order: Ints) -> Ints:
        """Count the samples of each class in a set of ``size``; the first in ``order`` get the remainder."""
        counts = np.zeros(len(order), dtype=np.int64)
        spread = round(size * self.s / 100)
        for kinds, total in ((order, spread), (dominant, size - spread)):
            each, left = divmod(total, len(kinds))
            counts[kinds] += each
            if self.remainder == "even":
                counts[kinds[:left]] += 1
            else:
                counts[kinds.max()] += left
        return counts

    def _test_size(self, k: int, files: Files) -> int:
        if self.test_size is not None:
            return self.test_size
        return TEST_SIZE if self.remainder == "last" else self._largest_fit(TEST_SIZE, k, files.sizes[1])

    def _largest_fit(self, size: int, k: int, sizes: Ints) -> int:
        """Find the largest set, up to ``size``, in which the smallest class suffices even if it is dominant."""
        kinds = np.arange(len(sizes))
        while size > 1 and self.class_counts(size, kinds[:k], kinds).max() > sizes.min():
            size -= 1
        return size

    def _require_fit(self, name: str, counts: Ints, sizes: Ints, size: int, k: int) -> None:
        too_many = np.argwhere(counts > sizes)
        if len(too_many):
            client, kind = too_many[0]
            raise UserError(
                f"client {client} would need {counts[client, kind]} samples of a class that has {sizes[kind]}: "
                f"choose {name}={self._largest_fit(size, k, sizes)} or less"
            )


def as_choices(name: str, values: Choices) -> tuple[int, ...]:
    """Turn one number or several into a tuple, and refuse what cannot be counted with."""
    read = _read_choices(name, values) if isinstance(values, str) else values
    several = tuple(read) if isinstance(read, Sequence) else (read,)
    if not several:
        raise UserError(f"{name} needs at least one number")
    for value in several:
        require_whole(name, value, 1)
    return several


def _read_choices(name: str, text: str) -> tuple[int, ...]:
    # The bar of the papers is a pipe to every shell, so the slash is the spelling we show.
    if ".." not in text:
        return tuple(_read_whole(name, word) for word in re.split(r"[/|]", text))
    first, last, *step = (_read_whole(name, word) for word in text.split(".."))
    if len(step) > 1 or any(s < 1 for s in step) or last < first:
        raise UserError(f"{name} must be a range such as 3..7 or 30..70..5, not {text!r}")
    return tuple(range(first, last + 1, *step))


def _read_whole(name: str, text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise UserError(f"{name} must be a whole number, not {text.strip()!r}") from None
