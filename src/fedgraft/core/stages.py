"""Stages at the crossing: what is done to a message on its way, and what the other side makes of it.

A run names its stages. What leaves a side is encoded by each of them in turn, and decoded in the opposite order where
it arrives, before anybody looks at it: a method never knows. Bytes are counted as they travel. A stage may remember
something between rounds (what compression left out); that is part of the sender's private state, and is taken back
with it if the reply is refused.

Two more things can be done where replies arrive. A stage may judge what came from all clients of a wave, side by side,
and have some of it refused; and one stage may take the place of the mean by which the server averages.
"""

from collections.abc import Iterator, Mapping, MutableMapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import TYPE_CHECKING, ClassVar, Literal

import torch
from torch import Tensor

from fedgraft.base.errors import UserError
from fedgraft.core import bank
from fedgraft.core.message import Field, Message
from fedgraft.core.settings import STAGES

if TYPE_CHECKING:
    from fedgraft.core.spec import ClientId, Spec

Way = Literal["up", "down"]


class StageError(ValueError):
    """What arrived was not encoded as agreed; the text says how."""


@dataclass(frozen=True, kw_only=True)
class Stage:
    """A step applied to messages on their way; what a stage does not define is left as it is."""

    name: ClassVar[str]
    about: ClassVar[str] = ""

    def works(self, way: Way) -> bool:
        """Whether messages are coded that go ``up`` from client to server, or ``down`` from server to client."""
        return way == "up"

    @property
    def changes(self) -> bool:
        """Whether replies are changed, or their mean is: not by a stage that only judges."""
        return type(self).encode is not Stage.encode or isinstance(self, Averaging)

    def objection(self, sent: Message, expected: Mapping[str, Field]) -> str | None:
        """Say why there is nothing for this stage to do with such messages and replies, or nothing."""
        return None

    def encode(self, message: Message, known: Mapping[str, Tensor], memory: MutableMapping[str, Tensor]) -> Message:
        """Return what is sent. The receiver has ``known`` already; ``memory`` is kept by the sender."""
        return message

    def decode(self, message: Message, known: Mapping[str, Tensor]) -> Message:
        """Return what was meant, as exactly as can be, or raise ``StageError``."""
        return message

    def gather(self, replies: "Mapping[ClientId, Message]", weights: Mapping[int, int]) -> "Mapping[ClientId, Message]":
        """Return what the server gets of the replies of a wave, before they are decoded; who is left out is refused.

        ``weights`` are those by which the method averages them.
        """
        return replies

    def judge(
        self, spec: "Spec", sent: "Mapping[ClientId, Message]", replies: "Mapping[ClientId, Message]"
    ) -> "Mapping[ClientId, str]":
        """Say what is wrong with replies, seen beside each other; ``sent`` are the messages that they answer.

        They are those of a wave or, where the loop averages, of a block of a large one (``core/inbox.py``).
        Every reply is as the method expects it. A complaint goes on from "the reply": "is too large".
        """
        return {}


@dataclass(frozen=True, kw_only=True)
class Averaging(Stage):
    """A stage that replaces the server's mean; only for methods that average what clients send."""

    def average(self, rows: Tensor, weights: Tensor) -> Tensor:
        """Return what stands for the mean of the rows, one from each client, which the method would weigh so."""
        raise NotImplementedError


class Shelf(MutableMapping[str, Tensor]):
    """The part of a client's private state that one stage calls its own."""

    def __init__(self, state: MutableMapping[str, Tensor], prefix: str) -> None:
        self._state, self._prefix = state, prefix

    def __getitem__(self, name: str) -> Tensor:
        return self._state[self._prefix + name]

    def __setitem__(self, name: str, value: Tensor) -> None:
        self._state[self._prefix + name] = value

    def __delitem__(self, name: str) -> None:
        del self._state[self._prefix + name]

    def __iter__(self) -> Iterator[str]:
        return (name.removeprefix(self._prefix) for name in self._state if name.startswith(self._prefix))

    def __len__(self) -> int:
        return sum(1 for _ in self)


@dataclass(frozen=True)
class Pipeline:
    """The stages of a run, in the order in which a message goes through them when it leaves."""

    stages: Sequence[Stage] = ()

    def encode(
        self, way: Way, message: Message, known: Mapping[str, Tensor], state: MutableMapping[str, Tensor]
    ) -> Message:
        """Make of a message what travels; ``state`` is where the sender keeps what stages remember."""
        for stage in self._on[way]:
            message = stage.encode(message, known, Shelf(state, f"stage/{stage.name}/"))
        return message

    def decode(self, way: Way, message: Message, known: Mapping[str, Tensor]) -> Message:
        """Make of what arrived the message that was meant."""
        for stage in reversed(self._on[way]):
            message = stage.decode(message, known)
        return message

    def gather(self, replies: "Mapping[ClientId, Message]", weights: Mapping[int, int]) -> "Mapping[ClientId, Message]":
        """Make of the replies of a wave what the server gets of them."""
        return replies if self.gathering is None else self.gathering.gather(replies, weights)

    @cached_property
    def codes(self) -> bool:
        """Whether any stage changes what travels."""
        return any(
            type(stage).encode is not Stage.encode or type(stage).decode is not Stage.decode for stage in self.stages
        )

    @property
    def gathering(self) -> Stage | None:
        """The stage that puts replies together before the server gets them, if there is one."""
        return next((stage for stage in self.stages if type(stage).gather is not Stage.gather), None)

    @property
    def needs_all(self) -> bool:
        """Whether a stage works on all replies of a wave together: it puts them together, or is no plain mean."""
        return self.gathering is not None or any(isinstance(stage, Averaging) for stage in self.stages)

    def size(self, expected: Mapping[str, Field]) -> int:
        """How many bytes a valid reply has at most on its way to the server."""
        reply = Message(**{name: torch.zeros(field.shape, dtype=field.dtype) for name, field in expected.items()})
        return max(self.encode("up", reply, known, {}).nbytes for known in (Message(), reply))

    def judge(
        self, spec: "Spec", sent: "Mapping[ClientId, Message]", replies: "Mapping[ClientId, Message]"
    ) -> "dict[ClientId, str]":
        """Say which replies are refused and why; a stage sees what those before it had no objection to."""
        found: dict[ClientId, str] = {}
        for stage in self.stages:
            found |= stage.judge(
                spec, sent, {client: reply for client, reply in replies.items() if client not in found}
            )
        return found

    def mean(self, rows: Tensor, weights: Tensor) -> Tensor:
        """Return the weighted mean of the rows, or what the run has for it."""
        return next((each.average for each in self.stages if isinstance(each, Averaging)), bank.mean)(rows, weights)

    @cached_property
    def _on(self) -> dict[Way, list[Stage]]:
        ways: tuple[Way, ...] = ("up", "down")
        return {way: [stage for stage in self.stages if stage.works(way)] for way in ways}


@lru_cache
def pipeline(texts: tuple[str, ...]) -> Pipeline:
    """Make the stages that a run names; none may be there twice, for what it remembers is kept under its name."""
    stages: list[Stage] = []
    for text in texts:
        stage: Stage = STAGES.make(text)
        if any(stage.name == other.name for other in stages):
            raise UserError(f"the stage {stage.name} is there twice")
        stages.append(stage)
    if len(rivals := [stage.name for stage in stages if isinstance(stage, Averaging)]) > 1:
        raise UserError(f"the stages {' and '.join(rivals)} both take the place of the mean: name one of them")
    made = Pipeline(tuple(stages))
    others = [stage.name for stage in stages if stage.changes and stage is not made.gathering]
    if made.gathering and others:
        raise UserError(f"the stage {made.gathering.name} cannot add up what {others[0]} made of replies: name one")
    return made
