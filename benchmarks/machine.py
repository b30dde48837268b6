"""Facts of the machine, and how much memory a family of processes holds."""

import json
import platform
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import torch

from fedgraft import kernels
from fedgraft.engines.local import cores

MEBI = 2**20


def facts() -> dict[str, Any]:
    """What a figure depends on; nothing that would name the machine."""
    return {
        "cpu": _cpu(),
        "cores": cores(),
        "memory_gib": round(_entries(Path("/proc/meminfo")).get("MemTotal", 0) / 2**30),
        "load": _load(),
        "system": f"{platform.system()} {platform.machine()}",
        "python": platform.python_version(),
        "torch": torch.__version__,
        "kernels": kernels.describe("auto"),
    }


def median(values: Iterable[float]) -> float:
    return statistics.median(values)


def measured(module: str, point: Mapping[str, Any], *, every: float = 0.2) -> dict[str, Any]:
    """Run ``module`` in a fresh process on ``point``, and add to what it prints how much memory it needed.

    Peak memory is the largest sum of what the process and its workers held at one time, shared pages counted once
    (proportional set size), as seen ``every`` so many seconds; ``peak_parent_mib`` is the parent's own exact peak.
    """
    command = [sys.executable, "-m", module, json.dumps(point)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        peak, over = [0], threading.Event()

        def watch() -> None:
            while not over.wait(every):
                peak[0] = max(peak[0], sum(map(held, family(process.pid))))

        watcher = threading.Thread(target=watch)
        watcher.start()
        try:
            output = process.communicate()[0]
        finally:
            over.set()
            watcher.join()
    if process.returncode:
        raise SystemExit(f"{module} failed on {dict(point)}")
    return {**point, **json.loads(output.splitlines()[-1]), "peak_mib": round(peak[0] / MEBI)}


def own_peak() -> int:
    """The largest resident set of this process so far, in bytes."""
    return _entries(Path("/proc/self/status")).get("VmHWM", 0)


def family(pid: int) -> list[int]:
    """A process and all its descendants."""
    members = [pid]
    for member in members:
        for task in Path(f"/proc/{member}/task").glob("*/children"):
            try:
                members += map(int, task.read_text().split())
            except OSError:  # it ended while we looked
                continue
    return members


def held(pid: int) -> int:
    """Bytes that a process holds, what it shares with others counted in proportion."""
    try:
        return _entries(Path(f"/proc/{pid}/smaps_rollup")).get("Pss", 0)
    except OSError:
        return 0


def stamp() -> str:
    return time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime())


def _entries(path: Path) -> dict[str, int]:
    """Sizes in a file of /proc, in bytes; none where there is no such file."""
    if not path.exists():
        return {}
    lines = (line.split() for line in path.read_text().splitlines())
    return {words[0].rstrip(":"): int(words[1]) * 1024 for words in lines if len(words) == 3 and words[2] == "kB"}


def _cpu() -> str:
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or "unknown"


def _load() -> float | None:
    path = Path("/proc/loadavg")
    return float(path.read_text().split()[0]) if path.exists() else None
