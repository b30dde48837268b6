"""Dirichlet shares of every class (FedAPA)."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from fedgraft.base.errors import UserError

from .scheme import Files, Lists, Scheme, deal, number
from .shares import Shares, cut_each, draw_until_enough, require_minimum, settle_minimum

PAPER_MINIMUM = 129, 3
"""FedAPA asks for more than 128 training and more than 2 test samples."""

MAX_REDRAWS = 10_000
"""CIFAR-10 among 50 clients with alpha 0.1 passes FedAPA's test once in 500 draws."""


@dataclass(frozen=True)
class Dirichlet(Scheme):
    """Of each class, draw every client's share from Dir(alpha); the smaller alpha, the more one-sided.

    Client j takes the next ``int(share * n)`` samples of the class in file order, with the same shares in the
    training and in the test file. All is redrawn until each client has ``min_train`` and ``min_test`` samples: the
    paper's 129 and 3, or a quarter of a fair share where the data are too small for that.
    """

    alpha: float
    min_train: int | None = None
    min_test: int | None = None

    name: ClassVar[str] = "dirichlet"
    syntax: ClassVar[str] = "dirichlet:ALPHA[,min_train=129][,min_test=3]"
    about: ClassVar[str] = "every class split by Dir(alpha), with the same shares in the training and test file"
    paper: ClassVar[str] = "FedAPA"

    def __post_init__(self) -> None:
        require_alpha(self.alpha)
        require_minimum("min_train", self.min_train)
        require_minimum("min_test", self.min_test)

    def assign(self, files: Files, clients: int, rng: np.random.RandomState) -> tuple[Lists, Lists]:
        shape = (clients, files.classes)

        def draw() -> Shares:
            return normalised(log_gammas(rng, self.alpha, shape))

        minimum = paper_minimum(self.min_train, self.min_test, files, clients)
        everything = np.ones(shape, dtype=bool)
        train, test = draw_until_enough(draw, cut_each, files.sizes, minimum, everything, MAX_REDRAWS)
        return deal(files.train, train), deal(files.test, test)


def log_gammas(rng: np.random.RandomState, alpha: float, shape: tuple[int, ...]) -> NDArray[np.float64]:
    """Draw logarithms of Gamma(alpha) variates; normalised, they are Dirichlet shares.

    For a small alpha the variates themselves are below the smallest float, and their sum is 0: shares of NaN. So
    we use that Gamma(alpha) is Gamma(alpha + 1) times U^(1 / alpha), and never leave the logarithm.
    """
    return np.asarray(np.log(rng.standard_gamma(alpha + 1, shape)) + np.log1p(-rng.random_sample(shape)) / alpha)


def normalised(logs: NDArray[np.float64]) -> Shares:
    """Turn logarithms of weights into shares that sum to 1 along the first axis."""
    weights = np.exp(logs - logs.max(axis=0))
    return np.asarray(weights / weights.sum(axis=0))


def paper_minimum(min_train: int | None, min_test: int | None, files: Files, clients: int) -> tuple[int, int]:
    """Settle what each client must have at least, in the training and in the test file."""
    train, test = (int(samples) for samples in files.sizes.sum(axis=1))
    return (
        settle_minimum("min_train", min_train, PAPER_MINIMUM[0], train, clients),
        settle_minimum("min_test", min_test, PAPER_MINIMUM[1], test, clients),
    )


def require_alpha(alpha: float) -> None:
    """Refuse an alpha that no Dirichlet distribution has, or none that floats can draw from."""
    if not number(alpha) or not 1e-6 <= alpha <= 1e6:
        raise UserError(f"alpha must be a number between 0.000001 and 1000000, not {alpha!r}")
