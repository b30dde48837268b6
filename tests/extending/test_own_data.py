"""A partition scheme, a dataset, a model, a schedule, a tracker of one's own: one file each, and no edit elsewhere."""

import json
import tomllib
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import fedgraft as fg
from fedgraft.base.errors import UserError
from fedgraft.cli import app

SHORT = ["--clients", "3", "--rounds", "2", "--workers", "1", "--lr", "0.01"]

SCHEME = '''
from dataclasses import dataclass

import fedgraft as fg
import numpy as np


@dataclass(frozen=True)
class ByTurns(fg.Scheme):
    """Give each client so many samples of a class in turn."""

    name = "by-turns"
    run: int

    def assign(self, files, clients, rng):
        def dealt(members):
            owner = np.arange(sum(map(len, members))) // self.run % clients
            return tuple(np.concatenate(members)[owner == client] for client in range(clients))

        return dealt(files.train), dealt(files.test)
'''
DATASET = """
import numpy as np


def load(samples=60, noise=0.1):
    rng = np.random.default_rng(0)
    y = np.arange(samples) % 2
    x = (y[:, None] + noise * rng.standard_normal((samples, 4))).astype(np.float32)
    return {"x_train": x, "y_train": y, "x_test": x[:20], "y_test": y[:20]}


def wrong():
    return [1, 2, 3]


def broken():
    raise OSError("no such share")
"""
MODEL = '''
from dataclasses import dataclass

from torch import nn

from fedgraft.models.net import Blueprint


def build(width=8):
    return nn.Sequential(nn.Flatten(), nn.Linear(64, width), nn.ReLU(), nn.Linear(width, 10))


@dataclass(frozen=True)
class Wide(Blueprint):
    """Told the shape of the samples and the number of outputs."""

    name = "wide"
    times: int = 2
    inputs = "pictures of 8x8"

    def fits(self, shape):
        return shape[-1] == 8

    def build(self, shape, classes):
        return nn.Sequential(nn.Flatten(), nn.Linear(64, self.times * classes), nn.ReLU(),
                             nn.Linear(self.times * classes, classes))
'''
SCHEDULE = """
from dataclasses import dataclass

import fedgraft as fg


@dataclass(frozen=True)
class Never(fg.Schedule):
    name = "never"

    def at(self, round, rounds):
        return 0.0
"""
TRACKER = """
from pathlib import Path


class Lines:
    def __init__(self, path="lines.txt"):
        self.file = Path(path).open("w")

    def begin(self, run):
        print("begin", run.method.name, file=self.file)

    def round(self, run, this):
        print("round", this.number, file=self.file)

    def end(self, run):
        print("end", file=self.file)
        self.file.close()


class Half:
    def begin(self, run): ...
"""


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def typed(*words: str) -> str:
    done = CliRunner().invoke(app, list(words), catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return done.output


def ran(*words: str, out: str = "run") -> dict[str, Any]:
    typed("run", *words, *SHORT, "--out", out)
    found: dict[str, Any] = json.loads(Path(out, "result.json").read_text())
    return found


def interrupted(out: str) -> None:
    """Set a finished run back to its beginning."""
    Path(out, "result.json").unlink()


def test_a_partition_scheme(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    Path("schemes.py").write_text(SCHEME)
    assert "client" in typed("partition", "./schemes.py:ByTurns:3", "--clients", "3")
    found = ran("fedavg", "--partition", "./schemes.py:ByTurns:3")
    other = ran("fedavg", "--partition", "schemes:ByTurns:run=50", out="other")
    assert found["samples"] != other["samples"]
    assert found["label_counts"] != other["label_counts"]
    written = tomllib.loads(Path("run/config.toml").read_text())
    assert written["partition"] == f"{here}/schemes.py:ByTurns:3", "the run is repeated from any folder"
    interrupted("run")
    (here / "elsewhere").mkdir()
    monkeypatch.chdir(here / "elsewhere")
    typed("resume", "../run")
    again = json.loads(Path("../run/result.json").read_text())
    assert again["last"] == found["last"]
    typed("report", "../run")
    with pytest.raises(UserError, match="ByTurns needs run: write"):
        typed("run", "local", "--partition", "../schemes.py:ByTurns", *SHORT)
    assert len(fg.federate("digits", 3, "../schemes.py:ByTurns:3")) == 3


def test_a_dataset(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    Path("own.py").write_text(DATASET)
    found = ran("fedavg", "--dataset", "./own.py:load", "--partition", "iid")
    assert sum(found["samples"]) == 60
    more = ran("fedavg", "--dataset", "own:load:samples=90,noise=0.5", "--partition", "iid", out="more")
    assert sum(more["samples"]) == 90
    assert tomllib.loads(Path("run/config.toml").read_text())["dataset"] == f"{here}/own.py:load"
    interrupted("run")
    monkeypatch.chdir("/")
    typed("resume", str(here / "run"))
    monkeypatch.chdir(here)
    assert json.loads(Path("run/result.json").read_text())["last"] == found["last"]
    assert fg.federate("./own.py:load", 2, "iid").name == "own"
    for text, sentence in (
        ("./own.py:wrong", "gives a list; it has to give x_train, y_train, x_test and y_test"),
        ("./own.py:broken", "cannot be loaded: OSError: no such share"),
        ("./own.py:lod", "did you mean 'load'"),
        ("./own.py:load:sample=3", "has no parameter 'sample'; did you mean 'samples'"),
    ):
        with pytest.raises(UserError, match=sentence):
            fg.federate(text, 2, "iid")
    with pytest.raises(UserError, match="leave data_dir out"):
        fg.federate("own:load", 2, "iid", data_dir=here)


def test_a_model(here: Path) -> None:
    Path("nets.py").write_text(MODEL)
    sizes = {}
    for number, text in enumerate(("./nets.py:build", "nets:build:width=16", "./nets.py:Wide", "./nets.py:Wide:3")):
        sizes[text] = ran("fedavg", "--model", text, out=f"run{number}")["bytes_up_per_client"]
    assert list(sizes.values()) == [4 * (64 * w + w + 10 * w + 10) for w in (8, 16, 20, 30)]
    assert tomllib.loads(Path("run2/config.toml").read_text())["model"] == f"{here}/nets.py:Wide"
    several = ran("local", "--model", "./nets.py:build:width=16,./nets.py:build,mlp:16", out="several")
    assert several["model"] == f"{here}/nets.py:build:width=16,{here}/nets.py:build,mlp:16"
    with pytest.raises(UserError, match="takes pictures of 8x8, and this data has samples of 30"):
        typed("run", "local", "--model", "./nets.py:Wide", "--dataset", "breast-cancer", *SHORT)


def test_a_schedule(here: Path) -> None:
    Path("rates.py").write_text(SCHEDULE)
    still = ran("fedavg", "--schedule", "./rates.py:Never")
    assert still["rounds"][0]["received"] == still["rounds"][1]["received"]
    moved = ran("fedavg", out="moved")
    assert moved["rounds"][0]["received"] != moved["rounds"][1]["received"]


def test_a_tracker(here: Path) -> None:
    Path("watch.py").write_text(TRACKER)
    typed("run", "local", *SHORT, "--track", "./watch.py:Lines:seen.txt", "--out", "run")
    assert Path("seen.txt").read_text().splitlines() == ["begin local", "round 0", "round 1", "end"]
    with pytest.raises(UserError, match=r"'./watch.py:Half' is not a tracker: it has no round\(\)"):
        typed("run", "local", *SHORT, "--track", "./watch.py:Half", "--out", "two")
    assert not Path("two").exists()
