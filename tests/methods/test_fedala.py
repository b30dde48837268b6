"""FedALA: steps of A on paper, its derivative, the first search and its end; FedAvg and local training as limits."""

from dataclasses import dataclass

import numpy as np
import pytest
import torch
from conftest import blobs, simulate, slope, small_network, specification, visit
from torch import Tensor
from torch.nn import functional

from fedgraft.core.client import Client
from fedgraft.core.exchange import train
from fedgraft.core.message import Message
from fedgraft.core.method import Spec
from fedgraft.core.model import Model
from fedgraft.data.federation import Federation
from fedgraft.methods.fedala import FedALA, portion, top_layers
from fedgraft.methods.fedavg import FedAvg
from fedgraft.methods.local import Local

HEAD = slice(35, 53)


@dataclass(frozen=True)
class Bowl(FedALA):
    """CE replaced by 1/2 ||s||^2: its gradient at s is s."""

    def loss(self, client: Client, model: Model, x: Tensor, y: Tensor) -> Tensor:
        return model.weights.square().sum() / 2


def experienced(fed: Federation, spec: Spec, theta: Tensor, width: int = 18, *, settled: bool = True) -> Client:
    """A client that has trained before."""
    client = visit(fed, spec)
    client["own"], client["A"] = theta, theta.new_ones(width)
    if settled:
        client["settled"] = torch.ones(())
    return client


def test_two_steps_by_hand(fed: Federation) -> None:
    # theta = 0, w = 2, eta = 1/8: s = 2, A = 1 - 1/8 * 2 * 2 = 1/2; s = 1, A = 1/2 - 1/8 * 1 * 2 = 1/4; s = 1/2
    client = experienced(fed, specification(fed, batch_size=8), torch.zeros(53))  # 16 of 20 samples: two batches
    s = Bowl(eta=0.125).assemble(client, Message(weights=torch.full((53,), 2.0)))
    assert client["A"].tolist() == [0.25] * 18
    assert s[:35].tolist() == [2.0] * 35, "lower layers come from the download"
    assert s[HEAD].tolist() == [0.5] * 18


def test_weights_are_clipped(fed: Federation) -> None:
    for w, theta, expected in ((2.0, 0.0, 0.0), (0.0, 2.0, 1.0)):
        client = experienced(fed, specification(fed), torch.full((53,), theta))
        s = Bowl(eta=9.0).assemble(client, Message(weights=torch.full((53,), w)))
        assert client["A"].tolist() == [expected] * 18
        assert s[HEAD].tolist() == [0.0] * 18


@pytest.mark.parametrize(("p", "width", "norm"), [(1, 18, False), (2, 53, False), (1, 18, True), (2, 63, True)])
def test_the_step_is_the_derivative(fed: Federation, p: int, width: int, norm: bool) -> None:
    # with BatchNorm in training mode: the batch's statistics
    spec = specification(fed, build=lambda: small_network(norm=norm)().double(), batch_size=100)
    w, theta = spec.initial(0), spec.initial(0, independent=True)
    client = experienced(fed, spec, theta, width)
    client["A"] = A = 0.3 + 0.4 * torch.rand(width, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    x, y = portion(client, 0.8).batch(slice(None))
    FedALA(p=p, eta=0.01).assemble(client, Message(weights=w))
    model, trained = spec.architectures[0].model().train_on(16), spec.layout(0).trained
    top = slice(trained - width, trained)

    def f(A: Tensor) -> float:
        s = w.clone()
        s[top] = theta[top] + A * (w - theta)[top]
        with torch.no_grad():
            return float(functional.cross_entropy(model.load(s)(x), y))

    for entry in (0, 5, 11, 17, width - 1):
        step = float(A[entry] - client["A"][entry]) / 0.01
        assert step == pytest.approx(slope(f, A, entry), rel=1e-5, abs=1e-9)


def test_without_learning_it_is_fedavg(fed: Federation) -> None:
    spec = specification(fed, norm=True)
    for p in (1, 2):
        done, ours, mine = simulate(FedALA(eta=0.0, p=p), fed, spec, share=0.75)
        average, theirs, other = simulate(FedAvg(), fed, spec, share=0.75)
        assert torch.equal(ours["weights/0"], theirs["weights/0"]), "a weight of 1 gives the download's very bits"
        assert done[-1].test == average[-1].test
        for client in range(4):
            assert torch.equal(mine.states[client]["own"], other.states[client]["own"])


def test_no_weight_on_the_download_is_local_training(fed: Federation) -> None:
    @dataclass(frozen=True)
    class Stubborn(FedALA):
        def join(self, client: Client) -> None:
            client["A"] = torch.zeros(53)

    spec = specification(fed)
    done, _, mine = simulate(Stubborn(p=99, eta=0.0), fed, spec, share=0.75)
    alone, _, other = simulate(Local(), fed, spec, share=0.75)
    assert done[-1].test == alone[-1].test
    for client in range(4):
        assert torch.equal(mine.states[client]["own"], other.states[client]["own"])


@pytest.mark.parametrize("p", [1, 2])
def test_the_start_lies_between_the_old_model_and_the_download(fed: Federation, p: int) -> None:
    spec = specification(fed)
    _, server, engine = simulate(FedALA(p=p), fed, spec)
    w = server["weights/0"]
    for client in range(4):
        A, theta = engine.states[client]["A"], engine.states[client]["own"]
        assert bool(((A >= 0) & (A <= 1)).all())
        assert not bool((A == 1).all())
        guest = visit(fed, spec, client, round=3)
        guest.update(engine.states[client])
        s = FedALA(p=p).assemble(guest, Message(weights=w))
        assert bool((torch.minimum(theta, w) <= s).all())
        assert bool((s <= torch.maximum(theta, w)).all())
        if p == 1:
            assert torch.equal(s[:35], w[:35])


def test_the_first_start_is_the_download(fed: Federation) -> None:
    spec = specification(fed)
    client = visit(fed, spec)
    w = torch.full((53,), 0.1)
    assert torch.equal(FedALA().assemble(client, Message(weights=w)), w)
    assert "A" not in client
    train(FedALA(), client, Message(weights=w))
    assert client["A"].tolist() == [1.0] * 18
    assert "settled" not in client, "nothing has been learned yet"
    assert not torch.equal(FedALA().assemble(client, Message(weights=w)), w)
    done, _, engine = simulate(FedALA(), fed, specification(fed, rounds=2), share=0.5)
    average, _, _ = simulate(FedAvg(), fed, specification(fed, rounds=1), share=0.5)
    never = set(range(4)) - {client for this in done for client in this.participants}
    assert never
    for client_id in never:
        assert set(engine.states[client_id]) <= {"own", "joined"}
        absent, theirs = done[0].test["received"].per_client, average[0].test["received"].per_client
        assert absent[client_id] == theirs[client_id], "one that never trained holds the global model"


def epochs_run(method: FedALA, client: Client, losses: list[float]) -> int:
    """How many epochs A is learned when the epochs' losses are these."""
    seen = []

    @dataclass(frozen=True)
    class Scripted(FedALA):
        def loss(self, client: Client, model: Model, x: Tensor, y: Tensor) -> Tensor:
            seen.append(1)
            return losses[len(seen) - 1] + 0 * model.weights.sum()

    Scripted(**method.parameters()).assemble(client, Message(weights=torch.zeros(53)))
    return len(seen)


def test_the_first_search_ends_when_the_losses_settle_or_at_its_limit(fed: Federation) -> None:
    spec = specification(fed, batch_size=100)  # one batch an epoch

    def fresh() -> Client:
        return experienced(fed, spec, torch.ones(53), settled=False)

    assert epochs_run(FedALA(), fresh(), [1.0] * 60) == 11, "ten losses, and one more to compare"
    # the window still holds the 9 until the eleventh loss after it: std of (9, 1, ..., 1) is 2.4
    assert epochs_run(FedALA(), fresh(), [1.0] * 3 + [9.0] + [1.0] * 60) == 14
    assert epochs_run(FedALA(), fresh(), [1.0, 2.0] * 30) == 50
    assert epochs_run(FedALA(limit=7), fresh(), [1.0, 2.0] * 30) == 7
    assert epochs_run(FedALA(threshold=0.6), fresh(), [1.0, 2.0] * 30) == 11
    assert epochs_run(FedALA(limit=12), fresh(), [1.0] * 60) == 11, "the smallest limit that a threshold may precede"
    again = fresh()
    epochs_run(FedALA(), again, [1.0] * 60)
    assert epochs_run(FedALA(), again, [1.0] * 60) == 1, "afterwards one epoch is enough"


def test_p_counts_layers_with_their_normalisation(fed: Federation) -> None:
    plain = specification(fed).architectures[0]
    assert [len(top_layers(plain, p)) for p in (1, 2, 99)] == [18, 53, 53]
    assert top_layers(plain, 1).tolist() == list(range(35, 53))
    norm = specification(fed, norm=True).architectures[0]
    assert [len(top_layers(norm, p)) for p in (1, 2)] == [18, 63]


def test_the_portion_is_drawn_from_everywhere() -> None:
    fed = blobs((50, 1))
    spec = specification(fed)
    client = visit(fed, spec)
    data = portion(client, 0.3)
    positions = sorted(int((client.data.train.inputs == row).all(1).nonzero()) for row in data.inputs)
    assert len(set(positions)) == 15
    assert np.ptp(positions) > 25, "not one contiguous stretch"
    assert len(portion(visit(fed, spec, 1), 0.3)) == 1
    later = portion(visit(fed, spec, round=1), 0.3)
    assert not torch.equal(later.inputs, data.inputs), "another one in the next round"


def test_learning_the_weights_leaves_statistics_alone(fed: Federation) -> None:
    spec = specification(fed, norm=True)
    w = spec.initial(0)
    client = experienced(fed, spec, w + 0.1, settled=False)
    s = FedALA().assemble(client, Message(weights=w))
    trained = spec.layout(0).trained
    assert torch.equal(s[trained:], w[trained:])
    assert not torch.equal(s[trained - 18 : trained], w[trained - 18 : trained])
    assert "integers" not in client


def test_the_received_model_is_mixed_anew_on_a_fork(fed: Federation) -> None:
    spec = specification(fed)
    done, server, engine = simulate(FedALA(), fed, spec, share=0.75)
    live = spec.architectures[0].model()
    for client, data in enumerate(fed.clients):
        guest = visit(fed, spec, client, round=2, purpose="evaluate")
        guest.update(engine.states[client])
        s = FedALA().assemble(guest, Message(weights=server["weights/0"]))
        x, y = data.test.batch(slice(None))
        for point, weights in (("received", s), ("trained", engine.states[client]["own"])):
            with live.load(weights).evaluating():
                right = float((live(x).argmax(1) == y).float().mean())
            assert done[-1].test[point].per_client[client] == pytest.approx(right)


def test_caveats() -> None:
    assert not FedALA().caveats()
    assert any("FedAvg" in sentence for sentence in FedALA(eta=0).caveats())
    assert any("before threshold can" in sentence for sentence in FedALA(limit=11).caveats())
    assert not FedALA(limit=12).caveats()
