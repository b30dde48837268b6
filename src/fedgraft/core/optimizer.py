"""Optimizers: how a gradient moves weights.

An optimizer holds no state. What it remembers of the things it moves are named vectors, as long as these, which it is
lent for every step and which the client keeps between rounds where the run says so. Written on flat vectors, a step is
a few vector operations whatever the network.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import ClassVar

import torch
from torch import Tensor

from fedgraft.core.settings import OPTIMIZERS, Training


@dataclass(frozen=True)
class Optimizer:
    """Updates weights by a gradient; ``slots`` are the names of the state that it keeps."""

    name: ClassVar[str]

    @property
    def slots(self) -> tuple[str, ...]:
        return ()

    def step(self, weights: Tensor, gradient: Tensor, state: Mapping[str, Tensor], rate: float, decay: float) -> None:
        """Move ``weights`` in place, with weight ``decay``; ``gradient`` and ``state`` may be changed in place."""
        raise NotImplementedError


@dataclass(frozen=True)
class SGD(Optimizer):
    """Stochastic gradient descent, with momentum as torch has it."""

    name = "sgd"
    momentum: float = 0.0

    @property
    def slots(self) -> tuple[str, ...]:
        return ("momentum",) if self.momentum else ()

    def step(self, weights: Tensor, gradient: Tensor, state: Mapping[str, Tensor], rate: float, decay: float) -> None:
        if decay:
            gradient.add_(weights, alpha=decay)
        if self.momentum:
            gradient = state["momentum"].mul_(self.momentum).add_(gradient)
        weights.sub_(gradient, alpha=rate)


@dataclass(frozen=True)
class Adam(Optimizer):
    """Adam (Kingma and Ba, 2015); weight decay is added to the gradient."""

    name = "adam"
    decoupled: ClassVar[bool] = False
    beta1: float = 0.9
    beta2: float = 0.999
    eps: float = 1e-8

    @property
    def slots(self) -> tuple[str, ...]:
        return ("first", "second", "count")

    def step(self, weights: Tensor, gradient: Tensor, state: Mapping[str, Tensor], rate: float, decay: float) -> None:
        if decay and self.decoupled:
            weights.mul_(1 - rate * decay)
        elif decay:
            gradient.add_(weights, alpha=decay)
        first, second = state["first"], state["second"]
        # as long as the weights, for a part of them may have made fewer steps than the rest
        count = float(state["count"].add_(1)[0]) if len(weights) else 1.0
        first.lerp_(gradient, 1 - self.beta1)
        second.mul_(self.beta2).addcmul_(gradient, gradient, value=1 - self.beta2)
        scale = (second.sqrt() / math.sqrt(1 - self.beta2**count)).add_(self.eps)
        weights.addcdiv_(first, scale, value=-rate / (1 - self.beta1**count))


@dataclass(frozen=True)
class AdamW(Adam):
    """Adam with weight decay beside the gradient (Loshchilov and Hutter, 2019)."""

    name = "adamw"
    decoupled: ClassVar[bool] = True


@lru_cache
def optimizer(settings: Training) -> Optimizer:
    """Make the run's optimizer."""
    if settings.optimizer == "sgd":
        return SGD(settings.momentum)
    made: Optimizer = OPTIMIZERS.make(settings.optimizer)
    return made


@dataclass(frozen=True)
class Stepper:
    """The run's optimizer with the memory of one thing that it moves, and the rate of this round."""

    optimizer: Optimizer
    settings: Training
    rate: float
    state: Mapping[str, Tensor]

    def __call__(self, weights: Tensor, gradient: Tensor) -> None:
        """Make one step in place, with the run's clipping and decay."""
        clip = self.settings.clip_norm
        if clip is not None:
            gradient.mul_(torch.clamp(clip / (gradient.norm() + 1e-12), max=1.0))
        self.optimizer.step(weights, gradient, self.state, self.rate, self.settings.weight_decay)

    def on(self, span: slice, rate: float) -> "Stepper":
        """Move only a part of the thing, at another rate."""
        part = {name: vector[..., span] for name, vector in self.state.items()}
        return Stepper(self.optimizer, self.settings, rate, part)
