"""Local training on mini-batches, on flat vectors."""

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from fedgraft.core.gradients import Loss as Loss
from fedgraft.core.gradients import Separate
from fedgraft.core.model import Model, Part
from fedgraft.core.noise import Noising
from fedgraft.core.optimizer import Stepper
from fedgraft.core.samples import Samples
from fedgraft.core.settings import Training


@dataclass(frozen=True)
class Phase:
    """A phase of local training: which part is trained, for how long, at which rate. ``None`` is the run's value."""

    part: Part = "all"
    epochs: float | None = None
    lr: float | None = None


def batches(count: int, size: int, rng: np.random.Generator, *, drop_last: bool, pairs: bool) -> list[Tensor]:
    """One epoch of shuffled indices.

    The ragged last batch is kept unless ``drop_last`` says otherwise, and even then when it is the only one. With
    ``pairs``, a last batch of a single sample joins its neighbour: BatchNorm cannot train on one sample.
    """
    order, rest = torch.from_numpy(rng.permutation(count)), count % size
    found = list(torch.split(order, size))
    if len(found) > 1 and drop_last and rest:
        found.pop()
    elif len(found) > 1 and pairs and rest == 1:
        found[-2:] = [order[count - size - 1 :]]
    return found


Epochs = list[list[Tensor]]
"""The indices of the batches of each epoch."""


def draws(count: int, settings: Training, epochs: float | None, rng: np.random.Generator, *, pairs: bool) -> Epochs:
    """Draw all batches of a stretch of training: ``epochs`` of them, or as long as the run says.

    A part of an epoch is that part of its batches, but one batch at least.
    """
    steps = settings.steps if epochs is None else None
    left = math.inf if steps else settings.epochs if epochs is None else epochs
    drawn: Epochs = []
    while left > 0 and steps != 0:
        epoch = batches(count, settings.batch_size, rng, drop_last=settings.drop_last, pairs=pairs)
        if steps is not None:
            epoch = epoch[:steps]
            steps -= len(epoch)
        elif left < 1:
            epoch = epoch[: max(1, round(left * len(epoch)))]
        drawn.append(epoch)
        left -= 1
    return drawn


Update = Callable[[Tensor, Tensor, Stepper], None]


def plainly(weights: Tensor, gradient: Tensor, step: Stepper) -> None:
    """Make of a batch's gradient the next weights, as the optimizer does."""
    step(weights, gradient)


def descend(
    model: Model,
    samples: Samples,
    loss: Loss,
    epochs: Epochs,
    *,
    part: Part,
    augmentation: torch.Generator | None,
    step: Stepper,
    update: Update = plainly,
) -> float:
    """Train ``part`` of the live ``model`` for some ``epochs``; return the mean loss of the last epoch.

    ``step`` moves what ``part`` spans; ``update`` makes of a batch's gradient the next weights.
    """
    model.train_on(len(samples))
    total, seen = torch.zeros((), device=model.device), 0
    with model.only(part) as span:
        weights, gradient = model.vector[span], model.gradient[span]
        for number, epoch in enumerate(epochs, start=1):
            for index in epoch:
                x, y = model.batch = _on(model, samples.batch(index, augmentation))
                value = loss(model, x, y)
                model.differentiate(value)
                update(weights, gradient, step)
                if number == len(epochs):
                    total += value.detach() * len(y)
                    seen += len(y)
    return float(total) / seen if seen else float("nan")


def descend_privately(
    model: Model,
    samples: Samples,
    loss: Loss,
    steps: int,
    noising: Noising,
    *,
    part: Part,
    augmentation: torch.Generator | None,
    step: Stepper,
    update: Update = plainly,
) -> None:
    """Train as ``descend`` does, with differential privacy: on Poisson samples, by clipped and noised gradients."""
    model.train_on(len(samples))
    with model.only(part) as span:
        weights, gradient = model.vector[span], model.gradient[span]
        separate = Separate(model, span, loss)
        for _ in range(steps):
            x, y = model.batch = _on(model, samples.batch(noising.draw(len(samples)), augmentation))
            gradient.copy_(noising.gradient(separate, x, y))
            update(weights, gradient, step)


def _on(model: Model, batch: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
    x, y = batch
    return x.to(model.device), y.to(model.device)
