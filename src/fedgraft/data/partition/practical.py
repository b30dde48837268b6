"""Most of each class to one client, a little to all the others (APPLE)."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from fedgraft.base.errors import UserError

from .scheme import Files, Lists, Scheme, deal, require_whole, shuffled
from .shares import Shares, cut_all, draw_until_enough


@dataclass(frozen=True)
class Practical(Scheme):
    """Of each class one client gets 80 %, one gets 10 %, and the others divide the last 10 % equally.

    Who gets what is drawn anew for each class; with the paper's 12 clients the others have 1 % each. Both files are
    cut by the same shares; all samples are used, in random order.

    With ``shares_seed`` the shares are those that the authors' program draws with that seed, whatever the seed of the
    run, which then says only which samples of a class a client gets. 42 is the program's default.
    """

    shares_seed: int | None = None

    name: ClassVar[str] = "practical"
    syntax: ClassVar[str] = "practical[:shares_seed=42]"
    about: ClassVar[str] = "of each class 80 % to one client, 10 % to another, 10 % divided among the rest"
    paper: ClassVar[str] = "APPLE"

    def __post_init__(self) -> None:
        if self.shares_seed is not None:
            require_whole("shares_seed", self.shares_seed, 0, 2**32 - 1)

    def assign(self, files: Files, clients: int, rng: np.random.RandomState) -> tuple[Lists, Lists]:
        if clients < 3:
            raise UserError(f"practical needs 3 clients or more (80 %, 10 % and the rest), not {clients}")
        shares = np.array([0.8, 0.1] + [0.1 / (clients - 2)] * (clients - 2))

        arranged = partial(rng.permutation, shares) if self.shares_seed is None else _in_turn(shares, self.shares_seed)

        def draw() -> Shares:
            return np.stack([arranged() for _ in files.train], axis=1)

        everything = np.ones((clients, files.classes), dtype=bool)
        train, test = draw_until_enough(draw, cut_all, files.sizes, (1, 1), may_hold=everything)
        return deal(shuffled(files.train, rng), train), deal(shuffled(files.test, rng), test)


def _in_turn(shares: NDArray[np.float64], seed: int) -> Callable[[], NDArray[np.float64]]:
    """As the authors' program arranges shares: one list, the largest last, that is shuffled again for each class."""
    rng, order = np.random.RandomState(seed), np.sort(shares)

    def arranged() -> NDArray[np.float64]:
        rng.shuffle(order)
        return order.copy()

    return arranged
