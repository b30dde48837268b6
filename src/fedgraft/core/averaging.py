"""How a server averages if not by the plain mean: so that a few hostile clients cannot carry the result away.

    median          in every coordinate the middle value; nearly half of the clients may be hostile
    trimmed:SHARE   in every coordinate the mean without that share of the lowest and of the highest values, rounded up:
                    of three or four replies one at each end; two replies cannot be told apart, and are averaged
    clip:NORM       the method's mean, after drawing every upload to within NORM of the coordinates' medians

Medians and trimmed means count all clients alike, for a weight that a client names can be a lie too.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from fedgraft.base.errors import UserError
from fedgraft.core import bank
from fedgraft.core.stages import Averaging


@dataclass(frozen=True, kw_only=True)
class Median(Averaging):
    """The coordinates' medians."""

    name = "median"
    about = "the middle value of every coordinate instead of the mean"

    def average(self, rows: Tensor, weights: Tensor) -> Tensor:
        return _middle(rows, (len(rows) - 1) // 2)


@dataclass(frozen=True, kw_only=True)
class Trimmed(Averaging):
    """The mean of what is left of every coordinate without its lowest and highest values."""

    name = "trimmed"
    about = "the mean of every coordinate without a share of the lowest and of the highest values, rounded up"
    share: float

    def __post_init__(self) -> None:
        if not _is_number(self.share) or not 0 <= self.share < 0.5:
            raise UserError(f"trimmed: a share from 0 up to, but not, 0.5 is trimmed at each end, not {self.share!r}")

    def average(self, rows: Tensor, weights: Tensor) -> Tensor:
        return _middle(rows, min(math.ceil(self.share * len(rows) - 1e-9), (len(rows) - 1) // 2))


@dataclass(frozen=True, kw_only=True)
class Clip(Averaging):
    """The weighted mean of rows none of which is far from the coordinates' medians."""

    name = "clip"
    about = "the mean, after every upload is drawn to within a norm of the coordinates' medians"
    norm: float

    def __post_init__(self) -> None:
        if not _is_number(self.norm) or not 0 < self.norm < math.inf:
            raise UserError(f"clip: uploads are clipped to a norm above 0, not {self.norm!r}")

    def average(self, rows: Tensor, weights: Tensor) -> Tensor:
        return bank.mean(_drawn_in(rows, self.norm), weights)


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _middle(rows: Tensor, left_out: int) -> Tensor:
    """In every coordinate, return the mean without so many of the lowest and of the highest values."""
    ordered = rows.sort(dim=0).values[left_out : len(rows) - left_out]
    return ordered.to(torch.float64).mean(dim=0).to(rows.dtype)


def _drawn_in(rows: Tensor, radius: float) -> Tensor:
    """Draw rows that are far from the coordinates' medians to within ``radius`` of these; leave the others alone."""
    centre = _middle(rows, (len(rows) - 1) // 2).to(torch.float64)
    away = rows.to(torch.float64) - centre
    distance = torch.linalg.vector_norm(away, dim=1, keepdim=True)
    nearer = centre + away * (radius / distance)
    return torch.where(distance > radius, nearer, rows.to(torch.float64)).to(rows.dtype)
