"""A site looks at itself before it takes part: its data, its way to the server, its clock, its key."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from fedgraft.base.errors import UserError
from fedgraft.data.digest import Fingerprint, difference
from fedgraft.data.sources import read_own, unused
from fedgraft.data.sources.source import Reading
from fedgraft.deploy.application import host_and_port
from fedgraft.deploy.charter import read
from fedgraft.deploy.serving import FILE, branch, in_charters_words, leaving
from fedgraft.engines.flower.client import Branch
from fedgraft.engines.flower.limits import AHEAD, BEHIND
from fedgraft.engines.flower.reach import NotYetError, clock, insist_on_key
from fedgraft.engines.flower.site import Description, describe, earlier_data
from fedgraft.runs.population import reading

Say = Callable[[str], None]
DOUBT = 1.0
"""Seconds by which a clock may be misread: the server names whole ones, and answers take time."""


@dataclass(frozen=True)
class Check:
    """What a site has beside its description, unless it is told where else."""

    site: Path
    server: str | None = None
    authority: Path | None = None
    key: Path | None = None
    federation: Path | None = None

    def run(self, say: Say) -> None:
        """Say what is in order, and raise what is not, all of it."""
        _report((self.code, self.data, self.clock, self.registered), say)

    def at_home(self, say: Say) -> None:
        """Say what is in order of what is here already."""
        _report((self.code, self.data), say)

    def on_the_way(self, say: Say) -> None:
        """Say whether the server would let this site in."""
        _report((self.clock, self.registered), say)

    @cached_property
    def described(self) -> Description:
        return describe(self.site)

    @property
    def trust(self) -> tuple[Path, Path]:
        """The authority's certificate and the site's key."""
        near = self.site.absolute().parent
        return self.authority or near / "ca.crt", self.key or near / "node.key"

    @property
    def address(self) -> str:
        """Where the server is reached."""
        if address := self.server or self.described.server:
            host, port = host_and_port(address)
            return f"{host}:{port}"
        raise UserError(f'{self.site} does not name the server: server = "fed.example.org:8000", or --server')

    @property
    def agreed(self) -> Path | None:
        """The federation's charter, if it is here."""
        beside = self.site.parent / FILE
        return self.federation or (beside if beside.exists() else None)

    def code(self) -> str:
        """Have whoever answers for the site see that there is code of somebody's."""
        if self.agreed is None or not (foreign := read(self.agreed).code):
            return ""
        where = f"{', '.join(foreign)} beside {self.agreed.name}"
        return f"code: {where} is not fedgraft's, and runs here with the rights of this site's process; read it"

    def data(self) -> str:
        """Read the data as training would, and hold them against what was agreed."""
        if self.agreed is None:
            with in_charters_words():
                held = read_own(self.described.data, Reading())
            counts = f"{len(held.y_train)} samples to train on and {len(held.y_test)} to test on"
            return f"data: {counts}; whether they fit is not known, {FILE} is not beside {self.site.name}"
        agreed = read(self.agreed)
        own = branch(agreed, self.site)
        data = own.workshop.data[own.client]
        counts = f"{len(data.train)} samples to train on and {len(data.test)} to test on"
        method = own.workshop.method
        leaves = f"leaves: {leaving(method, method.setup(own.workshop.spec))}"
        doubts = [*unused(self.described.data, reading(agreed.run)), *_one_sided(own)]
        remarks = [f"mind: {each}" for each in doubts]
        return "\n".join([f"data: {counts}, as agreed", *remarks, *self._news(own.fingerprint), leaves])

    def _news(self, now: Fingerprint) -> list[str]:
        """Say whether the data are those of the run before."""
        before = earlier_data(self.described)
        other = before and difference([before], [now], [f"site {self.described.name}"])
        if not other:
            return []
        return [f"new data: {other}, since its last run; a new run takes them, that one cannot go on with them"]

    def clock(self) -> str:
        """Ask the server for its certificate and its time."""
        host, port = host_and_port(self.address)
        ahead = clock(host, port, self.trust[0])
        told = f"{abs(ahead):.0f} s {'ahead of' if ahead > 0 else 'behind'} the server's"
        if not -BEHIND + DOUBT < ahead < AHEAD - DOUBT:
            raise UserError(
                f"the clock is {told}; a node that is more than {AHEAD} s ahead or {BEHIND} s behind is refused: "
                "set the clock, best by NTP"
            )
        agree = "the clocks agree" if abs(ahead) < 2 * DOUBT else f"the clock is {told}"
        return f"server: {host}:{port} answers, with a certificate of our authority; {agree}"

    def registered(self) -> str:
        """Ask the server whether it knows the key."""
        host, port = host_and_port(self.address)
        authority, key = self.trust
        insist_on_key(host, port, authority, key)
        return f"key: {key.name} is registered"


def _one_sided(own: Branch) -> list[str]:
    """Say that there is nothing to tell apart in a site's training samples."""
    labels = own.workshop.data[own.client].train.labels
    if labels.dim() != 1 or bool((labels != labels[0]).any()):
        return []
    what = "of class" if own.workshop.spec.task.has_classes else "a target of"
    return [
        f"every training sample is {what} {labels[0].item():g}: the site's own model learns to say nothing else, and "
        "tests of it tell little"
    ]


def _report(parts: Sequence[Callable[[], str]], say: Say) -> None:
    problems: list[UserError] = []
    for part in parts:
        try:
            if sentence := part():
                say(sentence)
        except UserError as error:
            problems.append(error)
    if problems:
        kind = NotYetError if all(isinstance(each, NotYetError) for each in problems) else UserError
        raise kind("; ".join(dict.fromkeys(map(str, problems))))
