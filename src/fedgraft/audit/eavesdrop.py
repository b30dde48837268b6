"""What the server heard from each client: a run is done again, to the same bits, and what is sent is kept.

A run's directory holds no replies, and random numbers follow from the settings, so that the rounds give them again. A
*shadow* is the same run on other samples: each client trains on as many as it has, drawn with replacement from its
training and its other samples together. The noise of private training is another one in each shadow, for a curious
server does not know it.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedgraft.base.errors import UserError
from fedgraft.core import streams
from fedgraft.core.client import ClientId
from fedgraft.core.exchange import Failure, Outcome
from fedgraft.core.message import Message
from fedgraft.core.method import Server
from fedgraft.core.rounds import Round, accepted, rounds
from fedgraft.core.samples import ClientData, Samples
from fedgraft.data.federation import Federation
from fedgraft.engines.local import LocalEngine
from fedgraft.engines.workshop import Done, Job, single_thread
from fedgraft.runs import results
from fedgraft.runs.conducting import taking_part
from fedgraft.runs.run import Run


@dataclass(frozen=True)
class Exchange:
    """What the server sent a client in a round, and what it got back, as it can read it."""

    round: int
    message: Message
    reply: Message


@dataclass(eq=False)
class Tap(LocalEngine):
    """Keeps the first and the last exchange with every client; jobs may have a secret, which noise is drawn from."""

    secret: str | None = field(default=None, kw_only=True)
    server: Server | None = field(default=None, kw_only=True)
    first: dict[ClientId, Exchange] = field(default_factory=dict, kw_only=True)
    last: dict[ClientId, Exchange] = field(default_factory=dict, kw_only=True)

    def perform(self, jobs: Sequence[Job]) -> dict[ClientId, Done | Failure]:
        return super().perform([replace(job, secret=self.secret) for job in jobs])

    def train(self, round: int, messages: Mapping[ClientId, Message]) -> Mapping[ClientId, Outcome | Failure]:
        outcomes = super().train(round, messages)
        assert self.server is not None
        stages = self.spec.pipeline
        seen = {client: stages.decode("down", message, {}) for client, message in messages.items()}
        for client, outcome in accepted(self.method, self.server, seen, outcomes, Round(round)).items():
            self.last[client] = Exchange(round, seen[client], outcome.reply.copy())
            self.first.setdefault(client, self.last[client])
        return outcomes


@dataclass(frozen=True, eq=False)
class Heard:
    """The first and the last exchange with each client that the server heard, and the record of the last round."""

    first: dict[ClientId, Exchange]
    last: dict[ClientId, Exchange]
    record: dict[str, Any]


def heard(run: Run, data: Sequence[ClientData], secret: str | None = None, workers: int = 1) -> Heard:
    """Do all rounds of a run, on ``data``, and listen."""
    method, spec, config = run.method, run.spec, run.config
    who = taking_part(config)
    server = method.setup(spec)
    tested = config.evaluate_clients if secret is None else 1  # nobody looks at the figures of a shadow
    record: dict[str, Any] = {}
    with single_thread(), Tap(method, spec, data, secret=secret, server=server, workers=workers) as engine:
        for this in rounds(method, server, engine, who, evaluate_every=spec.rounds, evaluate_clients=tested):
            record = results.record(this)
        return Heard(engine.first, engine.last, record)


def same_figures(run: Run, again: Heard) -> bool:
    """Whether a run that was done again ended in the figures that it had."""
    keys = [key for key in again.record if key.startswith(("received", "trained"))]
    return all(again.record[key] == run.records[-1].get(key) for key in keys)


@dataclass(frozen=True, eq=False)
class Candidates:
    """A client's samples that an attack has to sort: first those that it trained on, then the others."""

    samples: Samples
    members: int

    @classmethod
    def of(cls, data: ClientData) -> "Candidates":
        parts = [data.train, data.test, data.validation]
        inputs, labels = torch.cat([each.inputs for each in parts]), torch.cat([each.labels for each in parts])
        plain = replace(data.train.preparation, crop=0, flip=False)
        return cls(Samples(inputs, labels, plain), len(data.train))

    @property
    def others(self) -> int:
        return len(self.samples) - self.members


@dataclass(frozen=True, eq=False)
class Shadow:
    """What the server would have heard, had the clients had other samples: ``trained`` has their places, by client."""

    heard: Heard
    trained: Sequence[Tensor]


def shadows(run: Run, candidates: Sequence[Candidates], count: int, workers: int = 1) -> Iterator[Shadow]:
    """Do the run again so often, with clients whose samples are drawn anew from their candidates."""
    assert isinstance(run.federation, Federation)
    there = run.federation.clients
    for number in range(count):
        drawn = [_drawn(each, run.spec.seed, number, client) for client, each in enumerate(candidates)]
        data = [
            replace(mine, train=replace(each.samples.subset(index), preparation=mine.train.preparation))
            for mine, each, index in zip(there, candidates, drawn, strict=True)
        ]
        yield Shadow(heard(run, data, f"shadow {number} of {run.spec.seed}", workers), drawn)


def _drawn(candidates: Candidates, seed: int, number: int, client: ClientId) -> Tensor:
    rng = streams.generator("audit", seed, "shadow", number, client)
    return torch.from_numpy(np.sort(rng.integers(len(candidates.samples), size=candidates.members)))


def insist_on_replies(heard: Heard, run: Run) -> None:
    """Refuse to attack a run in which nothing was sent."""
    if not any(exchange.reply for exchange in heard.last.values()):
        raise UserError(f"with {run.method.name} the clients send nothing, so there is nothing that could be attacked")
