"""The command that searches hyper-parameters."""

import json
from contextlib import ExitStack
from pathlib import Path
from typing import Annotated, Any

import typer

from fedgraft.base import characters
from fedgraft.base.errors import UserError
from fedgraft.cli.app import app, resumable
from fedgraft.flags import (
    ConfigFile,
    Fresh,
    Json,
    MethodCommand,
    Parallel,
    Recipe,
    default_directory,
    nameable,
    with_settings,
)
from fedgraft.runs import names
from fedgraft.runs.config import configure, read


@app.command(cls=MethodCommand)
@with_settings
def tune(
    methods: Annotated[list[str], typer.Argument(help="Methods, each searched with the same budget.")],
    budget: Annotated[int, typer.Option(help="Trials for each method.", min=1)] = 30,
    config: ConfigFile = None,
    recipe: Recipe = None,
    out: Annotated[
        Path | None, typer.Option(help="Directory; an interrupted search is continued.", callback=nameable)
    ] = None,
    parallel: Parallel = "1",
    fresh: Fresh = False,
    as_json: Json = False,
    *,
    settings: dict[str, Any],
) -> None:
    """Search hyper-parameters and the learning rate on validation data; the test data are removed before."""
    if parallel != "auto" and not (parallel.isdecimal() and int(parallel) > 0):
        raise UserError(f"--parallel is a number of runs at once, or auto, not {parallel!r}")
    full = configure(read(config) if config else {}, settings, recipe_name=recipe)
    names.insist(full, methods)

    from fedgraft.runs.tune import TRIALS
    from fedgraft.runs.tune import tune as search
    from fedgraft.terminal import Display

    directory = out or default_directory("tune", Path(full.dataset).stem[:60])
    with ExitStack() as stack:
        stack.enter_context(resumable(directory, f"the same command with --out {directory} goes on with it"))
        display = stack.enter_context(Display(characters.console()))
        found = search(
            methods, budget=budget, config=full, out=directory, watchers=[display], fresh=fresh,
            parallel="auto" if parallel == "auto" else int(parallel),
        )  # fmt: skip
    if as_json:
        typer.echo(json.dumps({each.method: each.best.to_json() for each in found}))
        return
    for each in found:
        best, first = each.best.scores[-1], each.trials[0].scores
        usual = f", {each.metric.shown(first[-1])} with its defaults in their last rung" if first else ""
        typer.echo(f"{each.command}: {each.metric.title} {each.metric.shown(best)} on validation data{usual}")
    typer.echo(f"every trial: {directory / TRIALS}")
