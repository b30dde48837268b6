"""The bank: one row of floats for each client, so that mixing models is one matrix product."""

from collections.abc import Sequence

import torch
from torch import Tensor

BLOCK = 1024
"""Columns of the bank that are worked on at a time."""


def mix(rows: Tensor, bank: Tensor) -> Tensor:
    """Mix models: row i of the result is the combination of the bank that row i of ``rows`` weighs."""
    return rows.to(bank.dtype) @ bank


def inner(vectors: Tensor, bank: Tensor) -> Tensor:
    """Inner products of ``vectors`` with every model of the bank, accumulated by the BLAS in one product."""
    return vectors @ bank.T


def replaced(bank: Tensor, rows: Sequence[int], values: Tensor) -> Tensor:
    """Return the bank with new ``values`` in some rows; it is these values, if all rows are replaced in order."""
    if len(rows) == len(bank) and list(rows) == list(range(len(bank))):
        return values
    return bank.index_copy(0, torch.tensor(rows), values)


def mean(bank: Tensor, weights: Tensor) -> Tensor:
    """Return the weighted mean of the rows, made in float64 so that it hardly rounds."""
    return exact_mean(bank, weights).to(bank.dtype)


def exact_mean(bank: Tensor, weights: Tensor) -> Tensor:
    """Return the weighted mean of the rows in float64.

    Block by block of columns, in memory that they share: a copy of the whole bank in float64 would be twice as large as
    the bank, and fresh memory for each block dearer than the mean.
    """
    shares = weights.to(torch.float64)
    shares = shares / shares.sum()
    result = bank.new_empty(bank.shape[1:], dtype=torch.float64)
    room = torch.empty(len(bank) * BLOCK, dtype=torch.float64)
    for start in range(0, bank.shape[1], BLOCK):
        block = bank[:, start : start + BLOCK]
        exact = room[: block.numel()].view(block.shape).copy_(block)
        result[start : start + BLOCK] = shares @ exact
    return result


def squared_distances(bank: Tensor) -> Tensor:
    """Return ||w_i - w_j||^2 for all pairs, in float64, never negative."""
    exact = bank.to(torch.float64)
    gram = exact @ exact.T
    squares = gram.diagonal()
    distances = (squares[:, None] + squares[None, :] - 2 * gram).clamp_(min=0)
    distances = (distances + distances.T) / 2  # a BLAS may round the two halves of a product differently
    return distances.fill_diagonal_(0)
