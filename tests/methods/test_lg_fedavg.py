"""LG-FedAvg: who has which extractor when, what travels in which round, and the heads' mean."""

from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch
from conftest import simulate, small_network, specification, visit
from torch import Tensor, nn

from fedgraft.core.client import Client
from fedgraft.core.exchange import train
from fedgraft.core.message import Message
from fedgraft.core.model import Architecture, Model
from fedgraft.data.federation import Federation
from fedgraft.methods.fedavg import FedAvg
from fedgraft.methods.fedper import FedPer
from fedgraft.methods.lg_fedavg import LGFedAvg

BODY, HEAD, WHOLE = 35, 18, 53  # 6 * 5 + 5 and 5 * 3 + 3 parameters


def test_only_heads_travel_the_complement_of_fedper(fed: Federation) -> None:
    spec = specification(fed, rounds=2)
    ours, server, engine = simulate(LGFedAvg(), fed, spec)
    assert {(this.bytes_up, this.bytes_down) for this in ours} == {(4 * 4 * HEAD, 4 * 4 * HEAD)}
    per, _, _ = simulate(FedPer(), fed, spec)
    whole, _, _ = simulate(FedAvg(), fed, spec)
    assert ours[0].bytes_up + per[0].bytes_up == whole[0].bytes_up
    start, bodies = spec.initial(0), [state["own"][:BODY] for state in engine.states.values()]
    assert torch.equal(server["weights/0"][:BODY], start[:BODY])
    assert not torch.equal(server["weights/0"][BODY:], start[BODY:])
    for i, body in enumerate(bodies):
        assert all(not torch.equal(body, other) for other in [start[:BODY], *bodies[i + 1 :]])


@pytest.mark.parametrize("weighting", ["samples", "uniform"])
def test_the_mean_of_heads_by_hand(fed: Federation, weighting: Any) -> None:
    # heads of 1 and 4 from 20 and 13 samples: (20 + 52) / 33, or 2.5
    method = LGFedAvg(weighting=weighting)
    server = method.setup(specification(fed))
    before = server["weights/0"].clone()
    method.merge(server, {c: Message(weights=torch.full((HEAD,), v)) for c, v in ((0, 1.0), (1, 4.0))})
    expected = 72 / 33 if weighting == "samples" else 2.5
    assert server["weights/0"][BODY:].tolist() == pytest.approx([expected] * HEAD)
    assert torch.equal(server["weights/0"][:BODY], before[:BODY])


def test_received_is_the_own_extractor_under_the_newest_head(fed: Federation) -> None:
    spec = specification(fed)
    client = visit(fed, spec, purpose="evaluate")
    client["own"] = spec.initial(0, independent=True)  # what its last training left
    model = LGFedAvg().personal(client, Message(head=torch.full((HEAD,), 9.0)))
    assert isinstance(model, Model)
    assert torch.equal(model.vector[:BODY], client.own[:BODY])
    assert model.vector[BODY:].tolist() == [9.0] * HEAD


def test_both_parts_are_trained_together(fed: Federation) -> None:
    client = visit(fed, specification(fed))
    start = client.own.clone()
    reply = train(LGFedAvg(), client, Message(head=start[BODY:]))
    assert torch.equal(reply["weights"], client.own[BODY:])
    assert not torch.equal(client.own[:BODY], start[:BODY])
    assert not torch.equal(client.own[BODY:], start[BODY:])


@pytest.mark.parametrize("warm_rounds", [3, 5])
@pytest.mark.parametrize("buffers", ["average", "local"])
def test_with_nothing_but_warm_rounds_it_is_fedavg_bit_for_bit(fed: Federation, warm_rounds: int, buffers: str) -> None:
    spec = specification(fed, rounds=3, norm=True, buffers=buffers)
    ours, server, engine = simulate(LGFedAvg(warm_rounds=warm_rounds), fed, spec, share=0.5)
    fedavg, expected, plain = simulate(FedAvg(), fed, spec, share=0.5)
    assert torch.equal(server["weights/0"], expected["weights/0"])
    for client in range(len(fed)):
        assert torch.equal(engine.states[client]["own"], plain.states[client]["own"])
    for this, other in zip(ours, fedavg, strict=True):
        assert this.test == other.test
        assert (this.bytes_up, this.bytes_down) == (other.bytes_up, other.bytes_down)


def test_what_travels_in_which_round(fed: Federation) -> None:
    # FedAvg, then the model goes down once more while heads go up, then heads alone
    done, _, _ = simulate(LGFedAvg(warm_rounds=1), fed, specification(fed, rounds=3))
    floats = [(this.bytes_down // 16, this.bytes_up // 16) for this in done]
    assert floats == [(WHOLE, WHOLE), (WHOLE, HEAD), (HEAD, HEAD)]


def test_each_client_takes_over_fedavgs_extractor_at_its_first_contact(fed: Federation) -> None:
    warm, method = 2, LGFedAvg(warm_rounds=2)
    spec = specification(fed, rounds=6)
    done, server, engine = simulate(method, fed, spec, share=0.25)
    _, fedavg, _ = simulate(FedAvg(), fed, replace(spec, rounds=warm), share=0.25)
    assert torch.equal(server["weights/0"][:BODY], fedavg["weights/0"][:BODY]), "the server keeps it"
    parted: set[int] = set()
    for this in done:
        expected = sum(HEAD if client in parted else WHOLE for client in this.participants)
        assert this.bytes_down == 4 * expected
        assert this.bytes_up == 4 * len(this.participants) * (HEAD if this.number >= warm else WHOLE)
        parted |= set(this.participants) if this.number >= warm else set()
    late = next(iter(set(range(len(fed))) - parted))
    assert server["parted"].tolist() == [client in parted for client in range(len(fed))]
    client = visit(fed, spec, late, round=5, purpose="evaluate")
    client["own"] = engine.states[late]["own"]
    model = method.personal(client, method.send(server, late))
    assert isinstance(model, Model)
    assert torch.equal(model.vector, server["weights/0"]), "who has not parted yet has FedAvg's extractor"
    settled = min(parted)
    assert method.send(server, settled).keys() == {"head"}
    assert torch.equal(method.send(server, settled)["head"], server["weights/0"][BODY:])


def test_after_the_last_warm_round_it_is_tested_as_fedavg(fed: Federation) -> None:
    ours, _, _ = simulate(LGFedAvg(warm_rounds=2), fed, specification(fed, rounds=3))
    fedavg, _, _ = simulate(FedAvg(), fed, specification(fed, rounds=3))
    assert [this.test == other.test for this, other in zip(ours, fedavg, strict=True)] == [True, True, False]


def test_a_client_whose_reply_was_refused_gets_the_extractor_again(fed: Federation) -> None:
    @dataclass(frozen=True)
    class Stumbling(LGFedAvg):
        def reply(self, client: Client, received: Tensor, trained: Tensor) -> Message:
            good = super().reply(client, received, trained)
            return Message(weights=good["weights"] / 0) if client.id == 1 and client.round == 1 else good

    done, _, _ = simulate(Stumbling(warm_rounds=1), fed, specification(fed, rounds=4))
    assert [this.bytes_down // 4 for this in done] == [4 * WHOLE, 4 * WHOLE, 3 * HEAD + WHOLE, 4 * HEAD]


def test_a_reply_of_the_wrong_phase_is_refused(fed: Federation) -> None:
    @dataclass(frozen=True)
    class Early(LGFedAvg):
        def reply(self, client: Client, received: Tensor, trained: Tensor) -> Message:
            return Message(weights=client.take(trained, "all" if client.id == 2 else "head"))

    done, _, _ = simulate(Early(), fed, specification(fed, rounds=1))
    assert [(r.client, "has shape [53], expected [18]" in r.reason) for r in done[0].refused] == [(2, True)]


def test_statistics_of_the_extractor_stay_at_home(fed: Federation) -> None:
    done, _, engine = simulate(LGFedAvg(), fed, specification(fed, rounds=2, norm=True))
    assert done[0].bytes_up == 4 * 4 * HEAD
    trained = specification(fed, norm=True).layout(0).trained
    assert not torch.equal(engine.states[0]["own"][trained:], engine.states[1]["own"][trained:])


@pytest.mark.parametrize("warm_rounds", [0, 1])
def test_heads_are_averaged_among_clients_of_one_architecture(fed: Federation, warm_rounds: int) -> None:
    def wide() -> nn.Module:
        return nn.Sequential(nn.Linear(6, 9), nn.ReLU(), nn.Linear(9, 3))

    spec = specification(fed, rounds=3)
    kinds = (Architecture(small_network(), fed.example), Architecture(wide, fed.example))
    mixed = replace(spec, architectures=kinds, assignment=(0, 1, 0, 1))
    done, server, _ = simulate(LGFedAvg(warm_rounds=warm_rounds), fed, mixed)
    assert not any(this.refused for this in done)
    assert done[-1].bytes_up == 4 * 2 * (HEAD + 9 * 3 + 3)
    assert {len(server["weights/0"]), len(server["weights/1"])} == {WHOLE, 6 * 9 + 9 + 9 * 3 + 3}
