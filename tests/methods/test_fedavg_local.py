"""FedAvg-local: the rounds of FedAvg, and each client judged by the model that its last training left."""

from typing import Any, Literal

import pytest
import torch
from conftest import simulate, specification, visit
from torch.nn import functional

from fedgraft.core.exchange import contact
from fedgraft.core.message import Message
from fedgraft.core.model import Model
from fedgraft.data.federation import Federation
from fedgraft.methods.fedavg import FedAvg
from fedgraft.methods.fedavg_local import FedAvgLocal


@pytest.mark.parametrize("freshness", ["stale", "refresh"])
def test_the_rounds_are_those_of_fedavg_bit_for_bit(fed: Federation, freshness: Literal["stale", "refresh"]) -> None:
    spec = specification(fed, rounds=3, optimizer_state="kept")
    _, ours, engine = simulate(FedAvgLocal(freshness=freshness), fed, spec, share=0.5)
    _, fedavg, plain = simulate(FedAvg(), fed, spec, share=0.5)
    assert torch.equal(ours["weights/0"], fedavg["weights/0"])
    for client in range(len(fed)):
        assert torch.equal(engine.states[client]["own"], plain.states[client]["own"])


def test_both_points_are_fedavgs_trained_models(fed: Federation) -> None:
    spec = specification(fed, rounds=3)
    ours, _, _ = simulate(FedAvgLocal(), fed, spec, share=0.5)
    fedavg, _, _ = simulate(FedAvg(), fed, spec, share=0.5)
    for this, other in zip(ours, fedavg, strict=True):
        assert this.test["received"] == this.test["trained"] == other.test["trained"]
    assert ours[0].test["received"] != fedavg[0].test["received"]


def test_a_client_that_never_trained_is_judged_by_the_initial_model(fed: Federation) -> None:
    spec, method = specification(fed), FedAvgLocal()
    client = visit(fed, spec, purpose="evaluate")
    contact(method, client)
    elsewhere = method.personal(client, Message(weights=torch.ones(spec.layout(0).size)))
    assert isinstance(elsewhere, Model)
    assert torch.equal(elsewhere.vector, spec.initial(0))


def test_refresh_trains_the_newest_model_once_more(fed: Federation) -> None:
    # one step on all samples without momentum: w - eta grad F_0(w), whatever the order of the batch
    spec, method = specification(fed, epochs=1, batch_size=100, momentum=0.0), FedAvgLocal(freshness="refresh")
    client = visit(fed, spec, purpose="evaluate")
    client["own"] = torch.zeros_like(client.own)
    w = spec.initial(0, independent=True)
    model = spec.architecture(0).model().load(w)
    x, y = fed.clients[0].train.batch(slice(None))
    expected = w - 0.1 * model.differentiate(functional.cross_entropy(model(x), y))
    refreshed = method.personal(client, Message(weights=w))
    assert isinstance(refreshed, Model)
    torch.testing.assert_close(refreshed.vector, expected)
    stored = method.personal(client, Message(weights=w), trained=client.own)
    assert isinstance(stored, Model)
    assert torch.equal(stored.vector, torch.zeros_like(w)), "at the other point it is the stored model"


@pytest.mark.parametrize("nothing", [{"epochs": 0}, {"lr": 0.0}], ids=["no epochs", "no rate"])
@pytest.mark.parametrize("freshness", ["stale", "refresh"])
def test_without_local_work_it_is_fedavg(
    fed: Federation, freshness: Literal["stale", "refresh"], nothing: dict[str, Any]
) -> None:
    spec = specification(fed, rounds=2, **nothing)
    ours, _, _ = simulate(FedAvgLocal(freshness=freshness), fed, spec)
    fedavg, _, _ = simulate(FedAvg(), fed, spec)
    for this, other in zip(ours, fedavg, strict=True):
        assert this.test["received"] == this.test["trained"] == other.test["received"]
