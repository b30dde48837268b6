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


def _laid(buffers: Sequence[pickle.PickleBuffer], memory: mmap.mmap) -> list[tuple[int, int]] | None:
    """Copy buffers into the memory and say where; None if they do not fit."""
    contents = [buffer.raw() for buffer in buffers]
    places, start = [], 0
    for content in contents:
        places.append((start, start + content.nbytes))
        start += -(-content.nbytes // _ALIGNED) * _ALIGNED
    if start > len(memory):
        return None
    for (begin, end), content in zip(places, contents, strict=True):
        memory[begin:end] = content
    return places


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
