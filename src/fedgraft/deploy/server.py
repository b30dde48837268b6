"""The server of a federation as one process: Flower's programs, the sites' keys, the run, and its report.

It starts what it needs, starts again what dies, waits for the sites, and ends with the result. The run itself is done
by the server's half of the app (`serving`), which Flower starts; what that says for people is passed on.
"""

import socket
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from rich.table import Table

from fedgraft.base import disk, toml
from fedgraft.base.errors import UserError
from fedgraft.base.listing import facts_table
from fedgraft.core.evaluation import POINTS
from fedgraft.deploy import charter, control, nodes
from fedgraft.deploy.application import host_and_port
from fedgraft.deploy.charter import Charter
from fedgraft.deploy.deployment import Deployment
from fedgraft.deploy.processes import DELAYS, HOST, Process, Say, end
from fedgraft.deploy.serving import FILE, beginning, planned
from fedgraft.deploy.voice import SPOKEN, loud
from fedgraft.report.page import write as write_report
from fedgraft.runs.comparison import Reading
from fedgraft.runs.reading import read_all
from fedgraft.runs.table import last_figures

SETTINGS = "server.toml"
LOOK = 3.0
"""Seconds between two looks at who is there, or at what became of the run."""
LAST_WORDS = 10.0
"""Seconds that the last words of a run may take to get here."""
TRIES = 3
"""How often the run is started anew without having come any further."""
_ENDINGS = ("done: ", "stopped: ", "paused: ")


@dataclass(frozen=True)
class Kit:
    """A server's folder, as `fedgraft deploy init` and `fedgraft deploy certificates` made it."""

    folder: Path
    agreed: Charter
    address: str
    port: int
    """Of 127.0.0.1, where the SuperLink listens."""
    gate: bool

    @property
    def keys(self) -> Path:
        return self.folder / "certificates" / "server"

    @property
    def run(self) -> Path:
        return self.folder / Path(self.agreed.directory).expanduser()

    def insist(self) -> None:
        """Say what is missing before anything is started."""
        planned(self.agreed, (1,) * len(self.agreed.sites), beginning(self.agreed, self.folder))
        if (self.run / "result.json").exists():
            raise UserError(f"the run in {self.run} is complete; for a new one, name another directory in {FILE}")
        sites, host = ",".join(self.agreed.sites), host_and_port(self.address)[0]
        for name in ("ca.crt", "server.crt", "server.key", "superexec.secret"):
            if not (self.keys / name).exists():
                raise UserError(
                    f"there is no {self.keys / name}: `fedgraft deploy certificates {self.folder / 'certificates'} "
                    f"--server {host} --sites {sites}` makes it, here or elsewhere"
                )
        for site in self.agreed.sites:
            if not (self.keys / f"{site}.pub").exists():
                raise UserError(
                    f"there is no key of site {site}: `fedgraft deploy certificates {self.folder / 'certificates'} "
                    f"--sites {site}` makes one, or put the site's node.pub there as {self.keys / f'{site}.pub'}"
                )
        self._insist_on_ports()

    def _insist_on_ports(self) -> None:
        outer = host_and_port(self.address)[1]
        if self.gate and f"server {HOST}:{self.port} " not in (self.folder / "gate.conf").read_text("utf-8"):
            raise UserError(f"gate.conf does not lead to {HOST}:{self.port}, where the SuperLink listens ({SETTINGS})")
        for port in {self.port, outer} if self.gate else {self.port}:
            with socket.socket() as probe:
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                try:
                    probe.bind((HOST, port))
                except OSError as error:
                    raise UserError(
                        f"port {port} cannot be listened on ({error.strerror}); is another server running? The ports "
                        f"are those of {self.folder / SETTINGS}"
                    ) from None


def read(folder: Path) -> Kit:
    """Read a server's folder."""
    agreed = charter.read(folder / FILE)
    told = toml.read(folder / SETTINGS, "description of a server")
    if surplus := told.keys() - {"address", "listen", "gate"}:
        raise UserError(f"{folder / SETTINGS}: there is no setting {min(surplus)!r}; it has address, listen and gate")
    address, listen, gate = told.get("address"), told.get("listen"), told.get("gate", True)
    if not isinstance(address, str) or not isinstance(listen, str) or not isinstance(gate, bool):
        raise UserError(f"{folder / SETTINGS}: address and listen are HOST:PORT, gate is true or false")
    host_and_port(address)
    host, port = host_and_port(listen)
    if host not in (HOST, "localhost"):
        raise UserError(
            f"{folder / SETTINGS}: listen is an address of this machine only, such as {HOST}:8001, not {listen}: "
            "whoever reaches the SuperLink's Control API can start programs here and at the sites (docs/deployment.md)"
        )
    return Kit(folder.absolute(), agreed, address, port, gate)


def serve(kit: Kit, say: Say, *, verbose: bool = False, meanwhile: Callable[[], None] = lambda: None) -> Reading:
    """Do a federation's run, or go on with it, until there is a result; leave a report.

    ``meanwhile`` is called again and again while it waits.
    """
    kit.insist()
    (kit.folder / "flower").mkdir(exist_ok=True)
    words = Words(say)
    hears = loud(say, words.hear) if verbose else words.hear
    with disk.locked(kit.folder / "flower"):
        say(f"{kit.agreed.run.method} with {len(kit.agreed.sites)} sites; the run is in {kit.run}")
        with Deployment(kit.folder, kit.folder / "certificates", kit.port, DELAYS, say=say, hears=hears) as flower:
            Operation(kit, flower, words, say, meanwhile).run()
            say("ending every program that was started")
    reading = read_all([kit.run])
    say(f"the result is in {kit.run}; report: {write_report(reading, kit.run / 'report.html')}")
    return reading


@dataclass
class Words:
    """What the server's half of a run says: each sentence is passed on once, however often it is told."""

    say: Say
    ending: str = ""
    """Its last word, if it has been said."""
    _heard: int = 0
    _told: int = 0

    def hear(self, name: str, line: str) -> None:
        if name != "serverapp" or not line.startswith(SPOKEN):
            return
        self._told += 1
        if self._told <= self._heard:
            return
        self._heard += 1
        sentence = line.removeprefix(SPOKEN)
        self.say(sentence)
        if sentence.startswith(_ENDINGS):
            self.ending = sentence

    def once_more(self) -> None:
        """Expect everything to be told again, from the beginning."""
        self._told = 0

    def of_another_run(self) -> None:
        self.ending, self._heard, self._told = "", 0, 0


@dataclass
class Operation:
    """What an operator would do by hand."""

    kit: Kit
    flower: Deployment
    words: Words
    say: Say
    meanwhile: Callable[[], None]
    _waiting: str = field(default="", init=False)

    def run(self) -> None:
        """Start everything, and start the run until it has a result."""
        self._open()
        failures = 0
        while not (self.kit.run / "result.json").exists():
            before = self._rounds()
            self.words.of_another_run()
            self._gather()
            self._follow(self.flower.submit(self.kit.folder))
            if self.words.ending.startswith("stopped: "):
                raise UserError(self.words.ending.removeprefix("stopped: "))
            if self.words.ending.startswith(("done: ", "paused: ")):
                continue
            failures = failures + 1 if self._rounds() == before else 0
            logs = self.flower.directory / "logs"
            if failures == TRIES:
                raise UserError(f"the server's half ended {TRIES} times without a result; see {logs / 'serverapp.log'}")
            self.say(
                f"the server's half ended without a result; it is started again ({logs / 'serverapp.log'} says more)"
            )

    def _open(self) -> None:
        gate = f", behind the gate at {self.kit.address}" if self.kit.gate else ""
        self.say(f"starting the SuperLink at {self.flower.address}{gate}")
        self.flower.superlink()
        control.operate_in(self.kit.folder)
        control.stop_all()
        self.flower.superexec()
        if self.kit.gate:
            self.flower.gate()
        for site in self.kit.agreed.sites:
            try:
                node, _ = nodes.register(self.kit.keys / f"{site}.pub", site)
                self.say(f"site {site} is registered, with the key {node.key}")
            except UserError as error:
                self.say(f"site {site}: {error}")

    def _gather(self) -> None:
        """Wait until enough sites are connected: all for a beginning, a quorum to go on."""
        sites = self.kit.agreed.sites
        begun = (self.kit.run / "federation.json").exists()
        needed = self.kit.agreed.quorum if begun else len(sites)
        while len(present := self._present()) < needed:
            missing = [site for site in sites if site not in present]
            enough = f" ({needed - len(present)} of them would do)" if needed - len(present) < len(missing) else ""
            sentence = f"waiting for {len(missing)} of {len(sites)} sites: {', '.join(missing)}{enough}"
            if sentence != self._waiting:
                self.say(sentence)
                self._waiting = sentence
            self._pause()
        self._waiting = ""
        self.say(f"connected: {', '.join(sorted(present))}; the run {'goes on' if begun else 'begins'}")

    def _present(self) -> set[str]:
        try:
            return {node.site for node in nodes.listed() if node.status == "online"} & set(self.kit.agreed.sites)
        except UserError:  # the SuperLink is being started again
            return set()

    def _follow(self, run: int) -> None:
        """Pass on what the server's half says until the run is over."""
        follower = self.flower.follow(run)
        while not self.words.ending and not self._over(run):
            if follower.code is not None:
                follower = self._followed_again(follower, run)
            self._pause()
        deadline = time.monotonic() + LAST_WORDS
        while follower.code is None and time.monotonic() < deadline:
            self.flower.check()
            time.sleep(0.1)
        self.flower.processes.remove(follower)
        end([follower], 2.0)

    def _followed_again(self, follower: Process, run: int) -> Process:
        self.flower.processes.remove(follower)
        self.words.once_more()
        return self.flower.follow(run)

    def _over(self, run: int) -> bool:
        try:
            return control.over(run)
        except UserError:  # the SuperLink is being started again
            return False

    def _pause(self) -> None:
        end = time.monotonic() + LOOK
        while time.monotonic() < end and not self.words.ending:
            self.flower.check()
            self.meanwhile()
            time.sleep(0.1)

    def _rounds(self) -> int:
        """How many rounds the run has done."""
        try:
            return len((self.kit.run / "metrics.jsonl").read_bytes().splitlines())
        except OSError:
            return 0


def table(reading: Reading, names: tuple[str, ...]) -> Table:
    """How good each site's own model is on the site's own test samples."""
    facts = reading.runs[0].facts
    metric = facts.leading

    def row(site: str, count: int, received: float | None, trained: float | None) -> dict[str, str]:
        shown = ("" if value is None else metric.shown(value) for value in (received, trained))
        return dict(zip(("site", "samples", "received", "trained"), (site, f"{count:,}", *shown), strict=True))

    own = zip(names, facts.samples, *(last_figures(facts, metric, point) for point in POINTS), strict=True)
    rows = [row(*each) for each in own]
    pooled = [facts.last.figures(point, metric.name) for point in POINTS]
    rows.append(row("all, pooled", sum(facts.samples), *(each and each.pooled for each in pooled)))
    headings = {point: f"{point}: {metric.heading}" for point in ("received", "trained")}
    return facts_table(rows, {"site": "site", "samples": "training samples", **headings})
