"""Joining later: a site that was not there in training gets a model from a finished run."""

import json
import re
from pathlib import Path
from typing import Annotated, Any, Literal, cast

import click
import typer

from fedgraft.base.errors import UserError
from fedgraft.cli.app import app
from fedgraft.flags import Json, free, nameable


@app.command()
def join(
    directory: Annotated[
        Path, typer.Argument(help="Directory of a finished run (a comparison has one for each run).", callback=nameable)
    ],
    data: Annotated[
        Path,
        typer.Option(help="The site's own data: a table, an .npz file, a text, folders of images.", callback=nameable),
    ],
    name: Annotated[str | None, typer.Option(help="The name of the site (default: the file's name).")] = None,
    rounds: Annotated[
        int | None, typer.Option(help="Rounds of the site with the frozen federation (default: the run's).", min=1)
    ] = None,
    epochs: Annotated[float | None, typer.Option(help="Epochs in each of them (default: the run's).")] = None,
    lr: Annotated[float | None, typer.Option(help="Learning rate (default: the run's).")] = None,
    point: Annotated[
        str,
        typer.Option(click_type=click.Choice(("received", "trained")), help="Which of the site's models is written."),
    ] = "trained",
    out: Annotated[Path | None, typer.Option(help="The folder to write.", callback=nameable)] = None,
    onnx: Annotated[bool, typer.Option("--onnx", help="Also write model.onnx, checked against onnxruntime.")] = False,
    as_json: Json = False,
) -> None:
    """Let a site that was not there in training join a finished run, and compare with training alone.

    The run stays as it is. The folder that is written holds the site's own model, for predict, evaluate and export.
    """
    from fedgraft.base import disk
    from fedgraft.exports import joining

    folder = out or free(Path(re.sub(r"[^\w.+=-]+", "-", f"{directory.resolve().name}-{name or data.stem}")))
    if folder.exists():
        raise UserError(f"{folder} is there already; name another folder with --out")
    disk.insist_on_place(folder)
    changes: dict[str, Any] = {key: value for key, value in (("epochs", epochs), ("lr", lr)) if value is not None}
    made = joining.join(directory, data, name=name, rounds=rounds, **changes)
    at = cast('Literal["received", "trained"]', point)
    made.write(folder, at, onnx=onnx)
    if as_json:
        typer.echo(json.dumps(made.facts(), indent=1))
        return
    for sentence in (*(f"note: {note}" for note in made.notes), *made.sentences(at)):
        typer.echo(sentence)
    typer.echo(f"model of {made.site.name}: {folder} (README.md there says how to use it)")
