"""Timing: ways of doing the same in turns on one thread, the rounds of a run, and what the core could do at most."""

import time
from collections.abc import Callable, Sequence

from benchmarks.machine import median
from fedgraft.core.rounds import Round
from fedgraft.kernels.native import library
from fedgraft.runs.run import Run


class Stopwatch:
    """Notes when a run is planned, when each of its rounds is over, and when it ends, by the clock ``now``."""

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self.planned, self.rounds, self.ended = 0.0, list[float](), 0.0

    def begin(self, run: Run) -> None:
        self.planned = self._now()

    def round(self, run: Run, this: Round) -> None:
        self.rounds.append(self._now())

    def end(self, run: Run) -> None:
        self.ended = self._now()


def in_turns(ways: Sequence[Callable[[], object]], seconds: float, stretch: int = 4) -> list[float]:
    """The median milliseconds of this thread for each way; a stretch each in turn, its first call not counted."""
    times: list[list[float]] = [[] for _ in ways]
    end = time.perf_counter() + seconds
    while time.perf_counter() < end or len(times[0]) < 3 * stretch:
        for way, kept in zip(ways, times, strict=True):
            way()
            for _ in range(stretch):
                began = time.thread_time()
                way()
                kept.append(time.thread_time() - began)
    return [1e3 * median(kept) for kept in times]


def peak() -> float:
    """The core's multiply-adds per second, in GFLOP/s: the best of many short runs of the native library."""
    best = 0.0
    for _ in range(30):
        began = time.thread_time()
        operations = library().best().peak(500_000)
        best = max(best, operations / (time.thread_time() - began) / 1e9)
    return best
