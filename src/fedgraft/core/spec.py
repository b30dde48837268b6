"""What server and clients know of a run before its first round: sizes, shapes and settings, no data."""

import math
from dataclasses import dataclass
from functools import cached_property

from torch import Tensor

from fedgraft.base.errors import UserError
from fedgraft.core.budget import Budget
from fedgraft.core.clientlevel import ClientPrivacy
from fedgraft.core.metrics import Metric
from fedgraft.core.model import Architecture, Layout
from fedgraft.core.settings import Training
from fedgraft.core.stages import Pipeline, pipeline
from fedgraft.core.task import Task

ClientId = int


@dataclass(frozen=True, eq=False)
class Spec:
    """What server and clients know of a run."""

    samples: tuple[int, ...]
    architectures: tuple[Architecture, ...]
    assignment: tuple[int, ...]
    task: Task
    rounds: int
    seed: int
    settings: Training
    share: float = 1.0
    """Share of the clients that take part in a round; the middle of the range, if the run draws it anew each time."""
    names: tuple[str, ...] = ()
    metrics: tuple[Metric, ...] = ()
    """What judges the clients' models, the leading metric first; the task's usual ones unless told."""
    budget: Budget | None = None
    """How clients train with differential privacy, if they do."""
    client_privacy: ClientPrivacy | None = None
    """How what clients send is clipped and noised, if a whole client is protected."""
    begun: tuple[Tensor, ...] = ()
    """The first weights of each architecture, if an earlier run left them; else they are drawn by the seed."""

    def __post_init__(self) -> None:
        if not self.metrics:
            object.__setattr__(self, "metrics", self.task.judges())

    @property
    def private(self) -> bool:
        """Whether there is differential privacy of samples or of clients: losses and test figures are not told then."""
        return self.budget is not None or self.client_privacy is not None

    @property
    def pipeline(self) -> Pipeline:
        """The stages applied to messages on their way."""
        return pipeline(self.settings.stages)

    def mean(self, rows: Tensor, weights: Tensor) -> Tensor:
        """Return the weighted mean of rows from clients, or what the run has for it against hostile ones."""
        return self.pipeline.mean(rows, weights)

    @property
    def classes(self) -> int:
        """How many classes there are, if the task has any."""
        return self.task.classes

    @property
    def clients(self) -> int:
        return len(self.samples)

    def called(self, client: ClientId) -> str:
        """What people call a client: its site's name, or its number."""
        return self.names[client] if 0 <= client < len(self.names) else f"client {client}"

    def architecture(self, client: ClientId) -> Architecture:
        """The client's network."""
        return self.architectures[self.assignment[client]]

    def layout(self, client: ClientId) -> Layout:
        """How its weights are arranged in a vector."""
        return self.architecture(client).layout

    def initial(self, client: ClientId, independent: bool = False) -> Tensor:
        """Return the client's first weights: one draw for each architecture, or ``independent`` for each client.

        Where an earlier run left them they are what it left, for everybody.

        Frozen parameters are those of the one draw: what is learned on one client's must fit the others'.
        """
        kind, architecture = self.assignment[client], self.architecture(client)
        if self.begun or not independent:
            return self._first(kind)
        weights, frozen = architecture.initial(self.seed, kind, client), architecture.layout.frozen
        if frozen.start < frozen.stop:
            weights[frozen] = architecture.initial(self.seed, kind)[frozen]
        return weights

    def _first(self, kind: int) -> Tensor:
        return self.begun[kind].clone() if self.begun else self.architectures[kind].initial(self.seed, kind)

    @cached_property
    def first_norms(self) -> tuple[float, ...]:
        """The norm of the first weights of each architecture: how large a model is."""
        return tuple(float(self._first(kind).norm()) for kind in range(len(self.architectures)))

    @cached_property
    def first_batchnorm_norms(self) -> tuple[float, ...]:
        """The norm of what BatchNorm layers have of the first weights of each architecture: 0 where there are none."""
        found = []
        for kind, a in enumerate(self.architectures):
            first = self._first(kind)
            theirs = [first[slot.start : slot.stop] for slot in a.layout.slots if slot.batchnorm and slot.trained]
            found.append(math.hypot(*(float(each.norm()) for each in theirs)))
        return tuple(found)

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
