"""Our training step against the loop of every tutorial, at equal results, on one thread."""

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.flop_counter import FlopCounterMode

from benchmarks.clock import in_turns, peak
from fedgraft import kernels, models
from fedgraft.core.model import Architecture, Model
from fedgraft.core.optimizer import Stepper, optimizer
from fedgraft.core.samples import Preparation, Samples
from fedgraft.core.settings import Training
from fedgraft.core.training import batches, descend, draws
from fedgraft.engines.workshop import single_thread

SETTINGS = Training(lr=0.01, momentum=0.9, epochs=1, batch_size=64)
STRETCH = 8  # steps that are timed together

Weights = dict[str, Tensor]


def pictures(count: int) -> Samples:
    """Images in CIFAR-10's shape, as a client holds them."""
    random = torch.Generator().manual_seed(0)
    inputs = torch.randint(0, 256, (count, 32, 32, 3), generator=random, dtype=torch.uint8)
    labels = torch.randint(0, 10, (count,), generator=random)
    return Samples(inputs, labels, Preparation((0.5,), (0.5,)))


def textbook_lenet5() -> nn.Sequential:
    """LeNet-5 with activations before the pooling, as it is usually written."""
    return nn.Sequential(
        nn.Conv2d(3, 6, 5), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(6, 16, 5), nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(), nn.Linear(400, 120), nn.ReLU(), nn.Linear(120, 84), nn.ReLU(), nn.Linear(84, 10),
    )  # fmt: skip


def textbook(samples: Samples, settings: Training, start: Weights) -> tuple[Callable[[], None], Callable[[], Weights]]:
    """An epoch as a tutorial writes it, on images that are floats already; and the weights that it has reached."""
    net = textbook_lenet5()
    net.load_state_dict(dict(zip(net.state_dict(), start.values(), strict=True)))
    optimizer = torch.optim.SGD(net.parameters(), lr=settings.lr, momentum=settings.momentum)
    x, y = samples.batch(slice(None))
    x, order = x.contiguous(), np.random.default_rng(0)

    def epoch() -> None:
        for index in batches(len(y), settings.batch_size, order, drop_last=False, pairs=False):
            optimizer.zero_grad()
            functional.cross_entropy(net(x[index]), y[index]).backward()
            optimizer.step()

    return epoch, lambda: dict(zip(start, (p.detach() for p in net.parameters()), strict=True))


def ours(
    samples: Samples, settings: Training, start: Weights, choice: str
) -> tuple[Callable[[], None], Callable[[], Weights]]:
    """An epoch as a client trains, from its bytes; and the weights that it has reached."""

    def network() -> nn.Module:
        net = models.build("lenet5", (3, 32, 32), 10)
        net.load_state_dict(start)
        return kernels.accelerate(net, choice=choice).module

    model = Architecture(network, samples.batch(slice(0, 2))[0], "head").model()
    step = Stepper(optimizer(settings), settings, settings.lr, {"momentum": torch.zeros_like(model.gradient)})
    order = np.random.default_rng(0)

    def loss(model: Model, x: Tensor, y: Tensor) -> Tensor:
        return functional.cross_entropy(model(x), y)

    def epoch() -> None:
        drawn = draws(len(samples), settings, 1, order, pairs=False)
        descend(model, samples, loss, drawn, part="all", augmentation=torch.Generator(), step=step)

    return epoch, lambda: {slot.name: slot.view(model.vector) for slot in model.layout.slots}


def operations(batch: int) -> float:
    """GFLOP of multiply-adds in a step of so many images, gradients included."""
    net, (x, y) = textbook_lenet5(), pictures(batch).batch(slice(None))
    with FlopCounterMode(display=False) as counter:
        functional.cross_entropy(net(x), y).backward()
    return float(counter.get_total_flops()) / 1e9


def first_weights() -> Weights:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return models.build("lenet5", (3, 32, 32), 10).state_dict()


def apart(some: Weights, others: Weights) -> float:
    """The largest difference between weights of two networks."""
    return max(float((some[name] - others[name]).abs().max()) for name in others)


def compare(batch: int, seconds: float, epochs: int = 3) -> dict[str, Any]:
    """Milliseconds of a step for each way in turns, and how far apart ``epochs`` of the same batches leave them."""
    samples, settings, start = pictures(STRETCH * batch), SETTINGS.but(batch_size=batch), first_weights()
    choices = ("torch", "native") if kernels.available() else ("torch",)

    def ways() -> list[tuple[Callable[[], None], Callable[[], Weights]]]:
        return [textbook(samples, settings, start), *(ours(samples, settings, start, choice) for choice in choices)]

    trained = ways()
    for _ in range(epochs):
        for epoch, _ in trained:
            epoch()
    reached = [weights() for _, weights in trained]
    moved = apart({name: value.detach() for name, value in start.items()}, reached[0])
    times = [ms / STRETCH for ms in in_turns([epoch for epoch, _ in ways()], seconds, stretch=1)]
    row: dict[str, Any] = {"batch": batch, "steps": epochs * STRETCH, "textbook_ms": times[0], "moved": moved}
    row["gflop"] = operations(batch)
    for choice, ms, weights in zip(choices, times[1:], reached[1:], strict=True):
        row |= {f"{choice}_ms": ms, f"{choice}_ratio": times[0] / ms, f"{choice}_apart": apart(weights, reached[0])}
    return row


def measure(*, tiny: bool = False) -> dict[str, Any]:
    seconds, sizes = (0.1, (8,)) if tiny else (20.0, (10, 64, 256))
    with single_thread():
        rows = [compare(batch, seconds) for batch in sizes]
        return {"model": "LeNet-5 for 3x32x32", "steps": rows, "peak": peak() if kernels.available() else None}
