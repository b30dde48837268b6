"""The boundary: replies of clients, broken or hostile, for every method.

A reply in which a field is missing, surplus, of another type or shape, not finite or out of its range is refused, and
it alone. One that is merely strange (huge, tiny, all zero) may be taken or refused. Whatever comes, the server stays
finite and serves everybody.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from random import Random

import torch
from torch import Tensor

from fedgraft.base.errors import UserError
from fedgraft.core.client import ClientId
from fedgraft.core.evaluation import Scores
from fedgraft.core.exchange import Failure, Outcome
from fedgraft.core.message import Field, Message, objection
from fedgraft.core.method import Method, Server
from fedgraft.core.rounds import Participation, deliver, rounds
from fedgraft.engines.local import LocalEngine
from fedgraft.methods import METHODS
from fedgraft.runs.config import configure
from fedgraft.runs.run import plan
from trials.fuzz import Attempt
from trials.fuzz.federation import network, small_federation

DTYPES = [torch.float32, torch.float64, torch.float16, torch.int64, torch.int8, torch.uint8, torch.bool]


@dataclass
class Scene:
    """A method in the middle of a run: its server, what it expects, and what honest clients answer."""

    method: Method
    server: Server
    state: dict[str, Tensor]
    replies: dict[ClientId, Message]


class Puppets:
    """An engine whose clients answer with what they are told to."""

    def __init__(self, replies: Mapping[ClientId, Message]) -> None:
        self.replies, self.accepted = replies, set[ClientId]()

    def train(self, round: int, messages: Mapping[ClientId, Message]) -> Mapping[ClientId, Outcome | Failure]:
        return {client: Outcome(self.replies[client], 0.0, 1, 0.0) for client in messages}

    def commit(self, accepted: Collection[ClientId]) -> None:
        self.accepted |= set(accepted)

    def evaluate(self, round: int, messages: Mapping[ClientId, Message]) -> Mapping[ClientId, Scores]:
        return {}

    def observe(self) -> Mapping[str, Tensor]:
        return {}


def prepare() -> Attempt:
    """Let every method serve honest clients for a round, and keep what they answer in the second."""
    scenes = [_scene(METHODS.make(name)) for name in METHODS]

    def attempt(rng: Random, _: Path) -> None:
        scene = rng.choice(scenes)
        scene.server.restore({name: tensor.clone() for name, tensor in scene.state.items()}, 1)
        culprit = rng.randrange(4)
        expected = scene.method.expects(scene.server, culprit)
        honest = scene.replies[culprit]
        assert objection(honest, expected) is None
        reply, wrong = _altered(rng, honest, expected)
        assert bool(objection(reply, expected)) or not wrong, f"{scene.method.name}: {wrong} passed"
        engine = Puppets({**scene.replies, culprit: reply})
        this = next(iter(rounds(scene.method, scene.server, engine, Participation(), evaluate_every=100)))
        refused = {refusal.client for refusal in this.refused}
        assert refused <= {culprit}, this.refused
        assert refused or not wrong
        assert engine.accepted == set(range(4)) - refused
        for holder in (scene.server, *(scene.method.send(scene.server, c) for c in range(4)), this.observed):
            for name, tensor in holder.items():
                assert bool(torch.isfinite(tensor).all()), f"{scene.method.name}: {name} is not finite"
        if this.refused:
            raise UserError(this.refused[0].reason)

    return attempt


def _scene(method: Method) -> Scene:
    run = plan(method, small_federation(), configure({"rounds": 3, "batch_size": 8, "epochs": 1}), network)
    server = method.setup(run.spec)
    with LocalEngine(method, run.spec, run.federation.clients) as engine:
        next(iter(rounds(method, server, engine, Participation())))
        outcomes = engine.train(1, deliver(method, server, range(4)))
    replies = {client: outcome.reply for client, outcome in outcomes.items() if isinstance(outcome, Outcome)}
    return Scene(method, server, {name: tensor.clone() for name, tensor in server.items()}, replies)


def _altered(rng: Random, honest: Message, expected: Mapping[str, Field]) -> tuple[Message, str]:
    """Change a reply; say what is wrong with it, or nothing if it is only strange."""
    fields = dict(honest.copy())
    if not fields or rng.random() < 0.1:
        return Message(**fields, **{rng.choice(["more", "weights2", "__class__", "", "½"]): 1.0}), "a surplus field"
    name = rng.choice(list(fields))
    tensor, field, kind = fields[name], expected[name], rng.randrange(9)
    at = rng.randrange(tensor.numel()) if tensor.numel() else None
    if kind == 0:
        del fields[name]
        return Message(**fields), "a missing field"
    if kind == 1:
        fields[name + rng.choice(["_", " ", "2"])] = fields.pop(name)
        return Message(**fields), "a renamed field"
    if kind == 2:
        dtype = rng.choice([dtype for dtype in DTYPES if dtype != tensor.dtype])
        fields[name] = tensor.to(dtype)
        return Message(**fields), "another type"
    if kind == 3:
        fields[name] = rng.choice([
            tensor.flatten()[:-1], tensor[None], torch.cat([tensor.flatten(), tensor.flatten()[:1], tensor.flatten()]),
            tensor.new_zeros(0), tensor.new_zeros((0, *tensor.shape)),
        ])  # fmt: skip
        return Message(**fields), "" if fields[name].shape == field.shape else "another shape"
    if at is None:
        return Message(**fields), ""
    flat = fields[name].reshape(-1)
    if kind == 4 and tensor.is_floating_point():
        flat[at] = rng.choice([torch.nan, torch.inf, -torch.inf])
        return Message(**fields), "a value that is not finite"
    if kind == 5 and tensor.dtype != torch.bool and (field.low is not None or field.high is not None):
        below = field.low is not None and (field.high is None or rng.random() < 0.5)
        beyond = rng.choice([1, 100, 120]) * rng.choice([0.01, 1] if tensor.is_floating_point() else [1])
        flat[at] = field.low - beyond if below else (field.high or 0) + beyond
        return Message(**fields), "a value out of range"
    return Message(**{**fields, name: _strange(rng, tensor, at)}), ""


def _strange(rng: Random, tensor: Tensor, at: int) -> Tensor:
    """Odd values of the right type: a single one, or all of them."""
    if tensor.is_floating_point():
        top = torch.finfo(tensor.dtype).max
        odd = rng.choice([0.0, -0.0, 1e-45, 1e6, 1e18, 1e30, -1e30, top, -top])
    elif tensor.dtype == torch.bool:
        return ~tensor
    else:
        odd = rng.choice([0, 1, torch.iinfo(tensor.dtype).max, torch.iinfo(tensor.dtype).min])
    changed = tensor.clone()
    if rng.random() < 0.5:
        changed.view(-1)[at] = odd
    else:
        changed.fill_(odd)
    return changed
