"""What crosses between server and client: named tensors, copied at the crossing, counted in bytes."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from fedgraft.core.magnitude import finite

DTYPES = frozenset({
    torch.float32, torch.float64, torch.float16,
    torch.int8, torch.int16, torch.int32, torch.int64, torch.uint8, torch.bool,
})  # fmt: skip


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
        """Copy every tensor, so that sender and receiver never share memory."""
        return self.of({name: copied(tensor) for name, tensor in self._fields.items()})

    def to(self, device: torch.device) -> "Message":
        """Move every tensor to a device; those that are there already are not copied."""
        return self.of({name: tensor.to(device) for name, tensor in self._fields.items()})

    def copy_to(self, device: torch.device) -> "Message":
        """Copy every tensor to a device."""
        return self.copy() if device.type == "cpu" else self.to(device)

    @classmethod
    def of(cls, fields: dict[str, Tensor]) -> "Message":
        """Make a message of tensors that may travel, as is known already."""
        made = cls()
        made._fields = fields
        return made


def copied(tensor: Tensor) -> Tensor:
    """Return a copy that is laid out anew."""
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
