"""The same distribution for everybody."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from .partition import cut
from .scheme import Files, Lists, Scheme


@dataclass(frozen=True)
class IID(Scheme):
    """Shuffle each file and cut it into equal parts, one per client; sizes differ by one sample at most."""

    name: ClassVar[str] = "iid"
    syntax: ClassVar[str] = "iid"
    about: ClassVar[str] = "each file shuffled and cut into equal parts: no heterogeneity"
    paper: ClassVar[str] = "FlexiFed, and the usual control"

    def assign(self, files: Files, clients: int, rng: np.random.RandomState) -> tuple[Lists, Lists]:
        return self._parts(files.train, clients, rng), self._parts(files.test, clients, rng)

    def _parts(self, members: Lists, clients: int, rng: np.random.RandomState) -> Lists:
        each, more = divmod(sum(map(len, members)), clients)
        return cut(rng.permutation(np.concatenate(members)), each + (np.arange(clients) < more))
