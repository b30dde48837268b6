"""The client's side of a round, the same in every engine: message in, reply out."""

from dataclasses import dataclass

import torch
from torch import Tensor

from fedgraft.base.errors import ContractError
from fedgraft.core.client import Client
from fedgraft.core.evaluation import POINTS, Point, Score, Scores, score
from fedgraft.core.message import Message
from fedgraft.core.method import Method
from fedgraft.core.samples import Samples


@dataclass(frozen=True)
class Outcome:
    """What came of one client's training: its reply and how it went.

    ``round`` is the one that the reply answers, by the client's own account; an engine that cannot hear an old reply
    leaves it out.
    """

    reply: Message
    loss: float
    steps: int
    seconds: float
    round: int | None = None


@dataclass(frozen=True)
class Failure:
    """A client that gave no reply, and why."""

    reason: str


def contact(method: Method, client: Client) -> None:
    """Let the method prepare a client that it meets for the first time."""
    if "joined" not in client:
        method.join(client)
        client["joined"] = torch.ones((), dtype=client.layout.dtype, device=client.device)


def train(method: Method, client: Client, message: Message) -> Message:
    """Receive, train, reply; the client keeps its trained weights as ``own``."""
    received = receive(method, client, message)
    looks = type(method).reply is not Method.reply  # at what was received, when it may be something else after ``fit``
    return answer(method, client, received, method.fit(client, received.clone() if looks else received))


def receive(method: Method, client: Client, message: Message) -> Tensor:
    """Return the weights that a client trains from."""
    contact(method, client)
    return method.assemble(client, message)


def answer(method: Method, client: Client, received: Tensor, trained: Tensor) -> Message:
    """Reply with what was trained, and keep it."""
    insist_on_weights(method, client, assemble=received, fit=trained)
    reply = method.reply(client, received, trained)
    client["own"] = trained
    return reply


def evaluate(method: Method, client: Client, message: Message, everyone: Samples | None = None) -> Scores:
    """Test the client's own model at both points, each on a fork of its own: nothing done here survives."""
    client = client.fork()
    contact(method, client)
    sets = {"test": client.data.test, "validation": client.data.validation, "everyone": everyone}
    scores: dict[str, dict[Point, Score]] = {
        name: {} for name, samples in sets.items() if samples is not None and len(samples)
    }
    for point in POINTS:
        fork = client.fork()
        predict = method.personal(fork, message, fork.own if point == "trained" else None)
        for name in scores:
            samples = sets[name]
            assert samples is not None
            scores[name][point] = score(fork, predict, samples)
    return Scores(**scores)


def insist_on_weights(method: Method, client: Client, **given: Tensor) -> None:
    """Refuse weights that no network has, by the hook that gave them."""
    for hook, weights in given.items():
        if weights.shape != (client.layout.size,):
            raise ContractError(
                f"{method.name}.{hook} gave a tensor of shape {list(weights.shape)}; "
                f"the network has {client.layout.size} weights"
            )
