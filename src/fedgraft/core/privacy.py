"""Differential privacy of each client's samples: whether a method can have it, and the noise that it takes.

What is covered is what training through ``client.train`` makes, for there every gradient is clipped and noised. Weights
that never leave are noised too, as long as they are trained together with those that do, or before them: the gradient
of the shared part depends on a private head, and with a head that knows the samples without noise the contribution of
one sample to that gradient would have no bound. Only trainings that the method names ``aside`` are as without privacy.
"""

from dataclasses import replace

import torch

from fedgraft.base.errors import UserError
from fedgraft.core import exchange
from fedgraft.core.budget import Budget, multiplier
from fedgraft.core.client import Client, ClientId
from fedgraft.core.method import Method, Server
from fedgraft.core.model import Architecture
from fedgraft.core.rounds import Participation
from fedgraft.core.samples import ClientData, Samples
from fedgraft.core.settings import Training
from fedgraft.core.spec import Spec
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
    steps = _steps(method, replace(spec, budget=empty))
    picked = [participation.pick(spec.seed, number, spec.clients) for number in range(spec.rounds)]
    rounds = tuple(sum(client in each for each in picked) for client in range(spec.clients))
    counts = [each * times for each, times in zip(steps, rounds, strict=True)]
    noises = tuple(_noise(settings, rate, count) for rate, count in zip(rates, counts, strict=True))
    budget = replace(empty, noises=noises, steps=steps, rounds=rounds)
    if settings.noise is not None and settings.epsilon is not None:
        _insist_on_budget(budget, spec)
    return budget


def _noise(settings: Training, rate: float, steps: int) -> float:
    """The noise of a client that makes so many steps in the whole run: as told, or as epsilon needs it."""
    if not rate or not steps:
        return 0.0
    if settings.noise is not None:
        return settings.noise
    assert settings.epsilon is not None
    assert settings.delta is not None
    return multiplier(settings.epsilon, settings.delta, rate, steps)


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


def _steps(method: Method, spec: Spec) -> tuple[int, ...]:
    """How many noised steps each client makes when it is asked; alike for clients with as many samples."""
    server, known = method.setup(spec), dict[tuple[int, int], int]()
    for client, kind in enumerate(zip(spec.samples, spec.assignment, strict=True)):
        if kind not in known:
            known[kind] = _counted(method, server, client) if kind[0] else 0
    return tuple(known[kind] for kind in zip(spec.samples, spec.assignment, strict=True))


def _counted(method: Method, server: Server, client: ClientId) -> int:
    """Count the noised steps of a client by letting it train on nothing, in the first and in the last round."""
    spec, found = server.spec, 0
    example, many = spec.architecture(client).example[:1], spec.samples[client]
    blank = Samples(example.expand(many, *example.shape[1:]), torch.zeros(many, dtype=torch.int64))
    data = ClientData(blank, blank.subset(torch.arange(0)), blank.subset(torch.arange(0)))
    for number in sorted({0, spec.rounds - 1}):
        state = {"own": spec.initial(client, method.independent_start)}
        dummy = Client(client, state, data, spec, Workbench(), round=number)
        dummy.counted = 0
        exchange.train(method, dummy, method.send(server, client).copy())
        found = max(found, dummy.counted)
    return found
