"""A client that was not there in training gets a model of its own from a federation that stays as it is.

The newcomer works with a copy of the server in which it is the last client: whatever the method learns of it there, the
server and all other clients are what they were, to the bit. Each newcomer has a copy of its own, so that none sees
another.
"""

from collections.abc import Callable
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from fedgraft.base.errors import UserError
from fedgraft.base.foreign import plain
from fedgraft.core import streams
from fedgraft.core.client import Client, ClientId
from fedgraft.core.evaluation import Scores
from fedgraft.core.exchange import contact
from fedgraft.core.message import Message
from fedgraft.core.method import Method, Server, Spec
from fedgraft.core.rounds import Refusal, Round, accepted, deliver
from fedgraft.core.samples import ClientData, Samples
from fedgraft.core.settings import Training
from fedgraft.core.state import State
from fedgraft.core.workbench import Workbench
from fedgraft.engines.states import first_states
from fedgraft.engines.workshop import Job, Workshop, single_thread


class NewcomerError(UserError):
    """A newcomer that could not join: its data, or the method's code, did not get through."""


@dataclass(frozen=True, eq=False)
class Newcomer:
    """Who comes: its name, its data, and which of the federation's architectures it runs."""

    name: str
    data: ClientData
    kind: int = 0


@dataclass(frozen=True, eq=False)
class Joined:
    """What came of it: the copy of the server that knows the newcomer, and the newcomer's own state and figures."""

    server: Server
    state: State
    scores: Scores
    steps: int
    bytes_up: int
    bytes_down: int
    refused: list[Refusal] = field(default_factory=list)

    @property
    def client(self) -> ClientId:
        """The newcomer's number in its copy: it is the last."""
        return self.server.spec.clients - 1


def insist_on_newcomers(method: Method, spec: Spec) -> None:
    """Refuse, before anything is done, what a method cannot do."""
    reason = method.refuses_newcomers
    if spec.budget is not None:
        reason = "the run has differential privacy, and its budget knows nothing of such a client's samples"
    if reason:
        raise UserError(f"{method.name} cannot serve a client that was not there in training: {reason}")


def welcome(
    method: Method,
    server: Server,
    newcomer: Newcomer,
    rounds: int,
    *,
    settings: Training | None = None,
    device: str = "cpu",
    progress: Callable[[int], None] = lambda _: None,
) -> Joined:
    """Let a newcomer receive, train, and reply where the method has a use for that, for some rounds; then test it."""
    insist_on_newcomers(method, server.spec)
    try:
        with single_thread(), streams.untouched():
            return _joined(method, _copied(method, server, newcomer, rounds, settings), newcomer, device, progress)
    except UserError:
        raise
    except Exception as error:  # of somebody's own method or model
        said = plain(f"{type(error).__name__}: {error}")
        raise NewcomerError(f"{newcomer.name} could not join {method.name}: {said}") from error


def common(method: Method, server: Server, kind: int = 0) -> Tensor | None:
    """Return the model with which a federation would let somebody begin of whom it knows nothing, or None.

    It is what a newcomer holds after its first download, before it has trained: all of FedAvg's model; FedPer's
    extractor with the head that everybody began with. Nobody's samples have a say in it.
    """
    if method.nothing_common:
        return None
    architecture = server.spec.architectures[kind]
    blank = Samples(architecture.example[:1], torch.zeros(1, dtype=torch.int64))
    nothing = blank.subset(torch.arange(0))
    stranger = Newcomer("a stranger", ClientData(blank, nothing, nothing), kind)
    with single_thread(), streams.untouched():
        copy = _copied(method, server, stranger, 1, None)
        number = copy.spec.clients - 1
        first = first_states(method, copy.spec, [number])[number]
        client = Client(number, first, stranger.data, copy.spec, Workbench(), round=0, purpose="join")
        client.counted = 0  # it trains on nothing
        contact(method, client)
        received = method.assemble(client, method.dispatch(copy, [number])[number].copy())
    return None if torch.equal(received, first["own"]) else received


def _joined(method: Method, copy: Server, newcomer: Newcomer, device: str, progress: Callable[[int], None]) -> Joined:
    """Do all rounds of a newcomer with its copy of the server."""
    place = torch.device(device)
    spec, client = copy.spec, copy.spec.clients - 1
    state = first_states(method, spec, [client])[client]
    data = {client: newcomer.data}
    workshop = Workshop(method, spec, data, place, newcomer=newcomer.name)
    whole, steps, message = Round(0), 0, deliver(method, copy, [client])[client]
    whole.bytes_down += message.nbytes
    for number in range(spec.rounds):
        copy.round = number
        if number and method.newcomers == "rounds":  # else the server has nothing new to say
            message = deliver(method, copy, [client])[client]
            whole.bytes_down += message.nbytes
        state, taken = _round(method, copy, workshop, message, state, whole)
        steps += taken
        progress(number)
    message = deliver(method, copy, [client])[client]
    scores = workshop.perform(Job("evaluate", client, spec.rounds - 1, message, state)).scores
    assert scores is not None
    return Joined(copy, state, scores, steps, whole.bytes_up, whole.bytes_down, whole.refused)


def _copied(method: Method, server: Server, newcomer: Newcomer, rounds: int, settings: Training | None) -> Server:
    """Copy the server, with room for one client more."""
    old = server.spec
    spec: Spec = replace(
        old,
        samples=(*old.samples, len(newcomer.data.train)),
        assignment=(*old.assignment, newcomer.kind),
        names=(*map(old.called, range(old.clients)), newcomer.name),
        rounds=rounds, share=1.0, settings=settings or old.settings,
    )  # fmt: skip
    copy = Server(spec, **{name: tensor.clone() for name, tensor in server.items()})
    method.admit(copy, spec.clients - 1)
    return copy


def _round(
    method: Method, server: Server, workshop: Workshop, message: Message, state: State, whole: Round
) -> tuple[State, int]:
    """Do one round of the newcomer; return its state, as before if the server refused the reply, and its steps."""
    client, number = server.spec.clients - 1, server.round
    done = workshop.perform(Job("join", client, number, message, state))
    assert done.outcome is not None
    assert done.state is not None
    if method.newcomers != "rounds":
        return done.state, done.outcome.steps
    seen = {client: server.spec.pipeline.decode("down", message, {})}
    whole.number = number
    taken = accepted(method, server, seen, {client: done.outcome}, whole)
    if not taken:
        return state, done.outcome.steps
    method.merge_newcomer(server, {client: taken[client].reply.copy()})
    return done.state, done.outcome.steps
