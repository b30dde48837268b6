"""Local training on flat vectors is that of torch's optimizers."""

from collections.abc import Iterator

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError
from torch import nn
from torch.nn import functional

from fedgraft.core.model import Architecture, Model, Part
from fedgraft.core.optimizer import Stepper, optimizer
from fedgraft.core.samples import Samples
from fedgraft.core.settings import Training
from fedgraft.core.training import batches, descend, draws

X = torch.randn(30, 1, 8, 8, generator=torch.Generator().manual_seed(0))
Y = torch.randint(0, 4, (30,), generator=torch.Generator().manual_seed(1))


def network() -> nn.Module:
    return nn.Sequential(nn.Conv2d(1, 3, 3), nn.ReLU(), nn.Flatten(), nn.Linear(108, 4))


def cross_entropy(model: Model, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return functional.cross_entropy(model(x), y)


def trained_by_us(settings: Training, *, part: Part = "all", epochs: float | None = None) -> torch.Tensor:
    architecture = Architecture(network, X[:2])
    model = architecture.model().load(architecture.initial(0))
    made = optimizer(settings)
    state = {slot: torch.zeros_like(model.gradient) for slot in made.slots}
    step = Stepper(made, settings, settings.lr, state).on(model.layout.span(part), settings.lr)
    drawn = draws(30, settings, epochs, np.random.default_rng(5), pairs=False)
    descend(model, Samples(X, Y), cross_entropy, drawn, part=part, augmentation=torch.Generator(), step=step)
    return model.vector.clone()


def torch_optimizer(settings: Training, parameters: Iterator[nn.Parameter]) -> torch.optim.Optimizer:
    if settings.optimizer == "sgd":
        momentum, decay = settings.momentum, settings.weight_decay
        return torch.optim.SGD(parameters, settings.lr, momentum=momentum, weight_decay=decay)
    kind = {"adam": torch.optim.Adam, "adamw": torch.optim.AdamW}[settings.optimizer]
    return kind(parameters, settings.lr, weight_decay=settings.weight_decay)


@pytest.mark.parametrize(
    "settings",
    [
        Training(lr=0.05, momentum=0.0, epochs=3, batch_size=8),
        Training(lr=0.05, momentum=0.9, epochs=3, batch_size=8),
        Training(lr=0.05, momentum=0.9, weight_decay=0.01, epochs=3, batch_size=8),
        Training(lr=0.05, momentum=0.9, epochs=3, batch_size=8, clip_norm=0.1),
        Training(lr=0.05, momentum=0.9, epochs=3, batch_size=8, drop_last=True),
        Training(lr=0.005, optimizer="adam", epochs=3, batch_size=8, weight_decay=0.1),
        Training(lr=0.005, optimizer="adamw", epochs=3, batch_size=8, weight_decay=0.1),
    ],
)
def test_it_is_the_textbook_loop(settings: Training) -> None:
    architecture = Architecture(network, X[:2])
    textbook = architecture.model().load(architecture.initial(0)).module
    plain = network()
    plain.load_state_dict(textbook.state_dict())
    theirs = torch_optimizer(settings, plain.parameters())
    rng = np.random.default_rng(5)
    for _ in range(int(settings.epochs)):
        order = torch.from_numpy(rng.permutation(30))
        for start in range(0, 24 if settings.drop_last else 30, 8):
            index = order[start : start + 8]
            theirs.zero_grad()
            functional.cross_entropy(plain(X[index]), Y[index]).backward()
            if settings.clip_norm:
                nn.utils.clip_grad_norm_(plain.parameters(), settings.clip_norm)
            theirs.step()
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


@pytest.mark.parametrize(
    ("schedule", "expected"),
    [
        ("constant", [1, 1, 1, 1]),
        ("exponential:0.5", [1, 0.5, 0.25, 0.125]),
        ("step:2,0.1", [1, 1, 0.1, 0.1]),
        ("cosine", [1, (1 + 2**-0.5) / 2, 0.5, (1 - 2**-0.5) / 2]),
    ],
)
def test_the_rate_follows_its_schedule_over_rounds(schedule: str, expected: list[float]) -> None:
    settings = Training(schedule=schedule)
    assert [settings.factor(number, 4) for number in range(4)] == pytest.approx(expected)


@pytest.mark.parametrize(
    "text", ["linear", "exponential", "exponential:0", "exponential:2", "step:5", "step:0,0.1", "cosine:3"]
)
def test_a_schedule_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(ValidationError, match="schedule"):
        Training(schedule=text)


@pytest.mark.parametrize(
    ("settings", "batches_of_each_epoch"),
    [
        (Training(epochs=2, batch_size=8), [4, 4]),
        (Training(epochs=0.5, batch_size=8), [2]),
        (Training(epochs=0.01, batch_size=8), [1]),
        (Training(epochs=1.5, batch_size=8), [4, 2]),
        (Training(epochs=0, batch_size=8), []),
        (Training(steps=3, batch_size=8), [3]),
        (Training(steps=9, batch_size=8), [4, 4, 1]),
        (Training(steps=8, batch_size=8), [4, 4]),
    ],
)
def test_epochs_may_be_parts_and_steps_may_be_counted(settings: Training, batches_of_each_epoch: list[int]) -> None:
    drawn = draws(30, settings, None, np.random.default_rng(0), pairs=False)
    assert [len(epoch) for epoch in drawn] == batches_of_each_epoch


def test_a_method_s_own_epochs_do_not_follow_the_run_s_steps() -> None:
    drawn = draws(30, Training(steps=3, batch_size=8), 2, np.random.default_rng(0), pairs=False)
    assert [len(epoch) for epoch in drawn] == [4, 4]


def test_momentum_is_a_setting_of_sgd_alone() -> None:
    with pytest.raises(ValidationError, match="momentum is a setting of the optimizer sgd"):
        Training(optimizer="adam", momentum=0.5)
    assert Training(optimizer="adam").plain.optimizer == "sgd"


def test_settings_of_another_optimizer_can_be_written_down_and_read_again() -> None:
    settings = Training(optimizer="adam")
    assert settings.momentum == 0.0
    assert Training(**settings.model_dump()) == settings
    with pytest.raises(ValidationError, match="momentum is a setting of the optimizer sgd, not of adam"):
        Training(optimizer="adam", momentum=0.9)
