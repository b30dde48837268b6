"""What the pictures show, against numbers worked out by hand."""

import json
import shlex
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from fedgraft.cli import app
from fedgraft.report.commands import compare_command, repeatable, run_command
from fedgraft.report.reading import Finished, read_all, read_run
from fedgraft.report.study import MIB, studies
from fedgraft.runs.compare import Comparison
from fedgraft.runs.config import configure


def finished(label: str, accuracies: list[float], *, seed: int = 0, **settings: Any) -> Finished:
    """A run of one round in which every client sends one MiB and receives two."""
    point = {"mean": sum(accuracies) / len(accuracies), "pooled": accuracies[0], "per_client": accuracies}
    last = {"round": 1, "bytes_up": 4 * MIB, "bytes_down": 8 * MIB, "received": point, "trained": point}
    result = {
        "seed": seed, "headline": "trained", "reconstruction": False, "clients": 4, "seconds": 1.0, "versions": {},
        "bytes_up_per_client": MIB, "bytes_down_per_client": 2 * MIB, "label_counts": [[1]] * 4, "rounds": [last],
        "last": {"received": point, "trained": point},
    }  # fmt: skip
    return Finished(
        label, configure({"method": label.partition(":")[0], "clients": 4, "seed": seed, **settings}), result, {}
    )


def test_who_gains_and_who_loses() -> None:
    study = studies([
        finished("fedapa", [0.6, 0.5, 0.9, 0.5]), finished("fedper", [0.9, 0.6, 0.8, 0.5]),
        finished("local", [0.5, 0.5, 0.8, 0.75]),
    ])[0]  # fmt: skip
    assert list(study.runs) == ["local", "fedapa", "fedper"], "the reference comes first"
    best, other = study.verdicts()
    assert (best.label, best.better, best.same, best.worse) == ("fedper", 2, 1, 1)
    assert best.mean == pytest.approx((0.4 + 0.1 + 0 - 0.25) / 4)
    assert (other.label, other.better, other.same, other.worse) == ("fedapa", 2, 1, 1)
    assert study.traffic("fedapa") == {1: 3.0}
    row = study.rows()[2]
    assert row.unevenness["trained"].mean == pytest.approx((0.1) ** 0.5 / 2)  # of 0.9, 0.6, 0.8, 0.5: variance 0.025
    assert row.worst_tenth["trained"].mean == 0.5


def test_clients_are_compared_with_local_of_the_same_seed_only() -> None:
    study = studies([finished("local", [0.5] * 4, seed=1), *(finished("ditto", [0.6] * 4, seed=s) for s in (0, 1))])[0]
    assert study.benefit("ditto", 0) is None
    assert len(study.verdicts()[0].gains) == 4
    assert studies([finished("ditto", [0.6] * 4)])[0].verdicts() == []


def test_runs_with_different_settings_are_not_compared() -> None:
    runs = [
        finished("local", [0.5] * 4),
        finished("ditto", [0.6] * 4, lr=0.3),
        finished("fedper", [0.6] * 4, workers=2),
    ]
    assert [list(study.runs) for study in studies(runs)] == [["local", "fedper"], ["ditto"]]


def test_the_table_is_the_comparisons(comparison: Comparison, folder: Path) -> None:
    assert studies(read_all([folder]).runs)[0].rows() == comparison.rows()


def test_the_printed_command_repeats_the_run(tmp_path: Path) -> None:
    words = "run fedapa --clients 3 --partition iid --rounds 1 --lr 0.1 --drop-last --set mu=0.3 --seed 5 --workers 1"
    assert CliRunner().invoke(app, [*words.split(), "--out", str(tmp_path / "one")]).exit_code == 0
    run = read_run(tmp_path / "one")
    command = run_command(run.label, run.config)
    assert command.startswith("fedgraft run fedapa --dataset digits --clients 3 --partition iid --model cnn-digits")
    again = [*shlex.split(command)[1:], "--workers", "1", "--out", str(tmp_path / "two")]
    assert CliRunner().invoke(app, again).exit_code == 0
    one, two = (json.loads((tmp_path / name / "result.json").read_text()) for name in ("one", "two"))
    assert one["rounds"][-1]["trained"] == two["rounds"][-1]["trained"]
    assert one["params"] == two["params"]


def test_one_command_repeats_a_whole_comparison_where_it_can() -> None:
    runs = [finished(label, [0.5] * 4, seed=seed) for label in ("local", "fedavg", "fedapa:mu=0.3") for seed in (2, 3)]
    command = compare_command(studies(runs)[0])
    assert command is not None
    assert command.startswith("fedgraft compare fedapa:mu=0.3 --dataset digits --clients 4")
    assert command.endswith("--seed 2 --seeds 2")
    assert compare_command(studies(runs[:-1])[0]) is None, "a seed is missing"
    assert compare_command(studies(runs[2:])[0]) is None, "local is missing, and a comparison always has it"


def test_what_came_from_python_has_no_command(folder: Path) -> None:
    run = read_run(folder / "apfl-seed0")
    assert not repeatable(run.config)
    assert not repeatable(replace(run, config=run.config.model_copy(update={"model": "mlp"})).config), "own data"
