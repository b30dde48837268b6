"""The operator's side of the SuperLink: the connection that `flwr` uses too, and what became of runs."""

import contextlib
import io
import os
from collections.abc import Iterator
from pathlib import Path

import click
from flwr.cli.flower_config import read_superlink_connection
from flwr.cli.utils import flwr_cli_exc_handler, init_http_client_from_connection
from flwr.common.constant import Status
from flwr.proto.control_pb2 import ListRunsRequest, StopRunRequest
from flwr.supercore.control import ControlHttpClient

from fedgraft.base.errors import UserError
from fedgraft.deploy.deployment import CONNECTION, OPERATOR

HOME = "FLWR_HOME"


def operate_in(folder: Path) -> None:
    """Speak to the SuperLink of a server's folder from now on; without one there, to that of FLWR_HOME."""
    home = folder.absolute() / "flower" / OPERATOR
    if (home / "config.toml").exists():
        os.environ[HOME] = str(home)
    elif HOME not in os.environ:
        raise UserError(
            f"{folder} is not the folder of a server that was started: there is no {home / 'config.toml'}; "
            "`fedgraft deploy server` starts it"
        )


@contextlib.contextmanager
def superlink() -> Iterator[ControlHttpClient]:
    """Speak to the SuperLink as `flwr` does, with the connection that FLWR_HOME/config.toml names."""
    control = None
    try:
        with contextlib.redirect_stdout(io.StringIO()):  # Flower says which SuperLink it uses
            control = init_http_client_from_connection(read_superlink_connection(CONNECTION))
        with flwr_cli_exc_handler():
            yield control
    except click.ClickException as error:
        raise UserError(f"the SuperLink cannot be asked: {' '.join(error.format_message().split())}") from None
    finally:
        if control is not None:
            control.close()


def over(run: int) -> bool:
    """Whether a run has ended, however."""
    with superlink() as control:
        found = control.ListRuns(ListRunsRequest(run_id=run)).run_dict
        return bool(found[run].status.status == Status.FINISHED)


def stop_all() -> None:
    """Stop the runs that have not ended: those of a server that was killed would begin again beside the new one."""
    with superlink() as control:
        for number, run in control.ListRuns(ListRunsRequest()).run_dict.items():
            if run.status.status != Status.FINISHED:
                control.StopRun(StopRunRequest(run_id=number))
