"""A client at work, the same in every engine: its state and a message in, its reply and new state out."""

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Literal

import torch

from fedgraft.core import exchange, joining, streams
from fedgraft.core.client import Client, ClientId
from fedgraft.core.crossing import apart
from fedgraft.core.evaluation import Scores
from fedgraft.core.exchange import Outcome
from fedgraft.core.message import Message
from fedgraft.core.method import Method, Spec
from fedgraft.core.samples import ClientData, Samples
from fedgraft.core.state import State
from fedgraft.core.workbench import Workbench

Purpose = Literal["train", "evaluate", "join"]


@dataclass(frozen=True)
class Job:
    """One client's work in one round; several jobs may share what is in them, and nobody changes it."""

    purpose: Purpose
    client: ClientId
    round: int
    message: Message
    state: State
    secret: str | None = None
    """What the noise of private training is drawn from, at a site: nobody else knows it."""


@dataclass(frozen=True)
class Done:
    """What a job gave. ``same`` are the names of what is in the client's state as it was before."""

    outcome: Outcome | None = None
    state: State | None = None
    scores: Scores | None = None
    same: frozenset[str] = frozenset()


@dataclass(frozen=True, eq=False)
class Workshop:
    """Everything that a worker needs besides the job: it is there before the first job and never changes."""

    method: Method
    spec: Spec
    data: Sequence[ClientData] | Mapping[ClientId, ClientData]
    device: torch.device
    everyone: Samples | None = None
    workbench: Workbench = field(init=False, repr=False)
    newcomer: str = ""
    """Who works here, if it is a client that was not there in training: its random numbers are its own."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "workbench", Workbench(self.device))

    def client(self, id: ClientId, state: State, round: int, purpose: Purpose, secret: str | None = None) -> Client:
        """Set a client up to train or to be tested. It leaves ``state`` as it is."""
        name, data = self.named(purpose), self.data[id]
        return Client(id, state, data, self.spec, self.workbench, round=round, purpose=name, secret=secret)

    def named(self, purpose: Purpose) -> str:
        """Name the streams of a job: newcomers, each of them the last client in its own copy, have different ones."""
        return f"{purpose} {self.newcomer}" if self.newcomer else purpose

    def begin(self, purpose: Purpose, client: ClientId, round: int) -> None:
        """Set all generators to a client's own streams, and put away what was another client's."""
        name = self.named(purpose)
        streams.seed_torch(self.device, self.spec.seed, name, "torch", round, client)
        streams.seed_globals(self.spec.seed, name, "globals", round, client)
        self.workbench.clear()

    def _only_read(self, job: Job) -> bool:
        """Whether nobody here can change a message, which other clients may have been sent too: it need not be copied.

        In training it is ``assemble`` alone that sees it, and stages that code.
        """
        plain = type(self.method).assemble is Method.assemble
        return plain and job.purpose == "train" and not self.spec.pipeline.codes

    def perform(self, job: Job) -> Done:
        """Do a job; only what comes back with the result counts."""
        started = time.perf_counter()
        client, message = self.meet(job)
        if job.purpose == "evaluate":
            return Done(scores=exchange.evaluate(self.method, client, message, self.everyone))
        work = joining.join if job.purpose == "join" else exchange.train
        reply = work(self.method, client, message)
        return self.part(job, client, message, reply, time.perf_counter() - started)

    def meet(self, job: Job) -> tuple[Client, Message]:
        """Set the client of a job up, with its message as it reads it."""
        self.begin(job.purpose, job.client, job.round)
        client = self.client(job.client, job.state, job.round, job.purpose, job.secret)
        message = job.message.to(self.device) if self._only_read(job) else job.message.copy_to(self.device)
        return client, self.spec.pipeline.decode("down", message, {})

    def part(self, job: Job, client: Client, message: Message, reply: Message, seconds: float) -> Done:
        """Let a client go: what it sends as it travels, and its state."""
        if self.spec.client_privacy is not None and job.purpose == "train":
            reply = self.spec.client_privacy.leaving(reply, message, client.secret_stream("client noise"))
        reply = self.spec.pipeline.encode("up", reply, message, client).to(torch.device("cpu"))
        state, same = client.left
        state = {name: tensor.cpu() for name, tensor in state.items()}
        reply = apart(reply, state.values())
        loss = float("nan") if self.spec.private else client.loss  # of private samples, and without noise
        outcome = Outcome(reply, loss, client.steps, seconds, job.round)
        return Done(outcome, state, same=same)


@contextmanager
def single_thread() -> Iterator[None]:
    """One thread for torch: results must not depend on how many cores the machine has."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)
