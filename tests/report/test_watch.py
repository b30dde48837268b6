"""Following a run from another terminal."""

import io
import json
import shutil
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from rich.console import Console

import fedgraft as fg
from fedgraft.base.errors import UserError
from fedgraft.report.watch import Follower, _is_over, watch


@pytest.fixture
def going_on(folder: Path, tmp_path: Path) -> Path:
    """A run after its first round."""
    run = Path(shutil.copytree(folder / "apfl-seed0", tmp_path / "run"))
    (run / "result.json").unlink()
    first, *_ = (run / "metrics.jsonl").read_text().splitlines(keepends=True)
    (run / "metrics.jsonl").write_text(first)
    return run


def append(run: Path, text: str) -> None:
    with (run / "metrics.jsonl").open("a") as stream:
        stream.write(text)


def test_a_line_that_is_being_written_waits(folder: Path, going_on: Path) -> None:
    _, second, _ = (folder / "apfl-seed0" / "metrics.jsonl").read_text().splitlines(keepends=True)
    follower = Follower.of(going_on)
    assert (follower.method, follower.rounds) == ("apfl", 3)
    assert [record.round for record in follower.poll()] == [1]
    append(going_on, second[:40])
    assert follower.poll() == []
    append(going_on, second[40:])
    assert [record.round for record in follower.poll()] == [2]
    (going_on / "metrics.jsonl").write_text("")
    assert follower.poll() == []
    assert follower.records == [], "a resumed run may begin before where it was"
    append(going_on, "not json\n")
    with pytest.raises(UserError, match="damaged"):
        follower.poll()


def test_plain_lines_until_the_result_is_there(
    folder: Path, going_on: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rest = (folder / "apfl-seed0" / "metrics.jsonl").read_text().splitlines(keepends=True)[1:]

    def finish() -> None:
        for line in rest:
            time.sleep(0.05)
            append(going_on, line)
        (going_on / "result.json").write_text(json.dumps({}))

    writer = threading.Thread(target=finish)
    writer.start()
    watch(going_on, Console(file=io.StringIO()), poll_seconds=0.01)
    writer.join()
    lines = capsys.readouterr().out.splitlines()
    assert [line.split(" loss")[0] for line in lines] == [f"run round {n}/3" for n in (1, 2, 3)]
    mean = json.loads(rest[-1])["trained"]["metrics"]["accuracy"]["mean"]
    assert "accuracy received" in lines[-1]
    assert f"trained {100 * mean:.1f} %" in lines[-1]


def test_a_comparison_is_a_live_table(folder: Path) -> None:
    console = Console(file=io.StringIO(), force_terminal=True, width=100)
    watch(folder, console, poll_seconds=0.01)
    shown = console.file.getvalue()  # type: ignore[attr-defined]
    assert "apfl-seed1" in shown
    assert "3/3" in shown
    assert "done" in shown


def test_nothing_to_follow_is_a_sentence(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="there is no directory"):
        watch(tmp_path / "missing", Console())
    with pytest.raises(UserError, match="holds no run"):
        watch(tmp_path, Console())


def test_a_recommendation_and_a_folder_of_runs_end(folder: Path, tmp_path: Path) -> None:
    race = tmp_path / "race"
    shutil.copytree(folder, race / "final", ignore=shutil.ignore_patterns("checkpoints"))
    assert _is_over(tmp_path), "a folder of comparisons, all of which are complete"
    (race / "race.toml").write_text("")
    assert not _is_over(race), "the final is over, and the answer is to come"
    (race / "recommendation.json").write_text("{}")
    watch(race, Console(file=io.StringIO()), poll_seconds=0.01)
    (race / "race.toml").unlink()
    (race / "final" / "apfl-seed0" / "result.json").unlink()
    assert not _is_over(race)


def test_settings_that_were_changed_are_a_sentence(going_on: Path) -> None:
    text = (going_on / "config.toml").read_text()
    (going_on / "config.toml").write_text(text.replace("rounds = 3", 'rounds = "x"'))
    with pytest.raises(UserError, match=r"config.toml was changed: rounds is 'x', and not a number"):
        watch(going_on, Console(file=io.StringIO()))


@pytest.mark.slow
def test_ctrl_c_ends_the_view_quietly(going_on: Path) -> None:
    command = [sys.executable, "-m", "fedgraft", "watch", str(going_on)]
    view = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert view.stdout is not None
    assert "round 1/3" in view.stdout.readline()
    view.send_signal(signal.SIGINT)
    _, errors = view.communicate(timeout=60)
    assert (view.returncode, errors) == (0, "")


def test_a_run_is_followed_by_its_own_metric(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = fg.run("fedavg", dataset="diabetes", partition="iid", clients=3, rounds=2, workers=1, out=tmp_path / "run")
    watch(tmp_path / "run", Console(file=io.StringIO()), poll_seconds=0.01)
    line = capsys.readouterr().out.splitlines()[-1]
    mean = run.facts.last.trained["rmse"].mean
    assert "RMSE received" in line
    assert line.endswith(f"trained {run.metrics[0].shown(mean)}")
    assert "%" not in line
    live = Console(file=io.StringIO(), force_terminal=True, width=100)
    watch(tmp_path / "run", live, poll_seconds=0.01)
    assert "RMSE" in live.file.getvalue()  # type: ignore[attr-defined]
