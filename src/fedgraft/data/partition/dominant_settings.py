"""The four settings of FedGPA: ``Dominant`` with n and k looked up from the number of classes."""

import dataclasses
from abc import abstractmethod
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from .dominant import Choices, Dominant, Remainder, as_choices
from .scheme import Files, Lists, Scheme


def usual_size(classes: int) -> int:
    """Return FedGPA's n of Setting 1: 600 for CIFAR-10 and Fashion-MNIST, 1200 for CIFAR-100 and EMNIST."""
    return 600 if classes <= 20 else 1200


def half(classes: int) -> Choices:
    """Return FedGPA's k of Setting 1: half of the classes (5 of 10, 31 of 62, 50 of 100)."""
    return max(1, classes // 2)


def around_half(classes: int) -> Choices:
    """Return FedGPA's k of Settings 2 and 3: 3..7 of 10, 18..42..3 of 62, 30..70..5 of 100 classes."""
    return range(max(1, 3 * classes // 10), max(1, 7 * classes // 10) + 1, max(1, classes // 20))


@dataclass(frozen=True)
class Setting(Scheme):
    """A setting of FedGPA; an ``n`` of one's own replaces the paper's (its CINIC-10 has twice as many samples)."""

    s: float
    n: Choices | None = None
    test_size: int | None = None
    remainder: Remainder = "even"
    train_start: int = 0
    test_start: int = 0

    paper: ClassVar[str] = "FedGPA"

    def __post_init__(self) -> None:
        if self.n is not None:
            object.__setattr__(self, "n", as_choices("n", self.n))
        # A value out of range is refused where it is typed, not when the data are there.
        self.spelled_out(10)

    @abstractmethod
    def usual(self, classes: int) -> tuple[Choices, Choices]:
        """Return the paper's n and k for so many classes."""

    def spelled_out(self, classes: int) -> Dominant:
        """Return the same scheme with n and k written out; it deals the same samples."""
        n, k = self.usual(classes)
        given = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        return Dominant(**(given | {"n": self.n or n, "k": k}))

    def stream(self, files: Files) -> str:
        return self.spelled_out(files.classes).text

    def assign(self, files: Files, clients: int, rng: np.random.RandomState) -> tuple[Lists, Lists]:
        return self.spelled_out(files.classes).assign(files, clients, rng)


@dataclass(frozen=True)
class Dominant1(Setting):
    """Setting 1: the same n and k for all clients."""

    name: ClassVar[str] = "dominant-1"
    syntax: ClassVar[str] = "dominant-1:S[,n=600]"
    about: ClassVar[str] = "FedGPA's Setting 1: n=600 or 1200, half of the classes dominant"

    def usual(self, classes: int) -> tuple[Choices, Choices]:
        return usual_size(classes), half(classes)


@dataclass(frozen=True)
class Dominant2(Setting):
    """Setting 2: k differs from client to client."""

    name: ClassVar[str] = "dominant-2"
    syntax: ClassVar[str] = "dominant-2:S[,n=600]"
    about: ClassVar[str] = "FedGPA's Setting 2: as 1, with 30 to 70 % of the classes dominant"

    def usual(self, classes: int) -> tuple[Choices, Choices]:
        return usual_size(classes), around_half(classes)


@dataclass(frozen=True)
class Dominant3(Setting):
    """Setting 3: n and k differ from client to client."""

    name: ClassVar[str] = "dominant-3"
    syntax: ClassVar[str] = "dominant-3:S[,n=300/900/1500]"
    about: ClassVar[str] = "FedGPA's Setting 3: as 2, with n drawn from 300/900/1500 or 900/1500/2100"

    def usual(self, classes: int) -> tuple[Choices, Choices]:
        n = usual_size(classes)
        return (n - 300, n + 300, n + 900), around_half(classes)


@dataclass(frozen=True)
class Dominant1Star(Setting):
    """Setting 1*: as Setting 1 with more samples."""

    name: ClassVar[str] = "dominant-1*"
    syntax: ClassVar[str] = "dominant-1*:S[,n=2000]"
    about: ClassVar[str] = "FedGPA's Setting 1*: as 1, with n=2000 or 4000"

    def usual(self, classes: int) -> tuple[Choices, Choices]:
        return usual_size(classes) * 10 // 3, half(classes)
