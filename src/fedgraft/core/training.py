"""Local training: mini-batch SGD on flat vectors."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from fedgraft.core.model import Buffers, Model, Part
from fedgraft.core.samples import Samples

Loss = Callable[[Model, Tensor, Tensor], Tensor]


@dataclass(frozen=True)
class Training:
    """Settings of the run that hold for every method in a comparison."""

    lr: float = 0.01
    momentum: float = 0.9
    weight_decay: float = 0.0
    epochs: int = 2
    batch_size: int = 64
    drop_last: bool = False
    lr_decay: float = 1.0
    clip_norm: float | None = None
    momentum_buffers: Literal["fresh", "kept"] = "fresh"
    buffers: Buffers = "average"
    max_norm: float = 1e9
    outlier_factor: float = 10.0
    averaging: str = "mean"

    def rate(self, round: int) -> float:
        """The learning rate of a round."""
        return self.lr * self.lr_decay**round


@dataclass(frozen=True)
class Phase:
    """A stretch of local training: which part moves, for how long, how fast. ``None`` means as the run says."""

    part: Part = "all"
    epochs: int | None = None
    lr: float | None = None


def batches(count: int, size: int, rng: np.random.Generator, *, drop_last: bool, pairs: bool) -> Iterator[Tensor]:
    """One epoch of shuffled indices.

    The ragged last batch is kept unless ``drop_last`` says otherwise, and even then when it is the only one. With
    ``pairs``, a last batch of a single sample joins its neighbour: BatchNorm cannot train on one sample.
    """
    order = torch.from_numpy(rng.permutation(count))
    edges = list(range(0, count, size))
    if len(edges) > 1 and ((drop_last and count % size) or (pairs and count % size == 1)):
        edges.pop()
    full = count - count % size if drop_last and count > size else count
    for start, stop in zip(edges, [*edges[1:], full], strict=True):
        yield order[start:stop]


def step(weights: Tensor, gradient: Tensor, settings: Training, rate: float, velocity: Tensor | None = None) -> None:
    """One step of torch's SGD in place, with the run's clipping and decay; momentum only where there is a buffer.

    Written on flat vectors, it is two or three vector operations whatever the network.
    """
    if settings.clip_norm is not None:
        gradient.mul_(torch.clamp(settings.clip_norm / (gradient.norm() + 1e-12), max=1.0))
    if settings.weight_decay:
        gradient.add_(weights, alpha=settings.weight_decay)
    if settings.momentum and velocity is not None:
        gradient = velocity.mul_(settings.momentum).add_(gradient)
    weights.sub_(gradient, alpha=rate)


Update = Callable[[Tensor, Tensor, Training, float, Tensor], None]


def descend(
    model: Model,
    samples: Samples,
    loss: Loss,
    settings: Training,
    *,
    rate: float,
    epochs: int,
    part: Part,
    rng: np.random.Generator,
    augmentation: torch.Generator,
    velocity: Tensor,
    update: Update = step,
) -> tuple[float, int]:
    """Run ``epochs`` of SGD on ``part`` of the live ``model``; return the mean loss of the last epoch and the steps.

    ``velocity`` is the momentum buffer, as long as the trained stretch of the vector, and is updated in place.
    ``update`` makes of a batch's gradient the next weights.
    """
    model.train_on(len(samples))
    steps, total, seen = 0, torch.zeros((), device=model.device), 0
    with model.only(part) as span:
        weights, gradient, momentum = model.vector[span], model.gradient[span], velocity[span]
        for epoch in range(epochs):
            last = epoch == epochs - 1
            drawn = batches(
                len(samples), settings.batch_size, rng, drop_last=settings.drop_last, pairs=model.normalises_batches
            )
            for index in drawn:
                x, y = samples.batch(index, augmentation)
                value = loss(model, x.to(model.device), y.to(model.device))
                model.differentiate(value)
                update(weights, gradient, settings, rate, momentum)
                steps += 1
                if last:
                    total += value.detach() * len(y)
                    seen += len(y)
    return (float(total) / seen if seen else float("nan")), steps
