"""The bank: one row of floats for each client, so that mixing models is one matrix product."""

import torch
from torch import Tensor


def mix(rows: Tensor, bank: Tensor) -> Tensor:
    """Mix models: row i of the result is the combination of the bank that row i of ``rows`` weighs."""
    return rows.to(bank.dtype) @ bank


def inner(vectors: Tensor, bank: Tensor) -> Tensor:
    """Inner products of ``vectors`` with every model of the bank, accumulated by the BLAS in one product."""
    return vectors @ bank.T


def mean(bank: Tensor, weights: Tensor) -> Tensor:
    """Return the weighted mean of the rows, in float64 so that it hardly rounds."""
    shares = weights.to(torch.float64)
    return ((shares / shares.sum()) @ bank.to(torch.float64)).to(bank.dtype)


def squared_distances(bank: Tensor) -> Tensor:
    """Return ||w_i - w_j||^2 for all pairs, in float64, never negative."""
    exact = bank.to(torch.float64)
    gram = exact @ exact.T
    squares = gram.diagonal()
    distances = (squares[:, None] + squares[None, :] - 2 * gram).clamp_(min=0)
    distances = (distances + distances.T) / 2  # a BLAS may round the two halves of a product differently
    return distances.fill_diagonal_(0)
