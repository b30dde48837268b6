"""The same distribution for everybody."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from .scheme import Files, Lists, Scheme


@dataclass(frozen=True)
class IID(Scheme):
    """Shuffle each file and cut it into equal parts, one per client; sizes differ by one sample at most."""

    name: ClassVar[str] = "iid"
    syntax: ClassVar[str] = "iid"
    about: ClassVar[str] = "each file shuffled and cut into equal parts: no heterogeneity"
    paper: ClassVar[str] = "FlexiFed, and the usual control"

    def assign(self, files: Files, clients: int, rng: np.random.RandomState) -> tuple[Lists, Lists]:
        train = np.array_split(rng.permutation(np.concatenate(files.train)), clients)
        test = np.array_split(rng.permutation(np.concatenate(files.test)), clients)
        return tuple(train), tuple(test)
