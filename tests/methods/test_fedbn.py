"""FedBN: BatchNorm layers stay at home, all others are FedAvg's."""

from typing import Literal

import numpy as np
import pytest
import torch
from conftest import on_digits, simulate, specification, visit
from torch import nn

from fedgraft.core.message import Message
from fedgraft.core.method import average
from fedgraft.core.model import Architecture
from fedgraft.data.federation import Federation, Site, own_data
from fedgraft.methods.fedavg import FedAvg
from fedgraft.methods.fedbn import FedBN


@pytest.mark.parametrize("buffers", ["average", "local", "keep"])
@pytest.mark.parametrize("layer", ["none", "layernorm"])
def test_without_batchnorm_it_is_fedavg_bit_for_bit(fed: Federation, layer: str, buffers: str) -> None:
    def build() -> nn.Module:
        norm = [nn.LayerNorm(5)] if layer == "layernorm" else []
        return nn.Sequential(nn.Linear(6, 5), *norm, nn.ReLU(), nn.Linear(5, 3))

    spec = specification(fed, rounds=3, build=build, buffers=buffers)
    ours, server, engine = simulate(FedBN(), fed, spec, share=0.75)
    fedavg, expected, plain = simulate(FedAvg(), fed, spec, share=0.75)
    assert torch.equal(server["weights/0"], expected["weights/0"])
    for client in range(len(fed)):
        assert torch.equal(engine.states[client]["own"], plain.states[client]["own"])
    assert [this.test for this in ours] == [this.test for this in fedavg]
    assert "FedAvg" in FedBN().caveats()[0]


@pytest.mark.parametrize("buffers", ["average", "local"])
def test_batchnorm_never_travels_and_all_else_is_averaged(fed: Federation, buffers: str) -> None:
    spec = specification(fed, rounds=1, norm=True, buffers=buffers)
    layout = spec.layout(0)
    done, server, engine = simulate(FedBN(), fed, spec)
    own = {client: layout.named(state["own"]) for client, state in engine.states.items()}
    kept = ["0.weight", "0.bias", "3.weight", "3.bias"]
    uploads = {c: Message(weights=torch.cat([named[name].reshape(-1) for name in kept])) for c, named in own.items()}
    assert torch.equal(server["weights/0"], average(spec, uploads))
    assert done[0].bytes_up == done[0].bytes_down == 4 * 53 * 4, "of 63 parameters, ten are BatchNorm's"
    for name in ("1.weight", "1.bias", "1.running_mean", "1.running_var"):
        assert not torch.equal(own[0][name], own[1][name]), name


def test_a_client_puts_the_received_layers_around_its_own_batchnorm(fed: Federation) -> None:
    spec = specification(fed, norm=True)
    client, layout = visit(fed, spec), spec.layout(0)
    client["own"] = torch.full((layout.size,), 0.5)
    ours = layout.named(FedBN().assemble(client, Message(weights=torch.arange(53.0))))
    assert ours["0.weight"].flatten().tolist() == list(range(30))
    assert ours["0.bias"].tolist() == list(range(30, 35))
    assert ours["3.weight"].flatten().tolist() == list(range(35, 50))
    assert ours["3.bias"].tolist() == [50, 51, 52]
    assert all(bool((ours[name] == 0.5).all()) for name in ours if name.startswith("1."))


def test_what_is_taken_can_be_put_back() -> None:
    def build() -> nn.Module:
        return nn.Sequential(
            nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(4 * 36, 5), nn.BatchNorm1d(5),
            nn.Linear(5, 3),
        )  # fmt: skip

    layout = Architecture(build, torch.zeros(2, 1, 8, 8)).layout
    vector, zeros = torch.randn(layout.size), torch.zeros(layout.size)
    policies: tuple[Literal["average", "local"], ...] = ("average", "local")
    for buffers in policies:
        taken = layout.take(vector, "all but BatchNorm", buffers)
        assert len(taken) == layout.width("all but BatchNorm", buffers) == layout.trained - 2 * (4 + 5)
        back = layout.put(zeros, taken, "all but BatchNorm", buffers)
        for slot in layout.slots:
            normalises = slot.name.startswith(("1.", "5."))
            assert slot.batchnorm == normalises
            expected = zeros if normalises else vector
            assert torch.equal(slot.view(back), slot.view(expected)), slot.name


def test_both_points_have_the_clients_own_batchnorm(fed: Federation) -> None:
    spec = specification(fed, rounds=2, norm=True)
    _, server, engine = simulate(FedBN(), fed, spec)
    client, layout = visit(fed, spec, 2), spec.layout(2)
    client["own"] = engine.states[2]["own"]
    FedBN().personal(client, Message(weights=server["weights/0"]))
    received, own = layout.named(client.model().vector), layout.named(client.own)
    for name in received.keys() - {"0.bias"}:  # no gradient reaches a bias that is normalised away again
        assert torch.equal(received[name], own[name]) == name.startswith("1."), name
    FedBN().personal(client, Message(weights=server["weights/0"]), client.own)
    assert torch.equal(client.model().vector, client.own)


def scanners() -> Federation:
    """The same two classes everywhere, in units and with an offset that differ from client to client."""
    rng = np.random.default_rng(0)

    def site(client: int) -> Site:
        def draw(count: int) -> tuple[np.ndarray, np.ndarray]:
            y = rng.integers(0, 2, count)
            x = rng.standard_normal((count, 6)) + np.where(y, 1, -1)[:, None]
            return (x * 4.0**client + 10 * client).astype(np.float32), y

        return Site(*draw(60), *draw(40))

    return own_data([site(client) for client in range(4)], task="classification:3")


def test_clients_whose_samples_look_different_gain() -> None:
    fed = scanners()

    def build() -> nn.Module:
        return nn.Sequential(nn.BatchNorm1d(6), nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, 3))

    spec = specification(fed, rounds=6, build=build)
    ours, _, _ = simulate(FedBN(), fed, spec)
    fedavg, _, _ = simulate(FedAvg(), fed, spec)
    assert ours[-1].test["received"].pooled > 0.95
    assert fedavg[-1].test["received"].pooled < 0.8


@pytest.mark.slow
def test_on_digits_it_is_far_better_than_a_guess() -> None:
    def network() -> nn.Module:
        return nn.Sequential(nn.Flatten(), nn.Linear(64, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Linear(32, 10))

    accuracy, guess = on_digits(FedBN(), model=network)
    assert guess < 0.5
    assert accuracy > 0.8
