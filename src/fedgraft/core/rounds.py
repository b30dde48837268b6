"""The round loop. It exists once, and names no method and no engine."""

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from fedgraft.base.errors import ContractError, UserError
from fedgraft.base.foreign import plain
from fedgraft.core import streams
from fedgraft.core.client import ClientId
from fedgraft.core.clientlevel import CLIP
from fedgraft.core.crossing import copies
from fedgraft.core.engine import Engine
from fedgraft.core.evaluation import KINDS, POINTS, Point, Score, Scores, Summary
from fedgraft.core.exchange import Failure, Outcome
from fedgraft.core.inbox import blocks, collector, parted
from fedgraft.core.magnitude import finite
from fedgraft.core.message import Message, objection
from fedgraft.core.method import Method, Server, Spec, weight
from fedgraft.core.release import leaves
from fedgraft.core.stages import StageError


@dataclass(frozen=True)
class Participation:
    """How many clients take part in a round: a fixed share, or one drawn anew from a range."""

    low: float = 1.0
    high: float = 1.0
    poisson: bool = False
    """Whether each client takes part with that chance, whoever else does, so that their number varies too."""

    def pick(self, seed: int | str, round: int, clients: int) -> list[ClientId]:
        """Draw those who take part in a round, from a run's seed or from a secret of the server's."""
        rng = streams.generator(seed, "participation", round)
        if self.poisson:
            return [int(client) for client in (rng.random(clients) < self.low).nonzero()[0]]
        least, most = (max(1, round_half_up(share * clients)) for share in (self.low, self.high))
        return sorted(int(c) for c in rng.choice(clients, size=int(rng.integers(least, most + 1)), replace=False))


def round_half_up(value: float) -> int:
    """Round to the nearest whole number, halves upwards."""
    return int(value + 0.5)


@dataclass(frozen=True)
class Refusal:
    """A reply that did not come or that the server did not take, and why; the reason may be in a stranger's words."""

    client: ClientId
    reason: str

    def __post_init__(self) -> None:
        object.__setattr__(self, "reason", plain(self.reason))


@dataclass
class Round:
    """What happened in one round."""

    number: int
    participants: tuple[ClientId, ...] = ()
    refused: list[Refusal] = field(default_factory=list)
    accepted: int = 0
    """How many replies the server took."""
    heard: set[ClientId] = field(default_factory=set)
    """Of whom it took one at least; there may be several waves."""
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
    evaluate_clients: int | None = None,
) -> Iterator[Round]:
    """Run the rounds from ``server.round`` on, yielding each when it is complete.

    So many clients are evaluated, the same ones each time, drawn by the seed; all of them, unless told.
    A round in which fewer clients were heard than the engine's quorum is undone, as if it had not been, and repeated.
    """
    spec = server.spec
    examined = _examined(spec, evaluate_clients)
    while server.round < spec.rounds:
        number = server.round
        undo = _memory(server, engine) if engine.quorum else None
        this = _round(method, server, engine, participation)
        if undo is not None and len(this.heard) < (needed := min(engine.quorum, len(this.participants))):
            undo()
            reasons = "; ".join(refusal.reason for refusal in this.refused)
            few = f"round {number + 1} had {len(this.heard)} of the {needed} answers that it needs: {reasons}"
            engine.wait(engine.quorum, number, few)
            continue
        if server.round % evaluate_every == 0 or server.round == spec.rounds:
            _evaluate(method, server, engine, this, examined)
        yield this


def _examined(spec: Spec, count: int | None) -> Sequence[ClientId]:
    """Whose models are tested: everybody's, or those of so many, which are the same in every run with this seed."""
    if count is None or count >= spec.clients:
        return range(spec.clients)
    drawn = streams.generator(spec.seed, "evaluated").choice(spec.clients, size=count, replace=False)
    return sorted(int(client) for client in drawn)


def _memory(server: Server, engine: Engine) -> Callable[[], None]:
    """Return what makes server and clients again what they are now."""
    number, state, clients = server.round, {name: tensor.clone() for name, tensor in server.items()}, engine.snapshot()

    def undo() -> None:
        server.restore(state, number)
        engine.restore(clients)

    return undo


def _round(method: Method, server: Server, engine: Engine, participation: Participation) -> Round:
    """Let those who take part in a round train, wave by wave."""
    spec, number, started = server.spec, server.round, time.perf_counter()
    key = spec.seed if server.secrets is None else server.secrets.sampling(number)
    this = Round(number, tuple(participation.pick(key, number, spec.clients)))
    losses: list[tuple[float, int]] = []
    for wave in method.waves(server, number, this.participants):
        _serve(method, server, engine, wave, this, losses)
    total = sum(weight for _, weight in losses)
    this.loss = sum(loss * weight for loss, weight in losses) / total if total else float("nan")
    _insist_on_finite(method, server)
    this.observed = {k: v.clone() for k, v in {**method.observe(server), **engine.observe()}.items()}
    server.round = number + 1
    this.seconds = time.perf_counter() - started
    return this


def _evaluate(method: Method, server: Server, engine: Engine, this: Round, clients: Sequence[ClientId]) -> None:
    """Let the clients' own models be tested."""
    started = time.perf_counter()
    scores = _tested(method, server, engine, this, clients)
    for kind in KINDS:
        there = {client: s.sets[kind] for client, s in scores.items() if kind in s.sets}
        if there:
            setattr(this, kind, {p: _summary(server.spec, {c: s[p] for c, s in there.items()}) for p in POINTS})
    this.evaluation_seconds = time.perf_counter() - started


def _summary(spec: Spec, scores: Mapping[ClientId, Score]) -> Summary:
    return Summary.of(scores, spec.clients, spec.metrics)


def deliver(method: Method, server: Server, clients: Sequence[ClientId]) -> dict[ClientId, Message]:
    """Make the clients' messages, copied at the crossing and as they travel; ``send`` may not change the server."""
    before = {name: (id(tensor), tensor._version) for name, tensor in server.items()}
    messages = copies(method.dispatch(server, clients))
    if before != {name: (id(tensor), tensor._version) for name, tensor in server.items()}:
        raise ContractError(f"{method.name}.send changed the server's state")
    stages, told = server.spec.pipeline, _told_clip(server)
    encoded = {client: stages.encode("down", message, {}, {}) for client, message in messages.items()}
    return {client: Message(**message, **told) for client, message in encoded.items()} if told else encoded


def _told_clip(server: Server) -> dict[str, Tensor]:
    """Return what clients are told besides, where the norm to which updates are clipped adapts."""
    privacy = server.spec.client_privacy
    if privacy is None or privacy.quantile is None:
        return {}
    return {CLIP: server.get(CLIP, torch.tensor(privacy.clip, dtype=torch.float64))}


def _serve(
    method: Method,
    server: Server,
    engine: Engine,
    wave: Sequence[ClientId],
    this: Round,
    losses: list[tuple[float, int]],
) -> None:
    """Send to a wave of clients, refuse what is wrong with their replies, merge the rest."""
    collected, heard = collector(method, server), 0
    for block in blocks(method, server.spec, wave):
        seen, taken = _heard(method, server, engine, block, this)
        started = time.perf_counter()
        losses += [(o.loss, server.spec.samples[client]) for client, o in taken.items() if math.isfinite(o.loss)]
        heard += len(taken)
        this.heard |= taken.keys()
        engine.commit(taken.keys())
        collected.add(seen, {client: outcome.reply for client, outcome in taken.items()})
        this.server_seconds += time.perf_counter() - started
    started = time.perf_counter()
    this.accepted += heard
    undone = server.spec.client_privacy is not None and heard < min(engine.quorum, len(wave))
    if inbox := {} if undone else collected.inbox():  # below the quorum nothing is released, nor spent
        method.merge(server, inbox)
    this.server_seconds += time.perf_counter() - started


def _heard(
    method: Method, server: Server, engine: Engine, block: Sequence[ClientId], this: Round
) -> tuple[dict[ClientId, Message], dict[ClientId, Outcome]]:
    """Let a block of clients train; return what they saw of the messages to them, and what the server takes of it."""
    started = time.perf_counter()
    messages = deliver(method, server, block)
    this.bytes_down += sum(message.nbytes for message in messages.values())
    this.messages_down += len(messages)
    this.server_seconds += time.perf_counter() - started

    outcomes = engine.train(this.number, messages)

    started = time.perf_counter()
    stages = server.spec.pipeline
    seen = {client: stages.decode("down", message, {}) for client, message in messages.items()}
    taken = accepted(method, server, seen, outcomes, this)
    this.server_seconds += time.perf_counter() - started
    return seen, taken


def accepted(
    method: Method,
    server: Server,
    messages: Mapping[ClientId, Message],
    outcomes: Mapping[ClientId, Outcome | Failure],
    this: Round,
) -> dict[ClientId, Outcome]:
    """Count what came in, and sort out what the server does not take: each by itself, then beside the others."""
    sound: dict[ClientId, Outcome] = {}
    complaints: dict[ClientId, str | None] = {}
    gathered = _gathered(method, server, {c: o for c, o in outcomes.items() if c in messages})
    for client in (*sorted(messages), *sorted(outcomes.keys() - messages.keys())):
        outcome = outcomes.get(client, Failure("the client gave no answer"))
        if isinstance(outcome, Outcome):
            this.bytes_up += outcome.reply.nbytes
            this.messages_up += 1
            outcome = _decoded(server, gathered.get(client, outcome), messages.get(client))
        complaint = _objection(method, server, client, outcome, asked=client in messages)
        if isinstance(outcome, Outcome) and complaint is None:
            sound[client] = outcome
        else:
            complaints[client] = complaint
    judged = {}
    if server.spec.client_privacy is None:  # otherwise each is clipped, and none may decide what becomes of another
        judged = server.spec.pipeline.judge(server.spec, messages, {client: o.reply for client, o in sound.items()})
    complaints |= {client: f"the reply {complaint}" for client, complaint in judged.items()}
    for client, complaint in complaints.items():
        this.refused.append(Refusal(client, f"{method.name}, round {this.number + 1}: {complaint}"))
    return {client: outcome for client, outcome in sound.items() if client not in complaints}


def _gathered(
    method: Method, server: Server, outcomes: Mapping[ClientId, Outcome | Failure]
) -> dict[ClientId, Outcome | Failure]:
    """Let the stages make of the replies of a wave what the server gets of them."""
    spec, sent = server.spec, {client: o for client, o in outcomes.items() if isinstance(o, Outcome)}
    weights = {client: weight(method, spec, spec.samples[client]) for client in sent}
    replies = spec.pipeline.gather({client: o.reply for client, o in sent.items()}, weights)
    apart = Failure("the reply cannot be added to the others: it is not finite, too large, or of another shape")
    if spec.client_privacy is not None and len(replies) < (least := spec.client_privacy.sharing):
        replies, apart = {}, Failure(f"{len(replies)} clients are left, and it takes {least} to bring the noise")
    return {client: replace(o, reply=replies[client]) if client in replies else apart for client, o in sent.items()}


def _decoded(server: Server, outcome: Outcome | Failure, seen: Message | None) -> Outcome | Failure:
    """Make of what arrived the reply that was meant; ``seen`` is the message that the client answered."""
    if isinstance(outcome, Failure):
        return outcome
    try:
        reply = server.spec.pipeline.decode("up", outcome.reply, seen or {})
    except StageError as error:
        return Failure(f"the reply {error}")
    return outcome if reply is outcome.reply else replace(outcome, reply=reply)


def _objection(
    method: Method, server: Server, client: ClientId, outcome: Outcome | Failure, *, asked: bool
) -> str | None:
    """Say why the server does not take what came from a client, or nothing."""
    spec = server.spec
    if not asked:
        who = "a client that was not asked" if client in range(spec.clients) else "somebody who is no client"
        return f"the reply comes from {who}"
    if isinstance(outcome, Failure):
        return outcome.reason
    if outcome.round is not None and outcome.round != server.round:
        return f"the reply belongs to round {outcome.round + 1}"
    complaint = objection(outcome.reply, leaves(method, server, client))
    return complaint and f"the reply {complaint}"


def _tested(
    method: Method, server: Server, engine: Engine, this: Round, clients: Sequence[ClientId]
) -> dict[ClientId, Scores]:
    """Let clients test their own models; refuse figures that no test can have given, or that nobody asked for."""
    scores: dict[ClientId, Scores] = {}
    for block in parted(clients):
        scores |= engine.evaluate(this.number, deliver(method, server, block))
    if not engine.sets:
        return {}
    taken: dict[ClientId, Scores] = {}
    for client in (*clients, *sorted(scores.keys() - set(clients))):
        complaint = _doubt(server, engine, client, scores.get(client))
        if complaint is None:
            taken[client] = scores[client]
        else:
            this.refused.append(Refusal(client, f"{method.name}, round {this.number + 1}: {complaint}"))
    return taken


def _doubt(server: Server, engine: Engine, client: ClientId, scores: Scores | None) -> str | None:
    """Say why the server does not take a client's test figures, or nothing.

    A client may lack a set that others have: of a few samples nothing can be put aside for validation.
    """
    if client not in range(server.spec.clients):
        return "test figures come from somebody who is no client"
    if scores is None:
        return "the client's model could not be tested"
    if not scores.possible(server.spec.metrics):
        return "the test figures are impossible"
    for kind, total in scores.totals.items():
        if kind not in engine.sets:
            return f"there are {kind} figures, which nobody asked for"
        if total != (before := server.tested.setdefault((kind, client), total)):
            return f"the {kind} figures are of {total} samples, and were of {before} before"
    return None


def _insist_on_finite(method: Method, server: Server) -> None:
    """Stop before numbers that are none spread from the server to everybody: finite replies can still overflow."""
    for name, tensor in server.items():
        if tensor.is_floating_point() and not finite(tensor):
            raise UserError(
                f"{method.name}, round {server.round + 1}: what the server made of finite replies, {name!r}, is not "
                "finite; a smaller lr, or a smaller norm of the stage bound, may help"
            )
