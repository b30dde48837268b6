"""A few random classes per client, with shares of any size (APPLE)."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from .pathological import require_classes
from .scheme import Files, Lists, Scheme, deal, require_whole, shuffled
from .shares import Shares, cut_all, draw_until_enough, shared_out


@dataclass(frozen=True)
class PathologicalRandom(Scheme):
    """Lay random orders of all classes end to end; each client takes the next ``classes`` of them.

    Where ``classes`` does not divide the number of classes, a client may meet one class twice and then holds one
    fewer. Inside a class the shares are U(0, 1) draws, normalised, the same in both files; all samples are used,
    in random order. The shares are redrawn until every client has a training and a test sample.
    """

    classes: int

    name: ClassVar[str] = "pathological-random"
    syntax: ClassVar[str] = "pathological-random:CLASSES"
    about: ClassVar[str] = "a few random classes per client, with shares of any size"
    paper: ClassVar[str] = "APPLE"

    def __post_init__(self) -> None:
        require_whole("classes", self.classes, 1)

    def assign(self, files: Files, clients: int, rng: np.random.RandomState) -> tuple[Lists, Lists]:
        require_classes(self.classes, files)
        holds = self._holders(clients, files.classes, rng)

        def draw() -> Shares:
            return shared_out(np.where(holds, rng.random_sample(holds.shape), 0.0))

        train, test = draw_until_enough(draw, cut_all, files.sizes, (1, 1), may_hold=holds)
        return deal(shuffled(files.train, rng), train), deal(shuffled(files.test, rng), test)

    def _holders(self, clients: int, classes: int, rng: np.random.RandomState) -> NDArray[np.bool_]:
        places = clients * self.classes
        orders = [rng.permutation(classes) for _ in range(0, places, classes)]
        held = np.concatenate(orders)[:places].reshape(clients, self.classes)
        holds = np.zeros((clients, classes), dtype=bool)
        holds[np.arange(clients)[:, None], held] = True
        return holds
