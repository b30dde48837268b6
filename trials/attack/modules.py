"""Modules that do more than torch knows of."""

import random
from pathlib import Path
from typing import cast

import torch
from torch import Tensor, nn

import fedgraft
from trials.attack import BreachError, attack


class Moody(nn.Module):
    """Draws from Python's own generator and remembers in an attribute how often it was asked."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.head, self.calls = nn.Linear(64, 16), nn.Linear(16, 10), 0

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        z = torch.relu(self.body(x.flatten(1))) * (1 + 0.01 * self.calls)
        return cast(Tensor, self.head(z * (0.5 + random.random()) if self.training else z))


@attack("modules: state and random numbers of Python's own", "the same bits at any number of workers", processes=True)
def moody(_: Path, rng: random.Random) -> str:
    ended, seed = [], rng.randrange(100)
    for workers in (1, 2, 3):
        random.seed(rng.random())
        run = fedgraft.run("fedavg", model=Moody, clients=5, rounds=2, workers=workers, seed=seed)
        assert run.server is not None
        ended.append(run.server["weights/0"])
    if not all(torch.equal(ended[0], other) for other in ended[1:]):
        raise BreachError("other bits with other numbers of workers")
    return "the same bits with one, two and three workers"
