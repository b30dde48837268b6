"""Membership inference: which of these samples did the client train on, by the model that it sent last?

- *Loss* (Yeom, Giacomelli, Fredrikson, Jha, CSF 2018): members have smaller losses.
- *LiRA*, offline (Carlini et al., S&P 2022): the logit of a sample's class stands above what models say of it that were
  trained without it, measured in their deviations; shadows give those models. With few shadows all samples have one
  deviation, as the authors advise.

The model is what the server can make of a reply. Where a client sends its extractor alone, the attacker fits a head of
his own, by logistic regression on samples of other clients that nobody trained on.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from fedgraft.audit.eavesdrop import Candidates, Exchange, Heard, Shadow
from fedgraft.audit.verdict import Scores
from fedgraft.base.errors import UserError
from fedgraft.core.client import ClientId
from fedgraft.core.method import Method
from fedgraft.core.model import Model, Shared
from fedgraft.core.samples import Samples
from fedgraft.core.spec import Spec

BATCH = 1000
WIDE: tuple[Shared, ...] = ("all", "extractor")
LESS: tuple[Shared, ...] = ("head", "nothing")
"""Parts that answer nothing: a head without an extractor has no features."""
DECAY = 1e-3
"""How strongly the attacker's own head is drawn to zero."""
ITERATIONS = 50


NETWORKS = {"weights": 0, "core": 0, "extractor": 0, "delta_y": 1, "change": -1}
"""Entries of replies that are a network, or that are added to the one that was sent, with this sign."""


def rebuilt(method: Method, spec: Spec, client: ClientId, exchange: Exchange) -> tuple[Tensor, Shared] | None:
    """The network that a client sent, and which part of it it is; none, if there is no such thing in its reply."""
    layout, buffers, reply = spec.layout(client), spec.settings.buffers, exchange.reply
    for name, sign in NETWORKS.items():
        for part in dict.fromkeys((method.shared(), *WIDE)):
            if part in LESS or name not in reply or reply[name].shape != (layout.width(part, buffers),):
                continue
            values = reply[name] if not sign else exchange.message["weights"] + sign * reply[name]
            weights = layout.put(spec.initial(client), values, part, buffers)
            if part == "extractor" and "head" in reply:
                return layout.put(weights, reply["head"], "head", buffers), "all"
            return weights, part
    return None


@dataclass(frozen=True, eq=False)
class Attacker:
    """Makes models of replies, and asks them for samples; ``known`` are labelled samples that nobody trained on."""

    method: Method
    spec: Spec
    known: Samples | None

    def logits(self, client: ClientId, heard: Heard, samples: Samples) -> Tensor:
        """What the model says that the client sent last, or that the attacker completed."""
        found = rebuilt(self.method, self.spec, client, heard.last[client])
        assert found is not None
        weights, part = found
        model = self.spec.architecture(client).model().load(weights)
        model.module.eval()
        if part != "extractor":
            return _asked(model, samples)[1]
        if self.known is None:
            raise UserError("the clients send no head, and there are no samples of others to fit one with")
        fit = fitted(_asked(model, self.known)[0], self.known.labels, self.spec.classes)
        return _asked(model, samples)[0] @ fit[:-1] + fit[-1]


def fitted(features: Tensor, labels: Tensor, classes: int) -> Tensor:
    """The weights of a logistic regression, with the intercepts in the last row."""
    scale = features.std().clamp(min=1e-6)
    weights = torch.zeros(features.shape[1] + 1, classes, requires_grad=True)
    search = torch.optim.LBFGS([weights], max_iter=ITERATIONS, line_search_fn="strong_wolfe")

    def closure() -> Tensor:
        search.zero_grad()
        logits = (features / scale) @ weights[:-1] + weights[-1]
        loss = functional.cross_entropy(logits, labels) + DECAY * weights.square().sum()
        loss.backward()  # type: ignore[no-untyped-call]
        return loss

    search.step(closure)  # type: ignore[no-untyped-call]
    found = weights.detach().clone()
    found[:-1] /= scale
    return found


@torch.no_grad()
def _asked(model: Model, samples: Samples) -> tuple[Tensor, Tensor]:
    """The features and outputs of a network for all samples."""
    places = range(0, len(samples), BATCH)
    both = [model.score(samples.batch(slice(start, start + BATCH))[0]) for start in places]
    return torch.cat([each[0].flatten(1) for each in both]), torch.cat([each[1] for each in both])


def by_loss(logits: Tensor, labels: Tensor) -> Scores:
    """Members score higher: their loss is smaller."""
    found: Scores = -functional.cross_entropy(logits.double(), labels, reduction="none").numpy()
    return found


def confidence(logits: Tensor, labels: Tensor) -> Scores:
    """The logit of the probability that a model gives a sample's own class."""
    logits = logits.double()
    own = logits.gather(1, labels[:, None]).squeeze(1)
    rest = logits.scatter(1, labels[:, None], -torch.inf).logsumexp(dim=1)
    found: Scores = (own - rest).numpy()
    return found


def by_shadows(observed: Scores, without: Sequence[Scores], out: Sequence[Tensor]) -> Scores:
    """How far each sample's confidence is above that of models that did not see it; NaN, where there is no such model.

    ``without`` has the confidences by shadow, ``out`` says which samples that shadow did not train on.
    """
    said, mask = np.stack(without), np.stack([each.numpy() for each in out])
    count = mask.sum(axis=0)
    with np.errstate(invalid="ignore", divide="ignore"):
        mean = np.where(mask, said, 0.0).sum(axis=0) / count
    strayed = np.where(mask & (count > 1), said - mean, 0.0)
    freedom = float(np.maximum(count - 1, 0).sum())
    deviation = np.sqrt((strayed**2).sum() / freedom) if freedom else 1.0
    found: Scores = (observed - mean) / max(float(deviation), 1e-9)
    return found


@dataclass(frozen=True, eq=False)
class Attacked:
    """A client's candidates with the scores of each attack, members first."""

    members: int
    scores: dict[str, Scores]

    def split(self, attack: str) -> tuple[Scores, Scores]:
        """The scores of members and of others; without those that cannot be told."""
        scores = self.scores[attack]
        one, other = scores[: self.members], scores[self.members :]
        return one[np.isfinite(one)], other[np.isfinite(other)]


def attacked(
    attacker: Attacker, client: ClientId, candidates: Candidates, heard: Heard, shadows: Sequence[Shadow]
) -> Attacked:
    """Attack what one client sent."""
    samples = candidates.samples
    labels, logits = samples.labels, attacker.logits(client, heard, samples)
    scores = {"loss": by_loss(logits, labels)}
    there = [shadow for shadow in shadows if client in shadow.heard.last]
    if there:
        said = [confidence(attacker.logits(client, each.heard, samples), labels) for each in there]
        out = [~torch.isin(torch.arange(len(samples)), each.trained[client]) for each in there]
        scores["LiRA"] = by_shadows(confidence(logits, labels), said, out)
    return Attacked(candidates.members, scores)
