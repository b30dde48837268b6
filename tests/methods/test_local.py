"""Local training: everybody alone, from the same start, going on where it stopped."""

import torch
from conftest import simulate, specification, visit

from fedgraft.core import exchange
from fedgraft.core.message import Message
from fedgraft.data.federation import Federation
from fedgraft.methods.fedavg import FedAvg
from fedgraft.methods.local import Local


def test_a_client_goes_on_from_its_own_weights(fed: Federation) -> None:
    """Three rounds by hand are the engine's, bit for bit."""
    spec = specification(fed, rounds=3)
    _, _, engine = simulate(Local(), fed, spec)
    for client in range(len(fed)):
        state = {"own": spec.initial(client)}
        for number in range(3):
            subject = visit(fed, spec, client, round=number)
            subject.update(state)
            reply = exchange.train(Local(), subject, Message())
            assert len(reply) == 0
            state = dict(subject)
        assert torch.equal(engine.states[client]["own"], state["own"])


def test_all_begin_from_the_same_weights(fed: Federation) -> None:
    """Without training nobody moves; with it, no two clients are alike."""
    resting = specification(fed, epochs=0)
    _, _, engine = simulate(Local(), fed, resting)
    assert all(torch.equal(state["own"], resting.initial(0)) for state in engine.states.values())
    _, _, engine = simulate(Local(), fed, specification(fed))
    assert not torch.equal(engine.states[0]["own"], engine.states[1]["own"])


def test_a_federation_of_one_is_fedavg(fed: Federation) -> None:
    alone = Federation(fed.name, fed.clients[:1], fed.task, fed.partition, fed.seed)
    _, _, local = simulate(Local(), alone, specification(alone))
    _, server, _ = simulate(FedAvg(), alone, specification(alone))
    assert torch.equal(local.states[0]["own"], server["weights/0"])
