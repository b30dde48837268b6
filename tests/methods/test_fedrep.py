"""FedRep: the head on a fixed extractor, then the extractor under a fixed head, checked step by step."""

from typing import Any

import pytest
import torch
from conftest import simulate, specification, visit
from torch import Tensor
from torch.nn import functional

from fedgraft.core.message import Message
from fedgraft.core.model import Model
from fedgraft.data.federation import Federation
from fedgraft.methods.fedper import FedPer
from fedgraft.methods.fedrep import FedRep

ROUGH: dict[str, Any] = {"momentum": 0.9, "weight_decay": 0.1, "optimizer_state": "kept"}


def turns_by_hand(fed: Federation, start: Tensor, turns: list[tuple[str, int]], momentum: float) -> Tensor:
    """Steps at rate 0.1 on all samples of client 0, each turn on one part with a velocity that starts at rest."""
    spec = specification(fed)
    model = spec.architecture(0).model().load(start)
    x, y = fed.clients[0].train.batch(slice(None))
    for part, count in turns:
        span = spec.layout(0).span(part)  # type: ignore[arg-type]
        velocity = torch.zeros_like(start)
        for _ in range(count):
            velocity[span] = momentum * velocity[span] + model.differentiate(
                functional.cross_entropy(model(x), y)
            )[span]  # fmt: skip
            model.load(model.vector - 0.1 * velocity)
    return model.vector.clone()


@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_a_round_by_hand_head_first(fed: Federation, momentum: float) -> None:
    spec = specification(fed, batch_size=100, momentum=momentum)
    start = spec.initial(0)
    trained = FedRep(tau_h=3, tau_b=2).fit(visit(fed, spec), start)
    torch.testing.assert_close(trained, turns_by_hand(fed, start, [("head", 3), ("extractor", 2)], momentum))
    other_order = turns_by_hand(fed, start, [("extractor", 2), ("head", 3)], momentum)
    assert float((trained - other_order).abs().max()) > 1e-3


@pytest.mark.parametrize("settings", [{}, ROUGH], ids=["plain", "momentum and decay"])
def test_the_part_that_rests_does_not_move_by_a_bit(fed: Federation, settings: dict[str, Any]) -> None:
    spec = specification(fed, rounds=3, **settings)
    start, layout = spec.initial(0), spec.layout(0)
    _, server, engine = simulate(FedRep(tau_b=0), fed, spec)
    assert torch.equal(server["weights/0"], start[layout.span("extractor")]), "linear probing for ever"
    for state in engine.states.values():
        assert torch.equal(state["own"][layout.span("extractor")], start[layout.span("extractor")])
        assert not torch.equal(state["own"][layout.span("head")], start[layout.span("head")])
    _, server, engine = simulate(FedRep(tau_h=0), fed, spec)
    assert not torch.equal(server["weights/0"], start[layout.span("extractor")])
    for state in engine.states.values():
        assert torch.equal(state["own"][layout.span("head")], start[layout.span("head")])


def test_the_phases_count_in_epochs_of_their_own(fed: Federation) -> None:
    # 20 samples in batches of 4: 5 steps an epoch, 3 + 2 epochs, whatever the run's epochs
    client = visit(fed, specification(fed, epochs=7))
    FedRep(tau_h=3, tau_b=2).fit(client, client.own)
    assert client.steps == 25


def test_heads_never_travel_and_stay_with_their_client(fed: Federation) -> None:
    spec = specification(fed, rounds=2)
    done, _, engine = simulate(FedRep(), fed, spec)
    assert {(this.bytes_up, this.bytes_down) for this in done} == {(4 * 4 * 35, 4 * 4 * 35)}
    heads = [state["own"][spec.layout(0).span("head")] for state in engine.states.values()]
    assert all(not torch.equal(heads[0], other) for other in heads[1:])


def test_it_is_not_fedper(fed: Federation) -> None:
    spec = specification(fed, rounds=1, epochs=1)
    _, rep, _ = simulate(FedRep(tau_h=1, tau_b=1), fed, spec)
    _, per, _ = simulate(FedPer(), fed, spec)
    assert not torch.equal(rep["weights/0"], per["weights/0"])


def test_received_is_the_newest_extractor_under_the_own_head(fed: Federation) -> None:
    spec = specification(fed)
    client = visit(fed, spec, purpose="evaluate")
    client["own"] = spec.initial(0, independent=True)
    phi = spec.initial(0)[spec.layout(0).span("extractor")]
    model = FedRep().personal(client, Message(weights=phi))
    assert isinstance(model, Model)
    assert torch.equal(model.vector[:35], phi)
    assert torch.equal(model.vector[35:], client.own[35:])


def test_the_final_head_epochs_are_for_the_last_test_alone(fed: Federation) -> None:
    spec = specification(fed, rounds=3)
    plain, one, _ = simulate(FedRep(), fed, spec, share=0.5)
    final, other, engine = simulate(FedRep(final_head_epochs=5), fed, spec, share=0.5)
    assert torch.equal(one["weights/0"], other["weights/0"])
    assert [this.test for this in final[:-1]] == [this.test for this in plain[:-1]]
    assert final[-1].test["trained"] == plain[-1].test["trained"]
    assert (
        final[-1].test["received"].figures["log_loss"].pooled != plain[-1].test["received"].figures["log_loss"].pooled
    )
    assert all("momentum/fine-tune" not in state for state in engine.states.values())


def test_the_final_head_epochs_by_hand(fed: Federation) -> None:
    spec = specification(fed, rounds=3, batch_size=100, momentum=0.0)
    client = visit(fed, spec, round=2, purpose="evaluate")
    client["own"] = spec.initial(0, independent=True)
    phi = spec.initial(0)[spec.layout(0).span("extractor")]
    start = client.put(client.own, phi, "extractor")
    model = FedRep(final_head_epochs=4).personal(client, Message(weights=phi))
    assert isinstance(model, Model)
    torch.testing.assert_close(model.vector, turns_by_hand(fed, start, [("head", 4)], 0.0))
    assert torch.equal(model.vector[:35], phi)


@pytest.mark.parametrize(("buffers", "moves"), [("average", True), ("keep", False)])
def test_statistics_of_the_resting_extractor(fed: Federation, buffers: str, moves: bool) -> None:
    spec = specification(fed, rounds=1, norm=True, buffers=buffers)
    client = visit(fed, spec)
    trained = FedRep(tau_b=0).fit(client, client.own)
    layout = spec.layout(0)
    assert torch.equal(trained[layout.span("extractor")], client.own[layout.span("extractor")])
    assert torch.equal(trained[layout.trained :], client.own[layout.trained :]) != moves


def test_caveats_name_settings_that_switch_it_off() -> None:
    assert not FedRep().caveats()
    assert "never moves the extractor" in FedRep(tau_b=0).caveats()[0]
    assert "FedBABU" in FedRep(tau_h=0).caveats()[0]
