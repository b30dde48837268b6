"""Files that were collected from one source after another: a stretch of the file is a client."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from fedgraft.base.errors import UserError

from .scheme import Files, Lists, Scheme, require_whole


@dataclass(frozen=True)
class Blocks(Scheme):
    """Cut each file, in its order, into equal stretches, one per client.

    ``train`` is how many samples of its stretch of the training file a client trains on, drawn at random; it tests on
    the others, besides its stretch of the test file. scikit-learn's digits come from 13 people, one after another: 13
    stretches are about theirs (the file does not say who wrote what).
    """

    train: int | None = None
    name: ClassVar[str] = "blocks"
    syntax: ClassVar[str] = "blocks[:train=N]"
    about: ClassVar[str] = (
        "the next block of each file, in its order; with N, trains on N samples of it and tests on the rest"
    )
    paper: ClassVar[str] = "natural clients of files that are not shuffled (digits: 13 people)"
    steady: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if self.train is not None:
            require_whole("train", self.train, 1)

    def require(self, files: Files, clients: int) -> None:
        super().require(files, clients)
        shortest = int(files.sizes[0].sum()) // clients
        if self.train is not None and self.train > shortest:
            raise UserError(
                f"a stretch of the training file has {shortest} samples for each of {clients} clients: "
                f"choose train={shortest} or less, or fewer clients"
            )

    def assign(self, files: Files, clients: int, rng: np.random.RandomState) -> tuple[Lists, Lists]:
        stretches = [np.array_split(np.sort(np.concatenate(file)), clients) for file in (files.train, files.test)]
        if self.train is None:
            return tuple(stretches[0]), tuple(stretches[1])
        orders = [rng.permutation(stretch) for stretch in stretches[0]]
        rest = [np.concatenate([order[self.train :], test]) for order, test in zip(orders, stretches[1], strict=True)]
        return tuple(order[: self.train] for order in orders), tuple(rest)
