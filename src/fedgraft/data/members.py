"""The data of very many clients: a few large tensors, of which a client's are a slice, in memory or on disk."""

import tempfile
from collections.abc import Callable, Sequence
from typing import overload

import numpy as np
import torch
from torch import Tensor

from fedgraft.core.samples import ClientData, Preparation, Samples
from fedgraft.data.datasets.formats import Array

CHUNK = 4096
"""Samples that are copied at a time."""
Finish = Callable[[Samples, Samples, int], ClientData]
"""Makes a client's data of its training and test samples and its number."""


class Members(Sequence[ClientData]):
    """Clients whose data are made when they are asked for: a hundred thousand of them as objects fill a memory.

    Samples lie in the order of the clients, each one's training samples before its test samples. ``on_disk`` they are
    mapped from a file without a name, which is gone with the process; the system keeps in memory what is in use.
    """

    def __init__(
        self,
        inputs: Tensor,
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
        self._inputs = _on_disk(inputs, place) if on_disk else inputs[place]

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

    def _samples(self, start: int, stop: int) -> Samples:
        return Samples(self._inputs[start:stop], self._labels[start:stop], self._preparation)


def _on_disk(inputs: Tensor, place: Tensor) -> Tensor:
    """Copy the inputs at ``place`` to a file, and map it."""
    shape = (len(place), *inputs.shape[1:])
    with tempfile.TemporaryFile() as file:
        kind = inputs.numpy().dtype
        mapped = np.memmap(file, dtype=kind, mode="w+", shape=shape)
        for start in range(0, len(place), CHUNK):
            mapped[start : start + CHUNK] = inputs[place[start : start + CHUNK]].numpy()
        mapped.flush()
    return torch.from_numpy(mapped)
