"""Sweeps: every combination of values, in comparisons that are sound, and no choice by test data."""

from pathlib import Path
from typing import Any

import pytest
from conftest import blobs, small_network
from typer.testing import CliRunner

import fedgraft as fg
from fedgraft.base.errors import UserError
from fedgraft.cli import app
from fedgraft.report.sweep import tried
from fedgraft.runs.agenda import Agenda
from fedgraft.runs.config import configure
from fedgraft.runs.question import contestants
from fedgraft.runs.sweep import Grid


def test_what_is_typed_is_read() -> None:
    grid = Grid.typed(["lr=0.01,0.1", "batch-size=8,16", "fedapa.mu=0.3,0.5", 'schedule="step:30,0.1","constant"'])
    assert grid.values == {
        "lr": (0.01, 0.1), "batch_size": (8, 16), "fedapa.mu": (0.3, 0.5), "schedule": ("step:30,0.1", "constant"),
    }  # fmt: skip
    assert Grid.typed(["partition=iid,dirichlet:0.1"]).values == {"partition": ("iid", "dirichlet:0.1")}


def test_every_combination_is_there_once() -> None:
    grid = Grid.of({"lr": [0.01, 0.1], "rounds": [1, 2], "fedapa.mu": [0.3, 0.5], "fedapa.clip": [True, False]})
    settings = grid.settings(configure({"clients": 3}))
    assert list(settings) == ["lr=0.01,rounds=1", "lr=0.01,rounds=2", "lr=0.1,rounds=1", "lr=0.1,rounds=2"]
    assert [(each.training.lr, each.rounds, each.clients) for each in settings.values()] == [
        (0.01, 1, 3), (0.01, 2, 3), (0.1, 1, 3), (0.1, 2, 3),
    ]  # fmt: skip
    assert list(grid.variants(contestants(["fedapa", "fedper"]))) == [
        "local", "fedavg", "fedapa:mu=0.3", "fedapa:mu=0.3,clip=False", "fedapa", "fedapa:clip=False", "fedper",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("typed", "sentence"),
    [
        ("lr", "a sweep is written name=value,value"),
        ("lr=", "a sweep is written name=value,value"),
        ("ls=1,2", "setting that can be swept is called 'ls'; did you mean 'lr'"),
        ("workers=1,2", "no setting that can be swept is called 'workers'"),
        ("seed=1,2", "no setting that can be swept is called 'seed'"),
        ("lr=0.1,0.1", "has a value twice"),
        ("ditto.mu=1,2", "needs ditto among the methods that are compared"),
        ("fedapa.nu=1,2", "fedapa has no parameter 'nu'"),
        ("fedapa.mu=1,7", "mu has to be between"),
        ("lr=-1,1", "lr"),
    ],
)
def test_what_cannot_be_swept_is_a_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, typed: str, sentence: str
) -> None:
    monkeypatch.chdir(tmp_path)
    done = CliRunner().invoke(app, ["compare", "fedapa", "--sweep", typed])
    assert isinstance(done.exception, UserError)
    assert sentence in str(done.exception)
    assert not list(tmp_path.iterdir())


SETTINGS: dict[str, Any] = {"seeds": 1, "rounds": 2, "batch_size": 8, "workers": 1}


@pytest.mark.slow
def test_a_sweep_is_a_comparison_for_every_setting(tmp_path: Path) -> None:
    over = {"lr": [0.01, 0.1], "fedapa.mu": [0.3, 0.5]}
    given: dict[str, Any] = {"federation": blobs(), "model": small_network(), **SETTINGS}
    swept = fg.sweep("fedapa", over, out=tmp_path / "sweep", **given)
    assert list(swept.comparisons) == ["lr=0.01", "lr=0.1"]
    alone = fg.compare(["fedapa:mu=0.3", "fedapa"], lr=0.1, **given)
    for one, two in zip(swept.comparisons["lr=0.1"].rows(), alone.rows(), strict=True):
        assert (one.method, one.mean, one.pooled, one.difference) == (two.method, two.mean, two.pooled, two.difference)
    assert len(Agenda.read(tmp_path / "sweep").entries) == 2 * 4
    assert fg.read(tmp_path / "sweep" / "lr=0.1").rows()[2].mean == alone.rows()[2].mean
    assert swept.report(tmp_path / "report.html").exists()
    text = str(swept)
    assert "lr=0.01 mu=0.3" in text
    assert "none is named best" in text
    with pytest.raises(UserError, match="holds another comparison"):
        fg.sweep("fedapa", {**over, "lr": [0.01, 0.2]}, out=tmp_path / "sweep", **given)
    fg.sweep("fedapa", {**over, "lr": [0.01, 0.1, 0.2]}, out=tmp_path / "sweep", **given)
    assert len(Agenda.read(tmp_path / "sweep").entries) == 3 * 4, "a sweep may grow"


def test_the_best_is_chosen_on_validation_data() -> None:
    swept = fg.sweep((), {"lr": [1e-6, 0.1]}, clients=3, partition="iid", model="mlp:8", validation=0.2, **SETTINGS)
    found = [each for each in tried(swept, "trained", None) if each.method == "local"]
    assert [each.setting for each in found] == ["lr=1e-06", "lr=0.1"]
    assert found[1].validation > found[0].validation
    results = [each.runs["local"][0].facts for each in swept.comparisons.values()]
    for each, result in zip(found, results, strict=True):
        figures = result.rounds[-1].figures("trained", "accuracy", "_validation")
        assert figures is not None
        assert each.validation == figures.mean
    assert "best of a method on validation data" in str(swept)
