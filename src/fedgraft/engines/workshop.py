"""A client at work, the same in every engine: its state and a message in, its reply and new state out."""

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Literal

import torch
from torch import Tensor

from fedgraft.core import exchange, streams
from fedgraft.core.client import Client, ClientId
from fedgraft.core.evaluation import Scores
from fedgraft.core.exchange import Outcome
from fedgraft.core.message import Message
from fedgraft.core.method import Method, Spec
from fedgraft.core.samples import ClientData, Samples
from fedgraft.core.state import State
from fedgraft.core.workbench import Workbench

Purpose = Literal["train", "evaluate"]


@dataclass(frozen=True)
class Job:
    """One client's work in one round."""

    purpose: Purpose
    client: ClientId
    round: int
    message: Message
    state: State
    secret: str | None = None
    """What the noise of private training is drawn from, at a site: nobody else knows it."""


@dataclass(frozen=True)
class Done:
    """What a job gave."""

    outcome: Outcome | None = None
    state: State | None = None
    scores: Scores | None = None


@dataclass(frozen=True, eq=False)
class Workshop:
    """Everything that a worker needs besides the job: it is there before the first job and never changes."""

    method: Method
    spec: Spec
    data: Sequence[ClientData] | Mapping[ClientId, ClientData]
    device: torch.device
    everyone: Samples | None = None
    workbench: Workbench = field(default_factory=Workbench)

    def client(self, id: ClientId, state: State, round: int, purpose: Purpose, secret: str | None = None) -> Client:
        """Set a client up to train or to be tested. It works on a copy of its state."""
        own = {name: tensor.to(self.device, copy=True) for name, tensor in state.items()}
        return Client(id, own, self.data[id], self.spec, self.workbench, round=round, purpose=purpose, secret=secret)

    def begin(self, purpose: Purpose, client: ClientId, round: int) -> None:
        """Set all generators to a client's own streams, and put away what was another client's."""
        streams.seed_torch(self.device, self.spec.seed, purpose, "torch", round, client)
        streams.seed_globals(self.spec.seed, purpose, "globals", round, client)
        self.workbench.clear()

    def perform(self, job: Job) -> Done:
        """Do a job; only what comes back with the result counts."""
        started = time.perf_counter()
        self.begin(job.purpose, job.client, job.round)
        client = self.client(job.client, job.state, job.round, job.purpose, job.secret)
        stages = self.spec.pipeline
        message = stages.decode("down", job.message.to(self.device), {})
        if job.purpose == "evaluate":
            return Done(scores=exchange.evaluate(self.method, client, message, self.everyone))
        reply = exchange.train(self.method, client, message)
        reply = stages.encode("up", reply, message, client).to(torch.device("cpu"))
        loss = client.loss if self.spec.budget is None else float("nan")  # of private samples, and without noise
        outcome = Outcome(reply, loss, client.steps, time.perf_counter() - started, job.round)
        return Done(outcome, {name: tensor.cpu() for name, tensor in client.items()})


def first_states(method: Method, spec: Spec, clients: Iterable[ClientId] | None = None) -> dict[ClientId, State]:
    """Return the states of clients (of all, unless some are named) before their first contact: the initial weights."""
    shared: dict[int, Tensor] = {}
    states: dict[ClientId, State] = {}
    for client in range(spec.clients) if clients is None else clients:
        if method.independent_start:
            own = spec.initial(client, independent=True)
        else:
            own = shared.setdefault(spec.assignment[client], spec.initial(client))
        states[client] = {"own": own}
    return states


@contextmanager
def single_thread() -> Iterator[None]:
    """One thread for torch: results must not depend on how many cores the machine has."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)
