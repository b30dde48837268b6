"""Memory that is free but that the allocator keeps."""

import ctypes
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
