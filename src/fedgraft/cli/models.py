"""Commands for the models of a finished run: export, predict, evaluate."""

import json
import re
from pathlib import Path
from typing import Annotated, Literal, cast

import click
import typer

from fedgraft.base.errors import UserError
from fedgraft.cli.app import app
from fedgraft.flags import Json, free, nameable

Client = Annotated[str | None, typer.Option("--client", help="The client, by its site's name or its number.")]


At_ = Annotated[
    str | None,
    typer.Option(
        "--point",
        click_type=click.Choice(("received", "trained")),
        help="Which of a client's models (default trained).",
    ),
]


Source = Annotated[
    Path, typer.Argument(help="Directory of a finished run, or folder of an exported model.", callback=nameable)
]


@app.command()
def export(
    directory: Annotated[
        Path,
        typer.Argument(
            help="Directory of a finished run (also within a comparison), or of a site that joined.", callback=nameable
        ),
    ],
    client: Client = None,
    point: At_ = None,
    out: Annotated[Path | None, typer.Option(help="The folder to write.", callback=nameable)] = None,
    onnx: Annotated[bool, typer.Option("--onnx", help="Also write model.onnx, checked against onnxruntime.")] = False,
) -> None:
    """Take a client's own model out of a run, for use without fedgraft."""
    from fedgraft.exports.asking import copied, opened
    from fedgraft.exports.package import subject, write

    if (directory / "model.json").exists():
        made, whose = copied(directory, client, point, out or free(Path(f"{directory.resolve().name}-copy")), onnx=onnx)
    else:
        run, number = opened(directory, client)
        whose = run.spec.called(number)
        folder = out or free(Path(re.sub(r"[^\w.+=-]+", "-", f"{directory.resolve().name}-{whose}")))
        own = subject(run, number, cast('Literal["received", "trained"]', point or "trained"))
        made = write(own, folder, onnx=onnx)
    typer.echo(f"model of {whose}: {made} (README.md there says how to use it)")


@app.command()
def predict(
    source: Source,
    data: Annotated[
        Path,
        typer.Argument(help="A table, an image, a text, a folder of them, or an .npz file with x.", callback=nameable),
    ],
    client: Client = None,
    point: At_ = None,
    out: Annotated[
        Path | None, typer.Option(help="Write the answers here (default: print).", callback=nameable)
    ] = None,
) -> None:
    """Predict new samples with a client's own model; the answers are CSV."""
    from fedgraft.base import disk
    from fedgraft.exports import asking

    if out is not None:
        if out.exists():
            raise UserError(f"{out} is there already; name another file with --out")
        disk.insist_on_place(out)
    text = asking.predict(asking.model_of(source, client, point), data)
    if out is None:
        typer.echo(text, nl=False)
        return
    with disk.writing(out.parent):
        out.parent.mkdir(parents=True, exist_ok=True)
        disk.write(out, text.encode())


@app.command()
def evaluate(
    source: Source,
    data: Annotated[
        Path,
        typer.Argument(
            help="A table with the target, folders of images, texts, or .npz with x and y.", callback=nameable
        ),
    ],
    client: Client = None,
    point: At_ = None,
    metrics: Annotated[list[str] | None, typer.Option("--metrics", help="Metrics (default: those of the run).")] = None,
    as_json: Json = False,
) -> None:
    """Test a client's own model on new samples whose targets are known."""
    from fedgraft.exports import asking

    found = asking.evaluate(asking.model_of(source, client, point), data, metrics or ())
    if as_json:
        typer.echo(json.dumps(found))
        return
    for name, value in found.items():
        typer.echo(f"{name:20} {'not defined here' if value is None else f'{value:.4g}'}")
