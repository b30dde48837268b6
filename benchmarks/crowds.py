"""Very many clients of which a few take part: what a round costs beside one of few clients, and how much memory.

Every client has ten images of MNIST's size, a hundred take part in a round. The seconds are those of the processor, of
crowds that take turns in one process, so that whatever else the machine does slows all of them alike. The memory of
each is that of a fresh process.
"""

import json
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import numpy as np

from benchmarks import work
from benchmarks.machine import MEBI, measured, median, own_peak
from fedgraft.core.rounds import Participation, Round, rounds
from fedgraft.core.task import Classification
from fedgraft.data.datasets import Dataset
from fedgraft.engines.local import LocalEngine
from fedgraft.engines.simulation import Storage
from fedgraft.engines.workshop import single_thread

METHODS = ("fedavg", "fedper", "ditto", "apfl")
CROWDS: tuple[tuple[int, Storage], ...] = ((1000, "memory"), (100_000, "memory"), (100_000, "disk"))
"""Clients, and where their samples are and the states of those that were met."""
PICKED = 100


@contextmanager
def going(method: str, clients: int, storage: Storage, count: int) -> Iterator[tuple[Iterator[Round], LocalEngine]]:
    """So many rounds of a crowd, to be carried out one by one; the models of a hundred are tested after the last."""
    run, _ = work.planned(
        method, dataset=_pictures(11 * clients, 10 * clients), clients=clients, partition="iid",
        model="lenet5", rounds=count, batch_size=10, epochs=1, lr=0.02, storage=storage,
    )  # fmt: skip
    share = min(PICKED, clients) / clients
    with LocalEngine(run.method, run.spec, work.clients(run), storage=storage) as engine:
        server = run.method.setup(run.spec)
        yield rounds(
            run.method, server, engine, Participation(share, share), evaluate_every=count, evaluate_clients=PICKED
        ), engine  # fmt: skip


def alone(point: dict[str, Any]) -> dict[str, Any]:
    """All rounds of one crowd: how many clients were met, and the largest resident set."""
    with single_thread(), going(point["method"], point["clients"], point["storage"], point["rounds"]) as (each, engine):
        for _ in each:
            pass
        return {"met": len(engine.states.met), "peak_mib_alone": round(own_peak() / MEBI)}


def in_turns(point: dict[str, Any]) -> dict[str, Any]:
    """Seconds of a round of each crowd; the first and the last are not counted."""
    crowds, spent = point["crowds"], [list[float]() for _ in point["crowds"]]
    with single_thread(), ExitStack() as stack:
        each = [
            stack.enter_context(going(point["method"], clients, storage, point["rounds"]))[0]
            for clients, storage in crowds
        ]
        for _ in range(point["rounds"] - 1):
            for mine, times in zip(each, spent, strict=True):
                began = time.process_time()
                next(mine)
                times.append(time.process_time() - began)
    return {"round_seconds": [median(times[1:]) for times in spent]}


def _pictures(count: int, training: int) -> Dataset:
    """Noise around ten pictures, made a few at a time: with floats of all of them, the data would decide the peak."""
    rng, labels = np.random.default_rng(0), np.arange(count) % 10
    pictures, x = rng.integers(0, 200, (10, 28, 28)), np.empty((count, 28, 28), np.uint8)
    for start in range(0, count, 10_000):
        some = pictures[labels[start : start + 10_000]]
        x[start : start + 10_000] = some + rng.integers(0, 56, some.shape)
    return Dataset(
        "mnist", x[:training], labels[:training], x[training:], labels[training:], Classification(10)
    )  # fmt: skip


def measure(*, tiny: bool = False) -> list[dict[str, Any]]:
    crowds = ((10, "memory"), (20, "disk")) if tiny else CROWDS
    found = []
    for method in METHODS:
        point = {"method": method, "crowds": crowds, "rounds": 4 if tiny else 24}
        times = measured("benchmarks.crowds", point)["round_seconds"]
        for (clients, storage), seconds in zip(crowds, times, strict=True):
            one = {"method": method, "clients": clients, "storage": storage, "rounds": 3 if tiny else 8}
            found.append({**measured("benchmarks.crowds", one), "round_seconds": seconds, "times": seconds / times[0]})
    return found


if __name__ == "__main__":
    asked = json.loads(sys.argv[1])
    print(json.dumps(in_turns(asked) if "crowds" in asked else alone(asked)))
