"""The command line in processes of its own that need not wait for torch: all are forks of one that has it already."""

import multiprocessing
import os
import resource
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path

_SERVER = multiprocessing.get_context("forkserver")
_PRELOADED = (
    "fedgraft.cli", "fedgraft.data.federation", "fedgraft.runs.compare", "fedgraft.terminal",
    "dp_accounting", "pandas", "scipy.stats", "sklearn.datasets", "sympy", "torch.export.pt2_archive",
)  # fmt: skip
"""What takes most of a short command's time: some commands import the latter only when they need them."""
_SERVER.set_forkserver_preload(list(_PRELOADED))


class Program:
    """``fedgraft WORDS`` as a shell would start it: a process with its own folder, output, signals and exit code."""

    def __init__(
        self, *words: str, cwd: Path | None = None, path: Path | None = None, largest: int | None = None
    ) -> None:
        self.args = ["fedgraft", *words]
        self._out, self._err = (Path(tempfile.mkstemp(prefix="fedgraft-")[1]) for _ in range(2))
        here = (str(cwd or Path.cwd()), [str(path)] if path else [], largest)
        life = (self.args, *here, str(self._out), str(self._err), dict(os.environ))
        self.process = _SERVER.Process(target=_live, args=life)
        self.process.start()

    def send_signal(self, number: int) -> None:
        assert self.process.pid is not None
        os.kill(self.process.pid, number)

    @property
    def running(self) -> bool:
        return self.process.is_alive()

    def wait(self, timeout: float = 120) -> "subprocess.CompletedProcess[str]":
        """Wait for its end, and tell what it said."""
        self.process.join(timeout)
        if self.process.is_alive():
            self.send_signal(signal.SIGKILL)
            raise subprocess.TimeoutExpired(self.args, timeout)
        said = [file.read_text("utf-8") for file in (self._out, self._err)]
        for file in (self._out, self._err):
            file.unlink()
        assert self.process.exitcode is not None
        return subprocess.CompletedProcess(self.args, self.process.exitcode, *said)


def fedgraft(
    *words: str, cwd: Path | None = None, path: Path | None = None, largest: int | None = None
) -> "subprocess.CompletedProcess[str]":
    """Run the program to its end; ``path`` holds packages, no file may grow beyond ``largest`` bytes."""
    return Program(*words, cwd=cwd, path=path, largest=largest).wait()


def wait_for(file: Path, running: Program, seconds: float = 120) -> None:
    """Wait until a running program has made a file."""
    deadline = time.monotonic() + seconds
    while not file.exists():
        assert running.running, "it ended before"
        assert time.monotonic() < deadline, "it did not get that far"
        time.sleep(0.005)


def _live(
    words: list[str],
    cwd: str,
    path: list[str],
    largest: int | None,
    out: str,
    err: str,
    environment: Mapping[str, str],
) -> None:
    for number, name in ((0, os.devnull), (1, out), (2, err)):
        os.dup2(os.open(name, os.O_RDWR), number)
    sys.stdin, sys.stdout, sys.stderr = (
        os.fdopen(number, mode, encoding="utf-8", buffering=1, closefd=False)
        for number, mode in ((0, "r"), (1, "w"), (2, "w"))
    )
    os.chdir(cwd)
    os.environ.clear()
    os.environ.update(environment)
    sys.argv, sys.path[:0] = words, ["", *path]
    if largest is not None:
        sys.dont_write_bytecode = (
            True  # Python leaves half a file where it may not write all of it, and everybody reads that
        )
        resource.setrlimit(resource.RLIMIT_FSIZE, (largest, largest))
    from fedgraft.cli import main

    main()
