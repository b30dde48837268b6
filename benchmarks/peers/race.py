"""Side by side with peers: FedAvg, the same model, start, data, batches, epochs and participation; no evaluation.

Each contestant is a process of its own in an environment of its own, made here and no part of the package. They take
turns, one round each, and a round's time is taken inside the contestant. Before a round counts, each has done one.
"""

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import venv
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import numpy as np

from benchmarks import steps, work
from benchmarks.machine import family, median
from benchmarks.peers.contest import Work
from fedgraft.data.partition import SCHEMES

HERE = Path(__file__).parent
OURS = "fedgraft"


@dataclass(frozen=True)
class Contestant:
    """A script and its arguments behind the work's path; ``peer`` names the environment it needs."""

    name: str
    script: str
    arguments: tuple[str, ...]
    peer: str | None = None


FIELD = (
    Contestant(OURS, "run_fedgraft.py", ("2", "auto")),
    Contestant("fedgraft, kernels torch", "run_fedgraft.py", ("2", "torch")),
    Contestant("fluke", "run_fluke.py", ("1",), "fluke"),
    Contestant("fluke, two threads", "run_fluke.py", ("2",), "fluke"),
    Contestant("flower", "run_flower.py", ("2", "flower_client"), "flower"),
    Contestant("flower, as in its tutorials", "run_flower.py", ("2", "flower_tutorial"), "flower"),
    Contestant("pfl", "run_pfl.py", ("2",), "pfl"),
)
PATIENCE = 600
"""Seconds that an answer may take; the first one has the start of a framework in it."""
WITHOUT_REQUIREMENTS = {"fluke": "fluke-fl==0.8.1", "pfl": "pfl==0.6.0"}


def environment(folder: Path, peer: str) -> Path:
    """Make the peer's environment if it is not there yet; return its Python."""
    place = folder / peer
    python, mark = place / "bin" / "python", place / "installed"
    wanted = WITHOUT_REQUIREMENTS.get(peer, "") + (HERE / "requirements" / f"{peer}.txt").read_text()
    if mark.exists() and mark.read_text() == wanted:
        return python
    print(f"installing {peer} into {place} ...", flush=True)
    venv.create(place, with_pip=True, clear=True)
    wishes = [["--requirement", str(HERE / "requirements" / f"{peer}.txt")]]
    if peer in WITHOUT_REQUIREMENTS:
        wishes.insert(0, ["--no-deps", WITHOUT_REQUIREMENTS[peer]])
    for wish in wishes:
        done = subprocess.run(
            [str(python), "-m", "pip", "install", "--disable-pip-version-check", *wish],
            capture_output=True, text=True, check=False,
        )  # fmt: skip
        if done.returncode:
            raise SystemExit(f"{peer} could not be installed:\n{done.stderr[-2000:]}")
    mark.write_text(wanted)
    return python


class Player:
    """A contestant's process, asked for one round at a time."""

    def __init__(self, contestant: Contestant, python: Path, path: Path, log: IO[str]) -> None:
        command = [str(python), str(HERE / contestant.script), str(path), *contestant.arguments]
        settings = os.environ | {"OMP_NUM_THREADS": "1" if "two threads" not in contestant.name else "2"}
        self.name = contestant.name
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, text=True, env=settings
        )
        self.facts = self.heard()

    def heard(self) -> dict[str, Any]:
        assert self.process.stdout is not None
        patience = threading.Timer(PATIENCE, self.stop)
        patience.start()
        line = self.process.stdout.readline()
        patience.cancel()
        if not line:
            raise SystemExit(f"{self.name} ended before its time, or took longer than {PATIENCE} s; its log tells why")
        return dict(json.loads(line))

    def round(self) -> dict[str, Any]:
        assert self.process.stdin is not None
        self.process.stdin.write("go\n")
        self.process.stdin.flush()
        return self.heard()

    def end(self) -> float:
        """Let it finish; return the accuracy of its last model."""
        assert self.process.stdin is not None
        self.process.stdin.close()
        accuracy = float(self.heard()["accuracy"])
        self.process.wait(timeout=PATIENCE)
        return accuracy

    def stop(self) -> None:
        """End it with all that it started, if it is still there."""
        if self.process.poll() is None:
            for pid in reversed(family(self.process.pid)):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)


@contextlib.contextmanager
def players(field: Sequence[Contestant], environments: Path, path: Path) -> Iterator[list[Player]]:
    with contextlib.ExitStack() as stack:
        ready = []
        for contestant in field:
            python = Path(sys.executable) if contestant.peer is None else environment(environments, contestant.peer)
            name = contestant.name.replace(", ", "-").replace(" ", "-")
            environments.mkdir(parents=True, exist_ok=True)
            log = stack.enter_context((environments / f"{name}.log").open("w"))
            player = Player(contestant, python, path, log)
            stack.callback(player.stop)
            ready.append(player)
        yield ready


def race(field: Sequence[Contestant], environments: Path, job: Work, turns: int) -> list[dict[str, Any]]:
    """Everybody's rounds in turns; ratios are those of the medians, ours being 1."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "work.npz"
        job.write(path)
        with players(field, environments, path) as ready:
            for player in ready:
                player.round()
            rounds: list[list[dict[str, Any]]] = [[] for _ in ready]
            for _ in range(turns):
                for player, done in zip(ready, rounds, strict=True):
                    done.append(player.round())
                    print(f"  {player.name}: {done[-1]['seconds']:.2f} s", flush=True)
            rows = [
                {
                    "contestant": player.name, **{k: v for k, v in player.facts.items() if k != "ready"},
                    "round_seconds": median(this["seconds"] for this in done),
                    "each_seconds": [round(this["seconds"], 3) for this in done],
                    "steps": done[-1]["steps"], "accuracy": player.end(),
                }
                for player, done in zip(ready, rounds, strict=True)
            ]  # fmt: skip
    for row in rows:
        row["ratio"] = row["round_seconds"] / rows[0]["round_seconds"]
    return rows


def job(*, tiny: bool, clients: int, partition: str, cohort: int, batch_size: int, epochs: int) -> tuple[Work, str]:
    """The work as arrays that every contestant reads."""
    data, origin = work.images("cifar10", tiny=tiny)
    held = SCHEMES.make(partition).split(data.y_train, data.y_test, clients, 0).train
    order = np.concatenate(held)
    images = np.concatenate([data.x_train, data.x_test])[order]
    labels = np.concatenate([data.y_train, data.y_test])[order].astype(np.int64)
    start = steps.first_weights()
    names = steps.textbook_lenet5().state_dict()
    return Work(
        images=images, labels=labels, edges=np.cumsum([0, *map(len, held)]),
        test_images=data.x_test[:2000], test_labels=data.y_test[:2000].astype(np.int64),
        weights={name: value.numpy() for name, value in zip(names, start.values(), strict=True)},
        lr=0.05, epochs=epochs, batch_size=batch_size, cohort=cohort,
    ), origin  # fmt: skip


SILOS: dict[str, Any] = {"clients": 20, "partition": "dirichlet:0.1", "cohort": 20, "batch_size": 64, "epochs": 2}
DEVICES: dict[str, Any] = {"clients": 1000, "partition": "iid", "cohort": 50, "batch_size": 10, "epochs": 1}


def measure(environments: Path, *, tiny: bool = False, field: Sequence[Contestant] = FIELD) -> dict[str, Any]:
    few: dict[str, Any] = {"clients": 4, "cohort": 4, "batch_size": 16, "partition": "iid"}
    settings = {"silos": SILOS | few} if tiny else {"silos": SILOS, "devices": DEVICES}
    result: dict[str, Any] = {}
    for name, setting in settings.items():
        print(f"{name}: {setting}", flush=True)
        mine, origin = job(tiny=tiny, **setting)
        turns = 2 if tiny else 4 if name == "silos" else 15
        result[name] = {"setting": setting, "data": origin, "turns": turns, "lr": mine.lr, "momentum": 0.0}
        result[name]["contestants"] = race(field, environments, mine, turns)
    return result
