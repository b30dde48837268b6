"""Attacks on the directory of a run: its lock, its files, what is read from them."""

import os
from pathlib import Path
from random import Random

from fedgraft.core import disk
from fedgraft.core.errors import UserError
from trials.attack import BreachError, attack


@attack("directories: a lock that is a link", "the file that the link leads to is as it was, and a sentence says so")
def _lock_is_a_link(folder: Path, rng: Random) -> str:
    precious, place = folder / "precious", folder / "run"
    precious.write_bytes(rng.randbytes(100))
    before = precious.read_bytes()
    place.mkdir()
    (place / disk.LOCK).symlink_to(precious)
    try:
        with disk.locked(place):
            pass
    except UserError:
        if precious.read_bytes() != before:
            raise BreachError("the file was changed") from None
        return "refused"
    raise BreachError("the lock was taken through the link")


@attack("directories: a race for the lock", "at most one process holds it", processes=True)
def _race(folder: Path, rng: Random) -> str:
    if found := overlaps(folder, processes=4, times=2000):
        raise BreachError(f"{found} of 8,000 acquisitions overlapped")
    return "no overlap in 8,000 acquisitions"


def overlaps(folder: Path, *, processes: int, times: int) -> int:
    """Let processes take the lock of a folder ``times`` times each, and count the moments in which two had it."""
    readers = {}
    for _ in range(processes):
        reader, writer = os.pipe()
        if not (child := os.fork()):
            os.write(writer, _disturbed(folder, times).to_bytes(4, "big"))
            os._exit(0)
        os.close(writer)
        readers[child] = reader
    found = 0
    for child, reader in readers.items():
        with os.fdopen(reader, "rb") as stream:
            found += int.from_bytes(stream.read(4), "big")
        os.waitpid(child, 0)
    return found


def _disturbed(folder: Path, times: int) -> int:
    found = 0
    while times:
        try:
            with disk.locked(folder):
                try:
                    os.close(os.open(folder / "inside", os.O_CREAT | os.O_EXCL))
                except FileExistsError:
                    found += 1
                times -= 1
                (folder / "inside").unlink(missing_ok=True)
        except UserError:
            continue
    return found
