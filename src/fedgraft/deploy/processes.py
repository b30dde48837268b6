"""Programs as child processes: started, watched, started again when they die, and all ended again."""

import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

from fedgraft.base.errors import UserError
from fedgraft.base.leash import leashed
from fedgraft.deploy.journal import Journal, plain

Say = Callable[[str], None]
Hears = Callable[[str, str], None]
"""Is told which program says what, line by line, while it is being said."""
HOST = "127.0.0.1"
QUIET = {
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
}
"""No word to anybody outside, and no packages fetched when an app starts."""
COLOURS = ("FORCE_COLOR", "CLICOLOR_FORCE")
"""Set in a notebook: what programs say would have colours in it, also where it is read by a program."""
DELAYS = (2.0, 5.0, 10.0, 20.0, 40.0)
"""Seconds before a program that died is started again: the first time, the second time, ... and then no more."""
WINDOW = 600.0
"""Seconds after which a death is forgotten."""
_BIN = Path(sys.executable).parent
_READY_SECONDS = 90.0
_END_SECONDS = 15.0
_PAUSE = 0.1
_REMEMBERED = 2000
_LONGEST_LINE = 2**16
_NOTHING = re.compile(r"\s*(INFO\s*:)?\s*")
"""What Flower puts between its messages."""


@dataclass
class Process:
    """A program; what it says goes into its log, and to whoever ``hears``."""

    name: str
    journal: Journal
    line: Sequence[str]
    place: Path
    environment: Mapping[str, str]
    hears: Hears
    may_end: bool = False
    delays: Sequence[float] = ()
    lines: "deque[str]" = field(default_factory=lambda: deque(maxlen=_REMEMBERED))
    deaths: list[float] = field(default_factory=list)
    due: float | None = None
    """When it is to be started again."""

    def __post_init__(self) -> None:
        self.begin()

    def begin(self) -> None:
        """Start the program in a process group of its own; on Linux it ends with this process, however that ends."""
        self.child = subprocess.Popen(
            leashed(self.line), cwd=self.place, env=self.environment, stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, start_new_session=True,
        )  # fmt: skip
        self.due = None
        self.lines.clear()
        self.journal.write(f"---- process {self.pid} of {self.name} begins")
        assert self.child.stdout is not None
        self._reader = threading.Thread(target=self._read, args=(self.child.stdout,), daemon=True)
        self._reader.start()

    def _read(self, stream: IO[bytes]) -> None:
        while raw := stream.readline(_LONGEST_LINE):
            line = plain(raw)
            if not _NOTHING.fullmatch(line):
                self.journal.write(line)
            self.lines.append(line)
            self.hears(self.name, line)

    @property
    def log(self) -> Path:
        return self.journal.path

    @property
    def pid(self) -> int:
        return self.child.pid

    @property
    def code(self) -> int | None:
        """The exit code, or None while it runs."""
        return self.child.poll()

    @property
    def said(self) -> str:
        """What it has said since it was started, at most its last 2,000 lines."""
        if self.code is not None:
            self._reader.join(0.5)  # its last words may still be on their way
        return "".join(f"{line}\n" for line in list(self.lines))

    def last_words(self, count: int = 8) -> str:
        """Return its last error, else its last lines: helpers of a program that ended add noise behind the reason."""
        lines = [line for line in self.said.splitlines() if line.strip()]
        errors = [number for number, line in enumerate(lines) if line.startswith("ERROR")]
        chosen = lines[errors[-1] :][:count] if errors else lines[-count:]
        return "\n".join(f"    {line}" for line in chosen) or "    (nothing)"

    def kill(self) -> None:
        """Kill the program alone, as a crash would; what it started notices by itself."""
        self.child.kill()
        self.child.wait()

    def signal(self, number: int) -> None:
        """Signal the program and everything that it started itself."""
        with suppress(ProcessLookupError):
            os.killpg(self.pid, number)


def end(processes: Sequence[Process], seconds: float = _END_SECONDS) -> None:
    """End processes and whatever they started: ask, wait a little, insist."""
    deadline = time.monotonic() + seconds
    try:
        for process in processes:
            process.signal(signal.SIGTERM)
        while any(process.code is None for process in processes) and time.monotonic() < deadline:
            time.sleep(_PAUSE)
    finally:
        for process in processes:
            process.signal(signal.SIGKILL)
            process.child.wait()


def _nobody(*_: str) -> None:
    """Hear nothing."""


@dataclass
class Programs:
    """Programs that end with a ``with`` block.

    They work in ``directory``, with logs in its folder `logs` and what Flower has to remember in its folder `flower`.
    """

    directory: Path
    say: Say = field(default=_nobody, kw_only=True)
    hears: Hears = field(default=_nobody, kw_only=True)
    processes: list[Process] = field(default_factory=list, kw_only=True)

    def __post_init__(self) -> None:
        self.directory = self.directory.absolute()
        self.directory.mkdir(parents=True, exist_ok=True)

    def __enter__(self) -> "Programs":
        return self

    def __exit__(self, *_: object) -> None:
        end(self.processes)

    def start(
        self,
        name: str,
        command: str,
        *words: str,
        home: str | None = None,
        may_end: bool = False,
        delays: Sequence[float] = (),
    ) -> Process:
        """Start a program; one that dies is started again after each of the ``delays``, unless it ``may_end``."""
        journal = Journal(self.directory / "logs" / f"{name}.log")
        line = [program(command), *words]
        place, environment = self.directory, self.environment(home or name)
        made = Process(name, journal, line, place, environment, self.hears, may_end, delays)
        self.processes.append(made)
        return made

    def check(self) -> None:
        """Start again what has died, or say so if it has died too often."""
        for process in self.processes:
            if process.due is not None:
                if time.monotonic() >= process.due:
                    process.begin()
            elif process.code is not None and not process.may_end:
                self._mourn(process)

    def _mourn(self, process: Process) -> None:
        now = time.monotonic()
        process.deaths = [when for when in process.deaths if when > now - WINDOW]
        often = len(process.deaths)
        ended = f"{process.name} ended with exit code {process.code}"
        if often >= len(process.delays):
            times = f", {often + 1} times in {WINDOW / 60:.0f} minutes" if often else ""
            raise UserError(f"{ended}{times}; it said, in {process.log}:\n{process.last_words()}")
        process.deaths.append(now)
        process.due = now + process.delays[often]
        reason = process.last_words(1).strip()
        self.say(f"{ended} ({reason}); it is started again in {process.delays[often]:g} s; {process.log} says more")

    def wait_until(self, true: Callable[[], bool], what: str, seconds: float = _READY_SECONDS) -> None:
        """Wait for something, but neither for ever nor for a program that is not coming back."""
        deadline = time.monotonic() + seconds
        while not true():
            self.check()
            if time.monotonic() > deadline:
                logs = "\n".join(f"  {p.name}:\n{p.last_words(3)}" for p in self.processes)
                raise UserError(f"waited {seconds:.0f} s in vain until {what}; the programs said:\n{logs}")
            time.sleep(_PAUSE)

    def home(self, name: str) -> Path:
        """One FLWR_HOME for each program: apps are unpacked there, and two at once would meet."""
        home = self.directory / "flower" / name
        home.mkdir(parents=True, exist_ok=True)
        return home

    def environment(self, name: str) -> dict[str, str]:
        path = os.pathsep.join([str(_BIN), os.environ.get("PATH", os.defpath)])
        near = dict.fromkeys(("NO_PROXY", "no_proxy"), f"{HOST},localhost")  # a proxy knows another 127.0.0.1
        plain = {key: value for key, value in os.environ.items() if key not in COLOURS}
        return {**plain, **QUIET, **near, "PATH": path, "FLWR_HOME": str(self.home(name))}


def program(name: str) -> str:
    """Find a program, beside this Python, on the PATH, or where systems keep their servers."""
    found = shutil.which(name, path=str(_BIN)) or shutil.which(name) or shutil.which(name, path="/usr/sbin:/sbin")
    if found is None:
        raise UserError(f"the program {name} is not there: install Flower with pip install 'fedgraft[flower]'")
    return found


def free_port() -> int:
    """Find a port that nobody listens on."""
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        return int(probe.getsockname()[1])
