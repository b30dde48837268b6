"""Run directories, comparison directories, folders of them, and what is wrong with others."""

import json
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
from conftest import blobs, small_network

import fedgraft as fg
from fedgraft.base.errors import UserError
from fedgraft.methods.fedavg import FedAvg
from fedgraft.report.page import render
from fedgraft.runs.comparison import Comparison, Reading
from fedgraft.runs.reading import read_all
from fedgraft.runs.run import Run

LABELS = ["local", "fedavg", "fedapa:mu=0.3", "apfl", "pfedamf"]


def test_a_comparison_is_read_in_its_own_order(folder: Path) -> None:
    reading = read_all([folder])
    assert list(dict.fromkeys(run.label for run in reading.runs)) == LABELS
    assert [run.config.seed for run in reading.runs] == [0, 1] * 5
    assert reading.runs[4].observed["A"].shape == (3, 4, 4)
    assert reading.notes == []


def test_a_folder_of_comparisons_and_a_run_named_twice_give_each_run_once(folder: Path) -> None:
    assert len(read_all([folder.parent]).runs) == 10
    assert len(read_all([folder, folder / "local-seed0"]).runs) == 10
    assert len(read_all([folder / "local-seed0"]).runs) == 1


def test_memory_and_directory_give_the_same_page(comparison: Comparison[Run], folder: Path) -> None:
    assert render(Reading([comparison])) == render(read_all([folder]))


@pytest.fixture
def copy(folder: Path, tmp_path: Path) -> Path:
    """A comparison that a test may damage."""
    return Path(shutil.copytree(folder, tmp_path / "copy"))


def test_an_open_run_is_named_and_left_out(copy: Path) -> None:
    (copy / "apfl-seed1" / "result.json").unlink()
    reading = read_all([copy])
    assert len(reading.runs) == 9
    assert "apfl-seed1 has not finished: `fedgraft watch` follows it" in reading.notes[0]
    assert reading.notes[0] in render(reading).replace("&#39;", "'")
    with pytest.raises(UserError, match="has not finished"):
        read_all([copy / "apfl-seed1"])


def test_two_variants_of_a_method_of_ones_own_are_both_there(tmp_path: Path) -> None:
    @dataclass(frozen=True)
    class Mine(FedAvg):
        name = "mine"
        beta: float = 0.9

    comparison = fg.compare(
        [Mine(), Mine(beta=0.5)], seeds=1, federation=lambda seed: blobs(seed=seed), model=small_network(),
        rounds=1, workers=1, out=tmp_path / "all",
    )  # fmt: skip
    written = json.loads((tmp_path / "all" / "comparison.json").read_text())["rows"]
    reading = read_all([tmp_path / "all"])
    labels = [run.label for run in reading.runs]
    assert len(set(labels)) == len(written) == 4
    assert sum("mine" in label and "beta=0.5" in label for label in labels) == 1
    page = comparison.report(tmp_path / "report.html").read_text()
    for shown in (render(reading), page):
        assert "beta = 0.9" in shown
        assert "beta = 0.5" in shown


def test_a_copy_of_a_run_is_named_and_left_out(folder: Path, tmp_path: Path) -> None:
    shutil.copytree(folder / "apfl-seed0", tmp_path / "again" / "apfl")
    reading = read_all([folder, tmp_path / "again"])
    assert len(reading.runs) == 10
    assert reading.notes == [
        f"the run in {tmp_path / 'again' / 'apfl'} has the settings of the one in {folder / 'apfl-seed0'}"
    ]


def _cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:60])


@pytest.mark.parametrize(
    ("damage", "sentence"),
    [
        (lambda run: _cut(run / "result.json"), "result.json is damaged"),
        (lambda run: (run / "result.json").write_text("[]"), "does not hold a JSON object"),
        (
            lambda run: (run / "result.json").write_text(json.dumps({"seed": 0})),
            "is damaged: it lacks best, bytes_down_per_client",
        ),
        (lambda run: (run / "config.toml").write_text("rounds = ["), "not a readable configuration file"),
        (lambda run: (run / "config.toml").write_text("warp = 9"), "cannot be read: there is no setting 'warp'"),
        (lambda run: _cut(run / "observed.safetensors"), "observed.safetensors is damaged"),
    ],
)
def test_damage_is_one_sentence(copy: Path, damage: Callable[[Path], object], sentence: str) -> None:
    run = copy / "apfl-seed0"
    damage(run)
    with pytest.raises(UserError, match=sentence) as caught:
        read_all([run])
    assert "\n" not in str(caught.value).strip()


def test_foreign_places_are_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for place, sentence in (("missing", "there is no directory"), ("file", "is a file"), ("", "holds no run")):
        with pytest.raises(UserError, match=sentence):
            read_all([tmp_path / place])
