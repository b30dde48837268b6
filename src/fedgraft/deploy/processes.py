"""Flower's programs on this machine as child processes: started, watched, and all ended again.

Used by the demonstration and by tests; on several machines each program is started where it belongs.
"""

import json
import os
import re
import shutil
import signal
import socket
import ssl
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from fedgraft.base.errors import UserError
from fedgraft.base.leash import leashed

HOST = "127.0.0.1"
CONNECTION = "fedgraft"
"""What the operator's `flwr` commands call the SuperLink, in FLWR_HOME/config.toml."""
QUIET = {
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
}
"""No word to anybody outside, and no packages fetched when an app starts."""
_BIN = Path(sys.executable).parent
_READY_SECONDS = 90.0
_END_SECONDS = 15.0
_PAUSE = 0.1


@dataclass
class Process:
    """One of Flower's programs, with what it says in a file."""

    name: str
    log: Path
    child: "subprocess.Popen[bytes]"
    may_end: bool = False

    @property
    def pid(self) -> int:
        return self.child.pid

    @property
    def code(self) -> int | None:
        """The exit code, or None while it runs."""
        return self.child.poll()

    @property
    def said(self) -> str:
        """Everything that it has said so far, without colours."""
        return re.sub(r"\x1b\[[0-9;]*m", "", self.log.read_text("utf-8", errors="replace"))

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


@dataclass
class Deployment:
    """A SuperLink with its SuperExec and SuperNodes on this machine, until the end of a ``with`` block.

    ``certificates`` is a folder that `fedgraft deploy certificates` made: with it, everything is encrypted and only
    registered nodes are let in; without it, everything is in plain text. Ports are free ones of 127.0.0.1. Programs
    keep their logs in ``directory``/logs and what they need to remember in ``directory``/flower.
    """

    directory: Path
    certificates: Path | None = None
    port: int = 0
    processes: list[Process] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.directory = self.directory.absolute()
        self.port = self.port or free_port()
        connection = [f'address = "{self.address}"', "insecure = true"]
        if self.certificates is not None:
            self.certificates = self.certificates.absolute()
            connection[1] = f"root-certificates = {json.dumps(str(self.certificates / 'ca.crt'))}"
        home = self._home("operator")
        (self.directory / "logs").mkdir(parents=True, exist_ok=True)
        lines = ["[superlink]", f'default = "{CONNECTION}"', "", f"[superlink.{CONNECTION}]", *connection, ""]
        (home / "config.toml").write_text("\n".join(lines), "utf-8")

    def __enter__(self) -> "Deployment":
        return self

    def __exit__(self, *_: object) -> None:
        end(self.processes)

    @property
    def address(self) -> str:
        return f"{HOST}:{self.port}"

    def superlink(self, *, in_memory: bool = False) -> Process:
        """Start the SuperLink and wait until it answers; after a crash, call it again: the database is kept.

        ``in_memory`` does without the file: nothing outlives the SuperLink, but many nodes do not wait for a disk.
        """
        words = ["--host", HOST, "--port", str(self.port), "--isolation", "process"]
        if not in_memory:
            words += ["--database", str(self.directory / "flower" / "superlink.db")]
        words += ["--disable-runtime-dependency-installation"]
        if self.certificates is None:
            words += ["--insecure"]
        else:
            server = self.certificates / "server"
            words += ["--ssl-ca-certfile", str(server / "ca.crt"), "--ssl-certfile", str(server / "server.crt")]
            words += ["--ssl-keyfile", str(server / "server.key"), "--enable-supernode-auth"]
            words += ["--superexec-auth-secret-file", str(server / "superexec.secret")]
        started = self.start("superlink", "flower-superlink", *words)
        self.wait_until(self._answers, f"the SuperLink answers at {self.address}")
        return started

    def superexec(self) -> Process:
        """Start the process that runs the ServerApp; it outlives a SuperLink that crashes."""
        words = ["--runtime-api-address", self.address]
        if self.certificates is None:
            words += ["--insecure"]
        else:
            server = self.certificates / "server"
            words += ["--root-certificates", str(server / "ca.crt")]
            words += ["--superexec-auth-secret-file", str(server / "superexec.secret")]
        return self.start("superexec", "flower-superexec", *words)

    def supernode(
        self, name: str, config: Mapping[str, str], *, security: Sequence[str] | None = None, may_end: bool = False
    ) -> Process:
        """Start a site's SuperNode; ``config`` is its node configuration.

        ``security`` are the options about encryption and keys, by default those of the site called ``name``.
        """
        if security is None:
            security = ["--insecure"]
            if self.certificates is not None:
                own = self.certificates / "sites" / name
                security = ["--root-certificates", str(own / "ca.crt")]
                security += ["--auth-supernode-private-key", str(own / "node.key")]
        words = ["--superlink", self.address, "--host", HOST, "--port", str(free_port()), *security]
        words += ["--node-config", _pairs(config)]
        return self.start(f"supernode-{name}", "flower-supernode", *words, may_end=may_end)

    def register(self, site: str) -> None:
        """Let the node with the site's key in, from now on."""
        assert self.certificates is not None
        self.flwr(
            "supernode", "register", str(self.certificates / "server" / f"{site}.pub"), CONNECTION, "--name", site
        )

    def submit(self, app: Path, **config: str | int) -> int:
        """Start the app as a run, with changes to its configuration, and return the run's id."""
        words = ["run", str(app), CONNECTION, "--format", "json"]
        said = self.flwr(*words, *(["--run-config", _pairs(config)] if config else []))
        return int(json.loads(said[said.index("{") :])["run-id"])

    def follow(self, run: int) -> Process:
        """Start a process whose log is what the server's half of a run says; it ends with the run."""
        words = ["log", str(run), CONNECTION]
        return self.start("serverapp", "flwr", *words, home="operator", may_end=True)

    def flwr(self, *words: str, seconds: float = 120.0) -> str:
        """Run one of the operator's commands and return what it printed."""
        command = [program("flwr"), *words]
        try:
            done = subprocess.run(
                command, env=self._environment("operator"), stdin=subprocess.DEVNULL, capture_output=True, text=True,
                timeout=seconds, check=False,
            )  # fmt: skip
        except subprocess.TimeoutExpired:
            raise UserError(f"`flwr {' '.join(words[:2])}` was not done in {seconds:.0f} s") from None
        if done.returncode != 0:
            raise UserError(f"`flwr {' '.join(words[:2])}` failed: {(done.stderr + done.stdout).strip()}")
        return done.stdout

    def start(self, name: str, command: str, *words: str, home: str | None = None, may_end: bool = False) -> Process:
        """Start a program in a process group of its own; it ends with this process, however that ends."""
        log = self.directory / "logs" / f"{name}.log"
        line = leashed([program(command), *words])
        with log.open("ab") as output:
            child = subprocess.Popen(
                line, env=self._environment(home or name), stdin=subprocess.DEVNULL, stdout=output, stderr=output,
                start_new_session=True,
            )  # fmt: skip
        self.processes.append(Process(name, log, child, may_end))
        return self.processes[-1]

    def check(self) -> None:
        """Say so if one of the programs has ended by itself that should not."""
        for process in self.processes:
            if process.code is not None and not process.may_end:
                said = f"it said, in {process.log}:\n{process.last_words()}"
                raise UserError(f"{process.name} ended with exit code {process.code}; {said}")

    def wait_until(self, true: Callable[[], bool], what: str, seconds: float = _READY_SECONDS) -> None:
        """Wait for something, but neither for ever nor for a program that has ended."""
        deadline = time.monotonic() + seconds
        while not true():
            self.check()
            if time.monotonic() > deadline:
                logs = "\n".join(f"  {p.name}:\n{p.last_words(3)}" for p in self.processes)
                raise UserError(f"waited {seconds:.0f} s in vain until {what}; the programs said:\n{logs}")
            time.sleep(_PAUSE)

    def _answers(self) -> bool:
        context = None
        if self.certificates is not None:
            context = ssl.create_default_context(cafile=str(self.certificates / "ca.crt"))
        url = f"{'http' if context is None else 'https'}://{self.address}/health"
        straight = urllib.request.build_opener(
            urllib.request.ProxyHandler({}), urllib.request.HTTPSHandler(context=context)
        )
        try:
            with straight.open(url, timeout=5) as answer:
                return bool(answer.status == 200)
        except OSError:
            return False

    def _home(self, name: str) -> Path:
        """One FLWR_HOME for each program: apps are unpacked there, and two at once would meet."""
        home = self.directory / "flower" / name
        home.mkdir(parents=True, exist_ok=True)
        return home

    def _environment(self, name: str) -> dict[str, str]:
        path = os.pathsep.join([str(_BIN), os.environ.get("PATH", os.defpath)])
        near = dict.fromkeys(("NO_PROXY", "no_proxy"), f"{HOST},localhost")  # a proxy knows another 127.0.0.1
        return {**os.environ, **QUIET, **near, "PATH": path, "FLWR_HOME": str(self._home(name))}


def program(name: str) -> str:
    """Find one of Flower's programs, beside this Python or on the PATH."""
    found = shutil.which(name, path=str(_BIN)) or shutil.which(name)
    if found is None:
        raise UserError(
            f"the program {name} is not there: install Flower with pip install '.[flower]' in a checkout of fedgraft"
        )
    return found


def free_port() -> int:
    """Find a port that nobody listens on."""
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        return int(probe.getsockname()[1])


def _pairs(config: Mapping[str, str | int]) -> str:
    """Write a configuration as Flower's commands take it: TOML values, which for text are those of JSON."""
    return " ".join(f"{key}={json.dumps(value)}" for key, value in config.items())
