"""Tuning: the same budget for everybody, on validation data and nothing else, and to be gone on with."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fedgraft as fg
from fedgraft.base.errors import UserError
from fedgraft.core.hyper import Range
from fedgraft.core.rounds import Round
from fedgraft.methods import METHODS
from fedgraft.runs.agenda import Agenda, Worker
from fedgraft.runs.config import configure
from fedgraft.runs.run import Run
from fedgraft.runs.tune import ranges

pytest.importorskip("optuna", reason="tuning needs the extra tune")
SETTINGS: dict[str, Any] = {
    "clients": 2, "partition": "iid", "model": "linear", "rounds": 4, "workers": 1, "epochs": 1,
}  # fmt: skip


def data(folder: Path, *, poisoned: bool = False) -> str:
    rng = np.random.default_rng(0)
    y = np.arange(80) % 4
    x = (rng.standard_normal((80, 6)) + np.eye(4, 6)[y] * 2).astype(np.float32)
    tests = 3 - y if poisoned else y
    folder.mkdir(parents=True, exist_ok=True)
    np.savez(folder / "data.npz", x_train=x, y_train=y, x_test=x if not poisoned else -x, y_test=tests)
    return str(folder / "data.npz")


def test_where_a_better_value_is_looked_for() -> None:
    config = configure({"lr": 0.02})
    assert ranges(METHODS.make("ditto"), config) == {
        "lr": Range(0.001, 0.4, log=True),
        "lam": Range(0.1, 10.0, log=True),
    }
    found = ranges(METHODS.make("fedapa"), config)
    assert found["mu"] == Range(0.0, 1.0)
    assert "clip" not in found, "a switch is a reading of the paper"
    assert found.keys() == {"lr", "eta", "mu", "server_momentum"}
    assert ranges(METHODS.make("ifca"), config)["k"] == Range(2, 8, whole=True)
    assert ranges(METHODS.make("fedpac"), config)["threshold"].log
    for name in METHODS:
        method = METHODS.make(name)
        for key, span in ranges(method, config).items():
            assert span.low < span.high, (name, key)
            for value in (span.low, span.high):  # every bound is a value that the method takes
                if key != "lr":
                    METHODS.make(name, **{key: value})


def test_the_test_data_have_no_say(tmp_path: Path) -> None:
    """With other test samples and labels every trial is the same, bit for bit."""
    trials = []
    for poisoned in (False, True):
        place = tmp_path / str(poisoned)
        found = fg.tune("ditto", budget=6, dataset=data(tmp_path / "same", poisoned=poisoned), out=place, **SETTINGS)
        trials.append((place / "trials.json").read_bytes())
        for file in place.glob("ditto/*/result.json"):
            result = json.loads(file.read_text())
            assert result["test_samples"] == [0, 0]
            assert all(value is None for value in result["last"]["trained"]["accuracy"].values())
        assert found[0].best.scores[-1] == max(t.scores[-1] for t in found[0].trials if len(t.scores) == 3)
    assert trials[0] == trials[1]


class Counted:
    def __init__(self, stop: int = 10**9) -> None:
        self.runs, self.stop = list[tuple[str, int]](), stop

    def begin(self, run: Run) -> None:
        if len(self.runs) == self.stop:
            raise KeyboardInterrupt
        self.runs.append((run.method.name, run.config.rounds))

    def round(self, run: Run, this: Round) -> None: ...

    def end(self, run: Run) -> None: ...


def test_everybody_has_the_same_budget_and_rungs_leave_half(tmp_path: Path) -> None:
    watcher = Counted()
    found = fg.tune(
        ["ditto", "fedper"], budget=6, dataset=data(tmp_path), out=tmp_path / "tuning", watchers=[watcher], **SETTINGS
    )
    for name in ("ditto", "fedper"):
        # six trials of one round, the better three of two, the better two of four
        assert [rounds for method, rounds in watcher.runs if method == name] == [1] * 6 + [2] * 3 + [4] * 2
    assert found[0].trials[0].values == {"lr": 0.02, "lam": 1.0}, "the first trial is the defaults"
    assert {tuple(each.values) for each in found[1].trials} == {("lr",)}
    assert found[0].command.startswith("ditto:lam=")
    logged = json.loads((tmp_path / "tuning" / "trials.json").read_text())["trials"]
    assert [len(logged[name]) for name in ("ditto", "fedper")] == [6, 6]


def test_an_interrupted_tuning_goes_on_to_the_same_trials(tmp_path: Path) -> None:
    given: dict[str, Any] = {"budget": 6, "dataset": data(tmp_path), **SETTINGS}
    fg.tune("ditto", out=tmp_path / "whole", **given)
    with pytest.raises(KeyboardInterrupt):
        fg.tune("ditto", out=tmp_path / "torn", watchers=[Counted(stop=5)], **given)
    Worker(tmp_path / "torn").work()  # somebody else helps, and does not see test data either
    assert Agenda.read(tmp_path / "torn").states() == {"done": 6}
    rest = Counted()
    fg.tune("ditto", out=tmp_path / "torn", watchers=[rest], **given)
    assert [rounds for _, rounds in rest.runs] == [2] * 3 + [4] * 2
    assert (tmp_path / "torn" / "trials.json").read_bytes() == (tmp_path / "whole" / "trials.json").read_bytes()
    with pytest.raises(UserError, match="holds something else than this tuning"):
        fg.tune("ditto", out=tmp_path / "torn", **{**given, "budget": 5})
    with pytest.raises(UserError, match="holds something else than this tuning"):
        fg.tune("ditto", out=tmp_path / "torn", **{**given, "lr": 0.5})


def test_what_cannot_be_tuned_is_a_sentence(tmp_path: Path) -> None:
    out = tmp_path / "out"
    for methods, changes, sentence in (
        ("ditto", {"budget": 0}, "a number of trials"),
        ([], {}, "name the methods to tune"),
        ("ditto", {"validation": 0.0}, "no client has validation samples"),
        ("fedapa", {"model": "mlp:4,mlp:5"}, "same architecture"),
    ):
        with pytest.raises(UserError, match=sentence):
            fg.tune(methods, dataset=data(tmp_path), out=out, **{**SETTINGS, **changes})
    assert not out.exists()


def test_a_comparison_tunes_everybody_first(tmp_path: Path) -> None:
    """With equal budgets, on a draw that none is measured on; in the table each method has its own rate."""
    asked: dict[str, Any] = {**SETTINGS, "dataset": data(tmp_path), "lr": 0.01, "hold_out": 0.5, "clients": 4}
    done = fg.compare(["ditto"], seeds=2, tune=3, out=tmp_path / "c", progress=False, **asked)
    assert list(done.runs) == ["local", "fedavg", "ditto"]
    assert done.tuned["ditto"].keys() == {"lr", "lam"}
    for label, each in done.runs.items():
        [tuning] = (tmp_path / "c" / "tuning").glob(label)
        trials = json.loads((tuning / "trials.json").read_text())["trials"][label]
        assert len(trials) == 3
        best = max((t for t in trials if len(t["scores"]) == 3), key=lambda t: t["scores"][-1])
        assert done.tuned[label] == best["values"]
        for run in each:
            assert run.config.training.lr == best["values"]["lr"]
            assert (run.config.tuned, run.config.validation, run.config.hold_out) == (3, 0.2, 0.5)
            assert run.config.seed in (0, 1)
        tried = [entry.config for entry in Agenda.read(tuning).entries]
        assert {config.seed for config in tried} == {1000}
        assert {config.hold_out for config in tried} == {None}
    assert done.runs["ditto"][0].method == METHODS.make("ditto", lam=done.tuned["ditto"]["lam"])
    assert "chosen" in str(done)
    back = fg.read(tmp_path / "c")
    assert list(back.runs) == ["local", "fedavg", "ditto"], "one comparison, though the rates differ"
    assert back.tuned == done.tuned
    [word] = [w for w in _commands(back, tmp_path) if w.startswith("fedgraft run ditto")][:1]
    assert f"--set lam={done.tuned['ditto']['lam']}" in word
    assert f"--lr {done.tuned['ditto']['lr']}" in word


def _commands(comparison: Any, place: Path) -> list[str]:
    from fedgraft.report import commands

    return [commands.run_command(label, run.config) for label, each in comparison.runs.items() for run in each]


def test_a_tuned_comparison_goes_on_and_grows(tmp_path: Path) -> None:
    asked: dict[str, Any] = {**SETTINGS, "dataset": data(tmp_path), "tune": 2, "out": tmp_path / "c", "progress": False}
    with pytest.raises(KeyboardInterrupt):
        fg.compare(["ditto"], seeds=1, watchers=[Counted(stop=5)], **asked)
    assert not (tmp_path / "c" / "agenda.toml").exists(), "what is compared is not known before all are tuned"
    one = fg.compare(["ditto"], seeds=1, **asked)
    more = fg.compare(["ditto", "fedper"], seeds=2, **asked)
    assert list(more.runs) == ["local", "fedavg", "ditto", "fedper"]
    assert more.tuned["ditto"] == one.tuned["ditto"]
    assert one.runs["ditto"][0].result["last"] == more.runs["ditto"][0].result["last"]


def test_what_a_tuned_comparison_cannot_be(tmp_path: Path) -> None:
    place = data(tmp_path)
    with pytest.raises(UserError, match="name a directory"):
        fg.compare(["ditto"], tune=2, dataset=place, progress=False, **SETTINGS)
    given = fg.federate(place, clients=2, partition="iid")
    with pytest.raises(UserError, match="name data, model and methods"):
        fg.compare(["ditto"], tune=2, federation=given, model="linear", out=tmp_path / "o", progress=False)
    with pytest.raises(UserError, match="two differ in nothing"):
        fg.compare(
            ["ditto:lam=1", "ditto:lam=2"], tune=1, dataset=place, out=tmp_path / "t", progress=False, **SETTINGS
        )
    with pytest.raises(UserError, match="a number of trials"):
        fg.compare(["ditto"], tune=0, dataset=place, out=tmp_path / "z", progress=False, **SETTINGS)
    with pytest.raises(UserError, match="seeds go up to"):
        fg.compare(["ditto"], tune=1, seed=10**18 - 5, dataset=place, out=tmp_path / "s", progress=False, **SETTINGS)
    assert not (tmp_path / "s").exists()


def test_proposals_are_short_enough_to_type(tmp_path: Path) -> None:
    [found] = fg.tune("ditto", budget=6, out=tmp_path / "t", dataset=data(tmp_path), **SETTINGS)
    for trial in found.trials:
        for value in trial.values.values():
            assert value == float(f"{value:.4g}")
    assert METHODS.make(found.text).parameters()["lam"] == found.best.values["lam"]
