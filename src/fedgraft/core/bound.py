"""The bound: replies that are too large, by themselves or beside the others, are refused. It is there in every run.

A bound on the norm catches what is absurd, whatever the others send. A bound on the proportion catches what is many
times larger than the model and the other replies suggest; ``core/proportion.py`` says how that is measured.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass

import torch

from fedgraft.base.errors import UserError
from fedgraft.core.magnitude import squared
from fedgraft.core.message import Message
from fedgraft.core.proportion import excesses
from fedgraft.core.spec import ClientId, Spec
from fedgraft.core.stages import Stage


@dataclass(frozen=True, kw_only=True)
class Bound(Stage):
    """Refuses a reply of which an entry has a larger norm, or is so many times out of proportion (0: never)."""

    name = "bound"
    about = "refuses a reply with an entry above a norm, or more than a factor out of proportion (0: any proportion)"
    norm: float = 1e9
    factor: float = 10.0

    def __post_init__(self) -> None:
        for name, value in (("norm", self.norm), ("factor", self.factor)):
            if not isinstance(value, int | float) or isinstance(value, bool) or not math.isfinite(value):
                raise UserError(f"bound: {name} is a number, not {value!r}")
        if self.norm <= 0:
            raise UserError(f"bound: norm has to be above 0, not {self.norm!r}")
        if self.factor < 0:
            raise UserError(f"bound: factor has to be at least 0, not {self.factor!r}")

    def judge(
        self, spec: Spec, sent: Mapping[ClientId, Message], replies: Mapping[ClientId, Message]
    ) -> dict[ClientId, str]:
        large = {client: complaint for client, reply in replies.items() if (complaint := self._too_large(reply))}
        rest = {client: reply for client, reply in replies.items() if client not in large}
        return large | self._outliers(spec, sent, rest)

    def _too_large(self, reply: Message) -> str | None:
        """Say which entry has too large a norm; whole numbers are left to the method's own bounds."""
        for name, entry in reply.items():
            if not entry.is_floating_point():
                continue
            if squared(entry) < self.norm**2 / 4:  # quick and inexact, and almost always enough
                continue
            norm = float(torch.linalg.vector_norm(entry, dtype=torch.float64))
            if norm > self.norm:
                return f"{name!r} has norm {norm:.3g}, above bound:norm={self.norm:g}"
        return None

    def _outliers(
        self, spec: Spec, sent: Mapping[ClientId, Message], replies: Mapping[ClientId, Message]
    ) -> dict[ClientId, str]:
        if not self.factor:
            return {}
        return {
            client: f"{name!r} is {excess:.3g} times out of proportion to the model and the other replies, "
            f"above bound:factor={self.factor:g}"
            for client, entries in excesses(spec, sent, replies).items()
            for name, excess in entries.items()
            if excess > self.factor
        }
