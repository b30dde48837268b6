"""A site: the file that describes it, and the private state of its client on its own disk.

Neither the description nor the state ever leaves the site. A state is written before the reply that it belongs to is
sent, and older ones are kept: if the server did not take the reply, or was itself set back to an older checkpoint, the
client goes on from the state that the server knows of.
"""

import hashlib
import json
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from safetensors import SafetensorError
from safetensors.torch import load
from torch import Tensor

from fedgraft.base import disk, toml
from fedgraft.base.errors import UserError
from fedgraft.core.state import State
from fedgraft.data.digest import Fingerprint, difference
from fedgraft.engines.flower.ledger import Ledger

Version = tuple[int, int]
"""Which of a client's states: the round (from 1 on) and the wave that made it; (0, 0) is how it began."""
BEGINNING: Version = (0, 0)
KEPT = 3
"""States: the newest, and one for each checkpoint that the server keeps."""
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}")
PERSONAL = "personal.safetensors"
DATA = "data.json"
"""The fingerprint of the data that a run began with; it does not leave the site."""


class SiteError(UserError):
    """A failure at a site whose sentence may leave it: it holds no path and no data."""


@dataclass(frozen=True)
class Description:
    """What a site says about itself in its own file; relative paths are relative to that file."""

    name: str
    data: Path
    state: Path
    device: str = "cpu"
    server: str | None = None
    """Where the server is reached, HOST:PORT."""
    code: Mapping[str, str] = field(default_factory=dict)
    """Files that are not fedgraft's and that the site agrees to run, with their digests."""


def describe(path: Path) -> Description:
    """Read a site's description."""
    held = toml.read(path, "site description")
    if surplus := held.keys() - {"name", "data", "state", "device", "server", "code"}:
        known = "name, data, state, device, server and code"
        raise UserError(f"{path}: there is no setting {min(surplus)!r}; a site has {known}")
    for key in ("name", "data", "state", "device", "server"):
        if not isinstance(held.get(key, "" if key in ("device", "server") else None), str):
            raise UserError(f"{path}: {key} is missing, or is not a text")
    if not NAME.fullmatch(held["name"]):
        raise UserError(f"{path}: a site's name is made of letters, digits, '.', '_' and '-', not {held['name']!r}")
    code = held.get("code", {})
    if not isinstance(code, dict) or not all(isinstance(digest, str) for digest in code.values()):
        raise UserError(f"{path}: code is a table of files with their digests")
    places = {key: path.parent / Path(held[key]).expanduser() for key in ("data", "state")}
    device, server = held.get("device", "cpu"), held.get("server")
    return Description(name=held["name"], device=device, server=server, code=code, **places)


def personal_model(description: Description) -> Path:
    """Return the file of the site's own network as its newest evaluation left it."""
    found = sorted(description.state.glob(f"*/{PERSONAL}"), key=lambda file: file.stat().st_mtime_ns)
    if not found:
        raise UserError(
            f"{description.state} holds no personal model yet: it is written whenever the site is evaluated, "
            "by methods whose personal model is a plain network"
        )
    return found[-1]


@dataclass(frozen=True)
class Memory:
    """The private state of one client in one run."""

    folder: Path
    site: str
    run: str
    _facts: dict[str, str] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        if not re.fullmatch(r"[0-9a-f]{32}", self.run):
            raise SiteError("the message names no run")
        object.__setattr__(self, "_facts", {"site": self.site, "run": self.run})

    @property
    def place(self) -> Path:
        return self.folder / self.run

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Keep the state to one process at a time."""
        self.place.mkdir(parents=True, exist_ok=True)
        try:
            with disk.locked(self.place):
                yield
        except UserError as error:
            if isinstance(error, SiteError):
                raise
            raise SiteError(f"another process is working on the state of site {self.site}") from error

    def insist_on_data(self, found: Fingerprint) -> None:
        """Keep to the data that the run began with: they are its weight in a mean, and what its figures are of."""
        if (before := known_data(self.place)) is None:
            self.place.mkdir(parents=True, exist_ok=True)
            disk.write(self.place / DATA, json.dumps(found, indent=1).encode())
        elif other := difference([before], [found], [f"site {self.site}"]):
            raise SiteError(f"{other}, since the run began; put the data back, or begin a new run with the new ones")

    def recall(self, version: Version, origin: str = "") -> State | None:
        """Return the state that the server knows of, perhaps of an earlier run; nothing, if it is how all began."""
        if origin:
            return Memory(self.folder, self.site, origin)._recalled(version, " of the run before")
        return None if version == BEGINNING else self._recalled(version)

    def _recalled(self, version: Version, of: str = "") -> State:
        try:
            data = (self.place / _name(version)).read_bytes()
        except OSError:
            held = ", ".join(str(number) for number, _ in self._versions()) or "none"
            raise SiteError(
                f"site {self.site} lacks its state of round {version[0]}{of} (it has those of: {held}); "
                "put its state directory back from a copy"
            ) from None
        try:
            state = load(data)
            facts = json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")])["__metadata__"]
        except (SafetensorError, ValueError, KeyError, RecursionError):
            raise SiteError(f"the state of site {self.site} of round {version[0]} is damaged") from None
        if facts != {**self._facts, "version": _name(version), "sha256": _checksum(state)}:
            raise SiteError(f"the state of site {self.site} of round {version[0]} was altered, or is another's")
        return state

    def keep(self, version: Version, basis: Version, state: Mapping[str, Tensor]) -> None:
        """Write the state that training on ``basis`` gave, and forget what neither side can go back to."""
        facts = {**self._facts, "version": _name(version), "sha256": _checksum(state)}
        disk.write(self.place / _name(version), disk.packed(state, **facts))
        earlier = [each for each in self._versions() if each <= basis]
        for each in set(self._versions()) - {version, *earlier[-KEPT + 1 :]}:
            (self.place / _name(each)).unlink(missing_ok=True)

    def spend(self, order: str, steps: int, allowed: int) -> str:
        """Enter an order into the site's ledger, within the budget; return the secret from which its noise is drawn."""
        try:
            return Ledger(self.folder, self.place, f"site {self.site}", self.run).spend(order, steps, allowed)
        except UserError as error:
            raise SiteError(str(error)) from None

    def keep_personal(self, tensors: Mapping[str, Tensor], **facts: str) -> None:
        """Write the client's own network, for use at the site."""
        self.place.mkdir(parents=True, exist_ok=True)
        disk.write(self.place / PERSONAL, disk.packed(tensors, **self._facts, **facts))

    def _versions(self) -> list[Version]:
        """The states that are there, oldest first."""
        pattern = re.compile(r"state-([0-9]{6,9})-([0-9]{4,9})\.safetensors")
        found = (pattern.fullmatch(file.name) for file in self.place.glob("state-*"))
        return sorted((int(each[1]), int(each[2])) for each in found if each)


def known_data(place: Path) -> Fingerprint | None:
    """Read which data a run began with, if that is known."""
    try:
        found = json.loads((place / DATA).read_bytes())
    except FileNotFoundError:
        return None
    except (OSError, ValueError):
        found = None
    if not isinstance(found, dict):
        raise SiteError("the site's record of its data is damaged; put its state directory back from a copy")
    return found


def earlier_data(description: Description) -> Fingerprint | None:
    """Return which data the site had in its newest run, if there was one."""
    runs = sorted(description.state.glob(f"*/{DATA}"), key=lambda file: file.stat().st_mtime_ns)
    return known_data(runs[-1].parent) if runs else None


def _name(version: Version) -> str:
    return f"state-{version[0]:06d}-{version[1]:04d}.safetensors"


def _checksum(state: Mapping[str, Tensor]) -> str:
    return hashlib.sha256(disk.packed(state)).hexdigest()
