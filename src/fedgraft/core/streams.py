"""Random numbers, keyed by what they are for.

A stream is named by words and numbers, such as ``(seed, "batches", round, client)``. Two streams with different
names are independent, and nothing that draws from one can disturb another: adding an evaluation, a client or a
worker never changes a training run.
"""

import hashlib
import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from numpy.random.bit_generator import ISeedSequence
from numpy.typing import NDArray

Key = int | str


def entropy(*key: Key) -> int:
    """128 bits that depend on every part of ``key`` and on its order."""
    return int.from_bytes(_digest(*key), "little")


def _digest(*key: Key) -> bytes:
    name = "\x1f".join([f"{type(part).__name__}:{part}" for part in key])
    return hashlib.sha256(name.encode()).digest()[:16]


class _Named(ISeedSequence):
    """Gives Philox its key: told the key itself, it would ask the system for entropy first, which it does not use."""

    def __init__(self, *key: Key) -> None:
        self._bytes = _digest(*key)

    def generate_state(self, n_words: int, dtype: Any = np.uint32) -> NDArray[Any]:
        return np.frombuffer(self._bytes, np.dtype(dtype).newbyteorder("<"))[:n_words]


def generator(*key: Key) -> np.random.Generator:
    """Draw batches, choices and permutations with this."""
    return np.random.Generator(np.random.Philox(_Named(*key)))  # type: ignore[arg-type]  # any ISeedSequence will do


def frozen_generator(*key: Key) -> np.random.RandomState:
    """Draw with algorithms that NumPy has promised never to change: for partitions, which people share."""
    return np.random.RandomState(np.random.Philox(key=entropy(*key)))


def torch_seed(*key: Key) -> int:
    """Seed torch's own generator (initial weights, dropout, augmentation)."""
    return entropy(*key) & (2**63 - 1)


def seed_torch(device: torch.device, *key: Key) -> None:
    """Set torch's own generators to the start of this stream: the CPU's, and those of a device that is none."""
    if device.type == "cpu":
        torch.default_generator.manual_seed(torch_seed(*key))
    else:
        torch.manual_seed(torch_seed(*key))


def seed_generators(number: int, *, everywhere: bool) -> None:
    """Set the generator of the CPU, or those of all devices that this process has opened.

    Where there is none, torch.manual_seed would note its caller's stack three times, for those to come: milliseconds.
    """
    if everywhere and _has_opened():
        torch.manual_seed(number)
    else:
        torch.default_generator.manual_seed(number)


def _has_opened() -> bool:
    """Whether there is a device in use; asking whether there is one at all would forbid a fork of workers for CUDA."""
    opened = torch.cuda.is_initialized() or torch.xpu.is_initialized()  # type: ignore[no-untyped-call]
    return bool(opened) or torch.backends.mps.is_available()


def seed_globals(*key: Key) -> None:
    """Set Python's and NumPy's own generators to the start of this stream: a module may draw from them too."""
    number = entropy(*key)
    random.seed(number)
    np.random.seed(number & (2**32 - 1))  # noqa: NPY002


@contextmanager
def untouched() -> Iterator[None]:
    """Leave the caller's generators as they were: torch's, NumPy's and Python's."""
    back = noted()
    try:
        yield
    finally:
        back()


def noted() -> Callable[[], None]:
    """Note where all generators of this processor are; what is returned puts them there again."""
    python, numpy, torchs = random.getstate(), np.random.get_state(), torch.get_rng_state()  # noqa: NPY002

    def back() -> None:
        random.setstate(python)
        np.random.set_state(numpy)  # noqa: NPY002
        torch.set_rng_state(torchs)

    return back


def torch_generator(*key: Key) -> torch.Generator:
    """Return a private torch generator of this stream."""
    return torch.Generator().manual_seed(torch_seed(*key))
