"""The data of very many clients: a few large tensors, of which a client's are a slice, in memory or on disk."""

import tempfile
from collections.abc import Callable, Sequence
from typing import overload

import numpy as np
import torch
from torch import Tensor

from fedgraft.core.samples import ClientData, Preparation, Samples
from fedgraft.data.datasets.formats import Array
from fedgraft.data.digest import Fingerprint, checksum

CHUNK = 4096
"""Samples that are copied, or clients that are counted, at a time."""
Finish = Callable[[Samples, Samples, int], ClientData]
"""Makes a client's data of its training and test samples and its number."""


class Members(Sequence[ClientData]):
    """Clients whose data are made when they are asked for: a hundred thousand of them as objects fill a memory.

    The inputs come as two ``files``, for training and for testing, through which indices count on. Where they are
    mapped from a disk, no more than a chunk of them is ever copied into memory.

    Samples lie in the order of the clients, each one's training samples before its test samples. ``on_disk`` they are
    mapped from a file without a name, which is gone with the process; the system keeps in memory what is in use.
    """

    def __init__(
        self,
        files: tuple[Tensor, Tensor],
        labels: Tensor,
        train: Sequence[Array],
        test: Sequence[Array],
        preparation: Preparation,
        finish: Finish,
        *,
        validated: bool,
        on_disk: bool,
    ) -> None:
        self.validated, self._preparation, self._finish = validated, preparation, finish
        counts = np.array([(len(a), len(b)) for a, b in zip(train, test, strict=True)], dtype=np.int64)
        ends = counts.reshape(-1).cumsum().reshape(-1, 2)
        self._bounds = np.column_stack([ends[:, 0] - counts[:, 0], ends])
        order = np.concatenate([part for pair in zip(train, test, strict=True) for part in pair])
        place = torch.from_numpy(order.astype(np.int64))
        self._labels = labels[place]
        self._inputs = _laid(files, place, on_disk=on_disk)

    @overload
    def __getitem__(self, client: int) -> ClientData: ...

    @overload
    def __getitem__(self, client: slice) -> list[ClientData]: ...

    def __getitem__(self, client: int | slice) -> ClientData | list[ClientData]:
        if isinstance(client, slice):
            return [self[number] for number in range(*client.indices(len(self)))]
        number = range(len(self))[client]
        start, middle, stop = self._bounds[number].tolist()
        return self._finish(self._samples(start, middle), self._samples(middle, stop), number)

    def __len__(self) -> int:
        return len(self._bounds)

    @property
    def samples(self) -> Array:
        """Training samples of each client, before any are put aside for validation."""
        counts: Array = self._bounds[:, 1] - self._bounds[:, 0]
        return counts

    @property
    def fingerprint(self) -> Fingerprint:
        """Tell the data of all clients together from any other, also from the same samples at other clients."""
        return {
            "together": {
                "clients": len(self),
                "bounds": checksum(torch.from_numpy(self._bounds)),
                "inputs": checksum(self._inputs),
                "labels": checksum(self._labels),
                "preparation": repr(self._preparation),
            }
        }

    def counts(self, classes: int) -> Array:
        """Clients x classes: the training samples of each, before any are put aside for validation."""
        found = np.zeros((len(self), classes), dtype=np.int64)
        for start in range(0, len(self), CHUNK):
            some = self._bounds[start : start + CHUNK]
            labels = self._labels[some[0, 0] : some[-1, 2]].numpy()
            places = np.arange(some[0, 0], some[-1, 2])
            owner = np.searchsorted(some[:, 2], places, side="right")
            training = places < some[owner, 1]
            np.add.at(found, (start + owner[training], labels[training]), 1)
        return found

    def _samples(self, start: int, stop: int) -> Samples:
        return Samples(self._inputs[start:stop], self._labels[start:stop], self._preparation)


def _laid(files: tuple[Tensor, Tensor], place: Tensor, *, on_disk: bool) -> Tensor:
    """Copy the inputs at ``place``, to memory or to a file that is mapped."""
    shape, kind = (len(place), *files[0].shape[1:]), files[0].numpy().dtype
    if on_disk:
        with tempfile.TemporaryFile() as file:
            laid: Array = np.memmap(file, dtype=kind, mode="w+", shape=shape)
    else:
        laid = np.empty(shape, kind)
    for start in range(0, len(place), CHUNK):
        some = place[start : start + CHUNK]
        second = some >= len(files[0])
        rows = torch.from_numpy(laid[start : start + CHUNK])
        rows[~second] = files[0][some[~second]]
        rows[second] = files[1][some[second] - len(files[0])]
    return torch.from_numpy(laid)
