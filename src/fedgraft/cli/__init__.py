"""The command line. Heavy imports wait until a command needs them: help, and a misspelt name, are answered at once."""

import signal
import sys

import typer

from fedgraft.base import characters
from fedgraft.base.errors import UserError
from fedgraft.cli.app import StoppedError
from fedgraft.cli.app import app as app

# isort: off
# help lists the commands in the order of these imports
from fedgraft.cli import (  # noqa: F401
    running, tuning, models, joining, results, auditing, reproduce, board, catalogue, checks,
)  # fmt: skip
from fedgraft.deploy import commands as deploy
# isort: on

app.add_typer(deploy.app)


def main() -> None:
    """Run a command; what the user can mend is one sentence and exit code 2."""
    characters.make_do()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, _stop)
    try:
        app()
    except UserError as error:
        typer.echo(f"fedgraft: {error}", err=True)
        sys.exit(2)
    except StoppedError as stopped:
        typer.echo(f"fedgraft: stopped{stopped.hint}", err=True)
        sys.exit(stopped.code)


def _stop(number: int, _: object) -> None:
    raise StoppedError(128 + number)
