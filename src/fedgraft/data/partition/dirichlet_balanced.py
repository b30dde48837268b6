"""Dirichlet shares that stop at a fair size, over both files merged (FedPPA, as in FedAS and PFLlib)."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from fedgraft.base.errors import UserError

from .dirichlet import log_gammas, normalised, require_alpha
from .partition import Ints
from .scheme import Files, Lists, Scheme, deal, shuffled
from .shares import Shares, cut_all, draw_until_enough, pieces, require_minimum, settle_minimum

TRAIN_SHARE = 0.75
PAPER_MINIMUM = 40

MAX_CLASSES_DRAWN = 20_000
"""Here the classes wait for each other, so that it is their number which limits the redraws (to about a second)."""


@dataclass(frozen=True)
class DirichletBalanced(Scheme):
    """Merge both files; share each class out by Dir(alpha) among the clients that are still below a fair share.

    A client that has N / M of the N samples gets nothing of the classes that follow. All is redrawn until every
    client has ``min_size`` samples (the paper's 40, or a quarter of a fair share where that is less); then each
    client's samples are divided at random, 75 % for training and 25 % for testing.
    """

    alpha: float
    min_size: int | None = None

    name: ClassVar[str] = "dirichlet-balanced"
    syntax: ClassVar[str] = "dirichlet-balanced:ALPHA[,min_size=40]"
    about: ClassVar[str] = "both files merged, Dir(alpha) among clients below an equal share, then 75/25"
    paper: ClassVar[str] = "FedPPA (FedAS, PFLlib)"

    def __post_init__(self) -> None:
        require_alpha(self.alpha)
        # Two, so that 75/25 leaves one sample on either side.
        require_minimum("min_size", self.min_size, lowest=2)

    def require(self, files: Files, clients: int) -> None:
        samples = int(files.sizes.sum())
        if samples < 2 * clients:
            raise UserError(
                f"{clients} clients need two samples each, one to train and one to test, but there are {samples}: "
                f"choose {samples // 2} clients or fewer"
            )

    def assign(self, files: Files, clients: int, rng: np.random.RandomState) -> tuple[Lists, Lists]:
        merged = tuple(np.concatenate(both) for both in zip(files.train, files.test, strict=True))
        sizes = files.sizes.sum(axis=0)
        minimum = max(2, settle_minimum("min_size", self.min_size, PAPER_MINIMUM, int(sizes.sum()), clients))
        everything = np.ones((clients, files.classes), dtype=bool)

        def draw() -> Shares:
            return shares_below_fair_size(log_gammas(rng, self.alpha, everything.shape), sizes)

        max_redraws = MAX_CLASSES_DRAWN // files.classes
        (counts,) = draw_until_enough(draw, cut_all, sizes[None], (minimum,), everything, max_redraws)
        train, test = [], []
        for samples in deal(shuffled(merged, rng), counts):
            order = rng.permutation(samples)
            cut = int(TRAIN_SHARE * len(order))
            train.append(order[:cut])
            test.append(order[cut:])
        return tuple(train), tuple(test)


def shares_below_fair_size(log_weights: NDArray[np.float64], sizes: Ints) -> Shares:
    """Share the classes out one after the other, leaving out whoever has N / M samples already."""
    clients = len(log_weights)
    shares = np.empty(log_weights.shape)
    held = np.zeros(clients, dtype=np.int64)
    for kind in range(len(sizes)):
        # As long as there is something to share out, not everybody can have reached the mean.
        below = held * clients < sizes.sum()
        shares[:, kind] = normalised(np.where(below, log_weights[:, kind], -np.inf))
        held += pieces(shares[:, kind], sizes[kind])
    return shares
