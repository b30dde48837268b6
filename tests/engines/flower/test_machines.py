"""Real SuperLink, SuperExec and SuperNodes on this machine: the same bits, and what becomes of crashes.

One federation of processes serves all tests of this file. They take minutes and are marked slow; run them with
``pytest -m slow tests/engines/flower/test_machines.py``. In one process, every method is tried in ``test_equality.py``.
"""

import json
import os
import signal
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from fedgraft.core.client import Client
from fedgraft.core.message import Message
from fedgraft.core.samples import ClientData
from fedgraft.core.task import Classification
from fedgraft.data.federation import Federation, federate
from fedgraft.deploy.application import write_app
from fedgraft.deploy.deployment import Deployment
from fedgraft.deploy.processes import Process
from fedgraft.methods.scaffold import SCAFFOLD
from fedgraft.runs.run import Run, run
from trials.federated import agreed, write_sites

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("machines")]
PATIENCE = 600.0
CLOCKS = ("seconds", "server_seconds", "evaluation_seconds")
TRAINING = {"lr": 0.05, "epochs": 1, "batch_size": 32}

FAULTY = '''
"""A method with a client that fails as it is told."""
import os
import time
from dataclasses import dataclass
from pathlib import Path

import torch

from fedgraft.core.message import Message
from fedgraft.methods import METHODS
from fedgraft.methods.scaffold import SCAFFOLD


@dataclass(frozen=True)
class Faulty(SCAFFOLD):
    name = "faulty"
    how: str = ""
    trace: str = ""

    def reply(self, client, received, trained):
        good = super().reply(client, received, trained)
        faults = dict(each.split(":") for each in self.how.split())
        how = faults.get(f"{client.id}.{client.round}", "")
        if self.trace:
            Path(self.trace, f"{client.id}.{client.round}").touch()
        if how == "raise":
            raise ZeroDivisionError("patient 4711")
        if how == "nan":
            return Message(**{**good, "delta_y": torch.full_like(good["delta_y"], torch.nan)})
        if how == "huge":
            return Message(**{**good, "delta_y": torch.zeros(50_000_000)})
        if how.startswith("sleep"):
            time.sleep(float(how.removeprefix("sleep")))
        return good


METHODS.add(Faulty)
'''


@dataclass
class Machines:
    """The processes, the sites' files, and what was run on them."""

    flower: Deployment
    folder: Path
    fed: Federation
    names: list[str]
    nodes: dict[str, Process]
    runs: int = 0

    def join(self, name: str) -> None:
        site = {"site": str(self.folder / "sites" / f"{name}.toml")}
        self.nodes[name] = self.flower.supernode(name, site, may_end=True)

    def app(self, rules: Mapping[str, Any] | None = None, **settings: Any) -> tuple[Path, Path]:
        """Write an app with a run of its own; return both places."""
        self.runs += 1
        place = self.folder / f"run-{self.runs}"
        charter = agreed(self.fed, self.names, place, rules=rules, training=TRAINING, **settings)
        app = self.folder / f"app-{self.runs}"
        write_app(app, charter)
        (app / "faulty.py").write_text(FAULTY, "utf-8")
        for half in ("server_app.py", "client_app.py"):
            (app / half).write_text("import faulty\n" + (app / half).read_text("utf-8"), "utf-8")
        return app, place

    def wait(self, place: Path) -> dict[str, Any]:
        """Wait for a run's result."""
        path = place / "result.json"
        self.flower.wait_until(path.exists, f"there is {path}", seconds=PATIENCE)
        result: dict[str, Any] = json.loads(path.read_text("utf-8"))
        return result

    def wait_for(self, path: Path) -> None:
        self.flower.wait_until(path.exists, f"there is {path}", seconds=PATIENCE)

    def state(self, name: str, place: Path) -> dict[str, Tensor]:
        """A site's private state of the run in a directory."""
        identity = json.loads((place / "federation.json").read_text("utf-8"))["run"]
        found = sorted((self.folder / "sites" / f"state-{name}" / identity).glob("state-*.safetensors"))
        return load_file(found[-1])


def small_digits() -> Federation:
    """Four clients with a few dozen digits each; the first has a nine, so that everybody counts ten classes."""
    full = federate("digits", 4, "dirichlet:0.5", 1)

    def few(data: ClientData) -> ClientData:
        index = torch.from_numpy(np.arange(min(64, len(data.train))))
        return ClientData(data.train.subset(index), data.test.subset(index[:32]), data.validation)

    members = [few(each) for each in full.clients]
    members[0].train.labels[0] = 9
    return Federation("digits", tuple(members), Classification(10), "own", 1)


@pytest.fixture(scope="module")
def machines(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Machines]:
    folder = tmp_path_factory.mktemp("machines")
    fed = small_digits()
    names = write_sites(folder / "sites", fed)
    with Deployment(folder / "flower") as flower:
        flower.superlink()
        flower.superexec()
        made = Machines(flower, folder, fed, names, {})
        for name in names:
            made.join(name)
        yield made


def assert_same(machines: Machines, place: Path, local: Run) -> None:
    """The server's last checkpoint, every site's state and every figure are those of the local run."""
    result = machines.wait(place)
    rounds = local.spec.rounds
    server = load_file(place / "checkpoints" / f"round-{rounds:06d}" / "server.safetensors")
    assert local.server is not None
    assert server.keys() == dict(local.server).keys()
    for name, tensor in local.server.items():
        assert torch.equal(server[name], tensor), name
    for client, name in enumerate(machines.names):
        kept = machines.state(name, place)
        for entry, tensor in local._states[client].items():
            assert torch.equal(kept[entry], tensor), (name, entry)
    assert figures(result) == figures(json.loads(json.dumps(local.result)))


def figures(result: Mapping[str, Any]) -> Any:
    rounds = [{key: value for key, value in record.items() if key not in CLOCKS} for record in result["rounds"]]
    return {"rounds": rounds, "samples": result["samples"], "last": result["last"], "best": result["best"]}


OTHERS = [
    pytest.param(name, marks=pytest.mark.long)
    for name in ("apple", "fedgpa", "fedppa", "scaffold", "fedpac", "fedproto")
]


@pytest.mark.parametrize("name", ["fedapa", *OTHERS])
def test_same_bits_as_on_one_machine(name: str, machines: Machines) -> None:
    settings: dict[str, Any] = {"rounds": 2, "evaluate_every": 2, "model": "cnn-digits"}
    if name == "fedppa":
        settings["model"] = "mlp:20-10,mlp:20-10-10"
    app, place = machines.app(method=name, **settings)
    machines.flower.submit(app)
    local = run(name, machines.fed, workers=1, training=TRAINING, **settings)
    assert_same(machines, place, local)


# ---- clients that fail, in one run


@dataclass(frozen=True)
class Absent(SCAFFOLD):
    """What the same clients being absent in the same rounds gives on one machine."""

    name = "faulty"
    absent: tuple[tuple[int, int], ...] = ()

    def reply(self, client: Client, received: Tensor, trained: Tensor) -> Message:
        if (client.id, client.round) in self.absent:
            raise ZeroDivisionError
        return super().reply(client, received, trained)


def without(machines: Machines, settings: Mapping[str, Any], *absent: tuple[int, int]) -> Run:
    method = Absent(absent=tuple(absent))
    kept = {key: value for key, value in settings.items() if key not in ("method", "params")}
    return run(method, machines.fed, workers=1, retries=0, failed_client="absent", training=TRAINING, **kept)


def assert_as_if_absent(machines: Machines, place: Path, local: Run) -> None:
    server = load_file(place / "checkpoints" / f"round-{local.spec.rounds:06d}" / "server.safetensors")
    assert local.server is not None
    for name, tensor in local.server.items():
        assert torch.equal(server[name], tensor), name
    for client, name in enumerate(machines.names):
        for entry, tensor in local._states[client].items():
            assert torch.equal(machines.state(name, place)[entry], tensor), (name, entry)


def refusals(result: Mapping[str, Any]) -> list[tuple[int, int, str]]:
    return [
        (record["round"], each["client"], each["reason"]) for record in result["rounds"] for each in record["refused"]
    ]


@pytest.mark.long
def test_clients_that_raise_send_nan_or_200_mb_are_absent(machines: Machines) -> None:
    settings = {
        "method": "faulty", "rounds": 2, "evaluate_every": 2, "model": "linear",
        "params": {"how": "0.0:raise 1.0:nan 2.0:huge"},
    }  # fmt: skip
    app, place = machines.app(rules={"quorum": 1, "deadline": 300}, **settings)
    said = machines.flower.follow(machines.flower.submit(app))
    found = refusals(machines.wait(place))
    assert [each[:2] for each in found] == [(1, 0), (1, 1), (1, 2)]
    assert "it raised ZeroDivisionError; the site's own log says more" in found[0][2]
    assert "'delta_y' holds values that are not finite" in found[1][2]
    assert "declares 200,002,600 bytes, expected at most 5,200" in found[2][2]
    machines.flower.wait_until(lambda: "done: 3 refusals" in said.said, "the server says that it is done")
    assert "refused: site a: faulty, round 1: the client failed: it raised ZeroDivisionError" in said.said
    assert "patient 4711" not in said.said
    assert "patient 4711" in machines.nodes["a"].said, "the site's own log has it all"
    assert_as_if_absent(machines, place, without(machines, settings, (0, 0), (1, 0), (2, 0)))


@pytest.mark.long
def test_a_client_that_hangs_is_absent_and_comes_back(machines: Machines) -> None:
    """It sleeps for 150 s in round 1; the round waits 90 s, and the client's late answer is not used."""
    settings = {
        "method": "faulty", "rounds": 4, "evaluate_every": 4, "model": "linear", "params": {"how": "1.0:sleep150"},
    }  # fmt: skip
    app, place = machines.app(rules={"quorum": 2, "deadline": 90}, **settings)
    machines.flower.submit(app)
    found = refusals(machines.wait(place))
    assert (1, 1) in [each[:2] for each in found]
    assert "site b gave no answer in 90 s" in found[0][2]
    assert {each[1] for each in found} == {1}
    missed = [(1, number - 1) for number, _, _ in found]
    assert (1, 3) not in missed, "it is back for the last round"
    assert_as_if_absent(machines, place, without(machines, settings, *missed))


@pytest.mark.long
def test_kill_9_of_a_supernode_in_mid_round(machines: Machines, tmp_path: Path) -> None:
    """The others go on; started again, the node has a new id and goes on with the state on its disk."""
    settings = {
        "method": "faulty", "rounds": 5, "evaluate_every": 5, "model": "linear",
        "params": {"how": "1.1:sleep60", "trace": str(tmp_path)},
    }  # fmt: skip
    app, place = machines.app(rules={"quorum": 2, "deadline": 120}, **settings)
    machines.flower.submit(app)
    machines.wait_for(tmp_path / "1.1")
    machines.nodes["b"].kill()
    machines.join("b")
    found = refusals(machines.wait(place))
    assert {each[1] for each in found} == {1}
    missed = [(1, number - 1) for number, _, _ in found]
    assert (1, 1) in missed
    assert (1, 4) not in missed, "it is back for the last round"
    assert_as_if_absent(machines, place, without(machines, settings, *missed))


@pytest.mark.long
def test_kill_9_of_the_superlink_loses_nothing(machines: Machines, tmp_path: Path) -> None:
    settings = {
        "method": "faulty", "rounds": 3, "evaluate_every": 3, "model": "linear",
        "params": {"how": "1.1:sleep10", "trace": str(tmp_path)},
    }  # fmt: skip
    app, place = machines.app(rules={"quorum": 4, "deadline": 300}, **settings)
    machines.flower.submit(app)
    machines.wait_for(tmp_path / "1.1")
    link = next(each for each in machines.flower.processes if each.name == "superlink" and each.code is None)
    link.kill()
    machines.flower.processes.remove(link)
    machines.flower.superlink()
    assert refusals(machines.wait(place)) == []
    assert_as_if_absent(machines, place, without(machines, settings))


@pytest.mark.long
def test_kill_9_of_the_serverapp_and_a_second_start_go_on(machines: Machines, tmp_path: Path) -> None:
    settings = {
        "method": "faulty", "rounds": 4, "evaluate_every": 4, "model": "linear",
        "params": {"how": "1.2:sleep10", "trace": str(tmp_path)},
    }  # fmt: skip
    app, place = machines.app(rules={"quorum": 4, "deadline": 300}, **settings)
    machines.flower.submit(app)
    machines.wait_for(tmp_path / "1.2")
    os.kill(serverapp(machines), signal.SIGKILL)
    assert not (place / "result.json").exists()
    said = machines.flower.follow(machines.flower.submit(app))
    assert refusals(machines.wait(place)) == []
    machines.flower.wait_until(lambda: "done: 0 refusals" in said.said, "the server says that it is done")
    assert "the run goes on after round 2" in said.said
    assert_as_if_absent(machines, place, without(machines, settings))


def serverapp(machines: Machines) -> int:
    """The process of the ServerApp: a descendant of the SuperExec."""
    executor = next(each for each in machines.flower.processes if each.name == "superexec")
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        for entry in Path("/proc").iterdir():
            if not entry.name.isdigit():
                continue
            try:
                words = (entry / "cmdline").read_bytes().split(b"\0")
                parent = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
            except OSError:
                continue
            if parent == executor.pid and any(b"flwr-serverapp" in word for word in words):
                return int(entry.name)
        time.sleep(0.2)
    raise AssertionError("no ServerApp is running")
