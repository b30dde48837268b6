"""What a method gets of the replies of a wave: each of them or, if that is all that it needs, their mean.

A method says by ``sums`` that a mean is enough for its server. A large wave is then served in blocks: the messages of a
block go out, its replies are looked at, put into the mean and forgotten before the next block is asked. Nobody holds
more replies than those of one block, wherever the clients are. What is in a block and in which order blocks are
added follows from the clients of the wave alone, so that the bits are the same with every engine; the mean of up to
``BLOCK`` replies is that of ``bank.mean``.

    m <- m + (m_b - m) n_b / (n_1 + ... + n_b)        m_b the mean of block b, n_b what its replies weigh together
"""

from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Protocol

import torch
from torch import Tensor

from fedgraft.core import bank
from fedgraft.core.client import ClientId
from fedgraft.core.message import Message
from fedgraft.core.method import Inbox, Method, Server, Spec, sums_of, weight
from fedgraft.core.release import Release

BLOCK = 1024
"""Clients of a wave that are served together at most, where nobody needs all replies side by side."""


class Collector(Protocol):
    """Takes the replies of a wave, block by block."""

    def add(self, seen: Mapping[ClientId, Message], replies: Inbox) -> None:
        """Take accepted replies, and the messages that were seen by those who were asked."""
        ...

    def inbox(self) -> Inbox:
        """Return what the method gets of all of them."""
        ...


class Each:
    """Every reply as it is."""

    def __init__(self) -> None:
        self._replies: dict[ClientId, Message] = {}

    def add(self, seen: Mapping[ClientId, Message], replies: Inbox) -> None:
        self._replies |= replies

    def inbox(self) -> Inbox:
        return self._replies


class Mean:
    """The mean of all replies, by the weights that the method names, in the place of each; in float64 until then."""

    def __init__(self, method: Method, spec: Spec) -> None:
        self._method, self._spec = method, spec
        self._senders: list[ClientId] = []
        self._weight = 0
        self._means: dict[str, Tensor] = {}
        self._form: Message | None = None

    def add(self, seen: Mapping[ClientId, Message], replies: Inbox) -> None:
        if not replies:
            return
        senders = sorted(replies)
        weights = torch.tensor([weight(self._method, self._spec, self._spec.samples[sender]) for sender in senders])
        self._senders += senders
        self._weight += (more := int(weights.sum()))
        self._form = form = replies[senders[0]]
        for name in form:
            rows = torch.stack([replies[sender][name].reshape(-1) for sender in senders])
            mean = bank.exact_mean(rows, weights)
            before = self._means.setdefault(name, mean)
            if before is not mean:
                before += (mean - before) * (more / self._weight)

    def inbox(self) -> Inbox:
        if self._form is None:
            return {}
        mean = {name: self._means[name].to(entry.dtype).view(entry.shape) for name, entry in self._form.items()}
        return dict.fromkeys(self._senders, Message(**mean))


def collector(method: Method, server: Server) -> Collector:
    """Return what takes the replies of a wave in this run."""
    if server.spec.client_privacy is not None:
        return Release(method, server)
    return Mean(method, server.spec) if averaged(method, server.spec) else Each()


def averaged(method: Method, spec: Spec) -> bool:
    """Whether the loop averages: a mean is enough for the method, all replies are alike, and no stage needs them."""
    return bool(sums_of(method)) and len(spec.architectures) == 1 and not spec.pipeline.needs_all


def blocks(method: Method, spec: Spec, wave: Sequence[ClientId]) -> Iterator[Sequence[ClientId]]:
    """Part a wave into blocks that are served one after another: one, unless its replies are added up as they come."""
    summed = not spec.pipeline.needs_all if spec.client_privacy is not None else averaged(method, spec)
    return parted(wave) if summed else iter([wave])


def parted(clients: Sequence[ClientId]) -> Iterator[Sequence[ClientId]]:
    """Part clients into as few blocks as can be, as equal as can be: none is so small that its median says little."""
    count = max(1, -(-len(clients) // BLOCK))
    ends = [len(clients) * number // count for number in range(count + 1)]
    return (clients[start:stop] for start, stop in pairwise(ends))
