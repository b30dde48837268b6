"""A site looks at itself before it takes part: its data, its way to the server, its clock, its key."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from fedgraft.base.errors import UserError
from fedgraft.data.sources import read_own
from fedgraft.data.sources.source import Reading
from fedgraft.deploy.application import host_and_port
from fedgraft.deploy.charter import read
from fedgraft.deploy.serving import FILE, branch
from fedgraft.engines.flower.limits import AHEAD, BEHIND
from fedgraft.engines.flower.reach import clock, insist_on_key
from fedgraft.engines.flower.site import describe

Say = Callable[[str], None]
DOUBT = 1.0
"""Seconds by which a clock may be misread: the server names whole ones, and answers take time."""


@dataclass(frozen=True)
class Check:
    """What a site has beside its description, unless it is told where else."""

    site: Path
    server: str
    authority: Path
    key: Path
    federation: Path | None

    def run(self, say: Say) -> None:
        """Say what is in order, and raise what is not, all of it."""
        problems = []
        for part in (self._code, self._data, self._clock, self._key):
            try:
                if sentence := part():
                    say(sentence)
            except UserError as error:
                problems.append(str(error))
        if problems:
            raise UserError("; ".join(problems))

    def _code(self) -> str:
        """Have whoever answers for the site see that there is code of somebody's."""
        agreed = self.federation or self.site.parent / FILE
        foreign = read(agreed).code if agreed.exists() else {}
        if not foreign:
            return ""
        where = f"{', '.join(foreign)} beside {agreed.name}"
        return f"code: {where} is not fedgraft's, and runs here with the rights of this site's process; read it"

    def _data(self) -> str:
        described = describe(self.site)
        beside = self.site.parent / FILE
        if self.federation is None and not beside.exists():
            held = read_own(described.data, Reading())
            counts = f"{len(held.y_train)} samples to train on and {len(held.y_test)} to test on"
            return f"data: {counts}; whether they fit is not known, {FILE} is not beside {self.site.name}"
        own = branch(read(self.federation or beside), self.site)
        data = own.workshop.data[own.client]
        return f"data: {len(data.train)} samples to train on and {len(data.test)} to test on, as agreed"

    def _clock(self) -> str:
        host, port = host_and_port(self.server)
        ahead = clock(host, port, self.authority)
        told = f"{abs(ahead):.0f} s {'ahead of' if ahead > 0 else 'behind'} the server's"
        if not -BEHIND + DOUBT < ahead < AHEAD - DOUBT:
            raise UserError(
                f"the clock is {told}; a node that is more than {AHEAD} s ahead or {BEHIND} s behind is refused: "
                "set the clock, best by NTP"
            )
        return f"server: {host}:{port} answers, with a certificate of our authority; the clock is {told}"

    def _key(self) -> str:
        host, port = host_and_port(self.server)
        insist_on_key(host, port, self.authority, self.key)
        return f"key: {self.key.name} is registered"
