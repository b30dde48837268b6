"""Per-FedAvg: the gradient of the adapted loss, its two approximations, and the step in use."""

from dataclasses import dataclass
from typing import Any, Literal

import pytest
import torch
from conftest import on_digits, simulate, small_network, specification, visit
from torch import Tensor
from torch.nn import functional

from fedgraft.core.client import Client
from fedgraft.core.message import Message
from fedgraft.core.model import Model
from fedgraft.data.federation import Federation
from fedgraft.methods.fedavg import FedAvg
from fedgraft.methods.per_fedavg import PerFedAvg

FULL = {"batch_size": 100, "epochs": 1, "momentum": 0.0, "lr": 0.5}


def smooth() -> torch.nn.Module:
    return torch.nn.Sequential(torch.nn.Linear(6, 5), torch.nn.Tanh(), torch.nn.Linear(5, 3)).double()


@dataclass(frozen=True)
class Bowl(PerFedAvg):
    """f(w) = 2 ||w - 1||^2, whose gradient is 4 (w - 1) and whose Hessian 4, whatever the batch."""

    def loss(self, client: Client, model: Model, x: Tensor, y: Tensor) -> Tensor:
        return 2 * (model.weights - 1).square().sum()


def test_a_local_step_by_hand(fed: Federation) -> None:
    # w = 0, alpha = .1: w~ = 0 - .1 (-4) = .4, g = 4 (.4 - 1) = -2.4
    # FO: 0 + .5 * 2.4 = 1.2;  HF: d = 4 g, so g - alpha d = .6 g = -1.44, and w = .72
    spec = specification(fed, **FULL)
    for variant, expected in (("fo", 1.2), ("hf", 0.72)):
        client = visit(fed, spec)
        trained = Bowl(alpha=0.1, variant=variant).fit(client, torch.zeros(53))  # type: ignore[arg-type]
        assert trained.tolist() == pytest.approx([expected] * 53, abs=1e-4)
        assert client.steps == 1


@dataclass(frozen=True)
class Kink(PerFedAvg):
    """f(w) = |w - 0.0005|, whose gradient is -1 or 1."""

    def loss(self, client: Client, model: Model, x: Tensor, y: Tensor) -> Tensor:
        return (model.weights - 0.0005).abs().sum()


def test_a_jump_of_the_gradient_counts_alpha_over_two_delta(fed: Federation) -> None:
    # w = 0, alpha = .01: w~ = .01, g = 1; with delta = .001 the two points are .001 and -.001, on either side:
    # d = (1 + 1) / .002 = 1000, so g - alpha d = -9 and w = 4.5; with delta = .1 it is 1 - .01 * 10 = .9 and w = -.45
    spec = specification(fed, **FULL)
    for delta, expected in ((0.001, 4.5), (0.1, -0.45)):
        trained = Kink(delta=delta).fit(visit(fed, spec), torch.zeros(53))
        assert trained.tolist() == pytest.approx([expected] * 53)


def test_hessian_free_is_the_gradient_of_the_adapted_loss(fed: Federation) -> None:
    # D = D' = D'' is everything, so that F(w) = f(w - alpha grad f(w)) can be differentiated exactly
    spec = specification(fed, build=smooth, **FULL)
    client, w = visit(fed, spec), spec.initial(0)
    x, y = client.data.train.batch(slice(None))

    def f(v: Tensor) -> Tensor:
        z = torch.tanh(x @ v[:30].view(5, 6).T + v[30:35])
        return functional.cross_entropy(z @ v[35:50].view(3, 5).T + v[50:], y)

    at = w.clone().requires_grad_()
    (inner,) = torch.autograd.grad(f(at), at, create_graph=True)
    adapted = at - 0.7 * inner
    (exact,) = torch.autograd.grad(f(adapted), at)
    moved = adapted.detach().requires_grad_()
    (first_order,) = torch.autograd.grad(f(moved), moved)

    hf = PerFedAvg(alpha=0.7, delta=1e-4).fit(client, w.clone())
    torch.testing.assert_close((w - hf) / 0.5, exact, rtol=0, atol=1e-9)
    fo = PerFedAvg(alpha=0.7, variant="fo").fit(visit(fed, spec), w.clone())
    torch.testing.assert_close((w - fo) / 0.5, first_order, rtol=0, atol=1e-9)
    assert float((exact - first_order).abs().max()) > 1e-2, "the Hessian has to count"


@pytest.mark.parametrize("variant", ["hf", "fo"])
def test_every_gradient_is_taken_in_training_mode(fed: Federation, variant: Literal["hf", "fo"]) -> None:
    # D = D' = D'' is everything: BatchNorm takes the batch's statistics in all passes
    spec = specification(fed, build=lambda: small_network(norm=True)().double(), **FULL)
    client, w = visit(fed, spec), spec.initial(0)
    (x, y), model = client.data.train.batch(slice(None)), spec.architecture(0).model().train_on(20)
    model.load(w)

    def gradient(at: Tensor) -> Tensor:
        model.vector[:63] = at
        return model.differentiate(functional.cross_entropy(model(x), y)).clone()

    at = w[:63]
    g = gradient(at - 0.7 * gradient(at))
    d = (gradient(at + 0.01 * g) - gradient(at - 0.01 * g)) / 0.02
    ours = PerFedAvg(alpha=0.7, delta=0.01, variant=variant).fit(client, w.clone())
    expected = g if variant == "fo" else g - 0.7 * d
    torch.testing.assert_close((at - ours[:63]) / 0.5, expected, rtol=0, atol=1e-9)


@pytest.mark.parametrize("variant", ["hf", "fo"])
@pytest.mark.parametrize("norm", [False, True], ids=["plain", "batchnorm"])
def test_without_a_step_of_adaptation_it_is_fedavg_bit_for_bit(
    fed: Federation, variant: Literal["hf", "fo"], norm: bool
) -> None:
    spec = specification(fed, rounds=3, norm=norm, weight_decay=0.01)
    method = PerFedAvg(alpha=0.0, variant=variant, adapt_steps=0)
    ours, server, engine = simulate(method, fed, spec, share=0.75)
    fedavg, expected, plain = simulate(FedAvg(), fed, spec, share=0.75)
    assert torch.equal(server["weights/0"], expected["weights/0"])
    for client in range(len(fed)):
        assert torch.equal(engine.states[client]["own"], plain.states[client]["own"])
    assert [this.test for this in ours] == [this.test for this in fedavg]


def test_dropout_of_the_other_passes_leaves_the_outer_one_alone(fed: Federation) -> None:
    def build() -> torch.nn.Module:
        return torch.nn.Sequential(torch.nn.Linear(6, 5), torch.nn.Dropout(0.5), torch.nn.Linear(5, 3))

    spec = specification(fed, rounds=2, build=build)
    _, ours, _ = simulate(PerFedAvg(alpha=0.0), fed, spec)
    _, fedavg, _ = simulate(FedAvg(), fed, spec)
    assert torch.equal(ours["weights/0"], fedavg["weights/0"])


def test_the_three_batches_of_a_step_are_drawn_independently(fed: Federation) -> None:
    seen: list[Tensor] = []

    @dataclass(frozen=True)
    class Noting(PerFedAvg):
        def loss(self, client: Client, model: Model, x: Tensor, y: Tensor) -> Tensor:
            seen.append(x)
            return super().loss(client, model, x, y)

    spec = specification(fed, epochs=1)  # 20 samples in 5 batches of 4
    client = visit(fed, spec)
    Noting().fit(client, spec.initial(0))
    D, outer, there, back = (seen[start::4] for start in range(4))
    assert len(D) == len(outer) == len(there) == client.steps == 5
    assert all(torch.equal(a, b) for a, b in zip(there, back, strict=True))
    for one, other in ((D, outer), (outer, there), (D, there)):
        assert not any(torch.equal(a, b) for a, b in zip(one, other, strict=True))
    for passes in (D, outer, there):
        assert len(torch.cat(passes).unique(dim=0)) == 20, "each is a pass over all samples"


def test_the_model_in_use_is_one_plain_step_from_the_newest_start(fed: Federation) -> None:
    settings: dict[str, Any] = {"batch_size": 100, "momentum": 0.9, "weight_decay": 0.5, "schedule": "exponential:0.5"}
    spec = specification(fed, build=smooth, **settings)
    w = spec.initial(0, independent=True)
    x, y = visit(fed, spec).data.train.batch(slice(None))
    for steps in (1, 3):
        client = visit(fed, spec, round=2, purpose="evaluate")
        model = PerFedAvg(alpha=0.2, adapt_steps=steps).personal(client, Message(weights=w))
        assert isinstance(model, Model)
        ours = model.vector.clone()
        expected = spec.architecture(0).model().load(w)
        for _ in range(steps):
            gradient = expected.differentiate(functional.cross_entropy(expected(x), y))
            expected.load(expected.vector - 0.2 * gradient)
        torch.testing.assert_close(ours, expected.vector, rtol=0, atol=1e-9)


def test_the_trained_point_is_not_adapted_and_evaluation_leaves_no_trace(fed: Federation) -> None:
    spec = specification(fed, rounds=2)
    ours, server, engine = simulate(PerFedAvg(alpha=0.1), fed, spec)
    bare, same, _ = simulate(PerFedAvg(alpha=0.1, adapt_steps=0), fed, spec)
    assert torch.equal(server["weights/0"], same["weights/0"])
    assert ours[-1].test["trained"] == bare[-1].test["trained"]
    assert ours[-1].test["received"] != bare[-1].test["received"]
    assert set(engine.states[0]) == {"own", "joined"}


def test_caveats() -> None:
    assert not PerFedAvg().caveats()
    assert "FedAvg" in PerFedAvg(alpha=0.0).caveats()[0]
    assert "adapted first" in PerFedAvg(adapt_steps=0).caveats()[0]
    assert "delta does nothing" in PerFedAvg(variant="fo", delta=0.1).caveats()[0]
    assert not PerFedAvg(variant="fo").caveats()
    assert not PerFedAvg(delta=0.1).caveats()


@pytest.mark.parametrize("variant", ["hf", "fo"])
@pytest.mark.slow
def test_on_digits_it_is_far_better_than_a_guess(variant: Literal["hf", "fo"]) -> None:
    # with the default delta a jump of the gradient may spoil any round, and the last bits decide which
    accuracy, guess = on_digits(PerFedAvg(variant=variant, delta=0.1), rounds=20)
    assert guess < 0.5
    assert accuracy > 0.8
