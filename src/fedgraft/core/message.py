"""What crosses between server and client: named tensors, copied at the crossing, counted in bytes."""

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
from torch import Tensor

DTYPES = frozenset({
    torch.float32, torch.float64, torch.float16,
    torch.int8, torch.int16, torch.int32, torch.int64, torch.uint8, torch.bool,
})  # fmt: skip


K = TypeVar("K")


class Message(Mapping[str, Tensor]):
    """A read-only mapping from names to tensors; a Python number becomes a tensor without dimensions."""

    __slots__ = ("_fields",)

    def __init__(self, **fields: Tensor | float | bool) -> None:
        self._fields = {name: _tensor(name, value) for name, value in fields.items()}

    def __getitem__(self, name: str) -> Tensor:
        return self._fields[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._fields)

    def __len__(self) -> int:
        return len(self._fields)

    def __repr__(self) -> str:
        fields = ", ".join(f"{name}={str(t.dtype)[6:]}{list(t.shape)}" for name, t in self.items())
        return f"Message({fields})"

    @property
    def nbytes(self) -> int:
        """Bytes of the values; names and framing belong to the transport."""
        return sum(tensor.numel() * tensor.element_size() for tensor in self._fields.values())

    def copy(self) -> "Message":
        """Copy every tensor, so that the two sides of a crossing never share memory."""
        return self._of({name: _copy(tensor) for name, tensor in self._fields.items()})

    def apart_from(self, others: Iterable[Tensor]) -> "Message":
        """Copy the tensors that share memory with any of the others: the two sides of a crossing never do."""
        held = {tensor.untyped_storage().data_ptr() for tensor in others}
        return self._of(
            {
                name: _copy(tensor) if tensor.untyped_storage().data_ptr() in held else tensor
                for name, tensor in self._fields.items()
            }
        )

    def to(self, device: torch.device) -> "Message":
        return self._of({name: tensor.to(device) for name, tensor in self._fields.items()})

    def copy_to(self, device: torch.device) -> "Message":
        """Copy every tensor to a device."""
        return self.copy() if device.type == "cpu" else self.to(device)

    @classmethod
    def _of(cls, fields: dict[str, Tensor]) -> "Message":
        """Make a message of tensors that may travel, as is known already."""
        made = cls()
        made._fields = fields
        return made


def copies(messages: Mapping[K, Message]) -> dict[K, Message]:
    """Copy messages as ``Message.copy`` does; a tensor that is in several of them is one in the copies too."""
    done: dict[Any, Tensor] = {}

    def once(tensor: Tensor) -> Tensor:
        key = (tensor.data_ptr(), tensor.shape, tensor.stride(), tensor.dtype)
        if key not in done:
            done[key] = _copy(tensor)
        return done[key]

    return {
        to: Message._of({name: once(tensor) for name, tensor in message._fields.items()})
        for to, message in messages.items()
    }


def _copy(tensor: Tensor) -> Tensor:
    return tensor.clone(memory_format=torch.contiguous_format)


def _tensor(name: str, value: Tensor | float | bool) -> Tensor:
    if isinstance(value, Tensor):
        tensor = value.detach()
    elif isinstance(value, bool | int | float):
        dtype = {bool: torch.bool, int: torch.int64}.get(type(value), torch.float64)
        tensor = torch.tensor(value, dtype=dtype)
    else:
        raise TypeError(f"a message holds tensors and numbers; {name!r} is a {type(value).__name__}")
    if tensor.dtype not in DTYPES:
        raise TypeError(f"{name!r} has dtype {tensor.dtype}, which does not travel")
    return tensor


@dataclass(frozen=True)
class Field:
    """What one entry of a reply has to look like before the server touches it.

    ``total`` bounds the sum of its values: counts have to add up to the samples that the server knows of.
    """

    shape: tuple[int, ...]
    dtype: torch.dtype = torch.float32
    low: float | None = None
    high: float | None = None
    total: tuple[int, int] | None = None

    def objection(self, tensor: Tensor) -> str | None:
        """Say what is wrong with ``tensor``, or nothing."""
        if tuple(tensor.shape) != self.shape:
            return f"has shape {list(tensor.shape)}, expected {list(self.shape)}"
        if tensor.dtype != self.dtype:
            return f"has dtype {str(tensor.dtype)[6:]}, expected {str(self.dtype)[6:]}"
        if tensor.is_floating_point() and not finite(tensor):
            return "holds values that are not finite"
        if self.low is not None and bool((tensor < self.low).any()):
            return f"holds values below {self.low:g}"
        if self.high is not None and bool((tensor > self.high).any()):
            return f"holds values above {self.high:g}"
        if self.total is not None:
            (least, most), total = self.total, float(tensor.sum(dtype=torch.float64))
            if not least <= total <= most:
                return f"sums to {total:g}, expected {most if least == most else f'{least} to {most}'}"
        return None


def finite(tensor: Tensor) -> bool:
    """Whether all numbers are; the sum of their squares says so at a fifth of the cost, unless it overflows."""
    return math.isfinite(squared(tensor)) or bool(torch.isfinite(tensor).all())


def squared(tensor: Tensor) -> float:
    """Return the sum of the squares, in the tensor's own type: quick, and as good as that type is."""
    flat = tensor.reshape(-1)
    return float(torch.dot(flat, flat))


def objection(reply: Message, expected: Mapping[str, Field]) -> str | None:
    """Return why the server refuses ``reply``, or nothing if every field is as ``expected``."""
    missing = sorted(expected.keys() - reply.keys())
    surplus = sorted(reply.keys() - expected.keys())
    if missing:
        return f"lacks {', '.join(missing)}"
    if surplus:
        return f"holds {', '.join(surplus)}, which nobody asked for"
    for name, field in expected.items():
        if complaint := field.objection(reply[name]):
            return f"{name!r} {complaint}"
    return None
