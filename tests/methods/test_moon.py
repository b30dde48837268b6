"""MOON: the contrast by hand, its gradient, and what it comes to without strength or history."""

import math

import pytest
import torch
from conftest import on_digits, simulate, slope, small_network, specification, visit
from torch import Tensor
from torch.nn import functional

from fedgraft.core.exchange import train
from fedgraft.core.message import Message
from fedgraft.data.federation import Federation
from fedgraft.methods.fedavg import FedAvg
from fedgraft.methods.moon import MOON, contrast


def test_the_contrast_by_hand() -> None:
    z = torch.tensor([[2.0, 0.0], [0.0, 3.0]])
    z_glob, z_prev = torch.tensor([[1.0, 0.0], [3.0, 4.0]]), torch.tensor([[0.0, 5.0], [-1.0, 0.0]])
    # cosines with z_glob are 1 and 0.8, with z_prev 0 and 0; lengths do not matter
    expected = (math.log(1 + math.exp((0 - 1) / 0.5)) + math.log(1 + math.exp((0 - 0.8) / 0.5))) / 2
    assert float(contrast(z, z_glob, z_prev, 0.5)) == pytest.approx(expected)
    assert float(contrast(z, z_prev, z_glob, 0.5)) > float(contrast(z, z_glob, z_prev, 0.5)), "near w, far from w_prev"
    z_i, glob_i, prev_i = (each.view(2, 1, 2, 1) for each in (z, z_glob, z_prev))
    assert float(contrast(z_i, glob_i, prev_i, 0.5)) == pytest.approx(expected), "features of any shape"


def test_it_is_the_papers_softmax_over_two_models() -> None:
    draw = torch.Generator().manual_seed(0)
    z, g, p = (torch.randn(7, 4, generator=draw, dtype=torch.float64) for _ in range(3))
    logits = torch.stack([functional.cosine_similarity(z, g), functional.cosine_similarity(z, p)], dim=1) / 0.3
    paper = functional.cross_entropy(logits, torch.zeros(7, dtype=torch.int64))
    torch.testing.assert_close(contrast(z, g, p, 0.3), paper, rtol=0, atol=1e-12)
    at = z.clone().requires_grad_()
    (gradient,) = torch.autograd.grad(contrast(at, g, p, 0.3), at)
    for entry in (0, 9, 27):
        expected = slope(lambda v: float(contrast(v, g, p, 0.3)), z, entry)
        assert float(gradient.view(-1)[entry]) == pytest.approx(expected, rel=1e-6, abs=1e-9)


def test_a_round_against_a_few_lines_of_its_own(fed: Federation) -> None:
    # full batches and plain SGD, three steps; the models that are compared with stay as they are
    spec = specification(fed, build=lambda: small_network()().double(), batch_size=100, epochs=3, momentum=0.0, lr=0.2)
    w, prev = spec.initial(0), spec.initial(0, independent=True)
    client = visit(fed, spec)
    client["own"] = prev
    ours = MOON(mu=2.0, tau=0.4).fit(client, w.clone())

    x, y = client.data.train.batch(slice(None))

    def features(weights: Tensor) -> Tensor:
        return torch.relu(x @ weights[:30].view(5, 6).T + weights[30:35])

    v = w.clone().requires_grad_()
    for _ in range(3):
        z = features(v)
        near, far = (functional.cosine_similarity(z, features(each)).exp() for each in (w, prev))
        near, far = near ** (1 / 0.4), far ** (1 / 0.4)
        loss = functional.cross_entropy(z @ v[35:50].view(3, 5).T + v[50:], y) - 2 * (near / (near + far)).log().mean()
        (gradient,) = torch.autograd.grad(loss, v)
        v = (v - 0.2 * gradient).detach().requires_grad_()
    torch.testing.assert_close(ours, v.detach(), rtol=0, atol=1e-9)
    assert not torch.allclose(ours, FedAvg().fit(visit(fed, spec), w.clone()), atol=1e-4), "the contrast has to count"


def test_the_models_that_are_compared_with_are_in_evaluation_mode(fed: Federation) -> None:
    # one step on everything: BatchNorm takes the batch's statistics in v, and those that they have in w and w_prev
    spec = specification(
        fed, build=lambda: small_network(norm=True)().double(), batch_size=100, epochs=1, momentum=0.0, lr=0.2
    )
    w, prev = spec.initial(0), spec.initial(0, independent=True)
    client = visit(fed, spec)
    client["own"] = prev
    ours = MOON(mu=2.0).fit(client, w.clone())
    assert torch.equal(client.model(role="received").vector, w), "their statistics do not drift"
    assert torch.equal(client.model(role="previous").vector, prev)

    (x, y), model = client.data.train.batch(slice(None)), spec.architecture(0).model()
    with model.evaluating():
        z_glob, z_prev = (model.load(weights).score(x)[0].clone() for weights in (w, prev))
    z, logits = model.load(w).train_on(20).score(x)
    loss = functional.cross_entropy(logits, y) + 2 * contrast(z, z_glob, z_prev, 0.5)
    gradient = model.differentiate(loss)
    torch.testing.assert_close(ours[:63], w[:63] - 0.2 * gradient, rtol=0, atol=1e-9)


@pytest.mark.parametrize("norm", [False, True], ids=["plain", "batchnorm"])
def test_without_strength_it_is_fedavg_bit_for_bit(fed: Federation, norm: bool) -> None:
    spec = specification(fed, rounds=3, norm=norm, weight_decay=0.01)
    ours, server, engine = simulate(MOON(mu=0.0), fed, spec, share=0.75)
    fedavg, expected, plain = simulate(FedAvg(), fed, spec, share=0.75)
    assert torch.equal(server["weights/0"], expected["weights/0"])
    for client in range(len(fed)):
        assert torch.equal(engine.states[client]["own"], plain.states[client]["own"])
    assert [this.test for this in ours] == [this.test for this in fedavg]
    assert MOON(mu=0.0).caveats()
    assert not MOON().caveats()


def test_in_the_first_round_there_is_nothing_to_contrast(fed: Federation) -> None:
    spec = specification(fed, rounds=1)
    _, ours, _ = simulate(MOON(mu=5.0), fed, spec)
    _, fedavg, _ = simulate(FedAvg(), fed, spec)
    torch.testing.assert_close(ours["weights/0"], fedavg["weights/0"])


def test_the_previous_model_is_that_of_the_clients_last_training(fed: Federation) -> None:
    spec = specification(fed, rounds=2)
    w = spec.initial(0, independent=True)
    fresh, veteran = visit(fed, spec, round=1), visit(fed, spec, round=1)
    train(MOON(), veteran, Message(weights=spec.initial(0)))
    other = veteran.own
    ours, theirs = MOON().fit(veteran, w.clone()), MOON().fit(fresh, w.clone())
    assert not torch.equal(ours, theirs)
    fresh["own"] = other
    assert torch.equal(MOON().fit(fresh, w.clone()), ours), "nothing else is remembered"


def test_a_stronger_contrast_keeps_features_nearer_to_the_received_ones(fed: Federation) -> None:
    spec = specification(fed, epochs=4)
    w, near = spec.initial(0, independent=True), []
    x, _ = visit(fed, spec).data.train.batch(slice(None))
    for mu in (0.0, 10.0):
        client = visit(fed, spec)
        trained = MOON(mu=mu).fit(client, w.clone())
        with client.model(trained).evaluating() as model:
            z = model.score(x)[0]
        with client.model(w).evaluating() as model:
            near.append(float(torch.cosine_similarity(z, model.score(x)[0]).mean()))
    assert near[1] > near[0]


@pytest.mark.slow
def test_on_digits_it_is_far_better_than_a_guess() -> None:
    accuracy, guess = on_digits(MOON())
    assert guess < 0.5
    assert accuracy > 0.8
