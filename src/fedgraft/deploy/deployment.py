"""Flower's programs: how each of them is started, on the server, at a site, or all on one machine."""

import json
import ssl
import subprocess
import urllib.request
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from fedgraft.base.errors import UserError
from fedgraft.deploy.processes import HOST, Process, Programs, free_port, program

CONNECTION = "fedgraft"
"""What the operator's `flwr` commands call the SuperLink, in FLWR_HOME/config.toml."""
OPERATOR = "operator"
"""The operator's home, which knows where the SuperLink is."""


@dataclass
class Deployment(Programs):
    """A SuperLink with its SuperExec on this machine, and SuperNodes of sites that are here too.

    ``certificates`` is a folder that `fedgraft deploy certificates` made: with it, everything is encrypted and only
    registered nodes are let in; without it, everything is in plain text. The SuperLink listens on 127.0.0.1, at
    ``port`` or at a free one. What dies is started again after ``delays``.
    """

    certificates: Path | None = None
    port: int = 0
    delays: Sequence[float] = ()

    def __post_init__(self) -> None:
        super().__post_init__()
        self.port = self.port or free_port()
        connection = [f'address = "{self.address}"', "insecure = true"]
        if self.certificates is not None:
            self.certificates = self.certificates.absolute()
            connection[1] = f"root-certificates = {json.dumps(str(self._server / 'ca.crt'))}"
        lines = ["[superlink]", f'default = "{CONNECTION}"', "", f"[superlink.{CONNECTION}]", *connection, ""]
        (self.home(OPERATOR) / "config.toml").write_text("\n".join(lines), "utf-8")

    def __enter__(self) -> Self:
        return self

    @property
    def address(self) -> str:
        return f"{HOST}:{self.port}"

    @property
    def _server(self) -> Path:
        assert self.certificates is not None
        return self.certificates / "server"

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
            own = self._server
            words += ["--ssl-ca-certfile", str(own / "ca.crt"), "--ssl-certfile", str(own / "server.crt")]
            words += ["--ssl-keyfile", str(own / "server.key"), "--enable-supernode-auth"]
            words += ["--superexec-auth-secret-file", str(own / "superexec.secret")]
        started = self.start("superlink", "flower-superlink", *words, delays=self.delays)
        self.wait_until(self.answers, f"the SuperLink answers at {self.address}")
        return started

    def superexec(self) -> Process:
        """Start the process that runs the ServerApp; it outlives a SuperLink that crashes."""
        words = ["--runtime-api-address", self.address]
        if self.certificates is None:
            words += ["--insecure"]
        else:
            words += ["--root-certificates", str(self._server / "ca.crt")]
            words += ["--superexec-auth-secret-file", str(self._server / "superexec.secret")]
        return self.start("superexec", "flower-superexec", *words, delays=self.delays)

    def gate(self) -> Process:
        """Start nginx with the gate.conf of the folder: what sites may reach of the SuperLink, and nothing else."""
        try:
            found = program("nginx")
        except UserError:
            raise UserError(
                "the server needs nginx as its gate, so that nobody but this machine reaches the Control API: install "
                "it, or put gate = false into server.toml if something else does its work (docs/deployment.md)"
            ) from None
        return self.start("gate", found, "-p", str(self.directory), "-c", "gate.conf", delays=self.delays)

    def supernode(
        self, name: str, config: Mapping[str, str], *, security: Sequence[str] | None = None, may_end: bool = False
    ) -> Process:
        """Start the SuperNode of a site on this machine; ``config`` is its node configuration.

        ``security`` are the options about encryption and keys, by default those of the site called ``name``.
        """
        if security is None:
            security = ["--insecure"]
            if self.certificates is not None:
                own = self.certificates / "sites" / name
                security = trusted(own / "ca.crt", own / "node.key")
        return start_node(self, f"supernode-{name}", self.address, config, security, may_end=may_end)

    def register(self, site: str) -> None:
        """Let the node with the site's key in, from now on."""
        self.flwr("supernode", "register", str(self._server / f"{site}.pub"), CONNECTION, "--name", site)

    def submit(self, app: Path, **config: str | int) -> int:
        """Start the app as a run, with changes to its configuration, and return the run's id."""
        words = ["run", str(app), CONNECTION, "--format", "json"]
        said = self.flwr(*words, *(["--run-config", _pairs(config)] if config else []))
        return int(json.loads(said[said.index("{") :])["run-id"])

    def follow(self, run: int) -> Process:
        """Start a process that says what the server's half of a run says; it ends with the run."""
        words = ["log", str(run), CONNECTION]
        return self.start("serverapp", "flwr", *words, home=OPERATOR, may_end=True)

    def flwr(self, *words: str, seconds: float = 120.0) -> str:
        """Run one of the operator's commands and return what it printed."""
        command = [program("flwr"), *words]
        try:
            done = subprocess.run(
                command, env=self.environment(OPERATOR), stdin=subprocess.DEVNULL, capture_output=True, text=True,
                timeout=seconds, check=False,
            )  # fmt: skip
        except subprocess.TimeoutExpired:
            raise UserError(f"`flwr {' '.join(words[:2])}` was not done in {seconds:.0f} s") from None
        if done.returncode != 0:
            raise UserError(f"`flwr {' '.join(words[:2])}` failed: {(done.stderr + done.stdout).strip()}")
        return done.stdout

    def answers(self) -> bool:
        """Whether the SuperLink is there."""
        context = None
        if self.certificates is not None:
            context = ssl.create_default_context(cafile=str(self._server / "ca.crt"))
        url = f"{'http' if context is None else 'https'}://{self.address}/health"
        straight = urllib.request.build_opener(
            urllib.request.ProxyHandler({}), urllib.request.HTTPSHandler(context=context)
        )
        try:
            with closing(straight.open(url, timeout=5)) as answer:
                return bool(answer.status == 200)
        except OSError:
            return False


def trusted(authority: Path, key: Path) -> list[str]:
    """The options by which a node trusts its server, and shows its key."""
    return ["--root-certificates", str(authority), "--auth-supernode-private-key", str(key)]


def start_node(
    programs: Programs,
    name: str,
    server: str,
    config: Mapping[str, str],
    security: Sequence[str],
    *,
    may_end: bool = False,
    delays: Sequence[float] = (),
) -> Process:
    """Start a SuperNode; its own helpers speak to it at a free port of 127.0.0.1."""
    words = ["--superlink", server, "--host", HOST, "--port", str(free_port()), *security]
    words += ["--node-config", _pairs(config)]
    return programs.start(name, "flower-supernode", *words, may_end=may_end, delays=delays)


def _pairs(config: Mapping[str, str | int]) -> str:
    """Write a configuration as Flower's commands take it: TOML values, which for text are those of JSON."""
    return " ".join(f"{key}={json.dumps(value)}" for key, value in config.items())
