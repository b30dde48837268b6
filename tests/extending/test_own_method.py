"""A method of one's own is one file: run, compared, resumed, reported and checked, and no edit elsewhere."""

import json
import tomllib
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from fedgraft.cli import app

METHOD = Path(__file__).with_name("halfway.py").read_text()
SHORT = ["--clients", "3", "--partition", "iid", "--rounds", "2", "--workers", "1", "--checkpoint-every", "1"]


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    Path("mine.py").write_text(METHOD)
    return tmp_path


def typed(*words: str) -> str:
    done = CliRunner().invoke(app, list(words), catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return done.output


def result(place: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(Path(place, "result.json").read_text())
    return found


def test_it_is_run_resumed_and_reported(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    typed("run", "./mine.py:Halfway:0.25", *SHORT, "--out", "run")
    first = result("run")
    assert (first["label"], first["params"]["part"]) == ("halfway:part=0.25", 0.25)
    assert tomllib.loads(Path("run/config.toml").read_text())["method"] == f"{here}/mine.py:Halfway"
    Path("run/result.json").unlink()
    for file in Path("run/checkpoints/round-000002").iterdir():
        file.unlink()
    Path("run/checkpoints/round-000002").rmdir()
    (here / "elsewhere").mkdir()
    monkeypatch.chdir(here / "elsewhere")
    typed("resume", "../run")
    assert result("../run")["last"] == first["last"]
    typed("report", "../run")
    assert "halfway" in Path("../run/report.html").read_text()


def test_it_is_compared() -> None:
    typed("compare", "./mine.py:Halfway", "./mine.py:Halfway:part=1.0", *SHORT, "--seeds", "1", "--out", "all")
    told = json.loads(Path("all/comparison.json").read_text())
    assert [row["method"] for row in told["rows"]] == ["local", "fedavg", "halfway", "halfway:part=1.0"]
    fedavg, whole, half = (result(f"all/{name}-seed0") for name in ("fedavg", "halfway-part=1.0", "halfway"))
    pooled = [each["last"]["trained"]["accuracy"]["pooled"] for each in (whole, fedavg)]
    assert pooled[0] == pytest.approx(pooled[1], abs=0.02)
    assert half["last"] != fedavg["last"]


@pytest.mark.slow
def test_it_is_checked() -> None:
    assert "Halfway passes every check" in typed("check", "./mine.py:Halfway")
