"""What all tests share, and one thread: two threads fighting for a core make a suite crawl."""

import json
import os
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import pytest
import torch

from fedgraft.core.client import Client, ClientId
from fedgraft.core.evaluation import Scores
from fedgraft.core.exchange import Failure, Outcome
from fedgraft.core.message import Message
from fedgraft.core.method import Method
from fedgraft.core.rounds import Round
from fedgraft.core.samples import ClientData, Samples
from fedgraft.core.spec import Spec
from fedgraft.core.workbench import Workbench
from fedgraft.data.federation import Federation, federate
from fedgraft.engines.local import LocalEngine
from fedgraft.runs.run import Run, run
from fedgraft.testing import CLASSES as CLASSES
from fedgraft.testing import awkward as awkward
from fedgraft.testing import blobs as blobs
from fedgraft.testing import classified as classified
from fedgraft.testing import fleet as fleet
from fedgraft.testing import simulate as simulate
from fedgraft.testing import small_network as small_network
from fedgraft.testing import specification as specification

torch.set_num_threads(1)


@pytest.hookimpl(tryfirst=True)  # pytest-xdist reads the groups in the same hook
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Let one process do all tests that share what their file makes once: the other would make it again.

    Among several processes slow tests come first: one that begins last would leave the others without work.
    """
    if hasattr(config, "workerinput"):
        items.sort(key=lambda item: item.get_closest_marker("slow") is None)
    for item in items:
        if isinstance(item, pytest.Function) and item.get_closest_marker("xdist_group") is None:
            fixtures = item._fixtureinfo.name2fixturedefs.values()
            if any(each.scope == "module" for found in fixtures for each in found):
                item.add_marker(pytest.mark.xdist_group(item.path.stem))


OF_EVERY_KIND = frozenset({"fedavg", "scaffold", "fedper", "fedapa", "fedproto", "pfedhn", "fedgpa", "flexifed"})
"""A mean, states at both ends, a part that stays, a bank, prototypes, a hypernetwork, a graph, several networks."""


def a_few_first(names: Iterable[str]) -> list[Any]:
    """Parametrize by methods where the engine is tried: one of every kind each time, the others with the slow tests."""
    return [name if name in OF_EVERY_KIND else pytest.param(name, marks=pytest.mark.slow) for name in names]


def visit(fed: Federation, spec: Spec, client: ClientId = 0, *, round: int = 0, purpose: str = "train") -> Client:
    """A client outside of any engine, as a hook meets it; its data are of the network's type."""
    data = fed.clients[client]
    x, y = data.train.batch(slice(None))
    return Client(
        client,
        {"own": spec.initial(client)},
        ClientData(Samples(x.to(spec.layout(client).dtype), y), data.test, data.validation),
        spec,
        Workbench(),
        round=round,
        purpose=purpose,
    )


def slope(f: Callable[[torch.Tensor], float], at: torch.Tensor, entry: int, h: float = 1e-6) -> float:
    """The derivative of ``f`` by one entry, from finite differences."""
    aside = torch.zeros_like(at)
    aside.view(-1)[entry] = h
    return (f(at + aside) - f(at - aside)) / (2 * h)


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


def on_digits(method: Method, *, rounds: int = 10, **more: Any) -> tuple[float, float]:
    """Pooled accuracy on scikit-learn's digits where the method's paper measures, and that of everybody's first guess.

    The guess is the class of which the client has most: what a model that learned nothing but counts would say.
    """
    fed = federate("digits", 10, "dirichlet:0.3", seed=0)
    done = run(method, fed, rounds=rounds, workers=1, evaluate_every=rounds, lr=0.05, **more)
    guesses = [int((data.test.labels == data.train.counts(10).argmax()).sum()) for data in fed.clients]
    accuracy = done.result["last"][method.headline]["accuracy"]["pooled"]
    return float(accuracy), sum(guesses) / sum(len(data.test) for data in fed.clients)


class Interrupt:
    """Stops a run from inside, after a number of rounds."""

    def __init__(self, after: int) -> None:
        self.after = after

    def begin(self, run: Run) -> None: ...

    def round(self, run: Run, this: Round) -> None:
        if this.number + 1 == self.after:
            raise KeyboardInterrupt

    def end(self, run: Run) -> None: ...


def same(one: Run, two: Run) -> None:
    """Insist that two runs ended in the same bits."""
    assert one.server is not None
    assert two.server is not None
    for name in one.server:
        assert torch.equal(one.server[name], two.server[name]), name
    for client, state in one._states.items():
        for name, tensor in state.items():
            assert torch.equal(tensor, two._states[client][name]), name
    for a, b in zip(one.records, two.records, strict=True):
        assert a["trained"] == b["trained"]
        assert a["participants"] == b["participants"]


MAY_DIFFER = {"seconds", "seconds_per_round", "server_seconds", "evaluation_seconds", "workers"}
"""What a result has of the machine, and not of the run."""


def timeless(value: Any) -> Any:
    """What was written as JSON, without the times that things took and the workers that did them."""
    if isinstance(value, dict):
        return {key: timeless(inner) for key, inner in value.items() if key not in MAY_DIFFER}
    return [timeless(inner) for inner in value] if isinstance(value, list) else value


def final(folder: Path) -> dict[str, Any]:
    """The result of a run, the tensors of its last checkpoint, and what its method showed."""
    last = max(folder.glob("checkpoints/round-*"))
    files = [*sorted(last.glob("*.safetensors")), *folder.glob("observed.safetensors")]
    assert len(files) >= 2
    found: dict[str, Any] = {file.name: file.read_bytes() for file in files}
    return {**found, "result": timeless(json.loads((folder / "result.json").read_text()))}
