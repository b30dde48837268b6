"""Fully connected networks for any input, and softmax regression."""

import re
from collections.abc import Sequence
from math import prod

from torch import nn

from fedgraft.base.errors import UserError
from fedgraft.models.net import Net, Shape, dense

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


def mlp(hidden: Sequence[int], shape: Shape, classes: int) -> Net:
    """Flatten, then one ReLU layer for each size in `hidden`."""
    inputs = prod(shape)
    return Net(dense(inputs, hidden, nn.ReLU), (inputs, *hidden)[-1], classes)


def linear(shape: Shape, classes: int) -> Net:
    """Softmax regression: the extractor only flattens, so the features are the input itself."""
    return mlp((), shape, classes)
