"""Learning rates over rounds, one class each. The configuration reads this module, so it imports nothing heavy."""

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import ClassVar

from fedgraft.base.errors import UserError
from fedgraft.base.registry import Registry


@dataclass(frozen=True)
class Schedule:
    """The factor on the learning rate in each round."""

    name: ClassVar[str]

    def at(self, round: int, rounds: int) -> float:
        """The factor in a round, counted from 0, of so many."""
        raise NotImplementedError


@dataclass(frozen=True)
class Constant(Schedule):
    """The same rate in every round."""

    name = "constant"
    syntax: ClassVar[str] = "constant"

    def at(self, round: int, rounds: int) -> float:
        return 1.0


@dataclass(frozen=True)
class Exponential(Schedule):
    """Times a factor after each round."""

    name = "exponential"
    syntax: ClassVar[str] = "exponential:FACTOR"
    factor: float

    def __post_init__(self) -> None:
        _insist_on_factor(self.factor)

    def at(self, round: int, rounds: int) -> float:
        return float(self.factor) ** round


@dataclass(frozen=True)
class Step(Schedule):
    """Times a factor after every so many rounds."""

    name = "step"
    syntax: ClassVar[str] = "step:EVERY,FACTOR"
    every: int
    factor: float

    def __post_init__(self) -> None:
        if isinstance(self.every, bool | str) or self.every < 1 or not float(self.every).is_integer():
            raise UserError(f"the rounds of a step are a whole number from 1 up, not {self.every!r}")
        _insist_on_factor(self.factor)

    def at(self, round: int, rounds: int) -> float:
        return float(self.factor) ** (round // int(self.every))


@dataclass(frozen=True)
class Cosine(Schedule):
    """From the rate itself down to zero along half a cosine."""

    name = "cosine"
    syntax: ClassVar[str] = "cosine"

    def at(self, round: int, rounds: int) -> float:
        return (1 + math.cos(math.pi * round / rounds)) / 2


def _insist_on_factor(factor: float) -> None:
    if isinstance(factor, bool | str) or not 0 < factor <= 1:
        raise UserError(f"the factor of a schedule is above 0 and up to 1, not {factor!r}")


SCHEDULES: Registry[Schedule] = Registry("schedule", __name__, group="fedgraft.schedules", base=f"{__name__}:Schedule")


@lru_cache
def schedule(text: str) -> Schedule:
    """Make the schedule that a run names."""
    return SCHEDULES.make(text)
