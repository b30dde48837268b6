"""The command that repeats the papers' tables and figures."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import click
import typer

from fedgraft.base import characters
from fedgraft.base.errors import UserError
from fedgraft.cli.app import StoppedError, app
from fedgraft.flags import Json, nameable

SCALES = ("quick", "half", "full")
WEIGHTS = "weights"
"""The kind of plot that shows one round or several."""


@app.command()
def reproduce(
    paper: Annotated[str | None, typer.Argument(help="A paper: fedapa, apple, fedppa or fedgpa.")] = None,
    item: Annotated[str | None, typer.Argument(help="One of its tables or figures, such as table1.")] = None,
    cell: Annotated[
        list[str] | None,
        typer.Option("--cell", help="ROW/COLUMN of a table, such as fedapa/cifar10 or 'fedapa/*' (may be repeated)."),
    ] = None,
    draws: Annotated[
        int | None,
        typer.Option(help="How many draws: runs with different seeds (default: as many as the paper).", min=1),
    ] = None,
    scale: Annotated[
        str | None,
        typer.Option(
            click_type=click.Choice(SCALES),
            help="How long the runs are; quick and half are the paper's own (default: full; of --show, the longest).",
        ),
    ] = None,
    root: Annotated[Path, typer.Option(help="Where the runs have their directories.", callback=nameable)] = Path(
        "runs/reproduce"
    ),
    taken: Annotated[
        list[Path] | None,
        typer.Option(
            "--from", help="Also use finished runs, or files of measurements, from this folder.", callback=nameable
        ),
    ] = None,
    alone: Annotated[
        bool, typer.Option("--local/--no-local", help="Also run Local, which shows how hard each seed's partition is.")
    ] = (True),
    show: Annotated[bool, typer.Option("--show", help="Run nothing: print the results so far.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Run nothing: print the commands that are left.")] = False,
    plot: Annotated[
        bool, typer.Option("--plot", help="Plot the figure, in the paper's form, from the results so far.")
    ] = False,
    after: Annotated[
        list[int] | None,
        typer.Option(
            "--round", help="With --plot: show weights after this round (may be repeated; default: the paper's).", min=1
        ),
    ] = None,
    workers: Annotated[str | None, typer.Option(help="Worker processes; the result does not depend on them.")] = None,
    listing: Annotated[bool, typer.Option("--list", help="List every table and figure of the four papers.")] = False,
    verify: Annotated[
        int | None,
        typer.Option(
            help="Repeat this many measurements of --from, or of those of PAPER, ITEM, --cell, chosen at random.", min=1
        ),
    ] = None,
    as_json: Json = False,
) -> None:
    """Reproduce a table or a figure of the four papers, and print ours next to the published figures."""
    from fedgraft.papers.tables import paper as find
    from fedgraft.papers.tables import papers

    if verify is not None:
        _verify(verify, _measured(taken or [], paper, item, cell or ()), workers, as_json)
        return
    if listing or item is None:
        _contents([find(paper)] if paper else list(papers().values()), as_json)
        return
    told = find(paper or "")
    chosen = told.item(item)
    if chosen.not_run:
        raise UserError(f"{paper} {item} cannot be run: {chosen.not_run}")
    if after and not (plot and WEIGHTS in chosen.plots):
        shown = ", ".join(f"{each.name} {name}" for each in papers().values() for name in _with_weights(each))
        raise UserError(f"--round chooses the weights that --plot shows of {shown}: leave it out")
    seeds = range(draws or told.draws)
    places = [*(taken or []), *([root] if root.exists() else [])]
    job = _Job(told, chosen, chosen.chosen(cell or ()), seeds, scale or "full", root, places, alone)
    if dry_run:
        typer.echo("\n".join(job.commands()) or "nothing is left to run")
        return
    if not show and not plot:
        job.run({} if workers is None else {"workers": workers}, characters.console())
    if plot:
        typer.echo("\n".join(str(path) for path in job.draw(after or ())))
    elif chosen.cells and show:
        job.show(scale, range(draws) if draws else None, as_json)
    elif chosen.cells:
        job.show(job.scale, seeds, as_json)


class _Job:
    """What was asked for."""

    def __init__(
        self, paper: Any, item: Any, cells: Any, seeds: range, scale: str, root: Path, places: list[Path], alone: bool
    ) -> None:
        self.paper, self.item, self.cells, self.seeds, self.scale = paper, item, cells, seeds, scale
        self.root, self.places, self.alone = root, places, alone

    def left(self) -> Any:
        """The runs that are to be made."""
        from fedgraft.runs.reproduce import left, requests

        wanted = requests(self.paper, self.cells, self.seeds, self.scale, self.root, alone=self.alone)
        return left(wanted, self.evidence(), self.scale)

    def evidence(self) -> Any:
        from fedgraft.runs.reproduce import Evidence, found_in

        places = [*self.places, *([self.root] if self.root.exists() and self.root not in self.places else [])]
        return Evidence(self.paper, found_in(places))

    def commands(self) -> list[str]:
        """The commands of the runs that are left."""
        from fedgraft.methods import METHODS
        from fedgraft.runs.measurement import command, differing

        found = []
        for each in self.left():
            label = METHODS.label(METHODS.make(each.config.method, **each.config.params))
            found.append(command(label, self.paper.name, differing(each.config, self.paper.name), each.config.seed))
        return found

    def run(self, changes: dict[str, Any], console: Any) -> None:
        from dataclasses import replace

        from fedgraft.runs.config import configure
        from fedgraft.runs.reproduce import make, obtain
        from fedgraft.terminal import Display

        wanted = self.left()
        gone = obtain(each.config.dataset for each in wanted)
        here = [each for each in wanted if each.config.dataset not in gone]
        todo = [replace(each, config=configure(each.config, changes)) for each in here]
        if gone and not todo:
            raise UserError("; ".join(gone.values()))
        for name, why in gone.items():
            console.print(f"left out: the cells of {name}. {why}", highlight=False, markup=False)
        with Display(console, total_runs=len(todo)) as display:
            try:
                make(todo, [display])
            except StoppedError as stopped:
                stopped.hint = "; the same command goes on with it"
                raise

    def show(self, scale: str | None, seeds: range | None, as_json: bool) -> None:
        """Print what is there: of these draws or of all, of one scale or of the longest runs."""
        from fedgraft.report import reproduction

        evidence = self.evidence()
        outcomes = [evidence.outcome(self.item, cell, scale, seeds) for cell in self.cells]
        hard = [draw for draw in evidence.draws(self.cells, scale) if seeds is None or draw.seed in seeds]
        if as_json:
            typer.echo(json.dumps(reproduction.as_json(self.paper, outcomes, hard)))
            return
        console = characters.console(stderr=False)
        remark = reproduction.remark(self.paper, self.item)
        for text in filter(None, (f"{self.item.title}. {self.paper.about}", self.item.about, remark)):
            console.print(text, highlight=False, markup=False)
        console.print(reproduction.view(outcomes))
        if hard:
            console.print(
                "\nHow hard the draws are: the share of samples that are of their client's most frequent class"
            )
            console.print(reproduction.difficulty(hard))
        if predicted := reproduction.predictions(outcomes, hard):
            console.print("\nWhat a point of that adds to a figure, and how much of its variance it explains")
            console.print(predicted)

    def draw(self, rounds: Sequence[int]) -> list[Path]:
        from fedgraft.report.paperfigures import Drawing, draw
        from fedgraft.runs.reproduce import finished_for, obtain, setting

        if not self.cells and (gone := obtain(setting(self.paper, column).dataset for column in self.item.columns)):
            raise UserError("; ".join(gone.values()))
        finished = finished_for(self.paper, self.cells, self.places)
        drawing = Drawing(self.evidence(), self.item, finished, rounds=rounds)
        return draw(drawing, self.root / self.paper.name / "figures")


def _with_weights(paper: Any) -> list[str]:
    return [name for name, item in paper.items.items() if WEIGHTS in item.plots]


def _contents(papers: list[Any], as_json: bool) -> None:
    from fedgraft.report import reproduction

    if as_json:
        facts = [
            {"paper": paper.name, "item": item.name, "title": item.title, "cells": [cell.name for cell in item.cells],
             "remark": reproduction.remark(paper, item)}
            for paper in papers for item in paper.items.values()
        ]  # fmt: skip
        typer.echo(json.dumps(facts, indent=1))
        return
    characters.console(stderr=False).print(reproduction.contents(papers))


def _measured(places: list[Path], paper: str | None, item: str | None, cells: Sequence[str]) -> list[Any]:
    """All measurements that are kept, or those of a paper, of one of its items, of some cells."""
    from fedgraft.papers.tables import paper as find
    from fedgraft.runs.reproduce import found_in, of_cells

    if not places:
        raise UserError("name the measurements to check: --from docs/results")
    if cells and item is None:
        raise UserError("--cell is of a table: name it, as in fedgraft reproduce fedapa table1 --cell fedapa/cifar10")
    found = found_in(places)
    if paper is not None:
        told = find(paper)
        items = told.items.values() if item is None else [told.item(item)]
        found = of_cells(told, [one for each in items for one in each.chosen(cells)], found)
    if not found:
        raise UserError("there are no measurements to check")
    return found


def _verify(count: int, known: list[Any], workers: str | None, as_json: bool) -> None:
    """Run measurements again, chosen at random; one that comes out different is no success."""
    import random

    from fedgraft.runs.measurement import compared
    from fedgraft.runs.reproduce import again, obtain
    from fedgraft.terminal import Display

    chosen = random.sample(known, min(count, len(known)))
    if gone := obtain(told.config.dataset for told in chosen):
        raise UserError("; ".join(gone.values()))
    wrong = 0
    for told in chosen:
        with Display(characters.console()) as display:
            now = again(told, workers, [display])
        verdict, apart = compared(told, now)
        if as_json:
            facts = {"command": told.command, "verdict": verdict, "apart": round(apart, 2), "seconds": now.seconds,
                     "machine": told.machine, "computed": told.computed, "here": now.computed}  # fmt: skip
            typer.echo(json.dumps(facts))
        else:
            typer.echo(f"{verdict} ({apart:.2f} points apart): {told.command}")
            if verdict != "the same bits":
                made = ", ".join(filter(None, (told.machine, told.computed)))
                typer.echo(f"  made on {made}; here: {now.computed}")
        wrong += verdict == "different"
    if wrong:
        raise UserError(f"{wrong} of {len(chosen)} came out different")
