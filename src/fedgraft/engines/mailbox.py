"""How a parent and its worker pass tensors to each other: through memory that both see, with a word down a pipe.

A pickle of the whole through the pipe would copy every byte five times. Here tensors are laid into shared memory, and
the pipe carries what is left: the structure. Each direction has memory of its own, because an answer may still refer
to what the question brought.
"""

import mmap
import pickle
from collections.abc import Sequence
from io import BytesIO
from multiprocessing.connection import Connection
from typing import Any

import torch
from torch import Tensor

from fedgraft.core.message import Message

CAPACITY = 2**30
"""Bytes of address space for one direction; only what is written to takes memory. Larger letters go down the pipe."""
_ALIGNED = 64
_LENGTH = 8
"""Bytes that say how long the structure of a packed value is."""
Place = tuple[int, int]


def shared_memory(capacity: int = CAPACITY) -> mmap.mmap | None:
    """Memory that a forked child shares; None where there is no such thing, or no room for it."""
    try:
        flags = mmap.MAP_SHARED | mmap.MAP_ANONYMOUS | getattr(mmap, "MAP_NORESERVE", 0)
        return mmap.mmap(-1, capacity, flags=flags)
    except (AttributeError, OSError, ValueError):
        return None


class Mailbox:
    """One end: letters go out through a connection and ``outgoing`` memory, and come in through ``incoming``."""

    def __init__(self, connection: Connection, outgoing: mmap.mmap | None, incoming: mmap.mmap | None) -> None:
        self.connection, self._outgoing, self._incoming = connection, outgoing, incoming

    def send(self, value: Any) -> None:
        """Send a value; what was sent before it must have been answered."""
        if self._outgoing is not None:
            buffers: list[pickle.PickleBuffer] = []
            structure = _pickled(value, buffers)
            if (places := _laid(buffers, self._outgoing)) is not None:
                self.connection.send_bytes(pickle.dumps((structure, places)))
                return
        self.connection.send_bytes(pickle.dumps((_pickled(value), [])))

    def receive(self, *, keep: bool) -> Any:
        """Wait for a value. Unless it is to be kept, its tensors are only good until the next one comes."""
        structure, places = pickle.loads(self.connection.recv_bytes())
        if not places:
            return pickle.loads(structure)
        assert self._incoming is not None
        seen = memoryview(self._incoming)
        stretches = [seen[start:stop] for start, stop in places]
        return pickle.loads(structure, buffers=map(bytearray, stretches) if keep else stretches)


def packed(value: Any) -> Tensor:
    """Make one tensor of bytes of a value, for a transport that knows nothing else."""
    buffers: list[pickle.PickleBuffer] = []
    structure = _pickled(value, buffers)
    contents = [buffer.raw() for buffer in buffers]
    places, size = _places(contents)
    head = pickle.dumps((structure, places))
    start = _up(_LENGTH + len(head))
    whole = torch.empty(start + size, dtype=torch.uint8)
    memory = whole.numpy().data
    memory[:_LENGTH] = len(head).to_bytes(_LENGTH, "little")
    memory[_LENGTH : _LENGTH + len(head)] = head
    _lay(contents, places, memory[start:])
    return whole


def unpacked(whole: Tensor) -> Any:
    """Return the value that was packed; its tensors have memory of their own."""
    seen = whole.numpy().data
    length = int.from_bytes(seen[:_LENGTH], "little")
    structure, places = pickle.loads(seen[_LENGTH : _LENGTH + length])
    behind = seen[_up(_LENGTH + length) :]
    return pickle.loads(structure, buffers=[bytearray(behind[start:stop]) for start, stop in places])


def _laid(buffers: Sequence[pickle.PickleBuffer], memory: mmap.mmap) -> list[Place] | None:
    """Copy buffers into the memory and say where; None if they do not fit."""
    contents = [buffer.raw() for buffer in buffers]
    places, size = _places(contents)
    if size > len(memory):
        return None
    _lay(contents, places, memory)
    return places


def _places(contents: Sequence[memoryview]) -> tuple[list[Place], int]:
    """Where contents lie one behind another, and how long all of that is."""
    places, start = list[Place](), 0
    for content in contents:
        places.append((start, start + content.nbytes))
        start += _up(content.nbytes)
    return places, start


def _lay(contents: Sequence[memoryview], places: Sequence[Place], memory: mmap.mmap | memoryview) -> None:
    for (begin, end), content in zip(places, contents, strict=True):
        memory[begin:end] = content


def _up(length: int) -> int:
    return -(-length // _ALIGNED) * _ALIGNED


class _Pickler(pickle.Pickler):
    """Tensors travel as plain arrays: several times cheaper than torch's own pickling."""

    def reducer_override(self, obj: Any) -> Any:
        if type(obj) is Tensor:
            return torch.from_numpy, (obj.detach().contiguous().numpy(),)
        if type(obj) is Message:
            return _message, (dict(obj),)
        return NotImplemented


def _message(fields: dict[str, Tensor]) -> Message:
    return Message.of(fields)


def _pickled(value: Any, buffers: list[pickle.PickleBuffer] | None = None) -> bytes:
    stream = BytesIO()
    callback = None if buffers is None else buffers.append
    _Pickler(stream, protocol=5, buffer_callback=callback).dump(value)
    return stream.getvalue()
