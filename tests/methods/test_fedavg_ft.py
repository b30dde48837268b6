"""FedAvg-FT: FedAvg's rounds, and a fine-tuned copy of the newest global model at the test."""

from typing import Any, Literal

import pytest
import torch
from conftest import simulate, specification, visit
from torch import Tensor
from torch.nn import functional

from fedgraft.core.message import Message
from fedgraft.core.model import Model, Part
from fedgraft.data.federation import Federation
from fedgraft.methods.fedavg import FedAvg
from fedgraft.methods.fedavg_ft import FedAvgFT
from fedgraft.methods.fedavg_local import FedAvgLocal


def tuned(method: FedAvgFT, fed: Federation, w: Tensor, *, round: int = 0, **settings: Any) -> Tensor:
    """The weights of client 0's own model when the newest global model is ``w``."""
    spec = specification(fed, **settings)
    model = method.personal(visit(fed, spec, round=round, purpose="evaluate"), Message(weights=w))
    assert isinstance(model, Model)
    return model.vector.clone()


def steps_by_hand(fed: Federation, w: Tensor, count: int, rate: float, momentum: float = 0.0) -> Tensor:
    """Gradient steps on all samples of client 0: no batch order to depend on."""
    model = specification(fed).architecture(0).model().load(w)
    x, y = fed.clients[0].train.batch(slice(None))
    velocity = torch.zeros_like(w)
    for _ in range(count):
        velocity = momentum * velocity + model.differentiate(functional.cross_entropy(model(x), y))
        model.load(model.vector - rate * velocity)
    return model.vector.clone()


@pytest.fixture
def w(fed: Federation) -> Tensor:
    return specification(fed).initial(0, independent=True)


@pytest.mark.parametrize("optimizer_state", ["fresh", "kept"])
def test_the_rounds_are_those_of_fedavg_bit_for_bit(fed: Federation, optimizer_state: str) -> None:
    spec = specification(fed, rounds=3, norm=True, optimizer_state=optimizer_state)
    ours, server, engine = simulate(FedAvgFT(), fed, spec, share=0.5)
    fedavg, expected, plain = simulate(FedAvg(), fed, spec, share=0.5)
    assert torch.equal(server["weights/0"], expected["weights/0"])
    for client in range(len(fed)):
        assert engine.states[client].keys() == plain.states[client].keys(), "fine-tuning leaves no state"
        assert torch.equal(engine.states[client]["own"], plain.states[client]["own"])
    assert (
        ours[-1].test["received"].figures["log_loss"].pooled != fedavg[-1].test["received"].figures["log_loss"].pooled
    )
    assert ours[-1].test["trained"] == fedavg[-1].test["trained"]


def test_without_epochs_it_is_fedavg_at_both_points(fed: Federation) -> None:
    spec = specification(fed, rounds=2, norm=True)
    ours, _, _ = simulate(FedAvgFT(fine_tune_epochs=0), fed, spec)
    fedavg, _, _ = simulate(FedAvg(), fed, spec)
    assert [this.test for this in ours] == [this.test for this in fedavg]


def test_it_is_sgd_from_the_newest_model_at_the_runs_rate(fed: Federation, w: Tensor) -> None:
    # three epochs of one step each, in round 2 at 0.1 * 0.5^2
    settings = {"batch_size": 100, "momentum": 0.5, "schedule": "exponential:0.5"}
    expected = steps_by_hand(fed, w, 3, 0.025, momentum=0.5)
    torch.testing.assert_close(tuned(FedAvgFT(fine_tune_epochs=3), fed, w, round=2, **settings), expected)


def test_a_rate_of_its_own_does_not_decay(fed: Federation, w: Tensor) -> None:
    method = FedAvgFT(fine_tune_epochs=2, fine_tune_lr=0.02)
    ours = tuned(method, fed, w, round=2, batch_size=100, momentum=0.0, schedule="exponential:0.5")
    torch.testing.assert_close(ours, steps_by_hand(fed, w, 2, 0.02))


def test_no_momentum_is_inherited_from_the_rounds(fed: Federation, w: Tensor) -> None:
    spec = specification(fed, momentum=0.9, optimizer_state="kept")
    plain, pushed = (visit(fed, spec, purpose="evaluate") for _ in range(2))
    for name in ("batches", "fine-tune"):
        pushed["momentum/" + name] = torch.ones(spec.layout(0).trained)
    one, other = (FedAvgFT().personal(client, Message(weights=w)) for client in (plain, pushed))
    assert isinstance(one, Model)
    assert isinstance(other, Model)
    assert torch.equal(one.vector, other.vector)


@pytest.mark.parametrize(("part", "rests"), [("full", "nothing"), ("head", "extractor"), ("body", "head")])
@pytest.mark.parametrize("settings", [{}, {"momentum": 0.9, "weight_decay": 0.1}], ids=["plain", "momentum and decay"])
def test_only_the_named_part_is_tuned(
    fed: Federation, w: Tensor, part: Literal["full", "head", "body"], rests: Part, settings: dict[str, Any]
) -> None:
    ours, layout = tuned(FedAvgFT(part=part), fed, w, **settings), specification(fed).layout(0)
    for each in ("extractor", "head"):
        span = layout.span(each)
        assert torch.equal(ours[span], w[span]) == (each == rests)


def test_a_client_smaller_than_a_batch_is_tuned_too(fed: Federation, w: Tensor) -> None:
    assert not torch.equal(tuned(FedAvgFT(), fed, w, batch_size=500, drop_last=True), w)


def test_statistics_move_even_where_the_parameters_rest(fed: Federation) -> None:
    spec = specification(fed, norm=True)
    ours = tuned(FedAvgFT(part="head"), fed, spec.initial(0), norm=True)
    assert torch.equal(ours[spec.layout(0).span("extractor")], spec.initial(0)[spec.layout(0).span("extractor")])
    assert not torch.equal(ours[spec.layout(0).trained :], spec.initial(0)[spec.layout(0).trained :])


def test_one_more_round_of_local_work_is_fedavg_local_refreshed(fed: Federation, w: Tensor) -> None:
    spec = specification(fed, epochs=3, batch_size=100)
    refreshed = FedAvgLocal(freshness="refresh").personal(visit(fed, spec, purpose="evaluate"), Message(weights=w))
    assert isinstance(refreshed, Model)
    ours = tuned(FedAvgFT(fine_tune_epochs=3), fed, w, batch_size=100)
    torch.testing.assert_close(ours, refreshed.vector)


def test_the_trained_point_is_not_tuned(fed: Federation, w: Tensor) -> None:
    client = visit(fed, specification(fed), purpose="evaluate")
    model = FedAvgFT().personal(client, Message(weights=w), trained=client.own)
    assert isinstance(model, Model)
    assert torch.equal(model.vector, client.own)


def test_caveats_name_settings_that_switch_it_off() -> None:
    assert not FedAvgFT().caveats()
    assert "without its fine-tuning" in FedAvgFT(fine_tune_epochs=0).caveats()[0]
