"""Differential privacy of each client's samples: whether a method can have it, and the noise that it takes.

What is covered is what training through ``client.train`` makes, for there every gradient is clipped and noised, and
sums over samples that ``client.tell`` noises. Weights that never leave are noised too, as long as they are trained
together with those that do, or before them: the gradient of the shared part depends on a private head, and with a head
that knows the samples without noise the contribution of one sample to that gradient would have no bound. Only trainings
that the method names ``aside`` are as without privacy.

Differential privacy of whole clients is planned here too; what it does is in ``core/clientlevel.py``.
"""

from dataclasses import replace

import torch

from fedgraft.base.errors import UserError
from fedgraft.core import exchange
from fedgraft.core.budget import Budget, multiplier
from fedgraft.core.client import Client, ClientId
from fedgraft.core.clientlevel import ClientPrivacy
from fedgraft.core.method import Method, Server, sums_of
from fedgraft.core.model import Architecture
from fedgraft.core.rounds import Participation
from fedgraft.core.samples import ClientData, Samples
from fedgraft.core.secure import Secure
from fedgraft.core.settings import FEATURE_CLIP, Training
from fedgraft.core.spec import Spec
from fedgraft.core.stages import Averaging
from fedgraft.core.workbench import Workbench

CLIENT_HALF = ("expects", "join", "assemble", "loss", "plan", "fit", "reply")
"""Hooks that decide what leaves a client."""


def objection(method: Method) -> str | None:
    """Say why the noise of private training does not cover what a method sends, or nothing."""
    told = _place(method, "discloses")
    for hook in CLIENT_HALF:
        if _place(method, hook) < told:
            return f"it has its own {hook}, and discloses() does not say what that makes of the client's samples"
    for entry, how in method.discloses().items():
        return f"{entry!r} in its replies is {how}, which no noise covers"
    return None


def _aside(method: Method) -> tuple[str, ...]:
    """The trainings that need no noise, unless only a class that knew nothing of this client half said so."""
    return method.aside if _place(method, "aside") <= _place(method, "discloses") else ()


def _place(method: Method, name: str) -> int:
    """How far up a method's classes something is said: 0 is its own."""
    return next(place for place, kind in enumerate(type(method).__mro__) if name in vars(kind))


def insist_on_network(architecture: Architecture, buffers: str) -> None:
    """Refuse a network in which samples reach each other, or weights, past the noise."""
    layout = architecture.layout
    if architecture.model().normalises_batches:
        raise UserError(
            "BatchNorm mixes the samples of a batch, so that no sample's gradient can be bounded: "
            "differential privacy needs a network without it (GroupNorm and LayerNorm will do)"
        )
    held = layout.buffers("all")
    if held.start < held.stop and buffers != "keep":
        raise UserError(
            "the network has buffers that training may change without noise: under differential privacy they have to "
            "stay as they began (buffers = keep)"
        )
    if architecture.state:
        raise UserError(
            f"the network keeps state in Python ({architecture.state[0]}), which differential privacy does not cover"
        )


def planned(method: Method, spec: Spec, participation: Participation) -> Budget:
    """Choose each client's noise so that the whole run stays in the budget, or say why that cannot be."""
    if complaint := objection(method):
        raise UserError(f"{method.name} cannot be run with differential privacy: {complaint}")
    for architecture in spec.architectures:
        insist_on_network(architecture, spec.settings.buffers)
    settings = spec.settings
    assert settings.delta is not None
    assert settings.sample_clip is not None
    rates = tuple(min(1.0, settings.batch_size / count) if count else 0.0 for count in spec.samples)
    none = (0,) * spec.clients
    empty = Budget(settings.sample_clip, settings.delta, rates, none, none, none, frozenset(_aside(method)))
    empty = replace(empty, feature_clip=settings.feature_clip or FEATURE_CLIP)
    steps, sums = _steps(method, replace(spec, budget=empty))
    rounds = _asked(spec, participation)
    counts = [each * times for each, times in zip(steps, rounds, strict=True)]
    told = [each * times for each, times in zip(sums, rounds, strict=True)]
    besides = [(_sum_noise(settings, count, method.told_share), count) for count in told]
    known = zip(rates, counts, besides, strict=True)
    noises = tuple(_noise(settings, rate, count, beside) for rate, count, beside in known)
    budget = replace(empty, noises=noises, steps=steps, rounds=rounds)
    if any(sums):
        budget = replace(budget, sums=sums, sum_noises=tuple(noise for noise, _ in besides))
    if settings.noise is not None and settings.epsilon is not None:
        _insist_on_budget(budget, spec)
    return budget


def _asked(spec: Spec, participation: Participation) -> tuple[int, ...]:
    """In how many rounds each client takes part, or may take part, where the server draws them in secret."""
    if participation.poisson:
        return (spec.rounds,) * spec.clients
    picked = [participation.pick(spec.seed, number, spec.clients) for number in range(spec.rounds)]
    return tuple(sum(client in each for each in picked) for client in range(spec.clients))


def _sum_noise(settings: Training, sums: int, share: float) -> float:
    """The noise of so many sums over all samples in the whole run: as told, or as their share of epsilon needs it."""
    if not sums:
        return 0.0
    if settings.noise is not None:
        return settings.noise
    assert settings.epsilon is not None
    assert settings.delta is not None
    return multiplier(settings.epsilon * share, settings.delta, 1.0, sums)


def _noise(settings: Training, rate: float, steps: int, beside: tuple[float, int]) -> float:
    """The noise of a client that makes so many steps in the whole run: as told, or as epsilon needs it."""
    if not rate or not steps:
        return 0.0
    if settings.noise is not None:
        return settings.noise
    assert settings.epsilon is not None
    assert settings.delta is not None
    return multiplier(settings.epsilon, settings.delta, rate, steps, beside)


def _insist_on_budget(budget: Budget, spec: Spec) -> None:
    """Refuse a run that would spend more than it has, and say how far it could go."""
    allowed = spec.settings.epsilon
    assert allowed is not None
    for client, times in enumerate(budget.rounds):
        if (spent := budget.spent(client)) > allowed:
            most = next((n for n in range(times, 0, -1) if budget.spent(client, n) <= allowed), 0)
            raise UserError(
                f"with noise {spec.settings.noise:g}, {spec.called(client)} would spend epsilon {spent:.3g} in {times} "
                f"rounds, more than {allowed:g}: it could be asked {most} times. Leave noise out, and it is chosen"
            )


def _steps(method: Method, spec: Spec) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """How many noised steps each client makes when it is asked, and how many sums it tells, by its samples."""
    server, known = method.setup(spec), dict[tuple[int, int], tuple[int, int]]()
    kinds = list(zip(spec.samples, spec.assignment, strict=True))
    for client, kind in enumerate(kinds):
        if kind not in known:
            known[kind] = _counted(method, server, client) if kind[0] else (0, 0)
    return tuple(known[kind][0] for kind in kinds), tuple(known[kind][1] for kind in kinds)


def _counted(method: Method, server: Server, client: ClientId) -> tuple[int, int]:
    """Count a client's noised steps and sums by letting it train on nothing, in the first and in the last round."""
    spec, steps, sums = server.spec, 0, 0
    example, many = spec.architecture(client).example[:1], spec.samples[client]
    blank = Samples(example.expand(many, *example.shape[1:]), torch.zeros(many, dtype=torch.int64))
    data = ClientData(blank, blank.subset(torch.arange(0)), blank.subset(torch.arange(0)))
    for number in sorted({0, spec.rounds - 1}):
        state = {"own": spec.initial(client, method.independent_start)}
        dummy = Client(client, state, data, spec, Workbench(), round=number)
        dummy.counted = 0
        exchange.train(method, dummy, method.send(server, client).copy())
        steps, sums = max(steps, dummy.counted), max(sums, len(dummy.told))
    return steps, sums


# ---- whole clients


def sums_objection(method: Method, spec: Spec) -> str | None:
    """Say why the noised mean of the clients' updates cannot take the place of their replies, or nothing."""
    server = method.setup(spec)
    expected = method.expects(server, 0)
    if not expected:
        return None
    if not sums_of(method):
        return f"its server needs what each client sends ({', '.join(expected)}), not only the sum of it"
    if type(method).waves is not Method.waves:
        return "its clients are served in several waves of a round, and each of them would cost as much as a round"
    server.round = spec.rounds - 1
    if expected != method.expects(server, 0):
        return f"what it sends ({', '.join(expected)}) is not the same part of the network in every round"
    if other := next((name for name, field in expected.items() if not field.dtype.is_floating_point), None):
        return f"{other!r} in its replies is no number that could be noised"
    return None


def planned_for_clients(method: Method, spec: Spec, participation: Participation) -> ClientPrivacy:
    """Choose the noise in the sum of updates so that the whole run stays in the budget, or say why that cannot be."""
    settings, secure = spec.settings, spec.pipeline.gathering
    _insist_on_sums(method, spec, participation)
    assert settings.delta is not None
    assert settings.client_clip is not None
    asked = _asked(spec, participation)
    expected = participation.low * spec.clients
    if not participation.poisson:
        expected = len(participation.pick(spec.seed, 0, spec.clients))
    rate = participation.low if participation.poisson else 1.0
    noise = settings.client_noise
    if noise is None:
        assert settings.client_epsilon is not None
        noise = multiplier(settings.client_epsilon, settings.delta, rate, max(asked))
    made = ClientPrivacy(
        settings.client_clip, noise, settings.delta, rate, expected, asked,
        sharing=secure.least(int(expected)) if isinstance(secure, Secure) else 0,
        quantile=settings.client_quantile,
        answers=method.answers,
    )  # fmt: skip
    spent = max(made.spent(client) for client in range(spec.clients))
    if settings.client_epsilon is not None and spent > settings.client_epsilon:
        raise UserError(
            f"with client_noise {noise:g} a client would spend epsilon {spent:.3g} in {max(asked)} rounds, more than "
            f"{settings.client_epsilon:g}. Leave client_noise out, and it is chosen"
        )
    return made


def _insist_on_sums(method: Method, spec: Spec, participation: Participation) -> None:
    """Refuse methods, networks and settings that clients' privacy cannot be had with."""
    if complaint := sums_objection(method, spec):
        raise UserError(f"{method.name} cannot be run with differential privacy of clients: {complaint}")
    if len(spec.architectures) > 1:
        raise UserError("differential privacy of clients adds up models, so all clients need the same architecture")
    held = spec.layout(0).buffers("all")
    if held.start < held.stop and spec.settings.buffers == "average":
        raise UserError(
            "noise can make the network's buffers (BatchNorm statistics) impossible: with differential privacy of "
            "clients they have to stay where they are (buffers = local, or keep)"
        )
    if participation.low != participation.high:
        raise UserError("differential privacy of clients is counted for one share of them in a round, not for a range")
    if idle := [stage.name for stage in spec.pipeline.stages if isinstance(stage, Averaging)]:
        raise UserError(f"with differential privacy of clients there is one noised mean: {idle[0]} has nothing to do")
