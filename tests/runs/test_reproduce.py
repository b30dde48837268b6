"""Cells of the papers' tables: their runs, taken in from anywhere, beside the published figures."""

import json
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from click.testing import Result
from typer.testing import CliRunner

from docs import agenda
from docs.paper_page import Words
from fedgraft.base import disk
from fedgraft.base.errors import UserError
from fedgraft.cli import app
from fedgraft.cli.reproduce import _measured
from fedgraft.papers.tables import Score, paper
from fedgraft.report import reproduction
from fedgraft.report.paperfigures import PLOTS, Drawing, draw
from fedgraft.runs import measurement, reproduce
from fedgraft.runs.config import configure
from fedgraft.runs.measurement import Measurement, cell_config, deciding, differing, scale_of

CELL = "fedapa/cifar10"


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Noise by the name of CIFAR-10, small enough for seconds: ten classes, 3000 and 600 samples."""
    place = tmp_path_factory.mktemp("data")
    rng = np.random.default_rng(0)
    arrays = {}
    for part, each in (("train", 300), ("test", 60)):
        arrays[f"y_{part}"] = np.repeat(np.arange(10), each)
        arrays[f"x_{part}"] = rng.integers(0, 256, (10 * each, 32, 32, 3), dtype=np.uint8)
    np.savez(place / "cifar10.npz", **arrays)
    return place


@pytest.fixture(scope="module")
def made(data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """FedAPA's cell and Local, one draw, five rounds: made by the command."""
    root = tmp_path_factory.mktemp("made") / "runs"
    done = called(
        data, "table1", "--cell", CELL, "--draws", "1", "--scale", "quick", "--root", str(root), "--workers", "1"
    )
    assert done.exit_code == 0, done.output
    return root


def called(data: Path, *words: str) -> Result:
    reproduce.lacking.cache_clear()
    return CliRunner().invoke(app, ["reproduce", "fedapa", *words], env={"FEDGRAFT_DATA": str(data)})


def brief(method: str = "fedapa", seed: int = 0, scale: str = "full", top: float = 0.8, **more: object) -> Measurement:
    """A measurement of FedAPA's CIFAR-10 cell, made up: pooled figures fall from ``top`` after the first round."""
    curve = {"mean": [top, top - 0.1], "pooled": [top, top - 0.2]}
    settings = {"rounds": 25} if scale == "half" else {}
    facts = {
        "recipe": "fedapa", "method": method, "settings": settings, "seed": seed, "scale": scale, "headline": "trained",
        "command": measurement.command(method, "fedapa", settings, seed), "fedgraft": "0", "kernels": "avx2",
        "clients": 20, "bytes_up": 1024.0, "bytes_down": 2048.0, "refused": 0, "rounds": [25, 50], "received": curve,
        "trained": curve, "seconds": 100.0,
    }  # fmt: skip
    return Measurement.model_validate(facts | more)


def test_a_figure_is_the_papers_of_its_round_and_point() -> None:
    one = brief()
    assert one.value(Score("pooled", "best", "trained")) == pytest.approx(80)
    assert one.value(Score("pooled", "last", "trained")) == pytest.approx(60)
    assert one.value(Score("mean", "last", "own")) == pytest.approx(70)
    assert one.value(Score("mean", "last", "own"), "kilobytes") == 3
    assert one.value(Score("mean", "last", "own"), "seconds") == 2, "100 seconds in 50 rounds"
    assert one.value(Score("mean", "last", "own"), "global") is None
    many = brief(everyone={"received": [0.3, 0.4], "trained": [0.1, 0.2]})
    assert many.value(Score("mean", "last", "own"), "global") == pytest.approx(40)
    assert many.value(Score("mean", "last", "own"), "global-round") == 50


def test_a_cell_has_the_mean_of_its_draws_with_an_interval() -> None:
    told = paper("fedapa")
    cell = told.item("table1").chosen([CELL])[0]
    evidence = reproduce.Evidence(
        told, [brief(seed=0), brief(seed=1, top=0.9), brief("fedper"), brief(seed=2, scale="half")]
    )
    found = evidence.outcome(told.item("table1"), cell)
    assert (found.values, found.seeds, found.scale) == (pytest.approx((80, 90)), (0, 1), "full")
    assert found.mean == pytest.approx(85)
    assert found.apart == pytest.approx(85 - 85.85)
    assert found.interval is not None
    assert found.interval.low == pytest.approx(85 - 12.706 * 5, abs=0.01), "Student's, of two draws"
    assert evidence.outcome(told.item("table1"), cell, "half").seeds == (2,)


def test_of_one_draw_the_run_that_was_tested_more_often_counts() -> None:
    told = paper("fedapa")
    cell = told.item("table1").chosen([CELL])[0]
    rare = brief(rounds=[50], received={"mean": [0.1], "pooled": [0.1]}, trained={"mean": [0.1], "pooled": [0.1]})
    other = brief(settings={"kernels": "torch"}, rounds=[1, 25, 50], received={"mean": [0.2] * 3, "pooled": [0.2] * 3},
                  trained={"mean": [0.2] * 3, "pooled": [0.2] * 3})  # fmt: skip
    evidence = reproduce.Evidence(told, [rare, other, brief()])
    assert evidence.outcome(told.item("table1"), cell).values == (pytest.approx(80),)
    assert len(evidence.all_of(cell)) == 3


def test_a_run_is_recognised_by_what_decides_its_result() -> None:
    told = paper("fedapa")
    cell = told.item("table3").chosen(["none/cifar10"])[0]
    config = cell_config(told, cell, 7)
    assert reproduce.recognised(config) is not None
    same = config.model_copy(update={"workers": 1, "evaluate_every": 5, "rounds": 30, "seed": 3, "kernels": "torch"})
    assert deciding(same) == deciding(config)
    assert scale_of(told, same) == "30 of 50 rounds"
    assert scale_of(told, config.model_copy(update={"rounds": 25})) == "half"
    assert differing(same, "fedapa") == {"rounds": 30, "evaluate_every": 5, "kernels": "torch"}
    other = config.model_copy(update={"partition": "dirichlet:0.3"})
    assert deciding(other) != deciding(config)
    assert reproduce.recognised(other) is None


def test_commands_repeat_the_run() -> None:
    told = paper("fedgpa")
    cell = told.item("table3").chosen(["lga/fmnist-1-20"])[0]
    settings = differing(cell_config(told, cell, 2, "quick"), "fedgpa")
    assert settings == {"rounds": 15, "dataset": "fashion-mnist"}, "grey images are not cropped: the recipe knows"
    assert measurement.command("fedgpa:gpa_f=False", "fedgpa", {**settings, "augment": True}, 2) == (
        "fedgraft run fedgpa:gpa_f=False --recipe fedgpa --rounds 15 --dataset fashion-mnist --augment --seed 2"
    )


def test_measurements_are_kept_a_file_for_each_table(tmp_path: Path) -> None:
    written = reproduce.keep(tmp_path, [brief(), brief("fedapa:mu=0.3"), brief("local")])
    assert {path.name for path in written} == {"fedapa-table1.json", "fedapa-table4.json"}
    newer = brief(top=0.5)
    reproduce.keep(tmp_path, [newer])
    found = [run for each in measurement.read(tmp_path).values() for run in each]
    assert len(found) == 3
    assert newer in found
    (tmp_path / "fedapa-table4.json").write_text('{"kind": "measurements", "runs": [{}]}')
    with pytest.raises(UserError, match=r"fedapa-table4\.json is damaged"):
        measurement.read(tmp_path)


def test_two_runs_of_one_command_have_the_same_bits_or_differ_by_noise() -> None:
    assert measurement.compared(brief(), brief(seed=0)) == ("the same bits", 0)
    assert measurement.compared(brief(top=0.81), brief())[0] == "within noise"
    assert measurement.compared(brief(top=0.9), brief())[0] == "different"
    assert measurement.compared(brief(bits="a"), brief(bits="a", top=0.9))[0] == "the same bits"


@pytest.fixture
def bare(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, str]]:
    """A machine without datasets; whoever asks for one is told that nobody has it."""

    def nobody(name: str) -> None:
        raise UserError(f"dataset {name!r} could not be fetched")

    (tmp_path / "data").mkdir()
    monkeypatch.setattr(reproduce, "load", nobody)
    reproduce.lacking.cache_clear()
    yield {"FEDGRAFT_DATA": str(tmp_path / "data"), "XDG_CACHE_HOME": str(tmp_path / "data")}
    reproduce.lacking.cache_clear()


def test_what_cannot_be_had_or_run_is_named(bare: dict[str, str], tmp_path: Path) -> None:
    def asked(*words: str) -> Result:
        return CliRunner().invoke(app, ["reproduce", "apple", *words], env=bare)

    remarks = {each["item"]: each["remark"] for each in json.loads(asked("--json").stdout)}
    assert remarks["table1"] == (
        "Not on this machine yet, and fetched for a run: cifar10, mnist, organamnist, pathmnist."
    )
    assert remarks["figure1"] == "Not run: a drawing of the method: nothing was measured."
    out = ("--root", str(tmp_path / "runs"))
    gone = "dataset 'pathmnist' could not be fetched"
    assert str(asked("table1", "--cell", "apple/path", *out).exception) == gone
    assert "--dataset pathmnist" in asked("table1", "--cell", "apple/path", "--dry-run", *out).stdout
    partition = asked("figure5", "--plot", *out)
    assert "'cifar10' could not be fetched" in str(partition.exception), "it needs the labels"
    assert "a drawing of the method" in str(asked("figure1", *out).exception)
    assert "no cell is called" in str(asked("table1", "--cell", "aple/path", *out).exception)
    assert not (tmp_path / "runs").exists(), "nothing was written"


def test_datasets_are_fetched_for_the_cells_that_need_them(
    data: Path, bare: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One of two datasets can be had: its cells are run, and the others are named."""

    def fetch(name: str) -> None:
        if name != "cifar10":
            raise UserError(f"dataset {name!r} could not be fetched")
        shutil.copy(data / "cifar10.npz", bare["FEDGRAFT_DATA"])

    monkeypatch.setattr(reproduce, "load", fetch)
    made: list[str] = []
    monkeypatch.setattr(reproduce, "make", lambda wanted, _: made.extend(each.config.dataset for each in wanted))
    words = ["table1", "--cell", "fedapa/cifar10", "--cell", "fedapa/fmnist", "--draws", "2", "--no-local"]
    done = CliRunner().invoke(app, ["reproduce", "fedapa", *words, "--root", str(tmp_path / "runs")], env=bare)
    assert made == ["cifar10", "cifar10"]
    assert "left out: the cells of fashion-mnist. dataset 'fashion-mnist' could not be fetched" in " ".join(
        done.stderr.split()
    )


@pytest.mark.slow
def test_the_command_makes_the_runs_once_and_shows_them_beside_the_paper(data: Path, made: Path) -> None:
    folders = sorted(path.parent.relative_to(made).as_posix() for path in made.rglob("result.json"))
    assert folders == ["fedapa/cifar10/quick/fedapa-seed0", "fedapa/cifar10/quick/local-seed0"]
    words = ("table1", "--cell", CELL, "--draws", "1", "--scale", "quick", "--root", str(made))
    assert "nothing is left" in called(data, *words, "--dry-run").stdout
    told = json.loads(called(data, *words, "--show", "--json").stdout)
    (cell,), (draw,) = told["cells"], told["draws"]
    assert (cell["published"], cell["scale"], cell["interval"]) == (85.85, "quick", None)
    assert cell["commands"] == ["fedgraft run fedapa --recipe fedapa --rounds 5 --seed 0"]
    facts = json.loads((made / folders[0] / "result.json").read_text("utf-8"))
    assert cell["ours"] == pytest.approx(100 * facts["best"]["trained"]["pooled"]["value"], abs=1e-4)
    counts = np.array(facts["label_counts"])
    assert draw["top_share"] == pytest.approx(counts.max(axis=1).sum() / counts.sum(), abs=1e-6)
    assert draw["alone"] is not None
    shown = called(data, *words, "--show").stdout
    assert "85.85" in shown
    assert "one draw" in shown


def test_runs_are_taken_in_from_any_folder_and_not_made_again(data: Path, made: Path, tmp_path: Path) -> None:
    shutil.copytree(made / "fedapa/cifar10/quick/fedapa-seed0", tmp_path / "elsewhere" / "x")
    words = ("table1", "--cell", CELL, "--draws", "1", "--scale", "quick", "--root", str(tmp_path / "runs"))
    left = called(data, *words, "--dry-run", "--from", str(tmp_path / "elsewhere")).stdout.splitlines()
    assert left == ["fedgraft run local --recipe fedapa --rounds 5 --seed 0"]
    full = called(
        data, *words[:-4], "--root", str(tmp_path / "runs"), "--dry-run", "--from", str(tmp_path / "elsewhere")
    )
    assert "fedgraft run fedapa --recipe fedapa --seed 0" in full.stdout, "a run of another length is another one"


def test_a_run_that_another_process_is_at_work_on_is_left_to_it(data: Path, made: Path, tmp_path: Path) -> None:
    folder = tmp_path / "fedapa/cifar10/quick/fedapa-seed0"
    shutil.copytree(made / "fedapa/cifar10/quick/fedapa-seed0", folder)
    (folder / "result.json").unlink()  # as if it were still going on
    words = ("table1", "--cell", CELL, "--draws", "1", "--scale", "quick", "--root", str(tmp_path), "--no-local")
    with disk.locked(folder):
        assert "not run" in called(data, *words, "--workers", "1").stdout
    assert not (folder / "result.json").exists()


@pytest.mark.slow
def test_a_committed_figure_comes_out_again(data: Path, made: Path, tmp_path: Path) -> None:
    (told,) = [run for run in reproduce.found_in([made]) if run.method == "fedapa"]

    def checked(run: Measurement, *words: str) -> Result:
        place = tmp_path / f"{run.machine} {run.bits}"
        place.mkdir()
        reproduce.keep(place, [run])
        asked = ["reproduce", "--verify", "3", "--from", str(place), "--workers", "1", *words]
        return CliRunner().invoke(app, asked, env={"FEDGRAFT_DATA": str(data)})

    (line,) = checked(told).stdout.splitlines()
    assert line.startswith("the same bits (0.00 points apart): fedgraft run fedapa --recipe fedapa --rounds 5")
    better = told.trained.model_copy(update={"pooled": [(told.trained.pooled[-1] or 0) + 0.02]})
    wrong = told.model_copy(update={"machine": "an abacus", "bits": "", "trained": better, "rounds": told.rounds[-1:]})
    done = checked(wrong)
    assert done.stdout.splitlines()[1].startswith("  made on an abacus, ")
    assert "1 of 1 came out different" in str(done.exception)
    facts = json.loads(checked(wrong.model_copy(update={"machine": "another"}), "--json").stdout)
    assert (facts["verdict"], facts["apart"], facts["machine"]) == ("different", 2, "another")


def test_what_is_checked_can_be_of_a_paper_an_item_or_a_cell(tmp_path: Path) -> None:
    reproduce.keep(tmp_path, [brief(), brief("fedapa:mu=0.3"), brief("fedper")])

    def found(paper: str | None, item: str | None, *cells: str) -> set[str]:
        return {run.method for run in _measured([tmp_path], paper, item, cells)}

    assert found(None, None) == found("fedapa", None) == {"fedapa", "fedapa:mu=0.3", "fedper"}
    assert found("fedapa", "table4") == {"fedapa", "fedapa:mu=0.3"}
    assert found("fedapa", "table1", "fedper/*") == {"fedper"}
    with pytest.raises(UserError, match="no measurements to check"):
        found("fedgpa", None)
    with pytest.raises(UserError, match="--cell is of a table"):
        found("fedapa", None, "fedper/*")


def test_figures_are_drawn_from_what_is_there(data: Path, made: Path, tmp_path: Path) -> None:
    done = called(data, "figure2", "--plot", "--root", str(made))
    assert [Path(line).name for line in done.stdout.splitlines()] == ["figure2-curves.svg", "figure2-curves.png"]
    empty = called(data, "figure2", "--plot", "--root", str(tmp_path / "none"))
    assert "nothing was measured yet" in str(empty.exception)


def test_what_was_measured_is_shown_and_drawn_where_its_data_are_not(bare: dict[str, str], tmp_path: Path) -> None:
    reproduce.keep(tmp_path, [brief("fedapa:mu=0.3")])
    told = ("reproduce", "fedapa", "table4", "--from", str(tmp_path), "--root", str(tmp_path / "runs"))
    assert "80.00" in CliRunner().invoke(app, [*told, "--show"], env=bare).stdout
    assert "table4-sweep.png" in CliRunner().invoke(app, [*told, "--plot"], env=bare).stdout


def test_rows_are_drawn_on_the_draws_that_all_of_them_have() -> None:
    """A row of two draws, of which one is hard, beside a row of the other draw alone: both at what that one gave."""
    told = paper("fedapa")
    item = told.item("table4")
    runs = [brief(seed=0, top=0.6), brief(seed=1), brief("fedapa:mu=0", seed=1)]
    drawing = Drawing(reproduce.Evidence(told, runs), item, {})
    (line,) = PLOTS["sweep"](drawing).axes[0].lines
    assert np.asarray(line.get_xydata()) == pytest.approx(np.array([[0, 80], [0.5, 80]]))
    curves = PLOTS["curves"](drawing).axes[0].lines
    assert [np.asarray(each.get_ydata()).tolist() for each in curves] == [pytest.approx([80, 60])] * 2


def test_weights_are_drawn_after_chosen_rounds(
    data: Path, made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FEDGRAFT_DATA", str(data))
    reproduce.lacking.cache_clear()
    told = paper("fedapa")
    cells = told.item("table1").chosen([CELL])
    item = replace(told.item("table1"), cells=cells, columns={"cifar10": {}}, drawing={"rounds": [1, 50]})
    finished = reproduce.finished_for(told, cells, [made])
    drawing = Drawing(reproduce.Evidence(told, reproduce.found_in([made])), item, finished)

    def titles(chosen: Drawing) -> list[str]:
        return [title for axis in PLOTS["weights"](chosen).axes if (title := axis.get_title())]

    assert titles(drawing) == ["cifar10: A, round 1", "cifar10: A, round 5"], "the last round where there is no 50th"
    assert titles(replace(drawing, rounds=[3])) == ["cifar10: A, round 3"]
    with pytest.raises(UserError, match="have 5 rounds: there is no round 6"):
        titles(replace(drawing, rounds=[3, 6]))
    assert "--plot shows of fedgpa figure4" in str(called(data, "figure2", "--plot", "--round", "3").exception)
    asked = ["reproduce", "fedgpa", "figure4", "--round", "3", "--root", str(tmp_path)]
    assert "--plot shows of fedgpa figure4" in str(CliRunner().invoke(app, asked).exception), "it would have no effect"


def test_what_an_accuracy_costs_in_bytes() -> None:
    told = paper("fedapa")
    other, cell = told.item("table1").chosen(["fedapa/cifar10", "fedper/cifar10"])

    def run(seed: int, *figures: float | None, method: str = "fedapa") -> Measurement:
        curve = {"mean": [0.0] * len(figures), "pooled": figures}
        return brief(method, seed=seed, rounds=[*range(1, len(figures) + 1)], received=curve, trained=curve)

    runs = [run(0, 0.2, 0.6, 0.5, 0.7), run(1, 0.4, None, 0.3, 0.9), run(1, 0.5, method="fedper")]
    evidence = reproduce.Evidence(told, runs)
    assert evidence.shared([cell]) == [0, 1]
    assert evidence.shared([cell, other]) == [1]
    assert evidence.course(cell) == pytest.approx({1: 30, 3: 40, 4: 80}), "rounds in which both draws were tested"
    assert evidence.course(cell, seeds=[0]) == pytest.approx({1: 20, 2: 60, 3: 50, 4: 70})
    first = {round(accuracy): cost for accuracy, cost in evidence.traffic(cell, seeds=[0]).items()}
    assert first == {20: 3072, 60: 2 * 3072, 70: 4 * 3072}, "1024 up and 2048 down; the third round is no better"
    assert Words(evidence).costs("table1", "cifar10", [30, 65, 75], [0, 1]).splitlines()[2:] == [
        "| fedper | 50.00 | 0.0029 (1) |  |  |",
        "| fedapa | 80.00 | 0.0029 (1) | 0.012 (4) | 0.012 (4) |",
    ]


@pytest.mark.parametrize("kind", sorted(PLOTS))
def test_every_kind_of_figure_can_be_drawn(
    kind: str, data: Path, made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FEDGRAFT_DATA", str(data))
    reproduce.lacking.cache_clear()
    told = paper("apple" if kind == "schedule" else "fedapa")
    table = told.items["table1"]
    cells = tuple(cell for cell in table.cells if cell.name in (CELL, "local/cifar10"))
    facts = {"along": {"mu": [0.5, 1]}, "rounds": [1, 50], "matrix": "A"}
    wanted = cells[-1:] if kind in ("relations", "weights") else cells
    item = replace(table, cells=wanted, columns={"cifar10": {}}, plots=(kind,), drawing=facts)
    finished = reproduce.finished_for(told, cells, [made])
    drawing = Drawing(reproduce.Evidence(told, reproduce.found_in([made])), item, finished)
    written = draw(drawing, tmp_path)
    assert [path.suffix for path in written] == [".svg", ".png"]
    assert all(path.stat().st_size > 1000 for path in written)


def test_a_run_is_left_while_any_of_its_cells_has_no_figure(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FEDGRAFT_DATA", str(data))
    reproduce.lacking.cache_clear()
    told = paper("fedapa")
    cells = told.item("table2").chosen(["fedapa/*"])
    (wanted,) = reproduce.requests(told, cells, [0], "full", Path("x"), alone=False)
    assert len(wanted.cells) == 4, "accuracy, minutes, seconds, bytes: one run"
    assert reproduce.left([wanted], reproduce.Evidence(told, [brief()]), "full") == []
    untimed = reproduce.Evidence(told, [brief(seconds=None)])
    assert reproduce.left([wanted], untimed, "full") == [wanted]


def test_one_run_measures_a_method_that_it_tests_on_its_way(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """APPLE's FedAvg-local out of the run of FedAvg-FT: to the last bit what a run of its own gives."""
    monkeypatch.setenv("FEDGRAFT_DATA", str(data))
    reproduce.lacking.cache_clear()
    told, root = paper("apple"), tmp_path / "runs"
    table = told.item("table1")
    local, tuned = (table.chosen([f"{row}/cifar10"])[0] for row in ("fedavg-local", "fedavg-ft"))
    (both,) = reproduce.requests(told, [local, tuned], [0], "quick", root, alone=False)
    (own,) = reproduce.requests(told, [local], [0], "quick", root, alone=False)
    assert (both.config.method, both.cells, own.config.method) == ("fedavg-ft", (local, tuned), "fedavg-local")
    short = {"rounds": 2, "epochs": 1, "workers": "1"}
    scale = "2 of 160 rounds, 1.0 of 5.0 epochs"
    reproduce.make([replace(each, config=configure(each.config, short)) for each in (both, own)])
    measured = {run.method: run for run in reproduce.found_in([root])}
    assert {run.scale for run in measured.values()} == {scale}
    evidence = reproduce.Evidence(told, [measured["fedavg-ft"]])
    (taken,) = evidence.all_of(local)
    alone = measured["fedavg-local"]
    assert (taken.received, taken.trained, taken.per_client) == (alone.received, alone.trained, alone.per_client)
    assert taken.trained != measured["fedavg-ft"].received
    assert (taken.bytes_up, taken.rounds, taken.headline) == (alone.bytes_up, alone.rounds, alone.headline)
    assert "run fedavg-ft" in taken.command
    assert taken.seconds is None, "nobody knows how long it would have taken by itself"
    assert evidence.runs == [measured["fedavg-ft"]], "one run is one run"
    assert reproduce.left([both], evidence, scale) == []
    assert reproduce.left([both], reproduce.Evidence(told, [alone]), scale) == [both]
    together = reproduce.Evidence(told, [measured["fedavg-ft"], alone])
    assert together.of(local, scale) == [alone], "a run of its own goes first"


def test_what_a_draw_predicts_takes_three_of_them() -> None:
    told = paper("fedapa")
    cell = told.item("table1").chosen([CELL])[0]
    tops = {0: 0.80, 1: 0.82, 2: 0.84}
    runs = [brief(seed=seed, top=top, top_share=0.5 + seed / 10) for seed, top in tops.items()]
    alone = [brief("local", seed=seed, top=0.7 + seed / 25) for seed in tops]
    two, three = (
        reproduction.predictions([evidence.outcome(told.item("table1"), cell)], evidence.draws([cell]))
        for evidence in (reproduce.Evidence(told, [*runs[:count], *alone]) for count in (2, 3))
    )
    assert two is None
    assert three is not None
    # 2 points for 4 points of Local, and for 10 of the share
    local, share = zip(*(column.cells for column in three.columns), strict=True)
    assert local == ("fedapa/cifar10", "Local", "+0.50", "+0.50 to +0.50", "100 %", "3")
    assert share == ("fedapa/cifar10", "most frequent class", "+0.20", "+0.20 to +0.20", "100 %", "3")


# ---- the agenda of docs/results


def test_the_agenda_makes_what_is_left_in_its_order(
    made: Path, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Two steps are wanted; the runs of the first are there, and those of the second are made once."""
    monkeypatch.setenv("FEDGRAFT_DATA", str(data))
    reproduce.lacking.cache_clear()
    step = '[[step]]\nwhat = "{}"\npaper = "fedapa"\nitem = "table1"\ncells = {}\ndraws = 1\nscale = "quick"\n'
    file, root = tmp_path / "agenda.toml", tmp_path / "runs"
    both = step.format("known", [CELL, "local/cifar10"]) + step.format("new", ["fedper/cifar10"])
    file.write_text(both + "evaluate_every = 5\n")

    def progress(*places: Path) -> list[int]:
        return [len(done) for _, done in agenda.Progress(reproduce.found_in(places), file).steps]

    assert progress(made) == [2, 0]
    agenda.work(root, [made], "1", file)
    assert progress(made, root) == [2, 1]
    assert capsys.readouterr().out == "new: 1 left to run\n"
    (run,) = reproduce.found_in([root])
    assert (run.method, run.rounds) == ("fedper", [5])
    agenda.work(root, [made], "1", file)
    assert capsys.readouterr().out == "", "nothing is left"


def test_every_step_of_the_agenda_is_a_part_of_a_paper() -> None:
    for step in agenda.steps():
        assert step.chosen
        assert step.draws > 0
        assert step.scale == "full" or step.scale in step.told.scales
