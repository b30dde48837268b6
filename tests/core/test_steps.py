"""What a method with an inner loop of its own builds on: the step, the momentum buffer, the mode, the trained copy."""

import pytest
import torch
from conftest import specification, visit

from fedgraft.core.training import Training, step
from fedgraft.data.federation import Federation


@pytest.mark.parametrize("momentum", [0.0, 0.9])
@pytest.mark.parametrize("weight_decay", [0.0, 0.1])
@pytest.mark.parametrize("clip_norm", [None, 0.5])
def test_the_step_is_that_of_torch_s_sgd(momentum: float, weight_decay: float, clip_norm: float | None) -> None:
    start, generator = torch.tensor([1.0, -2.0, 3.0]), torch.Generator().manual_seed(0)
    theirs = torch.nn.Parameter(start.clone())
    optimizer = torch.optim.SGD([theirs], lr=0.1, momentum=momentum, weight_decay=weight_decay)
    ours, velocity = start.clone(), torch.zeros(3)
    settings = Training(momentum=momentum, weight_decay=weight_decay, clip_norm=clip_norm)
    for _ in range(3):
        gradient = torch.randn(3, generator=generator)
        theirs.grad = gradient.clone()
        if clip_norm is not None:
            torch.nn.utils.clip_grad_norm_([theirs], clip_norm)
        optimizer.step()
        step(ours, gradient, settings, 0.1, velocity)
    torch.testing.assert_close(ours, theirs.detach(), rtol=1e-5, atol=1e-5)


def test_without_a_buffer_the_step_has_no_momentum() -> None:
    weights = torch.zeros(1)
    for _ in range(2):
        step(weights, torch.ones(1), Training(momentum=0.9), 0.1)
    assert float(weights) == pytest.approx(-0.2)


@pytest.mark.parametrize("momentum_buffers", ["fresh", "kept"])
def test_momentum_is_lent_and_kept_where_the_run_keeps_it(fed: Federation, momentum_buffers: str) -> None:
    client = visit(fed, specification(fed, momentum_buffers=momentum_buffers))
    for turn in range(2):
        with client.momentum("twin") as velocity:
            assert float(velocity[0]) == (turn if momentum_buffers == "kept" else 0)
            velocity += 1
    assert ("momentum/twin" in client) == (momentum_buffers == "kept")


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
