"""What happened in the rounds of a run: a record of each, and what the method showed. Appended to, never rewritten.

The file is a row of frames, one for each round: two lengths, the record as JSON, the observations as safetensors. A
checkpoint says how much of the file belongs to it, and the checksum of that much; what lies behind is a torn end, and
is cut off before the next round is written. So a round costs the same after ten rounds and after ten thousand.
"""

import hashlib
import json
import os
import struct
import zlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple, overload

import torch
from pydantic import BaseModel, ConfigDict, Field
from safetensors import SafetensorError
from safetensors.torch import load
from torch import Tensor

from fedgraft.base import disk
from fedgraft.base.errors import ContractError, UserError
from fedgraft.runs.upgrade import upgraded_record

FILE = "rounds.log"
_LENGTHS = struct.Struct("<QQ")

Record = dict[str, Any]


class DamagedError(Exception):
    """Something that cannot be trusted; the text says why."""


class Mark(BaseModel):
    """How far a history goes: its rounds, their bytes in the file, and the checksum of these."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)

    rounds: int = Field(ge=0)
    length: int = Field(ge=0)
    sha256: str


class Frame(NamedTuple):
    """One round in the file."""

    record: Record
    observed: dict[str, Tensor]


class Records(Sequence[Record]):
    """The records of the rounds, packed: ten thousand of them as objects would be most of what a small run holds."""

    def __init__(self) -> None:
        self._packed: list[bytes] = []

    def append(self, record: Record) -> None:
        self._packed.append(zlib.compress(json.dumps(record).encode(), 1))

    @overload
    def __getitem__(self, number: int) -> Record: ...

    @overload
    def __getitem__(self, number: slice) -> list[Record]: ...

    def __getitem__(self, number: int | slice) -> Record | list[Record]:
        if isinstance(number, slice):
            return [_unpacked(each) for each in self._packed[number]]
        return _unpacked(self._packed[number])

    def __len__(self) -> int:
        return len(self._packed)


def _unpacked(data: bytes) -> Record:
    record: Record = json.loads(zlib.decompress(data))
    return record


class History:
    """The rounds of a run so far; those that ``file`` does not hold yet wait in memory."""

    def __init__(self, file: Path | None = None) -> None:
        self.records = Records()
        self._file, self._length, self._sum = file, 0, hashlib.sha256()
        self._waiting: list[dict[str, Tensor]] = []
        self._shapes: dict[str, torch.Size] = {}

    @classmethod
    def read(cls, file: Path, mark: Mark) -> "History":
        """Read a history up to a mark; it goes on from there."""
        history = cls(file)
        try:
            with file.open("rb") as stream:
                if mark.length > os.fstat(stream.fileno()).st_size:
                    raise DamagedError(f"was cut short: {file.name} is not long enough")
                for number, frame in enumerate(_frames(stream, mark.length, history._sum), start=1):
                    if frame.record.get("round") != number:
                        raise DamagedError("does not hold the record of every round")
                    history._note(frame)
        except OSError as error:
            raise DamagedError(f"lacks {file.name}") from error
        history._length = mark.length
        if history.mark != mark:
            raise DamagedError(f"was altered or cut short: {file.name} is not what it was")
        return history

    @property
    def mark(self) -> Mark:
        """How far the file goes."""
        rounds = len(self.records) - len(self._waiting)
        return Mark(rounds=rounds, length=self._length, sha256=self._sum.hexdigest())

    def add(self, record: Record, observed: Mapping[str, Tensor]) -> None:
        """Add a round."""
        frame = Frame(record, {name: tensor.detach().cpu() for name, tensor in observed.items()})
        try:
            self._note(frame)
        except DamagedError as error:
            raise ContractError(f"what the method shows in round {len(self.records)} {error}") from None
        self._waiting.append(frame.observed)

    def save(self) -> Mark:
        """Let the rounds that wait reach the disk, behind those that are there."""
        assert self._file is not None
        data = b"".join(map(_packed, self._frames_waiting()))
        handle = os.open(self._file, os.O_RDWR | os.O_CREAT, 0o666)
        with os.fdopen(handle, "r+b") as stream:
            if stream.seek(0, os.SEEK_END) < self._length:
                raise UserError(f"{self._file} was cut short while the run went on")
            stream.truncate(self._length)
            stream.seek(self._length)
            stream.write(data)
            stream.flush()
            os.fsync(stream.fileno())
        self._sum.update(data)
        self._length += len(data)
        self._waiting.clear()
        return self.mark

    def observed(self) -> dict[str, Tensor]:
        """What the method showed, round by round: one tensor for each name; a round that lacks it is NaN."""
        stacked = {
            name: torch.full((len(self.records), *shape), torch.nan) for name, shape in sorted(self._shapes.items())
        }
        for number, frame in enumerate(self._all() if stacked else ()):
            for name, tensor in frame.observed.items():
                stacked[name][number] = tensor
        return stacked

    def _all(self) -> Iterator[Frame]:
        if self._file is not None and self._length:
            try:
                with self._file.open("rb") as stream:
                    yield from _frames(stream, self._length, hashlib.sha256())
            except (OSError, DamagedError):
                raise UserError(f"{self._file} was damaged while the run went on") from None
        yield from self._frames_waiting()

    def _frames_waiting(self) -> Iterator[Frame]:
        first = len(self.records) - len(self._waiting)
        return (Frame(self.records[first + number], observed) for number, observed in enumerate(self._waiting))

    def _note(self, frame: Frame) -> None:
        self.records.append(frame.record)
        for name, tensor in frame.observed.items():
            if self._shapes.setdefault(name, tensor.shape) != tensor.shape:
                raise DamagedError(f"holds {name!r} in two shapes")


def _packed(frame: Frame) -> bytes:
    record = json.dumps(frame.record).encode()
    observed = disk.packed(frame.observed) if frame.observed else b""
    return _LENGTHS.pack(len(record), len(observed)) + record + observed


def _frames(stream: BinaryIO, length: int, total: "hashlib._Hash") -> Iterator[Frame]:
    """Read the frames in the first ``length`` bytes, and add these to a checksum."""
    left = length

    def take(count: int) -> bytes:
        nonlocal left
        data = stream.read(count) if count <= left else b""
        if len(data) != count:
            raise DamagedError("was cut short: not every round is there")
        left -= count
        total.update(data)
        return data

    while left:
        sizes: Sequence[int] = _LENGTHS.unpack(take(_LENGTHS.size))
        record, observed = take(sizes[0]), take(sizes[1])
        try:
            found = json.loads(record)
            tensors = load(observed) if observed else {}
        except (SafetensorError, ValueError, RecursionError) as error:
            raise DamagedError("holds a round that cannot be read") from error
        if not isinstance(found, dict):
            raise DamagedError("holds a round that is none")
        yield Frame(upgraded_record(found), tensors)
