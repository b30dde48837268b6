"""Gradients of single samples: both ways of summing them are those of a loop over the samples."""

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from fedgraft.core.gradients import Separate
from fedgraft.core.model import Architecture, Model, Part

X = torch.randn(7, 2, 9, 9, generator=torch.Generator().manual_seed(0))
Y = torch.randint(0, 4, (7,), generator=torch.Generator().manual_seed(1))


def convolutional() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(2, 3, 3, stride=2, padding=1), nn.MaxPool2d(2), nn.ReLU(), nn.Conv2d(3, 5, 2, bias=False), nn.Tanh(),
        nn.Flatten(), nn.Linear(5, 6), nn.Tanh(), nn.Linear(6, 4),
    )  # fmt: skip


def dilated() -> nn.Module:
    return nn.Sequential(nn.Conv2d(2, 3, 3, dilation=2), nn.Flatten(), nn.Linear(75, 4))


def normalised() -> nn.Module:
    return nn.Sequential(nn.Conv2d(2, 4, 3), nn.GroupNorm(2, 4), nn.Flatten(), nn.Linear(196, 4))


class Rows(nn.Module):
    """A dense layer that is applied at several places of a sample."""

    def __init__(self) -> None:
        super().__init__()
        self.each, self.head = nn.Linear(9, 3), nn.Linear(54, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(torch.tanh(self.each(x.flatten(1, 2))).flatten(1))


class Twice(nn.Module):
    """A layer that is called twice."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.inner, self.head = nn.Linear(162, 5), nn.Linear(5, 5), nn.Linear(5, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.inner(torch.tanh(self.inner(torch.tanh(self.first(x.flatten(1)))))))


def plain(model: Model, x: Tensor, y: Tensor) -> Tensor:
    return functional.cross_entropy(model(x), y)


def pulled(model: Model, x: Tensor, y: Tensor) -> Tensor:
    return plain(model, x, y) + 0.3 * (model.weights - 0.1).square().sum()


def live(build: Callable[[], nn.Module]) -> Model:
    architecture = Architecture(build, X[:2])
    return architecture.model().load(architecture.initial(0))


def by_a_loop(model: Model, span: slice, loss: Callable[[Model, Tensor, Tensor], Tensor], norm: float) -> Tensor:
    total = torch.zeros(span.stop - span.start)
    for i in range(len(Y)):
        gradient = model.differentiate(loss(model, X[i : i + 1], Y[i : i + 1]))[span].clone()
        total += gradient * min(1.0, norm / float(gradient.norm()))
    return total


@pytest.mark.parametrize("norm", [0.5, math.inf])
@pytest.mark.parametrize("part", ["all", "extractor", "head"])
@pytest.mark.parametrize(
    ("build", "loss", "fast"),
    [
        (convolutional, plain, True), (dilated, plain, True), (Rows, plain, True), (convolutional, pulled, False),
        (normalised, plain, None), (Twice, plain, None),
    ],
)  # fmt: skip
def test_clipped_sums_are_those_of_a_loop(
    build: Callable[[], nn.Module], loss: Callable[..., Tensor], fast: bool | None, part: Part, norm: float
) -> None:
    model = live(build)
    span = model.layout.span(part)
    separate = Separate(model, span, loss)
    torch.testing.assert_close(separate.clipped(X, Y, norm), by_a_loop(model, span, loss, norm), rtol=1e-4, atol=1e-5)
    if fast is not None:
        assert bool(separate._layers) is fast


def test_a_penalty_that_is_nothing_at_first_is_not_forgotten() -> None:
    model = live(convolutional)
    start = model.vector[: model.layout.trained].clone()

    def proximal(model: Model, x: Tensor, y: Tensor) -> Tensor:
        return plain(model, x, y) + 5 * (model.weights - start).square().sum()

    separate, span = Separate(model, model.layout.span("all"), proximal), model.layout.span("all")
    separate.clipped(X, Y, 1.0)
    model.vector.add_(0.1)
    torch.testing.assert_close(separate.clipped(X, Y, 1.0), by_a_loop(model, span, proximal, 1.0), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("build", [convolutional, normalised])
def test_no_sample_counts_more_than_the_norm_and_a_broken_one_nothing(build: Callable[[], nn.Module]) -> None:
    model = live(build)
    separate = Separate(model, model.layout.span("all"), plain)
    for i in range(len(Y)):
        rest = torch.arange(len(Y)) != i
        apart = separate.clipped(1e4 * X, Y, 0.5) - separate.clipped(1e4 * X[rest], Y[rest], 0.5)
        assert float(apart.norm()) <= 0.5 * (1 + 1e-4)
    broken = X.clone()
    broken[2] = torch.nan
    torch.testing.assert_close(
        separate.clipped(broken, Y, 0.5), separate.clipped(X[torch.arange(7) != 2], Y[torch.arange(7) != 2], 0.5)
    )
    assert not separate.clipped(X[:0], Y[:0], 0.5).any()


def test_a_loss_over_the_batch_cannot_let_samples_reach_each_other() -> None:
    def coupled(model: Model, x: Tensor, y: Tensor) -> Tensor:
        scores = model(x)
        return (scores - scores.mean(dim=0)).square().sum() + plain(model, x, y)

    model = live(convolutional)
    separate = Separate(model, model.layout.span("all"), coupled)
    torch.testing.assert_close(
        separate.clipped(X, Y, 9.0), by_a_loop(model, slice(0, model.layout.trained), plain, 9.0)
    )
