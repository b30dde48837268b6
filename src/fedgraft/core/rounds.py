"""The round loop. It exists once, and names no method and no engine."""

import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from torch import Tensor

from fedgraft.core import streams
from fedgraft.core.client import ClientId
from fedgraft.core.errors import ContractError
from fedgraft.core.evaluation import POINTS, Point, Scores, Summary
from fedgraft.core.exchange import Failure, Outcome
from fedgraft.core.message import Message, objection
from fedgraft.core.method import Method, Server


class Engine(Protocol):
    """Where the clients are: in this process, in workers, on other machines."""

    def train(self, round: int, messages: Mapping[ClientId, Message]) -> Mapping[ClientId, Outcome | Failure]:
        """Deliver a wave of messages and collect the replies. A client that failed is absent in this round."""
        ...

    def settle(self, accepted: Collection[ClientId]) -> None:
        """Let the clients of the last wave keep what they learned, if the server took their reply."""
        ...

    def evaluate(self, round: int, messages: Mapping[ClientId, Message]) -> Mapping[ClientId, Scores]:
        """Test every client's own model at both points; a client that fails is left out."""
        ...

    def traits(self) -> Mapping[str, Tensor]:
        """Return private figures of the clients, where this engine may see them."""
        ...


@dataclass(frozen=True)
class Participation:
    """How many clients take part in a round: a fixed share, or one drawn anew from a range."""

    low: float = 1.0
    high: float = 1.0

    def pick(self, seed: int, round: int, clients: int) -> list[ClientId]:
        rng = streams.generator(seed, "participation", round)
        least, most = (max(1, round_half_up(share * clients)) for share in (self.low, self.high))
        return sorted(int(c) for c in rng.choice(clients, size=int(rng.integers(least, most + 1)), replace=False))


def round_half_up(value: float) -> int:
    """Round to the nearest whole number, halves upwards."""
    return int(value + 0.5)


@dataclass(frozen=True)
class Refusal:
    """A reply that did not come or that the server did not take, and why."""

    client: ClientId
    reason: str


@dataclass
class Round:
    """What happened in one round."""

    number: int
    participants: tuple[ClientId, ...] = ()
    refused: list[Refusal] = field(default_factory=list)
    bytes_up: int = 0
    bytes_down: int = 0
    messages_up: int = 0
    messages_down: int = 0
    loss: float = float("nan")
    seconds: float = 0.0
    server_seconds: float = 0.0
    evaluation_seconds: float = 0.0
    test: dict[Point, Summary] = field(default_factory=dict)
    validation: dict[Point, Summary] = field(default_factory=dict)
    everyone: dict[Point, Summary] = field(default_factory=dict)
    observed: dict[str, Tensor] = field(default_factory=dict)


def rounds(
    method: Method,
    server: Server,
    engine: Engine,
    participation: Participation,
    *,
    evaluate_every: int = 1,
) -> Iterator[Round]:
    """Run the rounds from ``server.round`` on, yielding each when it is complete."""
    spec = server.spec
    while server.round < spec.rounds:
        number, started = server.round, time.perf_counter()
        this = Round(number, tuple(participation.pick(spec.seed, number, spec.clients)))
        losses: list[tuple[float, int]] = []
        for wave in method.waves(server, number, this.participants):
            _serve(method, server, engine, wave, this, losses)
        total = sum(weight for _, weight in losses)
        this.loss = sum(loss * weight for loss, weight in losses) / total if total else float("nan")
        this.observed = {k: v.clone() for k, v in {**method.observe(server), **engine.traits()}.items()}
        server.round = number + 1
        this.seconds = time.perf_counter() - started
        if server.round % evaluate_every == 0 or server.round == spec.rounds:
            evaluated = time.perf_counter()
            scores = engine.evaluate(number, {c: deliver(method, server, c) for c in range(spec.clients)})
            for kind in ("test", "validation", "everyone"):
                there = {client: found for client, s in scores.items() if (found := getattr(s, kind)) is not None}
                if there:
                    summaries = {point: Summary.of({c: s[point] for c, s in there.items()}) for point in POINTS}
                    setattr(this, kind, summaries)
            this.evaluation_seconds = time.perf_counter() - evaluated
        yield this


def deliver(method: Method, server: Server, client: ClientId) -> Message:
    """Make a client's message and copy it at the crossing; ``send`` may not change the server."""
    before = {name: (id(tensor), tensor._version) for name, tensor in server.items()}
    message = method.send(server, client).copy()
    if before != {name: (id(tensor), tensor._version) for name, tensor in server.items()}:
        raise ContractError(f"{method.name}.send changed the server's state")
    return message


def _serve(
    method: Method,
    server: Server,
    engine: Engine,
    wave: Sequence[ClientId],
    this: Round,
    losses: list[tuple[float, int]],
) -> None:
    """Send to a wave of clients, refuse what is wrong with their replies, merge the rest."""
    started = time.perf_counter()
    messages = {client: deliver(method, server, client) for client in wave}
    this.bytes_down += sum(message.nbytes for message in messages.values())
    this.messages_down += len(messages)
    this.server_seconds += time.perf_counter() - started

    outcomes = engine.train(this.number, messages)

    started = time.perf_counter()
    inbox: dict[ClientId, Message] = {}
    for client, outcome in sorted(outcomes.items()):
        if isinstance(outcome, Failure):
            this.refused.append(Refusal(client, f"{method.name}, round {this.number + 1}: {outcome.reason}"))
            continue
        reply = outcome.reply.copy()
        this.bytes_up += reply.nbytes
        this.messages_up += 1
        if complaint := objection(reply, method.expects(server, client)):
            this.refused.append(Refusal(client, f"{method.name}, round {this.number + 1}: the reply {complaint}"))
        else:
            inbox[client] = reply
            losses.append((outcome.loss, server.spec.samples[client]))
    engine.settle(inbox.keys())
    if inbox:
        method.merge(server, inbox)
    this.server_seconds += time.perf_counter() - started
