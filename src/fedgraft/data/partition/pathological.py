"""A few classes per client, in groups of clients with the same classes (FedAPA)."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from fedgraft.base.errors import UserError

from .dirichlet import paper_minimum
from .scheme import Files, Lists, Scheme, deal, require_whole
from .shares import Shares, cut_each, draw_until_enough, require_minimum, shared_out


@dataclass(frozen=True)
class Pathological(Scheme):
    """Every client holds ``classes`` classes; clients with neighbouring numbers hold the same ones.

    With M clients and K classes, each class in turn goes to the first ``floor(M * classes / K)`` clients that still
    have room. Inside a class the shares are U(0.3, 0.7) draws, normalised, the same in both files; sizes must pass
    the same test as in ``Dirichlet``.
    """

    classes: int
    min_train: int | None = None
    min_test: int | None = None

    name: ClassVar[str] = "pathological"
    syntax: ClassVar[str] = "pathological:CLASSES[,min_train=129][,min_test=3]"
    about: ClassVar[str] = "a few classes per client; neighbouring clients hold the same ones"
    paper: ClassVar[str] = "FedAPA"

    def __post_init__(self) -> None:
        require_whole("classes", self.classes, 1)
        require_minimum("min_train", self.min_train)
        require_minimum("min_test", self.min_test)

    def assign(self, files: Files, clients: int, rng: np.random.RandomState) -> tuple[Lists, Lists]:
        require_classes(self.classes, files)
        holds = self._holders(clients, files.classes)

        def draw() -> Shares:
            return shared_out(np.where(holds, rng.uniform(0.3, 0.7, holds.shape), 0.0))

        minimum = paper_minimum(self.min_train, self.min_test, files, clients)
        train, test = draw_until_enough(draw, cut_each, files.sizes, minimum, may_hold=holds)
        return deal(files.train, train), deal(files.test, test)

    def _holders(self, clients: int, classes: int) -> NDArray[np.bool_]:
        # The paper's floor leaves the last clients without data where K does not divide M * classes; we give the
        # places that are left, one each, to the first classes.
        places, left = divmod(clients * self.classes, classes)
        room = np.full(clients, self.classes)
        holds = np.zeros((clients, classes), dtype=bool)
        for kind in range(classes):
            holders = np.flatnonzero(room)[: places + (kind < left)]
            holds[holders, kind] = True
            room[holders] -= 1
        return holds


def require_classes(classes: int, files: Files) -> None:
    """Refuse more classes per client than the dataset has."""
    if classes > files.classes:
        raise UserError(f"classes must be between 1 and {files.classes}, the classes of the dataset, not {classes}")
