"""Features of a client's data and their class means, the prototypes."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.func import vmap
from torch.nn import functional

from fedgraft.core.client import Client
from fedgraft.core.evaluation import BATCH
from fedgraft.core.samples import Samples

LOSS = 4.0
"""What a sample's loss counts at most where models are compared under privacy."""
PARTS = 2**20
"""So many numbers of what samples bring to a sum are held at a time."""


def features(client: Client, weights: Tensor, samples: Samples | None = None) -> tuple[Tensor, Tensor]:
    """Features (one flat row for each sample) and labels of the training data, as the network ``weights`` sees them.

    Taken in evaluation mode, without augmentation, in the order of the data.
    """
    data, model = client.data.train if samples is None else samples, client.model(weights)
    rows = []
    with model.evaluating():
        for start in range(0, len(data), BATCH):
            x, _ = data.batch(slice(start, start + BATCH))
            rows.append(model.score(x.to(client.device))[0].flatten(1))
    return torch.cat(rows), data.labels.to(client.device)


def class_means(rows: Tensor, labels: Tensor, classes: int) -> Tensor:
    """Return the mean row of each class; a class without samples has zeros."""
    sums = torch.zeros(classes, rows.shape[1], dtype=torch.float64, device=rows.device)
    sums.index_add_(0, labels, rows.to(torch.float64))
    counts = torch.bincount(labels, minlength=classes).clamp(min=1)
    return (sums / counts[:, None]).to(rows.dtype)


def pooled_means(means: Tensor, counts: Tensor) -> Tensor:
    """Global prototypes: the mean of the clients' class means, each weighed by its ``counts`` (client, class).

    A class without samples at any client has zeros.
    """
    shares = counts.to(torch.float64) / counts.sum(0).clamp(min=1)
    return torch.einsum("ik,ikd->kd", shares, means.to(torch.float64)).to(means.dtype)


# ---- what may leave of them


@dataclass(frozen=True)
class Moments:
    """What is told of a client's features: their mean in each class, of how many samples, and their mean square."""

    means: Tensor
    counts: Tensor
    square: Tensor


def prototypes(client: Client, weights: Tensor, name: str = "prototypes") -> tuple[Tensor, Tensor]:
    """Class means that may leave, and of how many samples they are; under privacy both are noised."""
    if client.private:
        told = moments(client, weights, name)
        return told.means, told.counts
    return class_means(*features(client, weights), client.classes), client.counts


def moments(client: Client, weights: Tensor, name: str) -> Moments:
    """Return noised moments of the features that the network ``weights`` gives, for what leaves under privacy.

    A sample brings its features, drawn in to the run's ``feature_clip``, to the sum of its class, one to the count of
    its class, and the square of their norm: three things of a norm of 1 at most. A class counts as held if the noise
    alone would hardly make so many samples of it; the largest does in any case.
    """
    classes, size = client.classes, math.prod(client.architecture.features)
    budget = client.spec.budget
    assert budget is not None
    clip, unit = budget.feature_clip, math.sqrt(3)
    told = client.tell(name, classes * (size + 1) + 1, lambda: _parts(client, weights, clip)) * unit
    sums, counts, square = told[: classes * size].view(classes, size) * clip, told[classes * size : -1], told[-1]
    noise = 0.0 if client.counted is not None else budget.sum_noises[client.id]
    held = (counts > 2 * unit * noise) | (counts == counts.max())
    means = torch.where(held[:, None], sums / counts.clamp(min=1)[:, None], 0)
    means *= (clip / torch.linalg.vector_norm(means, dim=1, keepdim=True).clamp(min=1e-12)).clamp(max=1)
    whole = adding_up(torch.where(held, counts, 0), client.samples)
    square = (square * clip**2 / max(client.samples, 1)).clamp(0, clip**2)
    return Moments(means.to(client.layout.dtype), whole, square)


def class_counts(client: Client, classes: int) -> Tensor:
    """How many training samples of each class there are, for a loss; under privacy noised, and none below 1."""
    if not client.private:
        return client.data.train.counts(classes)
    labels = client.data.train.labels
    return client.tell("counts", classes, lambda: [functional.one_hot(labels, classes)]).clamp(min=1)


def told_losses(client: Client, models: Sequence[Tensor]) -> Tensor:
    """How much each of these models loses on all samples, noised; a sample's loss counts up to a bound."""

    def losses(weights: Tensor) -> Tensor:
        model, data, found = client.model(weights), client.data.train, []
        with model.evaluating():
            for start in range(0, len(data), BATCH):
                x, y = (each.to(client.device) for each in data.batch(slice(start, start + BATCH)))
                found.append(vmap(lambda out, y: client.task.loss(out[None], y[None]))(model(x), y))
        return torch.cat(found).clamp(0, LOSS)

    bound = LOSS * math.sqrt(len(models))
    return client.tell("losses", len(models), lambda: [torch.stack([losses(each) for each in models], dim=1) / bound])


def _parts(client: Client, weights: Tensor, clip: float) -> Iterator[Tensor]:
    """What each sample brings to the sum, some samples at a time."""
    rows, labels = features(client, weights)
    classes, size = client.classes, rows.shape[1]
    for start in range(0, len(rows), chunk := max(1, PARTS // (classes * size))):
        z, y = rows[start : start + chunk].to(torch.float64), labels[start : start + chunk]
        z = z * (1 / torch.linalg.vector_norm(z, dim=1, keepdim=True).clamp(min=clip))
        its = functional.one_hot(y, classes).to(z)
        square = z.square().sum(1, keepdim=True)
        yield torch.cat([(its[:, :, None] * z[:, None]).flatten(1), its, square], dim=1) / math.sqrt(3)


def adding_up(counts: Tensor, total: int) -> Tensor:
    """Return whole numbers near to ``counts``, none below 0, that add up to ``total``: how many there are is known."""
    shares = counts.clamp(min=1e-9)
    exact = shares / shares.sum() * total
    whole = exact.floor()
    missing = total - int(whole.sum())
    whole[(exact - whole).argsort(descending=True, stable=True)[:missing]] += 1
    return whole.to(torch.int64)
