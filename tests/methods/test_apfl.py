"""APFL: one step on paper, both derivatives, and a shared branch that is FedAvg to the last bit."""

from dataclasses import dataclass
from typing import Any

import pytest
import torch
from conftest import CLASSES, simulate, slope, small_network, specification, visit
from torch import Tensor, nn
from torch.nn import functional

from fedgraft.core.client import Client
from fedgraft.core.message import Message
from fedgraft.core.method import Spec
from fedgraft.core.model import Model
from fedgraft.data.federation import Federation
from fedgraft.methods.apfl import APFL
from fedgraft.methods.fedavg import FedAvg
from fedgraft.methods.local import Local


@dataclass(frozen=True)
class Bowl(APFL):
    """f(w) = 1/2 ||w - 3||^2 whatever the batch."""

    def loss(self, client: Client, model: Model, x: Tensor, y: Tensor) -> Tensor:
        return (model.weights - 3).square().sum() / 2


def placed(fed: Federation, spec: Spec, v: float, alpha: float) -> Client:
    client = visit(fed, spec)
    client["v"], client["alpha"] = torch.full((53,), v), torch.tensor(alpha)
    return client


def one_step(**settings: Any) -> dict[str, Any]:
    return {"momentum": 0.0, "epochs": 1, "batch_size": 100} | settings


def test_one_step_by_hand(fed: Federation) -> None:
    # w = 0, v = 2, alpha = 1/2 in each of 53 weights, learning rate .1: w = 0 + .1 3 = .3
    # sequential: m = 1.15, grad f(m) = -1.85, v = 2 + .1 1/2 1.85, alpha = 1/2 + .001 * 53 * (2 - .3) * 1.85
    # simultaneous: m = 1, grad f(m) = -2, v = 2 + .1 1/2 2, alpha = 1/2 + .001 * 53 * (2 - 0) * 2
    for order, v, alpha in (("sequential", 2.0925, 0.666685), ("simultaneous", 2.1, 0.712)):
        client = placed(fed, specification(fed, **one_step()), v=2.0, alpha=0.5)
        w = Bowl(eta_alpha=0.001, order=order).fit(client, torch.zeros(53))  # type: ignore[arg-type]
        assert w.tolist() == pytest.approx([0.3] * 53)
        assert client["v"].tolist() == pytest.approx([v] * 53)
        assert float(client["alpha"]) == pytest.approx(alpha)


def test_when_alpha_learns(fed: Federation) -> None:
    # second step of "step": w = .57, v = 2.0925, alpha = .666685, m = alpha v + (1 - alpha) w, slope 53 (v - w) (m - 3)
    spec = specification(fed, **one_step(batch_size=10))  # 20 samples: two steps
    first = 0.666685
    second = first - 0.001 * 53 * (2.0925 - 0.57) * (first * 2.0925 + (1 - first) * 0.57 - 3)
    for adapt, expected in (("round", first), ("step", second), ("never", 0.5)):
        client = placed(fed, spec, v=2.0, alpha=0.5)
        Bowl(eta_alpha=0.001, adapt=adapt).fit(client, torch.zeros(53))  # type: ignore[arg-type]
        assert float(client["alpha"]) == pytest.approx(expected)
        Bowl(eta_alpha=0.001, adapt=adapt).fit(client, torch.zeros(53))  # type: ignore[arg-type]
        assert (float(client["alpha"]) == pytest.approx(expected)) == (adapt == "never"), "once more in the next round"


@pytest.mark.parametrize(("v", "expected"), [(2.0, 1.0), (-2.0, 0.0)])
def test_alpha_is_clipped(fed: Federation, v: float, expected: float) -> None:
    client = placed(fed, specification(fed, **one_step()), v=v, alpha=0.5)
    Bowl(eta_alpha=10.0).fit(client, torch.zeros(53))
    assert float(client["alpha"]) == expected


def test_alpha_s_step_size_is_the_run_s_unless_given(fed: Federation) -> None:
    client = placed(fed, specification(fed, **one_step(lr=0.002, schedule="exponential:0.5")), v=2.0, alpha=0.5)
    client.round = 1
    Bowl(order="simultaneous").fit(client, torch.zeros(53))
    assert float(client["alpha"]) == pytest.approx(0.712)


@pytest.mark.parametrize("order", ["sequential", "simultaneous"])
def test_both_derivatives(fed: Federation, order: Any) -> None:
    spec = specification(fed, build=lambda: small_network()().double(), **one_step())
    w, v, alpha = spec.initial(0), spec.initial(0, independent=True), torch.tensor(0.3, dtype=torch.float64)
    client = visit(fed, spec)
    client["v"], client["alpha"] = v, alpha
    x, y = client.data.train.batch(slice(None))
    stepped = APFL(eta_alpha=0.01, order=order).fit(client, w.clone())
    w = stepped if order == "sequential" else w
    model = spec.architectures[0].model()

    def f(v: Tensor, alpha: Tensor) -> float:
        with model.load(alpha * v + (1 - alpha) * w).evaluating():
            return float(functional.cross_entropy(model(x), y))

    assert float(alpha - client["alpha"]) / 0.01 == pytest.approx(slope(lambda a: f(v, a), alpha, 0), rel=1e-5)
    for entry in (0, 17, 33, 40, 52):
        expected = slope(lambda at: f(at, alpha), v, entry)
        assert float((v - client["v"])[entry]) / 0.1 == pytest.approx(expected, rel=1e-5, abs=1e-9)


def dropping() -> nn.Module:
    return nn.Sequential(nn.Linear(6, 5), nn.BatchNorm1d(5), nn.ReLU(), nn.Dropout(0.5), nn.Linear(5, CLASSES))


@pytest.mark.parametrize("settings", [{}, {"optimizer_state": "kept", "weight_decay": 0.01, "clip_norm": 0.5}])
@pytest.mark.parametrize("build", [None, dropping], ids=["plain", "dropout"])
@pytest.mark.parametrize(("alpha", "adapt"), [(0.0, "never"), (0.4, "step"), (1.0, "round")])
def test_the_global_model_is_fedavg_s_bit_for_bit(
    fed: Federation, alpha: float, adapt: Any, build: Any, settings: dict[str, Any]
) -> None:
    spec = specification(fed, rounds=2, build=build, **settings)
    _, ours, mine = simulate(APFL(alpha=alpha, adapt=adapt), fed, spec, share=0.75)
    _, theirs, other = simulate(FedAvg(), fed, spec, share=0.75)
    assert torch.equal(ours["weights/0"], theirs["weights/0"])
    for client in range(4):
        assert all(torch.equal(tensor, mine.states[client][name]) for name, tensor in other.states[client].items())


def test_all_weight_on_the_global_model_is_fedavg(fed: Federation) -> None:
    spec = specification(fed, norm=True)
    done, _, engine = simulate(APFL(alpha=0.0, adapt="never"), fed, spec)
    average, *_ = simulate(FedAvg(), fed, spec)
    assert done[-1].test == average[-1].test
    for state in engine.states.values():
        assert torch.equal(state["v"][: spec.layout(0).trained], spec.initial(0)[: spec.layout(0).trained])


@pytest.mark.parametrize("buffers", ["average", "local", "keep"])
@pytest.mark.parametrize("optimizer_state", ["fresh", "kept"])
def test_all_weight_on_the_private_model_is_local_training_bit_for_bit(
    fed: Federation, optimizer_state: str, buffers: str
) -> None:
    spec = specification(
        fed, norm=True, optimizer_state=optimizer_state, weight_decay=0.01, clip_norm=1.0, buffers=buffers
    )
    done, _, engine = simulate(APFL(alpha=1.0, adapt="never"), fed, spec, share=0.75)
    alone, _, other = simulate(Local(), fed, spec, share=0.75)
    for client in range(4):
        assert torch.equal(engine.states[client].get("v", spec.initial(client)), other.states[client]["own"])
    assert done[-1].test == alone[-1].test


def test_the_tested_model_is_the_mixture_with_the_newest_or_the_trained_one(fed: Federation) -> None:
    spec = specification(fed)
    done, server, engine = simulate(APFL(adapt="step"), fed, spec)
    live = spec.architectures[0].model()
    for point in ("received", "trained"):
        for client, data in enumerate(fed.clients):
            state = engine.states[client]
            w = server["weights/0"] if point == "received" else state["own"]
            x, y = data.test.batch(slice(None))
            with live.load(state["alpha"] * state["v"] + (1 - state["alpha"]) * w).evaluating():
                right = float((live(x).argmax(1) == y).float().mean())
            assert done[-1].test[point].per_client[client] == pytest.approx(right)


def test_statistics_are_mixed_too(fed: Federation) -> None:
    client, spec = visit(fed, specification(fed, norm=True)), specification(fed, norm=True)
    method = APFL(alpha=0.25)
    method.join(client)
    client["v"] = torch.full((spec.layout(0).size,), 4.0)
    method.personal(client, Message(weights=torch.zeros(spec.layout(0).size)))
    assert torch.equal(client.model().vector, torch.ones(spec.layout(0).size))


def test_every_client_has_its_own_alpha_and_keeps_it_while_absent(fed: Federation) -> None:
    done, _, engine = simulate(APFL(adapt="step", eta_alpha=0.01), fed, specification(fed, rounds=4), share=0.75)
    before, after = done[-2], done[-1]
    assert len({float(a) for a in after.observed["alpha"]}) == 4
    for client in range(4):
        same = torch.equal(before.observed["alpha"][client], after.observed["alpha"][client])
        assert same == (client not in after.participants)
        assert torch.equal(engine.states[client]["alpha"], after.observed["alpha"][client])


def test_caveats() -> None:
    assert not APFL().caveats()
    assert any("FedAvg" in sentence for sentence in APFL(alpha=0).caveats())
    assert any("local" in sentence for sentence in APFL(alpha=1, adapt="never").caveats())
    assert any("never moves" in sentence for sentence in APFL(eta_alpha=0.0).caveats())
