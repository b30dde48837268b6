"""The clients' states, in memory or on disk: those of clients that were ever met; anybody else's is as it began."""

import math
import os
import tempfile
from collections.abc import Iterable, Iterator, Mapping, MutableMapping
from typing import IO, NamedTuple

import torch
from torch import Tensor

from fedgraft.core.client import ClientId
from fedgraft.core.method import Method, Spec
from fedgraft.core.state import State

SHARD = 2**28
"""Bytes after which a new file is begun."""


class First(Mapping[ClientId, State]):
    """Every client's state before its first contact: the initial weights, made when they are asked for."""

    def __init__(self, method: Method, spec: Spec) -> None:
        self._method, self._spec = method, spec
        self._shared: dict[int, Tensor] = {}

    def __getitem__(self, client: ClientId) -> State:
        spec = self._spec
        if client not in range(spec.clients):
            raise KeyError(client)
        if self._method.independent_start:
            return {"own": spec.initial(client, independent=True)}
        kind = spec.assignment[client]
        if kind not in self._shared:
            self._shared[kind] = spec.initial(client)
        return {"own": self._shared[kind]}

    def __iter__(self) -> Iterator[ClientId]:
        return iter(range(self._spec.clients))

    def __len__(self) -> int:
        return self._spec.clients


class States(MutableMapping[ClientId, State]):
    """The states of all clients; of those that were ``met``, as they were left."""

    def __init__(self, first: First, met: MutableMapping[ClientId, State] | None = None) -> None:
        self.first, self.met = first, {} if met is None else met

    def __getitem__(self, client: ClientId) -> State:
        found = self.met.get(client)
        return self.first[client] if found is None else found

    def __setitem__(self, client: ClientId, state: State) -> None:
        self.met[client] = state

    def __delitem__(self, client: ClientId) -> None:
        del self.met[client]

    def __iter__(self) -> Iterator[ClientId]:
        return iter(self.first)

    def __len__(self) -> int:
        return len(self.first)


class _Place(NamedTuple):
    """Where a state lies, and what it is made of. The file is gone when no place names it any more."""

    file: IO[bytes]
    start: int
    length: int
    parts: tuple[tuple[str, torch.dtype, tuple[int, ...]], ...]


class Shelf(MutableMapping[ClientId, State]):
    """States on disk. A new state is written behind the others and the place of the old one forgotten.

    The files have no names: they end with the process, however that ends, and none is left behind. What is not read
    takes no memory here but for its place. A copy of the shelf keeps what it has, whatever is written later.
    """

    def __init__(self, folder: str | None = None, shard: int = SHARD) -> None:
        self._folder, self._shard = folder or tempfile.gettempdir(), shard
        self._places: dict[ClientId, _Place] = {}
        self._file: IO[bytes] | None = None
        self._end = self.live = self._written = 0

    def __getitem__(self, client: ClientId) -> State:
        place = self._places[client]
        whole = torch.empty(place.length, dtype=torch.uint8)
        _fill(place, whole.numpy().data)
        state, start = {}, 0
        for name, dtype, shape in place.parts:
            stop = start + math.prod(shape) * dtype.itemsize
            state[name] = torch.empty(shape, dtype=dtype)
            state[name].view(-1).view(torch.uint8).copy_(whole[start:stop])
            start = stop
        return state

    def __setitem__(self, client: ClientId, state: State) -> None:
        self._forget(client)
        self._places[client] = self._added(
            b"".join(_bytes(tensor) for tensor in state.values()),
            tuple((name, tensor.dtype, tuple(tensor.shape)) for name, tensor in state.items()),
        )
        if self._written > 2 * self.live + 2 * self._shard:
            self._tidy()

    def __delitem__(self, client: ClientId) -> None:
        if client not in self._places:
            raise KeyError(client)
        self._forget(client)

    def __iter__(self) -> Iterator[ClientId]:
        return iter(self._places)

    def __len__(self) -> int:
        return len(self._places)

    def copy(self) -> "Shelf":
        """Return a shelf with the same states, which later ones on this one do not change."""
        twin = Shelf(self._folder, self._shard)
        twin._places, twin.live = dict(self._places), self.live
        return twin

    def _forget(self, client: ClientId) -> None:
        if (place := self._places.pop(client, None)) is not None:
            self.live -= place.length

    def _added(self, data: bytes, parts: tuple[tuple[str, torch.dtype, tuple[int, ...]], ...]) -> _Place:
        if self._file is None or self._end + len(data) > self._shard:
            self._file, self._end = tempfile.TemporaryFile(dir=self._folder, buffering=0), 0  # noqa: SIM115
        place = _Place(self._file, self._end, len(data), parts)
        done = 0
        while done < len(data):
            done += os.pwrite(self._file.fileno(), memoryview(data)[done:], self._end + done)
        self._end += len(data)
        self._written += len(data)
        self.live += len(data)
        return place

    def _tidy(self) -> None:
        """Write everything anew, so that the files which hold old states can go."""
        self._file, self._written, self.live = None, 0, 0
        for client, place in list(self._places.items()):
            data = bytearray(place.length)
            _fill(place, memoryview(data))
            self._places[client] = self._added(bytes(data), place.parts)


def _fill(place: _Place, whole: memoryview) -> None:
    done = 0
    while done < place.length:
        read = os.preadv(place.file.fileno(), [whole[done:]], place.start + done)
        if not read:
            raise OSError("a file of clients' states was cut short")
        done += read


def _bytes(tensor: Tensor) -> bytes:
    return tensor.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy().tobytes()


def first_states(method: Method, spec: Spec, clients: Iterable[ClientId] | None = None) -> dict[ClientId, State]:
    """Return the states of clients (of all, unless some are named) before their first contact: the initial weights."""
    first = First(method, spec)
    return {client: first[client] for client in (range(spec.clients) if clients is None else clients)}
