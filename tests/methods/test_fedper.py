"""FedPer: the extractor is the mean of the uploads, the head never leaves its client."""

import torch
from conftest import simulate, specification, visit

from fedgraft.core.message import Message
from fedgraft.core.method import average
from fedgraft.data.federation import Federation
from fedgraft.methods.fedper import FedPer


def test_the_extractor_travels_and_the_head_stays(fed: Federation) -> None:
    spec = specification(fed, rounds=1)
    _, server, engine = simulate(FedPer(), fed, spec)
    extractor, head = spec.layout(0).span("extractor"), spec.layout(0).span("head")
    own = {client: state["own"] for client, state in engine.states.items()}
    uploads = {client: Message(weights=weights[extractor]) for client, weights in own.items()}
    assert torch.equal(server["weights/0"], average(spec, uploads))
    assert server["weights/0"].numel() == extractor.stop
    assert not torch.equal(own[0][head], own[1][head])


def test_a_client_joins_the_received_extractor_with_its_own_head(fed: Federation) -> None:
    spec = specification(fed)
    client = visit(fed, spec)
    received = torch.full((spec.layout(0).span("extractor").stop,), 0.25)
    weights = FedPer().assemble(client, Message(weights=received))
    assert torch.equal(weights[: len(received)], received)
    assert torch.equal(weights[len(received) :], client.own[len(received) :])
