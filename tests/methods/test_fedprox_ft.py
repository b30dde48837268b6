"""FedProx-FT: FedProx's rounds, FedAvg-FT's fine-tuning, and the choice of its objective."""

from typing import Any

import pytest
import torch
from conftest import simulate, small_network, specification, visit
from torch import Tensor, nn
from torch.nn import functional

from fedgraft.core.message import Message
from fedgraft.core.method import Method
from fedgraft.core.model import Model
from fedgraft.data.federation import Federation
from fedgraft.methods.fedavg import FedAvg
from fedgraft.methods.fedavg_ft import FedAvgFT
from fedgraft.methods.fedprox import FedProx, pulled
from fedgraft.methods.fedprox_ft import FedProxFT


def tuned(method: FedProxFT, fed: Federation, w: Tensor, **settings: Any) -> Tensor:
    spec = specification(fed, **settings)
    model = method.personal(visit(fed, spec, purpose="evaluate"), Message(weights=w))
    assert isinstance(model, Model)
    return model.vector.clone()


def same_run(a: Method, b: Method, fed: Federation, **settings: Any) -> bool:
    spec = specification(fed, rounds=3, **settings)
    one, server, engine = simulate(a, fed, spec, share=0.75)
    other, twin, plain = simulate(b, fed, spec, share=0.75)
    return (
        torch.equal(server["weights/0"], twin["weights/0"])
        and all(torch.equal(engine.states[c]["own"], plain.states[c]["own"]) for c in engine.states)
        and [this.test for this in one] == [this.test for this in other]
    )


@pytest.mark.parametrize("pull", [False, True])
def test_without_a_pull_it_is_fedavg_ft_bit_for_bit(fed: Federation, pull: bool) -> None:
    assert same_run(FedProxFT(mu=0.0, fine_tune_pull=pull), FedAvgFT(), fed, momentum=0.9)
    assert not same_run(FedProxFT(), FedAvgFT(), fed, momentum=0.9)


def test_without_epochs_it_is_fedprox_bit_for_bit(fed: Federation) -> None:
    assert same_run(FedProxFT(mu=0.3, fine_tune_epochs=0), FedProx(mu=0.3), fed)
    assert not same_run(FedProxFT(mu=0.3), FedProx(mu=0.3), fed)


def test_the_first_step_is_the_same_with_and_without_the_pull(fed: Federation) -> None:
    # at its anchor the pull has no gradient; one epoch of one batch is one step
    w = specification(fed).initial(0, independent=True)
    plain, held = (FedProxFT(mu=5.0, fine_tune_epochs=1, fine_tune_pull=pull) for pull in (False, True))
    assert torch.equal(tuned(plain, fed, w, batch_size=100), tuned(held, fed, w, batch_size=100))
    plain, held = (FedProxFT(mu=5.0, fine_tune_epochs=2, fine_tune_pull=pull) for pull in (False, True))
    near, far = tuned(held, fed, w, batch_size=100), tuned(plain, fed, w, batch_size=100)
    assert float((near - w).norm()) < float((far - w).norm())


def test_two_steps_by_hand(fed: Federation) -> None:
    # v_1 = w - eta g(w), v_2 = v_1 - eta (g(v_1) + mu (v_1 - w)) with eta = 0.05, mu = 2
    spec = specification(fed)
    w, model = spec.initial(0, independent=True), spec.architecture(0).model()
    x, y = fed.clients[0].train.batch(slice(None))

    def g(v: Tensor) -> Tensor:
        model.load(v)
        return model.differentiate(functional.cross_entropy(model(x), y)).clone()

    first = w - 0.05 * g(w)
    expected = first - 0.05 * (g(first) + 2 * (first - w))
    method = FedProxFT(mu=2.0, fine_tune_epochs=2, fine_tune_lr=0.05, fine_tune_pull=True)
    torch.testing.assert_close(tuned(method, fed, w, batch_size=100, momentum=0.0), expected)


def test_one_full_step_of_fedprox_is_one_of_fedavg(fed: Federation) -> None:
    spec = specification(fed, rounds=1, epochs=1, batch_size=100)
    _, prox, _ = simulate(FedProx(mu=7.0), fed, spec)
    _, plain, _ = simulate(FedAvg(), fed, spec)
    assert torch.equal(prox["weights/0"], plain["weights/0"])


def test_gradient_of_the_pull_against_finite_differences(fed: Federation) -> None:
    def build() -> nn.Module:
        return small_network()().double()

    spec = specification(fed, build=build)
    client = visit(fed, spec)
    x, y = client.data.train.batch(slice(None))
    v, w = spec.initial(0), spec.initial(0, independent=True)
    objective = pulled(FedProx(), client, w, 0.7)
    gradient = client.model(v).differentiate(objective(client.model(), x, y)).clone()
    for j in range(0, len(v), 7):
        e = torch.zeros_like(v)
        e[j] = 1e-6
        ahead, behind = (float(objective(client.model(v + side * e), x, y).detach()) for side in (1, -1))
        assert (ahead - behind) / 2e-6 == pytest.approx(float(gradient[j]), rel=1e-5, abs=1e-8)


def test_the_pull_leaves_statistics_alone(fed: Federation) -> None:
    spec = specification(fed, norm=True)
    client = visit(fed, spec)
    w = spec.initial(0)
    w[spec.layout(0).trained :] += 100
    x, y = client.data.train.batch(slice(None))
    model = client.model(spec.initial(0))
    with model.evaluating():
        far, plain = (float(loss(model, x, y)) for loss in (pulled(FedProx(), client, w, 1.0), _cross_entropy))
    assert far == plain


def _cross_entropy(model: Model, x: Tensor, y: Tensor) -> Tensor:
    return functional.cross_entropy(model(x), y)


def test_caveats_name_settings_that_switch_it_off() -> None:
    assert not FedProxFT().caveats()
    assert len(FedProxFT(mu=0.0, fine_tune_epochs=0).caveats()) == 2
    assert "FedAvg-FT" in FedProxFT(mu=0.0).caveats()[0]
