"""Differential privacy of whole clients: each update is clipped, and their sum is noised.

    d_i = what client i sends less what it was sent, all entries together      clipped to a norm of C
    x <- x + (sum_i d_i + N(0, (z C)^2)) / m                                   all clients count alike

With a server that is trusted, the server draws the noise, m is the expected number of clients in a round, and whom it
asks is a secret of its own: each client takes part by chance, whoever else does (Poisson sampling), which makes a round
cheaper. With secure aggregation the server gets nothing but the sum, so every client adds its share of the noise before
that; whom the server asks is then no secret, and m are those who answered. The shares are such that those who have to
answer bring all of the noise: if everybody does, there is more of it.

The noised mean stands in the place of everybody's reply, so that any method serves whose server needs no more than it
(``Method.sums``). Two runs are neighbours if what one client sends counts nothing in one of them: how many clients
there are is not a secret.

Adaptive clipping: Andrew, Thakkar, McMahan, Ramaswamy. Differentially Private Learning with Adaptive Clipping. NeurIPS
2021, arXiv 1905.03871. b_i tells whether d_i was within C,

    b~ = 1/2 + (sum_i (b_i - 1/2) + N(0, s^2)) / m           C <- C exp(-RATE (b~ - quantile))

and z for the updates alone is (z^-2 - (2 s)^-2)^(-1/2), so that both together cost as much as z. The paper's s is a
twentieth of m; it is no less than z here, so that in a small federation the bits do not take most of the budget.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from fedgraft.core.budget import epsilon
from fedgraft.core.message import Field, Message

CLIP, WITHIN = "privacy.clip", "privacy.within"
"""What goes along where clipping is adaptive: the norm in this round, and whether the update was within it."""
RATE = 0.2
"""How fast the clip follows the quantile."""


@dataclass(frozen=True)
class ClientPrivacy:
    """How what clients send is clipped and noised, and what that costs them."""

    clip: float
    """The norm to which an update is clipped; the first one, where it adapts."""
    noise: float
    """Deviation of the noise in a sum, as a multiple of the clip."""
    delta: float
    rate: float
    """The chance with which a client takes part in a round; 1, if whom the server asks is no secret."""
    expected: float
    """How many clients take part in a round, on average."""
    rounds: tuple[int, ...]
    """In how many rounds each client may take part."""
    sharing: int = 0
    """So many clients together bring the noise; with 0 the server does."""
    quantile: float | None = None
    """The share of updates that are to be within the clip, if it adapts."""
    answers: Mapping[str, str] = field(default_factory=dict)
    """Which entry of a message an entry of the reply is the new value of, where their names differ."""

    @cached_property
    def bit_noise(self) -> float:
        """Deviation of the noise in the number of those who were within the clip."""
        return max(self.expected / 20, self.noise)

    @cached_property
    def update_noise(self) -> float:
        """What is left for the updates of the noise that both have together: as a multiple of the clip, it is more."""
        return self.noise if self.quantile is None else (self.noise**-2 - (2 * self.bit_noise) ** -2) ** -0.5

    def spent(self, client: int, asked: int | None = None) -> float:
        """Return the epsilon of a client after so many rounds in which it was, or might have been, asked."""
        times = self.rounds[client] if asked is None else asked
        cost = epsilon(self.rate, self.noise, times, self.delta)
        return cost if math.isfinite(cost) else math.inf

    # ---- at a client
    def leaving(self, reply: Message, message: Message, rng: np.random.Generator) -> Message:
        """Return what may leave a client: an update within the clip, with its share of the noise if clients bring it.

        ``rng`` draws numbers that nobody else may know.
        """
        clip = float(message[CLIP]) if CLIP in message else self.clip
        base = self.base(reply, message)
        update = changes(reply, base)
        size = norm(update)
        update = clipped(update, clip)
        within = {} if self.quantile is None else {WITHIN: torch.tensor(float(size <= clip))}
        if self.sharing:
            share = 1 / math.sqrt(self.sharing)
            update = noised(update, self.update_noise * clip * share, rng)
            within = noised(within, self.bit_noise * share, rng)
        return Message(**applied(reply, base, update), **{name: bit.float() for name, bit in within.items()})

    def base(self, reply: Mapping[str, Tensor], message: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return what the entries of a reply are new values of; an entry that is a change by itself has nothing."""
        found = {}
        for name, tensor in reply.items():
            known = message.get(self.answers.get(name, name))
            if known is not None and known.shape == tensor.shape:
                found[name] = known
        return found

    # ---- at the server
    def travels(self, expected: Mapping[str, Field]) -> dict[str, Field]:
        """Return what leaves a client, where a method expects this."""
        return {**expected, **({} if self.quantile is None else {WITHIN: Field(())})}

    def total(self, form: Message, replies: Sequence[tuple[Message, Message, float]], clip: float) -> dict[str, Tensor]:
        """Return the sum of the clipped updates, and how many more of them than half were within the clip.

        ``form`` is what a reply looks like; each of ``replies`` comes with the message that it answers, and with
        whether it was within the clip.
        """
        total = {name: torch.zeros(tensor.shape, dtype=torch.float64) for name, tensor in form.items()}
        more = torch.zeros((), dtype=torch.float64)
        for reply, message, bit in replies:
            for name, part in clipped(changes(reply, self.base(reply, message)), clip).items():
                total[name] += part
            more += (bit > 0.5) - 0.5
        return total if self.quantile is None else {**total, WITHIN: more}

    def released(
        self, form: Message, sent: Message, total: Mapping[str, Tensor], clip: float, rng: np.random.Generator
    ) -> tuple[Message, float | None]:
        """Return the noised mean as a reply to what was ``sent``, and the noised share of those within the clip."""
        updates = {name: total[name] for name in form}
        mean = {name: part / self.expected for name, part in noised(updates, self.update_noise * clip, rng).items()}
        reply = Message(**applied(form, self.base(form, sent), mean))
        if self.quantile is None:
            return reply, None
        return reply, 0.5 + (float(total[WITHIN]) + self.bit_noise * rng.standard_normal()) / self.expected

    def adapted(self, clip: float, within: float) -> float:
        """Return the clip of the next round."""
        return clip if self.quantile is None else clip * math.exp(-RATE * (within - self.quantile))


# ---- updates: the changes of all entries together


def changes(reply: Mapping[str, Tensor], base: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return how a reply differs from what its entries are new values of."""
    exact = {name: tensor.to(torch.float64) for name, tensor in reply.items()}
    return {name: tensor - base[name].to(tensor) if name in base else tensor for name, tensor in exact.items()}


def norm(update: Mapping[str, Tensor]) -> float:
    """The norm of all entries together."""
    return math.sqrt(sum(float(part.square().sum()) for part in update.values()))


def clipped(update: Mapping[str, Tensor], clip: float) -> dict[str, Tensor]:
    """Draw an update in to a norm of ``clip``, if it is longer."""
    size = norm(update)
    return {name: part if size <= clip else part * (clip / size) for name, part in update.items()}


def noised(update: Mapping[str, Tensor], deviation: float, rng: np.random.Generator) -> dict[str, Tensor]:
    """Add Gaussian noise to every number."""
    return {
        name: part + deviation * torch.from_numpy(np.asarray(rng.standard_normal(tuple(part.shape)))).to(part.device)
        for name, part in sorted(update.items())
    }


def applied(reply: Mapping[str, Tensor], base: Mapping[str, Tensor], update: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the reply that differs by ``update`` from what its entries are new values of."""
    found = {}
    for name, tensor in reply.items():
        part = update[name]
        found[name] = (part + base[name].to(part) if name in base else part).to(tensor.dtype)
    return found
