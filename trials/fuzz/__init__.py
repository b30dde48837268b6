"""Fuzzing: broken and hostile inputs for everything that reads what a stranger may have written.

    python -m trials.fuzz [TARGET ...] [--cases 10000] [--seed 0]

A target is a Hypothesis strategy for inputs and a trial of one of them. The trial returns if the input was taken,
raises ``UserError`` if it was refused, and everything else is a finding: another exception, a property that does not
hold, a case that takes seconds or a gigabyte, code that runs. Hypothesis shrinks what was found to the least that still
shows it and keeps it below ``.hypothesis/fuzz``: the next campaign, of whatever seed, tries it first.
"""

import resource
import signal
import sys
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from types import FrameType
from typing import Any

import hypothesis
from hypothesis import HealthCheck, Phase
from hypothesis.database import DirectoryBasedExampleDatabase
from hypothesis.strategies import SearchStrategy

from fedgraft.base.errors import UserError

KEPT = Path(__file__).parents[2] / ".hypothesis" / "fuzz"  # what was found, a folder for each target
SECONDS = 10.0  # a case that takes longer hangs
ROOM = 2**30  # bytes that all cases together may add to the address space
WIDTH = 2000  # characters of a line in a report: a case may be a whole file
FORBIDDEN = ("exec", "pickle.find_class", "os.system", "os.exec", "os.posix_spawn", "subprocess.Popen")


@dataclass(frozen=True)
class Reader:
    """The cases that a reader is given, and the trial of one of them in a folder of its own."""

    cases: SearchStrategy[Any]
    attempt: Callable[[Any, Path], object]


@dataclass(frozen=True)
class Target:
    """Something that reads foreign input. ``prepare`` does the slow work once."""

    name: str
    about: str
    prepare: Callable[[], Reader]


@dataclass
class Findings:
    """What a campaign on one target gave; of each kind of finding the least case."""

    target: str
    seed: int
    cases: int = 0
    taken: int = 0
    refused: Counter[str] = field(default_factory=Counter)
    found: list[str] = field(default_factory=list)
    seconds: float = 0.0
    grown: int = 0

    def __str__(self) -> str:
        return (
            f"{self.target:14} {self.cases:6} cases, seed {self.seed}: {self.taken} taken, "
            f"{self.refused.total()} refused in {len(self.refused)} different sentences, {len(self.found)} found, "
            f"{self.seconds:.0f} s, {self.grown / 2**20:+.0f} MiB at most"
        )


class AlarmError(BaseException):
    """Time is up; not an ``Exception``, so that no reader swallows it."""


class HangError(AssertionError):
    """A case took too long."""


class ExecutionError(AssertionError):
    """A case made the interpreter run, load or start something."""


def campaign(target: Target, cases: int, seed: int = 0, *, kept: Path = KEPT) -> Findings:
    """Try ``cases`` inputs, after those that an earlier campaign has kept."""
    findings, reader = Findings(target.name, seed), target.prepare()
    started, before = time.perf_counter(), _kibibytes("VmRSS")
    with TemporaryDirectory(prefix="fedgraft-fuzz-") as room, _bounded_memory():
        _reset_peak()

        @hypothesis.settings(
            max_examples=cases,
            database=DirectoryBasedExampleDatabase(kept / target.name),
            deadline=None,  # SECONDS is ours, and ends a case that hangs
            phases=(Phase.reuse, Phase.generate, Phase.shrink),
            suppress_health_check=list(HealthCheck),
        )
        @hypothesis.seed(seed)  # below the settings: a seed takes the database away
        @hypothesis.given(reader.cases)
        def every(case: object) -> None:
            _try(reader, case, Path(room), findings)

        try:
            every()
        except Exception as failure:
            findings.found = _reports(failure)
        findings.grown = 1024 * (_kibibytes("VmHWM") - before)
    findings.seconds = time.perf_counter() - started
    return findings


def _try(reader: Reader, case: object, room: Path, findings: Findings) -> None:
    findings.cases += 1
    try:
        with _bounded_time(), _nothing_runs():
            reader.attempt(case, room)
        findings.taken += 1
    except UserError as refusal:
        findings.refused[_shape(str(refusal))] += 1
        if "\n" in str(refusal) or not str(refusal).strip():
            raise AssertionError(f"the refusal is not one sentence: {str(refusal)!r}") from None


def _reports(failure: BaseException) -> list[str]:
    """The traceback of each finding, with its case; Hypothesis raises several as a group."""
    if isinstance(failure, BaseExceptionGroup):
        return [report for inner in failure.exceptions for report in _reports(inner)]
    lines = "".join(traceback.format_exception(failure)).splitlines()
    return ["\n".join(line if len(line) <= WIDTH else line[:WIDTH] + " ..." for line in lines)]


def _shape(sentence: str) -> str:
    """A refusal without what differs from case to case: its first words."""
    return " ".join(word for word in sentence.split() if word.isalpha())[:60]


@contextmanager
def _bounded_time() -> Iterator[None]:
    def ring(_: int, __: FrameType | None) -> None:
        raise AlarmError

    before = signal.signal(signal.SIGALRM, ring)
    signal.setitimer(signal.ITIMER_REAL, SECONDS)
    try:
        yield
    except AlarmError:
        raise HangError(f"the case took more than {SECONDS:g} s") from None
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


@contextmanager
def _bounded_memory() -> Iterator[None]:
    """Let an allocation fail that would need more than the room there is."""
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (1024 * _kibibytes("VmSize") + ROOM, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))


_watching = False
_events: list[str] = []


def _audit(event: str, details: tuple[object, ...]) -> None:
    if not _watching or event not in FORBIDDEN:
        return
    # an installed module that a reader imports late is no code of the case
    if event == "exec" and Path(getattr(details[0], "co_filename", "")).is_absolute():
        return
    _events.append(event)


@contextmanager
def _nothing_runs() -> Iterator[None]:
    """Notice code that is run, unpickled or started while a case is read."""
    global _watching
    if _audit not in _installed:
        sys.addaudithook(_audit)  # for good: Python has no way to take one off again
        _installed.append(_audit)
    _events.clear()
    _watching = True
    try:
        yield
    finally:
        _watching = False
        if _events:
            raise ExecutionError(f"the case led to {', '.join(dict.fromkeys(_events))}")


_installed: list[Callable[[str, tuple[object, ...]], None]] = []


def _kibibytes(key: str) -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(key + ":"):
            return int(line.split()[1])
    raise KeyError(key)


def _reset_peak() -> None:
    Path("/proc/self/clear_refs").write_text("5")
