"""Ditto: FedAvg untouched, a personal twin beside it, and the pull between them worked out by hand."""

from dataclasses import dataclass

import pytest
import torch
from conftest import simulate, specification, visit
from torch import Tensor
from torch.nn import functional

from fedgraft.base.errors import UserError
from fedgraft.core.client import Client
from fedgraft.core.exchange import contact, train
from fedgraft.core.message import Message
from fedgraft.core.model import Model
from fedgraft.data.federation import Federation
from fedgraft.methods.ditto import Ditto
from fedgraft.methods.fedavg import FedAvg
from fedgraft.methods.local import Local


@pytest.mark.parametrize("lam", [0.0, 1.0, 5.0])
@pytest.mark.parametrize("optimizer_state", ["fresh", "kept"])
def test_the_global_model_is_fedavgs_bit_for_bit(fed: Federation, lam: float, optimizer_state: str) -> None:
    spec = specification(fed, rounds=3, norm=True, lr=0.05, optimizer_state=optimizer_state)
    done, server, engine = simulate(Ditto(lam=lam), fed, spec, share=0.75)
    plain, expected, fedavg = simulate(FedAvg(), fed, spec, share=0.75)
    assert torch.equal(server["weights/0"], expected["weights/0"])
    for client in range(len(fed)):
        assert torch.equal(engine.states[client]["own"], fedavg.states[client]["own"])
    assert [(t.bytes_up, t.bytes_down) for t in done] == [(t.bytes_up, t.bytes_down) for t in plain], "v stays at home"


@pytest.mark.parametrize("optimizer_state", ["fresh", "kept"])
def test_without_a_pull_the_personal_model_is_local_training_bit_for_bit(fed: Federation, optimizer_state: str) -> None:
    spec = specification(fed, rounds=3, momentum=0.9, optimizer_state=optimizer_state)
    ours, _, engine = simulate(Ditto(lam=0.0), fed, spec, share=0.75)
    alone, _, local = simulate(Local(), fed, spec, share=0.75)
    for client in range(len(fed)):
        assert torch.equal(engine.states[client].get("v", spec.initial(client)), local.states[client]["own"])
    assert ours[-1].test == alone[-1].test, "and it is the one that is tested, at both points"


def test_both_branches_see_the_same_batches(fed: Federation) -> None:
    # from the same start and without a pull the two branches are one
    spec = specification(fed, rounds=1, momentum=0.9)
    _, _, engine = simulate(Ditto(lam=0.0), fed, spec)
    for state in engine.states.values():
        assert torch.equal(state["v"], state["own"])


@dataclass(frozen=True)
class Flat(Ditto):
    """No data gradient: only the pull acts."""

    def loss(self, client: Client, model: Model, x: Tensor, y: Tensor) -> Tensor:
        return 0 * model(x).sum()


def test_a_pull_of_one_over_the_rate_lands_on_the_anchor(fed: Federation) -> None:
    # v - eta lam (v - w) = w
    spec = specification(fed, epochs=1, batch_size=100, momentum=0.0)
    client = visit(fed, spec)
    method, w = Flat(lam=10.0), spec.initial(0, independent=True)
    train(method, client, Message(weights=w))
    torch.testing.assert_close(client["v"], w)
    # and half of it goes half of the way
    client = visit(fed, spec)
    train(Flat(lam=5.0), client, Message(weights=w))
    torch.testing.assert_close(client["v"], (w + spec.initial(0)) / 2)


def test_personal_steps_by_hand_pulled_to_the_received_model(fed: Federation) -> None:
    # v <- v - eta_p (g(v) + lam (v - w)), three times with eta_p = 0.05, lam = 2; w is received, not what was trained
    spec = specification(fed, epochs=2, batch_size=100, momentum=0.0)
    client, w = visit(fed, spec), spec.initial(0, independent=True)
    model = spec.architecture(0).model()
    x, y = fed.clients[0].train.batch(slice(None))
    v = spec.initial(0)
    for _ in range(3):
        gradient = model.load(v).differentiate(functional.cross_entropy(model(x), y)).clone()
        v = v - 0.05 * (gradient + 2 * (v - w))
    method = Ditto(lam=2.0, personal_epochs=3, personal_lr=0.05)
    reply = train(method, client, Message(weights=w))
    torch.testing.assert_close(client["v"], v)
    assert not torch.equal(reply["weights"], client["v"])
    # the next round goes on from v, not from the new message
    again = visit(fed, spec, round=1)
    contact(method, again)
    again["v"] = v
    train(Ditto(lam=2.0, personal_epochs=0), again, Message(weights=w))
    assert torch.equal(again["v"], v)


def test_the_personal_rate_decays_with_the_runs(fed: Federation) -> None:
    # in round 2 at 0.3 * 0.5^2 from v = w the first step is one of local training
    spec = specification(fed, epochs=1, batch_size=100, momentum=0.0, schedule="exponential:0.5")
    client, w = visit(fed, spec, round=2), spec.initial(0)
    train(Ditto(personal_lr=0.3), client, Message(weights=w))
    model = spec.architecture(0).model().load(w)
    x, y = fed.clients[0].train.batch(slice(None))
    gradient = model.differentiate(functional.cross_entropy(model(x), y))
    torch.testing.assert_close(client["v"], w - 0.075 * gradient)


def test_a_stronger_pull_keeps_the_twin_nearer(fed: Federation) -> None:
    spec = specification(fed, epochs=5, momentum=0.0, lr=0.05)
    distances = []
    for lam in (0.0, 0.1, 1.0, 10.0):
        client, w = visit(fed, spec), spec.initial(0)
        train(Ditto(lam=lam), client, Message(weights=w))
        distances.append(float((client["v"] - w).norm()))
    assert distances == sorted(distances, reverse=True)
    assert distances[-1] < distances[0] / 4


def test_both_points_are_the_personal_model(fed: Federation) -> None:
    spec = specification(fed)
    client = visit(fed, spec, purpose="evaluate")
    contact(Ditto(), client)
    client["v"] = torch.full_like(client.own, 3.0)
    message = Message(weights=torch.zeros_like(client.own))
    for trained in (None, client.own):
        model = Ditto().personal(client, message, trained)
        assert isinstance(model, Model)
        assert torch.equal(model.vector, client["v"])


def test_an_absent_client_keeps_its_twin(fed: Federation) -> None:
    spec = specification(fed, rounds=3)
    done, _, long = simulate(Ditto(), fed, spec, share=0.5)
    _, _, short = simulate(Ditto(), fed, specification(fed, rounds=2), share=0.5)
    absent = set(range(len(fed))) - set(done[2].participants)
    assert absent
    for client in absent:
        assert short.states[client].keys() == long.states[client].keys()
        for name, value in short.states[client].items():
            assert torch.equal(value, long.states[client][name])


def test_statistics_of_the_twin_are_its_own(fed: Federation) -> None:
    spec = specification(fed, rounds=2, norm=True, buffers="average")
    _, server, engine = simulate(Ditto(), fed, spec)
    trained = spec.layout(0).trained
    statistics = [state["v"][trained:] for state in engine.states.values()]
    assert all(not torch.equal(own, server["weights/0"][trained:]) for own in statistics)
    assert not torch.equal(statistics[0], statistics[1])


def test_settings_are_checked_and_caveats_given() -> None:
    with pytest.raises(UserError, match=r"personal_epochs is a whole number, not 2\.5"):
        Ditto(personal_epochs=2.5)  # type: ignore[arg-type]
    assert not Ditto().caveats()
    assert "local training" in Ditto(lam=0.0).caveats()[0]
    assert "never moves" in Ditto(personal_epochs=0).caveats()[0]
