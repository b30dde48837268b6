"""Names of folders, sites and data, and what clients complain of, are text wherever they are printed."""

from pathlib import Path

import numpy as np
import pytest
from conftest import blobs
from typer.testing import CliRunner

from fedgraft.cli import app

EVIL = "[/x] [red]"
QUICK = ["--model", "mlp:4", "--rounds", "1", "--workers", "1", "--batch-size", "8"]


@pytest.fixture
def data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of sites; it and its files have brackets in their names."""
    monkeypatch.chdir(tmp_path)
    folder = Path(f"data {EVIL}")
    folder.mkdir(parents=True)  # 'data [', and in it 'x] [red]'
    for number, client in enumerate(blobs().clients):
        arrays = {"x_train": client.train.inputs, "y_train": client.train.labels,
                  "x_test": client.test.inputs, "y_test": client.test.labels}  # fmt: skip
        np.savez(folder / f"site [red] {number}.npz", **{name: array.numpy() for name, array in arrays.items()})
    return folder


def fedgraft(*words: str) -> str:
    done = CliRunner().invoke(app, words, env={"COLUMNS": "200"})
    assert done.exit_code == 0, done.output + repr(done.exception)
    return " ".join(done.output.split())


def test_names_with_square_brackets_through_every_command(data: Path) -> None:
    run, both = f"run {EVIL}", f"both {EVIL}"
    out = fedgraft("run", "fedavg", "--dataset", str(data), *QUICK, "--out", run)
    assert f"fedavg on data {EVIL}" in out
    out = fedgraft("compare", "--seeds", "1", "--dataset", str(data), *QUICK, "--out", both)
    assert f"data {EVIL}, 4 clients" in out
    assert f"comparison directory: {both}" in out
    assert "x] [red] round 1/1" in fedgraft("watch", run)
    assert f"data {EVIL}, 4 clients" in fedgraft("report", both, "--text")
