"""Commands that tell what there is: methods, datasets, partitions, and the data that lie at sites."""

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from fedgraft.base import characters
from fedgraft.base.errors import UserError
from fedgraft.cli.app import app
from fedgraft.flags import EVERY, Json, with_settings
from fedgraft.runs.config import READING, configure

READINGS = "Readings: how we interpreted the paper where it is ambiguous or wrong\n"
DataDir = Annotated[str | None, typer.Option("--data-dir", help="Folder with <name>.npz files.")]


@app.command()
def methods(
    name: Annotated[str | None, typer.Argument(help="A method, to show everything about it.")] = None,
    as_json: Json = False,
) -> None:
    """List the methods, or show everything about one."""
    from rich.markup import escape

    from fedgraft.base.errors import unknown
    from fedgraft.base.listing import bullets, facts_table
    from fedgraft.methods import METHODS, describe

    if name is not None and name not in METHODS:
        raise unknown("method", name, METHODS)
    facts = [describe(METHODS[each]) for each in ([name] if name else METHODS)]
    if as_json:
        typer.echo(json.dumps(facts[0] if name else facts, indent=2))
        return
    console = characters.console(stderr=False)
    if name is None:
        console.print(facts_table(facts, {"name": "method", "idea": "idea", "citation": "citation"}))
        console.print("`fedgraft methods NAME` shows everything about one.", highlight=False)
        return
    this = facts[0]
    mark = (
        "  (a reconstruction: our interpretation, the full paper was not available)" if this["reconstruction"] else ""
    )
    console.print(f"[bold]{escape(this['name'])}[/]{mark}\n{escape(this['idea'])}", highlight=False)
    console.print(f"\n{this['citation'] or 'no single source'}", highlight=False, markup=False)
    where = f"at `{this['headline']}`" + ("" if this["reconstruction"] else ", as in its paper")
    averages = this["averages"] or "nothing; the stages median, trimmed and clip do not apply"
    console.print(
        f"\nsends     {this['sends']}\naverages  {averages}\nmeasured  {where}", highlight=False, markup=False
    )
    for shown, meaning in this["shows"].items():
        console.print(f"shows     {shown}: {meaning}", highlight=False, markup=False)
    if this["parameters"]:
        columns = {"name": "parameter", "default": "default", "range": "range", "doc": "meaning"}
        console.print(facts_table(this["parameters"], columns))
    if this["readings"]:
        console.print(READINGS + bullets(this["readings"], console.width), highlight=False, markup=False)


@app.command()
def datasets(data_dir: DataDir = None, as_json: Json = False) -> None:
    """List the datasets and where they would come from."""
    from fedgraft.base.listing import facts_table
    from fedgraft.data.datasets import catalogue

    facts = [vars(entry) for entry in catalogue(None if data_dir is None else Path(data_dir))]
    if as_json:
        typer.echo(json.dumps(facts, indent=2))
        return
    rows = [
        {
            **f,
            "shape": "x".join(map(str, f["shape"])),
            "where": f["where"] or "would be fetched",
            "sites": f["sites"] or "",
        }
        for f in facts
    ]
    columns = {key: key for key in ("sites", "shape", "task", "outputs", "train", "test", "where")}
    characters.console(stderr=False).print(facts_table(rows, {"name": "dataset", **columns}))


def _inspect(
    path: Annotated[str, typer.Argument(help="A folder or a table of sites, or the name of a dataset that has sites.")],
    data_dir: DataDir = None,
    everything: Annotated[
        bool, typer.Option("--all", help="Show every site and every column, however many there are.")
    ] = False,
    as_json: Json = False,
    *,
    settings: dict[str, Any],
) -> None:
    """Show the sites' data before training: sites, columns, classes, and what looks suspicious."""
    full = configure({"dataset": path, **settings})
    with characters.telling() as say:
        from fedgraft.data.federation import source_of
        from fedgraft.data.inspection import inspect as look
        from fedgraft.runs.population import reading

        wish = reading(full)
        found = look(source_of(path, wish, data_dir), wish, full.task, full.seed, say)
    if as_json:
        typer.echo(json.dumps(found.to_json(), indent=2))
    else:
        from fedgraft.report.inspection import show

        show(found, characters.console(stderr=False), everything=everything)
    if found.problem:
        raise UserError(f"this cannot be trained on yet: {found.problem}")


app.command("inspect")(with_settings(_inspect, without=EVERY.keys() - {*READING, "task", "seed"}))


@app.command()
def partition(
    scheme: Annotated[str, typer.Argument(help="How to split, such as dirichlet:0.1.")] = "dirichlet:0.1",
    dataset: Annotated[str, typer.Option(help="Name of a dataset or an .npz file.")] = "digits",
    clients: Annotated[int, typer.Option(help="Number of clients.", min=1)] = 10,
    seed: Annotated[int, typer.Option(help="Seed of the partition.", min=0)] = 0,
    save: Annotated[Path | None, typer.Option(help="Write the partition to this file.")] = None,
    load: Annotated[Path | None, typer.Option(help="Show a saved partition instead of drawing one.")] = None,
    listing: Annotated[bool, typer.Option("--list", help="List the schemes.")] = False,
    data_dir: DataDir = None,
    as_json: Json = False,
) -> None:
    """Make a partition and show who holds which classes."""
    import numpy as np
    from rich.markup import escape

    from fedgraft.data import partition as schemes
    from fedgraft.data.datasets import load as load_dataset

    if load is None and not listing:
        schemes.SCHEMES.insist(scheme)
    console = characters.console(stderr=False)
    if listing:
        facts = [entry._asdict() for entry in schemes.listing()]
        if as_json:
            typer.echo(json.dumps(facts, indent=2))
        else:
            for fact in facts:
                about = escape(f"{fact['about']} ({fact['paper']})")
                console.print(f"[bold]{escape(fact['syntax'])}[/]\n    {about}", highlight=False)
        return
    source = load_dataset(dataset, None if data_dir is None else Path(data_dir))
    strata = source.strata
    if load is not None:
        drawn = schemes.Partition.load(load)
    else:
        drawn = schemes.SCHEMES.make(scheme).split(*strata, clients, seed)
    if save is not None:
        drawn.save(save)
    if as_json:
        train, test = drawn.counts(np.concatenate(strata))
        typer.echo(
            json.dumps({"scheme": drawn.scheme, "seed": drawn.seed, "train": train.tolist(), "test": test.tolist()})
        )
        return
    console.print(schemes.draw(drawn, *strata, width=console.width))
