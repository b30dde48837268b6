"""FedBABU: a head that never moves, a body that does, and a fine-tuned copy at the test."""

import pytest
import torch
from conftest import simulate, specification, visit
from torch import Tensor
from torch.nn import functional

from fedgraft.core.client import Client
from fedgraft.core.message import Message
from fedgraft.core.model import Model
from fedgraft.data.federation import Federation
from fedgraft.methods.fedavg import FedAvg
from fedgraft.methods.fedbabu import FedBABU
from fedgraft.methods.fedrep import FedRep


def own_model(method: FedBABU, client: Client, phi: Tensor) -> Tensor:
    model = method.personal(client, Message(weights=phi))
    assert isinstance(model, Model)
    return model.vector.clone()


@pytest.mark.parametrize(
    "settings",
    [{}, {"momentum": 0.9, "weight_decay": 0.1}, {"momentum": 0.9, "weight_decay": 0.1, "optimizer_state": "kept"}],
    ids=["plain", "momentum and decay", "momentum kept"],
)
def test_the_head_never_moves_and_never_travels(fed: Federation, settings: dict[str, object]) -> None:
    spec = specification(fed, rounds=3, **settings)  # type: ignore[arg-type]
    done, server, engine = simulate(FedBABU(), fed, spec, share=0.75)
    head, body, start = spec.layout(0).span("head"), spec.layout(0).span("extractor"), spec.initial(0)
    for state in engine.states.values():
        assert torch.equal(state["own"][head], start[head])
    assert any(not torch.equal(state["own"][body], start[body]) for state in engine.states.values())
    assert not torch.equal(server["weights/0"], start[body])
    assert {(this.bytes_up, this.bytes_down) for this in done} == {(3 * 4 * 35, 3 * 4 * 35)}


def test_a_step_by_hand(fed: Federation) -> None:
    # one step on all samples of each client: phi <- phi - eta sum_i n_i/n grad_phi F_i(phi, psi_0)
    spec = specification(fed, rounds=1, epochs=1, batch_size=100, momentum=0.0)
    _, server, _ = simulate(FedBABU(), fed, spec)
    start, body = spec.initial(0), spec.layout(0).span("extractor")
    gradient = torch.zeros_like(start)
    for client, data in enumerate(fed.clients):
        model = spec.architecture(0).model().load(start)
        x, y = data.train.batch(slice(None))
        gradient += (
            spec.samples[client] / sum(spec.samples) * model.differentiate(functional.cross_entropy(model(x), y))
        )
    torch.testing.assert_close(server["weights/0"], (start - 0.1 * gradient)[body])


def test_fine_tuning_starts_from_the_newest_body_and_the_fixed_head(fed: Federation) -> None:
    spec = specification(fed, batch_size=100, momentum=0.0)
    phi = spec.initial(0, independent=True)[spec.layout(0).span("extractor")]
    client = visit(fed, spec, purpose="evaluate")
    client["own"] = client.put(client.own, torch.full_like(phi, 7.0), "extractor")  # its last local body
    start = client.put(spec.initial(0), phi, "extractor")
    assert torch.equal(own_model(FedBABU(fine_tune_epochs=0), client, phi), start)

    model = spec.architecture(0).model().load(start)
    x, y = fed.clients[0].train.batch(slice(None))
    expected = start - 0.1 * model.differentiate(functional.cross_entropy(model(x), y))
    torch.testing.assert_close(own_model(FedBABU(fine_tune_epochs=1), client, phi), expected)


def test_without_fine_tuning_everybody_is_judged_by_the_common_body_and_head(fed: Federation) -> None:
    spec = specification(fed, rounds=2)
    done, server, _ = simulate(FedBABU(fine_tune_epochs=0), fed, spec, share=0.5)
    layout, model = spec.layout(0), spec.architecture(0).model()
    model.load(layout.put(spec.initial(0), server["weights/0"], "extractor", "average"))
    for client, data in enumerate(fed.clients):
        x, y = data.test.batch(slice(None))
        with model.evaluating():
            right = (model(x).argmax(1) == y).float().mean()
        assert done[-1].test["received"].per_client[client] == pytest.approx(float(right))


def test_the_number_of_fine_tuning_epochs_changes_the_test_alone(fed: Federation) -> None:
    spec = specification(fed, rounds=2)
    bare, one, _ = simulate(FedBABU(fine_tune_epochs=0), fed, spec)
    tuned, other, engine = simulate(FedBABU(), fed, spec)
    assert torch.equal(one["weights/0"], other["weights/0"])
    assert bare[-1].test["trained"] == tuned[-1].test["trained"]
    assert bare[-1].test["received"] != tuned[-1].test["received"]
    client = visit(fed, spec, purpose="evaluate")
    model = FedBABU().personal(client, Message(weights=other["weights/0"]), trained=engine.states[0]["own"])
    assert isinstance(model, Model)
    assert torch.equal(model.vector, engine.states[0]["own"]), "the trained point is (phi_i, psi_0), not tuned"


@pytest.mark.parametrize("optimizer_state", ["fresh", "kept"])
def test_its_rounds_are_fedrep_without_head_epochs(fed: Federation, optimizer_state: str) -> None:
    spec = specification(fed, rounds=3, epochs=2, optimizer_state=optimizer_state)
    _, babu, _ = simulate(FedBABU(), fed, spec, share=0.75)
    _, rep, _ = simulate(FedRep(tau_h=0, tau_b=2), fed, spec, share=0.75)
    _, avg, _ = simulate(FedAvg(), fed, spec, share=0.75)
    assert torch.equal(babu["weights/0"], rep["weights/0"])
    assert not torch.equal(babu["weights/0"], avg["weights/0"][: len(babu["weights/0"])])
