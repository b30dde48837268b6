"""Checkpoints: the server, every client, the round. Nothing else is needed to go on bit for bit.

A checkpoint is a folder of safetensors files with a manifest of their checksums. It is written aside, flushed to the
disk and renamed, so that it is there whole or not at all; the last two are kept. Nothing in it is ever executed.
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
from safetensors.torch import load, save
from torch import Tensor

from fedgraft.core.client import ClientId
from fedgraft.core.errors import UserError
from fedgraft.core.state import State

FORMAT = 1
KEPT = 2


class DamagedError(Exception):
    """A checkpoint that cannot be trusted; the text says why."""


@dataclass(frozen=True)
class Checkpoint:
    """Where a run was after ``round`` rounds."""

    round: int
    server: Mapping[str, Tensor]
    clients: Mapping[ClientId, State]
    observed: Sequence[Mapping[str, Tensor]]


def write(folder: Path, checkpoint: Checkpoint) -> None:
    """Add a checkpoint to ``folder`` and drop the ones before the last two."""
    folder.mkdir(exist_ok=True)
    files = {
        "server.safetensors": save(_contiguous(checkpoint.server)),
        "clients.safetensors": save(_contiguous(_joined(checkpoint.clients))),
        "observed.safetensors": save(_contiguous(_joined(dict(enumerate(checkpoint.observed))))),
    }
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
    _flush_folder(folder)
    for old in _places(folder)[:-KEPT]:
        shutil.rmtree(old, ignore_errors=True)


def read(folder: Path) -> tuple[Checkpoint | None, list[str]]:
    """Return the newest checkpoint that is whole, and a sentence about each newer one that is not."""
    complaints: list[str] = []
    for place in reversed(_places(folder)):
        try:
            return _load(place), complaints
        except DamagedError as damage:
            complaints.append(f"the checkpoint {place.name} {damage}; an older one is used")
    return None, complaints


def _load(place: Path) -> Checkpoint:
    try:
        manifest = json.loads((place / "manifest.json").read_bytes())
        version, number, clients, sums = (manifest[key] for key in ("format", "round", "clients", "sha256"))
        sums = {name: sums[f"{name}.safetensors"] for name in ("server", "clients", "observed")}
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise DamagedError("has no readable manifest") from error
    if version != FORMAT:
        raise UserError(f"{place} has checkpoint format {version!r}, but this fedgraft reads format {FORMAT}")
    if not isinstance(number, int) or _name(number) != place.name:
        raise DamagedError("belongs to another round than its name says")
    contents: dict[str, dict[str, Tensor]] = {}
    for name, expected in sums.items():
        try:
            data = (place / f"{name}.safetensors").read_bytes()
        except OSError as error:
            raise DamagedError(f"lacks {name}.safetensors") from error
        if hashlib.sha256(data).hexdigest() != expected:
            raise DamagedError(f"was altered or cut short: {name}.safetensors has another checksum")
        try:
            contents[name] = load(data)
        except SafetensorError as error:
            raise DamagedError(f"holds an unreadable {name}.safetensors") from error
    states = _parted(contents["clients"])
    if sorted(states) != list(range(clients)):
        raise DamagedError("does not hold every client")
    observed = _parted(contents["observed"])
    return Checkpoint(number, contents["server"], states, [observed.get(r, {}) for r in range(number)])


def _joined(parts: Mapping[int, Mapping[str, Tensor]]) -> dict[str, Tensor]:
    return {f"{number}/{name}": tensor for number, part in parts.items() for name, tensor in part.items()}


def _parted(tensors: Mapping[str, Tensor]) -> dict[int, dict[str, Tensor]]:
    parts: dict[int, dict[str, Tensor]] = {}
    for key, tensor in tensors.items():
        number, slash, name = key.partition("/")
        if not slash or not number.isdecimal():
            raise DamagedError(f"holds a tensor with the foreign name {key!r}")
        parts.setdefault(int(number), {})[name] = tensor
    return parts


def _contiguous(tensors: Mapping[str, Any]) -> dict[str, Tensor]:
    # clones: safetensors refuses tensors that share memory, as the clients' common start does
    return {name: tensor.detach().clone().contiguous() for name, tensor in tensors.items()}


def _name(number: int) -> str:
    return f"round-{number:06d}"


def _places(folder: Path) -> list[Path]:
    """The checkpoints in a folder, oldest first."""
    if not folder.is_dir():
        return []
    return sorted(place for place in folder.iterdir() if re.fullmatch(r"round-\d{6,}", place.name))


def _flush_folder(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
