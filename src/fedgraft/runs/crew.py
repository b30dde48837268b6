"""Several processes of this machine at work on one agenda: how many is measured, or told."""

import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from fedgraft.base.errors import UserError
from fedgraft.base.leash import leashed
from fedgraft.engines import devices
from fedgraft.engines.local import cores
from fedgraft.runs.agenda import PAUSE, Agenda, Entry, Planner
from fedgraft.runs.run import start

Parallel = int | Literal["auto"]
PROBE = 3
"""Rounds that are timed, of which the first is not counted."""
WORTH = 1.1
"""How much faster several runs at once have to be, by what was measured, to be preferred."""
_END_SECONDS = 20.0


@dataclass(frozen=True)
class Shifts:
    """How the cores are used: so many runs at once, each with so many worker processes."""

    runs: int
    workers: int | None
    """None: as the run's settings say."""
    seconds: Mapping[int, float] = field(default_factory=dict)
    """What a whole run would take alone, by its workers, where it was measured."""


def insist_on_parallel(parallel: Any) -> None:
    """Refuse what is no number of runs."""
    if parallel != "auto" and (not isinstance(parallel, int) or isinstance(parallel, bool) or parallel < 1):
        raise UserError(f"parallel is a number of runs at once, or auto, not {parallel!r}")


def shifts(parallel: Parallel, agenda: Agenda, planner: Planner) -> Shifts:
    """Decide how many runs are done at once; ``auto`` times some rounds of the first run that is left, both ways."""
    if parallel != "auto":
        return Shifts(parallel, None if parallel == 1 else max(1, cores() // parallel))
    left, several = agenda.left(), cores()
    told = left[0].config if left else None
    if told is None or min(len(left), several) < 2 or told.workers != "auto":
        return Shifts(1, None)
    if not devices.on_processor(told.device):  # which one run fills, as far as its memory goes
        return Shifts(1, None)
    several = min(several, len(left))
    seconds = {workers: timed(left[0], planner, workers) for workers in (cores(), 1)}
    at_once = seconds[1] / several * WORTH < seconds[cores()]
    return Shifts(several if at_once else 1, max(1, cores() // several) if at_once else None, seconds)


def timed(entry: Entry, planner: Planner, workers: int) -> float:
    """How many seconds a whole run would take with so many workers, from its first rounds; nothing is written."""
    rounds = min(PROBE, entry.config.rounds)
    settings = {**entry.settings, "rounds": rounds}
    began = time.perf_counter()
    run = start(planner(Entry(entry.directory, settings, entry.label), {"workers": workers}), None, ())
    total = time.perf_counter() - began
    each: list[float] = [record["seconds"] + record["evaluation_seconds"] for record in run.records]
    counted = each[1:] or each
    return total + (entry.config.rounds - rounds) * sum(counted) / len(counted)


@dataclass
class Crew:
    """Processes that work on an agenda; they end with this one, however it ends."""

    place: Path
    shifts: Shifts
    fresh: bool = False
    processes: "list[subprocess.Popen[bytes]]" = field(default_factory=list)

    def __enter__(self) -> "Crew":
        words = [sys.executable, "-m", "fedgraft", "work", str(self.place), "--quiet"]
        words += [] if self.shifts.workers is None else ["--workers", str(self.shifts.workers)]
        words += ["--fresh"] if self.fresh else []
        self.processes = [
            subprocess.Popen(leashed(words), stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=None)
            for _ in range(self.shifts.runs)
        ]
        return self

    def __exit__(self, *_: object) -> None:
        for process in self.processes:
            process.terminate()
        for process in self.processes:
            with suppress(subprocess.TimeoutExpired):
                process.wait(_END_SECONDS)
            process.kill()
            process.wait()

    def work(self, tell: Sequence[Callable[[Agenda], None]] = ()) -> None:
        """Wait until they are done, and tell how it goes; a process that was killed is not replaced."""
        agenda = Agenda.read(self.place)
        while [process for process in self.processes if process.poll() is None]:
            for each in tell:
                each(agenda)
            time.sleep(PAUSE)
        for each in tell:
            each(agenda)
