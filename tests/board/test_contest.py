"""A whole board on tiny data: tuned, measured, interrupted and gone on with, and a method of one's own on it."""

import json
import re
import signal
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from fedgraft.base.errors import UserError
from fedgraft.board import contest, protocol, record, standing
from fedgraft.board.protocol import Protocol
from fedgraft.board.record import Record
from fedgraft.cli.app import app
from fedgraft.core.rounds import Round
from fedgraft.runs.agenda import Agenda
from fedgraft.runs.run import Run

pytest.importorskip("optuna", reason="tuning needs the extra tune")
TINY = """
trials = 2
draws = 2
validation = 0.25
hold_out = 0.3
methods = ["fedavg-ft", "local"]

[settings.made-up]
title = "Made up"
kind = "synthetic"
size = "tiny"
settings = { dataset = "DATA", clients = 4, partition = "iid", model = "linear", rounds = 2, epochs = 1, lr = 0.05 }

[settings.diabetes]
title = "Diabetes"
kind = "synthetic"
size = "tiny"
settings = { dataset = "diabetes", clients = 3, partition = "iid", model = "linear", rounds = 2, epochs = 1, lr = 0.01 }

[settings.missing]
title = "Not there"
kind = "natural"
size = "none"
settings = { dataset = "NOWHERE.npz", rounds = 2 }
"""
OWN = """
from dataclasses import dataclass
from fedgraft.core.hyper import hyper
from fedgraft.methods.fedavg import FedAvg

@dataclass(frozen=True)
class Mine(FedAvg):
    name = "mine"
    strength: float = hyper(0.5, "does nothing", low=0.0, high=1.0)
"""


def data(folder: Path, *, poisoned: bool = False) -> Path:
    rng = np.random.default_rng(0)
    y = np.arange(160) % 4
    x = (rng.standard_normal((160, 6)) + np.eye(4, 6)[y] * 2).astype(np.float32)
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "data.npz"
    np.savez(path, x_train=x, y_train=y, x_test=-x if poisoned else x, y_test=3 - y if poisoned else y)
    return path


def tiny(folder: Path, *, poisoned: bool = False) -> Path:
    text = TINY.replace("DATA", str(data(folder, poisoned=poisoned))).replace("NOWHERE", str(folder / "nowhere"))
    (folder / "tiny.toml").write_text(text)
    return folder / "tiny.toml"


def timeless(found: Record) -> Any:
    """A record without what differs from run to run: seconds."""
    told = found.model_dump()
    for entry in told["entries"]:
        for outcome in entry["outcomes"]:
            del outcome["seconds"]
    return told


@dataclass
class Interrupting:
    """Stops everything in the middle of the so manieth run."""

    runs: int
    seen: list[str] = field(default_factory=list)

    def begin(self, run: Run) -> None:
        self.seen.append(run.label)

    def round(self, run: Run, this: Round) -> None:
        if len(self.seen) == self.runs:
            raise KeyboardInterrupt

    def end(self, run: Run) -> None: ...


@pytest.fixture(scope="module")
def board(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Protocol, Record]:
    """A finished setting of two methods."""
    folder = tmp_path_factory.mktemp("board")
    told = protocol.read(tiny(folder))
    found = contest.run(folder / "out", told, ["made-up"])
    return folder / "out", told, found["made-up"]


def test_everybody_has_the_same_budget_and_the_same_draws(board: tuple[Path, Protocol, Record]) -> None:
    _, _, found = board
    assert [each.method for each in found.entries] == ["local", "fedavg-ft"]  # the references first
    assert [each.state for each in found.entries] == ["done", "done"]
    for entry in found.entries:
        assert len(entry.trials) == 2
        assert len(entry.trials[0].values) == 1
        assert entry.trials[0].values == {"lr": 0.05}  # its defaults
        assert entry.chosen in [trial.values for trial in entry.trials]
        assert [outcome.seed for outcome in entry.outcomes] == [0, 1]
        assert all(len(outcome.figures) == 3 and len(outcome.unseen) == 1 for outcome in entry.outcomes)
    assert [len(draw.names) for draw in found.draws] == [3, 3]
    assert all(set(draw.names) & set(draw.unseen) == set() for draw in found.draws)
    alone, tuned = found.entries
    assert all(0 < (outcome.seconds or 0) < 5 for outcome in alone.outcomes)
    assert alone.outcomes[0].bytes_up == 0 < tuned.outcomes[0].bytes_up


def test_tuning_is_on_a_draw_of_its_own_with_nobody_held_out(board: tuple[Path, Protocol, Record]) -> None:
    place, _, _ = board
    trials = Agenda.read(place / "made-up" / "local" / "tuning")
    draws = Agenda.read(place / "made-up" / "local" / "draws")
    assert trials.kind == "tuning"
    assert {each.config.seed for each in trials.entries} == {1000}
    assert {each.config.hold_out for each in trials.entries} == {None}
    assert [each.config.seed for each in draws.entries] == [0, 1]
    assert {each.config.hold_out for each in draws.entries} == {0.3}
    chosen = json.loads((place / "made-up" / "local" / "tuned.json").read_text())["chosen"]["lr"]
    assert {each.config.training.lr for each in draws.entries} == {chosen}


def test_what_was_gathered_is_read_back(board: tuple[Path, Protocol, Record]) -> None:
    place, _, found = board
    assert record.read_all(place) == {"made-up": found}
    assert len((place / "made-up.json").read_bytes()) < 6000


def test_tuning_never_looks_at_test_samples(board: tuple[Path, Protocol, Record], tmp_path: Path) -> None:
    _, _, found = board
    told = protocol.read(tiny(tmp_path, poisoned=True))
    other = contest.run(tmp_path / "out", told, ["made-up"], ["local"])["made-up"].entry("local")
    mine = found.entry("local")
    assert other is not None
    assert mine is not None
    assert (other.chosen, other.trials) == (mine.chosen, mine.trials)
    assert other.outcomes[0].figures != mine.outcomes[0].figures


@pytest.mark.parametrize("runs", [2, 8])
def test_an_interrupted_board_goes_on_to_the_same_figures(
    board: tuple[Path, Protocol, Record], tmp_path: Path, runs: int
) -> None:
    """Interrupted in the second run, in tuning, and in the eighth: the second method's."""
    _, told, found = board
    with pytest.raises(KeyboardInterrupt):
        contest.run(tmp_path / "out", told, ["made-up"], watchers=[Interrupting(runs)])
    cut = contest.Contest(told, "made-up", tmp_path / "out").gathered()
    assert "cut short" in {each.state for each in cut.entries}
    again = contest.run(tmp_path / "out", told, ["made-up"])["made-up"]
    assert timeless(again) == timeless(found)


def test_a_finished_board_does_nothing_more(board: tuple[Path, Protocol, Record]) -> None:
    place, told, found = board
    watcher = Interrupting(1)
    assert contest.run(place, told, ["made-up"], watchers=[watcher])["made-up"] == found
    assert watcher.seen == []


def test_what_is_done_in_earlier_results_is_not_run_again(board: tuple[Path, Protocol, Record], tmp_path: Path) -> None:
    _, told, found = board
    half = found.model_copy(update={"entries": found.entries[:1]})
    watcher = Interrupting(10**9)
    contest.run(tmp_path / "rest", told, ["made-up"], done={"made-up": half}, watchers=[watcher])
    assert watcher.seen
    assert half.entries[0].method not in watcher.seen
    other = half.model_copy(update={"terms": {**half.terms, "trials": 99}})
    with pytest.raises(UserError, match="have another protocol"):
        contest.run(tmp_path / "other", told, ["made-up"], done={"made-up": other})


def test_two_processes_do_not_take_the_same_method(board: tuple[Path, Protocol, Record], tmp_path: Path) -> None:
    _, told, _ = board
    held = contest.Contest(told, "made-up", tmp_path / "out")
    contest.begin(tmp_path / "out", told)
    with held.lease("local"):
        found = contest.run(tmp_path / "out", told, ["made-up"])["made-up"]
    assert [each.state for each in found.entries] == ["waiting", "done"]


def test_settings_of_the_machine_are_those_of_a_configuration(board: tuple[Path, Protocol, Record]) -> None:
    place, told, _ = board
    typed = contest.Contest(told, "made-up", place, changes={"workers": "2"})
    assert typed.settled(told.tuned(typed.setting)).workers == 2


def test_a_method_of_ones_own(board: tuple[Path, Protocol, Record], tmp_path: Path) -> None:
    """Added by the command, with its own hyper-parameter tuned, and shown beside what others have measured."""
    place, _, _ = board
    (tmp_path / "mine.py").write_text(OWN)
    words = ["board", "add", f"{tmp_path}/mine.py:Mine", "made-up", "--out", str(tmp_path / "out"), "--quiet"]
    words += ["--protocol", str(place.parent / "tiny.toml"), "--beside", str(place)]
    told = CliRunner().invoke(app, words)
    assert told.exit_code == 0, told.output
    assert "3 of 3 methods are done" in told.output
    said = " ".join(told.output.split())
    assert re.search(r"mine: \d+\.\d, place [123] of 3 by client mean, tuned to lr=\S+, strength=\S+;", said)
    assert re.search(r"against local \(\S+ to \S+; [^)]+\); \S+ against fedavg-ft \(", said)
    mine = record.read_all(tmp_path / "out")["made-up"].entry("mine")
    assert mine is not None
    assert set(mine.chosen) == {"lr", "strength"}
    joined = record.joined(record.read_all(tmp_path / "out"), record.read_all(place))["made-up"]
    row = next(row for row in standing.of(joined).rows if row.method == "mine")
    assert set(row.against) == {"local", "fedavg-ft"}


def test_a_method_that_does_not_fit_is_shown_with_the_reason(
    board: tuple[Path, Protocol, Record], tmp_path: Path
) -> None:
    """Prototypes of classes, where numbers are learned."""
    _, told, _ = board
    found = contest.run(tmp_path / "out", told, ["diabetes"], ["fedproto"])["diabetes"].entry("fedproto")
    assert found is not None
    assert found.state == "not admitted"
    assert "class" in found.reason
    assert not (tmp_path / "out" / "diabetes" / "fedproto" / "tuning").exists()


def test_a_setting_without_data_does_not_stop_the_others(
    board: tuple[Path, Protocol, Record], tmp_path: Path
) -> None:  # fmt: skip
    _, told, _ = board
    with pytest.raises(UserError, match="missing cannot be run"):
        contest.run(tmp_path / "out", told, ["missing", "made-up"], ["local"])
    entry = record.read_all(tmp_path / "out")["made-up"].entry("local")
    assert entry is not None
    assert entry.state == "done"


def test_what_cannot_be_is_refused_and_writes_nothing(
    board: tuple[Path, Protocol, Record], tmp_path: Path
) -> None:  # fmt: skip
    _, told, _ = board
    with pytest.raises(UserError, match="did you mean 'made-up'"):
        contest.run(tmp_path / "out", told, ["madeup"])
    with pytest.raises(UserError, match="did you mean 'fedapa'"):
        contest.run(tmp_path / "out", told, ["made-up"], ["fedapaa"])
    assert not (tmp_path / "out").exists()


def test_another_protocol_needs_another_directory(board: tuple[Path, Protocol, Record]) -> None:
    place, told, _ = board
    with pytest.raises(UserError, match="under another protocol"):
        contest.run(place, told.model_copy(update={"trials": 3}), ["made-up"])


def test_work_says_how_to_help_with_a_board(board: tuple[Path, Protocol, Record]) -> None:
    place, _, _ = board
    told = CliRunner().invoke(app, ["work", str(place)])
    assert isinstance(told.exception, UserError)
    assert f"fedgraft board run --out {place}" in str(told.exception)
    helped = CliRunner().invoke(app, ["work", str(place / "made-up" / "local" / "draws")])
    assert "2 done" in helped.output


@pytest.mark.slow
def test_a_killed_process_is_gone_on_with(board: tuple[Path, Protocol, Record], tmp_path: Path) -> None:
    place, told, found = board
    words = [sys.executable, "-m", "fedgraft", "board", "run", "made-up", "--quiet", "--out", str(tmp_path / "out")]
    process = subprocess.Popen([*words, "--protocol", str(place.parent / "tiny.toml")], stderr=subprocess.DEVNULL)
    while process.poll() is None and not (tmp_path / "out" / "made-up" / "local" / "tuning" / "agenda.toml").exists():
        time.sleep(0.01)
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert timeless(contest.run(tmp_path / "out", told, ["made-up"])["made-up"]) == timeless(found)
