"""FedProx: the pull, its gradient, and what it comes to."""

import torch
from conftest import simulate, slope, specification, visit
from torch import Tensor

from fedgraft.core.client import Client
from fedgraft.core.model import Model
from fedgraft.core.training import Phase
from fedgraft.data.federation import Federation
from fedgraft.methods.fedavg import FedAvg
from fedgraft.methods.fedprox import FedProx, pulled


def double_network() -> torch.nn.Module:
    return torch.nn.Sequential(torch.nn.Linear(6, 5), torch.nn.Tanh(), torch.nn.Linear(5, 3)).double()


def test_the_pull_is_half_of_mu_times_the_squared_distance(fed: Federation) -> None:
    spec = specification(fed)
    client = visit(fed, spec)
    w = client.own
    x, y = client.data.train.batch(slice(None))
    method = FedProx()
    model = client.model(w + 0.5)
    plain = method.loss(client, model, x, y)
    with_pull = pulled(method, client, w, mu=0.3)(model, x, y)
    # 53 weights, each 0.5 away: 0.3 / 2 * 53 * 0.25
    torch.testing.assert_close(with_pull - plain, torch.tensor(0.3 / 2 * 53 * 0.25), rtol=1e-5, atol=0)


def test_its_gradient_points_back_to_the_received_model(fed: Federation) -> None:
    spec = specification(fed, build=double_network)
    client = visit(fed, spec)
    w = client.own
    x, y = client.data.train.batch(slice(None))
    loss = pulled(FedProx(), client, w, mu=2.0)
    at = w + 0.1 * torch.randn(len(w), generator=torch.Generator().manual_seed(0), dtype=w.dtype)
    model = client.model(at)
    gradient = model.differentiate(loss(model, x, y)).clone()
    plain = model.differentiate(FedAvg().loss(client, model, x, y)).clone()
    torch.testing.assert_close(gradient - plain, 2.0 * (at - w))
    for entry in (0, 17, len(w) - 1):
        expected = slope(lambda v: loss(client.model(v), x, y).item(), at, entry)
        torch.testing.assert_close(float(gradient[entry]), expected, rtol=1e-5, atol=1e-7)


def test_a_stronger_pull_keeps_clients_nearer_and_none_is_fedavg(fed: Federation) -> None:
    spec = specification(fed, rounds=1, lr=0.05, momentum=0.0)
    moved = {}
    for mu in (0.0, 1.0, 10.0):
        _, _, engine = simulate(FedProx(mu=mu), fed, spec)
        moved[mu] = [float((state["own"] - spec.initial(c)).norm()) for c, state in engine.states.items()]
    assert all(a > b > c for a, b, c in zip(*moved.values(), strict=True))
    _, _, fedavg = simulate(FedAvg(), fed, spec)
    _, _, unpulled = simulate(FedProx(mu=0.0), fed, spec)
    assert all(torch.equal(fedavg.states[c]["own"], unpulled.states[c]["own"]) for c in fedavg.states)


def test_a_method_on_the_leash_keeps_its_own_loss_and_plan(fed: Federation) -> None:
    class HeadOnly(FedProx):
        """Trains the head of client 0 alone, and not on what the others do."""

        def plan(self, client: Client) -> tuple[Phase, ...]:
            return (Phase("head"),) if client.id == 0 else (Phase(),)

        def loss(self, client: Client, model: Model, x: Tensor, y: Tensor) -> Tensor:
            return (1 + client.id) * super().loss(client, model, x, y)

    spec = specification(fed)
    client = visit(fed, spec)
    trained = HeadOnly().fit(client, client.own)
    extractor = client.layout.span("extractor")
    assert torch.equal(trained[extractor], client.own[extractor])
    assert not torch.equal(trained, client.own)


def test_without_a_pull_it_says_that_it_is_fedavg() -> None:
    assert FedProx(mu=0.0).caveats() == ("mu = 0 makes FedProx the same as FedAvg",)
    assert FedProx().caveats() == ()
