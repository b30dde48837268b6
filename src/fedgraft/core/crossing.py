"""Copies at the crossing: the two sides share no memory, and nothing is copied twice."""

from collections.abc import Iterable, Mapping
from typing import Any, TypeVar

from torch import Tensor

from fedgraft.core.message import Message, copied

K = TypeVar("K")


def copies(messages: Mapping[K, Message]) -> dict[K, Message]:
    """Copy messages as ``Message.copy`` does; a tensor that is in several of them is one in the copies too."""
    done: dict[Any, Tensor] = {}

    def once(tensor: Tensor) -> Tensor:
        key = (tensor.data_ptr(), tensor.shape, tensor.stride(), tensor.dtype)
        if key not in done:
            done[key] = copied(tensor)
        return done[key]

    return {
        to: Message.of({name: once(tensor) for name, tensor in message.items()}) for to, message in messages.items()
    }


def apart(message: Message, others: Iterable[Tensor]) -> Message:
    """Copy the tensors that share memory with any of the others."""
    held = {tensor.untyped_storage().data_ptr() for tensor in others}
    return Message.of({
        name: copied(tensor) if tensor.untyped_storage().data_ptr() in held else tensor
        for name, tensor in message.items()
    })  # fmt: skip
