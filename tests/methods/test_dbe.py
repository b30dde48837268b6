"""DBE: the measurement before the first round, both parts of the loss step by step, and FedAvg without them."""

from dataclasses import dataclass
from functools import partial

import pytest
import torch
from conftest import simulate, slope, small_network, specification, visit
from torch import Tensor
from torch.nn import functional

from fedgraft.core.client import Client
from fedgraft.core.message import Message
from fedgraft.core.method import Spec
from fedgraft.data.federation import Federation
from fedgraft.methods.dbe import DBE
from fedgraft.methods.fedavg import FedAvg


@pytest.mark.parametrize("norm", [False, True])
@pytest.mark.parametrize("share", [0.5, 1.0])
def test_without_both_parts_it_is_fedavg_bit_for_bit(fed: Federation, norm: bool, share: float) -> None:
    spec = specification(fed, rounds=3, norm=norm, optimizer_state="kept")
    mine, ours, my_clients = simulate(DBE(kappa=0.0, private_bias=False), fed, spec, share=share)
    theirs, average, their_clients = simulate(FedAvg(), fed, spec, share=share)
    assert torch.equal(ours["weights/0"], average["weights/0"])
    for client in range(4):
        assert torch.equal(my_clients.states[client]["own"], their_clients.states[client]["own"])
    assert mine[-1].test == theirs[-1].test


def test_everybody_is_measured_once_before_the_first_round(fed: Federation) -> None:
    spec = specification(fed, rounds=3)
    method = DBE()
    assert [list(wave) for wave in method.waves(method.setup(spec), 0, [1])] == [[0, 1, 2, 3], [1]]
    done, server, engine = simulate(method, fed, spec, share=0.25)
    assert [this.messages_up for this in done] == [5, 1, 1]
    assert done[0].bytes_up == 4 * 5 * 4 + 53 * 4, "four means of five features, one model"
    assert done[0].bytes_down == 4 * 53 * 4 + (53 + 5) * 4
    assert done[1].bytes_up == 53 * 4
    assert done[1].bytes_down == (53 + 5) * 4
    assert server["mean"].shape == (5,)
    picked = {client for this in done for client in this.participants}
    for client in set(range(4)) - picked:
        assert torch.equal(engine.states[client]["own"], spec.initial(client)), "the models of that wave are discarded"
        assert not bool(engine.states[client]["bias"].any())


def measured(fed: Federation, spec: Spec, method: DBE, client: int) -> Tensor:
    visitor = visit(fed, spec, client)
    method.join(visitor)
    received = method.assemble(visitor, FedAvg.send(method, method.setup(spec), client))
    trained = method.fit(visitor, received)
    assert torch.equal(trained, received)
    reply = method.reply(visitor, received, trained)
    assert set(reply) == {"mean"}
    return reply["mean"]


def test_the_consensus_is_the_mean_of_the_clients_running_means(fed: Federation) -> None:
    method, spec = DBE(mu=0.5), specification(fed, rounds=1)
    _, server, _ = simulate(method, fed, spec)
    each = torch.stack([measured(fed, spec, method, client) for client in range(4)])
    shares = torch.tensor([20.0, 13, 31, 8]) / 72
    torch.testing.assert_close(server["mean"], shares @ each)


def test_the_running_mean_by_hand(fed: Federation) -> None:
    # a network that does not move: twenty samples are five batches, m <- (1 - mu) m + mu mean
    spec = specification(fed, lr=1e-12, momentum=0.0, epochs=1)
    client = visit(fed, spec)
    model = client.model(client.own)
    means = [model.score(x)[0].mean(0).detach() for x, _ in client.batches("measurement")]
    assert len(means) == 5
    torch.testing.assert_close(measured(fed, spec, DBE(mu=1.0), 0), means[-1])
    weights = [0.3 * 0.7**age for age in (4, 3, 2, 1, 0)]
    expected = sum(weight * mean for weight, mean in zip(weights, means, strict=True))
    torch.testing.assert_close(measured(fed, spec, DBE(mu=0.3), 0), expected)


def test_training_follows_the_loss_step_by_step(fed: Federation) -> None:
    # network and bias step alike, with the run's momentum and decay; what m holds of the first batch is constant in
    # the second step
    training = {"lr": 0.05, "momentum": 0.9, "weight_decay": 0.01, "epochs": 1, "batch_size": 10}
    spec = specification(fed, **training, build=lambda: small_network()().double())
    kappa, mu, rate = 3.0, 0.4, 0.05
    method, client = DBE(kappa=kappa, mu=mu), visit(fed, spec)
    method.join(client)
    client["bias"] = torch.linspace(-0.5, 0.5, 5, dtype=torch.float64)
    client["mean"] = torch.linspace(2, -1, 5, dtype=torch.float64)
    zbar, live, batches = client["mean"].clone(), spec.architectures[0].model(), list(client.batches("batches"))
    assert len(batches) == 2

    def running(weights: Tensor, x: Tensor, m: Tensor) -> Tensor:
        return (1 - mu) * m + mu * live.load(weights).score(x)[0].detach().mean(0)

    def objective(weights_and_bias: Tensor, x: Tensor, y: Tensor, m: Tensor) -> float:
        weights, bias = weights_and_bias[:53], weights_and_bias[53:]
        z, _ = live.load(weights).score(x)
        logits = functional.linear(z + bias, live.head.weight, live.head.bias)
        pull = kappa * 0.5 * (running(weights, x, m) - zbar).square().mean()
        return float(functional.cross_entropy(logits, y).detach() + pull)

    joint, m, velocity = torch.cat([client.own, client["bias"]]), torch.zeros_like(zbar), torch.zeros(58).double()
    for x, y in batches:
        of_batch = partial(objective, x=x, y=y, m=m)
        gradient = torch.tensor([slope(of_batch, joint, entry) for entry in range(58)], dtype=torch.float64)
        m = running(joint[:53], x, m)
        velocity = 0.9 * velocity + gradient + 0.01 * joint
        joint = joint - rate * velocity
    trained = method.fit(client, client.own.clone())
    torch.testing.assert_close(torch.cat([trained, client["bias"]]), joint, rtol=1e-6, atol=1e-8)


def test_the_momentum_of_the_bias_survives_where_the_run_keeps_it(fed: Federation) -> None:
    kept, fresh = (specification(fed, rounds=2, momentum=0.9, optimizer_state=how) for how in ("kept", "fresh"))
    _, _, clients = simulate(DBE(), fed, kept)
    assert clients.states[0]["momentum/bias"].shape == clients.states[0]["bias"].shape
    assert bool(clients.states[0]["momentum/bias"].any())
    _, _, forgetful = simulate(DBE(), fed, fresh)
    assert "momentum/bias" not in forgetful.states[0]
    assert not torch.equal(clients.states[0]["bias"], forgetful.states[0]["bias"])


def test_the_bias_stays_home_and_changes_only_in_training(fed: Federation) -> None:
    spec = specification(fed, rounds=3)
    done, server, engine = simulate(DBE(), fed, spec, share=0.5)
    picked = {client for this in done for client in this.participants}
    assert picked != set(range(4))
    for client in range(4):
        assert bool(engine.states[client]["bias"].any()) is (client in picked)
    assert set(server) == {"weights/0", "mean"}


@pytest.mark.parametrize("trained", [False, True])
def test_the_bias_shifts_the_features_of_the_tested_model(fed: Federation, trained: bool) -> None:
    spec = specification(fed)
    method, client = DBE(), visit(fed, spec, 1)
    method.join(client)
    client["own"] = client.own + 0.1
    message = Message(weights=spec.initial(0), mean=torch.zeros(5))
    weights = client.own if trained else message["weights"]
    x, _ = client.data.test.batch(slice(None))
    model = client.model(weights)
    plain = model(x).detach()
    torch.testing.assert_close(method.personal(client, message, client.own if trained else None)(x).detach(), plain)
    client["bias"] = torch.arange(5.0)
    shifted = functional.linear(model.score(x)[0] + torch.arange(5.0), model.head.weight, model.head.bias).detach()
    torch.testing.assert_close(method.personal(client, message, client.own if trained else None)(x).detach(), shifted)


def test_the_pull_brings_the_features_to_the_consensus(fed: Federation) -> None:
    spec = specification(fed, rounds=10, lr=0.02, batch_size=16)
    x = torch.cat([data.train.batch(slice(None))[0] for data in fed.clients])
    distances = []
    for kappa in (0.0, 5.0):
        _, server, _ = simulate(DBE(kappa=kappa), fed, spec)
        z, _ = spec.architectures[0].model().load(server["weights/0"]).score(x)
        distances.append(float((z.detach().mean(0) - server["mean"]).norm()))
    assert distances[1] < 0.7 * distances[0]


def test_a_measurement_that_failed_is_made_up_for(fed: Federation) -> None:
    @dataclass(frozen=True)
    class Broken(DBE):
        def reply(self, client: Client, received: Tensor, trained: Tensor) -> Message:
            reply = super().reply(client, received, trained)
            return Message(mean=reply["mean"] * torch.nan) if client.round == 0 else reply

    done, server, _ = simulate(Broken(), fed, specification(fed, rounds=2))
    assert len(done[0].refused) == 8
    assert not done[1].refused
    assert done[1].messages_up == 8
    assert bool(torch.isfinite(server["mean"]).all())


def test_caveats_name_settings_that_switch_it_off() -> None:
    assert not DBE().caveats()
    assert any("consensus" in sentence for sentence in DBE(kappa=0).caveats())
    assert any("global model" in sentence for sentence in DBE(private_bias=False).caveats())
    assert any("FedAvg" in sentence for sentence in DBE(kappa=0, private_bias=False).caveats())
