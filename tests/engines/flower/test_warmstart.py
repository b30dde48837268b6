"""A federation that starts from an earlier one: the bits of one machine, and private states stay at their sites."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from fedgraft.base.errors import UserError
from fedgraft.core.evaluation import POINTS
from fedgraft.core.state import State
from fedgraft.data.federation import Federation
from fedgraft.runs.run import Run, run
from trials.federated import Federated, agreed, app

SETTINGS: dict[str, Any] = {
    "model": "mlp:5",
    "rounds": 1,
    "training": {"lr": 0.1, "momentum": 0.5, "epochs": 1, "batch_size": 4},
}


def again(federated: Federated, method: str, names: list[str], directory: str = "second", **more: Any) -> Run:
    """Begin a second federation of the sites with these names, from the first."""
    settings = {**SETTINGS, "method": method, "start_from": str(federated.folder / "run"), "seed": 3, **more}
    federated.charter = agreed(federated.fed, names, federated.folder / directory, **settings)
    for name in federated.names:
        federated.node(name).app = app(federated.charter)
    found: Run = federated.serve()
    return found


def kept(federated: Federated, name: str, run: str) -> State:
    """The newest state that a site has of a run."""
    return load_file(sorted((federated.folder / "sites" / f"state-{name}" / run).glob("state-*"))[-1])


def identity(place: Path) -> str:
    return str(json.loads((place / "federation.json").read_text())["run"])


def assert_same(done: Run, local: Run, federated: Federated, names: list[str], directory: str = "second") -> None:
    assert dict(done.server or {}).keys() == dict(local.server or {}).keys()
    for name, tensor in (local.server or {}).items():
        assert torch.equal((done.server or {})[name], tensor), name
    for client, name in enumerate(names):
        state = kept(federated, name, identity(federated.folder / directory))
        expected = local._states[client]
        assert state.keys() == expected.keys()
        assert all(torch.equal(state[entry], tensor) for entry, tensor in expected.items()), name
    for point in POINTS:
        assert done.records[-1][point] == local.records[-1][point]


@pytest.mark.parametrize(("first", "second"), [("fedper", "fedper"), ("fedapa", "fedapa"), ("fedavg", "apple")])
def test_the_bits_of_one_machine(first: str, second: str, fed: Federation, tmp_path: Path) -> None:
    federated = Federated(tmp_path, fed, {"method": first, **SETTINGS})
    federated.serve()
    done = again(federated, second, federated.names)
    sites = {"dataset": str(tmp_path / "sites"), "workers": 1}
    run(first, out=tmp_path / "local", **sites, **SETTINGS)
    local = run(second, start_from=str(tmp_path / "local"), seed=3, **sites, **SETTINGS)
    assert_same(done, local, federated, federated.names)
    sent = [message.content for message in federated.grid.sent if "message" in message.content]
    assert any("first" in content for content in sent) == (first != second)


def test_a_new_site_begins_with_the_common_model(fed: Federation, tmp_path: Path) -> None:
    federated = Federated(tmp_path, fed, {"method": "ditto", **SETTINGS})
    federated.charter = agreed(fed, ["a", "b", "c"], tmp_path / "run", method="ditto", **SETTINGS)
    for name in federated.names:
        federated.node(name).app = app(federated.charter)
    federated.serve()
    done = again(federated, "ditto", ["a", "b", "c", "d"])
    three = tmp_path / "three"
    shutil.copytree(tmp_path / "sites", three)
    (three / "d.npz").unlink()
    run("ditto", dataset=str(three), workers=1, out=tmp_path / "local", **SETTINGS)
    start = {"start_from": str(tmp_path / "local"), "seed": 3}
    local = run("ditto", dataset=str(tmp_path / "sites"), workers=1, **start, **SETTINGS)
    assert local.result["start"]["clients"] == ["a", "b", "c"]
    assert_same(done, local, federated, ["a", "b", "c", "d"])


def test_without_its_earlier_state_a_site_says_so(fed: Federation, tmp_path: Path) -> None:
    federated = Federated(tmp_path, fed, {"method": "fedper", **SETTINGS})
    federated.serve()
    shutil.rmtree(tmp_path / "sites" / "state-b" / identity(tmp_path / "run"))
    done = again(federated, "fedper", federated.names)
    assert [refusal["client"] for refusal in done.records[0]["refused"]][:1] == [1]
    assert "lacks its state of round 1 of the run before" in done.records[0]["refused"][0]["reason"]


def test_a_simulation_gives_its_common_model(fed: Federation, tmp_path: Path) -> None:
    """Its clients' private states are here and not at the sites."""
    federated = Federated(tmp_path, fed, {"method": "fedper", **SETTINGS})
    run("fedper", dataset=str(tmp_path / "sites"), workers=1, out=tmp_path / "run", **SETTINGS)
    done = again(federated, "fedper", federated.names)
    assert done.start is not None
    assert done.start.server is None
    assert "private states are in its directory, and not at the sites" in done.notes[0]
    with pytest.raises(UserError, match="same model"):
        again(federated, "fedper", federated.names, "third", model="mlp:6")
    assert not (tmp_path / "third" / "federation.json").exists()
