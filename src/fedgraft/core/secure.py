"""Secure aggregation: of what the clients of a round send, the server gets the sum and nobody's own part of it.

    q_i = round(x_i 2^bits)            every entry as whole numbers
    S = sum_i n_i q_i (mod 2^64)       all that the server gets; n_i is the client's weight, and known
    round(S / sum_i n_i)               the mean, which stands in everybody's place

Whole numbers add up exactly and in any order, so that masks which cancel leave nothing behind. On several machines the
sum is made of masked replies (``engines/flower/masking.py``); on one machine there is nobody to hide from, and this
stage does the same arithmetic in the open: both end in the same bits. A method whose server needs nothing but the mean
of the replies (``Method.sums``) is served with it; others are refused.
"""

import math
from collections.abc import Mapping, MutableMapping
from contextlib import suppress
from dataclasses import dataclass

import torch
from torch import Tensor

from fedgraft.base.errors import UserError
from fedgraft.core.message import Message
from fedgraft.core.stages import Stage, StageError

LEAST = 3
"""Clients that a sum has to be of: of two, each would know the other's part."""


@dataclass(frozen=True, kw_only=True)
class Secure(Stage):
    """Replies as whole numbers, of which the server gets the sum.

    ``bits`` stand after the binary point. ``answering`` is the share of a round's clients whose answers the sum needs:
    so many can also recover the masks of those who are lost, and fewer can do nothing.
    """

    name = "secure"
    about = "secure aggregation: the server gets the sum of the replies, for methods that need no more"
    bits: int = 28
    answering: float = 0.6

    def __post_init__(self) -> None:
        if type(self.bits) is not int or not 8 <= self.bits <= 40:
            raise UserError(f"secure: 8 to 40 bits stand after the binary point, not {self.bits!r}")
        if type(self.answering) is not float or not 0.5 < self.answering <= 1:
            raise UserError(f"secure: more than half (0.5) of a round's clients have to answer, not {self.answering!r}")

    def least(self, clients: int) -> int:
        """How many of the clients of a wave have to answer."""
        return max(LEAST, math.ceil(self.answering * clients - 1e-9))

    def encode(self, message: Message, known: Mapping[str, Tensor], memory: MutableMapping[str, Tensor]) -> Message:
        """What is not finite, or too large, has no whole numbers; it stays as it is, and is not added up."""
        coded = {}
        for name, tensor in message.items():
            scaled = tensor.to(torch.float64) * 2**self.bits
            sound = bool((scaled.abs() < 2**62).all())
            kind = str(tensor.dtype).removeprefix("torch.")
            coded[f"{name}@{self.name}:{kind}"] = scaled.round().to(torch.int64) if sound else tensor
        return Message(**coded)

    def decode(self, message: Message, known: Mapping[str, Tensor]) -> Message:
        found = {}
        for key, numbers in message.items():
            name, at, kind = key.rpartition(f"@{self.name}:")
            if not at or kind not in ("float32", "float64") or numbers.dtype != torch.int64:
                raise StageError(f"holds {key!r}, which was not encoded for secure aggregation")
            found[name] = (numbers.to(torch.float64) / 2**self.bits).to(getattr(torch, kind))
        return Message(**found)

    def gather(self, replies: Mapping[int, Message], weights: Mapping[int, int]) -> dict[int, Message]:
        """Put the mean in the place of every reply; one that cannot be added to the others is left out."""
        parts: dict[int, Message] = {}
        for client, reply in replies.items():
            with suppress(StageError):
                parts[client] = weighed(reply, weights[client], len(weights))
        shapes = [shapes_of(part) for part in parts.values()]
        usual = max(shapes, key=shapes.count, default={})
        alike = {client: part for client, part in parts.items() if shapes_of(part) == usual}
        total = {name: torch.stack([part[name] for part in alike.values()]).sum(0) for name in usual}
        return dict.fromkeys(alike, mean(total, sum(weights[client] for client in alike)))


def weighed(reply: Message, weight: int, clients: int) -> Message:
    """Return a client's part of the sum; the parts of so many clients must not overflow."""
    most = 0
    for name, numbers in reply.items():
        if numbers.dtype != torch.int64:
            raise StageError(f"holds {name!r}, which is not finite, or too large for secure aggregation")
        most = max(most, int(numbers.abs().max()) if numbers.numel() else 0)
    if most * weight * clients >= 2**62:
        raise StageError("is too large for secure aggregation; fewer bits would do (--stage secure:bits=20)")
    return Message(**{name: numbers * weight for name, numbers in reply.items()})


def mean(total: Mapping[str, Tensor], weight: int) -> Message:
    """Return the mean of which ``total`` is the sum, rounded to the nearest whole number, halves upwards."""
    found = {name: (numbers + weight // 2).div(weight, rounding_mode="floor") for name, numbers in total.items()}
    return Message(**found)


def shapes_of(reply: Message) -> dict[str, tuple[int, ...]]:
    """Return what has to be alike for messages to be added."""
    return {name: tuple(tensor.shape) for name, tensor in reply.items()}


def flat(parts: Mapping[str, Tensor]) -> Tensor:
    """Lay the numbers of all entries out in one row, in the order of their names."""
    return torch.cat([parts[name].reshape(-1) for name in sorted(parts)])


def entries(row: Tensor, shapes: Mapping[str, tuple[int, ...]]) -> dict[str, Tensor]:
    """Make entries of these shapes of one row of numbers again."""
    cut = torch.split(row, [math.prod(shapes[name]) for name in sorted(shapes)])
    return {name: part.reshape(shapes[name]) for name, part in zip(sorted(shapes), cut, strict=True)}
