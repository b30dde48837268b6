"""What a run leaves behind, also when something could not be measured or nobody was heard."""

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from conftest import Wire, blobs, small_network
from rich.console import Console

import fedgraft as fg
from fedgraft import cli
from fedgraft.core.client import ClientId
from fedgraft.core.errors import UserError
from fedgraft.core.evaluation import Scores
from fedgraft.core.message import Message
from fedgraft.data.federation import Federation
from fedgraft.report import figures
from fedgraft.report.page import render
from fedgraft.report.reading import read_all
from fedgraft.report.text import show
from fedgraft.runs import results
from fedgraft.runs.run import Run
from fedgraft.trackers import tracker

QUICK: dict[str, Any] = {"rounds": 3, "workers": 1, "lr": 0.1, "batch_size": 8}


def evaluated(number: int, mean: float | None, validation: float | None = None) -> dict[str, Any]:
    """The record of a round in which both points had the same figures."""
    parts = {"received": mean, "trained": mean}
    if validation is not None:
        parts |= {f"{point}_validation": validation for point in parts}
    return {"round": number, **{part: {"mean": value, "pooled": value} for part, value in parts.items()}}


def test_best_and_last_skip_rounds_without_a_figure() -> None:
    found = results.best_and_last([evaluated(1, 0.5), {"round": 2}, evaluated(3, 0.4), evaluated(4, None)])
    assert found["best"]["trained"]["mean"] == {"round": 1, "accuracy": 0.5}
    assert found["last"]["trained"] == {"mean": 0.4, "pooled": 0.4}
    assert found["last"]["round"] == 3


@pytest.mark.parametrize("missing", [0, 1, 2])
def test_best_is_chosen_among_the_rounds_that_have_validation_figures(missing: int) -> None:
    records = [evaluated(1, 0.5, 0.7), evaluated(2, 0.6, 0.8), evaluated(3, 0.4, 0.6)]
    records[missing] = evaluated(missing + 1, 0.9)
    found = results.best_and_last(records)
    assert found["best"]["chosen_on"] == "validation"
    assert found["best"]["received"]["pooled"]["round"] == (1 if missing == 1 else 2)
    assert found["last"]["round"] == 3


def test_a_run_in_which_nobody_was_tested_has_no_figures() -> None:
    found = results.best_and_last([{"round": 1}, {"round": 2}])
    assert found["last"] == {
        "received": {"mean": None, "pooled": None}, "trained": {"mean": None, "pooled": None}, "round": None,
    }  # fmt: skip
    assert found["best"]["trained"] == {"mean": None, "pooled": None}


@pytest.fixture
def in_rounds(monkeypatch: pytest.MonkeyPatch) -> Callable[[set[int]], None]:
    """Let nobody be tested but in some rounds."""

    def only(chosen: set[int]) -> None:
        class Seldom(Wire):
            def evaluate(self, round: int, messages: Mapping[ClientId, Message]) -> Mapping[ClientId, Scores]:
                return super().evaluate(round, messages) if round in chosen else {}

        monkeypatch.setattr("fedgraft.runs.run.LocalEngine", Seldom)

    return only


def untested(fed: Federation, out: Path, **more: Any) -> Run:
    return fg.run("fedapa", fed, model=small_network(), out=out, progress=True, **QUICK, **more)


def test_a_result_is_written_also_when_nobody_could_be_tested(
    fed: Federation, tmp_path: Path, in_rounds: Callable[[set[int]], None]
) -> None:
    in_rounds(set())
    pytest.importorskip("tensorboard")
    with tracker("tensorboard") as watcher:
        run = untested(fed, tmp_path / "run", watchers=[watcher])
    assert json.loads((tmp_path / "run" / "result.json").read_text())["last"]["round"] is None
    assert run.accuracy != run.accuracy
    assert "no client's model could be tested in any round" in str(run)
    reading = read_all([tmp_path / "run"])
    assert "fedapa" in render(reading)
    console = Console(width=80)
    with console.capture() as shown:
        show(reading, console)
    assert "not tested" in shown.get()
    pytest.importorskip("matplotlib")
    assert figures.write(reading, tmp_path / "figures")
    compared = fg.compare([], seeds=1, federation=lambda _: fed, model=small_network(), progress=True, **QUICK)
    assert compared.to_json()["rows"][0]["mean"]["trained"] == {"mean": None, "deviation": None}


def test_a_result_keeps_the_rounds_in_which_somebody_was_tested(
    fed: Federation, tmp_path: Path, in_rounds: Callable[[set[int]], None]
) -> None:
    in_rounds({1})
    run = untested(fed, tmp_path / "run")
    assert run.result["last"]["round"] == 2
    assert run.result["last"]["trained"] == {figure: run.records[1]["trained"][figure] for figure in results.FIGURES}
    assert "trained" in str(run)
    render(read_all([tmp_path / "run"]))


DEAF = {**QUICK, "max_norm": 1e-6}


def test_a_run_in_which_no_reply_was_taken_is_no_success(fed: Federation, tmp_path: Path) -> None:
    sentence = r"took no reply in any round \(the first: fedavg, round 1: .*\), so nobody .*; the result is in .*run"
    with pytest.raises(UserError, match=sentence):
        fg.run("fedavg", fed, model=small_network(), out=tmp_path / "run", **DEAF)
    written = json.loads((tmp_path / "run" / "result.json").read_text())
    assert [record["accepted"] for record in written["rounds"]] == [0, 0, 0]
    assert written["refused"] >= 12
    assert "took no reply in any round" in render(read_all([tmp_path / "run"]))
    with pytest.raises(UserError, match="took no reply"):
        fg.run("fedavg", fed, model=small_network(), **DEAF)
    one = fg.run("local", fed, model=small_network(), **DEAF)
    assert [record["accepted"] for record in one.records] == [4, 4, 4], "alone, nothing is sent and nothing refused"


def test_a_resumed_run_in_which_no_reply_was_taken_is_no_success(fed: Federation, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="took no reply"):
        fg.run("fedavg", fed, model=small_network(), out=tmp_path / "run", checkpoint_every=1, **DEAF)
    (tmp_path / "run" / "result.json").unlink()
    with pytest.raises(UserError, match="took no reply"):
        fg.resume(tmp_path / "run", fed, model=small_network())
    assert (tmp_path / "run" / "result.json").exists()


WORDS = ["--rounds", "1", "--clients", "3", "--partition", "iid", "--workers", "1", "--max-norm", "1e-6"]


def test_the_command_line_ends_with_code_2_where_no_reply_was_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("fedgraft.cli.signal.signal", lambda *_: None)  # the tests keep their own
    for words in (["run", "fedavg"], ["compare", "--seeds", "1"]):
        out = str(tmp_path / words[0])
        monkeypatch.setattr("sys.argv", ["fedgraft", *words, *WORDS, "--out", out])
        with pytest.raises(SystemExit) as ended:
            cli.main()
        assert ended.value.code == 2
        assert "took no reply in any round" in capsys.readouterr().err.splitlines()[-1]
    assert (tmp_path / "run" / "result.json").exists()
    assert (tmp_path / "compare" / "comparison.json").exists()


def test_a_comparison_says_in_which_runs_no_reply_was_taken() -> None:
    fed = blobs()
    compared = fg.compare(["fedper"], seeds=2, federation=lambda _: fed, model=small_network(), **DEAF)
    assert [row.unheard for row in compared.rows()] == [0, 2, 2]
    assert "nobody learned anything from others: fedavg (2 runs), fedper (2" in " ".join(str(compared).split())
