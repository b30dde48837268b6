"""The command line as people type it."""

import itertools
import json
import statistics
import subprocess
import sys
import time
from pathlib import Path

import pytest
from typer.testing import CliRunner

from fedgraft.cli import app
from fedgraft.core.errors import UserError

runner = CliRunner()
SMALL = ["--clients", "3", "--partition", "iid", "--rounds", "2", "--workers", "1"]


def fedgraft(*words: str, cwd: Path | None = None) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, "-m", "fedgraft", *words], cwd=cwd, capture_output=True, text=True, timeout=120, check=False
    )


def test_help_answers_at_once() -> None:
    def seconds(*words: str) -> float:
        started = time.perf_counter()
        subprocess.run([sys.executable, *words], capture_output=True, check=True)
        return time.perf_counter() - started

    assert "compare" in fedgraft("--help").stdout
    pairs = [(seconds("-m", "fedgraft", "--help"), seconds("-c", "import typer, pydantic")) for _ in range(5)]
    ours, least = (statistics.median(column) for column in zip(*pairs, strict=True))
    question = "import sys, fedgraft.cli; print('torch' in sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", question], capture_output=True, text=True, check=True)
    assert loaded.stdout.strip() == "False", "help must not wait for torch"
    assert ours < max(0.5, 4 * least), "half a second on an idle machine; a ratio on a busy one"


def test_a_run_leaves_a_directory_and_a_table(tmp_path: Path) -> None:
    done = fedgraft("run", "fedapa", *SMALL, "--set", "mu=0.3", "--set", "sign=paper", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "received" in done.stdout
    assert "round 2/2" in done.stderr
    assert "note: sign = paper ascends" in done.stderr.replace("\n", " ")
    result = json.loads((tmp_path / "runs" / "fedapa-digits-seed0" / "result.json").read_text())
    assert result["params"]["mu"] == 0.3
    again = fedgraft("run", "fedapa", *SMALL, cwd=tmp_path)
    assert "fedapa-digits-seed0-2" in again.stdout, "an earlier run is never overwritten"


def test_a_configuration_file_repeats_a_run(tmp_path: Path) -> None:
    first = fedgraft("run", "fedper", *SMALL, "--out", "one", "--json", cwd=tmp_path)
    second = fedgraft("run", "--config", "one/config.toml", "--out", "two", "--json", cwd=tmp_path)
    one, two = json.loads(first.stdout), json.loads(second.stdout)
    assert one["rounds"][-1]["trained"] == two["rounds"][-1]["trained"]
    assert one["params"] == two["params"]


def test_a_comparison_fits_eighty_columns(tmp_path: Path) -> None:
    done = fedgraft("compare", "fedper", *SMALL, "--seeds", "2", "--out", "c", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    for name in ("local", "fedavg", "fedper"):
        assert name in done.stdout
    assert max(map(len, done.stdout.splitlines())) <= 80
    assert "…" not in done.stdout


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["run", "fedapaa"], "no method is called 'fedapaa'; did you mean 'fedapa'?"),
        (["run"], "name a method"),
        (["run", "fedapa", "--set", "mu=2"], "mu has to be between 0 and 1, not 2"),
        (["run", "fedapa", "--set", "nu=1"], "fedapa has no parameter 'nu'; did you mean 'mu'?"),
        (["run", "fedapa", "--set", "mu"], "a hyper-parameter is set as name=value, not as 'mu'"),
        (["run", "local", "--dataset", "digit"], "did you mean 'digits'?"),
        (["run", "local", "--partition", "dirichlett:1"], "did you mean 'dirichlet'?"),
        (["run", "local", "--partition", "dirichlet:-1"], "alpha"),
        (["run", "local", "--model", "lenet"], "did you mean 'lenet5'?"),
        (["run", "local", "--model", "lenet5"], "images of at least 16x16"),
        (["run", "local", "--rounds", "0"], "rounds should be greater than or equal to 1"),
        (["run", "local", "--clients", "100000"], "too few for 100000 clients"),
        (["run", "local", "--config", "none.toml"], "there is no configuration file none.toml"),
        (["run", "local", "--recipe", "fedap"], "did you mean 'fedapa'?"),
        (["run", "local", "--workers", "-1"], "workers"),
        (["compare", "fedapa", "ditt0"], "no method is called 'ditt0'"),
        (["methods", "nobody"], "no method is called 'nobody'"),
        (["partition", "pathological:99"], "classes must be between 1 and 10"),
    ],
)
def test_mistakes_are_one_sentence_and_write_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: list[str], sentence: str
) -> None:
    monkeypatch.chdir(tmp_path)
    answer = runner.invoke(app, words)
    assert isinstance(answer.exception, UserError), answer.output
    assert sentence in str(answer.exception)
    assert "\n" not in str(answer.exception)
    assert not list(tmp_path.iterdir())


def test_a_mistake_exits_with_two_and_no_traceback(tmp_path: Path) -> None:
    for words in (["run", "fedapaa"], ["run", "local", "--rond", "3"], ["rum"]):
        done = fedgraft(*words, cwd=tmp_path)
        assert done.returncode == 2
        assert "Traceback" not in done.stderr
    assert not list(tmp_path.iterdir())


def test_listings_for_people_and_programs() -> None:
    assert "FedAPA" not in runner.invoke(app, ["methods"]).output
    for words in (["methods"], ["methods", "fedapa"], ["datasets"], ["partition", "--list"], ["partition"]):
        people, programs = runner.invoke(app, words), runner.invoke(app, [*words, "--json"])
        assert people.exit_code == programs.exit_code == 0, people.output
        assert max(map(len, people.output.splitlines())) <= 80
        assert json.loads(programs.output)
    facts = json.loads(runner.invoke(app, ["methods", "fedapa", "--json"]).output)
    assert {p["name"] for p in facts["parameters"]} >= {"eta", "mu", "sign", "order"}
    assert "Sign:" in facts["readings"]


def test_readings_fill_the_terminal() -> None:
    shown = runner.invoke(app, ["methods", "fedapa"]).output.split("Readings\n")[1].splitlines()
    assert all(line.startswith(("- ", "  ")) for line in shown), shown
    for line, following in itertools.pairwise(shown):
        if following.startswith("  "):  # the next word had no room
            assert len(f"{line} {following.split()[0]}") > 80


def test_partitions_are_saved_and_shown(tmp_path: Path) -> None:
    file = tmp_path / "split.json"
    drawn = runner.invoke(app, ["partition", "dirichlet:0.5", "--clients", "4", "--save", str(file)])
    assert drawn.exit_code == 0
    shown = runner.invoke(app, ["partition", "--load", str(file)])
    assert shown.output == drawn.output


def test_version() -> None:
    assert runner.invoke(app, ["--version"]).output.startswith("fedgraft ")
