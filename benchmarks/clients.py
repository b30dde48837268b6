"""What a client costs beside its training steps: rounds of many clients with little data, in processor seconds.

    cost = (processor seconds of the round, of the parent and its workers - those within the steps) / clients

Steps are what ``core.training.descend`` does: batches, forward, backward, the optimizer. Both are taken in the same
rounds, so that whatever else the machine does slows both alike. What is left is what the engine, the client's set-up,
the copies and checks at the crossing and the server cost.
"""

import multiprocessing
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from pathlib import Path
from typing import Any
from unittest.mock import patch

from benchmarks import work
from benchmarks.machine import family, median
from fedgraft.core import client, training
from fedgraft.core.rounds import Participation, rounds
from fedgraft.engines.local import LocalEngine
from fedgraft.engines.workshop import single_thread

METHODS = ("fedavg", "fedper", "ditto", "apfl", "fedapa")
WORKERS = (1, 2)


def processor_seconds(process: int) -> float:
    """How long all threads of a process have computed, to the nanosecond."""
    return (
        sum(int((task / "schedstat").read_text().split()[0]) for task in Path(f"/proc/{process}/task").iterdir()) / 1e9
    )


@contextmanager
def counted_steps() -> Iterator[Callable[[], float]]:
    """Lend a clock that says how many processor seconds were spent within steps, here and in workers made meanwhile."""
    total = multiprocessing.Value("d", 0.0)
    plain = training.descend

    @wraps(plain)
    def timed(*args: Any, **settings: Any) -> float:
        began = time.thread_time()
        loss = plain(*args, **settings)
        with total.get_lock():
            total.value += time.thread_time() - began
        return loss

    with patch.object(client, "descend", timed):
        yield lambda: float(total.value)


def cost(method: str, workers: int, *, tiny: bool = False) -> dict[str, Any]:
    """Rounds of 50 out of 1,000 clients, LeNet-5 on CIFAR-10, 50 images each in batches of 10."""
    clients, picked, cycles = (8, 4, 2) if tiny else (1000, 50, 24)
    dataset, origin = work.images("cifar10", tiny=tiny)
    run, _ = work.planned(
        method, dataset=dataset, clients=clients, partition="iid", model="lenet5", batch_size=10, epochs=1, lr=0.05,
        momentum=0.0, rounds=cycles + 2, evaluate_every=10**9,
    )  # fmt: skip
    share, costs, steps = picked / clients, [], []
    with (
        counted_steps() as stepping,
        single_thread(),
        LocalEngine(run.method, run.spec, work.clients(run), workers=workers) as engine,
    ):
        processes = family(os.getpid())
        going = rounds(
            run.method, run.method.setup(run.spec), engine, Participation(share, share), evaluate_every=10**9
        )
        for _ in range(cycles + 1):  # the last round of all would be evaluated
            before, stepped = sum(map(processor_seconds, processes)), stepping()
            this = next(going)
            spent, stepped = sum(map(processor_seconds, processes)) - before, stepping() - stepped
            costs.append(1e3 * (spent - stepped) / len(this.participants))
            steps.append(1e3 * stepped / len(this.participants))
    return {
        "method": method, "workers": workers, "data": origin, "clients": clients, "picked": picked,
        "cost_ms": median(costs[1:]), "least_ms": min(costs[1:]), "steps_ms": median(steps[1:]),
    }  # fmt: skip


def measure(*, tiny: bool = False) -> dict[str, Any]:
    return {"costs": [cost(method, workers, tiny=tiny) for method in METHODS for workers in WORKERS]}
