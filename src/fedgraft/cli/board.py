"""The board: every method, or anybody's own, under one protocol."""

import json
from contextlib import ExitStack
from pathlib import Path
from typing import Annotated, Any

import typer

from fedgraft.base import characters
from fedgraft.base.errors import UserError
from fedgraft.cli.app import StoppedError
from fedgraft.cli.app import app as program
from fedgraft.flags import Commands, Json, Workers, nameable

app = typer.Typer(
    cls=Commands,
    name="board", help="Compare all methods under one protocol: same number of tuning trials, same seeds.",
    no_args_is_help=True,
)  # fmt: skip
program.add_typer(app)

Settings = Annotated[list[str] | None, typer.Argument(help="Settings of the protocol (default: all, in its order).")]
Out = Annotated[
    Path, typer.Option("--out", help="The board's directory; an interrupted board is continued.", callback=nameable)
]
ProtocolFile = Annotated[
    Path | None, typer.Option("--protocol", help="A protocol of your own (docs/board.md).", callback=nameable)
]
Beside = Annotated[
    Path | None,
    typer.Option("--beside", help="Show the methods of these results too, such as docs/results.", callback=nameable),
]
Retry = Annotated[bool, typer.Option("--retry", help="Try again what failed or was not admitted.")]
OUT = Path("runs/board")


@app.command()
def run(
    settings: Settings = None,
    method: Annotated[
        list[str] | None, typer.Option("--method", help="Only this method (may be repeated; default: all).")
    ] = None,
    out: Out = OUT,
    protocol: ProtocolFile = None,
    beside: Annotated[
        Path | None,
        typer.Option("--beside", help="Leave out methods that these results already have.", callback=nameable),
    ] = None,
    workers: Workers = None,
    retry: Retry = False,
    quiet: Annotated[bool, typer.Option("--quiet", help="Show no progress of single runs.")] = False,
) -> None:
    """Tune and measure the methods, setting by setting; several processes with the same --out share the work."""
    _carry_out(out, protocol, settings or [], method or [], workers, retry, quiet, beside)
    typer.echo(f"what there is: fedgraft board show {out}")


@app.command()
def add(
    method: Annotated[str, typer.Argument(help="Your method: ./mine.py:Mine, or a name, also with parameters.")],
    settings: Settings = None,
    out: Out = OUT,
    protocol: ProtocolFile = None,
    beside: Beside = None,
    workers: Workers = None,
    retry: Retry = False,
    quiet: Annotated[bool, typer.Option("--quiet", help="Show no progress of single runs.")] = False,
) -> None:
    """Measure a method of your own by the same protocol, next to local, fedavg and fedavg-ft."""
    from fedgraft.board.contest import REFERENCES
    from fedgraft.methods import METHODS

    references = () if beside is not None else REFERENCES
    found = _carry_out(out, protocol, settings or [], [*references, method], workers, retry, quiet)
    _show(found, beside, mine=METHODS.label(METHODS.make(method)))


@app.command()
def show(
    directory: Annotated[Path, typer.Argument(help="A board, or a folder of results.", callback=nameable)] = OUT,
    settings: Annotated[list[str] | None, typer.Option("--setting", help="Only this one (may be repeated).")] = None,
    beside: Beside = None,
    report: Annotated[
        Path | None, typer.Option("--report", help="Write an HTML page with the tables.", callback=nameable)
    ] = None,
    as_json: Json = False,
) -> None:
    """Show the results so far: figures, differences to local and to fedavg-ft, ranks."""
    from fedgraft.board.record import read_all

    found = read_all(directory)
    for name in settings or []:
        if name not in found:
            raise UserError(f"{directory} has no results of a setting {name!r}; it has {', '.join(found) or 'none'}")
    chosen = {name: each for name, each in found.items() if not settings or name in settings}
    if not chosen:
        raise UserError(f"{directory} has no results of a board yet")
    _show(chosen, beside, report, as_json)


def _carry_out(
    out: Path, protocol: Path | None, settings: list[str], methods: list[str], workers: Any, retry: bool, quiet: bool,
    beside: Path | None = None,
) -> dict[str, Any]:  # fmt: skip
    from fedgraft.board import protocol as protocols
    from fedgraft.methods import METHODS

    told = protocols.read(protocol)
    told.chosen(settings)
    for text in methods:
        METHODS.insist(text)

    from fedgraft.board import contest
    from fedgraft.board.record import read_all
    from fedgraft.terminal import Display

    console = characters.console()
    with ExitStack() as stack:
        watchers = [] if quiet else [stack.enter_context(Display(console))]
        try:
            return contest.run(
                out, told, settings, methods, watchers=watchers, retry=retry,
                done=None if beside is None else read_all(beside),
                changes={} if workers is None else {"workers": workers},
                tell=lambda text: console.print(text, highlight=False, markup=False),
            )  # fmt: skip
        except StoppedError as stopped:
            stopped.hint = "; the same command goes on with it"
            raise


def _show(
    found: dict[str, Any], beside: Path | None, report: Path | None = None, as_json: bool = False, mine: str = ""
) -> None:
    from fedgraft.board import record, standing
    from fedgraft.report import board

    if beside is not None:
        found = record.joined(found, record.read_all(beside))
    standings = {name: standing.of(each) for name, each in found.items()}
    if report is not None:
        typer.echo(str(board.write(standings, report)))
        return
    if as_json:
        typer.echo(json.dumps({name: each.to_json() for name, each in standings.items()}))
        return
    console = characters.console(stderr=False)
    for each in standings.values():
        console.print(board.view(each, mine))
