"""What server and clients know of a run before its first round: sizes, shapes and settings, no data."""

import math
from dataclasses import dataclass

from torch import Tensor

from fedgraft.core.errors import UserError
from fedgraft.core.model import Architecture, Layout
from fedgraft.core.settings import Training

ClientId = int


@dataclass(frozen=True, eq=False)
class Spec:
    """A run as everybody in it knows it."""

    samples: tuple[int, ...]
    architectures: tuple[Architecture, ...]
    assignment: tuple[int, ...]
    classes: int
    rounds: int
    seed: int
    settings: Training
    share: float = 1.0
    """Share of the clients that take part in a round; the middle of the range, if the run draws it anew each time."""

    @property
    def clients(self) -> int:
        return len(self.samples)

    def architecture(self, client: ClientId) -> Architecture:
        return self.architectures[self.assignment[client]]

    def layout(self, client: ClientId) -> Layout:
        return self.architecture(client).layout

    def initial(self, client: ClientId, independent: bool = False) -> Tensor:
        """Return the client's first weights: one draw for each architecture, or ``independent`` for each client."""
        kind = self.assignment[client]
        key = (self.seed, kind, client) if independent else (self.seed, kind)
        return self.architecture(client).initial(*key)

    def one_architecture(self, method: str) -> Architecture:
        """Insist that all clients run the same network."""
        if len(self.architectures) > 1:
            raise UserError(f"{method} mixes whole models, so all clients need the same architecture")
        return self.architectures[0]

    def one_feature_size(self, method: str) -> int:
        """Insist that features are equally long in all clients' networks, whatever their shape."""
        sizes = sorted({math.prod(architecture.features) for architecture in self.architectures})
        if len(sizes) > 1:
            raise UserError(f"{method} compares features, so all clients need them equally long; here are {sizes}")
        return sizes[0]
