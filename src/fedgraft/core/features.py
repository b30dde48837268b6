"""Features of a client's data and their class means, the prototypes."""

import torch
from torch import Tensor

from fedgraft.core.client import Client
from fedgraft.core.evaluation import BATCH
from fedgraft.core.samples import Samples


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
