"""What is told of data before anything is trained."""

import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from typer.testing import CliRunner

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
    assert "test samples that are also among somebody's training samples, which flatters: a (" in warnings


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
