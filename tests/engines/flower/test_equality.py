"""Every method ends in the same bits on Flower as on one machine: server, clients and figures."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import a_few_first

from fedgraft.core.samples import ClientData
from fedgraft.data.federation import Federation, federate
from fedgraft.engines.states import first_states
from fedgraft.methods import METHODS
from fedgraft.runs.run import Run, run
from trials.federated import Federated

SETTINGS: dict[str, Any] = {
    "model": "mlp:5",
    "rounds": 2,
    "training": {"lr": 0.1, "momentum": 0.5, "epochs": 1, "batch_size": 4},
}
CLOCKS = ("seconds", "server_seconds", "evaluation_seconds")


def assert_same(federated: Federated, local: Run) -> None:
    """Server, every client's private state, and every figure but the clocks and what is private."""
    done = federated.serve()
    assert dict(done.server).keys() == dict(local.server or {}).keys()
    for name, tensor in (local.server or {}).items():
        assert torch.equal(done.server[name], tensor), name
    for client, name in enumerate(federated.names):
        kept = federated.state(name) or first_states(local.method, local.spec, [client])[client]
        expected = local._states[client]
        assert kept.keys() == expected.keys()
        for entry, tensor in expected.items():
            assert torch.equal(kept[entry], tensor), (name, entry)
    assert figures(done.result) == figures(local.result)
    assert figures(json.loads((federated.folder / "run" / "result.json").read_text())) == figures(local.result)


def figures(result: dict[str, Any]) -> Any:
    rounds = [{key: value for key, value in record.items() if key not in CLOCKS} for record in result["rounds"]]
    return {"rounds": rounds, "samples": result["samples"], "last": result["last"], "best": result["best"]}


@pytest.mark.parametrize("name", a_few_first(METHODS))
def test_same_bits_as_on_one_machine(name: str, fed: Federation, tmp_path: Path) -> None:
    local = run(name, fed, workers=1, **SETTINGS)
    assert_same(Federated(tmp_path, fed, {"method": name, **SETTINGS}), local)


@pytest.mark.parametrize("stages", [["int8", "median"], ["topk:0.3", "clip:0.5"]])
def test_stages(stages: list[str], fed: Federation, tmp_path: Path) -> None:
    settings = {**SETTINGS, "training": {**SETTINGS["training"], "stages": stages}}
    local = run("fedavg", fed, workers=1, **settings)
    assert_same(Federated(tmp_path, fed, {"method": "fedavg", **settings}), local)


@pytest.mark.parametrize("name", ["fedppa", "flexifed", "fedproto"])
def test_different_architectures(name: str, fed: Federation, tmp_path: Path) -> None:
    settings = {**SETTINGS, "model": "mlp:5-4,mlp:5-4-4"}
    assert_same(Federated(tmp_path, fed, {"method": name, **settings}), run(name, fed, workers=1, **settings))


@pytest.mark.parametrize("order", ["snapshot", "sequential"])
def test_some_of_the_sites_in_waves_with_validation(order: str, fed: Federation, tmp_path: Path) -> None:
    settings = {**SETTINGS, "rounds": 3, "participation": "0.5", "validation": 0.25, "params": {"order": order}}
    federated = Federated(tmp_path, fed, {"method": "fedapa", **settings})
    local = run("fedapa", dataset=str(tmp_path / "sites"), workers=1, **settings)
    assert "received_validation" in local.result["rounds"][-1]
    assert_same(federated, local)


@pytest.mark.parametrize("changes", [{"augment": True}, {"resize": 12}, {"model": "vgg11:0.05"}])
def test_images_are_prepared_the_same(changes: dict[str, Any], tmp_path: Path) -> None:
    fed = federate("digits", 4, "dirichlet:1", 3)
    small = Federation("digits", tuple(_few(each) for each in fed.clients), fed.task, "own", 3)
    settings = {**SETTINGS, "model": "cnn-digits", "rounds": 1, **changes}
    federated = Federated(tmp_path, small, {"method": "fedavg", **settings})
    assert_same(federated, run("fedavg", dataset=str(tmp_path / "sites"), workers=1, **settings))


def _few(data: ClientData) -> ClientData:
    """A few samples, with the last class among them so that everybody counts ten."""
    first = torch.arange(9)
    train = data.train.subset(first)
    train.labels[0] = 9
    return ClientData(train, data.test.subset(first[:4]), data.validation)
