"""Pictures in characters, figures for a paper, and the command that makes them."""

import io
import sys
from pathlib import Path

import pytest
from rich.console import Console
from typer.testing import CliRunner

from fedgraft.cli import app
from fedgraft.report import figures
from fedgraft.report.text import show
from fedgraft.runs.metric import ACCURACY
from fedgraft.runs.reading import read_all

runner = CliRunner()


def test_text_fits_eighty_columns(folder: Path) -> None:
    done = runner.invoke(app, ["report", str(folder), "--text"])
    assert done.exit_code == 0, done.output
    assert max(map(len, done.output.splitlines())) <= 80
    for part in (
        "Did federation help?",
        "Every client with",
        "Convergence",
        "Who holds what",
        "A after the last round",
    ):
        assert part in done.output
    assert "pfedamf*" in done.output
    assert "rows take from columns" in done.output


def test_text_of_a_single_run_says_what_is_missing(folder: Path) -> None:
    done = runner.invoke(app, ["report", str(folder / "apfl-seed0"), "--text"])
    assert "There is no run of local" in done.output
    assert "alpha after the last round" in done.output
    assert "alpha: share of the private model" in done.output, "what is shown is explained"


def test_the_command_writes_a_page(folder: Path, tmp_path: Path) -> None:
    done = runner.invoke(app, ["report", str(folder), "--out", str(tmp_path / "r.html")])
    assert done.exit_code == 0, done.output
    assert (tmp_path / "r.html").read_text().startswith("<!doctype html>")


@pytest.mark.slow
def test_figures_have_the_papers_axes(folder: Path, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib", reason="figures need matplotlib: pip install '.[plots]'")
    reading = read_all([folder / name for name in ("local-seed0", "fedapa-mu=0.3-seed0", "apfl-seed0")])
    written = {path.name for path in figures.write(reading, tmp_path)}
    for name in (
        "convergence-received",
        "communication",
        "benefit-apfl-seed0",
        "labels-seed0",
        "trajectories-apfl-alpha-seed0",
    ):
        assert {f"{name}.svg", f"{name}.png"} <= written
    assert "matrix-fedapa-mu=0.3-A-seed0.svg" in written
    assert (tmp_path / "communication.png").read_bytes().startswith(b"\x89PNG")
    drawn = dict(figures._figures(reading.comparisons[0], "trained", ACCURACY))
    axes = drawn["convergence-trained"].axes[0]
    assert (axes.get_xlabel(), axes.get_ylabel()) == ("Communication round", "Test accuracy (%)")
    assert drawn["labels-seed0"].axes[0].get_xlabel() == "Client"
    matrix = next(figure for name, figure in drawn.items() if name.startswith("matrix-fedapa")).axes[0]
    for axis in (axes.xaxis, matrix.xaxis, matrix.yaxis):
        ticks = axis.get_major_locator().tick_values(0, 9)  # of which matplotlib would choose 2.5 by itself
        assert all(tick == int(tick) for tick in ticks), ticks


def test_matrices_are_drawn_after_chosen_rounds(folder: Path, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib", reason="figures need matplotlib: pip install '.[plots]'")
    (study,) = read_all([folder / "fedapa-mu=0.3-seed0"]).comparisons
    last = study.config.rounds
    for chosen, titles in (([], {"Round 1", f"Round {last}"}), ([2, 2], {"Round 2"})):
        drawn = figures._figures(study, "trained", ACCURACY, chosen)
        matrix = next(figure for name, figure in drawn if name.startswith("matrix-fedapa"))
        shown = {title for axes in matrix.axes if (title := axes.get_title())}
        assert titles <= shown
        assert shown == titles or not chosen
    asked = ["report", str(folder / "fedapa-mu=0.3-seed0"), "--text", "--round", str(last + 1)]
    assert "--plots draws" in str(runner.invoke(app, asked).exception), "it would have no effect"
    beyond = runner.invoke(app, [*asked, "--plots", str(tmp_path / "figures")])
    assert f"have no round {last + 1}" in str(beyond.exception)
    assert not (tmp_path / "figures").exists()


def test_figures_without_matplotlib_are_a_sentence(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(ValueError, match=r"pip install 'fedgraft\[plots\]'"):
        figures.write(read_all([folder]), tmp_path)


def test_a_console_of_any_width_is_used_up_to_eighty(folder: Path) -> None:
    console = Console(width=200, record=True, file=io.StringIO())
    show(read_all([folder]), console)
    assert max(map(len, console.export_text().splitlines())) <= 80
