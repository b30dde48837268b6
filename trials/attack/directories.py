"""Attacks on the directory of a run: its lock, its files, what is read from them."""

import os
from pathlib import Path
from random import Random

import fedgraft as fg
from fedgraft.base import disk
from fedgraft.base.errors import UserError
from fedgraft.core.rounds import Round
from fedgraft.runs.config import MACHINE
from fedgraft.runs.run import Run
from trials.attack import BreachError, attack
from trials.fuzz.federation import network, small_federation, small_run


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


class _Interrupt:
    def begin(self, run: Run) -> None: ...

    def round(self, run: Run, this: Round) -> None:
        raise KeyboardInterrupt

    def end(self, run: Run) -> None: ...


def _torn(place: Path) -> Path:
    """Make a run that was interrupted after its first round."""
    try:
        small_run("fedavg", rounds=3, out=place, checkpoint_every=1, watchers=[_Interrupt()])
    except KeyboardInterrupt:
        return place
    raise AssertionError("it was not interrupted")


@attack("directories: a configuration changed under a run", "resuming is refused, and nothing is written")
def _other_configuration(folder: Path, rng: Random) -> str:
    place = _torn(folder / "run")
    file = place / "config.toml"
    lines = file.read_text().splitlines(keepends=True)
    chosen = [n for n, line in enumerate(lines) if "=" in line and line.split(" =")[0] not in MACHINE]
    if rng.random() < 0.5:
        del lines[rng.choice(chosen) :]
    else:
        number = rng.choice(chosen)
        lines[number] = (
            lines[number].split("=")[0] + f"= {rng.choice(['7', '0.5', 'true', '[]', chr(34) + 'x' + chr(34)])}\n"
        )
    file.write_text("".join(lines))
    before = {each: each.read_bytes() for each in place.rglob("*") if each.is_file()}
    try:
        fg.resume(place, small_federation(), model=network)
    except UserError:
        if before != {each: each.read_bytes() for each in place.rglob("*") if each.is_file()}:
            raise BreachError("files were changed") from None
        return "refused"
    raise BreachError("the run went on")


@attack("directories: labels changed under a run", "resuming is refused in a sentence that names the client")
def _other_labels(folder: Path, rng: Random) -> str:
    place, fed = _torn(folder / "run"), small_federation()
    victim = rng.randrange(len(fed))
    labels = fed.clients[victim].train.labels
    labels[rng.randrange(len(labels))] += 1
    try:
        fg.resume(place, fed, model=network)
    except UserError as error:
        if f"the training labels of client {victim} are others" not in str(error):
            raise BreachError(f"refused for another reason: {error}") from None
        return "refused"
    raise BreachError("the run went on")


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
