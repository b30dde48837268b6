"""Private training of one client: Poisson samples, clipped gradients of single samples, Gaussian noise."""

from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from fedgraft.base.errors import ContractError
from fedgraft.core.gradients import Separate


@dataclass
class Noising:
    """Makes of the samples of one client what may leave it: at most ``left`` steps, each of them noised.

    ``sampling`` and ``noise`` are streams of random numbers that nobody else may know: who knows them can take the
    noise away. ``expected`` is how many samples a batch has on average, whatever it has this time.
    """

    clip: float
    multiplier: float
    rate: float
    expected: float
    left: int
    sampling: np.random.Generator = field(repr=False)
    noise: np.random.Generator = field(repr=False)

    def draw(self, samples: int) -> Tensor:
        """Draw a batch: each sample is in it by chance, whoever else is."""
        if self.left < 1:
            raise ContractError(
                "the method makes more noised steps in a round than were counted: its budget is unknown"
            )
        self.left -= 1
        return torch.from_numpy(np.flatnonzero(self.sampling.random(samples) < self.rate))

    def gradient(self, separate: Separate, x: Tensor, y: Tensor) -> Tensor:
        """Return the noised mean of the samples' clipped gradients."""
        total = separate.clipped(x, y, self.clip)
        drawn = torch.from_numpy(self.noise.standard_normal(len(total), dtype=np.float32)).to(total)
        return total.add_(drawn, alpha=self.clip * self.multiplier).div_(self.expected)


@dataclass
class Telling:
    """Sums over the samples of one client that may leave it: at most ``left`` of them, each of them noised.

    What a sample brings to a sum is drawn in to a norm of 1. It may depend on that sample and on what was noised
    before, and on no other sample.
    """

    multiplier: float
    left: int
    noise: np.random.Generator = field(repr=False)

    def sum(self, parts: Iterable[Tensor]) -> Tensor:
        """Return the noised sum of the rows of all ``parts``: a row for each sample."""
        if self.left < 1:
            raise ContractError("the method tells more sums of its samples in a round than were counted")
        self.left -= 1
        total = drawn_in(parts)
        return total + self.multiplier * torch.from_numpy(self.noise.standard_normal(len(total))).to(total)


def drawn_in(parts: Iterable[Tensor]) -> Tensor:
    """Add rows up, each drawn in to a norm of 1; one that is not finite counts nothing."""
    total: Tensor | None = None
    for rows in parts:
        exact = rows.to(torch.float64)
        sizes = torch.linalg.vector_norm(exact, dim=1)
        shares = torch.where(sizes.isfinite(), 1 / sizes.clamp(min=1), 0)
        found = shares @ exact.nan_to_num(0, 0, 0)
        total = found if total is None else total + found
    assert total is not None
    return total
