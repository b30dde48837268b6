"""Timing on one thread: ways of doing the same in turns, and what the core could do at most."""

import time
from collections.abc import Callable, Sequence

from benchmarks.machine import median
from fedgraft.kernels.native import library


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
