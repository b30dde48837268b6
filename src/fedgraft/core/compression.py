"""Compression: fewer bytes for the same entries, as stages at the crossing.

What is coded is the change against what the other side has already: the server sent ``weights``, so the ``weights`` of
a reply travel as a difference. An entry of which the other side has nothing is coded as it is, or not at all where only
changes can be. A coded entry travels under names that say what was done to it: ``weights@int8:float32`` with
``weights@int8.scale``.
"""

import math
from collections.abc import Mapping, MutableMapping
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from fedgraft.base.errors import UserError
from fedgraft.core.message import Field, Message
from fedgraft.core.stages import Stage, StageError, Way

BLOCK = 1024
_FLOATS = {str(dtype).removeprefix("torch."): dtype for dtype in (torch.float32, torch.float64)}


@dataclass(frozen=True, kw_only=True)
class Coding(Stage):
    """A stage that codes every entry of floats, and leaves the others alone."""

    up: bool = True
    down: bool = False

    def __post_init__(self) -> None:
        if not (self.up or self.down):
            raise UserError(f"{self.name} codes nothing: up and down are both false")

    def works(self, way: Way) -> bool:
        return self.up if way == "up" else self.down

    def code(self, tensor: Tensor, name: str, memory: MutableMapping[str, Tensor]) -> dict[str, Tensor]:
        """Return the parts in which a tensor travels; the first is called after the stage alone."""
        raise NotImplementedError

    def read(self, parts: Mapping[str, Tensor], dtype: torch.dtype) -> Tensor:
        """Put the parts together again."""
        raise NotImplementedError

    changes_only: ClassVar[bool] = False
    """Whether an entry of which the other side has nothing travels as it is."""

    def encode(self, message: Message, known: Mapping[str, Tensor], memory: MutableMapping[str, Tensor]) -> Message:
        coded: dict[str, Tensor] = {}
        for name, tensor in message.items():
            kind = str(tensor.dtype).removeprefix("torch.")
            answers = _fits(tensor, known.get(name))
            if kind not in _FLOATS or (self.changes_only and not answers):
                coded[name] = tensor
                continue
            change = tensor - known[name].to(tensor) if answers else tensor
            for part, values in self.code(change, name, memory).items():
                coded[f"{name}@{self.name}:{kind}" if part == "" else f"{name}@{self.name}.{part}"] = values
        return Message(**coded)

    def decode(self, message: Message, known: Mapping[str, Tensor]) -> Message:
        left = dict(message)
        decoded: dict[str, Tensor] = {}
        for key in list(message):
            name, at, how = key.rpartition("@")
            stage, colon, kind = how.partition(":")
            if not at or not colon or stage != self.name:
                continue
            if kind not in _FLOATS:
                raise StageError(f"is coded as {how!r}, which is no kind of floats")
            prefix = f"{name}@{self.name}."
            parts = {"": left.pop(key)} | {
                other.removeprefix(prefix): left.pop(other) for other in list(left) if other.startswith(prefix)
            }
            change = self.read(parts, _FLOATS[kind])
            decoded[name] = change + known[name].to(change) if _fits(change, known.get(name)) else change
        if surplus := sorted(left.keys() & decoded.keys()):
            raise StageError(f"holds {surplus[0]!r} twice")
        return Message(**left, **decoded)


@dataclass(frozen=True, kw_only=True)
class Float16(Coding):
    """Floats of two bytes; what is beyond their range becomes the largest there is."""

    name = "float16"
    about = "floats of two bytes instead of four"

    def code(self, tensor: Tensor, name: str, memory: MutableMapping[str, Tensor]) -> dict[str, Tensor]:
        largest = torch.finfo(torch.float16).max
        return {"": tensor.clamp(-largest, largest).half()}

    def read(self, parts: Mapping[str, Tensor], dtype: torch.dtype) -> Tensor:
        _insist({"": torch.float16}, parts)
        return parts[""].to(dtype)


@dataclass(frozen=True, kw_only=True)
class Int8(Coding):
    """Whole numbers from -127 to 127 with a scale for each block; what rounding left out is added the next time."""

    name = "int8"
    about = "one byte for a float, with a scale for every 1,024 of them, and error feedback"

    def code(self, tensor: Tensor, name: str, memory: MutableMapping[str, Tensor]) -> dict[str, Tensor]:
        wanted = tensor + memory[name] if _fits(tensor, memory.get(name)) else tensor
        rows = _blocks(wanted)
        scale = rows.abs().amax(dim=1) / 127
        whole = (rows / scale.clamp(min=torch.finfo(rows.dtype).tiny)[:, None]).round().clamp(-127, 127).to(torch.int8)
        parts = {"": whole.view(-1)[: wanted.numel()].view(wanted.shape), "scale": scale.float()}
        memory[name] = wanted - self.read(parts, wanted.dtype)
        return parts

    def read(self, parts: Mapping[str, Tensor], dtype: torch.dtype) -> Tensor:
        _insist({"": torch.int8, "scale": torch.float32}, parts)
        whole, scale = parts[""], parts["scale"]
        rows = _blocks(whole.to(dtype))
        if scale.shape != rows.shape[:1]:
            raise StageError(f"has {scale.numel()} scales for {len(rows)} blocks")
        return (rows * scale.to(dtype)[:, None]).view(-1)[: whole.numel()].view(whole.shape)


@dataclass(frozen=True, kw_only=True)
class TopK(Coding):
    """The largest entries of a change and where they are; the others are kept and added the next time."""

    name = "topk"
    about = "the largest share of the entries of a change, with error feedback"
    changes_only = True
    share: float = 0.1

    def __post_init__(self) -> None:
        super().__post_init__()
        if not isinstance(self.share, int | float) or not 0 < self.share <= 1:
            raise UserError(f"topk: share has to be above 0 and up to 1, not {self.share!r}")

    def objection(self, sent: Message, expected: Mapping[str, Field]) -> str | None:
        answered = [name for name, field in expected.items() if name in sent and tuple(sent[name].shape) == field.shape]
        return None if answered else "topk codes changes, and no entry of a reply answers one of the same name"

    def code(self, tensor: Tensor, name: str, memory: MutableMapping[str, Tensor]) -> dict[str, Tensor]:
        wanted = tensor + memory[name] if _fits(tensor, memory.get(name)) else tensor
        flat = wanted.reshape(-1)
        count = min(flat.numel(), max(1, math.ceil(self.share * flat.numel())))
        places = flat.abs().topk(count, sorted=False).indices.sort().values
        memory[name] = flat.index_fill(0, places, 0).view(wanted.shape)
        return {
            "": flat[places],
            "places": places.to(torch.int32),
            "shape": torch.tensor(wanted.shape, dtype=torch.int64),
        }

    def read(self, parts: Mapping[str, Tensor], dtype: torch.dtype) -> Tensor:
        _insist({"": dtype, "places": torch.int32, "shape": torch.int64}, parts)
        values, places, shape = parts[""], parts["places"].long(), parts["shape"].tolist()
        size = math.prod(shape)
        if len(shape) > 4 or min(shape, default=1) < 0 or values.shape != places.shape or values.dim() != 1:
            raise StageError("has entries and places that do not belong together")
        if len(places) != min(size, max(1, math.ceil(self.share * size))):
            raise StageError(f"has {len(places)} entries of {size}, which is not the agreed share")
        if len(places) and (int(places.min()) < 0 or int(places.max()) >= size or bool((places.diff() <= 0).any())):
            raise StageError("names places that are not there, or one twice")
        return torch.zeros(size, dtype=dtype, device=values.device).index_copy(0, places, values).view(shape)


def _fits(tensor: Tensor, other: Tensor | None) -> bool:
    return other is not None and other.shape == tensor.shape and other.is_floating_point()


def _blocks(tensor: Tensor) -> Tensor:
    """The values in rows of a block each, the last one filled up with zeros."""
    flat = tensor.reshape(-1)
    rows = -(-flat.numel() // BLOCK)
    return torch.nn.functional.pad(flat, (0, rows * BLOCK - flat.numel())).view(rows, BLOCK)


def _insist(kinds: Mapping[str, torch.dtype], parts: Mapping[str, Tensor]) -> None:
    if parts.keys() != kinds.keys() or any(parts[name].dtype != kind for name, kind in kinds.items()):
        raise StageError("is not coded as agreed")
