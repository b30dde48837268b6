"""Is a reply in proportion? Measured by the message that it answers, by the model and by the other replies of its wave.

An entry that was sent as well, as weights are, counts by how far it lies from what was sent; any other by its norm. It
is in proportion to the larger of two things: the median of its kind over the wave, and three tenths of the norm of what
was sent (of the first weights, if nothing like it was). Fewer than three replies have no median that one of them could
not choose; they are measured by what was sent alone. Numbers without dimensions are left to the method's own bounds.

Statistics of BatchNorm travel behind the parameters and are measured by themselves, with more room: they have the scale
of the activations, which an honest client's last layers may carry a hundred times away in one round. A network that
travels without its BatchNorm layers is measured as if they were there as they began: the weights before such a layer
have no scale of their own, and may go as far whether it travels or not.
"""

import math
from collections.abc import Mapping

import torch
from torch import Tensor

from fedgraft.core.magnitude import squared
from fedgraft.core.message import Message
from fedgraft.core.model import Part
from fedgraft.core.spec import ClientId, Spec

SLACK = 0.3
"""Share of the norm of what was sent by which a reply may always differ from it, whatever the others do."""
CROWD = 3
ROOM_FOR_STATISTICS = 100.0
Norms = dict[tuple[int, int | None, int | None], float]
"""Norms of parts of tensors: many clients are sent the same one."""
_QUICK = 1e-20
"""Sums of squares above this and below its inverse are as good in float32 as a factor of ten needs them."""


def excesses(
    spec: Spec, sent: Mapping[ClientId, Message], replies: Mapping[ClientId, Message]
) -> dict[ClientId, dict[str, float]]:
    """Say for every entry of every reply how many times larger it is than what would be in proportion."""
    found: dict[ClientId, dict[str, float]] = {client: {} for client in replies}
    names = {name for reply in replies.values() for name, entry in reply.items() if _counts(entry)}
    for name in sorted(names):
        there = {client: reply[name] for client, reply in replies.items() if name in reply}
        cuts = {client: _statistics(spec, client, entry) for client, entry in there.items()}
        parameters = _excess(spec, sent, name, {c: (entry, slice(0, cuts[c])) for c, entry in there.items()})
        behind = {c: (entry, slice(cuts[c], None)) for c, entry in there.items() if cuts[c] < entry.shape[-1]}
        statistics = _excess(spec, sent, name, behind)
        for client, excess in parameters.items():
            found[client][name] = max(excess, statistics.get(client, 0.0) / ROOM_FOR_STATISTICS)
    return found


def _excess(
    spec: Spec, sent: Mapping[ClientId, Message], name: str, parts: Mapping[ClientId, tuple[Tensor, slice]]
) -> dict[ClientId, float]:
    """Measure one part of an entry of all replies."""
    was = {client: sent[client].get(name) for client in parts}
    norms: Norms = {}
    sizes = {client: _size(entry, was[client], part) for client, (entry, part) in parts.items()}
    usual = _low_median(list(sizes.values())) if len(sizes) >= CROWD else None
    found = {}
    for client, (entry, part) in parts.items():
        scale = _scale(spec, client, sent[client], was[client], entry, part, norms)
        bound = scale if usual is None else max(usual, SLACK * scale)
        found[client] = sizes[client] / bound if bound else (math.inf if sizes[client] else 0.0)
    return found


def _statistics(spec: Spec, client: ClientId, entry: Tensor) -> int:
    """Where the statistics of BatchNorm begin in an entry that is a part of the network; its end, if it has none."""
    layout, policy = spec.layout(client), spec.settings.buffers
    shared: tuple[Part, ...] = ("all", "extractor", "head")
    for part in shared:
        if entry.dim() == 1 and len(entry) == layout.width(part, policy):
            span = layout.span(part)
            return int(span.stop - span.start)
    return entry.shape[-1]


def _at_home(spec: Spec, client: ClientId, entry: Tensor) -> float:
    """The norm of the BatchNorm layers that stay at home, as they began, if the entry is the network without them."""
    without = spec.layout(client).width("all but BatchNorm", spec.settings.buffers)
    return spec.first_batchnorm_norms[spec.assignment[client]] if entry.shape == (without,) else 0.0


def _counts(entry: Tensor) -> bool:
    return entry.is_floating_point() and entry.dim() > 0


def _size(entry: Tensor, was: Tensor | None, part: slice) -> float:
    exact = torch.promote_types(entry.dtype, torch.float32)  # halves overflow
    if was is None or was.shape != entry.shape:
        return _norm(entry[..., part].to(exact))
    return _norm(entry[..., part].to(exact) - was[..., part].to(exact))


def _scale(
    spec: Spec, client: ClientId, sent: Message, was: Tensor | None, entry: Tensor, part: slice, known: Norms
) -> float:
    """The norm of what was sent under this name, or else of the largest thing sent and of the first weights."""
    if was is not None and was.shape == entry.shape:
        key = (id(was), part.start, part.stop)
        if key not in known:
            known[key] = _norm(was[..., part])
        if known[key] > 0:
            return math.hypot(known[key], _at_home(spec, client, entry))
    return max([spec.first_norms[spec.assignment[client]], *(_norm(each) for each in sent.values() if _counts(each))])


def _norm(tensor: Tensor) -> float:
    """The norm of a vector, or of the largest row: who has more classes sends more prototypes, not larger ones."""
    if not tensor.numel():
        return 0.0
    if tensor.dim() == 1 and tensor.dtype == torch.float32 and _QUICK < (square := squared(tensor)) < 1 / _QUICK:
        return math.sqrt(square)
    return float(torch.linalg.vector_norm(tensor, dim=-1, dtype=torch.float64).max())


def _low_median(values: list[float]) -> float:
    """The lower of the two middle values: half of the replies cannot raise it."""
    return sorted(values)[(len(values) - 1) // 2]
