"""Put methods on the board: tune each on validation data of one draw, then measure it on all the others.

A board is a directory. `board.toml` is its protocol. Each method of a setting has a folder there with two agendas of
runs (`runs/agenda.py`), `tuning` and `draws`, so that whatever was interrupted goes on and others may help (`fedgraft
work`). Any number of processes may be at one board: each takes the first method that nobody holds, under a lease. What
is finished so far is gathered into one small file for each setting (`board/record.py`).
"""

import dataclasses
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from filelock import SoftFileLease, Timeout

from fedgraft.base import disk
from fedgraft.base.errors import UserError
from fedgraft.base.version import __version__
from fedgraft.board import protocol as protocols
from fedgraft.board import record
from fedgraft.board.protocol import Protocol, Setting
from fedgraft.board.record import Entry, Outcome, Record, Trial
from fedgraft.core.method import Method
from fedgraft.core.rounds import Round
from fedgraft.methods import METHODS
from fedgraft.runs import agenda as agendas
from fedgraft.runs import directory, population, reading, results
from fedgraft.runs.agenda import LEASE, PATIENCE, Agenda, Planner, Worker, seize
from fedgraft.runs.conducting import Watcher
from fedgraft.runs.config import RunConfig, configure
from fedgraft.runs.directory import folder_name
from fedgraft.runs.metric import MetricInfo
from fedgraft.runs.run import Run
from fedgraft.runs.tune import tune

FILE, KIND = "board.toml", "draws"
ENTRY, REFUSED, TUNED, FAILED = "entry.json", "not-admitted.json", "tuned.json", "failed.json"
CORE = "core.json"
"""In a run's directory: how many seconds of one core its rounds took, where that was counted."""
REFERENCES = ("local", "fedavg", "fedavg-ft")
"""What every other method is set beside, and what comes first."""


@dataclass
class Stopwatch:
    """Counts what a run's rounds cost of one core, and leaves it beside the result; other work does not count."""

    began: float = 0.0
    spent: float = 0.0

    def begin(self, run: Run) -> None:
        self.began = time.process_time()

    def round(self, run: Run, this: Round) -> None:
        self.spent = time.process_time() - self.began

    def end(self, run: Run) -> None:
        if run.directory is not None and run.config.workers == 1:
            results.write_json(run.directory / CORE, {"seconds": round(self.spent, 3)})


def members(protocol: Protocol, methods: Sequence[str] = ()) -> dict[str, Method]:
    """Methods by their labels, the references first; those of the protocol unless told."""
    wanted = list(methods or protocol.methods or METHODS.shipped)
    for text in wanted:
        METHODS.insist(text)
    made = [METHODS.make(text) for text in dict.fromkeys((*(r for r in REFERENCES if r in wanted), *wanted))]
    for method in made:
        if not METHODS.findable(method):
            raise UserError(f"{METHODS.label(method)} cannot be found again: put it into a file (./mine.py:Mine)")
    return {METHODS.label(method): method for method in made}


@dataclass(frozen=True)
class Contest:
    """One setting of a board, in its directory."""

    protocol: Protocol
    name: str
    place: Path
    """The board's directory."""
    watchers: Sequence[Watcher] = ()
    changes: Mapping[str, Any] = field(default_factory=dict)
    """Settings of the machine."""
    planner: Planner = field(default_factory=Planner)

    @property
    def setting(self) -> Setting:
        return self.protocol.settings[self.name]

    def folder(self, label: str) -> Path:
        return self.place / self.name / folder_name(label)

    def lease(self, label: str) -> SoftFileLease:
        """What a process holds while it is at work on a method."""
        path = self.place / self.name / agendas.QUEUE / f"{folder_name(label)}.lease"
        path.parent.mkdir(parents=True, exist_ok=True)
        return SoftFileLease(path, lease_duration=LEASE, blocking=False, thread_local=False)

    def over(self, label: str) -> bool:
        """Whether nothing is left to do for a method."""
        home = self.folder(label)
        if (home / REFUSED).exists() or (home / FAILED).exists():
            return True
        return (home / KIND / agendas.FILE).exists() and not Agenda.read(home / KIND).left()

    def forgive(self, label: str) -> None:
        """Let what failed be tried again."""
        home = self.folder(label)
        for name in (REFUSED, FAILED):
            (home / name).unlink(missing_ok=True)
        if (home / KIND / agendas.FILE).exists():
            Agenda.read(home / KIND).forgive()

    def enter(self, label: str, method: Method) -> None:
        """Do what is left of a method: see whether it fits, tune it, run its draws; what fails is written down."""
        home = self.folder(label)
        home.mkdir(parents=True, exist_ok=True)
        config = self._of(method, self.settled(self.protocol.measured(self.setting, self.protocol.seeds[0])))
        facts = {"label": label, "method": METHODS.named(method), "point": method.headline,
                 "reconstruction": method.reconstruction}  # fmt: skip
        results.write_json(home / ENTRY, facts)
        try:
            self.planner(agendas.Entry.of("", config, label))
        except UserError as error:
            results.write_json(home / REFUSED, {"sentence": str(error)})
            return
        if not (home / TUNED).exists() and not self._tune(label, method):
            return
        self._draw(label, method)

    def settled(self, config: RunConfig) -> RunConfig:
        """The settings with what the data decide."""
        fed = self.planner.drawn(config)
        settled = population.settled(config, fed, given=False)
        return configure(settled, self.changes)

    def _of(self, method: Method, config: RunConfig) -> RunConfig:
        return config.model_copy(update={"method": METHODS.named(method), "params": method.parameters()})

    def _tune(self, label: str, method: Method) -> bool:
        """Search with the protocol's budget; say whether something was found."""
        home = self.folder(label)
        config = self.settled(self.protocol.tuned(self.setting))
        try:
            found = tune([method], budget=self.protocol.trials, config=config, out=home / "tuning",
                         watchers=self.watchers)[0]  # fmt: skip
        except disk.UnwritableError:
            raise
        except UserError as error:
            results.write_json(home / FAILED, {"sentence": str(error)})
            return False
        trials = [each.to_json() for each in found.trials]
        told = {"chosen": found.best.values, "trials": trials, "metric": found.metric.model_dump()}
        results.write_json(home / TUNED, told)
        return True

    def _draw(self, label: str, method: Method) -> None:
        """Run the draws with what tuning chose."""
        home = self.folder(label)
        chosen = results.read_json(home / TUNED)["chosen"]
        own = {name: value for name, value in chosen.items() if name != "lr"}
        tuned = dataclasses.replace(method, **own)
        base = self._of(tuned, self.settled(self.protocol.measured(self.setting, self.protocol.seeds[0])))
        base = base.model_copy(update={"training": base.training.but(lr=chosen["lr"])})
        entries = [
            agendas.Entry.of(f"seed{seed}", base.model_copy(update={"seed": seed}), label)
            for seed in self.protocol.seeds
        ]
        Agenda(home / KIND, tuple(entries), KIND).write()
        Worker(home / KIND, self.planner, [*self.watchers, Stopwatch()], self.changes).work()

    # ---- what there is

    def gathered(self) -> Record:
        """What is known of every method so far."""
        labels = list(members(self.protocol))
        for path in sorted((self.place / self.name).glob(f"*/{ENTRY}")):
            label = results.read_json(path)["label"]
            labels += [label] if label not in labels else []
        metric = next(self._metrics(labels), None)
        before = self._before()
        draws = {each.seed: each for each in before.draws} if before else {}
        known = {each.method: each for each in before.entries if each.state == "done"} if before else {}
        entries = [known.get(label) or self._entry(label, metric, draws) for label in labels]
        return Record(
            setting=self.name, title=self.setting.title, natural=self.setting.kind == "natural",
            size=self.setting.size, terms=self.protocol.terms(self.name), metric=metric,
            draws=[draws[seed] for seed in sorted(draws)], entries=entries,
        )  # fmt: skip

    def _before(self) -> Record | None:
        """What was gathered before: a method that is done stays as it is."""
        path = self.place / f"{self.name}.json"
        return record.read(path) if path.exists() else None

    def _metrics(self, labels: Sequence[str]) -> Iterator[MetricInfo]:
        for label in labels:
            if (path := self.folder(label) / TUNED).exists():
                yield MetricInfo.model_validate(results.read_json(path)["metric"])

    def _entry(self, label: str, metric: MetricInfo | None, draws: dict[int, record.Clients]) -> Entry:
        home = self.folder(label)
        if not (home / ENTRY).exists():
            return Entry(method=label, state="waiting")
        told = results.read_json(home / ENTRY)
        facts = {"method": label, "point": told["point"], "reconstruction": told["reconstruction"],
                 "fedgraft": __version__}  # fmt: skip
        for name, state in ((REFUSED, "not admitted"), (FAILED, "failed")):
            if (home / name).exists():
                return Entry(**facts, state=state, reason=results.read_json(home / name)["sentence"])
        if metric is None or not (home / TUNED).exists():
            return Entry(**facts, state="cut short")
        found = results.read_json(home / TUNED)
        trials = [Trial(values=each["values"], scores=each["scores"], failure=each["failure"] or "")
                  for each in found["trials"]]  # fmt: skip
        outcomes = self._outcomes(home / KIND, metric, draws)
        failures = [each.failure for each in outcomes if each.failure]
        short = len(outcomes) < self.protocol.draws
        return Entry(
            **facts, state="cut short" if short else "failed" if failures else "done",
            reason=failures[0] if failures else "", chosen=found["chosen"], trials=trials, outcomes=outcomes,
        )  # fmt: skip

    def _outcomes(self, place: Path, metric: MetricInfo, draws: dict[int, record.Clients]) -> list[Outcome]:
        if not (place / agendas.FILE).exists():
            return []
        agenda, found = Agenda.read(place), []
        for entry in agenda.entries:
            seed = entry.config.seed
            if (failure := agenda.failure(entry)) is not None:
                found.append(Outcome(seed=seed, failure=failure))
            elif agenda.state(entry) == "done":
                facts = reading.read_run(agenda.folder(entry)).facts
                draws.setdefault(seed, record.clients(facts))
                core = agenda.folder(entry) / CORE
                seconds = results.read_json(core)["seconds"] if core.exists() else None
                found.append(record.outcome(facts, metric, seconds))
        return found

    def keep(self) -> Record:
        """Gather what there is into the setting's file."""
        with disk.locked(self.place / self.name, patience=PATIENCE):
            found = self.gathered()
            record.write(self.place / f"{self.name}.json", found)
        return found


def begin(place: Path, protocol: Protocol) -> None:
    """Claim a directory for a board: a fresh one, or one in which nothing was begun under another protocol."""
    told = {**directory.without_none(protocol.model_dump()), "methods": list(protocol.methods)}
    if not (place / FILE).exists():
        directory.fresh(place)
    else:
        there = protocols.written(place / FILE)
        for name in there.settings:
            begun = (place / name).exists()
            if begun and (name not in protocol.settings or there.terms(name) != protocol.terms(name)):
                raise UserError(f"{place} holds {name} under another protocol; name another directory with --out")
    disk.write(place / FILE, directory.as_toml(told))


def run(
    out: str | Path,
    protocol: Protocol,
    settings: Sequence[str] = (),
    methods: Sequence[str] = (),
    *,
    watchers: Sequence[Watcher] = (),
    changes: Mapping[str, Any] | None = None,
    done: Mapping[str, Record] | None = None,
    retry: bool = False,
    tell: Callable[[str], None] = lambda _: None,
) -> dict[str, Record]:
    """Put methods on a board, setting by setting, and return what is known then; the same call goes on.

    Methods that another process holds are left to it, and those that are ``done`` in earlier results of the same
    protocol are not run again. A setting whose data are not there is left out, and refused at the end.
    """
    place, chosen, wanted = Path(out), protocol.chosen(settings), members(protocol, methods)
    begin(place, protocol)
    found, missing = {}, []
    for name in chosen:
        contest = Contest(protocol, name, place, watchers, changes or {})
        try:
            contest.settled(protocol.tuned(contest.setting))
        except UserError as error:
            missing.append(f"{name} cannot be run: {error}")
            if len(chosen) > 1:  # the only one is told by the error at the end
                tell(missing[-1])
            continue
        if retry:
            for label in wanted:
                contest.forgive(label)
        known = _known((done or {}).get(name), protocol.terms(name))
        for label, method in wanted.items():
            if label not in known:
                _take(contest, label, method, tell)
        found[name] = contest.keep()
    if missing:
        raise UserError("; ".join(missing))
    return found


def _known(before: Record | None, terms: Mapping[str, Any]) -> set[str]:
    """The methods that are done in earlier results, which have to be of the same protocol."""
    if before is None:
        return set()
    if before.terms != terms:
        raise UserError(f"the results of {before.setting} have another protocol: leave them out, or name theirs")
    return {each.method for each in before.entries if each.state == "done"}


def _take(contest: Contest, label: str, method: Method, tell: Callable[[str], None]) -> None:
    """Do what is left of a method, unless somebody else is at it."""
    if contest.over(label):
        return
    lease = contest.lease(label)
    try:
        seize(lease)
    except Timeout:
        return
    began = time.perf_counter()
    try:
        contest.enter(label, method)
    finally:
        lease.release()
    done = contest.keep().entry(label)
    assert done is not None
    told = f": {done.reason}" if done.reason else ""
    tell(f"{contest.name} {label}: {done.state}{told} ({time.perf_counter() - began:.0f} s)")
