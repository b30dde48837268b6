"""Small federations for all tests, and one thread: two threads fighting for a core make a suite crawl."""

import os
from collections.abc import Callable, Mapping
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
import pytest
import torch

from fedgraft.core.client import Client, ClientId, Workbench
from fedgraft.core.evaluation import Scores
from fedgraft.core.exchange import Failure, Outcome
from fedgraft.core.message import Message
from fedgraft.core.method import Method, Server, Spec
from fedgraft.core.model import Architecture
from fedgraft.core.rounds import Participation, Round, rounds
from fedgraft.core.samples import ClientData, Samples
from fedgraft.core.training import Training
from fedgraft.data.federation import Federation, Site, own_data
from fedgraft.engines.local import Faults, LocalEngine

torch.set_num_threads(1)

CLASSES = 3


def blobs(sizes: tuple[int, ...] = (20, 13, 31, 8), *, seed: int = 0, dims: int = 6) -> Federation:
    """A federation of Gaussian classes: client i lacks class i, so that its best model is its own."""
    rng = np.random.default_rng(seed)
    centres = 2 * rng.standard_normal((CLASSES, dims))

    def draw(client: int, count: int) -> tuple[np.ndarray, np.ndarray]:
        held = [c for c in range(CLASSES) if c != client % CLASSES]
        y = np.array([held[i % len(held)] for i in range(count)])
        return (centres[y] + rng.standard_normal((count, dims))).astype(np.float32), y

    return own_data(
        [Site(*draw(client, size), *draw(client, 10)) for client, size in enumerate(sizes)],
        classes=CLASSES,
        name="blobs",
    )


def small_network(dims: int = 6, *, norm: bool = False) -> Callable[[], torch.nn.Module]:
    def build() -> torch.nn.Module:
        layers: list[torch.nn.Module] = [torch.nn.Linear(dims, 5)]
        if norm:
            layers.append(torch.nn.BatchNorm1d(5))
        return torch.nn.Sequential(*layers, torch.nn.ReLU(), torch.nn.Linear(5, CLASSES))

    return build


def specification(
    fed: Federation,
    *,
    rounds: int = 3,
    seed: int = 0,
    norm: bool = False,
    build: Callable[[], torch.nn.Module] | None = None,
    **settings: object,
) -> Spec:
    build = build or small_network(fed.input_shape[0], norm=norm)
    with torch.random.fork_rng():
        dtype = next(build().parameters()).dtype
    architecture = Architecture(build, fed.example.to(dtype))
    training = Training(**({"lr": 0.1, "momentum": 0.5, "epochs": 2, "batch_size": 4} | settings))  # type: ignore[arg-type]
    return Spec(fed.samples, (architecture,), (0,) * len(fed), fed.classes, rounds, seed, training)


def fleet(fed: Federation, *, norm: bool = False, **more: object) -> Spec:
    """Two architectures, half of the clients each: two layers in common, then one more in the second."""

    def network(*sizes: int) -> Callable[[], torch.nn.Module]:
        def build() -> torch.nn.Module:
            layers: list[torch.nn.Module] = []
            for before, after in pairwise((fed.input_shape[0], *sizes)):
                layers += [torch.nn.Linear(before, after)]
                layers += [torch.nn.BatchNorm1d(after)] if norm else []
                layers += [torch.nn.ReLU()]
            return torch.nn.Sequential(*layers, torch.nn.Linear(sizes[-1], CLASSES))

        return build

    kinds = tuple(Architecture(network(*sizes), fed.example) for sizes in ((5, 4), (5, 4, 4)))
    spec = specification(fed, norm=norm, **more)  # type: ignore[arg-type]
    return replace(spec, architectures=kinds, assignment=tuple(2 * client // len(fed) for client in range(len(fed))))


def visit(fed: Federation, spec: Spec, client: ClientId = 0, *, round: int = 0, purpose: str = "train") -> Client:
    """A client outside of any engine, as a hook meets it; its data are of the network's type."""
    data = fed.clients[client]
    x, y = data.train.batch(slice(None))
    return Client(
        client,
        {"own": spec.initial(client)},
        ClientData(Samples(x.to(spec.layout(client).dtype), y), data.test, data.validation),
        spec.architecture(client),
        spec.settings,
        Workbench(),
        seed=spec.seed, round=round, rounds=spec.rounds, classes=spec.classes, clients=spec.clients,
        initial=spec.initial, share=spec.share, purpose=purpose,
    )  # fmt: skip


def slope(f: Callable[[torch.Tensor], float], at: torch.Tensor, entry: int, h: float = 1e-6) -> float:
    """The derivative of ``f`` by one entry, from finite differences."""
    aside = torch.zeros_like(at)
    aside.view(-1)[entry] = h
    return (f(at + aside) - f(at - aside)) / (2 * h)


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
    server = method.setup(spec)
    with LocalEngine(method, spec, fed.clients, workers=workers, faults=faults) as engine:
        done = list(rounds(method, server, engine, Participation(share, share), evaluate_every=evaluate_every))
    return done, server, engine


Outcomes = dict[ClientId, Outcome | Failure]
HOSTILE = 1


class Wire(LocalEngine):
    """An engine whose replies pass through somebody's hands, and so do the test figures."""

    forge: Callable[[int, Outcomes], Outcomes] = staticmethod(lambda _, outcomes: outcomes)
    forge_scores: Callable[[dict[ClientId, Scores]], dict[ClientId, Scores]] = staticmethod(lambda scores: scores)

    def train(self, round: int, messages: Mapping[ClientId, Message]) -> Mapping[ClientId, Outcome | Failure]:
        return self.forge(round, dict(super().train(round, messages)))

    def evaluate(self, round: int, messages: Mapping[ClientId, Message]) -> Mapping[ClientId, Scores]:
        return self.forge_scores(dict(super().evaluate(round, messages)))


@pytest.fixture
def fed() -> Federation:
    return blobs()


def real_data(name: str) -> Path:
    """The file of a real dataset, or a skip that says why."""
    folder = os.environ.get("FEDGRAFT_DATA")
    path = Path(folder or ".") / f"{name}.npz"
    if folder is None or not path.exists():
        pytest.skip(f"set FEDGRAFT_DATA to a folder that holds {name}.npz to run this on real data")
    return path
