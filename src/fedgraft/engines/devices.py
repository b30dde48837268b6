"""The devices that clients train on: which there are, and which of them each worker of a run has.

Nothing here opens a device in this process, and nothing else in the process that leads a run does. CUDA does not
survive a fork: a process that has opened it, or only counted devices by its driver, can fork no worker that uses it. So
a process of its own is asked what there is, and a worker opens its device when it has begun.
"""

import json
import multiprocessing
import os
import re
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, TypeVar, cast

import torch

from fedgraft.base.errors import UserError

_T = TypeVar("_T")
CPU, CUDA = "cpu", "cuda"
_NAME = re.compile(r"(cpu|cuda|mps|xpu)(:\d+)?")
_ASK = """
import json
from torch import cuda
print(json.dumps([[cuda.get_device_name(n), *cuda.mem_get_info(n)] for n in range(cuda.device_count())]))
"""
_PATIENCE = 120.0


@dataclass(frozen=True)
class Device:
    """A device as its driver tells of it: what its maker calls it, and bytes of its memory."""

    name: str
    label: str = ""
    free: int | None = None
    """None: nobody asks, as of the memory of a processor."""
    total: int | None = None

    def __str__(self) -> str:
        told = "" if self.free is None or self.total is None else f", {self.free:,} of {self.total:,} bytes free"
        return f"{self.name} {self.label}".rstrip() + told


def listed(text: str) -> tuple[str, ...]:
    """Read ``cpu``, ``cuda`` or ``cuda:0,cuda:1``: devices of one kind, since others would round otherwise."""
    names = tuple(part.strip() for part in text.split(","))
    for name in names:
        if not _NAME.fullmatch(name):
            raise UserError(
                f"a device is cpu or cuda, or cuda:1 for the second, not {name!r}; commas are between several"
            )
    if len(kinds := dict.fromkeys(map(kind, names))) > 1:
        raise UserError(
            f"device names {' and '.join(kinds)}, which do not end in the same bits: the clients of a run train on "
            "devices of one kind"
        )
    return names


def kind(name: str) -> str:
    """What a device is: cpu, cuda, ..."""
    return name.partition(":")[0]


def on_processor(text: str) -> bool:
    """Whether all clients train on the processor, and so to bits that settings and instruction sets decide."""
    return all(kind(part.strip()) == CPU for part in text.split(","))


def there(text: str) -> tuple[Device, ...]:
    """Return the devices that a text names, each once; ``cuda`` is every one that this process may use.

    What this machine does not have is refused.
    """
    known: Mapping[str, Device] = {}
    found: dict[str, Device] = {}
    for name in listed(text):
        if kind(name) == CPU:
            found[name] = Device(name)
        elif kind(name) != CUDA:
            found[name] = _other(name)
        else:
            known = known or {device.name: device for device in graphics()}
            if name != CUDA and name not in known:
                have = ", ".join(known)
                raise UserError(f"there is no device {name!r} here: {f'there are {have}' if have else _why_none()}")
            if not known:
                raise UserError(f"there is no device {name!r} here: {_why_none()}")
            found |= known if name == CUDA else {name: known[name]}
    return tuple(found.values())


def _other(name: str) -> Device:
    """A device of a kind that is used by the process that leads the run."""
    has = torch.backends.mps.is_available() if kind(name) == "mps" else torch.xpu.is_available()
    if not has:
        raise UserError(f"there is no device {name!r} here: this torch finds none of its kind")
    return Device(name)


def _why_none() -> str:
    return "the driver shows none" if _built() else "this torch was built without CUDA"


def _built() -> bool:
    return bool(torch.backends.cuda.is_built())  # type: ignore[no-untyped-call]


@cache
def graphics() -> tuple[Device, ...]:
    """Ask, in another process, which CUDA devices there are and what is free of their memory."""
    if not _built():
        return ()
    try:
        asked = subprocess.run(
            [sys.executable, "-c", _ASK], capture_output=True, text=True, timeout=_PATIENCE, check=True
        )
        rows = json.loads(asked.stdout)
    except subprocess.CalledProcessError as error:
        last = error.stderr.strip().rpartition("\n")[2]
        raise UserError(f"CUDA's devices do not answer: {last}") from None
    except (subprocess.TimeoutExpired, ValueError):
        raise UserError("CUDA's devices do not answer; does nvidia-smi show them?") from None
    return tuple(Device(f"{CUDA}:{number}", label, free, total) for number, (label, free, total) in enumerate(rows))


def seats(devices: Sequence[Device], need: int, workers: int, *, told: bool) -> tuple[str, ...]:
    """Give each of some workers a device: one after another, as long as ``need`` bytes are free there.

    If the number of ``workers`` was ``told``, all of them have to fit; else as many as do, and one at least.
    """
    room = {device.name: workers if device.free is None else device.free // need for device in devices}
    if not any(room.values()):
        largest = max(devices, key=lambda device: device.free or 0)
        raise UserError(
            f"a worker needs about {need:,} bytes on its device, and {largest.name} has {largest.free or 0:,} free: "
            "take a smaller batch_size or model, or end what else is at work there"
        )
    if told and sum(room.values()) < workers:
        free = ", ".join(f"{device.name} has {device.free:,} free" for device in devices)
        raise UserError(
            f"{workers} workers need about {need:,} bytes each, and {free}: there is room for {sum(room.values())} "
            "(workers = auto takes as many as fit)"
        )
    taken: list[str] = []
    while len(taken) < workers and any(room.values()):
        for name in [name for name, left in room.items() if left][: workers - len(taken)]:
            taken.append(name)
            room[name] -= 1
    return tuple(taken)


def share(places: Sequence[str], rank: int, ranks: int) -> tuple[str, ...]:
    """Return the devices of one of several processes on a machine that were started for one run."""
    return tuple(places[rank::ranks]) or (places[rank % len(places)],)


def forks(place: torch.device) -> bool:
    """Whether a worker for a device may be forked: always, unless this process was at CUDA before.

    Nothing tells that here, where everything works; a child knows it, and is asked.
    """
    if not hasattr(os, "fork"):
        return False
    if place.type != CUDA:
        return True
    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        return False
    child = os.fork()
    if not child:
        os._exit(int(torch.cuda._is_in_bad_fork()))
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def opened(place: torch.device) -> None:
    """Open the device of this worker."""
    if place.type == CPU:
        return
    try:
        torch.zeros(1, device=place)
    except (RuntimeError, AssertionError) as error:
        raise UserError(f"{place} does not open in a worker process: {str(error).partition(chr(10))[0]}") from None
    if place.type == CUDA:
        torch.cuda.set_device(place)


def aside(place: str, work: Callable[[], _T]) -> _T:
    """Do something on a device that this process does not open: in a child that ends with it."""
    if kind(place) != CUDA or not forks(torch.device(place)):  # if it cannot fork, it was opened here before
        return work()
    return elsewhere(work)


def elsewhere(work: Callable[[], _T]) -> _T:
    """Do something in a forked child; what it gives, or raises, comes back."""
    context: Any = multiprocessing.get_context("fork")
    mine, theirs = context.Pipe(duplex=False)

    def life() -> None:
        try:
            theirs.send((work(), None))
        except Exception as error:
            theirs.send((None, error))

    child = context.Process(target=life, daemon=True)
    child.start()
    theirs.close()
    try:
        value, error = mine.recv()
    except EOFError:
        child.join()
        raise RuntimeError(f"a process for a device died (exit code {child.exitcode})") from None
    child.join()
    if error is not None:
        raise error
    return cast("_T", value)


def out_of_memory(place: torch.device, error: torch.OutOfMemoryError) -> UserError:
    """Say what to do when the memory of a device was too small after all."""
    first = str(error).partition("\n")[0].partition(". ")[0]
    return UserError(
        f"the memory of {place} was too small ({first}): go on with fewer --workers to share it, or with another "
        "--device (`fedgraft resume` takes both); a smaller batch_size or model needs less, and is another run"
    )
