"""A list of independent runs that any number of processes and machines work through, each run in its own directory.

An agenda is a directory. `agenda.toml` says which runs there are: the settings that all share, and for each run its
directory, its label and what is its own. `queue/` says who is at work on which run, which have failed and why, and in a
log for each what became of it. Comparisons, sweeps, tuning and whatever else is made of many runs write one:

    agenda = Agenda(place, (Entry.of("local-seed0", config, "local"), ...), kind="comparison")
    agenda.write()                 # a fresh directory, or one whose entries are among these: an agenda may grow
    agenda = Agenda.read(place)

    Worker(place).work()           # do what is left, alone or beside others on this machine or another one
    Crew(place, parallel=2)        # the same by several processes, in `runs/crew.py`
    agenda.state(entry)            # "done", "failed", "at work" or "waiting"
    agenda.failure(entry)          # the sentence of a run that failed
    reading.read_run(agenda.folder(entry))    # what a run that is done has left

A worker takes the first run that nobody holds, starts it, goes on with it from its newest checkpoint, or copies it
from where it was computed before (`runs/archive.py`), and so on until nothing is left. A run that fails is recorded and
not tried again until somebody asks (:meth:`Agenda.forgive`).

Who holds a run says so in a file beside it, made in one step that only one can do, and gives a sign of life every few
seconds. The run of a process that was killed is taken by others at once on the same machine, where it can be seen
that it is gone, and after LEASE seconds without a sign on another one, by the other's own clock: clocks need not agree.
A process that was suspended for longer notices at the end of its round that its run was taken, and lets go of it. There
is no server and nothing to start before: a file system that all machines see is enough, on which making a file that
must not exist is atomic (NFS from version 3 on, Lustre, BeeGFS, CephFS).
"""

import os
import socket
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, Literal

from filelock import SoftFileLease, Timeout
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError

from fedgraft.base import disk
from fedgraft.base.errors import UserError
from fedgraft.core.method import Method
from fedgraft.core.rounds import Round
from fedgraft.data.federation import Federation
from fedgraft.methods import METHODS
from fedgraft.runs import directory, hosting, identity, population, results
from fedgraft.runs.conducting import Watcher
from fedgraft.runs.config import MACHINE, RunConfig, configure, read
from fedgraft.runs.population import Model
from fedgraft.runs.resultfile import complained
from fedgraft.runs.run import Run, finished, found_again, go_on, plan, start

FILE, QUEUE = "agenda.toml", "queue"
FORMAT = 2
BLIND = "tuning"
"""The kind of agenda whose runs must not see test samples."""
LEASE = 60.0
"""Seconds without a sign of life after which a run is taken from a worker on another machine."""
PATIENCE = 60.0
"""Seconds that somebody waits who wants to add to an agenda."""
PAUSE = 0.5
"""Seconds between two looks at what others are doing."""
State = Literal["done", "failed", "at work", "waiting"]
GIVEN = (
    "the runs in {} were given data, a model or a method from Python; "
    "call fedgraft.compare as before, with the same out, and they go on"
)


def _has_training(settings: dict[str, Any]) -> dict[str, Any]:
    if not isinstance(settings.get("training", {}), dict):
        raise ValueError("training is no table")
    return settings


_Settings = Annotated[dict[str, Any], AfterValidator(_has_training)]
"""Some settings; whether they are good ones is seen when a run is planned."""


class _Part(BaseModel):
    model_config = ConfigDict(strict=True)


class _Line(_Part):
    """A run, as the file has it."""

    directory: Annotated[str, Field(min_length=1)]
    label: str
    own: _Settings


class _Written(_Part):
    """What stands in the file."""

    kind: str
    objects: bool
    asked: dict[str, Any]
    config: _Settings
    runs: list[_Line]


class TakenError(Exception):
    """Another worker has taken the run, because this one gave no sign of life for too long."""


@dataclass(frozen=True)
class Entry:
    """One run of an agenda: where it lies, below the agenda's directory, and all that decides it."""

    directory: str
    settings: Mapping[str, Any]
    """A whole configuration as a file has it."""
    label: str = ""
    """What it is called in tables; the method's label unless told."""

    @classmethod
    def of(cls, directory_: str, config: RunConfig, label: str = "") -> "Entry":
        """Make the entry of a configuration, in which files are named by their whole paths."""
        return cls(directory_, directory.without_none(config.model_dump()), label)

    @cached_property
    def config(self) -> RunConfig:
        return configure(self.settings)

    @cached_property
    def decided_by(self) -> dict[str, Any]:
        """The settings but for the machine's: what makes it another run."""
        return {key: value for key, value in self.settings.items() if key not in MACHINE}


@dataclass(frozen=True)
class Agenda:
    """Which runs there are, and what became of them."""

    place: Path
    entries: tuple[Entry, ...]
    kind: str = "runs"
    """What it was written for; ``comparison``, for one."""
    asked: Mapping[str, Any] = field(default_factory=dict)
    """What its maker was asked, in its own words."""
    objects: bool = False
    """Whether data, a model or a method came from Python and cannot be found again: then only Python can go on."""

    @classmethod
    def read(cls, place: Path) -> "Agenda":
        """Read what is written in ``place``."""
        written = read(place / FILE)
        if (said := written.get("format", FORMAT)) != FORMAT:
            raise UserError(f"{place / FILE} has format {said!r}, and this fedgraft reads {FORMAT}")
        try:
            told = _Written.model_validate(written)
        except ValidationError as error:
            raise UserError(f"{place / FILE} is not an agenda of runs: {complained(error)}") from None
        entries = tuple(Entry(each.directory, _joined(told.config, each.own), each.label) for each in told.runs)
        return cls(place, entries, told.kind, told.asked, told.objects)

    @property
    def common(self) -> dict[str, Any]:
        """The settings that all runs share."""
        return _shared([each.settings for each in self.entries])

    def write(self) -> None:
        """Write it down: into a fresh directory, or over an agenda whose runs are all among these."""
        common = self.common
        facts = {
            "format": FORMAT, "kind": self.kind, "objects": self.objects, "asked": self.asked, "config": common,
            "runs": [{"directory": each.directory, "label": each.label, "own": _own(each.settings, common)}
                     for each in self.entries],
        }  # fmt: skip
        for name in {each.config.engine for each in self.entries}:
            hosting.insist_on_one_process(name)
        text = directory.as_toml(facts)  # what cannot be written is refused before anything is
        if not (self.place / FILE).exists():
            directory.fresh(self.place)
        with disk.locked(self.place, patience=PATIENCE):
            if (self.place / FILE).exists() and (lost := self.missing(Agenda.read(self.place))):
                raise UserError(f"{self.place} holds other runs, such as {lost[0].directory}; name another directory")
            disk.write(self.place / FILE, text)

    def missing(self, other: "Agenda") -> list[Entry]:
        """Which entries of another agenda are not in this one, or with other settings."""
        mine = {each.directory: each.decided_by for each in self.entries}
        return [each for each in other.entries if mine.get(each.directory) != each.decided_by]

    def folder(self, entry: Entry) -> Path:
        """Where a run has its directory."""
        return self.place / entry.directory

    def state(self, entry: Entry) -> State:
        """What has become of a run so far."""
        if (self.folder(entry) / results.RESULT).exists():
            return "done"
        if self._beside(entry, "failed").exists():
            return "failed"
        try:
            silent = time.time() - self._beside(entry, "lease").stat().st_mtime
        except OSError:
            return "waiting"
        return "at work" if silent < LEASE else "waiting"

    def states(self) -> "Counter[State]":
        """How many runs are in which state."""
        return Counter(map(self.state, self.entries))

    def left(self) -> list[Entry]:
        """The runs that are neither done nor failed."""
        return [each for each in self.entries if self.state(each) not in ("done", "failed")]

    def failures(self) -> dict[str, str]:
        """What the runs that failed had to say, by their directories."""
        found = ((each.directory, self.failure(each)) for each in self.entries if self.state(each) == "failed")
        return {place: sentence for place, sentence in found if sentence is not None}

    def failure(self, entry: Entry) -> str | None:
        """Why a run failed, in a sentence."""
        path = self._beside(entry, "failed")
        return str(results.read_json(path).get("sentence", "?")) if path.exists() else None

    def forgive(self) -> None:
        """Let the runs that failed be tried again."""
        for entry in self.entries:
            self._beside(entry, "failed").unlink(missing_ok=True)

    def insist_on_success(self, cause: BaseException | None = None) -> None:
        """Say which runs failed, if any did."""
        if failed := self.failures():
            where, sentence = next(iter(failed.items()))
            more = f"; {len(failed) - 1} more failed" if len(failed) > 1 else ""
            again = f"the others are kept, and `fedgraft resume {self.place}` tries again"
            raise UserError(f"the run in {self.place / where} failed: {sentence}{more}; {again}") from cause

    def holder(self, entry: Entry) -> str | None:
        """The machine and the process that are at work on a run."""
        owner = self.lease(entry).owner
        return None if owner is None else f"{owner.hostname} {owner.pid}"

    def lease(self, entry: Entry) -> SoftFileLease:
        """What a worker holds while it is at work on a run."""
        return SoftFileLease(self._beside(entry, "lease"), lease_duration=LEASE, blocking=False, thread_local=False)

    def fail(self, entry: Entry, error: Exception) -> None:
        """Record that a run failed, and why."""
        sentence = str(error) if isinstance(error, UserError) else f"{type(error).__name__}: {error}"
        told = {"sentence": sentence, "host": socket.gethostname(), "traceback": traceback.format_exception(error)}
        results.write_json(self._beside(entry, "failed"), told)
        self.log(entry, f"failed: {sentence}")

    def log(self, entry: Entry, event: str) -> None:
        """Note what happens to a run: who did what when."""
        when = time.strftime("%Y-%m-%dT%H:%M:%S%z")
        with self._beside(entry, "log").open("a", encoding="utf-8") as stream:
            stream.write(f"{when} {socket.gethostname()} {os.getpid()} {event}\n")

    def _beside(self, entry: Entry, kind: str) -> Path:
        return self.place / QUEUE / f"{entry.directory}.{kind}"


@dataclass
class Planner:
    """Plans the run of an entry by its settings; what came from Python takes the place of what they name.

    The last federation is kept: most runs that follow each other have the same data.
    """

    methods: Mapping[str, Method] = field(default_factory=dict)
    """By the labels of the entries."""
    federation: Callable[[int], Federation] | None = None
    model: Model | None = None
    blind: bool = False
    """Take the test samples away, so that nothing can look at them."""
    _last: tuple[Any, Federation] | None = None

    def __call__(self, entry: Entry, changes: Mapping[str, Any] | None = None) -> Run:
        config = configure(entry.settings, changes or {})
        method = self.methods.get(entry.label) or METHODS.make(config.method, **config.params)
        return plan(method, self.drawn(config), config, self.model, given=self.federation is not None)

    @property
    def given(self) -> bool:
        """Whether something came from Python."""
        return bool(self.methods) or self.federation is not None or self.model is not None

    def drawn(self, config: RunConfig) -> Federation:
        """Make the federation of a configuration, or take the last one if it is the same."""
        if self._last is None or self._last[0] != self._key(config):
            self._last = None  # two need not be in memory at once
            self.remember(config, self._made(config))
            assert self._last is not None
        return self._last[1]

    def remember(self, config: RunConfig, fed: Federation) -> None:
        """Keep the federation of a configuration for the next run."""
        self._last = self._key(config), fed.without_test() if self.blind else fed

    def _key(self, config: RunConfig) -> Any:
        return config.seed if self.federation else population.drawn_by(config)

    def _made(self, config: RunConfig) -> Federation:
        if self.federation is None:
            return population.federation(config)
        made = self.federation(config.seed)
        if not isinstance(made, Federation):
            raise UserError(f"the function given as federation made no Federation for seed {config.seed}, but {made!r}")
        return made


@dataclass
class Worker:
    """One process at work on an agenda, perhaps one of many."""

    place: Path
    planner: Planner = field(default_factory=Planner)
    watchers: Sequence[Watcher] = ()
    changes: Mapping[str, Any] = field(default_factory=dict)
    """Settings of the machine, instead of those that are written."""
    fresh: bool = False
    """Compute runs also if they were computed elsewhere before."""
    done: dict[str, Run] = field(default_factory=dict)
    """The runs that it did, by their directories, if it keeps them."""
    keep: bool = False
    error: Exception | None = None
    """What the first run that failed here raised."""
    _leases: dict[str, SoftFileLease] = field(default_factory=dict)
    _agenda: tuple[int, Agenda] | None = None

    def __post_init__(self) -> None:
        if surplus := set(self.changes) - MACHINE:
            raise UserError(f"resuming cannot change {', '.join(sorted(surplus))}: it would be another run")
        if self.agenda.objects and not self.planner.given:
            raise UserError(GIVEN.format(self.place))
        self.planner.blind = self.agenda.kind == BLIND

    @property
    def agenda(self) -> Agenda:
        """What is written now: others may add to it."""
        stamp = (self.place / FILE).stat().st_mtime_ns if (self.place / FILE).exists() else 0
        if self._agenda is None or self._agenda[0] != stamp:
            self._agenda = stamp, Agenda.read(self.place)
        return self._agenda[1]

    def work(self, *, wait: bool = True) -> None:
        """Do one run after the other until none is left; ``wait`` until those that others hold are over, too."""
        while True:
            if any(self._do(entry) for entry in self.agenda.left()):
                continue  # look again from the start: something may be free by now
            if not wait or not self.agenda.left():
                return
            time.sleep(PAUSE)

    def _do(self, entry: Entry) -> bool:
        """Do a run, unless somebody else holds it or has done it; say whether something was done."""
        agenda = self.agenda
        lease = self._leases.setdefault(entry.directory, agenda.lease(entry))  # it remembers what it saw of others
        Path(lease.lock_file).parent.mkdir(parents=True, exist_ok=True)
        try:
            seize(lease)
        except Timeout:
            return False
        try:
            return agenda.state(entry) not in ("done", "failed") and self._carry_out(entry, lease)
        finally:
            lease.release()
            del self._leases[entry.directory]

    def _carry_out(self, entry: Entry, lease: SoftFileLease) -> bool:
        agenda = self.agenda
        try:
            run = self.planner(entry, self.changes)
            agenda.log(entry, "began")
            watchers = [*self.watchers, _Tenure(lease)]
            done = complete(run, agenda.folder(entry), watchers, fresh=self.fresh or agenda.objects)
        except disk.UnwritableError:
            raise
        except (disk.HeldError, TakenError) as error:
            agenda.log(entry, f"left to another: {error}")
            return False
        except Exception as error:
            self.error = self.error or error
            agenda.fail(entry, error)
            return True
        agenda.log(entry, "finished")
        if self.keep:
            self.done[entry.directory] = done
        return True


def seize(lease: SoftFileLease) -> None:
    """Take a lease, or raise ``Timeout``: somebody holds it.

    One without a word in it was left by a process that was killed before it could write who it is. It is nobody's,
    though filelock would wait for its holder for ever.
    """
    try:
        lease.acquire()
    except Timeout:
        if not _without_a_word(Path(lease.lock_file)):
            raise
        lease.break_lock()
        lease.acquire()


def _without_a_word(path: Path) -> bool:
    try:
        found = path.stat()
    except OSError:  # it was given back just now
        return False
    return not found.st_size and time.time() - found.st_mtime > LEASE


@dataclass
class _Tenure:
    """Lets go of a run that another worker has taken."""

    lease: SoftFileLease

    def begin(self, run: Run) -> None: ...

    def round(self, run: Run, this: Round) -> None:
        if self.lease.compromise is not None:
            raise TakenError(f"no sign of life reached the file system for {LEASE:g} seconds")

    def end(self, run: Run) -> None: ...


def complete(run: Run, folder: Path | None, watchers: Iterable[Watcher], *, fresh: bool = False) -> Run:
    """Keep a run that is finished, go on with one that was begun, find or start one that is missing."""
    watchers = list(watchers)
    if folder is None:
        return start(run, None, watchers)
    if (folder / "config.toml").exists():
        return finished(run, folder) if (folder / results.RESULT).exists() else go_on(run, folder, watchers)
    found = None if fresh else found_again(run, folder)
    return found or start(run, folder, watchers)


def _joined(common: Mapping[str, Any], own: Mapping[str, Any]) -> dict[str, Any]:
    """All settings of a run, of those that all share and of its own."""
    training = {**common.get("training", {}), **own.get("training", {})}
    return {**common, **own, "training": training}


def _shared(each: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """What is the same in all of several settings."""
    first, *others = each or [{}]
    same = {key: value for key, value in first.items() if all(other.get(key) == value for other in others)}
    training = [settings.get("training", {}) for settings in each]
    return {**same, "training": _shared(training)} if any(training) and "training" not in same else same


def _own(settings: Mapping[str, Any], common: Mapping[str, Any]) -> dict[str, Any]:
    """What is not the same in all."""
    own = {key: value for key, value in settings.items() if key != "training" and common.get(key) != value}
    training = _own(settings.get("training", {}), common.get("training", {})) if "training" in settings else {}
    return own | ({"training": training} if training else {})


def differences(there: Mapping[str, Any], here: Mapping[str, Any]) -> list[str]:
    """Name what is not the same in what two agendas were asked for."""
    other = ["methods differ"] if there.get("methods") != here.get("methods") else []
    parts = [{key: value for key, value in each.items() if key != "methods"} for each in (there, here)]
    return other + identity.differences(*parts)
