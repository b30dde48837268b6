"""The memory of this machine: how much there is, and what is free but kept by the allocator."""

import ctypes
import math
import os
from collections.abc import Callable
from functools import cache


def give_back() -> None:
    """Return free memory to the system, also from between objects that stay; nothing where the C library cannot.

    Every round leaves small objects that stay (its record, what the method showed) in holes where models were, and such
    a hole is too small for a model from then on. Over a thousand rounds that adds up to as many models.
    """
    if (trim := _trim()) is not None:
        trim(0)


@cache
def _trim() -> Callable[[int], int] | None:
    try:
        trim: Callable[[int], int] = ctypes.CDLL(None).malloc_trim  # glibc
    except (AttributeError, OSError, TypeError):
        return None
    return trim


def total() -> float:
    """Bytes of this machine's memory, where the system tells."""
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, ValueError, OSError):
        return math.inf
