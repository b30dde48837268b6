"""What a round costs on Flower beyond the same round of the local engine: LeNet-5, FedAvg, one epoch on little data.

Three ways, the same bits: the local engine with one worker; the real ServerApp and ClientApp over a Grid within one
process, with Flower's wire format and the private states on disk; and separate processes on this machine, a SuperLink,
a SuperExec and a SuperNode for each client. There Flower starts a Python process for every message, and on a few cores
so many of them stand in line: on machines of their own they would not. The SuperLink keeps its records in memory: under
this load its SQLite file answers with errors. A round is one message for training and, where
it is evaluated, one more for testing.
"""

import json
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.machine import median
from fedgraft.data.federation import Federation, Site, own_data
from fedgraft.deploy.application import write_app
from fedgraft.deploy.deployment import Deployment
from fedgraft.engines.flower.server import Rules
from fedgraft.runs.run import run
from trials.federated import Federated, agreed, write_sites

SETTINGS: dict[str, Any] = {"model": "lenet5", "training": {"lr": 0.01, "epochs": 1, "batch_size": 32}}
SAMPLES = 64
PATIENCE = 3600.0


def measure(*, tiny: bool) -> dict[str, Any]:
    rows = [_row(clients, 1 if tiny else 3) for clients in ((2,) if tiny else (1, 4, 20))]
    return {"samples": SAMPLES, "rows": rows}


def _row(clients: int, rounds: int) -> dict[str, Any]:
    """The three ways with so many clients; a first round, in which everything is cold, does not count."""
    fed, settings = _federation(clients), {**SETTINGS, "rounds": rounds + 1}
    row: dict[str, Any] = {"clients": clients, "rounds": rounds}
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        row["local"] = _seconds(run("fedavg", fed, workers=1, out=folder / "local", **settings).records)
        federated = Federated(folder / "grid", fed, {"method": "fedavg", **settings}, Rules(pause=0.0))
        row["grid"] = _seconds(federated.serve().records)
        row["processes"] = _seconds(_processes(folder / "processes", fed, settings))
    for way in ("grid", "processes"):
        row[f"{way}_overhead"] = row[way]["round"] - row["local"]["round"]
    return row


def _processes(folder: Path, fed: Federation, settings: dict[str, Any]) -> list[dict[str, Any]]:
    """Do the run with separate processes and return the records of its rounds."""
    names = write_sites(folder / "sites", fed)
    charter = agreed(fed, names, folder / "run", method="fedavg", rules={"deadline": PATIENCE}, **settings)
    write_app(folder / "app", charter)
    result = folder / "run" / "result.json"
    with Deployment(folder / "flower") as flower:
        flower.superlink(in_memory=True)
        flower.superexec()
        for name in names:
            flower.supernode(name, {"site": str(folder / "sites" / f"{name}.toml")})
        flower.submit(folder / "app")
        flower.wait_until(result.exists, "the run is over", seconds=PATIENCE)
    records: list[dict[str, Any]] = json.loads(result.read_text("utf-8"))["rounds"]
    return records


def _federation(clients: int) -> Federation:
    """Noise: how long a round takes does not depend on what it learns."""
    noise = np.random.default_rng(0)

    def draw(count: int) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
        return noise.integers(0, 256, (count, 32, 32, 3), np.uint8), np.arange(count) % 10

    return own_data([Site(*draw(SAMPLES), *draw(20)) for _ in range(clients)], name="noise")


def _seconds(records: Sequence[dict[str, Any]]) -> dict[str, float]:
    """Seconds of training and of testing in a round, the median of all but the first."""
    return {
        "round": median(record["seconds"] for record in records[1:]),
        "evaluation": median(record["evaluation_seconds"] for record in records[1:]),
    }
