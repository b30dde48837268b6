"""Commands that examine: a method, and this installation."""

import json
import textwrap
from collections.abc import Sequence
from typing import Annotated, Any

import typer

from fedgraft.base import characters
from fedgraft.base.errors import UserError
from fedgraft.base.version import __version__
from fedgraft.cli.app import app
from fedgraft.flags import Json


@app.command()
def check(
    method: Annotated[str, typer.Argument(help="A method of your own, such as ./my_method.py:Mine, or one by name.")],
    with_: Annotated[
        list[str] | None,
        typer.Option(
            "--with",
            help="What a hyper-parameter needs in order to act, as decay:period=1, or another value to try.",
            metavar="NAME:KEY=VALUE",
        ),
    ] = None,
) -> None:
    """Hold a method to what fedgraft's own are held to: equal bits, awkward and absent clients, refusals, resuming."""
    from fedgraft.methods import METHODS

    METHODS.insist(method)
    name, values = METHODS.split(method)
    if values:
        raise UserError(f"check tries every hyper-parameter by itself: write fedgraft check {name}, without {values!r}")
    from fedgraft.testing import checks

    kind, companions = METHODS.find(method), _companions(with_ or [])
    failed = 0
    for about, complaint in checks(kind, companions):
        failed += complaint is not None
        typer.echo(f"{'ok    ' if complaint is None else 'FAILED'}  {about}")
        if complaint is not None:
            typer.echo(textwrap.indent(textwrap.fill(complaint, 100), " " * 8))
    if failed:
        raise UserError(f"{kind.__name__} fails {failed} of the checks")
    typer.echo(f"{kind.__name__} passes every check")


def _companions(texts: Sequence[str]) -> dict[str, dict[str, Any]]:
    """Read ``name:key=value,...`` texts."""
    from fedgraft.base.registry import assignments

    found: dict[str, dict[str, Any]] = {}
    for text in texts:
        name, _, pairs = text.partition(":")
        found[name] = assignments(filter(None, pairs.split(",")))
        if not found[name]:
            raise UserError(f"--with says what a hyper-parameter needs, such as decay:period=1, not {text!r}")
    return found


@app.command()
def doctor(as_json: Json = False) -> None:
    """Tell what this installation has: versions, cores, CUDA devices, kernels."""
    import platform

    import torch

    from fedgraft import kernels
    from fedgraft.engines import devices
    from fedgraft.engines.local import cores

    facts = {
        "fedgraft": __version__,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "cores": cores(),
        "devices": "; ".join(map(str, devices.graphics())) or "no CUDA device",
        "kernels": kernels.describe(),
    }
    if as_json:
        typer.echo(json.dumps(facts, indent=2))
        return
    for name, fact in facts.items():
        characters.console(stderr=False).print(f"{name:9} {fact}", highlight=False, markup=False)
