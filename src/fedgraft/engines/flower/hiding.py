"""A site's part of secure aggregation: what it keeps of a wave between messages, and what it agrees to.

Flower starts a new process for every message, so the secrets of a wave lie in the site's state directory until its
masks are undone, or the next wave begins. A site masks nothing unless enough others do the same, and hands shares over
once, of one secret of each site.
"""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from flwr.app import ConfigRecord, RecordDict

from fedgraft.base import disk
from fedgraft.core.client import ClientId
from fedgraft.core.message import Message
from fedgraft.core.secure import LEAST, entries, flat, shapes_of
from fedgraft.engines.flower import masking
from fedgraft.engines.flower.masking import Keys, MaskError, Public, Shares
from fedgraft.engines.flower.records import Tag, config, numbered
from fedgraft.engines.flower.site import Memory, SiteError

RECORD = "secure"


@dataclass
class Wave:
    """What a site holds of one wave."""

    keys: Keys
    publics: dict[ClientId, Public] = field(default_factory=dict)
    threshold: int = 0
    shares: dict[ClientId, Shares] = field(default_factory=dict)
    """Of the secrets of those with whom it exchanged masks, its own among them."""
    own: dict[ClientId, Shares] = field(default_factory=dict)

    def write(self, path: Path) -> None:
        facts = json.dumps(asdict(self), default=lambda secret: secret.hex())
        disk.write(path, facts.encode())

    @classmethod
    def read(cls, path: Path) -> "Wave":
        def made(kind: Any, held: Mapping[str, str]) -> Any:
            return kind(**{name: bytes.fromhex(text) for name, text in held.items()})

        try:
            held = json.loads(path.read_bytes())
            return cls(
                made(Keys, held["keys"]),
                {int(client): made(Public, each) for client, each in held["publics"].items()},
                held["threshold"],
                {int(client): made(Shares, each) for client, each in held["shares"].items()},
                {int(client): made(Shares, each) for client, each in held["own"].items()},
            )
        except (OSError, ValueError, KeyError, TypeError):
            raise SiteError("the site has no keys of this round for secure aggregation") from None


@dataclass(frozen=True)
class Hidden:
    """Secure aggregation at a site, in one wave of one round."""

    memory: Memory
    tag: Tag

    @property
    def _file(self) -> Path:
        return self.memory.place / f"secure-{self.tag.round:06d}-{self.tag.wave:04d}.json"

    @property
    def _context(self) -> bytes:
        return f"{self.tag.run}/{self.tag.round}/{self.tag.wave}".encode()

    @property
    def attempt(self) -> str:
        """What tells this attempt at the wave from others: the site's public key, which is new each time."""
        return Wave.read(self._file).keys.public.mask.hex()

    def advertise(self) -> RecordDict:
        """Draw new keys, forget those of earlier waves, and say the public halves."""
        for old in self.memory.place.glob("secure-*.json"):
            old.unlink()
        keys = Keys.drawn()
        Wave(keys).write(self._file)
        return self._reply(**asdict(keys.public))

    def share(self, content: RecordDict) -> RecordDict:
        """Share the own secrets among all whose public keys came, each share sealed for one of them."""
        wave, me = Wave.read(self._file), self.tag.client
        held = config(content, RECORD)
        publics = _publics(held)
        threshold = held.get("threshold")
        if len(publics) < LEAST or not isinstance(threshold, int) or not len(publics) / 2 < threshold <= len(publics):
            raise SiteError(f"a sum of {len(publics)} sites of which {threshold} have to answer hides too little")
        if publics.get(me) != wave.keys.public:
            raise SiteError("the server passes on another public key than the site's own")
        wave.publics, wave.threshold = publics, threshold
        wave.own = masking.split(wave.keys, publics, threshold)
        wave.write(self._file)
        others = sorted(publics.keys() - {me})
        boxes = [
            masking.sealed(wave.own[other], me, wave.keys.seal, other, publics[other], self._context)
            for other in others
        ]
        return self._reply(clients=others, boxes=boxes)

    def mask(self, reply: Message, content: RecordDict) -> Message:
        """Hide a reply from everybody; those whose shares came do the same, and the masks cancel."""
        wave, me = Wave.read(self._file), self.tag.client
        boxes = numbered(config(content, RECORD), "boxes")
        if len(boxes) + 1 < wave.threshold or not boxes.keys() <= wave.publics.keys() - {me}:
            raise SiteError(f"only {len(boxes)} other sites take part, too few to hide a reply among")
        if wave.shares:
            raise SiteError("a reply of this round was masked before; its masks serve once")
        try:
            for sender, box in boxes.items():
                about = (sender, wave.publics[sender], me, wave.keys.seal, self._context)
                wave.shares[sender] = masking.opened(box, *about)
            wave.shares[me] = wave.own[me]
            taking_part = {client: wave.publics[client] for client in wave.shares}
            row = masking.masked(flat(reply).numpy(), me, wave.keys, taking_part, self._context)
        except MaskError as error:
            raise SiteError(str(error)) from None
        wave.write(self._file)
        return Message(**entries(torch.from_numpy(row), shapes_of(reply)))

    def unmask(self, content: RecordDict) -> RecordDict:
        """Hand over shares: of the seeds of those who answered, of the mask keys of those who did not."""
        wave, held = Wave.read(self._file), config(content, RECORD)
        answered, lost = (_clients(held.get(name)) for name in ("answered", "lost"))
        if not wave.shares or answered & lost or answered | lost != wave.shares.keys():
            raise SiteError("the server asks for shares of others than those that took part, or for two of one")
        if len(answered) < wave.threshold or self.tag.client not in answered:
            raise SiteError(f"{len(answered)} sites answered, and {wave.threshold} have to: nothing is unmasked")
        self._file.unlink()
        shares = {client: wave.shares[client].seed for client in answered}
        shares |= {client: wave.shares[client].mask for client in lost}
        return self._reply(clients=list(shares), shares=list(shares.values()))

    def _reply(self, **facts: Any) -> RecordDict:
        return RecordDict({"tag": ConfigRecord(asdict(self.tag)), RECORD: ConfigRecord(facts)})


def _publics(held: Mapping[str, Any]) -> dict[ClientId, Public]:
    masks, seals = (numbered(held, name) for name in ("mask", "seal"))
    return {client: Public(masks[client], seals[client]) for client in masks if client in seals}


def _clients(held: Any) -> set[ClientId]:
    return {client for client in held if isinstance(client, int)} if isinstance(held, list) else set()
