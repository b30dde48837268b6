"""The bank: one row of floats for each client, so that mixing models is one matrix product."""

import math

import torch
from torch import Tensor

from fedgraft.core.averaging import parse


def mix(rows: Tensor, bank: Tensor) -> Tensor:
    """Mix models: row i of the result is the combination of the bank that row i of ``rows`` weighs."""
    return rows.to(bank.dtype) @ bank


def inner(vectors: Tensor, bank: Tensor) -> Tensor:
    """Inner products of ``vectors`` with every model of the bank, accumulated by the BLAS in one product."""
    return vectors @ bank.T


def mean(bank: Tensor, weights: Tensor, averaging: str = "mean") -> Tensor:
    """Return the weighted mean of the rows, or what the run has for it, in float64 so that it hardly rounds."""
    kind, amount = parse(averaging)
    if kind == "median":
        return _middle(bank, (len(bank) - 1) // 2)
    if kind == "trimmed":
        return _middle(bank, min(math.ceil(amount * len(bank) - 1e-9), (len(bank) - 1) // 2))
    if kind == "clip":
        bank = _drawn_in(bank, amount)
    shares = weights.to(torch.float64)
    return ((shares / shares.sum()) @ bank.to(torch.float64)).to(bank.dtype)


def _middle(bank: Tensor, left_out: int) -> Tensor:
    """In every coordinate, return the mean without so many of the lowest and of the highest values."""
    ordered = bank.sort(dim=0).values[left_out : len(bank) - left_out]
    return ordered.to(torch.float64).mean(dim=0).to(bank.dtype)


def _drawn_in(bank: Tensor, radius: float) -> Tensor:
    """Draw rows that are far from the coordinates' medians to within ``radius`` of these; leave the others alone."""
    centre = _middle(bank, (len(bank) - 1) // 2).to(torch.float64)
    away = bank.to(torch.float64) - centre
    distance = torch.linalg.vector_norm(away, dim=1, keepdim=True)
    nearer = centre + away * (radius / distance)
    return torch.where(distance > radius, nearer, bank.to(torch.float64)).to(bank.dtype)


def squared_distances(bank: Tensor) -> Tensor:
    """Return ||w_i - w_j||^2 for all pairs, in float64, never negative."""
    exact = bank.to(torch.float64)
    gram = exact @ exact.T
    squares = gram.diagonal()
    distances = (squares[:, None] + squares[None, :] - 2 * gram).clamp_(min=0)
    distances = (distances + distances.T) / 2  # a BLAS may round the two halves of a product differently
    return distances.fill_diagonal_(0)
