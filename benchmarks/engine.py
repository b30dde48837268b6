"""How much of the cores' time a round spends on the steps of SGD that nobody can do without.

    efficiency = seconds of the bare steps / (seconds of the whole round x workers)

The bare steps are those of the same clients of the same round, in a loop that does nothing else: draw a batch,
forward, loss, backward, SGD with momentum on the flat vector; one thread, the same kernels, the model and the data
already there. Two such loops run at the same time, as two workers do, because cores share caches, memory and the
clock; the loop alone on the machine is given too. Rounds and loops take turns, and the median of the rounds counts.
"""

import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, multiprocessing
from torch.nn import functional

from benchmarks import work
from benchmarks.machine import median
from fedgraft.core import streams
from fedgraft.core.client import ClientId
from fedgraft.core.evaluation import BATCH
from fedgraft.core.exchange import Failure, Outcome
from fedgraft.core.message import Message
from fedgraft.core.method import Server, Spec
from fedgraft.core.model import Model
from fedgraft.core.rounds import Participation, rounds
from fedgraft.core.samples import Samples
from fedgraft.core.state import State
from fedgraft.core.training import batches
from fedgraft.engines.local import LocalEngine
from fedgraft.engines.workshop import Purpose, single_thread
from fedgraft.runs import checkpoint
from fedgraft.runs.checkpoint import Checkpoint
from fedgraft.runs.conducting import AUTO_SECONDS
from fedgraft.runs.config import participation_range
from fedgraft.runs.run import Run

WORKERS = 2


def bare_steps(model: Model, samples: Samples, spec: Spec, start: Tensor, *key: int) -> int:
    """Train ``model`` from ``start`` on the batches of a round and a client, the ``key``, and do nothing else."""
    settings = spec.settings
    model.load(start).module.train()
    weights, gradient = model.vector[: model.layout.trained], model.gradient
    velocity = torch.zeros_like(gradient)
    order = streams.generator(spec.seed, "train", "batches", *key)
    steps = 0
    for _ in range(int(settings.epochs)):
        for index in batches(len(samples), settings.batch_size, order, drop_last=settings.drop_last, pairs=False):
            x, y = samples.batch(index)
            gradient.zero_()
            functional.cross_entropy(model.module(x), y).backward()
            velocity.mul_(settings.momentum).add_(gradient)
            weights.sub_(velocity, alpha=settings.lr)
            steps += 1
    return steps


def bare_evaluation(model: Model, samples: Samples) -> None:
    """Forward passes over a client's test samples, once for each of the two models that are tested."""
    with model.evaluating():
        for _ in range(2):
            for start in range(0, len(samples), BATCH):
                x, y = samples.batch(slice(start, start + BATCH))
                (model.module(x).argmax(1) == y).sum()


class Bare:
    """Processes that do bare steps for a share of the clients each."""

    def __init__(self, run: Run, processes: int) -> None:
        context = multiprocessing.get_context("fork")
        self._ends = []
        for _ in range(processes):
            ours, theirs = context.Pipe()
            process = context.Process(target=_bare_process, args=(run, theirs), daemon=True)
            process.start()
            self._ends.append((ours, process))
        self._samples = run.spec.samples

    def seconds(self, round: int, clients: Sequence[ClientId], processes: int, purpose: Purpose = "train") -> float:
        """The sum over all clients of what each took, in so many processes at the same time."""
        shares: list[list[ClientId]] = [[] for _ in range(processes)]
        for client in sorted(clients, key=lambda c: -self._samples[c]):
            min(shares, key=lambda share: sum(self._samples[c] for c in share)).append(client)
        for (end, _), share in zip(self._ends, shares, strict=False):
            end.send((purpose, round, share))
        return sum(end.recv() for (end, _), _ in zip(self._ends, shares, strict=False))

    def close(self) -> None:
        for end, process in self._ends:
            end.send(None)
            process.join()


def _bare_process(run: Run, end: Any) -> None:
    torch.set_num_threads(1)
    spec = run.spec
    model, start = spec.architecture(0).model(), spec.initial(0)
    while (asked := end.recv()) is not None:
        purpose, number, clients = asked
        total = 0.0
        for client in clients:
            data = work.clients(run)[client]
            began = time.perf_counter()
            if purpose == "train":
                bare_steps(model, data.train, spec, start, number, client)
            else:
                bare_evaluation(model, data.test)
            total += time.perf_counter() - began
        end.send(total)


@dataclass
class Watched:
    """An engine that also tells how long a wave took, and each of its clients."""

    engine: LocalEngine
    wave: float = 0.0
    jobs: dict[ClientId, float] = field(default_factory=dict)

    def train(self, round: int, messages: Mapping[ClientId, Message]) -> Mapping[ClientId, Outcome | Failure]:
        began = time.perf_counter()
        outcomes = self.engine.train(round, messages)
        self.wave = time.perf_counter() - began
        self.jobs = {client: o.seconds for client, o in outcomes.items() if isinstance(o, Outcome)}
        return outcomes

    def __getattr__(self, name: str) -> Any:
        return getattr(self.engine, name)


def makespan(jobs: Sequence[float], workers: int) -> float:
    """When the last of the jobs is done, if each goes in this order to the next idle worker at no cost."""
    free = [0.0] * workers
    for job in jobs:
        free[free.index(min(free))] += job
    return max(free)


def efficiency(choice: str, cycles: int, *, tiny: bool = False) -> dict[str, Any]:
    """Rounds of FedAPA as its recipe has them, in turns with the bare steps of the same clients."""
    small: dict[str, Any] = {"clients": 4, "batch_size": 16} if tiny else {}
    run, origin = work.planned(
        "fedapa", recipe="fedapa", tiny=tiny, kernels=choice, rounds=cycles + 1, workers=WORKERS, **small
    )
    spec, method = run.spec, run.method
    bare, rows = Bare(run, WORKERS), []
    participation = Participation(*participation_range(run.config.participation))
    server = method.setup(spec)
    with single_thread(), LocalEngine(method, spec, work.clients(run), workers=WORKERS) as engine:
        watched = Watched(engine)
        for this in rounds(method, server, watched, participation):
            picked = this.participants
            together = bare.seconds(this.number, picked, WORKERS)
            alone = bare.seconds(this.number, picked, 1)
            tested = bare.seconds(this.number, range(spec.clients), WORKERS, "evaluate")
            jobs = [watched.jobs[c] for c in sorted(picked, key=lambda c: (-spec.samples[c], c))]
            rows.append(_shares(this.seconds, this.server_seconds, watched.wave, jobs, together, alone) | {
                "with_evaluation": (together + tested) / (WORKERS * (this.seconds + this.evaluation_seconds)),
                "training_of_all": together / (WORKERS * (this.seconds + this.evaluation_seconds)),
                "evaluation_seconds": this.evaluation_seconds,
            })  # fmt: skip
        seconds = _checkpoint_seconds(server, engine.states)
    bare.close()
    counted = rows[1:]  # the first round warms everything up
    return {
        "kernels": choice, "data": origin, "clients": spec.clients, "rounds": len(counted), "workers": WORKERS,
        **{name: median(row[name] for row in counted) for name in counted[0]},
        "each_efficiency": [round(row["efficiency"], 4) for row in counted],
        "checkpoint_seconds": seconds, "checkpoint_share": seconds / AUTO_SECONDS,
    }  # fmt: skip


def _shares(
    wall: float, server: float, wave: float, jobs: Sequence[float], together: float, alone: float
) -> dict[str, float]:
    """Where the workers' time of a round went, as shares of it."""
    whole = WORKERS * wall
    last = makespan(jobs, WORKERS)
    return {
        "round_seconds": wall,
        "bare_seconds": together,
        "bare_alone_seconds": alone,
        "efficiency": together / whole,
        "efficiency_alone": alone / whole,
        "share_clients": (sum(jobs) - together) / whole,
        "share_idle": (WORKERS * last - sum(jobs)) / whole,
        "share_transport": WORKERS * (wave - last) / whole,
        "share_server": WORKERS * server / whole,
        "share_rest": WORKERS * (wall - wave - server) / whole,
    }


def _checkpoint_seconds(server: Server, states: Mapping[ClientId, State]) -> float:
    with tempfile.TemporaryDirectory() as place:
        began = time.perf_counter()
        checkpoint.write(Path(place), Checkpoint(0, server, states, checkpoint.begin(Path(place))))
        return time.perf_counter() - began


def measure(*, tiny: bool = False) -> dict[str, Any]:
    cycles = {"native": 1, "torch": 1} if tiny else {"native": 6, "torch": 3}
    return {
        "efficiency": [
            efficiency("auto" if choice == "native" else choice, cycles[choice], tiny=tiny)
            for choice in ("native", "torch")
        ]
    }
