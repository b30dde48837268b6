"""No setting is silently ignored: each acts, or is refused by name, however the data are given."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from torch import nn

import fedgraft as fg
from fedgraft.base.errors import UserError
from fedgraft.core.settings import Training
from fedgraft.engines import local
from fedgraft.runs.comparison import comparisons
from fedgraft.runs.config import RunConfig, configure

ANOTHER: dict[str, Any] = {
    "method": "fedavg",
    "params": {"mu": 3.0},
    "dataset": "theirs.npz",
    "data_dir": "elsewhere",
    "clients": 2,
    "partition": "iid",
    "validation": 0.4,
    "normalise": "standard",
    "augment": True,
    "resize": 6,
    "model": "mlp:3",
    "head": "1",
    "task": "next-token",
    "target": "dose",
    "site_column": "blood",
    "split": "random",
    "test_share": 0.5,
    "window": 4,
    "ignore": ["age"],
    "categories": ["grade"],
    "metrics": ["macro_f1"],
    "rounds": 1,
    "seed": 1,
    "tuned": 8,
    "data_seed": 1,
    "participation": "0.4",
    "hold_out": 0.4,
    "start_from": "usual",
    "evaluate_every": 2,
    "evaluate_clients": 2,
    "storage": "disk",
    "global_test": True,
    "checkpoint_every": 1,
    "engine": "./sequential.py:Sequential",
    "workers": 2,
    "retries": 0,
    "failed_client": "absent",
    "deadline": 100.0,
    "kernels": "torch",
    "device": "cuda:9",
    "lr": 0.5,
    "momentum": 0.1,
    "weight_decay": 0.1,
    "epochs": 3,
    "batch_size": 3,
    "drop_last": True,
    "schedule": "exponential:0.5",
    "optimizer": "adam",
    "steps": 1,
    "clip_norm": 0.01,
    "optimizer_state": "kept",
    "buffers": "local",
    "stages": ["float16"],
    "epsilon": 3.0,
    "delta": 1e-3,
    "noise": 2.0,
    "sample_clip": 0.1,
    "feature_clip": 0.1,
    "client_epsilon": 3.0,
    "client_noise": 2.0,
    "client_clip": 0.1,
    "client_quantile": 0.9,
}
OF_CLIENTS = {"client_epsilon", "client_noise", "client_clip", "client_quantile"}
OF_PRIVACY = {"epsilon", "delta", "noise", "sample_clip", "feature_clip", *OF_CLIENTS}
OF_TABLES = {"target", "site_column", "split", "test_share", "window", "ignore", "categories"}
OF_THE_DATA = {
    "dataset", "data_dir", "clients", "partition", "validation", "normalise", "augment", "resize", "task", "data_seed",
    *OF_TABLES,
}  # fmt: skip
REFUSED = {
    "name": {"device"} | OF_TABLES,
    "file": {"device", "data_dir"} | OF_TABLES,
    "folder": {"device", "data_dir", "clients", "partition"} | OF_TABLES,
    "object": {"device"} | OF_THE_DATA,
}
"""What cannot act, for each way of giving data; there is no ninth graphics card."""
SETTINGS = [name for name in {**RunConfig.model_fields, **Training.model_fields} if name != "training"]


SEQUENTIAL = """
from dataclasses import dataclass, field
from fedgraft.engines.simulation import Simulation

@dataclass(eq=False)
class Sequential(Simulation):
    workers: int = field(default=1, kw_only=True)
    def perform(self, jobs):
        return {job.client: self.workshop.perform(job) for job in jobs}
"""
"""An engine that does not say what it was asked for."""


def images(seed: int, count: int, side: int = 8) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)
    x = rng.integers(0, 200, (count + 12, side, side), np.uint8)
    y = np.arange(count + 12) % 10
    return {"x_train": x[12:], "y_train": y[12:], "x_test": x[:12], "y_test": y[:12]}


@pytest.fixture
def ways(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, dict[str, Any]]:
    """The ways of giving data: by name, as a file, as a folder of sites, as an object."""
    monkeypatch.chdir(tmp_path)
    for folder, seed in ((".", 0), ("elsewhere", 7)):
        Path(folder).mkdir(exist_ok=True)
        # stands in for the real one, which is large: 60 samples under a name that fedgraft knows
        np.savez(Path(folder) / "mnist.npz", **images(seed, 60))
    monkeypatch.setenv("FEDGRAFT_DATA", ".")
    Path("sequential.py").write_text(SEQUENTIAL)
    np.savez("mine.npz", **images(1, 60))
    np.savez("theirs.npz", **images(2, 60))
    Path("sites").mkdir()
    for number in range(3):
        np.savez(f"sites/{number}.npz", **images(number, 14 + number))
    split = {"clients": 3, "partition": "pathological:5,min_train=1,min_test=1"}
    return {
        "name": {"dataset": "mnist", **split},
        "file": {"dataset": "mine.npz", **split},
        "folder": {"dataset": "sites"},
        "object": {"federation": fg.federate("mine.npz", **split)},
    }


def network() -> nn.Module:
    side = 4  # of 6 or 8 pixels alike
    pool = nn.AdaptiveAvgPool2d(side)
    return nn.Sequential(pool, nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2), nn.Flatten(), nn.Linear(8, 6), nn.Linear(6, 10))


class Observed(local.LocalEngine):
    """The real engine, which also writes down what it was asked for."""

    asked: ClassVar[dict[str, Any]] = {}

    def __post_init__(self) -> None:
        super().__post_init__()
        Observed.asked = {key: str(getattr(self, key)) for key in ("workers", "device", "faults", "storage")}


def trace(out: Path, method: str = "fedprox", **settings: Any) -> dict[str, Any] | str:
    """All that a run does, or the sentence with which it was refused before anything was written."""
    Observed.asked = {}
    given = {"model": network, "rounds": 2, "workers": 1, "epochs": 1, "batch_size": 8, **settings}
    try:
        done = fg.run(method, out=out, **given)
    except UserError as error:
        return {"carried out, to a bad end": str(error)} if out.exists() else str(error)
    states = {f"{client}/{name}": t for client, state in done._states.items() for name, t in state.items()}
    return {
        "records": [{k: v for k, v in record.items() if k != "seconds"} for record in done.records],
        "weights": torch.cat([t.double().flatten() for t in states.values()]).tolist(),
        "engine": dict(Observed.asked),
        "checkpoints": sorted(file.name for file in (out / "checkpoints").iterdir()),
        "kernels": done.result["kernels"],
        "beside another rate": len(comparisons([done, replace(done, config=configure(done.config, {"lr": 0.7}))])),
    }


@pytest.fixture(autouse=True)
def watched(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(local, "LocalEngine", Observed)


def test_all_settings_are_here() -> None:
    assert set(SETTINGS) <= ANOTHER.keys(), "say which value shows that a new setting acts"


@pytest.mark.parametrize("way", REFUSED)
def test_each_setting_acts_or_is_refused(ways: dict[str, dict[str, Any]], tmp_path: Path, way: str) -> None:
    usual, refused = trace(tmp_path / "usual", **ways[way]), set()
    for name in (name for name in SETTINGS if name not in OF_PRIVACY):
        before, given = usual, ways[way]
        if name == "data_seed" and way == "folder":  # sites that bring all their samples have nothing else to draw
            given = {**given, "validation": 0.4}
            before = trace(tmp_path / "aside", **given)
        other = trace(tmp_path / name, **{**given, name: ANOTHER[name]})
        if isinstance(other, str):
            assert name in other, f"{name} is refused for another reason: {other}"
            refused.add(name)
        else:
            assert other != before, f"{name} = {ANOTHER[name]!r} changes nothing beside data given as {way}"
    assert refused == REFUSED[way]


def test_settings_of_privacy_act_on_networks_that_can_have_it(ways: dict[str, dict[str, Any]], tmp_path: Path) -> None:
    besides: dict[str, dict[str, Any]] = {
        "epsilon": {}, "noise": {}, "delta": {"epsilon": 3.0}, "sample_clip": {"noise": 2.0},
        "feature_clip": {"noise": 2.0, "method": "fedproto", "model": "mlp:5"},
        "client_epsilon": {}, "client_noise": {}, "client_clip": {"client_noise": 2.0},
        "client_quantile": {"client_noise": 2.0},
    }  # fmt: skip
    for name, beside in besides.items():
        given = {**ways["file"], "model": "linear", **beside}
        first = trace(tmp_path / f"without-{name}", **given)
        other = trace(tmp_path / f"with-{name}", **given, **{name: ANOTHER[name]})
        assert isinstance(first, dict), first
        assert isinstance(other, dict), other
        assert other["weights"] != first["weights"], f"{name} changes nothing"


def test_settings_of_tables_act_on_tables(tmp_path: Path) -> None:
    (tmp_path / "tables").mkdir()
    for site in "ab":
        rows = [f"{age},{age % 3},{2.5 + age},{'xyz'[age % 3]},{age % 2}" for age in range(40)]
        (tmp_path / "tables" / f"{site}.csv").write_text("\n".join(["age,grade,dose,blood,label", *rows]))
    usual = {"dataset": str(tmp_path / "tables"), "model": "linear"}
    first = trace(tmp_path / "usual", **usual)
    assert isinstance(first, dict), first
    for name in sorted(OF_TABLES - {"site_column"}):
        other = trace(tmp_path / name, **usual, **{name: ANOTHER[name]})
        assert isinstance(other, dict), other
        assert other != first, f"{name} changes nothing"
    refused = {"site_column", "data_dir", "clients", "partition", "normalise", "augment", "resize"}
    for name in refused:
        sentence = trace(tmp_path / name, **usual, **{name: ANOTHER[name] if name != "clients" else 5})
        assert isinstance(sentence, str), f"{name} is of no effect, and not refused"
        assert name in sentence


def test_what_is_refused_beside_an_object(ways: dict[str, dict[str, Any]]) -> None:
    fed = ways["object"]["federation"]
    for name in OF_THE_DATA:
        with pytest.raises(UserError, match=f"{name} .*is of no effect beside a federation"):
            fg.run("local", fed, rounds=1, **{name: ANOTHER[name]})
        with pytest.raises(UserError, match=f"{name} .*is of no effect beside a federation"):
            fg.compare([], federation=lambda _: fed, seeds=1, rounds=1, **{name: ANOTHER[name]})
    same = {"clients": 3, "dataset": "mine", "partition": "pathological:5,min_test=1,min_train=1", "validation": 0.0}
    assert fg.run("local", fed, model="linear", rounds=1, workers=1, **same).config.clients == 3


def test_config_toml_says_what_the_federation_is(tmp_path: Path, ways: dict[str, dict[str, Any]]) -> None:
    fed = fg.federate("mine.npz", 3, "iid", validation=0.3, normalise="standard", augment=True, resize=6)
    done = fg.run("local", fed, model="linear", rounds=1, workers=1, out=tmp_path / "out")
    facts = ("dataset", "clients", "partition", "validation", "normalise", "augment", "resize")
    assert [getattr(done.config, name) for name in facts] == ["mine", 3, "iid", 0.3, "standard", True, 6]
    assert 'normalise = "standard"' in (tmp_path / "out" / "config.toml").read_text()


def test_keywords_override_a_configuration(ways: dict[str, dict[str, Any]]) -> None:
    config = configure({"method": "fedprox", "params": {"mu": 0.3}, "rounds": 3, "lr": 0.5, "model": "linear"})
    given = {"workers": 1, **ways["file"]}
    done = fg.run("fedprox", config=config, rounds=1, momentum=0.2, **given)
    assert (len(done.records), done.spec.settings.momentum, done.spec.settings.lr) == (1, 0.2, 0.5)
    assert done.result["params"]["mu"] == 0.3
    assert fg.run("fedprox:mu=0.7", config=config, rounds=1, **given).result["params"]["mu"] == 0.7
    assert fg.run("fedprox", config=config, rounds=1, params={"mu": 0.6}, **given).result["params"]["mu"] == 0.6
    assert fg.run("local", config=config, rounds=1, **given).result["params"] == {}, "mu is fedprox's"
    compared = fg.compare([], config=config, seeds=1, rounds=1, recipe="fedapa", **given)
    assert (compared.config.rounds, compared.config.participation) == (1, "0.6..1")
    assert compared.config.training.lr == 0.5


def test_parameters_beside_an_object_are_refused(ways: dict[str, dict[str, Any]]) -> None:
    with pytest.raises(UserError, match="params are for a method given by its name; fedprox is an object"):
        fg.run(fg.FedProx(), params={"mu": 1.0}, **ways["file"])
    for name in ("params", "method"):
        with pytest.raises(UserError, match=f"{name} is a setting of one run"):
            fg.compare(["fedprox"], **{name: ANOTHER[name]}, **ways["file"])


def test_a_recipe_gives_way_to_sites_with_a_word(ways: dict[str, dict[str, Any]]) -> None:
    done = fg.run("local", recipe="fedapa", dataset="sites", model="linear", rounds=1, workers=1)
    assert (done.config.clients, done.config.partition) == (3, "own")
    assert done.notes == ["the recipe's clients gave way to what the data are"]
    with pytest.raises(UserError, match="there cannot be 20 clients"):
        fg.run("local", dataset="sites", clients=20)


def test_sites_keep_their_names(ways: dict[str, dict[str, Any]], tmp_path: Path) -> None:
    done = fg.run("local", dataset="sites", model="linear", rounds=1, workers=1, out=tmp_path / "out")
    assert json.loads((tmp_path / "out" / "result.json").read_text())["names"] == ["0", "1", "2"]
    assert done.spec.called(2) == "2"
    split = fg.run("local", model="linear", rounds=1, workers=1, **ways["file"])
    assert split.result["names"] == ["client 0", "client 1", "client 2"]


def test_a_comparison_on_sites_can_be_resumed(ways: dict[str, dict[str, Any]], tmp_path: Path) -> None:
    """Its agenda says what the sites are, not what a split would have been."""
    from fedgraft.runs import compare

    out = tmp_path / "out"
    fg.compare([], dataset="sites", model="linear", rounds=1, workers=1, seeds=1, out=out)
    (out / "comparison.json").unlink()
    assert compare.resume(out, workers=1).comparisons[""].config.partition == "own"
