"""Checks for a method of one's own: what fedgraft's own methods are held to.

    from fedgraft.testing import check_method
    check_method(Mine)                                # raises CheckError with every check that fails
    check_method(Mine, {"decay": {"period": 1}})      # decay acts only with another period

``fedgraft check ./mine.py:Mine`` does the same and prints what it did. The federations are small and made on the spot.
"""

import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import FrozenInstanceError, dataclass, fields, replace
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from fedgraft.base.errors import UserError
from fedgraft.core.client import Client
from fedgraft.core.evaluation import Score
from fedgraft.core.message import Message
from fedgraft.core.method import Method, Server, Spec
from fedgraft.core.model import Architecture
from fedgraft.core.rounds import Participation, Round, rounds
from fedgraft.core.samples import ClientData
from fedgraft.core.settings import Training
from fedgraft.data.federation import Federation, Site, own_data
from fedgraft.engines.local import Faults, LocalEngine
from fedgraft.engines.newcomer import Newcomer, welcome
from fedgraft.engines.workshop import single_thread

CLASSES = 3
Values = Mapping[str, Any]


class CheckError(AssertionError):
    """A method does not keep what every method has to keep; the text says what, and where to look."""


# ---- small federations, and a run without a directory


def blobs(sizes: tuple[int, ...] = (20, 13, 31, 8), *, seed: int = 0, dims: int = 6) -> Federation:
    """A federation of Gaussian classes: client i lacks class i, so that its best model is its own."""
    rng = np.random.default_rng(seed)
    centres = 2 * rng.standard_normal((CLASSES, dims))

    def draw(client: int, count: int) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
        held = [c for c in range(CLASSES) if c != client % CLASSES]
        y = np.array([held[i % len(held)] for i in range(count)])
        return (centres[y] + rng.standard_normal((count, dims))).astype(np.float32), y

    sites = [Site(*draw(client, size), *draw(client, 10)) for client, size in enumerate(sizes)]
    return own_data(sites, task=f"classification:{CLASSES}", name="blobs")


def awkward() -> Federation:
    """Clients with one class, one sample, a last batch of one sample; and nobody has class 2."""
    rng = np.random.default_rng(1)

    def site(labels: list[int]) -> Site:
        y = np.array(labels)
        test = np.array([0, 1, labels[0]])
        return Site(
            (rng.standard_normal((len(y), 6)) + 3 * y[:, None]).astype(np.float32), y,
            (rng.standard_normal((3, 6)) + 3 * test[:, None]).astype(np.float32), test,
        )  # fmt: skip

    sites = [site([0] * 7), site([1]), site([0, 1] * 4 + [1]), site([0, 1] * 6)]
    return own_data(sites, task=f"classification:{CLASSES}")


def classified(right: int, total: int, loss: float, broken: int = 0) -> Score:
    """What a test of a classifier counts: so many right answers, and the sum of the losses where there is one."""
    counts = {"accuracy": np.array([right, total], float), "log_loss": np.array([loss, total - broken], float)}
    return Score(total, counts, broken)


def small_network(dims: int = 6, *, norm: bool = False) -> Callable[[], nn.Module]:
    """Two layers, with batch normalisation between them if wanted."""

    def build() -> nn.Module:
        layers: list[nn.Module] = [nn.Linear(dims, 5)]
        if norm:
            layers.append(nn.BatchNorm1d(5))
        return nn.Sequential(*layers, nn.ReLU(), nn.Linear(5, CLASSES))

    return build


def specification(
    fed: Federation,
    *,
    rounds: int = 3,
    seed: int = 0,
    norm: bool = False,
    build: Callable[[], nn.Module] | None = None,
    **settings: Any,
) -> Spec:
    """What everybody knows of a small run; the settings are not validated, for some tests have no rate at all."""
    build = build or small_network(fed.input_shape[0], norm=norm)
    with torch.random.fork_rng():
        dtype = next(build().parameters()).dtype
    architecture = Architecture(build, fed.example.to(dtype))
    training = Training().but(**({"lr": 0.1, "momentum": 0.5, "epochs": 2, "batch_size": 4} | settings))
    return Spec(fed.samples, (architecture,), (0,) * len(fed), fed.task, rounds, seed, training)


def fleet(fed: Federation, *, norm: bool = False, **more: Any) -> Spec:
    """Two architectures, half of the clients each: two layers in common, then one more in the second."""

    def network(*sizes: int) -> Callable[[], nn.Module]:
        def build() -> nn.Module:
            layers: list[nn.Module] = []
            for before, after in pairwise((fed.input_shape[0], *sizes)):
                layers += [nn.Linear(before, after)]
                layers += [nn.BatchNorm1d(after)] if norm else []
                layers += [nn.ReLU()]
            return nn.Sequential(*layers, nn.Linear(sizes[-1], CLASSES))

        return build

    kinds = tuple(Architecture(network(*sizes), fed.example) for sizes in ((5, 4), (5, 4, 4)))
    spec = specification(fed, norm=norm, **more)
    return replace(spec, architectures=kinds, assignment=tuple(2 * client // len(fed) for client in range(len(fed))))


def simulate(
    method: Method,
    fed: Federation,
    spec: Spec,
    *,
    workers: int = 1,
    share: float = 1.0,
    evaluate_every: int = 1,
    faults: Faults | None = None,
) -> tuple[list[Round], Server, LocalEngine]:
    """Run a method in this process, and return what happened, the server, and the engine with the clients' states."""
    server = method.setup(spec)
    with LocalEngine(method, spec, fed.clients, workers=workers, faults=faults or Faults()) as engine:
        done = list(rounds(method, server, engine, Participation(share, share), evaluate_every=evaluate_every))
    return done, server, engine


def everything(method: Method, fed: Federation, spec: Spec, **more: Any) -> dict[str, Tensor]:
    """All that a run leaves: server, clients, bytes, losses and figures at both points."""
    done, server, engine = simulate(method, fed, spec, share=0.75, **more)
    left = state_of(server, engine)
    for point, summary in done[-1].test.items():
        left[point] = torch.tensor([value for figure in summary.figures.values() for value in figure.per_client])
    left["bytes"] = torch.tensor([[r.bytes_up, r.bytes_down] for r in done])
    return left


def state_of(server: Server, engine: LocalEngine) -> dict[str, Tensor]:
    """Every tensor of the server and of all clients, by name."""
    state = {f"server/{name}": tensor for name, tensor in server.items()}
    for client, own in engine.states.items():
        state |= {f"client {client}/{name}": tensor for name, tensor in own.items()}
    return state


# ---- the checks: each takes a method's class, and raises CheckError


def check_frozen(kind: type[Method]) -> None:
    """It is a frozen dataclass of hyper-parameters, holds no tensor, and can be compared and printed."""
    method = kind()
    _insist(hash(method) == hash(kind()), "two equal methods have different hashes; is it a frozen dataclass?")
    _insist(repr(method).startswith(kind.__name__), "it does not print as itself; is it a dataclass?")
    held = [field.name for field in fields(method) if isinstance(getattr(method, field.name), Tensor)]
    _insist(not held, f"it holds tensors ({', '.join(held)}); state belongs to Server and Client")
    try:
        method.anything = 1  # type: ignore[attr-defined]
    except (FrozenInstanceError, AttributeError):
        return
    raise CheckError("it can be changed; declare it with @dataclass(frozen=True)")


def check_described(kind: type[Method]) -> None:
    """It says its name, its idea, what is sent, where its paper measures, and what each hyper-parameter means."""
    for attribute in ("name", "idea", "sends"):
        _insist(bool(getattr(kind, attribute, "")), f"it does not say its {attribute}")
    _insist(kind.name != Method.name, "it has no name of its own")
    _insist(kind.headline in ("received", "trained"), "its headline is received or trained")
    silent = [field.name for field in fields(kind) if not field.metadata.get("doc")]
    _insist(not silent, f"hyper() would say what {', '.join(silent)} means")


def check_parameters_act(kind: type[Method], companions: Mapping[str, Values] | None = None) -> None:
    """Every hyper-parameter changes the result; ``companions`` are what one needs besides, or its other value."""
    fed = blobs()
    idle = []
    for field in fields(kind):
        given = dict((companions or {}).get(field.name, {}))
        other = given.pop(field.name, _another(field))
        specs = [specification(fed, norm=True), *([fleet(fed, norm=True)] if _serves(kind, fleet(fed)) else [])]
        if not any(_differ(kind(**given), kind(**{**given, field.name: other}), fed, spec) for spec in specs):
            idle.append(f"{field.name} ({getattr(kind(**given), field.name)!r} and {other!r} give the same)")
    _insist(not idle, f"hyper-parameters without effect: {'; '.join(idle)}")


def check_same_bits(kind: type[Method]) -> None:
    """The same seed gives the same bits: whatever the workers, the evaluation, and the caller's random numbers."""
    fed = blobs()
    spec = specification(fed, rounds=2, norm=True)
    plain = everything(kind(), fed, spec)
    _same(plain, everything(kind(), fed, spec, workers=2), "two workers give other bits than one")
    _, server, engine = simulate(kind(), fed, spec, share=0.75, evaluate_every=10)
    rarely = state_of(server, engine)
    _same(rarely, {name: plain.get(name, torch.empty(0)) for name in rarely}, "evaluation changes the run")
    torch.manual_seed(99)
    random.seed(99)
    np.random.seed(99)  # noqa: NPY002 (the caller's generator is what is tried)
    _same(plain, everything(kind(), fed, spec), "it draws from a generator that is not keyed; use client.stream")


def check_absent_clients(kind: type[Method]) -> None:
    """A client that was never picked is as it began."""
    fed = blobs()
    spec = specification(fed, rounds=2)
    done, _, engine = simulate(kind(), fed, spec, share=0.5, evaluate_every=2)
    for client in set(range(len(fed))) - {client for this in done for client in this.participants}:
        start = spec.initial(client, independent=kind().independent_start)
        _insist(torch.equal(engine.states[client]["own"], start), f"client {client} was absent, and changed")


def check_awkward_clients(kind: type[Method]) -> None:
    """Clients with one class, one sample or a ragged batch are served, with and without BatchNorm; and a lone one."""
    for fed in (awkward(), blobs((12,))):
        for norm in (False, True):
            done, server, engine = simulate(kind(), fed, specification(fed, rounds=3, norm=norm), evaluate_every=3)
            refused = [refusal.reason for this in done for refusal in this.refused]
            _insist(not refused, f"its own replies are refused: {refused[:1]}")
            for name, tensor in state_of(server, engine).items():
                _insist(not tensor.is_floating_point() or bool(torch.isfinite(tensor).all()), f"{name} is not finite")
            _insist(set(done[-1].test) == {"received", "trained"}, "it cannot be tested at both points")


def check_architectures(kind: type[Method]) -> None:
    """Clients of different architectures are served, or refused in a sentence before anything is trained."""
    fed = blobs()
    spec = fleet(fed, rounds=2, norm=True)
    if _serves(kind, spec):
        done, _, _ = simulate(kind(), fed, spec, share=0.75, evaluate_every=2)
        _insist(not any(this.refused for this in done), "replies of clients with another architecture are refused")


def check_refusals_roll_back(kind: type[Method]) -> None:
    """A reply that is not finite is refused: its client is as before, the server stays finite, the round goes on."""

    @dataclass(frozen=True)
    class Spoiled(kind):  # type: ignore[valid-type, misc]
        def reply(self, client: Client, received: Tensor, trained: Tensor) -> Message:
            reply: Message = super().reply(client, received, trained)
            if client.id != 2:
                return reply
            return Message(**{n: t * torch.nan if t.is_floating_point() else t for n, t in reply.items()})

    fed = blobs()
    spec = specification(fed, rounds=2)
    done, server, engine = simulate(Spoiled(), fed, spec, evaluate_every=2)
    if not any(this.bytes_up for this in done):
        return  # nothing is sent, so nothing can be refused
    refused = {refusal.client for this in done for refusal in this.refused}
    _insist(refused == {2}, "a reply that is not finite was taken; does expects() name every entry?")
    start = spec.initial(2, independent=kind().independent_start)
    _insist(torch.equal(engine.states[2]["own"], start), "the client of a refused reply changed")
    for name, tensor in server.items():
        _insist(not tensor.is_floating_point() or bool(torch.isfinite(tensor).all()), f"the server's {name} is spoiled")


def check_newcomers(kind: type[Method]) -> None:
    """A client that was not there in training gets a model, and nobody else notices; or it is refused in a sentence."""
    if kind.refuses_newcomers:
        return
    for fed, norm in ((awkward(), False), (awkward(), True), (blobs((12,)), False)):
        _, server, _ = simulate(kind(), fed, specification(fed, rounds=2, norm=norm), share=0.75, evaluate_every=2)
        _let_join(kind(), server, [*fed.clients, *blobs((7,)).clients])
    fed, spec = blobs(), fleet(blobs(), rounds=2, norm=True)
    if _serves(kind, spec):
        _, server, _ = simulate(kind(), fed, spec, evaluate_every=2)
        for number in range(len(spec.architectures)):
            _let_join(kind(), server, fed.clients[:1], number)


def _let_join(method: Method, server: Server, data: Sequence[ClientData], number: int = 0) -> None:
    before = {name: tensor.clone() for name, tensor in server.items()}
    for each in data:
        joined = welcome(method, server, Newcomer("newcomer", each, number), 2)
        _insist(not joined.refused, f"its own replies are refused: {[each.reason for each in joined.refused[:1]]}")
        for name, tensor in joined.state.items():
            _insist(not tensor.is_floating_point() or bool(torch.isfinite(tensor).all()), f"{name} is not finite")
    _same(before, dict(server), "a newcomer changed the server")


def check_resumes(kind: type[Method]) -> None:
    """Interrupted and resumed, a run ends in the same bits."""
    from fedgraft.runs.run import resume, run

    fed, network = blobs(), small_network()
    settings: dict[str, Any] = {"rounds": 4, "batch_size": 4, "participation": 0.75, "optimizer_state": "kept"}
    settings |= {"workers": 1, "checkpoint_every": 1}

    class Interruption:
        def begin(self, run: Any) -> None: ...

        def round(self, run: Any, this: Round) -> None:
            if this.number == 1:
                raise KeyboardInterrupt

        def end(self, run: Any) -> None: ...

    whole = run(kind(), fed, model=network, **settings)
    with TemporaryDirectory() as folder:
        place = Path(folder) / "run"
        with suppress(KeyboardInterrupt):
            run(kind(), fed, model=network, out=place, watchers=[Interruption()], **settings)
        resumed = resume(place, fed, model=network, method=kind())
    assert whole.server is not None
    assert resumed.server is not None
    _same(dict(whole.server), dict(resumed.server), "a resumed run ends with another server")
    for client, state in whole._states.items():
        _same(state, resumed._states[client], f"a resumed run ends with another client {client}")


CHECKS: tuple[Callable[[type[Method]], None], ...] = (
    check_frozen,
    check_described,
    check_same_bits,
    check_absent_clients,
    check_awkward_clients,
    check_architectures,
    check_refusals_roll_back,
    check_resumes,
    check_newcomers,
)


def checks(kind: type[Method], companions: Mapping[str, Values] | None = None) -> Iterator[tuple[str, str | None]]:
    """Do every check, and say of each what it looked at and what is wrong, or nothing."""
    acting: Callable[[type[Method]], None] = lambda each: check_parameters_act(each, companions)  # noqa: E731
    acting.__doc__ = check_parameters_act.__doc__
    for check in (*CHECKS, acting):
        about = (check.__doc__ or "").partition("\n")[0].partition(";")[0].rstrip(".")
        try:
            with single_thread():
                check(kind)
        except CheckError as error:
            yield about, str(error)
        except Exception as error:
            yield about, f"it raised {type(error).__name__}: {error}".partition("\n")[0]
        else:
            yield about, None


def check_method(kind: type[Method], companions: Mapping[str, Values] | None = None) -> None:
    """Hold a method to everything that fedgraft's own methods are held to.

    ``companions`` names, for a hyper-parameter that acts only together with others, what these have to be; under its
    own name, which other value of itself to try.
    """
    wrong = [f"{about}: {complaint}" for about, complaint in checks(kind, companions) if complaint is not None]
    if wrong:
        raise CheckError(f"{kind.__name__} fails {len(wrong)} checks\n- " + "\n- ".join(wrong))


# ---- what checks are made of


def _insist(holds: bool, complaint: str) -> None:
    if not holds:
        raise CheckError(complaint)


def _same(one: Mapping[str, Tensor], other: Mapping[str, Tensor], complaint: str) -> None:
    _insist(one.keys() == other.keys(), f"{complaint}: {sorted(one.keys() ^ other.keys())}")
    for name, tensor in one.items():
        alike = torch.equal(tensor.nan_to_num(-1), other[name].nan_to_num(-1))
        _insist(alike, f"{complaint}: {name}")


def _differ(one: Method, other: Method, fed: Federation, spec: Spec) -> bool:
    before, after = (everything(method, fed, spec) for method in (one, other))
    return before.keys() != after.keys() or any(
        not torch.equal(value.nan_to_num(-1), after[name].nan_to_num(-1)) for name, value in before.items()
    )


def _another(parameter: Any) -> Any:
    """Some other value of a hyper-parameter that is in its range."""
    default, rules = parameter.default, parameter.metadata
    if rules.get("choices"):
        return next(choice for choice in rules["choices"] if choice != default)
    if isinstance(default, bool):
        return not default
    if isinstance(default, int):
        return default + 1
    return default / 2 if default else 0.5


def _serves(kind: type[Method], spec: Spec) -> bool:
    """Whether a method takes clients of these architectures."""
    try:
        kind().setup(spec)
    except UserError:
        return False
    return True
