"""The bank: one row of floats for each client, so that mixing models is one matrix product.

For many clients such a product is most of a server's work. It is made for ``ROWS`` clients at a time: blocks that
depend on the number of clients alone, so that whoever makes them, the bits are the same. An engine on several machines
has them made by all of these (``made_by``).
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import pairwise
from typing import Protocol

import torch
from torch import Tensor

BLOCK = 1024
"""Columns of the bank that are worked on at a time."""
ROWS = 256
"""Rows of a product that are made at a time."""


class Maker(Protocol):
    """Makes a product of many rows somewhere: ``rows @ bank``, or ``rows @ bank.T`` if ``transposed``."""

    def product(self, rows: Tensor, bank: Tensor, *, transposed: bool) -> Tensor: ...


_maker: Maker | None = None


@contextmanager
def made_by(maker: Maker | None) -> Iterator[None]:
    """Have products of more than one block made by ``maker`` meanwhile; by this process, if it is nobody."""
    global _maker
    before, _maker = _maker, maker
    try:
        yield
    finally:
        _maker = before


def mix(rows: Tensor, bank: Tensor) -> Tensor:
    """Mix models: row i of the result is the combination of the bank that row i of ``rows`` weighs."""
    return _product(rows.to(bank.dtype), bank, transposed=False)


def inner(vectors: Tensor, bank: Tensor) -> Tensor:
    """Inner products of ``vectors`` with every model of the bank, each accumulated by the BLAS in one product."""
    return _product(vectors, bank, transposed=True)


def _product(rows: Tensor, bank: Tensor, *, transposed: bool) -> Tensor:
    differentiated = rows.requires_grad or bank.requires_grad  # in a client's loss; blocks are made past autograd
    if rows.dim() == 1 or len(rows) <= ROWS or differentiated:
        return rows @ (bank.T if transposed else bank)
    if _maker is not None:
        return _maker.product(rows, bank, transposed=transposed)
    made = rows.new_empty(len(rows), bank.shape[0 if transposed else 1])
    return in_blocks(rows, bank, made, transposed=transposed)


def in_blocks(rows: Tensor, bank: Tensor, made: Tensor, *, transposed: bool) -> Tensor:
    """Make a product block by block of its rows, in the memory that is there for it."""
    right = bank.T if transposed else bank
    for start in range(0, len(rows), ROWS):
        torch.mm(rows[start : start + ROWS], right, out=made[start : start + ROWS])
    return made


def shares(rows: int, makers: int) -> list[slice]:
    """Part the rows of a product among so many makers, in whole blocks."""
    blocks = -(-rows // ROWS)
    ends = [min(rows, ROWS * (blocks * number // makers)) for number in range(makers + 1)]
    return [slice(start, stop) for start, stop in pairwise(ends)]


def replace(bank: Tensor, rows: Sequence[int], values: Tensor) -> Tensor:
    """Put new ``values`` into some rows of the bank, in place; they are the bank, if all rows are replaced in order."""
    if len(rows) == len(bank) and list(rows) == list(range(len(bank))):
        return values
    return bank.index_copy_(0, torch.tensor(rows), values)


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
    gram = inner(exact, exact)
    squares = gram.diagonal()
    distances = (squares[:, None] + squares[None, :] - 2 * gram).clamp_(min=0)
    distances = (distances + distances.T) / 2  # a BLAS may round the two halves of a product differently
    return distances.fill_diagonal_(0)
