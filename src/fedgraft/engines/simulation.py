"""All clients in one place: an engine that has everybody's data and state, and leaves open who does the work.

An engine of one's own that simulates derives from this class and says how jobs are done, in ``perform``. Fields that it
declares are its parameters, as in ``--engine ./mine.py:Mine:nodes=4``; one called ``workers``, or ``faults``, gets the
run's settings of that name.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field
from typing import ClassVar, Self

import torch
from torch import Tensor

from fedgraft.base.errors import UserError
from fedgraft.core.client import ClientId
from fedgraft.core.evaluation import Kind, Scores
from fedgraft.core.exchange import Failure, Outcome
from fedgraft.core.message import Message
from fedgraft.core.method import Method, Spec
from fedgraft.core.samples import ClientData, Samples
from fedgraft.core.state import State
from fedgraft.core.workbench import Workbench
from fedgraft.engines.workshop import Done, Job, Workshop, first_states


@dataclass(eq=False)
class Simulation:
    """Simulates a federation: its clients' states and data are all here."""

    name: ClassVar[str]
    quorum: ClassVar[int] = 0
    """Nobody is missing who could come back: a round counts, whoever was heard."""

    method: Method
    spec: Spec
    data: Sequence[ClientData]
    _: KW_ONLY
    device: str = "cpu"
    everyone: Samples | None = None
    """The test samples of all clients, if every model is tested on them too."""
    states: dict[ClientId, State] = field(init=False, repr=False)
    sets: frozenset[Kind] = field(init=False, repr=False)
    workshop: Workshop = field(init=False, repr=False)
    _pending: dict[ClientId, State] = field(init=False, repr=False, default_factory=dict)

    def __post_init__(self) -> None:
        self.states = first_states(self.method, self.spec)
        place = torch.device(self.device)
        self.workshop = Workshop(self.method, self.spec, self.data, place, self.everyone, Workbench(place))
        there: dict[Kind, bool] = {
            "test": True,
            "validation": any(len(each.validation) for each in self.data),
            "everyone": self.everyone is not None,
        }
        self.sets = frozenset(kind for kind, held in there.items() if held)

    def perform(self, jobs: Sequence[Job]) -> Mapping[ClientId, Done | Failure]:
        """Do all jobs, in any order and anywhere, each by ``Workshop.perform``."""
        raise NotImplementedError

    def train(self, round: int, messages: Mapping[ClientId, Message]) -> Mapping[ClientId, Outcome | Failure]:
        done = self.perform([Job("train", c, round, m, self.states[c]) for c, m in messages.items()])
        self._pending = {c: self._new_state(c, r) for c, r in done.items() if isinstance(r, Done)}
        outcomes: dict[ClientId, Outcome | Failure] = {}
        for client, result in done.items():
            if isinstance(result, Failure):
                outcomes[client] = result
            elif result.outcome is not None:
                outcomes[client] = result.outcome
        return outcomes

    def _new_state(self, client: ClientId, done: Done) -> State:
        """Return what a job made of a client's state; what is the same may have stayed here."""
        before = self.states[client]
        return {name: before[name] for name in done.same} | (done.state or {})

    def commit(self, accepted: Collection[ClientId]) -> None:
        for client in accepted:
            self.states[client] = self._pending[client]
        self._pending = {}

    def evaluate(self, round: int, messages: Mapping[ClientId, Message]) -> Mapping[ClientId, Scores]:
        done = self.perform([Job("evaluate", c, round, m, self.states[c]) for c, m in messages.items()])
        return {
            c: result.scores for c, result in done.items() if isinstance(result, Done) and result.scores is not None
        }

    def observe(self) -> Mapping[str, Tensor]:
        """Return the clients' figures under each other; a client that has none yet has a row of NaN."""
        each = [self.method.observe_client(self.states[client]) for client in range(self.spec.clients)]
        shown = {name: tensor.to(torch.float64) for each_one in each for name, tensor in each_one.items()}
        return {
            name: torch.stack([each_one.get(name, torch.full_like(like, torch.nan)) for each_one in each]).float()
            for name, like in sorted(shown.items())
        }

    def snapshot(self) -> dict[ClientId, State]:
        return dict(self.states)

    def restore(self, clients: Mapping[ClientId, State]) -> None:
        self.states = {client: dict(state) for client, state in clients.items()}

    def wait(self, count: int, round: int, reason: str) -> None:
        """Stop the run: everybody is here already."""
        raise UserError(reason)

    def close(self) -> None:
        """End nothing: there is nothing that this class began."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
