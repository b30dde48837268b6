"""How seconds and memory of a round grow with clients, parameters and rounds; every point in a fresh process."""

import json
import sys
import time
from typing import Any

import numpy as np

from benchmarks import work
from benchmarks.machine import MEBI, measured, median, own_peak
from fedgraft.core.rounds import Participation, rounds
from fedgraft.core.task import Classification
from fedgraft.data.datasets import Dataset
from fedgraft.engines.local import LocalEngine
from fedgraft.engines.workshop import single_thread

WIDTHS = {10**4: 13, 10**5: 126, 10**6: 1258, 10**7: 12579}
"""Hidden units of a network of one hidden layer on 28x28 images, for so many parameters."""

CROWDS = ((1000, "memory"), (100_000, "memory"), (100_000, "disk"))


def simulate(point: dict[str, Any]) -> dict[str, Any]:
    """Some rounds on two workers; the first is not counted, and the last is evaluated."""
    settings: dict[str, Any] = {"batch_size": 50, "epochs": 1, "lr": 0.02, "partition": "iid"}
    dataset, origin = work.images(point["dataset"], tiny=point["tiny"])
    if limit := point.get("samples"):
        dataset = _first(dataset, limit)
    run, _ = work.planned(
        point["method"], dataset=dataset, clients=point["clients"], model=point["model"], rounds=point["rounds"],
        **settings,
    )  # fmt: skip
    began = time.perf_counter()
    with single_thread(), LocalEngine(run.method, run.spec, work.clients(run), workers=2) as engine:
        server = run.method.setup(run.spec)
        done = list(rounds(run.method, server, engine, Participation(), evaluate_every=run.spec.rounds))
    counted = done[1:]
    quarter = max(1, len(counted) // 4)
    return {
        "data": origin, "parameters": run.spec.layout(0).size, "samples_each": run.spec.samples[0],
        "round_seconds": median(this.seconds for this in counted),
        "first_quarter_seconds": median(this.seconds for this in counted[:quarter]),
        "last_quarter_seconds": median(this.seconds for this in counted[-quarter:]),
        "server_seconds": median(this.server_seconds for this in counted),
        "evaluation_seconds": done[-1].evaluation_seconds, "total_seconds": time.perf_counter() - began,
        "accuracy": done[-1].test["received"].pooled, "peak_parent_mib": round(own_peak() / MEBI),
    }  # fmt: skip


def crowd(point: dict[str, Any]) -> dict[str, Any]:
    """Rounds of a hundred clients out of very many, each with ten images of MNIST's size; the models of 100 are tested.

    One process: the seconds are those of the processor, so that a busy machine counts less.
    """
    clients, picked = point["clients"], min(100, point["clients"])
    run, _ = work.planned(
        point["method"], dataset=_pictures(11 * clients, 10 * clients), clients=clients, partition="iid",
        model="lenet5", rounds=point["rounds"], batch_size=10, epochs=1, lr=0.02, storage=point["storage"],
    )  # fmt: skip
    spent, began, share = [], time.process_time(), picked / clients
    with single_thread(), LocalEngine(run.method, run.spec, work.clients(run), storage=point["storage"]) as engine:
        server = run.method.setup(run.spec)
        for _ in rounds(
            run.method, server, engine, Participation(share, share),
            evaluate_every=run.spec.rounds, evaluate_clients=picked,
        ):  # fmt: skip
            spent.append(time.process_time() - began)
            began = time.process_time()
        met = len(engine.states.met)
    return {
        "round_seconds": median(spent[1:-1]), "met": met, "picked": picked,
        "peak_parent_mib": round(own_peak() / MEBI),
    }  # fmt: skip


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


def _first(dataset: Dataset, count: int) -> Dataset:
    return Dataset(
        dataset.name, dataset.x_train[:count], dataset.y_train[:count],
        dataset.x_test[:count], dataset.y_test[:count], dataset.task,
    )  # fmt: skip


def points(*, tiny: bool) -> dict[str, list[dict[str, Any]]]:
    by_clients = [
        {"method": method, "dataset": "mnist", "model": "lenet5", "clients": clients, "rounds": 3 if tiny else 4}
        for method in ("fedavg", "fedapa")
        for clients in ((2, 4) if tiny else (10, 100, 1000))
    ]
    by_parameters = [
        {"method": "fedapa", "dataset": "mnist", "model": f"mlp:{width}", "clients": 10, "rounds": 4, "samples": 1000}
        for count, width in WIDTHS.items()
        if not tiny or count < 10**5
    ]
    by_rounds = [
        {"method": "fedapa", "dataset": "digits", "model": "cnn-digits", "clients": 10, "rounds": count}
        for count in ((3, 6) if tiny else (20, 100, 500, 10_000))
    ]
    crowds = [
        {"kind": "crowd", "method": method, "clients": clients, "storage": storage, "rounds": 4 if tiny else 8}
        for method in ("fedavg", "fedper", "ditto", "apfl")
        for clients, storage in (
            ((20, "disk"),) if tiny else ((1000, "memory"), (100_000, "memory"), (100_000, "disk"))
        )
    ]
    return {"clients": by_clients, "parameters": by_parameters, "rounds": by_rounds, "crowds": crowds}


def measure(*, tiny: bool = False) -> dict[str, Any]:
    return {
        axis: [measured("benchmarks.growth", {**point, "tiny": tiny}) for point in some]
        for axis, some in points(tiny=tiny).items()
    }


if __name__ == "__main__":
    asked = json.loads(sys.argv[1])
    print(json.dumps(crowd(asked) if asked.get("kind") == "crowd" else simulate(asked)))
