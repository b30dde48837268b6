"""FedAvg: its mean by hand, and one step that is a step of the pooled loss."""

from typing import Literal

import pytest
import torch
from conftest import blobs, simulate, specification
from torch.nn import functional

from fedgraft.core.message import Message
from fedgraft.data.federation import Federation, Site, own_data
from fedgraft.methods.fedavg import FedAvg


@pytest.mark.parametrize(("weighting", "mean"), [("samples", (20 * 1 + 13 * 4) / 33), ("uniform", 2.5)])
def test_the_mean_by_hand(fed: Federation, weighting: Literal["samples", "uniform"], mean: float) -> None:
    method = FedAvg(weighting=weighting)
    server = method.setup(specification(fed))
    method.merge(server, {1: Message(weights=torch.full((53,), 4.0)), 0: Message(weights=torch.full((53,), 1.0))})
    assert server["weights/0"].tolist() == pytest.approx([mean] * 53)


def test_the_mean_weighs_clients_by_who_they_are(fed: Federation) -> None:
    method = FedAvg()
    server = method.setup(specification(fed))
    method.merge(server, {3: Message(weights=torch.full((53,), 4.0)), 1: Message(weights=torch.full((53,), 1.0))})
    assert server["weights/0"].tolist() == pytest.approx([(13 * 1 + 8 * 4) / 21] * 53)


def test_one_full_step_is_a_step_of_the_pooled_loss(fed: Federation) -> None:
    spec = specification(fed, rounds=1, epochs=1, batch_size=100, momentum=0.0)
    _, server, _ = simulate(FedAvg(), fed, spec)
    start, model = spec.initial(0), spec.architecture(0).model().load(spec.initial(0))
    everybody = [client.train.batch(slice(None)) for client in fed.clients]
    x, y = (torch.cat(tensors) for tensors in zip(*everybody, strict=True))
    gradient = model.differentiate(functional.cross_entropy(model(x), y))
    torch.testing.assert_close(server["weights/0"], start - 0.1 * gradient)


def test_the_mean_of_equal_models_is_that_model() -> None:
    x, y = blobs((12,)).clients[0].train.batch(slice(None))
    site = Site(x.numpy(), y.numpy(), x.numpy(), y.numpy())
    fed = own_data([site, site, site], task="classification:3")
    spec = specification(fed, rounds=1, batch_size=100)
    _, server, engine = simulate(FedAvg(), fed, spec)
    for state in engine.states.values():
        torch.testing.assert_close(server["weights/0"], state["own"], rtol=0, atol=1e-6)
