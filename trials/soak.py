"""A long run on digits, its memory sampled after every round: it has to stay flat.

    python -m trials.soak [--rounds 1000] [--method fedapa] [--workers 2] [--checkpoint-every 50]

The parent and each of its workers are looked at separately. Counted is the resident memory that no file backs, whether
it is shared with another process or not: what a fork shares becomes private as it is written to, and that is no growth.
The first tenth of the rounds is left out: allocators and caches warm up there.
"""

import argparse
import os
import statistics
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory

import fedgraft as fg
from fedgraft.core.rounds import Round
from fedgraft.runs.run import Run

BOUND = 20.0  # KiB a round: the records of the rounds grow by a few, and a leak of one small model by more


@dataclass
class Sampler:
    """Notes the resident memory of this process and of its children after every round, in KiB."""

    samples: dict[str, list[float]] = field(default_factory=dict)
    seconds: list[float] = field(default_factory=list)
    cost: list[float] = field(default_factory=list)
    """Processor time of the parent for each round, its checkpoint and its record included."""
    open_files: list[int] = field(default_factory=list)

    def begin(self, run: Run) -> None:
        self._before = time.process_time()

    def round(self, run: Run, this: Round) -> None:
        self.cost.append(time.process_time() - self._before)
        names = {"self": "parent"} | {pid: f"worker {n}" for n, pid in enumerate(children(), start=1)}
        for pid, name in names.items():
            self.samples.setdefault(name, []).append(_resident(pid))
        self.open_files.append(len(list(Path("/proc/self/fd").iterdir())))
        self.seconds.append(this.seconds)
        self._before = time.process_time()

    def end(self, run: Run) -> None: ...


@dataclass(frozen=True)
class Trend:
    """How a series goes: where it began and ended after warming up, and its slope a round."""

    first: float
    last: float
    slope: float

    @classmethod
    def of(cls, series: list[float]) -> "Trend":
        warm = series[len(series) // 10 :]
        slope = statistics.linear_regression(range(len(warm)), warm).slope if len(warm) > 1 else 0.0
        edge = max(1, len(warm) // 20)
        return cls(statistics.median(warm[:edge]), statistics.median(warm[-edge:]), slope)


def soak(rounds: int, method: str, workers: int, checkpoint_every: int = 50) -> Sampler:
    """Run for many rounds, with checkpoints and evaluation as usual."""
    sampler = Sampler()
    with TemporaryDirectory(prefix="fedgraft-soak-") as room:
        fg.run(
            method, dataset="digits", clients=10, partition="dirichlet:0.1", rounds=rounds, epochs=1, batch_size=128,
            workers=workers, evaluate_every=10, checkpoint_every=checkpoint_every,
            out=Path(room) / "run", watchers=[sampler],
        )  # fmt: skip
    return sampler


def _resident(pid: str) -> float:
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("RssAnon:"):
            return float(line.split()[1])
    raise RuntimeError("this system does not tell how much memory a process has")


def children() -> list[str]:
    """Return the ids of this process's children."""
    return Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m trials.soak", description=__doc__)
    parser.add_argument("--rounds", type=int, default=1000)
    parser.add_argument("--method", default="fedapa")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--checkpoint-every", type=int, default=50)
    options = parser.parse_args()
    started = time.perf_counter()
    sampler = soak(options.rounds, options.method, options.workers, options.checkpoint_every)
    trends = {name: Trend.of(series) for name, series in sampler.samples.items()}
    print(f"{options.method}, {options.rounds} rounds, {time.perf_counter() - started:.0f} s")
    for name, trend in trends.items():
        print(
            f"{name:9} {trend.first / 1024:7.1f} MiB -> {trend.last / 1024:7.1f} MiB, {trend.slope:+.2f} KiB a round, "
            f"most {max(sampler.samples[name]) / 1024:.1f} MiB"
        )
    half = len(sampler.seconds) // 2
    early, late = (statistics.median(part) for part in (sampler.seconds[:half], sampler.seconds[half:]))
    print(f"seconds a round: {early:.4f} in the first half, {late:.4f} in the second")
    quarter = max(1, len(sampler.cost) // 4)
    early, late = (statistics.median(part) for part in (sampler.cost[:quarter], sampler.cost[-quarter:]))
    print(f"the parent's processor time a round: {early:.4f} s in the first quarter, {late:.4f} s in the last")
    print(f"open files: {sampler.open_files[0]} -> {sampler.open_files[-1]}")
    leaking = [name for name, trend in trends.items() if trend.slope > BOUND]
    return int(bool(leaking) or sampler.open_files[-1] > sampler.open_files[0] + 2)


if __name__ == "__main__":
    sys.exit(main())
