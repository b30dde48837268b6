"""Is a reply in proportion? Measured by the message that it answers, by the model and by the other replies of its wave.

An entry that was sent as well, as weights are, counts by how far it lies from what was sent; any other by its norm. It
is in proportion to the larger of two things: the median of its kind over the wave, and three tenths of the norm of what
was sent (of the first weights, if nothing like it was). Fewer than three replies have no median that one of them could
not choose; they are measured by what was sent alone. Numbers without dimensions are left to the method's own bounds.
"""

import math
from collections.abc import Mapping

import torch
from torch import Tensor

from fedgraft.core.client import ClientId
from fedgraft.core.message import Message
from fedgraft.core.method import Spec

SLACK = 0.3
"""Share of the norm of what was sent by which a reply may always differ from it, whatever the others do."""
CROWD = 3


def excesses(
    spec: Spec, sent: Mapping[ClientId, Message], replies: Mapping[ClientId, Message]
) -> dict[ClientId, dict[str, float]]:
    """Say for every entry of every reply how many times larger it is than what would be in proportion."""
    found: dict[ClientId, dict[str, float]] = {client: {} for client in replies}
    names = {name for reply in replies.values() for name, entry in reply.items() if _counts(entry)}
    for name in sorted(names):
        there = {client: reply[name] for client, reply in replies.items() if name in reply}
        sizes = {client: _size(entry, sent[client].get(name)) for client, entry in there.items()}
        usual = _low_median(list(sizes.values())) if len(sizes) >= CROWD else None
        for client, size in sizes.items():
            scale = _scale(spec, client, sent[client], name, there[client])
            bound = scale if usual is None else max(usual, SLACK * scale)
            found[client][name] = size / bound if bound else (math.inf if size else 0.0)
    return found


def _counts(entry: Tensor) -> bool:
    return entry.is_floating_point() and entry.dim() > 0


def _size(entry: Tensor, was: Tensor | None) -> float:
    exact = torch.promote_types(entry.dtype, torch.float32)  # halves overflow
    if was is None or was.shape != entry.shape:
        return _norm(entry.to(exact))
    return _norm(entry.to(exact) - was.to(exact))


def _scale(spec: Spec, client: ClientId, sent: Message, name: str, entry: Tensor) -> float:
    """The norm of what was sent under this name, or else of the largest thing sent and of the first weights."""
    was = sent.get(name)
    if was is not None and was.shape == entry.shape and (norm := _norm(was)) > 0:
        return norm
    return max([spec.first_norms[spec.assignment[client]], *(_norm(each) for each in sent.values() if _counts(each))])


def _norm(tensor: Tensor) -> float:
    """The norm of a vector, or of the largest row: who has more classes sends more prototypes, not larger ones."""
    return float(torch.linalg.vector_norm(tensor, dim=-1, dtype=torch.float64).max()) if tensor.numel() else 0.0


def _low_median(values: list[float]) -> float:
    """The lower of the two middle values: half of the replies cannot raise it."""
    return sorted(values)[(len(values) - 1) // 2]
