"""A secret from which noise is drawn, and a ledger of what has been spent on privacy: at a site, or at the server."""

import hashlib
import hmac
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from torch import Tensor

from fedgraft.base import disk
from fedgraft.base.errors import UserError

SECRET, LEDGER = "secret", "ledger.jsonl"
"""What noise is drawn from, for all runs; and the orders of one run that privacy was spent on."""


@dataclass(frozen=True)
class Ledger:
    """What one party of a run has spent; ``folder`` holds its secret, ``place`` what is the run's."""

    folder: Path
    place: Path
    whose: str
    run: str
    unit: str = "noised steps"

    def spend(self, order: str, steps: int, allowed: int) -> str:
        """Enter an order into the ledger, within the budget; return the secret from which its noise is drawn.

        An order that was answered before costs nothing: its noise, and so its reply, are what they were. The ledger
        knows nothing of going back: what was sent stays sent, whatever state the server asks for.
        """
        path = self.place / LEDGER
        spent = self._entries(path)
        if order not in spent:
            if (made := sum(spent.values())) + steps > allowed:
                raise UserError(
                    f"{self.whose} has spent its privacy: {made} of {allowed} {self.unit} are made, and this order "
                    f"takes {steps}"
                )
            with path.open("a", encoding="utf-8") as file:
                file.write(json.dumps({"order": order, "steps": steps}) + "\n")
                file.flush()
                os.fsync(file.fileno())
        return self.drawn(order)

    def drawn(self, what: str) -> str:
        """Return a secret for something, which nobody can work out from another one."""
        return hmac.new(self._secret(), f"{self.run}/{what}".encode(), hashlib.sha256).hexdigest()

    def _entries(self, path: Path) -> dict[str, int]:
        try:
            lines = path.read_text("utf-8").splitlines() if path.exists() else []
            entries = [json.loads(line) for line in lines]
            return {str(each["order"]): int(each["steps"]) for each in entries}
        except (OSError, ValueError, KeyError, TypeError):
            raise UserError(f"the privacy ledger of {self.whose} is damaged: put it back from a copy") from None

    def _secret(self) -> bytes:
        """The secret, drawn once; nobody but the user whose process this is may read it."""
        path = self.folder / SECRET
        try:
            handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
            with os.fdopen(handle, "wb") as file:
                file.write(os.urandom(32))
                file.flush()
                os.fsync(file.fileno())
        except FileExistsError:
            pass
        if len(found := path.read_bytes()) != 32:
            raise UserError(f"the secret of {self.whose} is damaged: put it back from a copy")
        return found


@dataclass(frozen=True)
class ServerSecrets:
    """Where a server draws whom it asks, and the noise on what it releases: so many sums at most."""

    place: Path
    run: str
    releases: int

    @property
    def _ledger(self) -> Ledger:
        return Ledger(self.place, self.place, "the server", self.run, "noised sums")

    def sampling(self, round: int) -> str:
        return self._ledger.drawn(f"sampling/{round}")

    def noise(self, round: int, total: Mapping[str, Tensor]) -> str:
        """Another sum in the same round has other noise, and costs as much again: their difference would be bare."""
        return self._ledger.spend(digest(f"{round}", total), 1, self.releases)


def digest(*parts: Mapping[str, Tensor] | str) -> str:
    """Return a checksum of named tensors and words, in their order."""
    whole = hashlib.sha256()
    for part in parts:
        whole.update(hashlib.sha256(part.encode() if isinstance(part, str) else disk.packed(part)).digest())
    return whole.hexdigest()
