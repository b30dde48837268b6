"""What a comparison works out, against numbers worked out by hand, in either direction of a metric."""

import json
import shlex
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from conftest import blobs, small_network
from madeup import AUC, RMSE, compared, finished, record, result
from typer.testing import CliRunner

import fedgraft as fg
from fedgraft.base.errors import UserError
from fedgraft.cli import app
from fedgraft.report.commands import compare_command, repeatable, run_command
from fedgraft.runs.comparison import comparisons
from fedgraft.runs.metric import ACCURACY
from fedgraft.runs.reading import Finished, read_run
from fedgraft.runs.resultfile import Result


def run(label: str, values: list[float], *, seed: int = 0, **settings: Any) -> Finished:
    return finished(label, result(values, values, seed=seed), **settings)


def test_who_gains_and_who_loses() -> None:
    study = comparisons([
        run("fedapa", [0.6, 0.5, 0.9, 0.5]), run("fedper", [0.9, 0.6, 0.8, 0.5]),
        run("local", [0.5, 0.5, 0.8, 0.75]),
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
    study = comparisons([run("local", [0.5] * 4, seed=1), *(run("ditto", [0.6] * 4, seed=s) for s in (0, 1))])[0]
    assert study.gains("ditto", 0) is None
    assert study.gains("ditto", 1) is not None
    assert len(study.verdicts()[0].gains) == 4
    assert comparisons([run("ditto", [0.6] * 4)])[0].verdicts() == []


def test_runs_with_different_settings_are_not_compared() -> None:
    runs = [
        run("local", [0.5] * 4),
        run("ditto", [0.6] * 4, lr=0.3),
        run("fedper", [0.6] * 4, workers=2),
    ]
    assert [list(study.runs) for study in comparisons(runs)] == [["local", "fedper"], ["ditto"]]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("runs") / "blobs"
    fg.compare(
        ["apfl"], seeds=2, federation=lambda seed: blobs(seed=seed), model=small_network(), rounds=2, lr=0.1,
        batch_size=8, workers=1, global_test=True, out=place,
    )  # fmt: skip
    return place


def test_the_printed_command_repeats_the_run(tmp_path: Path) -> None:
    words = "run fedapa --clients 3 --partition iid --rounds 1 --lr 0.1 --drop-last --set mu=0.3 --seed 5 --workers 1"
    assert CliRunner().invoke(app, [*words.split(), "--out", str(tmp_path / "one")]).exit_code == 0
    done = read_run(tmp_path / "one")
    command = run_command(done.label, done.config)
    assert command.startswith("fedgraft run fedapa --dataset digits --clients 3 --partition iid --model cnn-digits")
    again = [*shlex.split(command)[1:], "--workers", "1", "--out", str(tmp_path / "two")]
    assert CliRunner().invoke(app, again).exit_code == 0
    one, two = (json.loads((tmp_path / name / "result.json").read_text()) for name in ("one", "two"))
    assert one["rounds"][-1]["trained"] == two["rounds"][-1]["trained"]
    assert one["params"] == two["params"]


def test_one_command_repeats_a_whole_comparison_where_it_can() -> None:
    runs = [run(label, [0.5] * 4, seed=seed) for label in ("local", "fedavg", "fedapa:mu=0.3") for seed in (2, 3)]
    command = compare_command(comparisons(runs)[0])
    assert command is not None
    assert command.startswith("fedgraft compare fedapa:mu=0.3 --dataset digits --clients 4")
    assert command.endswith("--seed 2 --seeds 2")
    assert compare_command(comparisons(runs[:-1])[0]) is None, "a seed is missing"
    assert compare_command(comparisons(runs[2:])[0]) is None, "local is missing, and a comparison always has it"


def test_what_came_from_python_has_no_command(folder: Path) -> None:
    done = read_run(folder / "apfl-seed0")
    assert not repeatable(done.config)
    assert not repeatable(replace(done, config=done.config.model_copy(update={"model": "mlp"})).config), "own data"


LESS = {
    "local": [result([4.0] * 12, [3.0] * 12, metrics=[RMSE])],
    "ditto": [result([4.0] * 12, [*[2.0] * 11, 5.0], metrics=[RMSE])],
    "fedper": [result([1.0] * 12, [2.5] * 12, metrics=[RMSE], headline="received")],
}


def test_less_is_better_where_the_metric_says_so() -> None:
    table = {row.method: row for row in compared(LESS).rows()}
    ditto = table["ditto"]
    assert ditto.worst_tenth["trained"].mean == 5.0, "the worst is the largest"
    assert ditto.difference is not None
    assert ditto.difference.mean == pytest.approx((11 * 1.0 - 2.0) / 12), "what is less by one is better by one"
    assert (ditto.difference.better, ditto.difference.worse) == (11, 1)
    study = compared(LESS)
    assert [verdict.label for verdict in study.verdicts()] == ["ditto", "fedper"]
    assert [verdict.label for verdict in study.verdicts("own")] == ["fedper", "ditto"]
    assert study.verdicts()[0].harmed == (study.names(0)[11],), "who is worse off is named"
    assert study.verdicts()[1].harmed == ()
    gains = study.gains("ditto", 0)
    assert gains is not None
    assert gains[0] is not None
    assert (gains[0].value, gains[0].interval, gains[0].net) == (1.0, None, None), "no share of samples, no interval"
    assert study.intervals("ditto", 0) == [None] * 12
    with_best = study.pairs(with_best=True)
    assert [(pair.one, pair.other) for pair in with_best[2:]] == [("ditto", "fedper")], "the least mean leads"


def test_every_metric_of_a_run_can_judge() -> None:
    both = [ACCURACY, AUC]

    def judged(accuracy: float, auc: float) -> list[Result]:
        values = {"accuracy": [accuracy] * 4, "auc": [auc] * 4}
        return [result(values, values, metrics=both)]

    study = compared({"local": judged(0.5, 0.9), "ditto": judged(0.8, 0.6)})
    assert [row.mean["trained"].mean for row in study.rows()] == [0.5, 0.8]
    assert [row.mean["trained"].mean for row in study.rows(metric="auc")] == [0.9, 0.6]
    assert study.verdicts()[0].mean == pytest.approx(0.3)
    assert study.verdicts(metric="auc")[0].mean == pytest.approx(-0.3)
    assert study.to_json(metric="auc")["metric"]["title"] == "AUC"
    with pytest.raises(UserError, match="no metric is called 'acc'; did you mean 'auc'"):
        study.rows(metric="acc")


def test_runs_have_to_share_a_metric() -> None:
    other = result([0.5] * 4, [0.5] * 4, metrics=[AUC])
    mixed = compared({"local": [result([0.5] * 4, [0.5] * 4)], "ditto": [other]})
    with pytest.raises(UserError, match="no metric in common"):
        mixed.rows()


def test_a_comparison_in_memory_and_from_its_directory_are_the_same(folder: Path, tmp_path: Path) -> None:
    made = fg.compare(
        ["apfl"], seeds=2, federation=lambda seed: blobs(seed=seed), model=small_network(), rounds=2, lr=0.1,
        batch_size=8, workers=1, global_test=True, out=tmp_path / "all",
    )  # fmt: skip
    back = fg.read(tmp_path / "all")
    assert isinstance(back, type(made))
    assert back.rows() == made.rows()
    assert back.pairs() == made.pairs()
    assert back.seeds == made.seeds == (0, 1)
    assert back.frame() == made.frame() if isinstance(back.frame(), list) else back.frame().equals(made.frame())
    assert back.runs["apfl"][1].facts == made.runs["apfl"][1].facts
    assert back.runs["apfl"][0].observed["alpha"].shape == (2, 4)
    alone = fg.read(tmp_path / "all" / "apfl-seed1")
    assert list(alone.runs) == ["apfl"]
    assert alone.seeds == (1,)
    other = fg.run("local", blobs(), model=small_network(), rounds=1, workers=1, out=tmp_path / "other")
    with pytest.raises(UserError, match="runs of 2 settings"):
        fg.read(tmp_path / "all", tmp_path / "other")
    assert other.value == other.facts.last.trained["accuracy"].pooled


def rows_of(frame: Any) -> list[dict[str, Any]]:
    return frame if isinstance(frame, list) else frame.to_dict("records")


def test_a_frame_has_one_figure_in_a_row(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    study = fg.read(folder)
    rows = rows_of(study.frame())
    assert list(rows[0]) == ["method", "seed", "round", "set", "point", "client", "metric", "value"]
    facts = study.runs["apfl"][1].facts
    chosen = [
        row for row in rows if (row["method"], row["seed"], row["round"], row["point"]) == ("apfl", 1, 2, "trained")
    ]
    first = [row for row in chosen if row["set"] == "test" and row["metric"] == "accuracy"]
    expected = facts.rounds[1].trained.metrics["accuracy"]
    assert [row["client"] for row in first] == ["mean", "pooled", *facts.called]
    assert [row["value"] for row in first] == [expected.mean, expected.pooled, *expected.per_client]
    assert {row["set"] for row in rows} == {"test", "everyone"}
    one = rows_of(study.runs["apfl"][1].frame())
    assert one == [row for row in rows if (row["method"], row["seed"]) == ("apfl", 1)]
    monkeypatch.setitem(sys.modules, "pandas", None)
    assert study.frame() == rows, "without pandas, the same rows"


def test_a_frame_is_a_dataframe_where_pandas_is(folder: Path) -> None:
    pandas = pytest.importorskip("pandas", reason="needs pandas: pip install '.[tables]'")
    frame = fg.read(folder).frame()
    assert isinstance(frame, pandas.DataFrame)
    means = frame.query("client == 'mean' and set == 'test' and point == 'trained' and metric == 'accuracy'")
    last = means[means["round"] == 2].groupby("method")["value"].mean()
    rows = {row.method: row.mean["trained"].mean for row in fg.read(folder).rows()}
    assert last.to_dict() == pytest.approx(rows)


def test_what_was_not_measured_has_no_row() -> None:
    study = compared({"local": [result([0.4, 0.6], [None, 0.5], rounds=[record(1, [0.4, 0.6], [None, 0.5])])]})
    trained = [row["client"] for row in rows_of(study.frame()) if row["point"] == "trained"]
    assert trained == ["mean", "pooled", "client 1"]
