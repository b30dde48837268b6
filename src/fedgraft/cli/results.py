"""Commands that show what runs gave: report, table, watch."""

from contextlib import suppress
from pathlib import Path
from typing import Annotated, cast

import click
import typer

from fedgraft.base import characters
from fedgraft.base.errors import UserError
from fedgraft.cli.app import StoppedError, app
from fedgraft.flags import Metric, Point, free, nameable
from fedgraft.runs.config import AT


@app.command()
def report(
    directories: Annotated[
        list[Path], typer.Argument(help="Directories of runs or comparisons, or folders of them.", callback=nameable)
    ],
    out: Annotated[
        Path | None, typer.Option(help="The HTML file to write (default: DIRECTORY/report.html).", callback=nameable)
    ] = None,
    text: Annotated[bool, typer.Option("--text", help="Print text charts for a terminal instead.")] = False,
    plots: Annotated[
        Path | None, typer.Option(help="Also write every figure as SVG and PNG into this folder.", callback=nameable)
    ] = None,
    after: Annotated[
        list[int] | None,
        typer.Option(
            "--round",
            help="With --plots: show matrices after this round (may be repeated; default: first, middle, last).",
            min=1,
        ),
    ] = None,
    point: Point = AT[0],
    metric: Metric = None,
) -> None:
    """Show finished runs as one HTML file: who gains, who learned from whom, and how to repeat it."""
    from fedgraft.runs.reading import read_all

    if after and plots is None:
        raise UserError("--round chooses the matrices that --plots draws: add --plots FOLDER, or leave it out")
    if out is None and not text:
        _insist_on_no_answer(directories)
    reading = read_all(directories)
    if text:
        from fedgraft.report.text import show

        show(reading, characters.console(stderr=False), point, metric)
    if out is not None or not text:
        from fedgraft.report.page import write

        own = directories[0] / "report.html" if len(directories) == 1 else free(Path("report.html"), ".html")
        typer.echo(f"report: {write(reading, out or own, point, metric)}")
    if plots is not None:
        from fedgraft.report import figures

        typer.echo(f"figures: {len(figures.write(reading, plots, point, metric, after or ()))} files in {plots}")


def _insist_on_no_answer(directories: list[Path]) -> None:
    """Refuse to write over the report of a recommendation, which has the answer and the table of its sites."""
    from fedgraft.runs.directory import FINAL, RACE

    if len(directories) == 1 and (directories[0] / RACE).exists():
        raise UserError(
            f"{directories[0]} is that of a recommendation, which writes report.html there itself, with its answer: "
            f"name {directories[0] / FINAL} for the runs of its final, or another file with --out"
        )


@app.command()
def table(
    directories: Annotated[
        list[Path], typer.Argument(help="Directory of a comparison or of a run, or several.", callback=nameable)
    ],
    form: Annotated[
        str,
        typer.Option("--format", click_type=click.Choice(("text", "md", "csv", "latex", "json")), help="The format."),
    ] = "text",
    point: Point = AT[0],
    metric: Metric = None,
) -> None:
    """Print the table of finished runs, for a paper or a program."""
    from fedgraft.report.export import Format
    from fedgraft.report.export import table as made
    from fedgraft.runs.reading import alone, read_all

    reading = read_all(directories)
    text = made(alone(reading), cast("Format", form), point, metric)
    for note in reading.notes:
        typer.echo(f"note: {note}", err=True)
    typer.echo(text)


@app.command()
def watch(
    directory: Annotated[Path, typer.Argument(help="Directory of a run or comparison in progress.", callback=nameable)],
) -> None:
    """Follow a run from another terminal, until it ends or Ctrl-C."""
    from fedgraft.report.watch import watch as follow

    with suppress(StoppedError):
        follow(directory, characters.console(stderr=False))
