"""A million clients: FedAvg with a tiny network, samples and states on disk, in one process and on two ranks.

Every client has four training samples and a test sample, made-up pictures of 8x8 bytes that are mapped from a file. The
seconds are those of the processor, so that a busy machine counts less. All points of as many clients with the same
share of them in a round end in the same weights, whose checksum is among the figures.
"""

import hashlib
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

import fedgraft as fg
from benchmarks.clock import Stopwatch
from benchmarks.machine import MEBI, own_peak
from fedgraft.runs.run import Run

EACH, PIXELS = (4, 1), (8, 8)
CROWD: dict[str, Any] = {"method": "fedavg", "model": "mlp:4", "storage": "disk", "learned": "weights/0"}
"""What a point is, unless it says otherwise; ``learned`` is what the server has in the end, for the checksum."""
LOAD = """
from pathlib import Path
import numpy as np

def load():
    return {file.stem: np.load(file, mmap_mode="c") for file in Path(__file__).parent.glob("?_t*.npy")}
"""


def pictures(place: Path, clients: int) -> None:
    """Ten pictures again and again, each with a byte of its own."""
    rng = np.random.default_rng(0)
    ten = rng.integers(0, 200, (10, *PIXELS)).astype(np.uint8)
    for part, each in zip(("train", "test"), EACH, strict=True):
        y = np.arange(each * clients) % 10
        x = np.lib.format.open_memmap(place / f"x_{part}.npy", "w+", np.uint8, (len(y), *PIXELS))
        for start in range(0, len(y), 100_000):
            x[start : start + 100_000] = ten[y[start : start + 100_000]]
        x[:, 0, 0] = np.arange(len(y)) % 251
        np.save(place / f"y_{part}.npy", y)
    (place / "crowd.py").write_text(LOAD)


def simulate(point: dict[str, Any], place: Path) -> None:
    """One run, or this rank's part of it; its figures go to a file, since only the first rank comes back."""
    point = CROWD | point
    clock, rank = Stopwatch(time.process_time), int(os.environ.get("RANK", 0))
    began = time.perf_counter()
    done: Run | None = None
    try:
        done = fg.run(
            point["method"], dataset=f"{place / 'crowd.py'}:load", clients=point["clients"], partition="iid",
            model=point["model"], rounds=point["rounds"], epochs=1, batch_size=4, participation=str(point["share"]),
            workers=1, evaluate_every=point["rounds"], evaluate_clients=100, storage=point["storage"],
            engine=point["engine"],
            out=place / "runs" / f"{point['engine']}-{point['ranks']}-{point['clients']}-{point['share']}",
            watchers=[clock], progress=False,
        )  # fmt: skip
    finally:
        figures: dict[str, Any] = {
            "seconds": time.process_time(), "wall_seconds": time.perf_counter() - began,
            "peak_mib": round(own_peak() / MEBI),
        }  # fmt: skip
        if done is not None and done.server is not None:
            weights = done.server[point["learned"]].numpy().tobytes()
            starts = [clock.planned, *clock.rounds]
            figures |= {
                "planned_seconds": clock.planned, "written_seconds": clock.ended - clock.rounds[-1],
                "round_seconds": [after - before for before, after in zip(starts, clock.rounds, strict=False)],
                "accepted": [record["accepted"] for record in done.records],
                "whole_rounds": [record["seconds"] for record in done.records],
                "server_rounds": [record["server_seconds"] for record in done.records],
                "checksum": hashlib.sha256(weights).hexdigest()[:16],
            }  # fmt: skip
        (place / f"rank-{rank}.json").write_text(json.dumps(figures))


def measured(point: dict[str, Any], place: Path) -> dict[str, Any]:
    """Run a point in fresh processes, as many as it has ranks."""
    ranks = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(point["ranks"])]
    command = [sys.executable, *(ranks if point["engine"] == "distributed" else []), "-m", "benchmarks.million"]
    subprocess.run([*command, json.dumps(point), str(place)], check=True, stdout=subprocess.DEVNULL)
    figures = [json.loads((place / f"rank-{rank}.json").read_text()) for rank in range(point["ranks"])]
    others = {"other_seconds": [each["seconds"] for each in figures[1:]],
              "other_peaks_mib": [each["peak_mib"] for each in figures[1:]]}  # fmt: skip
    return {**point, **figures[0], **others}


def points(*, tiny: bool) -> list[dict[str, Any]]:
    many, crowd = (12_000, 2_000) if tiny else (1_000_000, 50_000)
    rounds = [
        {"clients": many, "share": 0.001, "rounds": 3},
        {"clients": crowd, "share": 1.0, "rounds": 1},
    ]
    return [
        {**each, "engine": engine, "ranks": ranks}
        for each in rounds
        for engine, ranks in (("local", 1), ("distributed", 2))
    ]


def measure(*, tiny: bool = False) -> list[dict[str, Any]]:
    return each_measured(points(tiny=tiny))


def each_measured(points: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Measure points one after another, each with files of its own."""
    found = []
    for point in points:
        with tempfile.TemporaryDirectory() as folder:
            place = Path(folder)
            pictures(place, point["clients"])
            found.append(measured(point, place))
    return found


if __name__ == "__main__":
    simulate(json.loads(sys.argv[1]), Path(sys.argv[2]))
