"""pFedMe: two local rounds worked out on paper, the proximal gradient, the server's step, and who is tested."""

from dataclasses import dataclass
from typing import Any

import pytest
import torch
from conftest import blobs, simulate, slope, small_network, specification, visit
from torch import Tensor
from torch.nn import functional

from fedgraft.core.client import Client
from fedgraft.core.exchange import train
from fedgraft.core.message import Message
from fedgraft.core.model import Model
from fedgraft.data.federation import Federation
from fedgraft.methods.fedavg import FedAvg
from fedgraft.methods.pfedme import PFedMe, toward


@dataclass(frozen=True)
class Bowl(PFedMe):
    """f(theta) = 1/2 ||theta - 1||^2 whatever the batch: every weight is a problem of its own, solved on paper."""

    def loss(self, client: Client, model: Model, x: Tensor, y: Tensor) -> Tensor:
        return (model.weights - 1).square().sum() / 2


def test_two_local_rounds_by_hand(fed: Federation) -> None:
    # w = 0, lam = 2, eta_p = .1, eta = .25, so that w_i goes half of the way to theta
    # round 1: theta = 0 + .1,  .1 - .1 (-.9 + .2) = .17,                                  w_i = .085
    # round 2: theta = .17 - .1 (-.83 + .17) = .236,  .236 - .1 (-.764 + .302) = .2822,    w_i = .1836
    client = visit(fed, specification(fed))
    w = Bowl(lam=2, eta_p=0.1, eta=0.25, K=2, R=2).fit(client, torch.zeros(53))
    assert client["theta"].tolist() == pytest.approx([0.2822] * 53)
    assert w.tolist() == pytest.approx([0.1836] * 53)


def test_theta_tends_to_the_proximal_point(fed: Federation) -> None:
    # argmin 1/2 (theta - 1)^2 + lam/2 (theta - w)^2 = (1 + lam w) / (1 + lam)
    client = visit(fed, specification(fed))
    Bowl(lam=3, eta_p=0.1, eta=0.0, K=100, R=1).fit(client, torch.full((53,), 0.2))
    assert client["theta"].tolist() == pytest.approx([0.4] * 53)


def test_the_step_is_the_gradient_of_the_proximal_objective(fed: Federation) -> None:
    spec = specification(fed, build=lambda: small_network()().double(), batch_size=100)
    w = spec.initial(0)

    def theta(K: int) -> Tensor:
        client = visit(fed, spec)
        PFedMe(lam=2.0, eta_p=0.1, K=K, R=1).fit(client, w.clone())
        return client["theta"]

    model, (x, y) = spec.architectures[0].model(), visit(fed, spec).data.train.batch(slice(None))

    def objective(at: Tensor) -> float:
        with model.load(at).evaluating():
            return float(functional.cross_entropy(model(x), y) + 2.0 / 2 * (at - w).square().sum())

    step = (theta(2) - theta(3)) / 0.1
    assert float((2.0 * (theta(2) - w)).abs().max()) > 1e-2, "the spring has to count"
    for entry in (0, 17, 33, 40, 52):
        assert float(step[entry]) == pytest.approx(slope(objective, theta(2), entry), rel=1e-5, abs=1e-9)


def test_theta_starts_from_the_download_in_every_round(fed: Federation) -> None:
    spec = specification(fed)
    clean, haunted = visit(fed, spec), visit(fed, spec)
    haunted["theta"] = torch.full((53,), 7.0)
    w = torch.full((53,), 0.1)
    assert torch.equal(PFedMe().fit(clean, w), PFedMe().fit(haunted, w))
    assert torch.equal(clean["theta"], haunted["theta"])
    assert torch.equal(w, torch.full((53,), 0.1)), "the download itself is left alone"


@pytest.mark.parametrize(("beta", "expected"), [(0.0, 1.0), (0.5, 2.0), (1.0, 3.0), (2.0, 5.0)])
def test_the_server_goes_beta_of_the_way_to_the_mean(beta: float, expected: float) -> None:
    # the mean of 2 and 5, from 20 and 10 samples, is 3
    fed = blobs((20, 10))
    method = PFedMe(beta=beta)
    server = method.setup(specification(fed))
    server["weights/0"] = torch.ones(53)
    method.merge(server, {0: Message(weights=torch.full((53,), 2.0)), 1: Message(weights=torch.full((53,), 5.0))})
    assert server["weights/0"].tolist() == pytest.approx([expected] * 53)


def test_statistics_are_never_extrapolated(fed: Federation) -> None:
    start, end = torch.tensor([1.0, 1.0]), torch.tensor([0.2, 0.2])
    assert toward(start, end, 2.0, trained=1).tolist() == pytest.approx([-0.6, 0.2])
    spec = specification(fed, norm=True, rounds=4)
    _, server, _ = simulate(PFedMe(beta=3.0, eta=0.02, lam=10, eta_p=0.02), fed, spec)
    variances = server["weights/0"][spec.layout(0).trained + 5 :]
    assert bool((variances > 0).all())
    assert not torch.equal(variances, torch.ones(5))


@pytest.mark.parametrize("buffers", ["keep", "local"])
def test_statistics_that_do_not_travel(fed: Federation, buffers: str) -> None:
    spec = specification(fed, norm=True, buffers=buffers)
    _, server, engine = simulate(PFedMe(), fed, spec)
    assert server["weights/0"].numel() == spec.layout(0).trained
    for state in engine.states.values():
        for name in ("own", "theta"):
            same = torch.equal(state[name][spec.layout(0).trained :], spec.initial(0)[spec.layout(0).trained :])
            assert same == (buffers == "keep")


@pytest.mark.parametrize("still", [{"beta": 0.0}, {"eta": 0.0}, {"eta": 0.0, "beta": 2.0}, {"lam": 0.0}])
def test_a_global_model_that_never_moves(fed: Federation, still: dict[str, Any]) -> None:
    spec = specification(fed)
    _, server, engine = simulate(PFedMe(**still), fed, spec)
    assert torch.equal(server["weights/0"], spec.initial(0))
    assert not torch.equal(engine.states[0]["theta"], spec.initial(0)), "but clients learn"
    assert any("never moves" in sentence for sentence in PFedMe(**still).caveats())


def test_one_step_of_full_batch_is_fedavg_bit_for_bit(fed: Federation) -> None:
    # eta lam = 1 and K = 1: w_i = theta = w - eta_p grad f(w)
    spec = specification(fed, lr=0.25, momentum=0.0, epochs=1, batch_size=100)
    _, ours, mine = simulate(PFedMe(lam=8.0, eta=0.125, eta_p=0.25, K=1, R=1), fed, spec, share=0.75)
    _, theirs, other = simulate(FedAvg(), fed, spec, share=0.75)
    assert torch.equal(ours["weights/0"], theirs["weights/0"])
    for client in range(len(fed)):
        assert torch.equal(mine.states[client]["own"], other.states[client]["own"])


def test_the_personal_model_is_theta_and_not_the_uploaded_copy(fed: Federation) -> None:
    spec = specification(fed)
    client = visit(fed, spec)
    train(PFedMe(), client, Message(weights=spec.initial(0)))
    assert not torch.equal(client["theta"], client.own)
    for trained in (None, client.own):
        PFedMe().personal(client, Message(weights=spec.initial(0)), trained)
        assert torch.equal(client.model().vector, client["theta"])


def test_absent_clients_keep_their_last_theta(fed: Federation) -> None:
    _, _, before = simulate(PFedMe(), fed, specification(fed, rounds=2), share=0.75)
    done, _, after = simulate(PFedMe(), fed, specification(fed, rounds=3), share=0.75)
    for client in range(4):
        same = torch.equal(before.states[client].get("theta", torch.zeros(53)), after.states[client]["theta"])
        assert same == (client not in done[-1].participants)


def test_the_paper_s_other_number_is_the_global_model(fed: Federation) -> None:
    spec = specification(fed, rounds=2)
    client = visit(fed, spec)
    method = PFedMe(tested="global")
    train(method, client, Message(weights=spec.initial(0)))
    w = torch.full((53,), 0.1)
    method.personal(client, Message(weights=w))
    assert torch.equal(client.model().vector, w)
    method.personal(client, Message(weights=w), client.own)
    assert torch.equal(client.model().vector, client["theta"])


def test_solving_around_the_newest_model_leaves_the_kept_theta_alone(fed: Federation) -> None:
    spec = specification(fed, rounds=2)
    usual, *_ = simulate(PFedMe(), fed, spec)
    done, *_ = simulate(PFedMe(tested="solved"), fed, spec)
    assert done[-1].test["trained"] == usual[-1].test["trained"]
    assert done[-1].test["received"].figures["log_loss"].pooled != usual[-1].test["received"].figures["log_loss"].pooled
    # the spring holds it at the proximal point around the download, which the local rounds would have moved
    client = visit(fed, spec)
    method = Bowl(lam=3, eta_p=0.1, eta=0.1, K=10, R=10, tested="solved")
    method.join(client)
    method.personal(client, Message(weights=torch.full((53,), 0.2)))
    assert client.model().vector.tolist() == pytest.approx([0.4] * 53)


def test_local_rounds_count_batches(fed: Federation) -> None:
    spec = specification(fed)  # 20 samples in batches of 4, two epochs
    for R, batches in ((3, 3), (12, 12), (0, 10)):
        client = visit(fed, spec)
        PFedMe(R=R, K=2).fit(client, spec.initial(0))
        assert client.steps == 2 * batches


def test_the_run_s_decay_counts_and_its_momentum_does_not(fed: Federation) -> None:
    def left(**settings: Any) -> Tensor:
        client = visit(fed, specification(fed, **settings), round=3)
        PFedMe().fit(client, client.own)
        return client["theta"]

    assert torch.equal(left(momentum=0.9), left(momentum=0.0))
    assert not torch.equal(left(weight_decay=0.1), left())
    # decay alone: f = 0 is 1/2 wd theta^2, so that a step without spring is theta (1 - eta_p wd)
    client = visit(fed, specification(fed, weight_decay=0.5))

    @dataclass(frozen=True)
    class Flat(PFedMe):
        def loss(self, client: Client, model: Model, x: Tensor, y: Tensor) -> Tensor:
            return 0 * model.weights.sum()

    Flat(K=1, R=1, eta_p=0.1).fit(client, torch.ones(53))
    assert client["theta"].tolist() == pytest.approx([0.95] * 53)


def test_both_step_sizes_follow_the_run_s_schedule(fed: Federation) -> None:
    # in the second round they are halved: theta = .5 * .1 from 0 towards 1, and w_i goes .5 * .25 * 2 of that way
    client = visit(fed, specification(fed, schedule="exponential:0.5"), round=1)
    w = Bowl(lam=2, eta_p=0.1, eta=0.25, K=1, R=1).fit(client, torch.zeros(53))
    assert client["theta"].tolist() == pytest.approx([0.05] * 53)
    assert w.tolist() == pytest.approx([0.0125] * 53)
    # without an eta it is .1 / (1 - .5) of the run's SGD, halved by now: .5 * .2 * 2 of the way
    w = Bowl(lam=2, eta_p=0.1, K=1, R=1).fit(client, torch.zeros(53))
    assert w.tolist() == pytest.approx([0.01] * 53)


@pytest.mark.parametrize(
    ("lr", "momentum", "lam", "eta"),
    [(0.01, 0.0, 15, 0.01), (0.01, 0.5, 15, 0.02), (0.01, 0.9, 15, 0.05), (0.1, 0.9, 15, 0.05), (0.01, 0.9, 0, 0.1)],
)
def test_the_default_step_is_that_of_the_run_with_its_momentum_up_to_theta(
    fed: Federation, lr: float, momentum: float, lam: float, eta: float
) -> None:
    client = visit(fed, specification(fed, lr=lr, momentum=momentum))
    assert PFedMe(lam=lam).step(client) == pytest.approx(eta)
    assert PFedMe(lam=lam, eta=0.005).step(client) == pytest.approx(0.005)


def test_the_upload_is_the_moved_copy(fed: Federation) -> None:
    spec = specification(fed)
    client = visit(fed, spec)
    reply = train(PFedMe(), client, Message(weights=spec.initial(0)))
    assert torch.equal(reply["weights"], client.own)
    assert not torch.equal(reply["weights"], client["theta"])


def test_caveats() -> None:
    assert not PFedMe().caveats()
    assert any("diverge" in sentence for sentence in PFedMe(eta=0.2).caveats())
