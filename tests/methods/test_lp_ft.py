"""LP-FT: FedAvg's rounds, a head that is fitted on fixed features, then a whole network that is fine-tuned."""

from typing import Any

import pytest
import torch
from conftest import on_digits, simulate, small_network, specification, visit
from torch import Tensor
from torch.nn import functional

from fedgraft.core.message import Message
from fedgraft.core.model import Model
from fedgraft.data.federation import Federation
from fedgraft.methods.fedavg import FedAvg
from fedgraft.methods.fedavg_ft import FedAvgFT
from fedgraft.methods.lp_ft import LPFT


def own_model(method: FedAvgFT, fed: Federation, w: Tensor, *, round: int = 0, **settings: Any) -> Tensor:
    """The weights of client 0's own model when the newest global model is ``w``."""
    client = visit(fed, specification(fed, **settings), round=round, purpose="evaluate")
    model = method.personal(client, Message(weights=w))
    assert isinstance(model, Model)
    return model.vector.clone()


@pytest.mark.parametrize("optimizer_state", ["fresh", "kept"])
def test_the_rounds_are_those_of_fedavg_bit_for_bit(fed: Federation, optimizer_state: str) -> None:
    spec = specification(fed, rounds=3, norm=True, optimizer_state=optimizer_state)
    ours, server, engine = simulate(LPFT(), fed, spec, share=0.5)
    fedavg, expected, plain = simulate(FedAvg(), fed, spec, share=0.5)
    assert torch.equal(server["weights/0"], expected["weights/0"])
    for client in range(len(fed)):
        assert engine.states[client].keys() == plain.states[client].keys(), "adapting leaves no state"
        assert torch.equal(engine.states[client]["own"], plain.states[client]["own"])
    assert ours[-1].test["trained"] == fedavg[-1].test["trained"]
    assert ours[-1].test["received"] != fedavg[-1].test["received"]


def test_without_a_probe_it_is_fedavg_ft_at_both_points(fed: Federation) -> None:
    spec = specification(fed, rounds=2, norm=True)
    ours, _, _ = simulate(LPFT(probe_epochs=0), fed, spec)
    tuned, _, _ = simulate(FedAvgFT(), fed, spec)
    assert [this.test for this in ours] == [this.test for this in tuned]
    assert "FedAvg-FT" in LPFT(probe_epochs=0).caveats()[0]
    assert not LPFT().caveats()


def test_both_phases_against_a_few_lines_of_their_own(fed: Federation) -> None:
    # full batches, so that no order of batches enters; momentum begins anew in the second phase
    def double() -> torch.nn.Module:
        return small_network()().double()

    spec = specification(fed, build=double)
    w = spec.initial(0, independent=True)
    method = LPFT(probe_epochs=3, probe_lr=0.3, fine_tune_epochs=2, fine_tune_lr=0.05)
    ours = own_model(method, fed, w, build=double, batch_size=100, momentum=0.5)

    named = spec.layout(0).named(w.clone())
    W, b, V, c = (named[name].clone().requires_grad_() for name in ("0.weight", "0.bias", "2.weight", "2.bias"))
    x, y = fed.clients[0].train.batch(slice(None))
    for tensors, epochs, rate in (((V, c), 3, 0.3), ((W, b, V, c), 2, 0.05)):
        velocity = [torch.zeros_like(tensor) for tensor in tensors]
        for _ in range(epochs):
            logits = torch.relu(x.double() @ W.T + b) @ V.T + c
            gradients = torch.autograd.grad(functional.cross_entropy(logits, y), tensors)
            velocity = [0.5 * v + g for v, g in zip(velocity, gradients, strict=True)]
            for tensor, v in zip(tensors, velocity, strict=True):
                tensor.data -= rate * v
    expected = torch.cat([tensor.detach().reshape(-1) for tensor in (W, b, V, c)])
    torch.testing.assert_close(ours, expected, rtol=0, atol=1e-9)


@pytest.mark.parametrize("settings", [{}, {"momentum": 0.9, "weight_decay": 0.1}], ids=["plain", "momentum and decay"])
def test_the_probe_moves_the_head_and_nothing_else(fed: Federation, settings: dict[str, Any]) -> None:
    spec = specification(fed, norm=True)
    layout, w = spec.layout(0), spec.initial(0, independent=True)
    ours = own_model(LPFT(fine_tune_epochs=0), fed, w, norm=True, **settings)
    head = layout.span("head")
    assert not torch.equal(ours[head], w[head])
    assert torch.equal(ours[: head.start], w[: head.start])
    assert torch.equal(ours[head.stop :], w[head.stop :]), "statistics rest with the features"


def test_fine_tuning_starts_from_the_probed_head(fed: Federation) -> None:
    spec = specification(fed)
    w = spec.initial(0, independent=True)
    probed = own_model(LPFT(fine_tune_epochs=0), fed, w)
    assert torch.equal(own_model(LPFT(), fed, w), own_model(FedAvgFT(), fed, probed))


def test_a_rate_of_its_own_does_not_decay_and_the_runs_does(fed: Federation) -> None:
    w = specification(fed).initial(0, independent=True)
    usual = {"fine_tune_epochs": 0, "probe_epochs": 1}
    now = own_model(LPFT(**usual, probe_lr=0.05), fed, w, round=1, schedule="exponential:0.5", momentum=0.0)
    same = own_model(LPFT(**usual), fed, w, round=1, schedule="exponential:0.5", momentum=0.0)  # 0.1 * 0.5
    assert torch.equal(now, same)


@pytest.mark.slow
def test_on_digits_it_is_far_better_than_a_guess() -> None:
    accuracy, guess = on_digits(LPFT())
    assert guess < 0.5
    assert accuracy > 0.9
