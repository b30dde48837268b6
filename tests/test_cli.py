"""The command line as people type it."""

import itertools
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from program import Program, fedgraft, wait_for
from typer.testing import CliRunner

from fedgraft.base.errors import UserError
from fedgraft.cli import app
from fedgraft.data.federation import federate

runner = CliRunner()
SMALL = ["--clients", "3", "--partition", "iid", "--rounds", "2", "--workers", "1"]


YARDSTICK = """
import pydantic, typer
app = typer.Typer()
app.command()(lambda: None)
app(["--help"])
"""
"""The least that a program of this kind does to show its help."""


def test_help_answers_at_once() -> None:
    def seconds(*words: str) -> float:
        """Of the processor: what a machine with nothing else to do takes."""
        before = os.times()
        subprocess.run([sys.executable, *words], capture_output=True, check=True)
        now = os.times()
        return now.children_user + now.children_system - before.children_user - before.children_system

    shown = subprocess.run([sys.executable, "-m", "fedgraft", "--help"], capture_output=True, text=True, check=True)
    assert "compare" in shown.stdout
    pairs = [(seconds("-m", "fedgraft", "--help"), seconds("-c", YARDSTICK)) for _ in range(3)]
    ours, least = (min(column) for column in zip(*pairs, strict=True))
    question = "import sys, fedgraft.cli; print('torch' in sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", question], capture_output=True, text=True, check=True)
    assert loaded.stdout.strip() == "False", "help must not wait for torch"
    assert ours < max(0.5, 3 * least), "half a second, or a ratio where the processor is slow"


def imported(*words: str, cwd: Path) -> set[str]:
    """All modules that a command imports."""
    command = [sys.executable, "-X", "importtime", "-m", "fedgraft", *words]
    done = subprocess.run(command, capture_output=True, text=True, cwd=cwd, check=True)
    return {line.rpartition("|")[2].strip() for line in done.stderr.splitlines() if line.startswith("import time:")}


@pytest.mark.slow
def test_a_run_waits_for_nothing_that_it_does_not_use(tmp_path: Path) -> None:
    """Statistics compare runs, and the digits of scikit-learn are read without it: each would take a second."""
    found = imported("run", "fedper", *SMALL, cwd=tmp_path)
    assert "torch" in found
    assert found.isdisjoint({"scipy.stats", "sklearn", "pandas", "matplotlib"})


def test_the_list_of_datasets_does_not_wait_for_torch(tmp_path: Path) -> None:
    assert "torch" not in imported("datasets", cwd=tmp_path)


@pytest.mark.parametrize("words", [["comparee"], ["deploy", "chek"], ["board", "rn"]])
def test_an_unknown_command_is_told_once_what_is_near(words: list[str]) -> None:
    refused = runner.invoke(app, words)
    assert refused.exit_code == 2
    assert refused.output.count("Did you mean") == 1


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


@pytest.mark.slow
def test_a_configuration_file_repeats_a_run(tmp_path: Path) -> None:
    first = fedgraft("run", "fedper", *SMALL, "--out", "one", "--json", cwd=tmp_path)
    second = fedgraft("run", "--config", "one/config.toml", "--out", "two", "--json", cwd=tmp_path)
    one, two = json.loads(first.stdout), json.loads(second.stdout)
    assert one["rounds"][-1]["trained"] == two["rounds"][-1]["trained"]
    assert one["params"] == two["params"]


@pytest.mark.slow
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
        (["run", "fedapa", "--set", "mu"], "a parameter is set as name=value, not as 'mu'"),
        (["run", "local", "--dataset", "digit"], "did you mean 'digits'?"),
        (["run", "local", "--dataset", "hospitals"], "no such file or folder here, and no dataset is called"),
        (["run", "mine.py"], "'mine.py' is a file: say which method in it, such as ./mine.py:Mine"),
        (["check", "fedapa:mu=0.3"], "write fedgraft check fedapa, without 'mu=0.3'"),
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
        (["methods", "FedAPA"], "no method is called 'FedAPA'; did you mean 'fedapa'?"),
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
    shown = runner.invoke(app, ["methods", "fedapa"]).output.split("ambiguous or wrong\n")[1].splitlines()
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


def test_amounts_are_split_by_their_tenths() -> None:
    drawn = runner.invoke(app, ["partition", "dirichlet:1", "--dataset", "diabetes", "--clients", "4", "--json"])
    assert drawn.exit_code == 0, drawn.exception
    counts = np.array(json.loads(drawn.output)["train"])
    assert counts.shape == (4, 10)
    assert counts.sum(axis=1).tolist() == list(federate("diabetes", 4, "dirichlet:1").samples)
    assert "client" in runner.invoke(app, ["partition", "dirichlet:1", "--dataset", "diabetes"]).output


def test_version() -> None:
    assert runner.invoke(app, ["--version"]).output.startswith("fedgraft ")


def test_a_misspelt_name_does_not_wait_for_torch(tmp_path: Path) -> None:
    """What is imported decides how long the answer takes, on any machine."""
    mistakes = (
        ["run", "fedapaa"], ["run", "fedproxx:0.1"], ["compare", "local", "fedapaa"],
        ["run", "local", "--dataset", "digts"], ["run", "local", "--partition", "dirichlett:0.1"],
        ["run", "local", "--model", "lenet"], ["run", "local", "--model", "vgg11,vgg99:0.5"],
        ["run", "local", "--optimizer", "adm"], ["run", "local", "--schedule", "cosin"],
        ["run", "local", "--stage", "float15"], ["run", "local", "--track", "mlflo"],
        ["deploy", "init", "kit", "--sites", "a", "--method", "fedapaa"],
        ["deploy", "demo", "--method", "fedapaa"], ["check", "fedapaa"],
        ["partition", "dirichlett:1"],
    )  # fmt: skip
    asked = (
        "import contextlib, io, json, sys; from fedgraft.cli import main\n"
        "for words in json.loads(sys.argv[1]):\n"
        "    sys.argv, said = ['fedgraft', *words], io.StringIO()\n"
        "    try:\n"
        "        with contextlib.redirect_stderr(said): main()\n"
        "    except SystemExit as end: print(end.code, 'torch' in sys.modules, 'did you mean' in said.getvalue())\n"
    )
    words = [sys.executable, "-c", asked, json.dumps(mistakes)]
    done = subprocess.run(words, capture_output=True, text=True, cwd=tmp_path, check=True)
    for mistake, line in zip(mistakes, done.stdout.splitlines(), strict=True):
        assert line == "2 False True", mistake


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["run", "fedapa", "--mu", "3"], "no option --mu, but fedapa has a hyper-parameter mu: write --set mu=3"),
        (["run", "fedapa:eta=1", "--mu=3"], "write --set mu=3"),
        (["run", "scaffold", "--eta-l", "0.2"], "scaffold has a hyper-parameter eta_l: write --set eta_l=0.2"),
        (["run", "fedapa", "--eta"], "write --set eta=VALUE"),  # and not the --set that it looks like
        (["compare", "local", "fedapa", "--mu", "3"], "write fedapa:mu=3"),
    ],
)
def test_a_hyper_parameter_typed_as_an_option_is_pointed_to_its_place(words: list[str], sentence: str) -> None:
    refused = runner.invoke(app, words)
    assert isinstance(refused.exception, UserError), refused.output
    assert sentence in str(refused.exception)


def test_other_unknown_options_are_answered_as_ever() -> None:
    for words in (["run", "fedapa", "--rond", "3"], ["run", "fedapa", "--zzz", "3"]):
        done = runner.invoke(app, words)
        assert done.exit_code == 2
        assert "No such option" in done.output


QUICK = ["--rounds", "1", "--workers", "1", "--clients", "2", "--partition", "iid", "--model", "linear"]


def test_settings_of_a_method_stand_behind_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert runner.invoke(app, ["run", "scaffold:eta_l=0.2", *QUICK, "--out", "a"]).exit_code == 0
    assert json.loads(Path("a/result.json").read_text())["params"]["eta_l"] == 0.2
    both = ["run", "fedapa:mu=0.3,eta=1", "--set", "mu=0.6", *QUICK, "--out", "b"]
    assert runner.invoke(app, both).exit_code == 0
    params = json.loads(Path("b/result.json").read_text())["params"]
    assert (params["mu"], params["eta"]) == (0.6, 1)


def test_a_method_on_the_command_line_replaces_the_files_method_and_its_parameters(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert runner.invoke(app, ["run", "fedapa:mu=0.3", *QUICK, "--out", "a"]).exit_code == 0
    for words, method, params in (
        (["run", "local", "--config", "a/config.toml", "--out", "b"], "local", {}),
        (["run", "--config", "a/config.toml", "--out", "c"], "fedapa", {"mu": 0.3}),
        (
            ["run", "fedapa", "--config", "a/config.toml", "--set", "eta=1", "--out", "d"],
            "fedapa",
            {"mu": 0.3, "eta": 1},
        ),
    ):
        done = runner.invoke(app, words)
        assert done.exit_code == 0, done.exception
        result = json.loads(Path(words[-1], "result.json").read_text())
        assert result["method"] == method
        assert result["params"].items() >= params.items()
    done = runner.invoke(app, ["compare", "--config", "a/config.toml", "--seeds", "1", "--out", "e"])
    assert done.exit_code == 0, done.exception
    assert (tmp_path / "e" / "fedapa-mu=0.3-seed0").is_dir(), "a comparison without methods takes the file's"


def test_reports_lie_beside_their_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for out in ("a", "b"):
        assert runner.invoke(app, ["run", "local", *QUICK, "--out", out]).exit_code == 0
    Path("report.html").write_text("somebody else's")
    assert "report: a/report.html" in runner.invoke(app, ["report", "a"]).output
    assert "report: a/report.html" in runner.invoke(app, ["report", "a"]).output, "its own, it may write again"
    assert "report: report-2.html" in runner.invoke(app, ["report", "a", "b"]).output
    assert "report: report-3.html" in runner.invoke(app, ["report", "a", "b"]).output
    assert Path("report.html").read_text() == "somebody else's"


def test_the_report_of_a_recommendation_keeps_its_answer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert runner.invoke(app, ["run", "local", *QUICK, "--out", "race/final/local-seed0"]).exit_code == 0
    for file in ("race.toml", "report.html"):
        Path("race", file).write_text("")
    refused = runner.invoke(app, ["report", "race"])
    assert "name race/final for the runs of its final, or another file with --out" in str(refused.exception)
    assert not Path("race", "report.html").read_text()
    for words in (["race", "--text"], ["race", "--out", "mine.html"], ["race/final"]):
        done = runner.invoke(app, ["report", *words])
        assert done.exit_code == 0, done.exception


def test_a_flag_that_became_a_stage_is_told_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for words, stage in (
        ("--max-norm 5", "bound:norm=5"),
        ("--outlier-factor=3", "bound:factor=3"),
        ("--averaging median", "median"),
    ):
        for command in ("run fedavg", "compare fedapa"):
            with pytest.raises(UserError, match=f"is a stage now: .*--stage {stage} on the command line"):
                app([*command.split(), *words.split()], standalone_mode=False)


def test_own_data_are_not_called_by_a_split(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(0)
    Path("hospitals").mkdir()
    for name in ("north", "south"):
        x, y = rng.standard_normal((12, 4)).astype(np.float32), np.arange(12) % 2
        np.savez(f"hospitals/{name}.npz", x_train=x, y_train=y, x_test=x, y_test=y)
    quick = ["--dataset", "hospitals", "--rounds", "1", "--workers", "1", "--model", "linear"]
    assert runner.invoke(app, ["compare", "--seeds", "1", *quick]).exit_code == 0
    assert [each.name for each in Path("runs").glob("[!.]*")] == ["compare-hospitals-own"]
    refused = runner.invoke(app, ["run", "fedavg", *quick, "--stage", "bound:norm=1e-9", "--out", "r"])
    assert "refused: north: " in refused.output
    assert "client 0" not in refused.output


@pytest.mark.parametrize(
    "words",
    [
        ["run", "local", "--dataset", "d" * 256],
        ["run", "local", "--dataset", "d" * 256 + ".npz"],
        ["run", "local", "--data-dir", "d" * 256],
        ["run", "local", "--partition", "p" * 256],
        ["run", "local", "--partition", "p" * 256 + ".json"],
        ["run", "local", "--model", "m" * 256],
        ["run", "local", "--model", "m" * 256 + ":f"],
        ["run", "local", "--model", "m" * 256 + ".py:f"],
        ["run", "local", "--model", "..:x"],
        ["run", "local", "--config", "c" * 256],
        ["run", "m" * 256],
        ["run", "local", *QUICK, "--out", "o" * 256],
        ["compare", *QUICK, "--out", "o" * 256],
        ["resume", "o" * 256],
        ["report", "o" * 256],
        ["watch", "o" * 256],
        ["partition", "--load", "p" * 256],
        ["partition", "--save", "p" * 256],
        ["run", "local", "--dataset", "a\0b"],
    ],
)
def test_names_that_no_file_can_have_are_a_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: list[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    refused = runner.invoke(app, words)
    assert isinstance(refused.exception, UserError), refused.exception
    assert "\n" not in str(refused.exception)
    assert not list(tmp_path.iterdir())


def test_a_long_name_that_a_file_has_gives_a_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    x, y = np.random.default_rng(0).standard_normal((12, 4)).astype(np.float32), np.arange(12) % 2
    np.savez("d" * 251 + ".npz", x_train=x, y_train=y, x_test=x, y_test=y)
    assert runner.invoke(app, ["run", "local", "--dataset", "d" * 251 + ".npz", *QUICK]).exit_code == 0
    assert [each.name for each in Path("runs").glob("[!.]*")] == [f"local-{'d' * 60}-seed0"]


def test_somebody_who_stops_a_run_is_told_how_it_goes_on(tmp_path: Path) -> None:
    words = ["run", "fedavg", "--rounds", "100000", "--workers", "1", "--model", "linear", "--out", "my runs/a"]
    running = Program(*words, cwd=tmp_path)
    wait_for(tmp_path / "my runs" / "a" / "metrics.jsonl", running)
    running.send_signal(signal.SIGINT)
    done = running.wait()
    assert done.returncode == 128 + signal.SIGINT
    assert done.stderr.splitlines()[-1] == "fedgraft: stopped; `fedgraft resume 'my runs/a'` goes on with it"


def test_a_directory_that_is_taken_gets_a_number_behind_its_whole_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from fedgraft.flags import default_directory, free

    monkeypatch.chdir(tmp_path)
    Path("runs/compare-digits-dirichlet0.1").mkdir(parents=True)
    Path("report.html").touch()
    assert default_directory("compare", "digits", "dirichlet0.1") == Path("runs/compare-digits-dirichlet0.1-2")
    assert free(Path("report.html"), ".html") == Path("report-2.html")
