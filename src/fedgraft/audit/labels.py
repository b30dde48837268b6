"""Label inference: how many samples of each class has a client, by how its first reply differs from what it was sent?

- *By the bias* of the head, where it is sent: its gradient is, for each class, how often the model says it less how
  often it occurs (Wainakh et al., PETS 2022). What the model says is known. The rest is a factor, since the model
  learns as it goes: it is chosen so that the rarest class comes out as having no samples.
- *By shadows*, where it is not: the attacker simulates the other clients with samples whose labels he knows, and fits a
  ridge regression from update to shares of classes. Its strength is chosen on clients that are left out.

Who has no update at hand guesses the mean of those other clients.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from fedgraft.audit.eavesdrop import Candidates, Exchange, Heard, Shadow
from fedgraft.core.client import ClientId
from fedgraft.core.method import Method
from fedgraft.core.samples import Samples
from fedgraft.core.spec import Spec

Array = NDArray[np.float64]
STRENGTHS = (1e-4, 1e-2, 1.0, 100.0)
"""Of the ridge, in proportion to the mean square of the updates."""
FOLDS = 5
LEAST = 3
"""Clients: two to learn from, and one to be attacked."""


@dataclass(frozen=True)
class Guess:
    """How far a guess of a client's shares of classes is from them, in total variation, and how far the mean is."""

    error: float
    prior: float


def from_bias(change: Array, said: Array) -> Array:
    """The shares of classes, from the change of the bias and what the model said of each class before."""
    change = change - change.mean()  # a gradient of the bias adds up to nothing; noise does not
    falling = change < 0
    factor = np.min(said[falling] / -change[falling]) if falling.any() else 0.0
    found: Array = said + factor * change
    return found


@dataclass(frozen=True)
class Update:
    """What a reply says against the message that it answers: all of it, and of the head's bias, where that was sent."""

    whole: Array
    bias: Array | None = None
    said: Array | None = None
    """What the model that was sent says of each class, on average over some samples."""


def update(method: Method, spec: Spec, client: ClientId, exchange: Exchange, known: Samples | None) -> Update:
    """Look at a reply."""
    layout, buffers = spec.layout(client), spec.settings.buffers
    changes = {name: _change(exchange, name) for name in exchange.reply}
    whole = np.concatenate([each.numpy() for each in changes.values()])
    bias = next((slot for slot in layout.slots if slot.part == "head" and slot.shape == (spec.classes,)), None)
    part = method.shared()
    sent = changes.get("weights")
    if bias is None or sent is None or known is None or part != "all" or len(sent) != layout.width(part, buffers):
        return Update(whole)
    weights = layout.put(spec.initial(client), exchange.message["weights"], part, buffers)
    model = spec.architecture(client).model().load(weights)
    with model.evaluating():
        said = model(known.batch(slice(None))[0]).double().softmax(dim=1).mean(dim=0)
    return Update(whole, sent[bias.start : bias.stop].numpy(), said.numpy())


def _change(exchange: Exchange, name: str) -> Tensor:
    after, before = exchange.reply[name].double(), exchange.message.get(name)
    return (after if before is None or before.shape != after.shape else after - before.double()).flatten()


def shares(samples: Candidates, places: Array | slice, classes: int) -> Array:
    """The shares of classes among some of a client's samples."""
    counts = np.bincount(samples.samples.labels.numpy()[places], minlength=classes)
    found: Array = counts / counts.sum()
    return found


def guesses(
    method: Method,
    spec: Spec,
    candidates: Sequence[Candidates],
    heard: Heard,
    shadows: Sequence[Shadow],
    known: Mapping[ClientId, Samples | None],
) -> dict[ClientId, Guess]:
    """Guess the labels of every client that can be attacked, by what is known of all others."""
    mine = {c: update(method, spec, c, each, known[c]) for c, each in heard.first.items() if each.reply}
    truth = {c: shares(candidates[c], slice(candidates[c].members), spec.classes) for c in mine}
    learned = None if _telling(mine) else _learned(method, spec, candidates, mine, shadows)
    found = {}
    for client, each in mine.items():
        others = [truth[other] for other in mine if other != client]
        if each.bias is not None and each.said is not None:
            guess = from_bias(each.bias, each.said)
        elif learned is not None:
            guess = learned.guess(client)
        else:
            continue
        if others:
            prior = np.mean(others, axis=0)
            found[client] = Guess(_apart(guess, truth[client]), _apart(prior, truth[client]))
    return found


def _telling(updates: Mapping[ClientId, Update]) -> bool:
    return all(each.bias is not None for each in updates.values())


def _learned(
    method: Method,
    spec: Spec,
    candidates: Sequence[Candidates],
    mine: Mapping[ClientId, Update],
    shadows: Sequence[Shadow],
) -> "_Ridge | None":
    """A regression on the shadows; none, if there is too little to learn from."""
    rows, owners, known = [each.whole for each in mine.values()], list(mine), []
    for shadow in shadows:
        for client in mine.keys() & shadow.heard.first.keys():
            rows.append(update(method, spec, client, shadow.heard.first[client], None).whole)
            owners.append(client)
            known.append(shares(candidates[client], shadow.trained[client].numpy(), spec.classes))
    if len({len(row) for row in rows}) != 1 or len(mine) < LEAST or not known:
        return None
    return _Ridge(np.stack(rows), np.array(owners), len(mine), np.stack(known))


def _apart(one: Array, other: Array) -> float:
    return float(np.abs(one - other).sum() / 2)


class _Ridge:
    """Regressions from updates to shares; the first ``asked`` updates are the clients' own, the rest the shadows'."""

    def __init__(self, updates: Array, owners: NDArray[np.int64], asked: int, known: Array) -> None:
        self._gram, self._owners, self._asked, self._known = updates @ updates.T, owners, asked, known

    def guess(self, client: ClientId) -> Array:
        """A client's shares, learned from the others."""
        there = self._asked + np.flatnonzero(self._owners[self._asked :] != client)
        strength = min(STRENGTHS, key=lambda each: self._missed(there, each))
        place = np.flatnonzero(self._owners[: self._asked] == client)
        found: Array = self._predicted(place, there, strength)[0]
        return found

    def _missed(self, there: NDArray[np.int64], strength: float) -> float:
        """By how much the regression misses clients that it has not seen."""
        clients, total = np.unique(self._owners[there]), 0.0
        for fold in range(min(FOLDS, len(clients))):
            aside = np.isin(self._owners[there], clients[fold::FOLDS])
            told = self._predicted(there[aside], there[~aside], strength)
            total += float(np.abs(told - self._shares(there[aside])).sum())
        return total

    def _shares(self, rows: NDArray[np.int64]) -> Array:
        return self._known[rows - self._asked]

    def _predicted(self, wanted: NDArray[np.int64], there: NDArray[np.int64], strength: float) -> Array:
        within, across = self._gram[np.ix_(there, there)], self._gram[np.ix_(wanted, there)]
        mean = within.mean(axis=0)
        centred = within - mean - mean[:, None] + mean.mean()
        beside = across - across.mean(axis=1, keepdims=True) - mean + mean.mean()
        shares = self._shares(there)
        middle = shares.mean(axis=0)
        ridge = strength * max(float(np.trace(centred)) / len(there), 1e-12) * np.eye(len(there))
        told = np.clip(middle + beside @ np.linalg.solve(centred + ridge, shares - middle), 0, None)
        found: Array = told / np.maximum(told.sum(axis=1, keepdims=True), 1e-12)
        return found
