"""The server's part of secure aggregation: it passes keys and sealed shares on, and learns the sum of a wave.

Four letters to each site take the place of one: keys, shares, training, and what undoes the masks. Who fails on the
way is absent in the round; the sum is that of all whose masked replies came, if they are enough.
"""

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

import torch
from flwr.app import ConfigRecord
from flwr.app import Message as Letter

from fedgraft.core.client import ClientId
from fedgraft.core.exchange import Failure, Outcome
from fedgraft.core.message import Message
from fedgraft.core.secure import Secure, entries, flat, mean, shapes_of
from fedgraft.engines.flower import masking
from fedgraft.engines.flower.hiding import RECORD
from fedgraft.engines.flower.masking import MaskError, Public
from fedgraft.engines.flower.records import config, numbered

Facts = Mapping[ClientId, ConfigRecord]
Ask = Callable[[str, Facts], Mapping[ClientId, Letter | Failure]]
Train = Callable[[Facts], Mapping[ClientId, Outcome | Failure]]


T = TypeVar("T")


class TooFewError(ValueError):
    """Fewer sites are left in a wave than the sum needs."""


@dataclass
class SecureWave:
    """One wave: ``clients`` of these ``weights``, whose replies have these ``shapes``.

    ``ask`` sends a question to sites, ``train`` the wave's messages with what goes along.
    """

    stage: Secure
    weights: Mapping[ClientId, int]
    shapes: Mapping[str, tuple[int, ...]]
    context: bytes
    ask: Ask
    train: Train
    failures: dict[ClientId, Failure] = field(default_factory=dict)

    @property
    def threshold(self) -> int:
        """How many of the wave's sites have to answer."""
        return self.stage.least(len(self.weights))

    def run(self) -> dict[ClientId, Outcome | Failure]:
        """Return the mean in the place of everybody's reply, or why there is none."""
        answered: dict[ClientId, Outcome] = {}
        try:
            publics = self._enough(self._keys(self.weights))
            boxes = self._enough(self._shares(publics))
            answered = self._enough(self._masked(boxes))
            total = self._unmasked(publics, boxes.keys(), answered)
        except (TooFewError, MaskError) as error:
            lacking = dict.fromkeys(self.weights, Failure(f"secure aggregation did not come about: {error}"))
            return {**lacking, **self.failures}
        whole = mean(total, sum(self.weights[client] for client in answered))
        return {**self.failures, **{client: replace(each, reply=whole) for client, each in answered.items()}}

    def _enough(self, found: dict[ClientId, T]) -> dict[ClientId, T]:
        if len(found) < self.threshold:
            raise TooFewError(f"{len(found)} of {len(self.weights)} sites are left, and it takes {self.threshold}")
        return found

    def _asked(self, kind: str, facts: Facts) -> dict[ClientId, Mapping[str, Any]]:
        """Ask sites; who gives no answer is lost to the wave."""
        found: dict[ClientId, Mapping[str, Any]] = {}
        for client, reply in self.ask(kind, facts).items():
            if isinstance(reply, Failure):
                self.failures[client] = reply
            else:
                found[client] = config(reply.content, RECORD)
        return found

    def _keys(self, clients: Collection[ClientId]) -> dict[ClientId, Public]:
        found = self._asked("query.keys", {client: ConfigRecord() for client in clients})
        return {
            client: Public(held["mask"], held["seal"])
            for client, held in found.items()
            if self._sound(client, all(isinstance(held.get(name), bytes) for name in ("mask", "seal")))
        }

    def _sound(self, client: ClientId, sound: bool) -> bool:
        if not sound:
            self.failures[client] = Failure("the reply is not what secure aggregation asks for")
        return sound

    def _shares(self, publics: Mapping[ClientId, Public]) -> dict[ClientId, dict[ClientId, bytes]]:
        """Return the sealed shares that each site has for each other one."""
        who = sorted(publics)
        known = ConfigRecord({
            "clients": who, "threshold": self.threshold,
            "mask": [publics[client].mask for client in who], "seal": [publics[client].seal for client in who],
        })  # fmt: skip
        found = self._asked("query.shares", dict.fromkeys(who, known))
        boxes = {client: numbered(held, "boxes") for client, held in found.items()}
        return {
            client: each for client, each in boxes.items() if self._sound(client, each.keys() == set(who) - {client})
        }

    def _masked(self, boxes: Mapping[ClientId, Mapping[ClientId, bytes]]) -> dict[ClientId, Outcome]:
        """Let those who shared their secrets train; each gets what the others sealed for it."""
        facts = {}
        for client in boxes:
            others = sorted(boxes.keys() - {client})
            facts[client] = ConfigRecord({"clients": others, "boxes": [boxes[other][client] for other in others]})
        answered: dict[ClientId, Outcome] = {}
        for client, outcome in self.train(facts).items():
            if isinstance(outcome, Failure):
                self.failures[client] = outcome
            elif self._sound(client, shapes_of(outcome.reply) == self.shapes and _whole(outcome.reply)):
                answered[client] = outcome
        return answered

    def _unmasked(
        self, publics: Mapping[ClientId, Public], sharing: Collection[ClientId], answered: Mapping[ClientId, Outcome]
    ) -> dict[str, torch.Tensor]:
        """Take the masks out of the sum of the masked replies."""
        lost = sorted(set(sharing) - answered.keys())
        wanted = ConfigRecord({"answered": sorted(answered), "lost": lost})
        found = self._asked("query.unmask", dict.fromkeys(answered, wanted))
        given = self._enough({client: numbered(held, "shares") for client, held in found.items()})
        rows = [flat(outcome.reply).numpy() for outcome in answered.values()]
        total, length = sum(rows[1:], rows[0].copy()), len(rows[0])
        for client in (*answered, *lost):
            shares = {giver: held[client] for giver, held in given.items() if client in held}
            secret = masking.rebuilt(shares, publics, self.threshold)
            if client in answered:
                total -= masking.lone(secret, length)
                continue
            if masking.Keys(secret, secret, secret).public.mask != publics[client].mask:
                raise MaskError("the shares of a lost site's key do not fit together")
            for other in answered:
                total += masking.pairwise(client, secret, other, publics[other], length, self.context)
        for client in answered:  # it was asked once more, and is there even if that answer did not come
            self.failures.pop(client, None)
        return entries(torch.from_numpy(total), self.shapes)


def _whole(reply: Message) -> bool:
    return all(tensor.dtype == torch.int64 for tensor in reply.values())
