"""Commands that train: run, compare, recommend; resume goes on with what was interrupted, work helps with many runs."""

import json
import shlex
from collections.abc import Sequence
from contextlib import AbstractContextManager, ExitStack
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

from fedgraft.base import characters
from fedgraft.base.errors import UserError
from fedgraft.cli.app import app, resumable
from fedgraft.flags import (
    ConfigFile,
    DryRun,
    Fresh,
    Json,
    MethodCommand,
    Parallel,
    Point,
    Recipe,
    Report,
    Set,
    Slurm,
    Track,
    Workers,
    default_directory,
    nameable,
    with_settings,
)
from fedgraft.runs import names
from fedgraft.runs.config import AT, At, configure, read


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
    console = characters.console()
    with ExitStack() as stack:
        stack.enter_context(resumable(directory))
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
    seeds: Annotated[int, typer.Option(help="How many seeds (partitions, initial weights, batches).", min=1)] = 3,
    config: ConfigFile = None,
    recipe: Recipe = None,
    out: Annotated[Path | None, typer.Option(help="Directory of the comparison.", callback=nameable)] = None,
    report: Report = False,
    by_client: Annotated[
        bool, typer.Option("--by-client", help="Also print for each client whether joining pays.")
    ] = False,
    sweep: Annotated[
        list[str] | None,
        typer.Option(
            help="Values to try of a setting (lr=0.01,0.1) or of a hyper-parameter (fedapa.mu=0.3,0.5); may be given "
            "several times, and every combination is run.",
            metavar="NAME=VALUES",
        ),
    ] = None,
    tune: Annotated[
        int | None,
        typer.Option(
            help="Tune every method first, with this many trials each, on validation data of another seed "
            "(docs/clusters.md).",
            min=1,
            metavar="TRIALS",
        ),
    ] = None,
    parallel: Parallel = "1",
    later: Annotated[
        bool, typer.Option("--later", help="Only write the list of runs; `fedgraft work` does them.")
    ] = False,
    slurm: Slurm = None,
    dry_run: DryRun = False,
    fresh: Fresh = False,
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
    _insist_on_slurm(slurm, dry_run)

    from fedgraft.data.federation import OWN
    from fedgraft.runs import compare as comparing
    from fedgraft.runs.question import pose
    from fedgraft.runs.sweep import Grid, Sweep
    from fedgraft.terminal import Display

    chosen: list[Any] = named
    if not named and "method" in full.model_fields_set:
        chosen = [METHODS.make(full.method, **full.params)]
    over, at_once = Grid.typed(sweep or ()).values, _at_once(parallel, track)
    split_by = OWN if _at_sites(full.dataset) else full.partition.replace(":", "")
    what = "sweep" if over else "compare"
    directory = out or default_directory(what, _short(Path(full.dataset).stem), _short(split_by))
    if tune and (over or later or slurm):
        other = "--sweep" if over else "--later" if later else "--slurm"
        raise UserError(f"--tune finds out by trials which runs there are, and {other} has to know before: choose one")
    if later or slurm:
        question = pose(chosen, Grid.of(over), seeds, full, None, None, None, {})
        agenda = (comparing.planned if dry_run else comparing.write_down)(question, directory)
        if slurm:
            _hand_in(agenda, slurm, dry_run, fresh)
        else:
            typer.echo(f"{len(agenda.entries)} runs: {shlex.join(['fedgraft', 'work', str(directory)])}")
        return
    with ExitStack() as stack:
        again = f"the same command with {shlex.join(['--out', str(directory)])} goes on with it"
        stack.enter_context(resumable(directory, again if tune else None))
        watchers = [*_trackers(track, stack), stack.enter_context(Display(characters.console()))]
        how: dict[str, Any] = {
            "seeds": seeds, "config": full, "out": directory, "watchers": watchers, "parallel": at_once, "fresh": fresh,
            "progress": False,
        }  # fmt: skip
        done = (
            Sweep({"": comparing.compare(chosen, tune=tune, **how)}) if tune else comparing.sweep(chosen, over, **how)
        )
    written = done.report(directory / "report.html", point) if report else None
    _show_comparisons(done, directory, as_json, point, by_client=by_client)
    if written:
        typer.echo(f"report: {written}", err=as_json)


@app.command()
@partial(with_settings, without=("dataset",))
def recommend(
    data: Annotated[str, typer.Argument(help="A folder or table of sites (docs/data.md), or a dataset.")],
    methods: Annotated[
        list[str] | None,
        typer.Option("--method", help="A method to try (may be given several times; default: all that fit)."),
    ] = None,
    seeds: Annotated[
        int, typer.Option(help="How many seeds (initial weights, batches) the final comparison has.", min=1)
    ] = 3,
    budget_bytes: Annotated[
        int | None, typer.Option(help="Bytes that one client may send and receive in a whole run.", min=1)
    ] = None,
    minutes: Annotated[
        float | None, typer.Option(help="About how many minutes all runs together may take on this machine.")
    ] = None,
    config: ConfigFile = None,
    recipe: Recipe = None,
    out: Annotated[
        Path | None,
        typer.Option(help="Directory of the results; an interrupted search is continued.", callback=nameable),
    ] = None,
    track: Track = None,
    as_json: Json = False,
    *,
    settings: dict[str, Any],
) -> None:
    """Say whether joining pays, for whom, with which method and at what cost; methods are chosen on validation data."""
    full = configure(read(config) if config else {}, settings, {"dataset": data}, recipe_name=recipe)
    names.insist(full, list(methods or []))
    _insist_on_trackers(track)

    from fedgraft.runs.recommend import recommend as race
    from fedgraft.terminal import Display

    directory = out or default_directory("recommend", _short(Path(data).stem))
    with ExitStack() as stack:
        again = shlex.join(["--out", str(directory)])
        stack.enter_context(resumable(directory, f"the same command with {again} goes on with it"))
        watchers = [
            *_trackers(track, stack),
            stack.enter_context(Display(characters.console(), total_runs=2)),
        ]
        done = race(
            data, methods=methods or None, seeds=seeds, budget_bytes=budget_bytes, minutes=minutes, config=full,
            watchers=watchers, out=directory, progress=False,
        )  # fmt: skip
    typer.echo(json.dumps(done.to_json()) if as_json else str(done))
    typer.echo(f"\nreport: {directory / 'report.html'}", err=as_json)


@app.command()
def resume(
    directory: Annotated[
        Path, typer.Argument(help="Directory of an interrupted run, comparison or sweep.", callback=nameable)
    ],
    workers: Workers = None,
    parallel: Parallel = "1",
    fresh: Fresh = False,
    point: Point = AT[0],
    as_json: Json = False,
) -> None:
    """Continue an interrupted run or comparison, with bit-identical results; runs that failed are tried again."""
    from fedgraft.runs import agenda, compare, run
    from fedgraft.terminal import Display

    changes: dict[str, Any] = {} if workers is None else {"workers": workers}
    with resumable(directory), Display(characters.console()) as display:
        if (directory / agenda.FILE).exists():
            at_once = _at_once(parallel)
            done = compare.resume(directory, watchers=[display], parallel=at_once, fresh=fresh, **changes)
        else:
            alone = run.resume(directory, watchers=[display], **changes)
    if (directory / agenda.FILE).exists():
        _show_comparisons(done, directory, as_json, point)
    else:
        _show(alone, as_json)


@app.command()
def work(
    directory: Annotated[Path, typer.Argument(help="Directory of a comparison or sweep.", callback=nameable)],
    workers: Workers = None,
    wait: Annotated[bool, typer.Option(help="Wait until the runs of other processes are finished too.")] = True,
    retry: Annotated[bool, typer.Option("--retry", help="Try runs again that failed.")] = False,
    slurm: Slurm = None,
    dry_run: DryRun = False,
    fresh: Fresh = False,
    quiet: Annotated[bool, typer.Option("--quiet", help="Show no progress.")] = False,
) -> None:
    """Help with the runs of a comparison or sweep, together with other processes or machines (docs/clusters.md)."""
    from fedgraft.runs import agenda, compare
    from fedgraft.terminal import Display

    if (directory / "board.toml").exists():
        raise UserError(f"{directory} is a board: `fedgraft board run --out {directory}` helps with it")
    if not (directory / agenda.FILE).exists():
        raise UserError(f"{directory} has no {agenda.FILE}: it is not the directory of a comparison or sweep")
    _insist_on_slurm(slurm, dry_run)
    if slurm:
        there = agenda.Agenda.read(directory)
        if retry and not dry_run:
            there.forgive()
        _hand_in(there, slurm, dry_run, fresh)
        return
    changes: dict[str, Any] = {} if workers is None else {"workers": workers}
    with ExitStack() as stack:
        stack.enter_context(resumable(directory, shlex.join(["fedgraft", "work", str(directory)]) + " goes on with it"))
        watchers = [] if quiet else [stack.enter_context(Display(characters.console()))]
        worker = agenda.Worker(directory, watchers=watchers, changes=changes, fresh=fresh)
        for watcher in watchers:
            watcher.expect(len(worker.agenda.left()))
        if retry:
            worker.agenda.forgive()
        worker.work(wait=wait)
    there = worker.agenda
    counted = there.states()
    compare.conclude(there)
    if not quiet:
        typer.echo(", ".join(f"{count} {state}" for state, count in counted.items()) + f": {directory}")
        there.insist_on_success()


def _at_once(text: str, track: Sequence[str] | None = None) -> Any:
    """Read how many runs are done at once."""
    if text != "auto" and not (text.isdecimal() and int(text) > 0):
        raise UserError(f"--parallel is a number of runs at once, or auto, not {text!r}")
    if text != "1" and track:
        raise UserError("--track is for runs in this process: leave --parallel out, or read the directories afterwards")
    return text if text == "auto" else int(text)


def _insist_on_slurm(words: str | None, dry_run: bool) -> None:
    """Answer what Slurm cannot be asked before anything is written."""
    if words is not None:
        from fedgraft.runs.slurm import Order

        Order.typed(words)
    elif dry_run:
        raise UserError("--dry-run is for --slurm")


def _hand_in(agenda: Any, words: str, dry_run: bool, fresh: bool) -> None:
    """Have Slurm do what is left of the runs, or show what it would be given."""
    from fedgraft.runs.slurm import Order

    order, place = Order.typed(words), shlex.quote(str(agenda.place))
    if dry_run:
        typer.echo(order.script(agenda))
        return
    number = order.submit(agenda, fresh=fresh)
    typer.echo(f"{len(agenda.left())} runs in Slurm's array {number}: `fedgraft watch {place}` shows how far they are")
    typer.echo(f"`fedgraft table {place}` has the figures when all are done", err=True)


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
        characters.console(stderr=False).print(run_table(done))
        typer.echo(f"run directory: {done.directory}")


def _show_comparisons(done: Any, directory: Path, as_json: bool, point: At, *, by_client: bool = False) -> None:
    """Print what a comparison or a sweep gave; one that has a run in which no reply was taken is no success."""
    from fedgraft.report.sweep import view
    from fedgraft.runs.run import insist_on_replies

    found = done.comparisons
    if as_json:
        typer.echo(json.dumps(done.to_json(point) if len(found) > 1 else found[next(iter(found))].to_json(point)))
    else:
        characters.console(stderr=False).print(view(done, point))
        for each in found.values() if by_client else ():
            from fedgraft.report import sentences

            characters.console(stderr=False).print(
                "\n".join(sentences.by_client(each, point)), highlight=False, markup=False
            )
        typer.echo(f"{'sweep' if len(found) > 1 else 'comparison'} directory: {directory}")
    for comparison in found.values():
        for each in comparison.runs.values():
            for run in each:
                insist_on_replies(run)


def _trackers(kinds: Sequence[str] | None, stack: ExitStack) -> list[Any]:
    if not kinds:
        return []
    from fedgraft.trackers import tracker

    made = [tracker(kind) for kind in dict.fromkeys(kinds)]
    return [stack.enter_context(each) if isinstance(each, AbstractContextManager) else each for each in made]
