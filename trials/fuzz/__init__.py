"""Fuzzing: broken and hostile inputs for everything that reads what a stranger may have written.

    python -m trials.fuzz [TARGET ...] [--cases 10000] [--seed 0]
    python -m trials.fuzz TARGET --seed 0 --only 4711          # one case again, with its traceback

A target makes one case from a stream of random numbers and tries it. It returns if the input was taken, raises
``UserError`` if it was refused, and everything else is a finding: another exception, a property that does not hold, a
case that takes seconds or a gigabyte, code that runs. Case ``i`` of seed ``s`` is always the same input.
"""

import re
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
from random import Random
from tempfile import TemporaryDirectory
from types import FrameType

from fedgraft.base.errors import UserError

SECONDS = 10.0  # a case that takes longer hangs
ROOM = 2**30  # bytes that all cases together may add to the address space
FORBIDDEN = ("exec", "pickle.find_class", "os.system", "os.exec", "os.posix_spawn", "subprocess.Popen")

Attempt = Callable[[Random, Path], None]


@dataclass(frozen=True)
class Target:
    """Something that reads foreign input. ``prepare`` does the slow work once and returns the trier of one case."""

    name: str
    about: str
    prepare: Callable[[], Attempt]


@dataclass
class Findings:
    """What a campaign on one target gave."""

    target: str
    seed: int
    cases: int = 0
    taken: int = 0
    refused: Counter[str] = field(default_factory=Counter)
    found: dict[int, str] = field(default_factory=dict)
    seconds: float = 0.0
    grown: int = 0

    def distinct(self) -> dict[int, str]:
        """The first finding of each kind; two are of a kind if their last lines agree but for figures."""
        kinds: dict[str, int] = {}
        for number, report in self.found.items():
            kinds.setdefault(re.sub(r"\d+", "0", report.rstrip().rpartition("\n")[2]), number)
        return {number: self.found[number] for number in kinds.values()}

    def __str__(self) -> str:
        return (
            f"{self.target:14} {self.cases:6} cases, seed {self.seed}: {self.taken} taken, "
            f"{self.refused.total()} refused in {len(self.refused)} different sentences, {len(self.found)} found, "
            f"{self.seconds:.0f} s, {self.grown / 2**20:+.0f} MiB at most"
        )


class HangError(BaseException):
    """A case took too long; not an ``Exception``, so that no reader swallows it."""


class ExecutionError(AssertionError):
    """A case made the interpreter run, load or start something."""


def campaign(target: Target, cases: int, seed: int = 0, *, only: int | None = None) -> Findings:
    """Try ``cases`` inputs, or ``only`` the one with that number."""
    findings, attempt = Findings(target.name, seed), target.prepare()
    started, before = time.perf_counter(), _kibibytes("VmRSS")
    with TemporaryDirectory(prefix="fedgraft-fuzz-") as room, _bounded_memory():
        _reset_peak()
        for number in range(cases) if only is None else [only]:
            findings.cases += 1
            try:
                with _bounded_time(), _nothing_runs():
                    attempt(Random(f"{target.name}/{seed}/{number}"), Path(room))
                findings.taken += 1
            except UserError as refusal:
                findings.refused[_shape(str(refusal))] += 1
                if "\n" in str(refusal) or not str(refusal).strip():
                    findings.found[number] = f"the refusal is not one sentence: {refusal!r}"
            except (Exception, HangError):
                findings.found[number] = traceback.format_exc()
        findings.grown = 1024 * (_kibibytes("VmHWM") - before)
    findings.seconds = time.perf_counter() - started
    return findings


def _shape(sentence: str) -> str:
    """A refusal without what differs from case to case: its first words."""
    return " ".join(word for word in sentence.split() if word.isalpha())[:60]


@contextmanager
def _bounded_time() -> Iterator[None]:
    def hang(_: int, __: FrameType | None) -> None:
        raise HangError(f"the case took more than {SECONDS:g} s")

    before = signal.signal(signal.SIGALRM, hang)
    signal.setitimer(signal.ITIMER_REAL, SECONDS)
    try:
        yield
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
