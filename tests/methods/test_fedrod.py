"""FedRoD: two losses and two heads, one of which nobody else ever sees."""

from dataclasses import replace
from typing import Any, Literal

import pytest
import torch
from conftest import on_digits, simulate, small_network, specification, visit
from torch.nn import functional

from fedgraft.core.exchange import train
from fedgraft.core.message import Message
from fedgraft.core.method import Spec
from fedgraft.core.model import Architecture
from fedgraft.data.federation import Federation
from fedgraft.methods.fedavg import FedAvg
from fedgraft.methods.fedrod import FedRoD

FULL: dict[str, Any] = {"batch_size": 100, "epochs": 3, "momentum": 0.5, "lr": 0.2}


def double() -> torch.nn.Module:
    return small_network()().double()


def test_a_round_against_a_few_lines_of_its_own(fed: Federation) -> None:
    spec = specification(fed, build=double, **FULL)
    client, w = visit(fed, spec), spec.initial(0)
    method = FedRoD(gamma=0.5, start="head")
    method.join(client)
    ours = method.fit(client, w.clone())

    x, y = client.data.train.batch(slice(None))
    n = torch.tensor([0.0, 10.0, 10.0], dtype=torch.float64)  # client 0 lacks class 0
    v, phi = w.clone(), w[35:].clone()
    velocity_v, velocity_phi = torch.zeros_like(v), torch.zeros_like(phi)
    for _ in range(3):
        v.requires_grad_()
        phi.requires_grad_()
        z = torch.relu(x @ v[:30].view(5, 6).T + v[30:35])
        generic = z @ v[35:50].view(3, 5).T + v[50:]
        share = n**0.5 * generic.exp()
        balanced = -(share[torch.arange(len(y)), y] / share.sum(1)).log().mean()
        personal = generic.detach() + z.detach() @ phi[:15].view(3, 5).T + phi[15:]
        (of_v,) = torch.autograd.grad(balanced, v)
        (of_phi,) = torch.autograd.grad(functional.cross_entropy(personal, y), phi)
        velocity_v, velocity_phi = 0.5 * velocity_v + of_v, 0.5 * velocity_phi + of_phi
        v, phi = (v - 0.2 * velocity_v).detach(), (phi - 0.2 * velocity_phi).detach()
    torch.testing.assert_close(ours, v, rtol=0, atol=1e-9)
    torch.testing.assert_close(client["phi"], phi, rtol=0, atol=1e-9)


@pytest.mark.parametrize("norm", [False, True], ids=["plain", "batchnorm"])
@pytest.mark.parametrize("start", ["zero", "head"])
def test_on_the_plain_loss_the_generic_model_is_fedavgs_bit_for_bit(
    fed: Federation, start: Literal["zero", "head"], norm: bool
) -> None:
    spec = specification(fed, rounds=3, norm=norm, optimizer_state="kept")
    _, server, engine = simulate(FedRoD(gamma=0.0, start=start), fed, spec, share=0.75)
    _, expected, plain = simulate(FedAvg(), fed, spec, share=0.75)
    assert torch.equal(server["weights/0"], expected["weights/0"])
    for client in range(len(fed)):
        assert torch.equal(engine.states[client]["own"], plain.states[client]["own"])
    assert FedRoD(gamma=0.0).caveats()
    assert not FedRoD().caveats()


def forgetful(fed: Federation, rate: float = 0.5) -> Spec:
    """A run of a network with dropout in its head."""

    def build() -> torch.nn.Module:
        top = torch.nn.Sequential(torch.nn.Dropout(rate), torch.nn.Linear(5, 3))
        return torch.nn.Sequential(torch.nn.Linear(6, 5), top)

    return replace(specification(fed, rounds=2), architectures=(Architecture(build, fed.example, head="1"),))


def test_dropout_of_the_private_head_leaves_the_generic_model_alone(fed: Federation) -> None:
    _, ours, _ = simulate(FedRoD(gamma=0.0), fed, forgetful(fed))
    _, fedavg, _ = simulate(FedAvg(), fed, forgetful(fed))
    assert torch.equal(ours["weights/0"], fedavg["weights/0"])


def test_the_private_head_trains_in_training_mode_whatever_was_tested_before(fed: Federation) -> None:
    # all features are dropped: a head that sees nothing learns its biases alone
    spec, method = forgetful(fed, 1.0), FedRoD()
    client = visit(fed, spec)
    method.join(client)
    method.personal(client, Message(weights=spec.initial(0)))
    method.fit(client, spec.initial(0))
    assert not client["phi"][:15].any()
    assert client["phi"][15:].any()


def test_nothing_is_dropped_from_the_model_in_use(fed: Federation) -> None:
    spec, method = forgetful(fed), FedRoD()
    client, x = visit(fed, spec), fed.clients[0].test.inputs
    train(method, client, Message(weights=spec.initial(0)))
    w, phi = client.own, client["phi"]
    predict = method.personal(client, Message(weights=spec.initial(0)), w)
    with client.model().evaluating():
        ours = predict(x)
    z, both = x @ w[:30].view(5, 6).T + w[30:35], w[35:] + phi
    torch.testing.assert_close(ours, z @ both[:15].view(3, 5).T + both[15:])


def test_the_private_head_starts_at_zero_with_which_a_client_has_the_generic_model(fed: Federation) -> None:
    spec = specification(fed)
    client, method = visit(fed, spec), FedRoD()
    method.join(client)
    assert client["phi"].tolist() == [0] * 18
    w = spec.initial(0, independent=True)
    x, _ = client.data.test.batch(slice(None))
    predict = method.personal(client, Message(weights=w))
    with client.model().evaluating():
        assert torch.equal(predict(x), client.model()(x))


def test_a_clients_own_model_adds_both_heads_at_both_points(fed: Federation) -> None:
    spec = specification(fed)
    client, method = visit(fed, spec), FedRoD()
    train(method, client, Message(weights=spec.initial(0)))
    newest = spec.initial(0, independent=True)
    x, _ = client.data.test.batch(slice(None))
    phi = client["phi"]
    assert bool(phi.any())
    for weights, trained in ((newest, None), (client.own, client.own)):
        predict = method.personal(client.fork(), Message(weights=newest), trained)
        with client.model().evaluating():
            ours = predict(x)
        z = torch.relu(x @ weights[:30].view(5, 6).T + weights[30:35])
        generic = z @ weights[35:50].view(3, 5).T + weights[50:]
        torch.testing.assert_close(ours, generic + z @ phi[:15].view(3, 5).T + phi[15:])


def test_the_private_head_never_leaves_and_absent_clients_keep_theirs(fed: Federation) -> None:
    _, _, before = simulate(FedRoD(), fed, specification(fed, rounds=2), share=0.75)
    done, server, after = simulate(FedRoD(), fed, specification(fed, rounds=3), share=0.75)
    assert set(server) == {"weights/0"}
    assert server["weights/0"].numel() == 53
    for client in range(4):
        same = torch.equal(before.states[client].get("phi", torch.zeros(18)), after.states[client]["phi"])
        assert same == (client not in done[-1].participants)
    assert not torch.equal(after.states[0]["phi"], after.states[1]["phi"])


def test_classes_that_a_client_lacks_are_not_pushed_down(fed: Federation) -> None:
    # plain training on classes 1 and 2 lowers the bias of class 0; the balanced loss does not touch it
    spec = specification(fed, epochs=3)
    w, bias = spec.initial(0), spec.layout(0).trained - 3
    for gamma, touched in ((1.0, False), (0.0, True)):
        client, method = visit(fed, spec), FedRoD(gamma=gamma)
        method.join(client)
        assert (float(method.fit(client, w.clone())[bias]) != float(w[bias])) == touched


def test_a_network_with_more_outputs_than_classes_is_served(fed: Federation) -> None:
    def build() -> torch.nn.Module:
        return torch.nn.Sequential(torch.nn.Linear(6, 5), torch.nn.ReLU(), torch.nn.Linear(5, 7))

    done, _, _ = simulate(FedRoD(), fed, specification(fed, build=build))
    assert not any(this.refused for this in done)
    assert done[-1].test["received"].pooled > 0.4


@pytest.mark.slow
def test_on_digits_it_is_far_better_than_a_guess() -> None:
    accuracy, guess = on_digits(FedRoD())
    assert guess < 0.5
    assert accuracy > 0.9
