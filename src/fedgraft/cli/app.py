"""The program that all commands belong to, and what they share."""

import shlex
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer

from fedgraft.base.version import __version__
from fedgraft.flags import Commands

app = typer.Typer(
    cls=Commands,
    name="fedgraft",
    help="Personalized federated learning: compare methods, see who gains, deploy.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


class StoppedError(SystemExit):
    """Somebody stopped the program: Ctrl-C or a termination signal. The hint says how to go on."""

    hint = ""


@contextmanager
def resumable(directory: Path, how: str | None = None) -> Iterator[None]:
    """Say to somebody who stops a run how it goes on."""
    try:
        yield
    except StoppedError as stopped:
        begun = any((directory / name).exists() for name in ("config.toml", "agenda.toml", "race.toml", "tuning"))
        how = how or f"`fedgraft resume {shlex.quote(str(directory))}` goes on with it"
        stopped.hint = f"; {how}" if begun else " before anything was written"
        raise


@app.callback(invoke_without_command=True)
def version_flag(
    version: Annotated[bool, typer.Option("--version", help="Print the version and stop.")] = False,
) -> None:
    """Take flags before the command."""
    if version:
        typer.echo(f"fedgraft {__version__}")
        raise typer.Exit
