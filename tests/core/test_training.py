"""Local training on flat vectors is torch's SGD."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.nn import functional

from fedgraft.core.model import Architecture, Model
from fedgraft.core.samples import Samples
from fedgraft.core.training import Training, batches, descend

X = torch.randn(30, 1, 8, 8, generator=torch.Generator().manual_seed(0))
Y = torch.randint(0, 4, (30,), generator=torch.Generator().manual_seed(1))


def network() -> nn.Module:
    return nn.Sequential(nn.Conv2d(1, 3, 3), nn.ReLU(), nn.Flatten(), nn.Linear(108, 4))


def cross_entropy(model: Model, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return functional.cross_entropy(model(x), y)


def trained_by_us(settings: Training, **changes: object) -> torch.Tensor:
    architecture = Architecture(network, X[:2])
    model = architecture.model().load(architecture.initial(0))
    arguments = {"rate": settings.lr, "epochs": settings.epochs, "part": "all"} | changes
    descend(
        model, Samples(X, Y), cross_entropy, settings, rng=np.random.default_rng(5), augmentation=torch.Generator(),
        velocity=torch.zeros_like(model.gradient), **arguments,
    )  # type: ignore[arg-type]  # fmt: skip
    return model.vector.clone()


@pytest.mark.parametrize(
    "settings",
    [
        Training(lr=0.05, momentum=0.0, epochs=3, batch_size=8),
        Training(lr=0.05, momentum=0.9, epochs=3, batch_size=8),
        Training(lr=0.05, momentum=0.9, weight_decay=0.01, epochs=3, batch_size=8),
        Training(lr=0.05, momentum=0.9, epochs=3, batch_size=8, clip_norm=0.1),
        Training(lr=0.05, momentum=0.9, epochs=3, batch_size=8, drop_last=True),
    ],
)
def test_it_is_the_textbook_loop(settings: Training) -> None:
    architecture = Architecture(network, X[:2])
    textbook = architecture.model().load(architecture.initial(0)).module
    plain = network()
    plain.load_state_dict(textbook.state_dict())
    optimizer = torch.optim.SGD(
        plain.parameters(), settings.lr, momentum=settings.momentum, weight_decay=settings.weight_decay
    )
    rng = np.random.default_rng(5)
    for _ in range(settings.epochs):
        order = torch.from_numpy(rng.permutation(30))
        for start in range(0, 24 if settings.drop_last else 30, 8):
            index = order[start : start + 8]
            optimizer.zero_grad()
            functional.cross_entropy(plain(X[index]), Y[index]).backward()
            if settings.clip_norm:
                nn.utils.clip_grad_norm_(plain.parameters(), settings.clip_norm)
            optimizer.step()
    ours = architecture.layout.named(trained_by_us(settings))
    for name, tensor in plain.state_dict().items():
        torch.testing.assert_close(ours[name], tensor, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize(("part", "still"), [("head", "extractor"), ("extractor", "head")])
def test_a_frozen_part_does_not_move_even_with_momentum_and_decay(part: str, still: str) -> None:
    architecture = Architecture(network, X[:2])
    settings = Training(lr=0.1, momentum=0.9, weight_decay=0.1, epochs=2, batch_size=8)
    after, before = trained_by_us(settings, part=part), architecture.initial(0)
    span = architecture.layout.span(still)  # type: ignore[arg-type]
    assert torch.equal(after[span], before[span])
    assert not torch.equal(after, before)


def test_no_epochs_no_change() -> None:
    architecture = Architecture(network, X[:2])
    assert torch.equal(trained_by_us(Training(), epochs=0), architecture.initial(0))


@given(
    count=st.integers(1, 200), size=st.integers(1, 70), drop=st.booleans(), pairs=st.booleans(), seed=st.integers(0, 9)
)
def test_an_epoch_visits_every_sample_once(count: int, size: int, drop: bool, pairs: bool, seed: int) -> None:
    drawn = list(batches(count, size, np.random.default_rng(seed), drop_last=drop, pairs=pairs))
    seen = torch.cat(drawn).tolist()
    assert len(seen) == len(set(seen))
    if drop and count >= size:
        assert len(seen) == count - count % size
    else:
        assert sorted(seen) == list(range(count))
    assert drawn, "a client with data always makes a step"
    if pairs and count > 1 and size > 1:
        assert min(map(len, drawn)) > 1


def test_the_rate_decays_by_round() -> None:
    assert Training(lr=0.1, lr_decay=0.5).rate(0) == 0.1
    assert Training(lr=0.1, lr_decay=0.5).rate(3) == pytest.approx(0.0125)
