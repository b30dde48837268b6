"""An audit that attacks: what the server could learn from what was sent in a finished run."""

import json
from pathlib import Path
from typing import Annotated

import typer

from fedgraft.base import characters
from fedgraft.cli.app import app
from fedgraft.flags import Json, nameable


@app.command()
def audit(
    directory: Annotated[
        Path, typer.Argument(help="Directory of a finished run (a comparison has one for each run).", callback=nameable)
    ],
    shadows: Annotated[
        int,
        typer.Option(
            help="Shadow runs on other samples, from which the attacker learns; each takes as long as the run."
        ),
    ] = 16,
    workers: Annotated[int, typer.Option(help="Worker processes.", min=1)] = 1,
    as_json: Json = False,
) -> None:
    """Attack what the clients of a finished run sent: whose samples were trained on, and which classes a client has.

    The run is done again to hear what was sent. What was found is printed, and written to audit.json in the directory.
    """
    from fedgraft.audit.auditing import audit as attack
    from fedgraft.audit.picture import picture

    found = attack(directory, shadows=shadows, workers=workers, tell=lambda text: typer.echo(text, err=True))
    if as_json:
        typer.echo(json.dumps(found.facts(), indent=1))
    else:
        characters.console(stderr=False).print(picture(found))
