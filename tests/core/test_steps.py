"""What a method with an inner loop of its own builds on: the step, the momentum buffer, the mode, the trained copy."""

from dataclasses import replace

import pytest
import torch
from conftest import specification, visit

from fedgraft.core.settings import Training
from fedgraft.data.federation import Federation


@pytest.mark.parametrize("momentum", [0.0, 0.9])
@pytest.mark.parametrize("weight_decay", [0.0, 0.1])
@pytest.mark.parametrize("clip_norm", [None, 0.5])
def test_the_step_is_that_of_torch_s_sgd(
    fed: Federation, momentum: float, weight_decay: float, clip_norm: float | None
) -> None:
    start, generator = torch.tensor([1.0, -2.0, 3.0]), torch.Generator().manual_seed(0)
    theirs, ours = torch.nn.Parameter(start.clone()), start.clone()
    optimizer = torch.optim.SGD([theirs], lr=0.1, momentum=momentum, weight_decay=weight_decay)
    spec = specification(fed, lr=0.1, momentum=momentum, weight_decay=weight_decay, clip_norm=clip_norm)
    with visit(fed, spec).stepper("three", length=3) as step:
        for _ in range(3):
            gradient = torch.randn(3, generator=generator)
            theirs.grad = gradient.clone()
            if clip_norm is not None:
                torch.nn.utils.clip_grad_norm_([theirs], clip_norm)
            optimizer.step()
            step(ours, gradient)
    torch.testing.assert_close(ours, theirs.detach(), rtol=1e-5, atol=1e-5)


def test_a_rate_of_its_own_follows_the_run_s_schedule(fed: Federation) -> None:
    spec = specification(fed, momentum=0.0, schedule="exponential:0.5")
    weights = torch.zeros(1)
    with visit(fed, spec, round=2).stepper("one", lr=0.4, length=1) as step:
        step(weights, torch.ones(1))
    assert float(weights) == pytest.approx(-0.1)


@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
@pytest.mark.parametrize("optimizer_state", ["fresh", "kept"])
def test_what_an_optimizer_remembers_is_kept_where_the_run_keeps_it(
    fed: Federation, optimizer_state: str, optimizer: str
) -> None:
    momentum = {"momentum": 0.9} if optimizer == "sgd" else {}
    settings = Training(optimizer=optimizer, optimizer_state=optimizer_state, **momentum)  # type: ignore[arg-type]
    client = visit(fed, replace(specification(fed), settings=settings))
    for turn in range(2):
        with client.stepper("twin") as step:
            assert step.state.keys() == {"sgd": {"momentum"}, "adam": {"first", "second", "count"}}[optimizer]
            for vector in step.state.values():
                assert float(vector[0]) == (turn if optimizer_state == "kept" else 0)
                vector += 1
    slot = "momentum" if optimizer == "sgd" else "second"
    assert (f"{slot}/twin" in client) == (optimizer_state == "kept")


def test_a_part_that_made_fewer_steps_is_corrected_for_its_own(fed: Federation) -> None:
    """Adam's first step goes by the rate in every coordinate, also if another part went before."""
    settings = Training(optimizer="adam", lr=0.1)
    weights = torch.zeros(4)
    with visit(fed, replace(specification(fed), settings=settings)).stepper("parts", length=4) as step:
        for _ in range(5):
            step.on(slice(0, 2), 0.1)(weights[:2], torch.ones(2))
        step.on(slice(2, 4), 0.1)(weights[2:], torch.ones(2))
    assert weights.tolist() == pytest.approx([-0.5, -0.5, -0.1, -0.1], abs=1e-5)


def test_batchnorm_does_not_train_on_a_single_sample(fed: Federation) -> None:
    for norm in (False, True):
        model = visit(fed, specification(fed, norm=norm)).model()
        assert model.train_on(2).module.training
        assert model.train_on(1).module.training != norm


@pytest.mark.parametrize("buffers", ["average", "local", "keep"])
def test_the_trained_copy_obeys_the_run_s_policy(fed: Federation, buffers: str) -> None:
    spec = specification(fed, norm=True, buffers=buffers)
    client, trained = visit(fed, spec), spec.layout(0).trained
    model = client.model(client.own)
    model.vector += 1
    model.integers = torch.tensor([7])
    copy = client.trained(model, client.own)
    assert torch.equal(copy[:trained], client.own[:trained] + 1)
    assert torch.equal(copy[trained:], client.own[trained:] + (buffers != "keep"))
    assert client["integers"].tolist() == [7]
    model.vector += 1
    assert torch.equal(copy[:trained], client.own[:trained] + 1), "it is a copy"
