"""How seconds and memory of a round grow with clients, parameters and rounds; every point in a fresh process."""

import json
import sys
import tempfile
import time
from itertools import pairwise
from pathlib import Path
from statistics import fmean
from typing import Any

import fedgraft as fg
from benchmarks import work
from benchmarks.clock import Stopwatch
from benchmarks.machine import MEBI, measured, median, own_peak
from fedgraft.core.rounds import Participation, rounds
from fedgraft.data.datasets import Dataset
from fedgraft.engines.local import LocalEngine
from fedgraft.engines.workshop import single_thread

WIDTHS = {10**4: 13, 10**5: 126, 10**6: 1258, 10**7: 12579}
"""Hidden units of a network of one hidden layer on 28x28 images, for so many parameters."""


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
    return {
        "data": origin, "parameters": run.spec.layout(0).size, "samples_each": run.spec.samples[0],
        "round_seconds": median(this.seconds for this in counted),
        "server_seconds": median(this.server_seconds for this in counted),
        "evaluation_seconds": done[-1].evaluation_seconds, "total_seconds": time.perf_counter() - began,
        "accuracy": done[-1].test["received"].pooled, "peak_parent_mib": round(own_peak() / MEBI),
    }  # fmt: skip


def whole(point: dict[str, Any]) -> dict[str, Any]:
    """A run as a user has it, with a directory in which its history and its checkpoints are kept.

    The seconds of a round are a mean, with what is written in between; the first round is not counted.
    """
    clock, began = Stopwatch(time.perf_counter), time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        fg.run(
            point["method"], dataset=point["dataset"], model=point["model"], clients=point["clients"],
            rounds=point["rounds"], evaluate_every=point["rounds"], batch_size=50, epochs=1, lr=0.02, partition="iid",
            workers=2, out=Path(folder) / "run", watchers=[clock], progress=False,
        )  # fmt: skip
        total = time.perf_counter() - began
        written = sum(file.stat().st_size for file in Path(folder).rglob("*") if file.is_file())
    spent = [after - before for before, after in pairwise(clock.rounds)]
    quarter = max(1, len(spent) // 4)
    return {
        "first_quarter_seconds": fmean(spent[:quarter]), "last_quarter_seconds": fmean(spent[-quarter:]),
        "total_seconds": total, "written_mib": written / MEBI, "peak_parent_mib": round(own_peak() / MEBI),
    }  # fmt: skip


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
        {
            "kind": "whole",
            "method": "fedapa",
            "dataset": "digits",
            "model": "cnn-digits",
            "clients": 10,
            "rounds": count,
        }
        for count in ((3, 6) if tiny else (20, 100, 500, 10_000))
    ]
    return {"clients": by_clients, "parameters": by_parameters, "rounds": by_rounds}


def measure(*, tiny: bool = False) -> dict[str, Any]:
    return {
        axis: [measured("benchmarks.growth", {**point, "tiny": tiny}) for point in some]
        for axis, some in points(tiny=tiny).items()
    }


if __name__ == "__main__":
    asked = json.loads(sys.argv[1])
    print(json.dumps(whole(asked) if asked.get("kind") == "whole" else simulate(asked)))
