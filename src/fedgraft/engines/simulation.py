"""All clients in one place: an engine that has everybody's data and state, and leaves open who does the work.

An engine of one's own that simulates derives from this class and says how jobs are done, in ``perform``. Fields that it
declares are its parameters, as in ``--engine ./mine.py:Mine:nodes=4``; one called ``workers``, or ``faults``, gets the
run's settings of that name. ``storage`` says whether the clients' states are kept in memory or on disk.
"""

from collections.abc import Collection, Iterable, Mapping, MutableMapping, Sequence
from dataclasses import KW_ONLY, dataclass, field
from typing import ClassVar, Literal, Self

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
from fedgraft.data.members import Members
from fedgraft.engines import devices
from fedgraft.engines.states import First, Shelf, States
from fedgraft.engines.workshop import Done, Job, Workshop

Storage = Literal["memory", "disk"]


def _some_validation(data: Sequence[ClientData]) -> bool:
    return data.validated if isinstance(data, Members) else any(len(each.validation) for each in data)


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
    """Where clients train: the device of each worker, with commas between; an engine without workers has one."""
    everyone: Samples | None = None
    """The test samples of all clients, if every model is tested on them too."""
    storage: Storage = "memory"
    """Where the states of clients are kept that were ever asked to train."""
    states: States = field(init=False, repr=False)
    sets: frozenset[Kind] = field(init=False, repr=False)
    workshop: Workshop = field(init=False, repr=False)
    _pending: dict[ClientId, State] = field(init=False, repr=False, default_factory=dict)
    _shown: dict[str, Tensor] = field(init=False, repr=False, default_factory=dict)

    def __post_init__(self) -> None:
        self.states = self._held({})
        place = torch.device(devices.listed(self.device)[0])
        self.workshop = Workshop(self.method, self.spec, self.data, place, self.everyone)
        there: dict[Kind, bool] = {
            "test": True,
            "validation": _some_validation(self.data),
            "everyone": self.everyone is not None,
        }
        self.sets = frozenset(kind for kind, held in there.items() if held)
        self._show_blank()

    def perform(self, jobs: Sequence[Job]) -> Mapping[ClientId, Done | Failure]:
        """Do all jobs, in any order and anywhere, each by ``Workshop.perform``."""
        raise NotImplementedError

    def train(self, round: int, messages: Mapping[ClientId, Message]) -> Mapping[ClientId, Outcome | Failure]:
        """Deliver messages, let clients train, and return their replies; what they learned is kept by ``commit``."""
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
        """Let the clients whose reply was taken keep what they learned."""
        for client in accepted:
            self.states[client] = self._pending[client]
        self._show(accepted)
        self._pending = {}

    def evaluate(self, round: int, messages: Mapping[ClientId, Message]) -> Mapping[ClientId, Scores]:
        """Deliver messages, and return what the clients' own models reach."""
        done = self.perform([Job("evaluate", c, round, m, self.states[c]) for c, m in messages.items()])
        return {
            c: result.scores for c, result in done.items() if isinstance(result, Done) and result.scores is not None
        }

    def observe(self) -> Mapping[str, Tensor]:
        """Return the clients' figures under each other; a client that has none yet has a row of NaN."""
        return {name: shown.clone() for name, shown in sorted(self._shown.items())}

    @property
    def _shows(self) -> bool:
        return type(self.method).observe_client is not Method.observe_client

    def _show_blank(self) -> None:
        """Show of everybody what a client shows that was not met yet: one looks like the other."""
        blank = self.method.observe_client(self.states[0]) if self._shows else {}
        self._shown = {name: t.expand(self.spec.clients, *t.shape).clone() for name, t in blank.items()}

    def _show(self, clients: Iterable[ClientId]) -> None:
        """Look again at the figures of clients whose state is another one: the others' are as they were."""
        if not self._shows:
            return
        for client in clients:
            for name, tensor in self.method.observe_client(self.states[client]).items():
                if name not in self._shown:
                    self._shown[name] = torch.full((self.spec.clients, *tensor.shape), torch.nan)
                self._shown[name][client] = tensor

    def snapshot(self) -> Mapping[ClientId, State]:
        """Return the states of the clients that were met; a client that was not is as it began."""
        met = self.states.met
        return met.copy() if isinstance(met, Shelf) else dict(met)

    def restore(self, clients: Mapping[ClientId, State]) -> None:
        """Put the states of a checkpoint back."""
        self.states = self._held(clients)
        self._show_blank()
        self._show(clients if clients else ())

    def _held(self, met: Mapping[ClientId, State]) -> States:
        """Keep states in memory or on disk."""
        held: MutableMapping[ClientId, State] = Shelf() if self.storage == "disk" else {}
        for client, state in met.items():
            held[client] = dict(state)
        return States(First(self.method, self.spec), held)

    def wait(self, count: int, round: int, reason: str) -> None:
        """Stop the run: everybody is here already."""
        raise UserError(reason)

    def close(self) -> None:
        """End nothing: there is nothing that this class began."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
