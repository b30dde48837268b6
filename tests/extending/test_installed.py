"""What an installed package offers by entry points is there by name: a real distribution, installed by pip."""

import json
import subprocess
import sys
import tomllib
from pathlib import Path

import program
import pytest

PROJECT = """
[build-system]
requires = ["setuptools"]
build-backend = "setuptools.build_meta"

[project]
name = "fancy-federations"
version = "1.0"

[tool.setuptools]
py-modules = ["fancy"]

[project.entry-points."fedgraft.methods"]
fancy = "fancy:Fancy"
fedavg = "fancy:Fancy"
missing = "fancy:Missing"

[project.entry-points."fedgraft.partitions"]
thirds = "fancy:Thirds"

[project.entry-points."fedgraft.datasets"]
coins = "fancy:coins"

[project.entry-points."fedgraft.models"]
tiny = "fancy:tiny"

[project.entry-points."fedgraft.optimizers"]
slow = "fancy:Slow"

[project.entry-points."fedgraft.metrics"]
surprise = "fancy:Surprise"

[project.entry-points."fedgraft.trackers"]
silent = "fancy:Silent"
"""
MODULE = """
from dataclasses import dataclass

import fedgraft as fg
import numpy as np
from torch import nn


@dataclass(frozen=True)
class Fancy(fg.FedAvg):
    name = "fancy"
    idea = "FedAvg by another name"


@dataclass(frozen=True)
class Thirds(fg.Scheme):
    name = "thirds"

    def assign(self, files, clients, rng):
        def dealt(members):
            return tuple(np.concatenate(members)[client::clients] for client in range(clients))

        return dealt(files.train), dealt(files.test)


def coins(samples=30):
    y = np.arange(samples) % 2
    x = np.stack([y, 1 - y], axis=1).astype(np.float32)
    return {"x_train": x, "y_train": y, "x_test": x, "y_test": y}


def tiny():
    return nn.Sequential(nn.Linear(2, 3), nn.ReLU(), nn.Linear(3, 2))


@dataclass(frozen=True)
class Slow(fg.Optimizer):
    name = "slow"

    def step(self, weights, gradient, state, rate, decay):
        weights.sub_(gradient, alpha=rate / 10)


@dataclass(frozen=True)
class Surprise(fg.Metric):
    name = "surprise"
    title = "surprise"

    def tally(self, outputs, targets):
        return np.array([0.0, float(len(targets))])


class Silent:
    def begin(self, run): ...
    def round(self, run, this): ...
    def end(self, run): print("silent was told")
"""


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build the distribution and install it into a folder of its own."""
    source, target = tmp_path_factory.mktemp("source"), tmp_path_factory.mktemp("installed")
    (source / "pyproject.toml").write_text(PROJECT)
    (source / "fancy.py").write_text(MODULE)
    options = ["--quiet", "--no-deps", "--no-build-isolation", "--no-index", "--disable-pip-version-check"]
    command = [sys.executable, "-m", "pip", "install", *options, "--target", str(target), str(source)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip(f"no distribution can be built here: {done.stderr.strip().splitlines()[-1]}")
    return target


def fedgraft(installed: Path, cwd: Path, *words: str) -> "subprocess.CompletedProcess[str]":
    return program.fedgraft(*words, cwd=cwd, path=installed)


def test_everything_it_offers_is_used_by_name(installed: Path, tmp_path: Path) -> None:
    words = ["--dataset", "coins", "--partition", "thirds", "--model", "tiny", "--optimizer", "slow", "--clients", "3",
             "--metrics", "accuracy,surprise", "--rounds", "1", "--workers", "1", "--track", "silent"]  # fmt: skip
    done = fedgraft(installed, tmp_path, "run", "fancy", *words, "--out", "run")
    assert done.returncode == 0, done.stderr
    assert "silent was told" in done.stdout
    result = json.loads((tmp_path / "run" / "result.json").read_text())
    assert (result["method"], result["dataset"], result["samples"]) == ("fancy", "coins", [10, 10, 10])
    written = tomllib.loads((tmp_path / "run" / "config.toml").read_text())
    assert (written["method"], written["model"]) == ("fancy", "tiny"), "found again by name"
    (tmp_path / "run" / "result.json").unlink()
    resumed = fedgraft(installed, tmp_path, "resume", "run")
    assert resumed.returncode == 0, resumed.stderr
    assert json.loads((tmp_path / "run" / "result.json").read_text())["last"] == result["last"]


def test_it_is_listed_and_typos_are_answered_with_it(installed: Path, tmp_path: Path) -> None:
    assert "coins" in fedgraft(installed, tmp_path, "datasets").stdout
    assert "thirds" in fedgraft(installed, tmp_path, "partition", "--list").stdout
    typo = fedgraft(installed, tmp_path, "run", "fancyy")
    assert (typo.returncode, "did you mean 'fancy'?" in typo.stderr) == (2, True)
    missing = fedgraft(installed, tmp_path, "run", "missing")
    assert missing.returncode == 2
    assert "the method 'missing' of an installed package cannot be imported: AttributeError" in missing.stderr
    ours = fedgraft(installed, tmp_path, "methods", "fedavg", "--json")
    assert json.loads(ours.stdout)["idea"] != "FedAvg by another name", "what is shipped keeps its name"
