"""The command line. Heavy imports wait until a command needs them: help, and a misspelt name, are answered at once."""

import json
import shlex
import signal
import sys
import textwrap
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Annotated, Any, cast

import click
import typer

from fedgraft.base import characters
from fedgraft.base.errors import UserError
from fedgraft.base.version import __version__
from fedgraft.deploy import commands as deploy
from fedgraft.flags import (
    EVERY,
    ConfigFile,
    Json,
    MethodCommand,
    Metric,
    Point,
    Recipe,
    Report,
    Set,
    Track,
    default_directory,
    free,
    nameable,
    with_settings,
)
from fedgraft.runs import names
from fedgraft.runs.config import AT, READING, At, configure, read

app = typer.Typer(
    name="fedgraft",
    help="Personalized federated learning: compare methods, see who gains, deploy.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.add_typer(deploy.app)
DataDir = Annotated[str | None, typer.Option("--data-dir", help="Folder with <name>.npz files.")]


class StoppedError(SystemExit):
    """Somebody stopped the program: Ctrl-C or a termination signal. The hint says how to go on."""

    hint = ""


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


@contextmanager
def _resumable(directory: Path, how: str | None = None) -> Iterator[None]:
    """Say to somebody who stops a run how it goes on."""
    try:
        yield
    except StoppedError as stopped:
        begun = any((directory / name).exists() for name in ("config.toml", "agenda.toml", "race.toml"))
        how = how or f"`fedgraft resume {shlex.quote(str(directory))}` goes on with it"
        stopped.hint = f"; {how}" if begun else " before anything was written"
        raise


@app.command(cls=MethodCommand)
@with_settings
def run(
    method: Annotated[
        str | None, typer.Argument(help="A method, such as fedapa or fedapa:mu=0.3; see `fedgraft methods`.")
    ] = None,
    set_: Set = None,
    config: ConfigFile = None,
    recipe: Recipe = None,
    out: Annotated[Path | None, typer.Option(help="Directory of the run.", callback=nameable)] = None,
    report: Report = False,
    track: Track = None,
    as_json: Json = False,
    *,
    settings: dict[str, Any],
) -> None:
    """Run one method and write a run directory."""
    from fedgraft.base.registry import assignments
    from fedgraft.methods import METHODS

    layers = [read(config) if config else {}, settings]
    if method is not None:
        name, params = METHODS.read(method)
        layers.append({"method": name, **({"params": params} if params else {})})
    elif "method" not in layers[0]:
        raise UserError("name a method, such as `fedgraft run fedapa`; `fedgraft methods` lists them")
    if set_:
        layers.append({"params": assignments(set_)})
    full = configure(*layers, recipe_name=recipe)
    names.insist(full)
    _insist_on_trackers(track)

    from fedgraft.runs.run import run as start
    from fedgraft.terminal import Display

    made = METHODS.make(full.method, **full.params)
    directory = out or default_directory(made.name, _short(Path(full.dataset).stem), f"seed{full.seed}")
    console = _console()
    with ExitStack() as stack:
        stack.enter_context(_resumable(directory))
        watchers = [*_trackers(track, stack), stack.enter_context(Display(console))]
        done = start(made, config=full, out=directory, watchers=watchers, progress=False)
    if report:
        typer.echo(f"report: {done.report(directory / 'report.html')}", err=as_json)
    _show(done, as_json)


@app.command(cls=MethodCommand)
@with_settings
def compare(
    methods: Annotated[
        list[str] | None, typer.Argument(help="Methods, such as ditto or fedapa:mu=0.3; `all` means every one.")
    ] = None,
    seeds: Annotated[int, typer.Option(help="How many seeds (partitions, starts, batches).", min=1)] = 3,
    config: ConfigFile = None,
    recipe: Recipe = None,
    out: Annotated[Path | None, typer.Option(help="Directory of the comparison.", callback=nameable)] = None,
    report: Report = False,
    by_client: Annotated[
        bool, typer.Option("--by-client", help="Also say for each client in a sentence whether joining pays.")
    ] = False,
    track: Track = None,
    point: Point = AT[0],
    as_json: Json = False,
    *,
    settings: dict[str, Any],
) -> None:
    """Compare methods on the same data; local and fedavg are always in the table."""
    from fedgraft.methods import METHODS

    full = configure(read(config) if config else {}, settings, recipe_name=recipe)
    named = list(METHODS) if methods == ["all"] else list(methods or [])
    names.insist(full, named)
    _insist_on_trackers(track)

    from fedgraft.data.federation import OWN
    from fedgraft.runs.compare import Agenda, contestants
    from fedgraft.runs.compare import compare as start
    from fedgraft.terminal import Display

    chosen: list[Any] = named
    if not named and "method" in full.model_fields_set:
        chosen = [METHODS.make(full.method, **full.params)]
    agenda = Agenda(full, contestants(chosen), tuple(range(full.seed, full.seed + seeds)))
    split_by = OWN if _at_sites(full.dataset) else full.partition.replace(":", "")
    directory = out or default_directory("compare", _short(Path(full.dataset).stem), _short(split_by))
    console = _console()
    with ExitStack() as stack:
        stack.enter_context(_resumable(directory))
        display = stack.enter_context(Display(console, total_runs=agenda.left(directory)))
        watchers = [*_trackers(track, stack), display]
        done = start(chosen, seeds=seeds, config=full, out=directory, watchers=watchers, progress=False)
    written = done.report(directory / "report.html", point) if report else None
    _show_comparison(done, directory, as_json, point, by_client=by_client)
    if written:
        typer.echo(f"report: {written}", err=as_json)


@app.command()
@partial(with_settings, without=("dataset",))
def recommend(
    data: Annotated[str, typer.Argument(help="A folder or table of sites (docs/data.md), or a dataset.")],
    methods: Annotated[
        list[str] | None,
        typer.Option("--method", help="A method in the race (may be given several times; default: all that fit)."),
    ] = None,
    seeds: Annotated[int, typer.Option(help="How many seeds (starts, batches) the final has.", min=1)] = 3,
    budget_bytes: Annotated[
        int | None, typer.Option(help="What one client may send and receive in a whole run.", min=1)
    ] = None,
    minutes: Annotated[float | None, typer.Option(help="About how long the race may take here.")] = None,
    config: ConfigFile = None,
    recipe: Recipe = None,
    out: Annotated[
        Path | None, typer.Option(help="Directory of the race; an interrupted one goes on.", callback=nameable)
    ] = None,
    track: Track = None,
    as_json: Json = False,
    *,
    settings: dict[str, Any],
) -> None:
    """Say whether joining pays, for whom, with which method and at what cost: a race on validation data."""
    full = configure(read(config) if config else {}, settings, {"dataset": data}, recipe_name=recipe)
    names.insist(full, list(methods or []))
    _insist_on_trackers(track)

    from fedgraft.runs.recommend import recommend as race
    from fedgraft.terminal import Display

    directory = out or default_directory("recommend", _short(Path(data).stem))
    with ExitStack() as stack:
        again = shlex.join(["--out", str(directory)])
        stack.enter_context(_resumable(directory, f"the same command with {again} goes on with it"))
        watchers = [*_trackers(track, stack), stack.enter_context(Display(_console(), total_runs=2))]
        done = race(
            data, methods=methods or None, seeds=seeds, budget_bytes=budget_bytes, minutes=minutes, config=full,
            watchers=watchers, out=directory, progress=False,
        )  # fmt: skip
    typer.echo(json.dumps(done.to_json()) if as_json else str(done))
    typer.echo(f"\nreport: {directory / 'report.html'}", err=as_json)


@app.command()
def resume(
    directory: Annotated[
        Path, typer.Argument(help="Directory of an interrupted run or comparison.", callback=nameable)
    ],
    workers: Annotated[str | None, typer.Option(help="Worker processes; the result does not depend on them.")] = None,
    point: Point = AT[0],
    as_json: Json = False,
) -> None:
    """Go on with an interrupted run or comparison, to the same bits."""
    from fedgraft.runs import compare, run
    from fedgraft.terminal import Display

    changes: dict[str, Any] = {} if workers is None else {"workers": workers}
    if (directory / compare.AGENDA).exists():
        left = compare.Agenda.read(directory, changes).left(directory)
        with _resumable(directory), Display(_console(), total_runs=left) as display:
            comparison = compare.resume(directory, watchers=[display], **changes)
        _show_comparison(comparison, directory, as_json, point)
        return
    with _resumable(directory), Display(_console()) as display:
        done = run.resume(directory, watchers=[display], **changes)
    _show(done, as_json)


@app.command()
def report(
    directories: Annotated[
        list[Path], typer.Argument(help="Directories of runs or comparisons, or folders of them.", callback=nameable)
    ],
    out: Annotated[
        Path | None, typer.Option(help="The HTML file to write (default: DIRECTORY/report.html).", callback=nameable)
    ] = None,
    text: Annotated[bool, typer.Option("--text", help="Print pictures for a terminal instead.")] = False,
    plots: Annotated[
        Path | None, typer.Option(help="Also write every figure as SVG and PNG into this folder.", callback=nameable)
    ] = None,
    point: Point = AT[0],
    metric: Metric = None,
) -> None:
    """Show finished runs as one HTML file: who gains, who learned from whom, and how to repeat it."""
    from fedgraft.runs.reading import read_all

    reading = read_all(directories)
    if text:
        from fedgraft.report.text import show

        show(reading, _console(stderr=False), point, metric)
    if out is not None or not text:
        from fedgraft.report.page import write

        own = directories[0] / "report.html" if len(directories) == 1 else free(Path("report.html"))
        typer.echo(f"report: {write(reading, out or own, point, metric)}")
    if plots is not None:
        from fedgraft.report import figures

        typer.echo(f"figures: {len(figures.write(reading, plots, point, metric))} files in {plots}")


@app.command()
def table(
    directories: Annotated[
        list[Path], typer.Argument(help="Directory of a comparison or of a run, or several.", callback=nameable)
    ],
    form: Annotated[
        str, typer.Option("--format", click_type=click.Choice(("text", "md", "csv", "latex", "json")), help="As what.")
    ] = "text",
    point: Point = AT[0],
    metric: Metric = None,
) -> None:
    """Print the table of finished runs, for a paper or a program."""
    from fedgraft.report.export import Format
    from fedgraft.report.export import table as made
    from fedgraft.runs.reading import read

    typer.echo(made(read(*directories), cast("Format", form), point, metric))


@app.command()
def watch(
    directory: Annotated[
        Path, typer.Argument(help="Directory of a run or of a comparison that is going on.", callback=nameable)
    ],
) -> None:
    """Follow a run from another terminal, until it ends or Ctrl-C."""
    from fedgraft.report.watch import watch as follow

    with suppress(StoppedError):
        follow(directory, _console(stderr=False))


@app.command()
def methods(
    name: Annotated[str | None, typer.Argument(help="A method, for all about it.")] = None, as_json: Json = False
) -> None:
    """List the methods, or tell all about one."""
    from rich.markup import escape

    from fedgraft.base.errors import unknown
    from fedgraft.methods import METHODS, describe
    from fedgraft.terminal import bullets, facts_table

    if name is not None and name not in METHODS:
        raise unknown("method", name, METHODS)
    facts = [describe(METHODS[each]) for each in ([name] if name else METHODS)]
    if as_json:
        typer.echo(json.dumps(facts[0] if name else facts, indent=2))
        return
    console = _console(stderr=False)
    if name is None:
        console.print(facts_table(facts, {"name": "method", "idea": "idea", "citation": "citation"}))
        console.print("`fedgraft methods NAME` tells all about one.", highlight=False)
        return
    this = facts[0]
    mark = "  (a reconstruction: our reading, the full paper was not available)" if this["reconstruction"] else ""
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
        console.print("Readings\n" + bullets(this["readings"], console.width), highlight=False, markup=False)


@app.command()
def datasets(data_dir: DataDir = None, as_json: Json = False) -> None:
    """List the datasets and where they would come from."""
    from fedgraft.data.datasets import catalogue
    from fedgraft.terminal import facts_table

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
    _console(stderr=False).print(facts_table(rows, {"name": "dataset", **columns}))


def _inspect(
    path: Annotated[str, typer.Argument(help="A folder or a table of sites, or the name of a dataset that has sites.")],
    data_dir: DataDir = None,
    as_json: Json = False,
    *,
    settings: dict[str, Any],
) -> None:
    """Show what lies at sites before anything is trained: sites, columns, classes, and what looks suspicious."""
    full = configure({"dataset": path, **settings})
    from fedgraft.data.federation import source_of
    from fedgraft.data.inspection import inspect as look
    from fedgraft.runs.population import reading
    from fedgraft.terminal import show_inspection

    wish = reading(full)
    found = look(source_of(path, wish, data_dir), wish, full.task, full.seed)
    if as_json:
        typer.echo(json.dumps(found.to_json(), indent=2))
    else:
        show_inspection(found, _console(stderr=False))
    if found.problem:
        raise UserError(f"this cannot be trained on yet: {found.problem}")


app.command("inspect")(with_settings(_inspect, without=EVERY.keys() - {*READING, "task", "seed"}))


@app.command()
def partition(
    scheme: Annotated[str, typer.Argument(help="How to split, such as dirichlet:0.1.")] = "dirichlet:0.1",
    dataset: Annotated[str, typer.Option(help="Name of a dataset or an .npz file.")] = "digits",
    clients: Annotated[int, typer.Option(help="Number of clients.", min=1)] = 10,
    seed: Annotated[int, typer.Option(help="Seed of the draw.", min=0)] = 0,
    save: Annotated[Path | None, typer.Option(help="Write the partition to this file.")] = None,
    load: Annotated[Path | None, typer.Option(help="Show a saved partition instead of drawing one.")] = None,
    listing: Annotated[bool, typer.Option("--list", help="List the schemes.")] = False,
    data_dir: DataDir = None,
    as_json: Json = False,
) -> None:
    """Draw a partition and show who holds which classes."""
    import numpy as np
    from rich.markup import escape

    from fedgraft.data import partition as schemes
    from fedgraft.data.datasets import load as load_dataset

    if load is None and not listing:
        schemes.SCHEMES.insist(scheme)
    console = _console(stderr=False)
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
    if load is not None:
        drawn = schemes.Partition.load(load)
    else:
        drawn = schemes.SCHEMES.make(scheme).split(source.y_train, source.y_test, clients, seed)
    if save is not None:
        drawn.save(save)
    if as_json:
        train, test = drawn.counts(np.concatenate([source.y_train, source.y_test]))
        typer.echo(
            json.dumps({"scheme": drawn.scheme, "seed": drawn.seed, "train": train.tolist(), "test": test.tolist()})
        )
        return
    console.print(schemes.draw(drawn, source.y_train, source.y_test, width=console.width))


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
    """Tell what this installation has: versions, cores, kernels."""
    import platform

    import torch

    from fedgraft import kernels
    from fedgraft.engines.local import cores

    facts = {
        "fedgraft": __version__,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "cores": cores(),
        "cuda": torch.cuda.is_available(),
        "kernels": kernels.describe(),
    }
    if as_json:
        typer.echo(json.dumps(facts, indent=2))
        return
    for name, fact in facts.items():
        _console(stderr=False).print(f"{name:9} {fact}", highlight=False, markup=False)


@app.callback(invoke_without_command=True)
def version_flag(
    version: Annotated[bool, typer.Option("--version", help="Print the version and stop.")] = False,
) -> None:
    """Take flags before the command."""
    if version:
        typer.echo(f"fedgraft {__version__}")
        raise typer.Exit


def _insist_on_trackers(texts: Sequence[str] | None) -> None:
    """Answer a misspelt tracker before torch is imported."""
    if texts:
        from fedgraft.trackers import TRACKERS

        for text in texts:
            TRACKERS.insist(text)


def _at_sites(dataset: str) -> bool:
    from fedgraft.data.datasets import lies_at_sites

    return lies_at_sites(dataset)


def _short(text: str) -> str:
    """A part of a directory's name: a file system takes 255 characters for all of it."""
    return text[:60]


def _show(done: Any, as_json: bool) -> None:
    """Print what a run gave."""
    from fedgraft.terminal import run_table

    if as_json:
        typer.echo(json.dumps(done.result))
    else:
        _console(stderr=False).print(run_table(done))
        typer.echo(f"run directory: {done.directory}")


def _show_comparison(done: Any, directory: Path, as_json: bool, point: At, *, by_client: bool = False) -> None:
    """Print what a comparison gave; one that has a run in which no reply was taken is no success."""
    from fedgraft.report.comparison import view
    from fedgraft.runs.run import insist_on_replies

    if as_json:
        typer.echo(json.dumps(done.to_json(point)))
    else:
        _console(stderr=False).print(view(done, point))
        if by_client:
            from fedgraft.report import sentences

            _console(stderr=False).print("\n".join(sentences.by_client(done, point)), highlight=False, markup=False)
        typer.echo(f"comparison directory: {directory}")
    for each in done.runs.values():
        for run in each:
            insist_on_replies(run)


def _trackers(kinds: Sequence[str] | None, stack: ExitStack) -> list[Any]:
    if not kinds:
        return []
    from fedgraft.trackers import tracker

    made = [tracker(kind) for kind in dict.fromkeys(kinds)]
    return [stack.enter_context(each) if isinstance(each, AbstractContextManager) else each for each in made]


def _console(*, stderr: bool = True) -> Any:
    return characters.console(stderr=stderr)
