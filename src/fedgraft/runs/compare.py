"""Compare methods on the same federations: the same partitions, starts, batches and participants for each seed."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from fedgraft.base import disk
from fedgraft.base.errors import UserError
from fedgraft.core.method import Method
from fedgraft.data.federation import Federation
from fedgraft.runs import agenda as agendas
from fedgraft.runs import crew, reading, results
from fedgraft.runs.agenda import Agenda, Entry, Worker, complete, differences
from fedgraft.runs.comparison import Comparison
from fedgraft.runs.conducting import Watcher
from fedgraft.runs.config import RunConfig
from fedgraft.runs.directory import COMPARISON
from fedgraft.runs.population import Model
from fedgraft.runs.question import Question, asked, pose
from fedgraft.runs.run import Run, finished
from fedgraft.runs.sweep import Grid, Sweep

KIND = "comparison"


@dataclass(frozen=True)
class Labour:
    """How the work is done: where it is written, who watches, how many runs at once."""

    place: Path | None = None
    watchers: Sequence[Watcher] = ()
    parallel: crew.Parallel = 1
    fresh: bool = False
    changes: Mapping[str, Any] = field(default_factory=dict)

    def expect(self, runs: int) -> None:
        """Tell those who watch how many runs there are to come."""
        for watcher in self.watchers:
            if hasattr(watcher, "expect"):
                watcher.expect(runs)


def compare(
    chosen: str | Method | Iterable[str | Method] = (),
    *,
    seeds: int = 3,
    config: RunConfig | None = None,
    recipe: str | None = None,
    federation: Federation | Callable[[int], Federation] | None = None,
    model: Model | str | None = None,
    watchers: Sequence[Watcher] = (),
    out: str | Path | None = None,
    tune: int | None = None,
    parallel: crew.Parallel = 1,
    fresh: bool = False,
    progress: bool | None = None,
    **settings: Any,
) -> Comparison[Run]:
    """Run every chosen method, and local and fedavg, with the same data, initial weights and batches.

    Args:
        chosen: methods by name, as texts with settings (``"fedapa:mu=0.3"``) or as objects.
        seeds: how many; each draws a new partition, new initial weights and new batches, the same for all methods.
        config: settings as an object, which ``settings`` override.
        recipe: a paper's settings by name, which everything else overrides.
        federation: your own data, or a function that makes them for a seed.
        model: a name, a module or a function that builds one.
        watchers: objects that are called after every round.
        out: the comparison's directory. If it holds the same comparison, interrupted or with fewer methods or seeds,
            that one is continued. Other processes may work on it at the same time (`fedgraft work`).
        tune: how many trials each method has, local and fedavg too, to find its learning rate and hyper-parameters
            first, on validation data of another seed (:func:`tune`); without, all have the same rate and their
            defaults.
        parallel: how many runs at once; ``"auto"`` measures whether several are faster.
        fresh: whether to compute again what was computed before.
        progress: whether to show progress and, at the end, the table (default: in a terminal and in a notebook).
        **settings: those of :func:`run`.

    Returns:
        All runs side by side: tables, tests, report.
    """
    from fedgraft.report.comparison import view
    from fedgraft.terminal import watched

    question = pose(chosen, Grid({}), seeds, config, recipe, federation, model, settings)
    labour = _labour(out, watchers, parallel, fresh, question.objects)
    return watched(
        lambda display: _carry_out(question, replace(labour, watchers=[*watchers, *display]), tune)[""],
        view, progress=progress,
    )  # fmt: skip


def sweep(
    chosen: str | Method | Iterable[str | Method],
    over: Mapping[str, Sequence[Any]],
    *,
    seeds: int = 3,
    config: RunConfig | None = None,
    recipe: str | None = None,
    federation: Federation | Callable[[int], Federation] | None = None,
    model: Model | str | None = None,
    watchers: Sequence[Watcher] = (),
    out: str | Path | None = None,
    parallel: crew.Parallel = 1,
    fresh: bool = False,
    progress: bool | None = None,
    **settings: Any,
) -> Sweep:
    """Compare methods under every combination of settings.

    Args:
        chosen: methods, as in :func:`compare`.
        over: values by name: ``{"lr": [0.01, 0.1], "fedapa.mu": [0.3, 0.5]}``. Those of a method's hyper-parameter make
            variants of it; those of a run's setting make a comparison each.
        seeds: how many for each combination.
        config: settings as an object, which ``settings`` override.
        recipe: a paper's settings by name, which everything else overrides.
        federation: your own data, or a function that makes them for a seed.
        model: a name, a module or a function that builds one.
        watchers: objects that are called after every round.
        out: the directory of all; an interrupted one is continued, as in :func:`compare`.
        parallel: how many runs at once, or ``"auto"``.
        fresh: whether to compute again what was computed before.
        progress: whether to show progress (default: in a terminal and in a notebook).
        **settings: those of :func:`run`.

    Returns:
        A comparison for each setting.
    """
    from fedgraft.report.sweep import view
    from fedgraft.terminal import watched

    question = pose(chosen, Grid.of(over), seeds, config, recipe, federation, model, settings)
    labour = _labour(out, watchers, parallel, fresh, question.objects)
    return watched(
        lambda display: Sweep(_carry_out(question, replace(labour, watchers=[*watchers, *display]))),
        view, progress=progress,
    )  # fmt: skip


def write_down(question: Question, place: Path) -> Agenda:
    """Write the runs of a comparison or sweep down, for others to do; what cannot work is refused before.

    Data that have to be downloaded are, here: where the runs are done there may be no internet.
    """
    agenda = planned(question, place)
    for entry in agenda.entries[: len(question.members)]:
        question.planner(entry)
    _claim(agenda, question)
    return agenda


def planned(question: Question, place: Path) -> Agenda:
    """Say which runs answer a question; nothing is written."""
    return Agenda(place, question.entries(), KIND, asked(question.members, question.seeds), question.objects)


def _labour(
    out: str | Path | None, watchers: Sequence[Watcher], parallel: crew.Parallel, fresh: bool, objects: bool
) -> Labour:
    crew.insist_on_parallel(parallel)
    if parallel != 1 and (objects or out is None):
        raise UserError(
            "several runs at once are processes of their own, which need a directory (out), and cannot have data, a "
            "model or a method from Python: name them by files, or leave parallel out"
        )
    return Labour(None if out is None else Path(out), watchers, parallel, fresh)


def resume(
    place: str | Path,
    *,
    watchers: Sequence[Watcher] = (),
    parallel: crew.Parallel = 1,
    fresh: bool = False,
    **changes: Any,
) -> Sweep:
    """Go on with an interrupted comparison or sweep where it was, to the same bits; runs that failed are tried again.

    ``changes`` may set what is the machine's: ``workers`` and so on. A comparison that was given data or a model from
    Python goes on when :func:`compare` is called as before, with the same ``out``.
    """
    crew.insist_on_parallel(parallel)
    labour = Labour(Path(place), watchers, parallel, fresh, changes)
    agenda = Agenda.read(Path(place))
    if agenda.kind != KIND:
        raise UserError(f"{place} holds no comparison, but {agenda.kind}; `fedgraft work` goes on with its runs")
    worker = Worker(agenda.place, watchers=watchers, changes=changes, fresh=fresh, keep=True)
    if _complete(agenda):
        raise UserError(f"the comparison in {place} is complete, there is nothing left to do")
    return Sweep(_work(agenda, worker, labour))


def conclude(agenda: Agenda) -> None:
    """Write the tables, if it is a comparison all of whose runs are done, by whomever."""
    if agenda.kind != KIND or agenda.states()["done"] < len(agenda.entries):
        return
    for name, entries in grouped(agenda).items():
        runs: dict[str, list[Any]] = {}
        for entry in entries:
            runs.setdefault(entry.label, []).append(reading.read_run(agenda.folder(entry)))
        _write(agenda, name, Comparison(_told(next(iter(runs.values()))[0].config), runs))


def grouped(agenda: Agenda) -> dict[str, list[Entry]]:
    """The runs of each comparison in an agenda, by the settings that make it another."""
    found: dict[str, list[Entry]] = {}
    for entry in agenda.entries:
        found.setdefault(entry.directory.rpartition("/")[0], []).append(entry)
    return found


def _carry_out(question: Question, labour: Labour, tune: int | None = None) -> dict[str, Comparison[Run]]:
    """Do what is left; what cannot work is refused before anything is written."""
    place = labour.place
    if tune is not None:
        question = _tuned(question, labour, tune)
    if place is None:
        entries = question.entries()
        labour.expect(len(entries))
        return _gathered(
            Agenda(Path(), entries),
            lambda entry: complete(question.planner(entry), None, labour.watchers),
        )
    found = write_down(question, place)
    worker = Worker(place, question.planner, labour.watchers, fresh=labour.fresh, keep=True)
    return _work(found, worker, labour)


def _tuned(question: Question, labour: Labour, budget: int) -> Question:
    """Tune every method first, where the comparison has its directory."""
    from fedgraft.runs.tune import settled

    if labour.place is None:
        raise UserError("a comparison that is tuned keeps its trials: name a directory for it (out)")
    return settled(
        question, budget, labour.place, watchers=labour.watchers, parallel=labour.parallel, fresh=labour.fresh
    )


def _claim(agenda: Agenda, question: Question) -> None:
    """Write an agenda down: in a fresh directory, or in one with this comparison or a part of it."""
    place = agenda.place
    if (place / agendas.FILE).exists():
        there = Agenda.read(place)
        lost = agenda.missing(there)
        differing = differences(_facts(there), _facts(agenda))
        if there.kind != KIND or lost or there.objects != agenda.objects:
            which = ", ".join(differing) or "objects differ"
            raise UserError(f"{place} holds another comparison ({which}); name another directory with --out")
        if not differing and _complete(there):
            raise UserError(f"the comparison in {place} is complete, there is nothing left to do")
        for entry in agenda.entries[: len(question.members)]:
            if (agenda.folder(entry) / "config.toml").exists():
                run = question.planner(entry)
                run.identity.insist(agenda.folder(entry), run.federation.names)
        if differing:  # its tables tell of fewer runs; without them, some are missing
            for name in grouped(agenda):
                (place / name / COMPARISON).unlink(missing_ok=True)
    agenda.write()


def _facts(agenda: Agenda) -> dict[str, Any]:
    """What tells two comparisons apart, for people."""
    swept = sorted(grouped(agenda))
    return {**agenda.asked, "config": {**agenda.common, "method": "", "params": {}, "seed": 0}, "sweep": swept}


def _complete(agenda: Agenda) -> bool:
    """Whether all tables and all runs are there; a run that cannot be read is refused, as its tables would be."""
    tables = all((agenda.place / name / COMPARISON).exists() for name in grouped(agenda))
    if not tables or agenda.states()["done"] < len(agenda.entries):
        return False
    for entry in agenda.entries:
        reading.read_run(agenda.folder(entry))
    return True


def _work(agenda: Agenda, worker: Worker, labour: Labour) -> dict[str, Comparison[Run]]:
    """Work on an agenda until all is done, alone or with a crew, and put together what there is."""
    agenda.forgive()
    labour.expect(len(agenda.left()))
    shifts = crew.shifts(labour.parallel, agenda, worker.planner)
    if shifts.runs > 1:
        tell = [each.survey for each in labour.watchers if hasattr(each, "survey")]
        with crew.Crew(agenda.place, shifts, labour.fresh) as hands:
            hands.work(tell)
    worker.work()  # what a crew left: all of it, where there is none
    agenda.insist_on_success(worker.error)
    found = _gathered(
        agenda,
        lambda entry: worker.done.get(entry.directory) or finished(worker.planner(entry), agenda.folder(entry)),
    )
    for name, comparison in found.items():
        _write(agenda, name, comparison)
    return found


def _gathered(agenda: Agenda, run: Callable[[Entry], Run]) -> dict[str, Comparison[Run]]:
    """Put the runs of an agenda together, each comparison by itself."""
    found: dict[str, Comparison[Run]] = {}
    for name, entries in grouped(agenda).items():
        runs: dict[str, list[Run]] = {}
        for entry in entries:
            runs.setdefault(entry.label, []).append(run(entry))
        found[name] = Comparison(_told(next(iter(runs.values()))[0].config), runs)
    return found


def _told(config: RunConfig) -> RunConfig:
    """The settings of a comparison: those of its runs, whatever their methods and seeds."""
    usual = RunConfig.model_fields["method"].default
    return config.model_copy(update={"method": usual, "params": {}})


def _write(agenda: Agenda, name: str, comparison: Comparison[Any]) -> None:
    with disk.writing(agenda.place):
        results.write_json(agenda.place / name / COMPARISON, comparison.to_json())
