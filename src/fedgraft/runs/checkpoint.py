"""Checkpoints: the server, every client, the record of the rounds. Nothing else is needed to go on bit for bit.

A checkpoint is a folder of safetensors and JSON files with a manifest of their checksums. It is written aside, flushed
to the disk and renamed, so that it is there whole or not at all; the last two are kept. Nothing in it is ever executed.
"""

import hashlib
import json
import os
import re
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load
from torch import Tensor

from fedgraft.core import disk
from fedgraft.core.client import ClientId
from fedgraft.core.errors import UserError
from fedgraft.core.state import State

FORMAT = 2
KEPT = 2
TENSORS = ("server.safetensors", "clients.safetensors", "observed.safetensors")
RECORDS = "records.json"


class DamagedError(Exception):
    """A checkpoint that cannot be trusted; the text says why."""


@dataclass(frozen=True)
class Checkpoint:
    """Where a run was after ``round`` rounds; ``observed`` and ``records`` have an entry for each of them."""

    round: int
    server: Mapping[str, Tensor]
    clients: Mapping[ClientId, State]
    observed: Sequence[Mapping[str, Tensor]]
    records: Sequence[Mapping[str, Any]]


def write(folder: Path, checkpoint: Checkpoint) -> None:
    """Add a checkpoint to ``folder`` and drop the ones before the last two."""
    folder.mkdir(exist_ok=True)
    tensors = (checkpoint.server, _joined(checkpoint.clients), _joined(dict(enumerate(checkpoint.observed))))
    files = {name: disk.packed(part) for name, part in zip(TENSORS, tensors, strict=True)}
    files[RECORDS] = json.dumps(checkpoint.records).encode()
    manifest = {
        "format": FORMAT,
        "round": checkpoint.round,
        "clients": len(checkpoint.clients),
        "sha256": {name: hashlib.sha256(data).hexdigest() for name, data in files.items()},
    }
    aside = folder / f".{_name(checkpoint.round)}.part"
    shutil.rmtree(aside, ignore_errors=True)
    aside.mkdir()
    for name, data in {**files, "manifest.json": json.dumps(manifest, indent=2).encode()}.items():
        with (aside / name).open("wb") as stream:
            stream.write(data)
            stream.flush()
            os.fsync(stream.fileno())
    place = folder / _name(checkpoint.round)
    if place.exists():
        shutil.rmtree(place)
    aside.rename(place)
    disk.flush_folder(folder)
    for old in _places(folder)[:-KEPT]:
        shutil.rmtree(old, ignore_errors=True)


def read(folder: Path, like: Checkpoint | None = None) -> tuple[Checkpoint | None, list[str]]:
    """Return the newest checkpoint that is whole, and a sentence about each newer one that is not.

    ``like`` is where the run begins: the same tensors, of the same shapes and types, have to be in its checkpoints.
    """
    complaints: list[str] = []
    for place in reversed(_places(folder)):
        try:
            found = _load(place)
            if like is not None:
                _insist_on_fit(found, like)
            return found, complaints
        except DamagedError as damage:
            complaints.append(f"the checkpoint {place.name} {damage}; an older one is used")
    return None, complaints


def _load(place: Path) -> Checkpoint:
    try:
        manifest = json.loads((place / "manifest.json").read_bytes())
        version, number, clients, sums = (manifest[key] for key in ("format", "round", "clients", "sha256"))
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise DamagedError("has no readable manifest") from error
    if version != FORMAT:
        raise UserError(f"{place} has checkpoint format {version!r}, but this fedgraft reads format {FORMAT}")
    if not isinstance(number, int) or _name(number) != place.name:
        raise DamagedError("belongs to another round than its name says")
    contents: dict[str, Any] = {}
    for name in (*TENSORS, RECORDS):
        try:
            data = (place / name).read_bytes()
        except OSError as error:
            raise DamagedError(f"lacks {name}") from error
        if not isinstance(sums, dict) or hashlib.sha256(data).hexdigest() != sums.get(name):
            raise DamagedError(f"was altered or cut short: {name} has another checksum")
        try:
            contents[name] = json.loads(data) if name == RECORDS else load(data)
        except (SafetensorError, ValueError, RecursionError) as error:
            raise DamagedError(f"holds an unreadable {name}") from error
    server, states, observed = contents[TENSORS[0]], _parted(contents[TENSORS[1]]), _parted(contents[TENSORS[2]])
    if not (clients == len(states) == max(states, default=-1) + 1):
        raise DamagedError("does not hold every client")
    records = contents[RECORDS]
    if not isinstance(records, list) or len(records) != number:
        raise DamagedError("does not hold the record of every round")
    return Checkpoint(number, server, states, [observed.get(r, {}) for r in range(number)], records)


def _insist_on_fit(found: Checkpoint, like: Checkpoint) -> None:
    """Refuse tensors that no checkpoint of this run could hold."""
    if found.clients.keys() != like.clients.keys():
        raise DamagedError(f"is of another run: it has {len(found.clients)} clients instead of {len(like.clients)}")
    pairs = [("the server", found.server, like.server)]
    pairs += [(f"client {client}", found.clients[client], state) for client, state in like.clients.items()]
    for owner, held, begun in pairs:
        for name, tensor in begun.items():
            if name not in held or (held[name].shape, held[name].dtype) != (tensor.shape, tensor.dtype):
                raise DamagedError(f"is of another run: {name!r} of {owner} is missing or of another shape")


def _joined(parts: Mapping[int, Mapping[str, Tensor]]) -> dict[str, Tensor]:
    return {f"{number}/{name}": tensor for number, part in parts.items() for name, tensor in part.items()}


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
    return sorted(places, key=lambda place: int(place.name.removeprefix("round-")))
