"""Runs from Python: own data, own modules, run directories."""

import json
import tomllib
from pathlib import Path

import numpy as np
import pytest
import torch
from conftest import blobs, small_network
from safetensors.torch import load_file
from torch import nn

import fedgraft as fg
from fedgraft.base.errors import UserError
from fedgraft.data.federation import Federation
from fedgraft.runs.config import configure, read

QUICK = {"rounds": 2, "workers": 1, "lr": 0.1, "batch_size": 8}


def test_a_run_on_own_data_with_an_own_module(fed: Federation) -> None:
    run = fg.run(fg.FedAPA(eta=0.02), fed, model=small_network(), **QUICK)
    assert run.result["method"] == "fedapa"
    assert run.result["params"]["eta"] == 0.02
    assert run.result["model"] == "custom"
    assert 0 <= run.value <= 1
    module = run.module(2)
    x, y = fed.clients[2].test.batch(slice(None))
    right = (module(x).argmax(1) == y).float().mean()
    assert run.records[-1]["trained"]["metrics"]["accuracy"]["per_client"][2] == pytest.approx(float(right))


def test_the_module_is_the_personal_one(fed: Federation) -> None:
    run = fg.run("ditto", fed, model=small_network(), **QUICK)
    x, y = fed.clients[1].test.batch(slice(None))
    right = (run.module(1)(x).argmax(1) == y).float().mean()
    assert run.records[-1]["trained"]["metrics"]["accuracy"]["per_client"][1] == pytest.approx(float(right))
    assert not torch.equal(run._states[1]["own"], run._states[1]["v"])
    with pytest.raises(UserError, match="no client 9; there are 0 to 3"):
        run.module(9)


def test_a_module_with_weights_is_everybodys_start(fed: Federation) -> None:
    torch.manual_seed(11)
    pretrained = small_network()()
    run = fg.run("fedavg", fed, model=pretrained, rounds=1, epochs=0, workers=1)
    for name, tensor in run.module(0).state_dict().items():
        assert torch.equal(tensor, pretrained.state_dict()[name])


def test_a_run_directory_tells_everything(fed: Federation, tmp_path: Path) -> None:
    run = fg.run("fedapa", fed, model=small_network(), out=tmp_path / "run", **QUICK)
    assert run.directory == tmp_path / "run"
    assert sorted(p.name for p in (tmp_path / "run").iterdir()) == [
        ".lock", "checkpoints", "config.toml", "metrics.jsonl", "observed.safetensors", "result.json",
        "run.json",
    ]  # fmt: skip
    result = json.loads((tmp_path / "run" / "result.json").read_text())
    keys = "method params dataset partition clients model seed rounds best last"
    assert set(keys.split()) <= result.keys()
    assert {"round", "seconds", "bytes_up", "bytes_down", "received", "trained"} <= result["rounds"][0].keys()
    assert {"mean", "pooled", "per_client"} <= result["rounds"][0]["received"]["metrics"]["accuracy"].keys()
    lines = (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()
    assert [json.loads(line) for line in lines] == result["rounds"]
    assert load_file(tmp_path / "run" / "observed.safetensors")["A"].shape == (2, 4, 4)
    written = tomllib.loads((tmp_path / "run" / "config.toml").read_text())
    assert written["params"]["mu"] == 0.5
    assert configure(read(tmp_path / "run" / "config.toml")) == run.config


def test_a_directory_in_use_is_left_alone(fed: Federation, tmp_path: Path) -> None:
    (tmp_path / "precious.txt").write_text("mine")
    with pytest.raises(UserError, match="not empty"):
        fg.run("local", fed, model=small_network(), out=tmp_path, **QUICK)
    assert [p.name for p in tmp_path.iterdir()] == ["precious.txt"]


def test_mistakes_are_found_before_anything_is_written(fed: Federation, tmp_path: Path) -> None:
    for mistake in ({"model": "lenet5"}, {"method": "fedapaa"}, {"rounds": 0}, {"model": "no.such.package:net"}):
        with pytest.raises(UserError):
            fg.run(mistake.pop("method", "local"), fed, out=tmp_path / "new", **{"workers": 1, **mistake})  # type: ignore[arg-type]
    with pytest.raises(UserError, match="2 outputs for 3 classes"):
        fg.run("local", fed, model=lambda: nn.Sequential(nn.Linear(6, 2)), out=tmp_path / "new", **QUICK)
    assert not (tmp_path / "new").exists()


def test_best_is_chosen_on_validation_data_where_there_is_some() -> None:
    run = fg.run("local", dataset="digits", clients=3, partition="iid", validation=0.2, rounds=2, workers=1)
    assert run.result["best"]["chosen_on"] == "validation"
    assert "received_validation" in run.records[0]
    assert fg.run("local", blobs(), model=small_network(), **QUICK).result["best"]["chosen_on"] == "test"


def test_global_accuracy_is_there_on_request(fed: Federation) -> None:
    run = fg.run("local", fed, model=small_network(), global_test=True, **QUICK)
    own, everyone = (run.records[-1][part]["metrics"]["accuracy"] for part in ("trained", "trained_global"))
    assert everyone["mean"] < own["mean"], "alone, a client never sees one of the three classes"


def test_different_architectures_in_one_federation(fed: Federation) -> None:
    run = fg.run("fedavg", fed, model="mlp:8,mlp:8-8", **QUICK)
    assert len(run.spec.architectures) == 2
    assert run.spec.assignment == (0, 0, 1, 1)
    with pytest.raises(UserError, match="same architecture"):
        fg.run("fedapa", fed, model="mlp:8,mlp:8-8", **QUICK)


@pytest.mark.slow
def test_a_comparison_has_local_and_fedavg_and_the_same_data_for_all(tmp_path: Path) -> None:
    settings = {"clients": 4, "partition": "dirichlet:0.5", "rounds": 2, "workers": 1, "lr": 0.05}
    comparison = fg.compare(["fedper", fg.FedAPA(mu=0.3)], seeds=2, out=tmp_path / "all", **settings)
    rows = {row.method: row for row in comparison.rows()}
    assert list(rows) == ["local", "fedavg", "fedper", "fedapa:mu=0.3"]
    assert rows["local"].bytes_up == 0
    assert rows["local"].difference is None
    assert rows["fedapa:mu=0.3"].difference.pairs == 8  # type: ignore[union-attr]
    first, second = (run.result["label_counts"] for run in comparison.runs["fedper"])
    assert first == comparison.runs["local"][0].result["label_counts"]
    assert first != second, "every seed draws a new partition"
    values = [run.result["last"]["trained"]["accuracy"]["pooled"] for run in comparison.runs["fedper"]]
    mean = sum(values) / 2
    assert rows["fedper"].pooled["trained"].mean == pytest.approx(mean)
    assert rows["fedper"].pooled["trained"].deviation == pytest.approx(abs(values[0] - values[1]) / 2**0.5)
    saved = json.loads((tmp_path / "all" / "comparison.json").read_text())
    assert [row["method"] for row in saved["rows"]] == list(rows)
    assert (tmp_path / "all" / "fedapa-mu=0.3-seed1" / "result.json").exists()


def test_a_saved_partition_stays_in_the_configuration(tmp_path: Path) -> None:
    from fedgraft.data.datasets import load

    digits = load("digits")
    file = str(tmp_path / "split.json")
    fg.Dirichlet(0.5).split(digits.y_train, digits.y_test, 3, 7).save(file)
    run = fg.run("local", clients=3, partition=file, rounds=1, workers=1)
    assert run.config.partition == file


def test_a_folder_of_sites_has_no_partition_and_can_be_repeated(fed: Federation, tmp_path: Path) -> None:
    (tmp_path / "sites").mkdir()
    for number, client in enumerate(fed.clients):
        arrays = {"x_train": client.train.inputs, "y_train": client.train.labels}
        arrays |= {"x_test": client.test.inputs, "y_test": client.test.labels}
        np.savez(tmp_path / "sites" / f"{number}.npz", **{name: tensor.numpy() for name, tensor in arrays.items()})
    run = fg.run("local", dataset=str(tmp_path / "sites"), out=tmp_path / "one", **QUICK)
    assert run.config.partition == "own"
    again = fg.run(config=configure(read(tmp_path / "one" / "config.toml")), method="local", out=tmp_path / "two")
    assert again.records[-1]["trained"] == run.records[-1]["trained"]
