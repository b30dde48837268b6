"""Checkpoints: the server, every client, the history of the rounds. Nothing else is needed to go on bit for bit.

A checkpoint is a folder of safetensors files with a manifest of their checksums, and a mark in the history beside it.
It is written aside, flushed to the disk and renamed, so that it is there whole or not at all; the last two are kept.
Nothing in it is ever executed.
"""

import hashlib
import json
import os
import re
import shutil
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from pydantic import BaseModel, ConfigDict
from safetensors import SafetensorError
from safetensors.torch import load
from torch import Tensor

from fedgraft.base import disk
from fedgraft.base.errors import UserError
from fedgraft.core.client import ClientId
from fedgraft.core.state import State
from fedgraft.runs import history
from fedgraft.runs.history import DamagedError, History, Mark

Entries = Callable[[], Iterator[tuple[str, Tensor]]]
FORMAT = 3
KEPT = 2
TENSORS = ("server.safetensors", "clients.safetensors")


class Manifest(BaseModel):
    """What a checkpoint holds, and the checksums of its files and of the history up to it."""

    model_config = ConfigDict(extra="forbid", strict=True)

    format: int = FORMAT
    round: int
    clients: int
    history: Mark
    digest: dict[str, str]
    sha256: dict[str, str]


@dataclass(frozen=True)
class Checkpoint:
    """Where a run was after ``round`` rounds, and what had happened in them."""

    round: int
    server: Mapping[str, Tensor]
    clients: Mapping[ClientId, State]
    history: History = field(default_factory=History)
    digest: Mapping[str, str] = field(default_factory=dict)
    """Checksums of the settings and the data of the run that it belongs to."""


def begin(folder: Path | None) -> History:
    """Return the history of a run that has its checkpoints in ``folder``, if it has any, and has not begun."""
    return History() if folder is None else History(folder / history.FILE)


def write(folder: Path, checkpoint: Checkpoint) -> None:
    """Add a checkpoint to ``folder`` and drop the ones before the last two."""
    folder.mkdir(exist_ok=True)
    mark = checkpoint.history.save()
    assert mark.rounds == checkpoint.round
    aside = folder / f".{_name(checkpoint.round)}.part"
    shutil.rmtree(aside, ignore_errors=True)
    aside.mkdir()
    parts: tuple[Entries, ...] = (lambda: iter(sorted(checkpoint.server.items())), lambda: _joined(checkpoint.clients))
    sums = {name: disk.write_tensors(aside / name, part) for name, part in zip(TENSORS, parts, strict=True)}
    manifest = Manifest(
        round=checkpoint.round, clients=len(checkpoint.clients), history=mark, digest=dict(checkpoint.digest),
        sha256=sums,
    )  # fmt: skip
    with (aside / "manifest.json").open("wb") as stream:
        stream.write(manifest.model_dump_json(indent=2).encode())
        stream.flush()
        os.fsync(stream.fileno())
    place = folder / _name(checkpoint.round)
    if place.exists():
        shutil.rmtree(place)
    aside.rename(place)
    disk.flush_folder(folder)
    _drop(folder, checkpoint.round)


def _drop(folder: Path, newest: int) -> None:
    """Drop what is older than the last two, and what was ahead: the history that it belonged to is cut off."""
    places = _places(folder)
    ahead = [place for place in places if _number(place) > newest]
    for old in (*ahead, *[place for place in places if place not in ahead][:-KEPT]):
        shutil.rmtree(old, ignore_errors=True)


def read(
    folder: Path, like: Checkpoint | None = None, *, without: str = "the run begins again"
) -> tuple[Checkpoint | None, list[str]]:
    """Return the newest checkpoint that is whole, and a sentence about each newer one that is not.

    ``like`` is where the run begins: the same tensors, of the same shapes and types, have to be in its checkpoints, but
    for clients that were never met. ``without`` says what happens if none is whole.
    """
    complaints: list[str] = []
    places = _places(folder)
    while places:
        place = places.pop()
        try:
            found = _load(place)
            if like is not None:
                _insist_on_fit(found, like)
            return found, complaints
        except DamagedError as damage:
            instead = "an older one is used" if places else without
            complaints.append(f"the checkpoint {place.name} {damage}; {instead}")
    return None, complaints


def read_last(folder: Path, rounds: int) -> tuple[Checkpoint | None, str]:
    """Return the checkpoint after the last of so many rounds, or what is wrong with it, if it is there at all."""
    place = folder / _name(rounds)
    if not place.exists():
        return None, ""
    try:
        return _load(place), ""
    except DamagedError as damage:
        return None, f"{place} {damage}"


def _load(place: Path) -> Checkpoint:
    manifest = _manifest(place)
    contents: dict[str, dict[str, Tensor]] = {}
    for name in TENSORS:
        try:
            data = (place / name).read_bytes()
        except OSError as error:
            raise DamagedError(f"lacks {name}") from error
        if hashlib.sha256(data).hexdigest() != manifest.sha256.get(name):
            raise DamagedError(f"was altered or cut short: {name} has another checksum")
        try:
            contents[name] = load(data)
        except (SafetensorError, ValueError, RecursionError) as error:
            raise DamagedError(f"holds an unreadable {name}") from error
    server, states = contents[TENSORS[0]], _parted(contents[TENSORS[1]])
    if manifest.clients != len(states):
        raise DamagedError("does not hold every client that it should")
    past = History.read(place.parent / history.FILE, manifest.history)
    return Checkpoint(manifest.round, server, states, past, manifest.digest)


def _manifest(place: Path) -> Manifest:
    """Read a manifest, if it is one that we can read."""
    try:
        told = json.loads((place / "manifest.json").read_bytes())
        version = told["format"]
        manifest = Manifest.model_validate(told) if version == FORMAT else None
    except (OSError, ValueError, LookupError, TypeError, RecursionError) as error:
        raise DamagedError("has no readable manifest") from error
    if manifest is None:
        raise UserError(f"{place} has checkpoint format {version!r}, but this fedgraft reads format {FORMAT}")
    if not manifest.round == manifest.history.rounds == _number(place):
        raise DamagedError("belongs to another round than its name says")
    return manifest


def _insist_on_fit(found: Checkpoint, like: Checkpoint) -> None:
    """Refuse tensors that no checkpoint of this run could hold."""
    for what in found.digest.keys() | like.digest.keys():
        if found.digest.get(what) != like.digest.get(what):
            raise DamagedError(f"is of another run, with other {what}")
    if strange := sorted(found.clients.keys() - like.clients.keys()):
        raise DamagedError(f"is of another run: there is no client {strange[0]}")
    pairs = [("the server", found.server, like.server)]
    pairs += [(f"client {client}", state, like.clients[client]) for client, state in found.clients.items()]
    for owner, held, begun in pairs:
        for name, tensor in begun.items():
            if name not in held or (held[name].shape, held[name].dtype) != (tensor.shape, tensor.dtype):
                raise DamagedError(f"is of another run: {name!r} of {owner} is missing or of another shape")


def _joined(parts: Mapping[int, Mapping[str, Tensor]]) -> Iterator[tuple[str, Tensor]]:
    return ((f"{number}/{name}", tensor) for number in sorted(parts) for name, tensor in sorted(parts[number].items()))


def _parted(tensors: Mapping[str, Tensor]) -> dict[int, dict[str, Tensor]]:
    parts: dict[int, dict[str, Tensor]] = {}
    for key, tensor in tensors.items():
        number, slash, name = key.partition("/")
        if not slash or not re.fullmatch(r"[0-9]{1,9}", number):
            raise DamagedError(f"holds a tensor with the foreign name {key!r}")
        parts.setdefault(int(number), {})[name] = tensor
    return parts


def _name(number: int) -> str:
    return f"round-{number:06d}"


def _places(folder: Path) -> list[Path]:
    """The checkpoints in a folder, oldest first."""
    if not folder.is_dir():
        return []
    places = [place for place in folder.iterdir() if re.fullmatch(r"round-[0-9]{6,9}", place.name)]
    return sorted(places, key=_number)


def _number(place: Path) -> int:
    return int(place.name.removeprefix("round-"))
