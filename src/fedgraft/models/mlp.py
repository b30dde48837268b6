"""Fully connected networks for any input, and softmax regression."""

import re
from dataclasses import dataclass
from math import prod

from torch import nn

from fedgraft.base.errors import UserError
from fedgraft.models.net import Blueprint, Net, Shape, dense

LARGEST = 65536


def sizes(text: str) -> tuple[int, ...]:
    """Read hidden sizes as they are written in `mlp:200-100`."""
    words = text.split("-")
    if not all(re.fullmatch("[0-9]{1,9}", word) and 1 <= int(word) <= LARGEST for word in words):
        raise UserError(
            f"the hidden layers of an mlp are sizes from 1 to {LARGEST} joined by hyphens, "
            f"such as mlp:200 or mlp:200-100; {text!r} is not"
        )
    return tuple(int(word) for word in words)


@dataclass(frozen=True)
class Linear(Blueprint):
    """Softmax regression: the extractor only flattens, so the features are the input itself."""

    name = "linear"
    syntax = "linear"
    about = "softmax regression"
    inputs = "anything, flattened"

    def build(self, shape: Shape, classes: int) -> Net:
        return _layers((), shape, classes)


@dataclass(frozen=True)
class MLP(Blueprint):
    """Flatten, then one ReLU layer for each size in `hidden`."""

    hidden: int | str = "200"

    name = "mlp"
    syntax = "mlp[:SIZE-SIZE-...]"
    about = "fully connected ReLU layers of the given sizes; by default one of 200"
    inputs = "anything, flattened"

    def __post_init__(self) -> None:
        object.__setattr__(self, "hidden", "-".join(str(size) for size in sizes(str(self.hidden))))

    @property
    def argument(self) -> str:
        return str(self.hidden)

    def build(self, shape: Shape, classes: int) -> Net:
        return _layers(sizes(self.argument), shape, classes)


def _layers(hidden: tuple[int, ...], shape: Shape, classes: int) -> Net:
    inputs = prod(shape)
    return Net(dense(inputs, hidden, nn.ReLU), (inputs, *hidden)[-1], classes)
