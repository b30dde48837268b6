"""A site that was not there in training joins a finished run: its model, how it compares, and every wrong turn."""

import csv
import json
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

import fedgraft as fg
from fedgraft.base.errors import UserError
from fedgraft.cli import app
from fedgraft.exports import joining
from fedgraft.runs.run import Run

QUICK: dict[str, Any] = {"rounds": 2, "workers": 1, "progress": False, "model": "mlp:8"}
HEADER = ["age", "sex", "outcome"]


def rows(seed: int, count: int, shift: float = 0.0) -> list[list[str]]:
    rng = np.random.default_rng(seed)
    ages = 40 + 10 * rng.standard_normal(count) + shift
    sexes = ["" if number % 7 == 0 else "fm"[number % 2] for number in range(count)]
    return [[f"{age:.2f}", sex, "ill" if age > 40 else "well"] for age, sex in zip(ages, sexes, strict=True)]


def table(path: Path, content: Iterable[list[str]], header: list[str] = HEADER) -> Path:
    with path.open("w", newline="") as stream:
        csv.writer(stream, lineterminator="\n").writerows([header, *content])
    return path


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three hospitals, and a run of two of them in ``run``."""
    pytest.importorskip("pandas")
    path = tmp_path_factory.mktemp("hospitals")
    (path / "sites").mkdir()
    for number, name in enumerate(("basel", "jena")):
        table(path / "sites" / f"{name}.csv", rows(number, 60, 2.0 * number))
    table(path / "ulm.csv", rows(7, 60, 1.0))
    fg.run("fedper", dataset=str(path / "sites"), target="outcome", out=path / "run", **QUICK)
    return path


def command(*parts: Any) -> Any:
    return CliRunner().invoke(app, [str(part) for part in parts])


def test_a_site_joins_and_its_model_is_understood_by_the_other_commands(home: Path, tmp_path: Path) -> None:
    before = {file: file.read_bytes() for file in (home / "run").rglob("*") if file.is_file()}
    done = command("join", home / "run", "--data", home / "ulm.csv", "--out", tmp_path / "ulm")
    assert done.exit_code == 0, done.output
    assert "ulm joins fedper" in done.output
    assert "alone" in done.output
    assert before == {file: file.read_bytes() for file in (home / "run").rglob("*") if file.is_file()}

    told = json.loads((tmp_path / "ulm" / "join.json").read_text())
    assert told["samples"] == {"train": 44, "test": 16}
    assert told["steps"]["joined"] == told["steps"]["alone"]
    assert told["bytes"]["up"] == 0
    assert (tmp_path / "ulm" / "preparation.json").read_bytes() == (home / "run" / "preparation.json").read_bytes()

    answers = command("predict", tmp_path / "ulm", home / "ulm.csv")
    assert answers.output.splitlines()[0] == "answer,ill,well"
    assert len(answers.output.splitlines()) == 61
    judged = command("evaluate", tmp_path / "ulm", home / "ulm.csv", "--json")
    assert json.loads(judged.output)["samples"] == 60
    copied = command("export", tmp_path / "ulm", "--out", tmp_path / "copy")
    assert copied.exit_code == 0, copied.output
    assert (tmp_path / "copy" / "model.pt2").read_bytes() == (tmp_path / "ulm" / "model.pt2").read_bytes()


def test_the_written_model_answers_as_it_was_tested(home: Path, tmp_path: Path) -> None:
    made = fg.join(home / "run", home / "ulm.csv")
    x, y = made.site.data.test.batch(slice(None))
    right = float((made.predictor()(x).argmax(1) == y).double().mean())
    assert made.figures()[0].joined == pytest.approx(right)
    torch.testing.assert_close(made.module()(x), made.predictor()(x))
    again = fg.join(home / "run", home / "ulm.csv")
    assert again.facts() == made.facts()


def test_rounds_epochs_and_rate_are_the_sites_own(home: Path) -> None:
    made = fg.join(home / "run", home / "ulm.csv", rounds=3, epochs=1)
    assert made.joined.steps == 3 * 2  # 44 samples in batches of 32
    assert made.joined.server.spec.settings.lr == fg.load(home / "run").spec.settings.lr
    slow = fg.join(home / "run", home / "ulm.csv", rounds=1, lr=1e-9)
    start = slow.joined.server.spec.initial(0)
    head = slow.joined.server.spec.layout(0).span("head")
    torch.testing.assert_close(slow.joined.state["own"][head], start[head], atol=1e-6, rtol=0)


def test_alone_has_as_many_steps_at_least(home: Path) -> None:
    """Ditto trains two models in a round, so that training alone gets twice as many rounds."""
    run = fg.run("ditto", dataset=str(home / "sites"), target="outcome", **QUICK)
    made = fg.join(run, home / "ulm.csv")
    assert made.joined.steps == made.alone.steps == 2 * (2 * 2 * 2)


def test_an_interval_of_a_model_against_itself_is_zero(home: Path) -> None:
    """A run of local is training alone, but for its random numbers, which are the newcomer's in both."""
    run = fg.run("local", dataset=str(home / "sites"), target="outcome", **QUICK)
    for figure in fg.join(run, home / "ulm.csv").figures():
        assert figure.gain == 0
        assert figure.interval == (0, 0)


def unfinished(home: Path, tmp_path: Path) -> Path:
    (tmp_path / "half").mkdir()
    (tmp_path / "half" / "config.toml").write_bytes((home / "run" / "config.toml").read_bytes())
    return tmp_path / "half"


WRONG = {
    "other columns": (["height", "outcome"], [["1", "ill"]] * 30, "column of .* 'age'"),
    "other classes": (HEADER, [["40", "f", "dead"], *rows(1, 40)], "class .*'dead'"),
    "no label": (HEADER[:2], [row[:2] for row in rows(1, 40)], "column of .* 'outcome'"),
    "12 rows": (HEADER, rows(1, 12), "has 12 rows, too few to split"),
    "no rows": (HEADER, [], "holds no rows"),
    "words for numbers": (HEADER, [["old", "f", "ill"]] * 30, "age in row 1 .* is 'old', not a number"),
    "a missing answer": (HEADER, [["40", "f", ""], *rows(1, 40)], "outcome is missing in 1 of 41 rows"),
}


@pytest.mark.parametrize("wrong", list(WRONG))
def test_wrong_data_end_in_a_sentence_and_write_nothing(wrong: str, home: Path, tmp_path: Path) -> None:
    header, content, sentence = WRONG[wrong]
    data = table(tmp_path / "new.csv", content, header)
    with pytest.raises(UserError, match=sentence):
        fg.join(home / "run", data)
    done = command("join", home / "run", "--data", data, "--out", tmp_path / "out")
    assert isinstance(done.exception, UserError)
    assert sorted(each.name for each in tmp_path.iterdir()) == ["new.csv"]


def test_wrong_runs_end_in_a_sentence(home: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="has not finished"):
        fg.join(unfinished(home, tmp_path), home / "ulm.csv")
    with pytest.raises(UserError, match="holds no run"):
        fg.join(home / "sites", home / "ulm.csv")
    with pytest.raises(
        UserError, match=r"sites is a folder, and one file is wanted: the site's table, such as .*basel"
    ):
        fg.join(home / "run", home / "sites")
    with pytest.raises(UserError, match="there is nothing at"):
        fg.join(home / "run", tmp_path / "nobody.csv")
    with pytest.raises(UserError, match="a client called 'basel' already"):
        fg.join(home / "run", home / "ulm.csv", name="basel")
    with pytest.raises(UserError, match="at least one round"):
        fg.join(home / "run", home / "ulm.csv", rounds=0)
    with pytest.raises(UserError, match="batch_size is the run's"):
        fg.join(home / "run", home / "ulm.csv", batch_size=3)


def test_a_folder_that_cannot_be_made_is_told_before_training(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(joining, "join", lambda *_, **__: pytest.fail("it trained"))
    (tmp_path / "bad.txt").write_text("")
    done = command("join", home / "run", "--data", home / "ulm.csv", "--out", tmp_path / "bad.txt" / "x" / "y")
    assert isinstance(done.exception, UserError)
    assert "bad.txt is not a folder" in str(done.exception)


def test_who_was_there_in_training_is_told(home: Path) -> None:
    made = fg.join(home / "run", home / "sites" / "basel.csv", name="basle")
    assert made.notes == () or "no newcomer" in made.notes[0]  # another name splits its rows otherwise


def _arrays(seed: int, count: int = 40, width: int = 6) -> dict[str, Any]:
    rng = np.random.default_rng(seed)
    x, y = rng.standard_normal((count, width)).astype(np.float32), rng.integers(3, size=count)
    half = count // 2
    return {"x_train": x[:half], "y_train": y[:half], "x_test": x[half:], "y_test": y[half:]}


@pytest.fixture(scope="module")
def arrays() -> Run:
    return fg.run("fedapa", fg.own_data([fg.Site(**_arrays(s)) for s in range(3)], task="classification:3"), **QUICK)


def test_arrays_join_from_python_and_say_what_is_wrong_with_them(arrays: Run, tmp_path: Path) -> None:
    made = fg.join(arrays, fg.Site(**_arrays(9), name="ulm"))
    assert made.joined.bytes_up > 0
    assert made.write(tmp_path / "ulm").exists()
    with pytest.raises(UserError, match=r"a sample of client 3 is 5 \(float32\), and those of the federation are 6"):
        fg.join(arrays, fg.Site(**_arrays(9, width=5)))
    other = _arrays(9)
    other["y_train"][0] = 7
    with pytest.raises(UserError, match="y_train of client 3 has labels beyond the federation's 3 classes"):
        fg.join(arrays, fg.Site(**other))
    twin = fg.join(arrays, fg.Site(**_arrays(0), name="twin"))
    assert "twin has the very samples of client 0" in twin.notes[0]


def test_a_site_of_one_class_is_told_that_there_is_nothing_to_learn(home: Path, tmp_path: Path) -> None:
    only = [[age, sex, "ill"] for age, sex, _ in rows(3, 60)]
    made = fg.join(home / "run", table(tmp_path / "bonn.csv", only))
    assert made.notes == (
        "every training sample of bonn is of one class: there is nothing to tell apart, alone or joined",
    )
    nothing = replace(made.figures("trained")[0], joined=None, alone=None, gain=None, interval=None)
    assert str(nothing).endswith("means nothing on the site's test samples.")
