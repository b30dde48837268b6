"""What is told of data before anything is trained."""

import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from typer.testing import CliRunner

from fedgraft.base import characters
from fedgraft.base.errors import UserError
from fedgraft.cli import app
from fedgraft.data.inspection import Inspection, inspect
from fedgraft.data.sources import find
from fedgraft.data.sources.source import Reading

runner = CliRunner()


def look(path: Path, **settings: object) -> Inspection:
    reading = Reading(**settings)
    return inspect(find(path, reading), reading)


@pytest.fixture
def clinics(tmp_path: Path) -> Path:
    rng = np.random.default_rng(0)
    for number, name in enumerate(("east", "west")):
        rows = 60
        table = pd.DataFrame(
            {
                "age": rng.integers(20, 90, rows),
                "dose": rng.random(rows),
                "ward": rng.choice([f"{name}-1", f"{name}-2"], rows),
                "patient": [f"{name}{n}" for n in range(rows)],
                "therapy": ["none", "pills"] * 30,
                "lab": np.where(rng.random(rows) < 0.3, np.nan, rng.random(rows)),
                "ill": ["no", "yes"] * 30,
            }
        )
        if number:
            table["lab"] = np.nan
        table.to_csv(tmp_path / f"{name}.csv", index=False)
    return tmp_path


def test_sites_columns_and_suspicions(clinics: Path) -> None:
    found = look(clinics, target="ill")
    assert found.problem is None
    assert found.task == "classification"
    assert found.sites[0] == {"site": "east", "train": 44, "test": 16, "classes": {"no": 30, "yes": 30}}
    columns = {column["column"]: column for column in found.columns}
    assert columns["age"]["kind"] == "number"
    assert columns["ill"]["use"] == "target"
    assert columns["lab"]["missing"] == 60 + int(pd.read_csv(clinics / "east.csv")["lab"].isna().sum())
    assert columns["lab"]["missing_at"] == ["west"]
    text = "\n".join(found.warnings)
    assert "the column ward names the site" in text
    assert "the column patient has another value in every row" in text
    assert "the column therapy tells ill exactly" in text
    assert "the column lab has no value at west" in text
    assert "fewer than 20 test samples at east, west" in text
    assert "the column age" not in text
    clean = look(clinics, target="ill", ignore=("ward", "patient", "therapy", "lab"), test_share=0.5)
    assert clean.warnings == []


def test_one_class_and_repeated_samples(tmp_path: Path) -> None:
    for name in "ab":
        rows = pd.DataFrame({"x": np.arange(80) // 2, "y": np.arange(80) % 7, "label": np.arange(80) // 2 % 2})
        (rows if name == "a" else rows.assign(label=1)).to_csv(tmp_path / f"{name}.csv", index=False)
    warnings = "\n".join(look(tmp_path, ignore=("y",)).warnings)
    assert "every row of b is '1'" in warnings
    assert "test samples that are also among the site's own training samples, which flatters: a (" in warnings


def test_two_sites_with_the_same_rows_are_told_from_one_that_repeats_its_own(tmp_path: Path) -> None:
    rows = pd.DataFrame({"x": np.arange(80), "label": np.arange(80) % 2})
    for name in "ab":
        parts = ["train", "test"] if name == "a" else ["test", "train"]
        rows.assign(set=parts * 40).to_csv(tmp_path / f"{name}.csv", index=False)
    (warning,) = [each for each in look(tmp_path).warnings if "flatters" in each]
    assert warning.endswith("another site's training samples, which flatters: a (40), b (40)")


def test_columns_that_tell_sites_apart_or_go_with_an_amount(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    for number, name in enumerate("abc"):
        amount = rng.normal(size=90)
        table = {"age": 40 + number % 2, "half": amount + 0.3 * rng.normal(size=90), "x": rng.random(90), "y": amount}
        pd.DataFrame(table).to_csv(tmp_path / f"{name}.csv", index=False)
    text = "\n".join(look(tmp_path, target="y").warnings)
    assert "the column age has one value at each site" in text
    assert "the column half goes with y (correlation 0.9" in text
    assert "column x" not in text


@pytest.mark.parametrize("file", ["one.csv", "folder"])
def test_numbers_whose_spelling_counts_stay_as_they_are_written(tmp_path: Path, file: str) -> None:
    rows = [f"{site},{zip_},{n % 7}.50,{n % 2}" for n, (site, zip_) in enumerate([("01", "007"), ("1", "7")] * 40)]
    if file == "folder":
        (tmp_path / file).mkdir()
        for number in (0, 1):
            (tmp_path / file / f"{number}.csv").write_text("\n".join(["site,zip,x,label", *rows[number::2]]) + "\n")
    else:
        (tmp_path / file).write_text("\n".join(["site,zip,x,label", *rows]) + "\n")
    reading = Reading(**({"site_column": "site"} if file == "one.csv" else {"ignore": ("site",)}), categories=("zip",))
    found = find(tmp_path / file, reading).read(reading, "classification", 0)
    assert found.fitted is not None
    assert found.fitted.names == ["zip=007", "zip=7", "zip=other", "x"]
    assert [site.name for site in found.sites] == (["01", "1"] if file == "one.csv" else ["0", "1"])


def test_of_many_sites_a_summary_is_shown(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    for number in range(16):
        rows = 40 + number
        table = {f"c{n}": rng.random(rows).round(3) for n in range(16)} | {"label": np.arange(rows) % (2 + number % 2)}
        pd.DataFrame(table).to_csv(tmp_path / f"site{number:02}.csv", index=False)
    short = runner.invoke(app, ["inspect", str(tmp_path)]).stdout
    assert "30 (site00)" in short  # three quarters of 40 rows train
    assert "fewer classes at site00 (2), site02 (2)" in short
    assert "site07" not in short
    assert "16 more columns are inputs of numbers without a missing cell: c0, c1" in " ".join(short.split())
    whole = runner.invoke(app, ["inspect", str(tmp_path), "--all"]).stdout
    assert all(f"site{n:02}" in whole and f" c{n} " in whole for n in range(16))


def test_who_waits_is_told_for_what(clinics: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(characters, "QUIET", -1.0)
    done = runner.invoke(app, ["inspect", str(clinics), "--target", "ill", "--json"])
    assert "looking at column 7 of 7\npreparing samples" in done.stderr
    assert json.loads(done.stdout)["task"] == "classification"


def test_arrays_on_different_scales(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    for name in "ab":
        x, y = rng.normal(0, [1, 1e4], (60, 2)), np.arange(60) % 2
        np.savez(tmp_path / f"{name}.npz", x_train=x[:30], y_train=y[:30], x_test=x[30:], y_test=y[30:])
    (warning,) = look(tmp_path).warnings
    assert "columns are on very different scales" in warning


def test_what_cannot_be_trained_on_is_shown_all_the_same(clinics: Path) -> None:
    found = look(clinics)
    assert found.problem is not None
    assert "say with --target" in found.problem
    assert [site["rows"] for site in found.sites] == [60, 60]
    assert len(found.columns) == 7
    (clinics / "tiny.csv").write_text("age,ill\n" + "50,no\n" * 12)
    assert "tiny has 12 rows, too few" in str(look(clinics, target="ill").problem)
    (clinics / "tiny.csv").write_text("age,ill\n" + "50,no\n" * 30 + "old,yes\n" * 3)
    found = look(clinics, target="ill")
    assert next(column for column in found.columns if column["column"] == "age")["kind"] == "number or mixed"
    assert "such as 'old' in row 31" in str(found.problem)


@pytest.mark.parametrize("cell", [[1, 2], {"dose": 1}])
def test_cells_of_several_values(tmp_path: Path, cell: object) -> None:
    for name in "ab":
        rows = {"x": np.arange(80) % 7, "tags": [None, *[cell] * 79], "label": np.arange(80) % 2}
        pd.DataFrame(rows).to_parquet(tmp_path / f"{name}.parquet")
    found = look(tmp_path)
    assert "tags in row 2 of a is " in str(found.problem)
    assert str(found.problem).endswith("give each a column of its own, or leave the column out with --ignore tags")
    assert found.columns[1]["values"] == 1
    assert "tags in row 2 of a" in str(look(tmp_path, categories=("tags",)).problem)
    assert "tags is missing in 1 of 80 rows" in str(look(tmp_path, target="tags").problem)
    left = look(tmp_path, ignore=("tags",))
    assert left.problem is None
    assert left.columns[1]["use"] == "ignored"


@pytest.mark.filterwarnings("error")
def test_numbers_that_are_too_large_to_be_scaled(tmp_path: Path) -> None:
    for name in "ab":
        huge = {"x": [1e200, *range(39)], "y": np.arange(40) + 0.5}
        pd.DataFrame(huge).to_csv(tmp_path / f"{name}.csv", index=False)
    problem = look(tmp_path, target="y").problem
    assert str(problem).startswith("x in row 1 of a is '1e+200', and numbers beyond 1e+100 cannot be scaled")
    for name, large in (("a", 1e160), ("b", 0.0)):
        pd.DataFrame({"x": large, "y": np.arange(40) + 0.5}).to_csv(tmp_path / f"{name}.csv", index=False)
    assert "x in row 1 of a is" in str(look(tmp_path, target="y").problem)
    for name in "ab":
        pd.DataFrame({"x": range(40), "y": [1e300, *np.arange(39) + 0.5]}).to_csv(tmp_path / f"{name}.csv", index=False)
    assert "or such that float32 cannot hold" in str(look(tmp_path, target="y").problem)
    for name in "ab":
        pd.DataFrame({"x": range(40), "y": [1e38, -1e38] * 20}).to_csv(tmp_path / f"{name}.csv", index=False)
    assert inspect(find(tmp_path, Reading(target="y")), Reading(target="y"), "regression").problem is None


def test_the_command(clinics: Path) -> None:
    shown = runner.invoke(app, ["inspect", str(clinics), "--target", "ill"])
    assert shown.exit_code == 0, shown.exception
    assert "2 sites: tables, classification" in shown.output
    assert "look: the column ward names the site" in " ".join(shown.output.split())
    told = runner.invoke(app, ["inspect", str(clinics), "--target", "ill", "--ignore", "ward,patient", "--json"])
    assert json.loads(told.output)["sites"][1]["site"] == "west"
    wrong = runner.invoke(app, ["inspect", str(clinics), "--target", "il"])
    assert isinstance(wrong.exception, UserError)
    assert "did you mean 'ill'" in str(wrong.exception)
    none = runner.invoke(app, ["inspect", str(clinics / "nowhere"), "--target", "ill"])
    assert "there is nothing at" in str(none.exception)
    assert sorted(file.name for file in clinics.iterdir()) == ["east.csv", "west.csv"], "nothing is written"
