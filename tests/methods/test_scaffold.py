"""SCAFFOLD: the algorithm written a second time on plain gradients, its conservation law, its fixed point."""

from dataclasses import dataclass, replace
from typing import Any, Literal

import pytest
import torch
from conftest import simulate, small_network, specification, visit
from torch import Tensor, nn
from torch.nn import functional

from fedgraft.base.errors import UserError
from fedgraft.core.client import Client
from fedgraft.core.exchange import contact, train
from fedgraft.core.message import Message
from fedgraft.core.method import Spec
from fedgraft.core.model import Architecture, Model
from fedgraft.core.rounds import Round
from fedgraft.data.federation import Federation
from fedgraft.methods.fedavg import FedAvg
from fedgraft.methods.scaffold import SCAFFOLD


def loss_gradient(fed: Federation, spec: Spec, client: int, weights: Tensor) -> Tensor:
    """Gradient of all training samples of a client, weight decay included."""
    model = spec.architecture(0).model().load(weights)
    x, y = fed.clients[client].train.batch(slice(None))
    gradient = model.differentiate(functional.cross_entropy(model(x), y))
    return gradient + spec.settings.weight_decay * weights


def by_hand(
    fed: Federation, spec: Spec, done: list[Round], *, eta_g: float, option: str
) -> tuple[Tensor, Tensor, list[Tensor]]:
    """The paper's algorithm with steps on all samples (K = epochs), for the participants of a run."""
    N, K = len(fed), int(spec.settings.epochs)
    x = spec.initial(0)
    c, c_i = torch.zeros_like(x), [torch.zeros_like(x) for _ in range(N)]
    for this in done:
        eta_l = spec.settings.lr * spec.settings.factor(this.number, spec.rounds)
        moves, changes = [], []
        for i in this.participants:
            y = x.clone()
            for _ in range(K):
                y = y - eta_l * (loss_gradient(fed, spec, i, y) - c_i[i] + c)
            new = loss_gradient(fed, spec, i, x) if option == "I" else c_i[i] - c + (x - y) / (K * eta_l)
            moves.append(y - x)
            changes.append(new - c_i[i])
            c_i[i] = new
        x = x + eta_g / len(moves) * torch.stack(moves).sum(0)
        c = c + torch.stack(changes).sum(0) / N
    return x, c, c_i


@pytest.mark.parametrize("option", ["I", "II"])
@pytest.mark.parametrize("share", [0.5, 1.0])
def test_three_rounds_by_hand(fed: Federation, option: Literal["I", "II"], share: float) -> None:
    settings = {"epochs": 4, "batch_size": 100, "momentum": 0.0, "schedule": "exponential:0.7", "weight_decay": 0.01}
    spec = specification(fed, rounds=3, **settings)
    done, server, engine = simulate(SCAFFOLD(eta_g=0.5, option=option), fed, spec, share=share)
    x, c, c_i = by_hand(fed, spec, done, eta_g=0.5, option=option)
    torch.testing.assert_close(server["x"], x, rtol=1e-4, atol=1e-6)
    torch.testing.assert_close(server["c"], c, rtol=1e-4, atol=1e-5)
    assert float(server["c"].abs().max()) > 1e-2
    for client, expected in enumerate(c_i):
        found = engine.states[client].get("c_i", torch.zeros_like(x))
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("share", [0.5, 1.0])
def test_the_first_round_is_fedavg_of_equal_weights(fed: Federation, share: float) -> None:
    spec = specification(fed, rounds=1, momentum=0.0, norm=True)
    _, server, engine = simulate(SCAFFOLD(), fed, spec, share=share)
    _, fedavg, plain = simulate(FedAvg(weighting="uniform"), fed, spec, share=share)
    for client in range(len(fed)):
        assert torch.equal(engine.states[client]["own"], plain.states[client]["own"])
    torch.testing.assert_close(server["x"], fedavg["weights/0"], rtol=1e-6, atol=1e-7)  # changes travel, not models
    _, second, _ = simulate(SCAFFOLD(), fed, replace(spec, rounds=2), share=share)
    _, other, _ = simulate(FedAvg(weighting="uniform"), fed, replace(spec, rounds=2), share=share)
    assert float((second["x"] - other["weights/0"]).abs().max()) > 1e-3


def test_it_is_plain_sgd_whatever_the_run_says(fed: Federation) -> None:
    plain = specification(fed, rounds=2, momentum=0.0)
    rich = specification(fed, rounds=2, momentum=0.9, optimizer_state="kept", clip_norm=0.1)
    _, one, _ = simulate(SCAFFOLD(), fed, plain)
    _, other, engine = simulate(SCAFFOLD(), fed, rich)
    assert torch.equal(one["x"], other["x"])
    assert set(engine.states[0]) == {"own", "joined", "c_i"}


@pytest.mark.parametrize("option", ["I", "II"])
@pytest.mark.parametrize("share", [0.25, 0.5, 1.0])
def test_the_servers_control_is_the_mean_of_the_clients(
    fed: Federation, option: Literal["I", "II"], share: float
) -> None:
    for rounds in (1, 2, 5):
        spec = specification(fed, rounds=rounds, lr=0.05)
        _, server, engine = simulate(SCAFFOLD(option=option), fed, spec, share=share)
        controls = [state.get("c_i", torch.zeros_like(server["c"])) for state in engine.states.values()]
        assert float((server["c"] - torch.stack(controls).mean(0)).abs().max()) < 1e-5
        assert float(server["c"].abs().max()) > 1e-3


def test_a_refused_reply_breaks_no_law(fed: Federation) -> None:
    @dataclass(frozen=True)
    class Spoiled(SCAFFOLD):
        def reply(self, client: Client, received: Tensor, trained: Tensor) -> Message:
            good = super().reply(client, received, trained)
            return Message(**good, more=1.0) if client.id == 1 else good

    done, server, engine = simulate(Spoiled(), fed, specification(fed, rounds=3))
    assert all([r.client for r in this.refused] == [1] for this in done)
    assert "c_i" not in engine.states[1]
    controls = [state.get("c_i", torch.zeros_like(server["c"])) for state in engine.states.values()]
    assert float((server["c"] - torch.stack(controls).mean(0)).abs().max()) < 1e-5


def test_the_steps_are_those_that_each_client_took(fed: Federation) -> None:
    # two epochs in batches of 4 of 20, 13, 31 and 8 samples; from c = c_i = 0, c_i = (x - y_i) / (K eta)
    K = (10, 8, 16, 4)
    spec = specification(fed, rounds=1)
    _, _, engine = simulate(SCAFFOLD(eta_l=0.03), fed, spec)
    for client, state in engine.states.items():
        expected = (spec.initial(0) - state["own"]) / (K[client] * 0.03)
        torch.testing.assert_close(state["c_i"], expected)


@pytest.mark.parametrize("option", ["I", "II"])
def test_without_a_step_the_control_stays_unless_it_is_a_gradient(fed: Federation, option: Literal["I", "II"]) -> None:
    spec = specification(fed, rounds=2, epochs=0)
    done, server, engine = simulate(SCAFFOLD(option=option), fed, spec)
    assert not any(this.refused for this in done)
    assert torch.equal(server["x"], spec.initial(0))
    assert bool(server["c"].any()) == (option == "I")
    assert all(bool(state["c_i"].any()) == (option == "I") for state in engine.states.values())


def test_messages_are_two_models_each_way(fed: Federation) -> None:
    done, _, _ = simulate(SCAFFOLD(), fed, specification(fed, rounds=2))
    assert {(this.bytes_up, this.bytes_down) for this in done} == {(4 * 4 * 2 * 53, 4 * 4 * 2 * 53)}
    # 63 trained parameters and 10 statistics, of which there is no control
    done, _, _ = simulate(SCAFFOLD(), fed, specification(fed, rounds=2, norm=True))
    assert {(this.bytes_up, this.bytes_down) for this in done} == {(4 * 4 * (73 + 63), 4 * 4 * (73 + 63))}


def test_statistics_are_averaged_whatever_the_server_rate(fed: Federation) -> None:
    spec = specification(fed, rounds=1, norm=True)
    _, server, engine = simulate(SCAFFOLD(eta_g=3.0), fed, spec)
    trained, owns = spec.layout(0).trained, torch.stack([state["own"] for state in engine.states.values()])
    torch.testing.assert_close(server["x"][trained:], owns.mean(0)[trained:])
    start = spec.initial(0)
    torch.testing.assert_close(
        server["x"][:trained], (start + 3 * (owns.mean(0) - start))[:trained], rtol=1e-4, atol=1e-6
    )


def double() -> nn.Module:
    return small_network()().double()


@pytest.fixture
def exact(fed: Federation) -> Client:
    """Client 0 on a network in double precision, half way through a federation."""
    spec = specification(fed, build=double, weight_decay=0.03)
    client = visit(fed, spec)
    rng = torch.Generator().manual_seed(3)
    contact(SCAFFOLD(), client)
    client["c_i"] = torch.randn(53, generator=rng, dtype=torch.float64)
    return client


def slopes(f: Any, at: Tensor) -> Tensor:
    """Central differences of ``f`` in every direction."""
    found = torch.zeros_like(at)
    for j in range(len(at)):
        e = torch.zeros_like(at)
        e[j] = 1e-6
        found[j] = (f(at + e) - f(at - e)) / 2e-6
    return found


def test_a_corrected_step_against_finite_differences(exact: Client) -> None:
    # one step on all samples descends F_i(y) + <c - c_i, y> + decay/2 ||y||^2
    method = SCAFFOLD(eta_l=0.01)
    x, c = exact.initial(0, True), torch.full((53,), 0.2, dtype=torch.float64)
    inputs, labels = exact.data.train.batch(slice(None))
    correction = c - exact["c_i"]

    def objective(y: Tensor) -> float:
        with torch.no_grad():
            data = functional.cross_entropy(exact.model(y)(inputs), labels)
        return float(data + correction @ y + 0.03 / 2 * y @ y)

    exact.settings = exact.settings.but(epochs=1, batch_size=100)
    received = method.assemble(exact, Message(weights=x, control=c))
    y = method.fit(exact, received)
    torch.testing.assert_close((x - y) / 0.01, slopes(objective, x), rtol=1e-5, atol=1e-7)
    # K = 1: the mean gradient of the steps is the gradient at x, so the two options agree
    second, first = method.control(exact, x, y), SCAFFOLD(option="I").control(exact, x, y)
    torch.testing.assert_close(second, first, rtol=1e-9, atol=1e-9)


def test_option_one_against_finite_differences(exact: Client) -> None:
    x = exact.initial(0, True)
    inputs, labels = exact.data.train.batch(slice(None))

    def objective(y: Tensor) -> float:
        with torch.no_grad():
            return float(functional.cross_entropy(exact.model(y)(inputs), labels) + 0.03 / 2 * y @ y)

    torch.testing.assert_close(SCAFFOLD().gradient(exact, x), slopes(objective, x), rtol=1e-5, atol=1e-7)


def test_option_one_adds_up_batches_of_many_samples(fed: Federation, monkeypatch: pytest.MonkeyPatch) -> None:
    spec = specification(fed)
    client, x = visit(fed, spec), spec.initial(0)
    whole = SCAFFOLD().gradient(client, x)
    monkeypatch.setattr("fedgraft.methods.scaffold.BATCH", 7)
    torch.testing.assert_close(SCAFFOLD().gradient(client, x), whole)


@pytest.mark.parametrize("option", ["I", "II"])
def test_it_settles_where_the_mean_gradient_vanishes_and_fedavg_does_not(
    fed: Federation, option: Literal["I", "II"]
) -> None:
    """Logistic regression with decay is strictly convex: one minimum of the mean of all clients' losses."""

    def build() -> nn.Module:
        return nn.Sequential(nn.Flatten(), nn.Linear(6, 3))

    spec = specification(fed, rounds=25, build=build, epochs=5, batch_size=100, momentum=0.0, weight_decay=1.0)

    def slope(x: Tensor) -> float:
        return float(torch.stack([loss_gradient(fed, spec, client, x) for client in range(4)]).mean(0).norm())

    _, server, _ = simulate(SCAFFOLD(option=option), fed, spec, evaluate_every=25)
    _, fedavg, _ = simulate(FedAvg(weighting="uniform"), fed, spec, evaluate_every=25)
    assert slope(server["x"]) < 1e-5
    assert slope(fedavg["weights/0"]) > 1e-2, "its clients drift"


def test_the_reported_loss_is_that_of_the_data(fed: Federation) -> None:
    spec = specification(fed, epochs=1, batch_size=100)
    client = visit(fed, spec)
    train(SCAFFOLD(), client, Message(weights=client.own.clone(), control=torch.full((53,), 100.0)))
    x, y = client.data.train.batch(slice(None))
    expected = functional.cross_entropy(client.model(spec.initial(0))(x), y)
    assert client.loss == pytest.approx(expected.item())


def test_both_points(fed: Federation) -> None:
    spec = specification(fed)
    client = visit(fed, spec, purpose="evaluate")
    contact(SCAFFOLD(), client)
    message = Message(weights=torch.ones(53), control=torch.zeros(53))
    for trained, expected in ((None, torch.ones(53)), (client.own, client.own)):
        model = SCAFFOLD().personal(client, message, trained)
        assert isinstance(model, Model)
        assert torch.equal(model.vector, expected)


def test_several_architectures_are_refused(fed: Federation) -> None:
    spec = specification(fed)
    other = Architecture(small_network(norm=True), fed.example)
    mixed = replace(spec, architectures=(*spec.architectures, other), assignment=(0, 1, 0, 1))
    with pytest.raises(UserError, match="all clients need the same architecture"):
        SCAFFOLD().setup(mixed)


def test_it_says_that_it_steps_without_momentum_and_by_how_much_data_there_is() -> None:
    rate, steps = SCAFFOLD().caveats()
    assert "without momentum" in rate
    assert "eta_l" in rate
    assert "as many local steps as their data give" in steps
    assert SCAFFOLD(eta_l=0.1).caveats() == [steps]
