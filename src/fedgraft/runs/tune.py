"""Search the hyper-parameters of methods and the run's learning rate, on validation data alone and with equal budgets.

A tuning is an agenda: every trial is a run, which anybody may help with (`fedgraft work`). The first trial of a method
has its defaults; Optuna's sampler proposes the others, some at a time, from the ranges that `hyper()` declares. All
trials have a quarter of the rounds, the better half goes on to half of them, and the better half of those to all. What
judges is the client mean of the leading metric on validation data, at the method's own point. The test samples are
taken away before a trial is planned, so that nobody can look at them. What is proposed depends on the seed and on
what the trials before it gave, not on who computed them: an interrupted tuning makes the same proposals again, and
finds their runs.
"""

import dataclasses
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fedgraft.base.errors import UserError
from fedgraft.core.hyper import Range, search_range
from fedgraft.core.method import Method
from fedgraft.methods import METHODS
from fedgraft.runs import crew, directory, names, population, reading, results, table
from fedgraft.runs.agenda import BLIND, FILE, Agenda, Entry, Planner, Worker
from fedgraft.runs.conducting import Watcher
from fedgraft.runs.config import RunConfig, configure, seeds_from
from fedgraft.runs.directory import folder_name
from fedgraft.runs.metric import MetricInfo
from fedgraft.runs.question import Question, contestants

PARTS = (1 / 4, 1 / 2, 1)
"""Of the rounds, in each rung; half of the trials go on from one to the next."""
BATCH = 4
"""Trials that are proposed at a time: as many can be computed at once, and the next ones learn from them."""
VALIDATION = 0.2
"""The share of training samples that is put aside, where nobody says another."""
DRAW = 1000
"""How far the seed of the draw that a comparison is tuned on is from its first: no other seed is that of a run."""
DIGITS = 4
"""To how many a proposal is rounded: who types what was found runs the very same."""
RATE = 20.0
"""The learning rate is searched from the run's divided by this to the run's times this."""
TRIALS = "trials.json"


@dataclass
class Trial:
    """One proposal: the values that are tried, and what they gave in each rung."""

    number: int
    values: dict[str, float | int]
    scores: list[float] = field(default_factory=list)
    """The figure on validation data by rung, as far as it went."""
    failure: str | None = None

    def to_json(self) -> dict[str, Any]:
        return {**dataclasses.asdict(self), "scores": [None if math.isnan(s) else s for s in self.scores]}


@dataclass(frozen=True)
class Tuned:
    """What the search found for one method."""

    method: str
    best: Trial
    trials: Sequence[Trial]
    metric: MetricInfo

    @property
    def text(self) -> str:
        """The method as it is written on a command line."""
        values = ",".join(f"{name}={value:.6g}" for name, value in self.best.values.items() if name != "lr")
        return self.method + (f":{values}" if values else "")

    @property
    def command(self) -> str:
        """The words that run it with what was found."""
        return f"{self.text} --lr {self.best.values['lr']:.6g}"


def ranges(method: Method, config: RunConfig) -> dict[str, Range]:
    """What is searched for a method, by name: the run's learning rate, and its own numbers that have a range."""
    rate = config.training.lr
    found = {"lr": Range(rate / RATE, rate * RATE, log=True)}
    for each in names.searched(method):
        if (span := search_range(each)) is not None and getattr(method, each.name) is not None:
            found[each.name] = span
    return found


def tune(
    methods: str | Method | Iterable[str | Method],
    *,
    budget: int = 30,
    config: RunConfig | None = None,
    recipe: str | None = None,
    out: str | Path,
    watchers: Sequence[Watcher] = (),
    parallel: crew.Parallel = 1,
    fresh: bool = False,
    **settings: Any,
) -> list[Tuned]:
    """Search each method's hyper-parameters and the learning rate, on validation data only; needs the extra ``tune``.

    Args:
        methods: those to tune, by name or as objects whose class is in a file.
        budget: trials for each method.
        config: settings as an object, which ``settings`` override.
        recipe: a paper's settings by name, which everything else overrides.
        out: the tuning's directory. If it holds the same tuning, interrupted, that one is continued.
        watchers: objects that are called after every round.
        parallel: how many runs at once, or ``"auto"``.
        fresh: whether to compute again what was computed before.
        **settings: those of :func:`fedgraft.run`; by default a fifth of the training samples is for validation.

    Returns:
        For each method its best trial, all its trials, and the command to run it with (``.command``).
    """
    if not isinstance(budget, int) or budget < 1:
        raise UserError(f"a budget is a number of trials for each method, not {budget!r}")
    crew.insist_on_parallel(parallel)
    _optuna()
    full = configure({"validation": VALIDATION}, config or {}, settings, recipe_name=recipe)
    chosen = [methods] if isinstance(methods, str | Method) else list(methods)
    asked = {METHODS.label(METHODS.make(each) if isinstance(each, str) else each) for each in chosen}
    members = {label: each for label, each in contestants(chosen).items() if label in asked}
    if not members or not all(map(METHODS.findable, members.values())):
        raise UserError("name the methods to tune; one of your own has to lie in a file (./mine.py:Mine)")
    search = _Search(Path(out), full, members, budget, watchers, parallel, fresh)
    return [search.method(label) for label in members]


def settled(question: Question, budget: int, place: Path, **how: Any) -> Question:
    """Let every method of a comparison be tuned, each with as many trials, on a draw that none is measured on.

    Nobody is held out there. ``how`` says how the trials are run, as in :func:`tune`; ``place`` is the comparison's
    directory, which gets a folder ``tuning`` with one for each method.
    """
    if question.objects:
        raise UserError(
            "trials are run by their settings: to tune, name data, model and methods, by files if they are yours"
        )
    if list(question.settings) != [""]:
        raise UserError("a sweep tries the values that it is told, and tuning looks for them: leave one of them out")
    config = question.settings[""].model_copy(update={"tuned": budget})
    if not config.validation:
        config = config.model_copy(update={"validation": VALIDATION})
    aside = seeds_from(config.seed, 1 + DRAW)[-1]
    own = {"seed": aside, "hold_out": None, "evaluate_every": config.rounds, "tuned": None}
    asked = {names.label(method, budget): method for method in question.members.values()}
    if len(asked) < len(question.members):
        raise UserError(
            f"{', '.join(question.members)}: two differ in nothing but what tuning searches; name one of them"
        )
    if not (place / FILE).exists():
        directory.fresh(place)
    members: dict[str, Method] = {}
    rates: dict[str, float] = {}
    for label, method in asked.items():
        home = place / directory.TUNING / folder_name(label)
        [found] = tune(method, budget=budget, config=config.model_copy(update=own), out=home, **how)
        chosen = dict(found.best.values)
        rates[label] = chosen.pop("lr")
        members[label] = dataclasses.replace(method, **chosen)
    planner = Planner(members)
    return dataclasses.replace(question, settings={"": config}, members=members, rates=rates, planner=planner)


@dataclass
class _Search:
    """A tuning at work."""

    place: Path
    config: RunConfig
    members: Mapping[str, Method]
    budget: int
    watchers: Sequence[Watcher]
    parallel: crew.Parallel
    fresh: bool
    entries: list[Entry] = field(default_factory=list)
    found: dict[str, list[Trial]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        planner = Planner(blind=True)
        fed = planner.drawn(self.config)
        if not any(len(client.validation) for client in fed.clients):
            raise UserError("no client has validation samples to tune by: give --validation a larger share")
        self.config = population.settled(self.config, fed, given=False)
        self.metric = MetricInfo.of(fed.task.judges(self.config.metrics)[0])
        for label, method in self.members.items():
            planner(self._entry(label, Trial(0, self._usual(method)), 0))  # what cannot work is refused before
        self.asked = {"budget": self.budget, "methods": [{"name": label} for label in self.members]}
        if (self.place / FILE).exists():
            self._go_on(Agenda.read(self.place))

    def _go_on(self, there: Agenda) -> None:
        """Take up an interrupted tuning; refuse another one."""
        label, method = next(iter(self.members.items()))
        mine = self._entry(label, Trial(0, self._usual(method)), 0)
        same = there.entries and there.entries[0] == dataclasses.replace(mine, settings=there.entries[0].settings)
        if there.kind != BLIND or there.asked != self.asked or not same or (
            there.entries[0].decided_by != mine.decided_by
        ):  # fmt: skip
            raise UserError(f"{self.place} holds something else than this tuning; name another directory with --out")
        self.entries = list(there.entries)
        there.forgive()

    def method(self, label: str) -> Tuned:
        """Search for one method: proposals in batches, then the better half to longer runs, twice."""
        trials = self.found[label] = []
        for batch in self._proposals(label):
            trials += batch
            self._run(label, batch, 0)
        going = trials
        for rung in range(1, len(PARTS)):
            going = self._ranked(going)[: max(1, math.ceil(len(going) / 2))]
            self._run(label, going, rung)
        best = self._ranked(going)
        if not best:
            raise UserError(f"every trial of {label} failed; the first: {trials[0].failure}")
        return Tuned(label, best[0], trials, self.metric)

    def _proposals(self, label: str) -> Iterator[list[Trial]]:
        """Ask Optuna for some trials, let them be run, tell it what they gave, and again."""
        optuna = _optuna()
        method = self.members[label]
        spans = ranges(method, self.config)
        space = {name: _distribution(span) for name, span in spans.items()}
        study = optuna.create_study(
            direction="maximize", sampler=optuna.samplers.TPESampler(seed=self.config.seed, constant_liar=True)
        )
        usual = self._usual(method)
        study.enqueue_trial({name: spans[name].within(value) for name, value in usual.items()})
        numbers = range(self.budget)
        for start in range(0, self.budget, BATCH):
            asked = [study.ask(space) for _ in numbers[start : start + BATCH]]
            batch = [Trial(each.number, _short(each.params, spans) if each.number else dict(usual)) for each in asked]
            yield batch
            for trial, each in zip(batch, asked, strict=True):
                known = trial.failure is None and not math.isnan(trial.scores[0])
                state = optuna.trial.TrialState
                study.tell(
                    each, self.metric.worth(trial.scores[0]) if known else None,
                    state=state.COMPLETE if known else state.FAIL,
                )  # fmt: skip

    def _usual(self, method: Method) -> dict[str, float | int]:
        """What would be without a search."""
        own = {name: getattr(method, name) for name in ranges(method, self.config) if name != "lr"}
        return {"lr": self.config.training.lr, **own}

    def _entry(self, label: str, trial: Trial, rung: int) -> Entry:
        """The run of a trial in a rung."""
        method = self.members[label]
        rounds = max(1, math.ceil(PARTS[rung] * self.config.rounds))
        params = {**method.parameters(), **{name: value for name, value in trial.values.items() if name != "lr"}}
        known = {"method": METHODS.named(method), "params": params, "rounds": rounds}
        training = self.config.training.but(lr=trial.values["lr"])
        config = self.config.model_copy(update={**known, "training": training})
        return Entry.of(f"{folder_name(label)}/trial-{trial.number:03d}-rung-{rung + 1}", config, label)

    def _run(self, label: str, trials: Sequence[Trial], rung: int) -> None:
        """Have runs computed, by whomever, and read what they gave."""
        wanted = [self._entry(label, trial, rung) for trial in trials]
        known = {entry.directory for entry in self.entries}
        self.entries += [entry for entry in wanted if entry.directory not in known]
        agenda = Agenda(self.place, tuple(self.entries), BLIND, self.asked)
        agenda.write()
        worker = Worker(self.place, Planner(blind=True), self.watchers, fresh=self.fresh)
        shifts = crew.shifts(self.parallel, agenda, worker.planner)
        if shifts.runs > 1 and len(agenda.left()) > 1:
            with crew.Crew(self.place, shifts, self.fresh) as hands:
                hands.work([each.survey for each in self.watchers if hasattr(each, "survey")])
        worker.work()
        for trial, entry in zip(trials, wanted, strict=True):
            trial.failure = agenda.failure(entry)
            if trial.failure is None:
                result = reading.read_run(agenda.folder(entry)).facts
                trial.scores.append(table.on_validation(result, self.metric, "own"))
        self._write()

    def _ranked(self, trials: Sequence[Trial]) -> list[Trial]:
        """Those that gave a figure in the last rung, the best first; the earlier proposal wins a tie."""
        known = [trial for trial in trials if trial.failure is None and not math.isnan(trial.scores[-1])]
        return sorted(known, key=lambda trial: (-self.metric.worth(trial.scores[-1]), trial.number))

    def _write(self) -> None:
        """Log every trial so far."""
        told = {label: [trial.to_json() for trial in trials] for label, trials in self.found.items()}
        facts = {"metric": self.metric.name, "budget": self.budget, "seed": self.config.seed, "trials": told}
        results.write_json(self.place / TRIALS, facts)


def _short(values: Mapping[str, float | int], spans: Mapping[str, Range]) -> dict[str, float | int]:
    """Round what was proposed to a few digits."""
    return {
        name: value if spans[name].whole else spans[name].within(float(f"{value:.{DIGITS}g}"))
        for name, value in values.items()
    }


def _distribution(span: Range) -> Any:
    optuna = _optuna()
    kind = optuna.distributions.IntDistribution if span.whole else optuna.distributions.FloatDistribution
    return kind(span.low, span.high, log=span.log)


def _optuna() -> Any:
    try:
        import optuna
    except ImportError:
        raise UserError("tuning needs Optuna: pip install 'fedgraft[tune]'") from None
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    return optuna
