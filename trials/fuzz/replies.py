"""The boundary: replies of clients, broken or hostile, for every method.

A reply in which a field is missing, surplus, of another type or shape, not finite or out of its range is refused, and
it alone. One that is merely strange (huge, tiny, all zero) may be taken or refused. Whatever comes, the server stays
finite and serves everybody.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import torch
from hypothesis import strategies as st
from hypothesis.strategies import DrawFn
from torch import Tensor

from fedgraft.base.errors import UserError
from fedgraft.core.client import ClientId
from fedgraft.core.engine import Engine
from fedgraft.core.evaluation import Scores
from fedgraft.core.exchange import Failure, Outcome
from fedgraft.core.message import Field, Message, objection
from fedgraft.core.method import Method, Server
from fedgraft.core.rounds import Participation, deliver, rounds
from fedgraft.engines.local import LocalEngine
from fedgraft.methods import METHODS
from fedgraft.runs.config import configure
from fedgraft.runs.run import plan
from trials.fuzz import Reader
from trials.fuzz.federation import network, small_federation

DTYPES = [torch.float32, torch.float64, torch.float16, torch.int64, torch.int8, torch.uint8, torch.bool]


@dataclass
class Scene:
    """A method in the middle of a run: its server, what it expects, and what honest clients answer."""

    method: Method
    server: Server
    state: dict[str, Tensor]
    replies: dict[ClientId, Message]
    expected: dict[ClientId, Mapping[str, Field]]

    def _repr_pretty_(self, printer: Any, _: bool) -> None:  # what Hypothesis shows of it
        printer.text(self.method.name)


@dataclass
class Case:
    """One client's reply is altered; ``wrong`` says what may not pass, or nothing if it is only strange."""

    scene: Scene
    culprit: ClientId
    reply: Message
    wrong: str


class Puppets:
    """An engine whose clients answer with what they are told to."""

    quorum = 0
    sets = ("test",)

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


def prepare() -> Reader:
    """Let every method serve honest clients for a round, and keep what they answer in the second."""
    return Reader(_cases([_scene(METHODS.make(name)) for name in METHODS]), _attempt)


@st.composite
def _cases(draw: DrawFn, scenes: list[Scene]) -> Case:
    scene, culprit = draw(st.sampled_from(scenes)), draw(st.integers(0, 3))
    return Case(scene, culprit, *draw(_altered(scene.replies[culprit], scene.expected[culprit])))


def _attempt(case: Case, _: Path) -> None:
    scene, culprit, wrong = case.scene, case.culprit, case.wrong
    scene.server.restore({name: tensor.clone() for name, tensor in scene.state.items()}, 1)
    expected = scene.method.expects(scene.server, culprit)
    assert objection(scene.replies[culprit], expected) is None
    assert bool(objection(case.reply, expected)) or not wrong, f"{scene.method.name}: {wrong} passed"
    engine = Puppets({**scene.replies, culprit: case.reply})
    this = next(iter(rounds(scene.method, scene.server, cast(Engine, engine), Participation(), evaluate_every=100)))
    refused = {refusal.client for refusal in this.refused}
    assert refused <= {culprit}, this.refused
    assert refused or not wrong
    assert engine.accepted == set(range(4)) - refused
    for holder in (scene.server, *(scene.method.send(scene.server, c) for c in range(4)), this.observed):
        for name, tensor in holder.items():
            assert bool(torch.isfinite(tensor).all()), f"{scene.method.name}: {name} is not finite"
    if this.refused:
        raise UserError(this.refused[0].reason)


def _scene(method: Method) -> Scene:
    federation = small_federation()
    run = plan(method, federation, configure({"rounds": 3, "batch_size": 8, "epochs": 1}), network)
    server = method.setup(run.spec)
    with LocalEngine(method, run.spec, federation.clients) as engine:
        next(iter(rounds(method, server, engine, Participation())))
        outcomes = engine.train(1, deliver(method, server, range(4)))
    replies = {client: outcome.reply for client, outcome in outcomes.items() if isinstance(outcome, Outcome)}
    state = {name: tensor.clone() for name, tensor in server.items()}
    return Scene(method, server, state, replies, {client: method.expects(server, client) for client in replies})


@st.composite
def _altered(draw: DrawFn, honest: Message, expected: Mapping[str, Field]) -> tuple[Message, str]:
    """Change a reply; say what is wrong with it, or nothing if it is only strange."""
    fields = dict(honest.copy())
    kinds = ["strange", "missing", "renamed", "type", "shape", "finite", "range", "surplus"]
    kind = draw(st.sampled_from(kinds)) if fields else "surplus"
    if kind == "surplus":
        more = draw(st.sampled_from(["more", "weights2", "__class__", "", "½"]))
        return Message(**fields, **{more: 1.0}), "a surplus field"
    name = draw(st.sampled_from([*fields]))
    tensor, field = fields.pop(name), expected[name]
    if kind == "missing":
        return Message(**fields), "a missing field"
    if kind == "renamed":
        return Message(**fields, **{name + draw(st.sampled_from(["_", " ", "2"])): tensor}), "a renamed field"
    altered, wrong = draw(_altered_field(kind, tensor, field))
    return Message(**fields, **{name: altered}), wrong


@st.composite
def _altered_field(draw: DrawFn, kind: str, tensor: Tensor, field: Field) -> tuple[Tensor, str]:
    flat = tensor.flatten()
    if kind == "type":
        return tensor.to(draw(st.sampled_from([dtype for dtype in DTYPES if dtype != tensor.dtype]))), "another type"
    if kind == "shape":
        other = draw(st.sampled_from([
            flat[:-1], tensor[None], torch.cat([flat, flat[:1], flat]),
            tensor.new_zeros(0), tensor.new_zeros((0, *tensor.shape)),
        ]))  # fmt: skip
        return other, "" if other.shape == field.shape else "another shape"
    if not tensor.numel():
        return tensor, ""
    changed, at = tensor.clone(), draw(st.integers(0, tensor.numel() - 1))
    if kind == "finite" and tensor.is_floating_point():
        changed.view(-1)[at] = draw(st.sampled_from([torch.nan, torch.inf, -torch.inf]))
        return changed, "a value that is not finite"
    if kind == "range" and tensor.dtype != torch.bool and (field.low is not None or field.high is not None):
        below = field.low is not None and (field.high is None or draw(st.booleans()))
        beyond: float = draw(st.sampled_from([1, 100, 120]))
        if tensor.is_floating_point():
            beyond *= draw(st.sampled_from([0.01, 1]))
        changed.view(-1)[at] = (field.low or 0) - beyond if below else (field.high or 0) + beyond
        return changed, "a value out of range"
    return draw(_strange(tensor, at)), ""


@st.composite
def _strange(draw: DrawFn, tensor: Tensor, at: int) -> Tensor:
    """Odd values of the right type: a single one, or all of them."""
    if tensor.dtype == torch.bool:
        return ~tensor
    if tensor.is_floating_point():
        top = torch.finfo(tensor.dtype).max
        odd = draw(st.sampled_from([0.0, -0.0, 1e-45, 1e6, 1e18, 1e30, -1e30, top, -top]))
    else:
        odd = draw(st.sampled_from([0, 1, torch.iinfo(tensor.dtype).max, torch.iinfo(tensor.dtype).min]))
    if draw(st.booleans()):
        return torch.full_like(tensor, odd)
    changed = tensor.clone()
    changed.view(-1)[at] = odd
    return changed
