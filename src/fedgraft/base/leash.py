"""Programs that end with the process that started them, however that dies."""

import os
import sys
from collections.abc import Sequence

_LEASH = """
import ctypes, os, signal, sys
PR_SET_PDEATHSIG = 1
ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
if os.getppid() == int(sys.argv[1]):
    os.execvp(sys.argv[2], sys.argv[2:])
"""
"""Become the program, after asking the kernel to end it with its parent."""


def leashed(words: Sequence[str]) -> list[str]:
    """Return the command line that starts a program so, where the kernel can be asked (Linux); else the same words."""
    if sys.platform != "linux":
        return list(words)
    return [sys.executable, "-I", "-c", _LEASH, str(os.getpid()), *words]
