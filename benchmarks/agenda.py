"""Many small runs on one agenda: one after another, by several processes, and by processes that are killed."""

import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from fedgraft.engines.local import cores
from fedgraft.runs.agenda import Agenda, Entry
from fedgraft.runs.config import configure

SETTINGS: dict[str, Any] = {"clients": 10, "model": "cnn-digits", "rounds": 20, "evaluate_every": 5}
TINY: dict[str, Any] = {"clients": 2, "partition": "iid", "model": "mlp:4", "rounds": 2}
METHODS = ("local", "fedavg", "fedper", "ditto")
EVERY = 5.0
"""Seconds between two kills."""


def written(place: Path, *, tiny: bool) -> Agenda:
    setting = TINY if tiny else SETTINGS
    entries = [
        Entry.of(f"{method}-seed{seed}", configure(setting, {"method": method, "seed": seed}), method)
        for seed in range(1 if tiny else 6)
        for method in METHODS
    ]
    made = Agenda(place, tuple(entries))
    made.write()
    return made


def started(agenda: Agenda, workers: int) -> "subprocess.Popen[bytes]":
    return subprocess.Popen(
        [sys.executable, "-m", "fedgraft", "work", str(agenda.place), "--quiet", "--fresh", "--workers", str(workers)]
    )


def timed(agenda: Agenda, processes: int, workers: int) -> float:
    began = time.perf_counter()
    for process in [started(agenda, workers) for _ in range(processes)]:
        assert process.wait() == 0
    assert agenda.states() == {"done": len(agenda.entries)}
    return time.perf_counter() - began


def at_work(agenda: Agenda, process: "subprocess.Popen[bytes]") -> bool:
    return any((agenda.holder(entry) or "").endswith(f" {process.pid}") for entry in agenda.entries)


def disturbed(agenda: Agenda, every: float) -> dict[str, Any]:
    """Two processes, the older of which is killed every so many seconds, in the middle of a run."""
    began = time.perf_counter()
    crew, kills, last, seen = [started(agenda, 1) for _ in range(2)], 0, began, 0
    while agenda.left():
        done = agenda.states()["done"]  # on a busy machine some run has to end between two kills, or none ever would
        if done > seen and time.perf_counter() - last > every and at_work(agenda, crew[0]):
            crew[0].kill()
            crew[0].wait()
            crew, kills, last, seen = [*crew[1:], started(agenda, 1)], kills + 1, time.perf_counter(), done
        time.sleep(0.05)
    seconds = time.perf_counter() - began
    for process in crew:
        process.wait()
    logs = [(agenda.place / "queue" / f"{entry.directory}.log").read_text() for entry in agenda.entries]
    finished = [log.count(" finished\n") for log in logs]
    return {
        "every": every, "kills": kills, "seconds": seconds,
        "lost": finished.count(0), "twice": sum(count > 1 for count in finished),
    }  # fmt: skip


def results(agenda: Agenda) -> list[Any]:
    """What the runs measured, without the times that they took."""
    read = [json.loads((agenda.folder(entry) / "result.json").read_text()) for entry in agenda.entries]
    return [
        [{name: value for name, value in record.items() if "seconds" not in name} for record in result["rounds"]]
        for result in read
    ]


def measure(*, tiny: bool = False) -> dict[str, Any]:
    setting = TINY if tiny else SETTINGS
    with tempfile.TemporaryDirectory() as folder:
        table, first = [], None
        for processes, workers in ((1, cores()), (1, 1), (2, 1), (4, 1))[: 2 if tiny else 4]:
            agenda = written(Path(folder) / f"{processes}x{workers}", tiny=tiny)
            seconds = timed(agenda, processes, workers)
            first = first or (seconds, results(agenda))
            assert results(agenda) == first[1]
            table.append({"processes": processes, "workers": workers, "seconds": seconds, "ratio": first[0] / seconds})
        assert first is not None
        agenda = written(Path(folder) / "killed", tiny=tiny)
        killed = disturbed(agenda, EVERY)
        killed["same"] = results(agenda) == first[1]
    words = f"{', '.join(METHODS)} on digits, {setting['clients']} clients, {setting['rounds']} rounds"
    return {"runs": len(agenda.entries), "setting": words, "table": table, "killed": killed}
