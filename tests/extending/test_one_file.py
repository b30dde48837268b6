"""A metric, a task, an optimizer of one's own: each is one file, named on the command line, and no edit elsewhere."""

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from fedgraft.cli import app

METRIC = '''
from dataclasses import dataclass

import numpy as np

from fedgraft import Metric


@dataclass(frozen=True)
class WithinTen(Metric):
    """The share of answers within some units of the truth."""

    name = "within"
    title = "within reach"
    percent, bounded = True, True
    units: float = 10.0

    def tally(self, outputs, targets):
        return np.array([float(((outputs - targets).abs() <= self.units).sum()), float(targets.numel())])
'''
TASK = '''
from dataclasses import dataclass

from fedgraft.core.task import Regression


@dataclass(frozen=True)
class Median(Regression):
    """The median instead of the mean: training minimises the absolute distance."""

    name = "median"
    metrics = ("./mine.py:Far",)

    def loss(self, outputs, targets):
        return (outputs - (targets - self.shift) / self.scale).abs().mean()


import numpy as np

from fedgraft import Metric


@dataclass(frozen=True)
class Far(Metric):
    name = "far"
    title = "mean distance"
    higher = False

    def tally(self, outputs, targets):
        return np.array([float((outputs - targets).abs().sum()), float(targets.numel())])
'''
OPTIMIZER = '''
from dataclasses import dataclass

from fedgraft import Optimizer


@dataclass(frozen=True)
class SignSGD(Optimizer):
    """Steps of one length in every coordinate."""

    name = "signs"

    def step(self, weights, gradient, state, rate, decay):
        weights.sub_(rate * gradient.sign())
'''
SHORT = ["--clients", "3", "--partition", "iid", "--rounds", "2", "--workers", "1", "--lr", "0.01"]


def ran(*words: str) -> dict[str, Any]:
    done = CliRunner().invoke(app, ["run", *words, *SHORT, "--out", "run"], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    found: dict[str, Any] = json.loads(Path("run/result.json").read_text())
    return found


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def write(text: str) -> None:
    Path("mine.py").write_text(text)


def test_a_metric(here: Path) -> None:
    write(METRIC)
    narrow = ran("fedavg", "--dataset", "diabetes", "--metrics", "./mine.py:WithinTen,rmse")
    Path("run").rename("narrow")
    wide = ran("fedavg", "--dataset", "diabetes", "--metrics", "./mine.py:WithinTen:units=1000")
    assert [metric["title"] for metric in narrow["metrics"]] == ["within reach", "RMSE"]
    reach = [found["last"]["trained"]["within"]["pooled"] for found in (narrow, wide)]
    assert 0 <= reach[0] < reach[1] == 1.0


def test_a_task(here: Path) -> None:
    write(TASK)
    found = ran("ditto", "--dataset", "diabetes", "--task", "./mine.py:Median")
    assert 20 < found["last"]["trained"]["far"]["pooled"] < 100


def test_an_optimizer(here: Path) -> None:
    write(OPTIMIZER)
    usual = ran("fedavg", "--dataset", "breast-cancer")
    Path("run").rename("usual")
    other = ran("fedavg", "--dataset", "breast-cancer", "--optimizer", "./mine.py:SignSGD")
    assert usual["last"] != other["last"]
