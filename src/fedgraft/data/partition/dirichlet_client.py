"""Dirichlet class proportions of every client (FedGPA, appendix A.2)."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from fedgraft.base.errors import UserError

from .dirichlet import log_gammas, normalised, require_alpha
from .dominant import TEST_SIZE
from .dominant_settings import usual_size
from .partition import Ints
from .scheme import Files, Lists, Scheme, deal
from .shares import require_minimum


@dataclass(frozen=True)
class DirichletClient(Scheme):
    """Draw the class proportions of each client from Dir(alpha); all clients have the same size.

    A client has ``n`` training samples (as Setting 1 of FedGPA: 600, or 1200 for more than 20 classes) and
    ``test_size`` test samples (300) in the same proportions; by default never more than a fair share of the file.
    Samples come from a pointer that goes round in each class, so clients may share samples. No client has a sample
    twice: a proportion that asks for more than the class has is lowered, and the excess spread over the others.
    """

    alpha: float
    n: int | None = None
    test_size: int | None = None

    name: ClassVar[str] = "dirichlet-client"
    syntax: ClassVar[str] = "dirichlet-client:ALPHA[,n=600][,test_size=300]"
    about: ClassVar[str] = "class proportions of each client from Dir(alpha), equal sizes; samples may be shared"
    paper: ClassVar[str] = "FedGPA, appendix A.2"

    def __post_init__(self) -> None:
        require_alpha(self.alpha)
        require_minimum("n", self.n)
        require_minimum("test_size", self.test_size)

    def assign(self, files: Files, clients: int, rng: np.random.RandomState) -> tuple[Lists, Lists]:
        fair_train, fair_test = (int(share) for share in files.sizes.sum(axis=1) // clients)
        n = self.n or min(usual_size(files.classes), fair_train)
        test_size = self.test_size or min(TEST_SIZE, fair_test)
        largest = np.minimum(files.sizes / [[n], [test_size]], 1.0).min(axis=0)
        if largest.sum() < 1:
            raise UserError(
                f"there are not enough samples for clients of n={n} training and test_size={test_size} test "
                f"samples in the same class proportions: choose smaller sizes"
            )
        drawn = normalised(log_gammas(rng, self.alpha, (files.classes, clients))).T
        proportions = [lowered(row, largest) for row in drawn]
        train = np.stack([whole_counts(row, n) for row in proportions])
        test = np.stack([whole_counts(row, test_size) for row in proportions])
        return deal(files.train, train), deal(files.test, test)


def lowered(proportions: NDArray[np.float64], largest: NDArray[np.float64]) -> NDArray[np.float64]:
    """Lower each proportion to the ``largest`` possible one and give the excess to the classes that have room."""
    possible = np.minimum(proportions, largest)
    room = largest - possible
    excess = 1 - possible.sum()
    return np.asarray(possible + excess * room / max(room.sum(), np.finfo(float).tiny))


def whole_counts(proportions: NDArray[np.float64], size: int) -> Ints:
    """Round proportions of ``size`` to counts with exactly that sum; the largest fractions are rounded up."""
    exact = np.round(proportions * size, 9)
    counts = np.floor(exact).astype(np.int64)
    by_fraction = np.argsort(counts - exact, kind="stable")
    counts[by_fraction[: size - counts.sum()]] += 1
    return counts
