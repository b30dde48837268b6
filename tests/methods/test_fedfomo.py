"""FedFomo: its weights from their formula, its epsilon-greedy picks, its split, its siblings."""

from dataclasses import dataclass

import numpy as np
import pytest
import torch
from conftest import CLASSES, blobs, fleet, simulate, small_network, specification, visit
from torch import Tensor
from torch.nn import functional

from fedgraft.base.errors import UserError
from fedgraft.core import evaluation
from fedgraft.core.client import Client
from fedgraft.core.message import Message
from fedgraft.core.method import Server
from fedgraft.core.samples import Samples
from fedgraft.data.federation import Federation, Site, own_data
from fedgraft.methods.fedfomo import FedFomo
from fedgraft.methods.local import Local


def make_client(
    count: int = 45, *, id: int = 1, round: int = 0, purpose: str = "train", norm: bool = False, **settings: str
) -> Client:
    """One of four clients with the same samples, in float64."""
    fed = blobs((count,))
    alike = Federation("alike", fed.clients * 4, fed.task, "own", 0)
    spec = specification(alike, build=lambda: small_network(6, norm=norm)().double(), **settings)
    return visit(alike, spec, id, round=round, purpose=purpose)


def mean_loss(client: Client, weights: Tensor, samples: Samples) -> Tensor:
    """The mean cross-entropy, from the formulas of the network alone."""
    slots = client.layout.named(weights)
    hidden = functional.relu(functional.linear(samples.inputs, slots["0.weight"], slots["0.bias"]))
    return functional.cross_entropy(functional.linear(hidden, slots["2.weight"], slots["2.bias"]), samples.labels)


def nearby(client: Client, count: int, scale: float = 0.5, seed: int = 0) -> Tensor:
    rng = torch.Generator().manual_seed(seed)
    return client.own + scale * torch.randn(count, client.layout.size, generator=rng, dtype=torch.float64)


@pytest.mark.parametrize("norm", ["l2", "l1"])
def test_weights_are_the_positive_gains_for_each_unit_of_distance(norm: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(evaluation, "BATCH", 4)  # nine samples in batches of 4, 4 and 1: the mean is over samples
    method, client = FedFomo(norm=norm), make_client()  # type: ignore[arg-type]
    r, theta = client.own, nearby(client, 6)
    _, validation = method.split(client)
    assert len(validation) == 9
    gain = torch.stack([mean_loss(client, r, validation) - mean_loss(client, t, validation) for t in theta])
    distance = (theta - r).norm(dim=1) if norm == "l2" else (theta - r).abs().sum(1)
    w, u = method.weigh(client, r, theta)
    torch.testing.assert_close(u, gain / distance)
    assert bool((u > 0).any())
    assert bool((u < 0).any())
    torch.testing.assert_close(w, u.clamp(min=0) / u.clamp(min=0).sum())
    assert float(w.sum()) == pytest.approx(1)
    assert bool((w[u <= 0] == 0).all())


def test_the_gain_is_the_slope_towards_a_near_model() -> None:
    method, client = FedFomo(), make_client()
    r = client.own.clone().requires_grad_()
    loss = mean_loss(client, r, method.split(client)[1])
    (slope,) = torch.autograd.grad(loss, r)
    theta = nearby(client, 4, scale=1e-4)
    direction = (theta - client.own) / (theta - client.own).norm(dim=1, keepdim=True)
    _, u = method.weigh(client, client.own, theta)
    torch.testing.assert_close(u, -direction @ slope, rtol=1e-2, atol=1e-5)


def message(theta: Tensor, ids: list[int]) -> Message:
    return Message(models=theta, ids=torch.tensor(ids, dtype=torch.int64))


def test_the_new_start_is_the_weighted_mean_with_the_own_model_among_the_candidates() -> None:
    method, client = FedFomo(), make_client()
    client["reference"] = nearby(client, 1, scale=2.0, seed=5)[0]
    theta = nearby(client, 2)
    w, u = method.weigh(client, client["reference"], torch.stack([client.own, *theta]))
    assert bool((w > 0).all())
    s = method.assemble(client, message(theta, [3, 0]))
    torch.testing.assert_close(s, w[0] * client.own + w[1] * theta[0] + w[2] * theta[1])
    torch.testing.assert_close(client["gains"], torch.stack([u[2], u[0], 0 * u[0], u[1]]))


def test_when_nothing_is_better_the_client_goes_on_or_goes_back() -> None:
    client = make_client()
    _, validation = FedFomo().split(client)
    candidates = sorted(nearby(client, 12), key=lambda weights: float(mean_loss(client, weights, validation)))
    client["reference"], own = candidates[0], candidates[-1]
    client["own"] = own
    theta = torch.stack(candidates[5:7])
    assert torch.equal(FedFomo().assemble(client, message(theta, [0, 2])), own)
    assert torch.equal(FedFomo(fallback="reference").assemble(client, message(theta, [0, 2])), candidates[0])
    assert bool((client["gains"][[0, 1, 2]] < 0).all()), "the server hears of it all the same"


def test_candidates_that_are_all_the_own_model_leave_it() -> None:
    method, client = FedFomo(), make_client()
    client["reference"] = nearby(client, 1, scale=2.0, seed=5)[0]
    s = method.assemble(client, message(client.own.repeat(3, 1), [0, 2, 3]))
    torch.testing.assert_close(s, client.own)


def test_a_model_at_no_distance_and_one_that_exploded_gain_nothing() -> None:
    method, client = FedFomo(), make_client()
    theta = torch.stack([client.own, torch.full_like(client.own, 1e200), nearby(client, 12)[0]])
    w, u = method.weigh(client, client.own, theta)
    assert u[:2].tolist() == [0, 0]
    assert bool(w.isfinite().all())
    _, u = FedFomo(affinity="normalised").weigh(client, client.own, theta[:2])
    assert u.tolist() == [0, 0]


def test_trying_a_model_does_not_change_it() -> None:
    method, client = FedFomo(), make_client(norm=True)
    client["integers"] = torch.tensor([7])
    theta = nearby(client, 3, scale=0.01)
    before = theta.clone()
    method.weigh(client, client.own, theta)
    assert torch.equal(theta, before)
    assert client["integers"].tolist() == [7]


def test_distance_is_that_of_trained_parameters_and_statistics_stay_where_the_run_says() -> None:
    method, client = FedFomo(), make_client(norm=True, buffers="local")
    trained, own = client.layout.trained, client.own
    other, twin = own.clone(), own.clone()
    other[:trained] += 0.1
    for model in (other, twin):
        model[trained:] += 3.0
    _, u = method.weigh(client, own, torch.stack([other, twin]))
    _, validation = method.split(client)
    live = client.model()
    gains = []
    for model in (own, other):
        with live.load(model).evaluating():
            gains.append(functional.cross_entropy(live(validation.inputs), validation.labels))
    assert float(u[0]) == pytest.approx(float(gains[0] - gains[1]) / (0.1 * trained**0.5))
    assert float(u[1]) == 0, "other statistics alone are no distance"
    client["reference"] = other
    for candidate in (other, 2 * other):
        s = method.assemble(client, message(candidate[None, :trained], [0]))
        torch.testing.assert_close(s[trained:], own[trained:])


def test_the_split_is_made_once() -> None:
    method = FedFomo()
    train, validation = method.split(make_client(45))
    assert (len(train), len(validation)) == (36, 9)
    rows = {tuple(row) for part in (train, validation) for row in part.inputs.tolist()}
    assert len(rows) == 45, "every sample is on one side"
    for other in (make_client(45, round=3), make_client(45, purpose="evaluate")):
        assert torch.equal(method.split(other)[1].inputs, validation.inputs)
    assert not torch.equal(method.split(make_client(45, id=2))[1].inputs, validation.inputs)
    assert [len(part) for part in method.split(make_client(2))] == [1, 1]
    assert [len(part) for part in method.split(make_client(1))] == [1, 1], "a single sample serves both"
    assert [len(part) for part in FedFomo(validation=0.9).split(make_client(3))] == [1, 2]


# ---- the server's picks


def affinities(method: FedFomo, fed: Federation, row: list[float], uploaded: list[int]) -> Server:
    server = method.setup(specification(fed, rounds=50))
    server["P"][0] = torch.tensor(row)
    server["uploaded"][uploaded] = True
    return server


def picks(method: FedFomo, server: Server, rounds: int = 400) -> np.ndarray:
    """How often each client is picked first for client 0."""
    counts = np.zeros(server.spec.clients)
    for server.round in range(rounds):
        counts[method.pick(server, 0)[0]] += 1
    return counts / rounds


def test_picks_are_greedy_with_chance_epsilon_of_any(fed: Federation) -> None:
    row = [9.0, 0.1, 0.5, -0.2]
    greedy = FedFomo(M=1, epsilon=0.0)
    assert picks(greedy, affinities(greedy, fed, row, [0, 1, 2, 3])).tolist() == [0, 0, 1, 0]
    curious = FedFomo(M=1, epsilon=0.3, decay=0.0)
    shares = picks(curious, affinities(curious, fed, row, [0, 1, 2, 3]))
    assert shares == pytest.approx([0, 0.1, 0.8, 0.1], abs=0.06)
    two = FedFomo(M=2, epsilon=0.0)
    assert two.pick(affinities(two, fed, row, [0, 1, 2, 3]), 0).tolist() == [2, 1]


def test_exploration_fades(fed: Federation) -> None:
    method = FedFomo(M=1, epsilon=0.3, decay=0.05)
    server = affinities(method, fed, [0.0, 0.1, 0.5, -0.2], [1, 2, 3])
    chosen = {}
    for server.round in range(50):
        chosen[server.round] = int(method.pick(server, 0)[0])
    assert all(chosen[r] == 2 for r in range(6, 50)), "0.3 - 6 * 0.05 = 0"


def test_ties_are_broken_at_random_and_only_uploads_count(fed: Federation) -> None:
    method = FedFomo(M=1, epsilon=0.0)
    shares = picks(method, affinities(method, fed, [0.0] * 4, [0, 1, 3]))
    assert shares == pytest.approx([0, 0.5, 0, 0.5], abs=0.08)
    many = FedFomo(M=9)
    assert sorted(many.pick(affinities(many, fed, [0.0] * 4, [0, 1, 3]), 0).tolist()) == [1, 3]
    assert len(method.pick(method.setup(specification(fed)), 0)) == 0


def test_affinities_add_up(fed: Federation) -> None:
    method = FedFomo()
    server = method.setup(specification(fed))
    width = server["bank"].shape[1]
    for gains in ([0.0, 1.0, 2.0, -3.0], [0.5, 0.0, 1.0, 1.0]):
        method.merge(server, {2: Message(weights=torch.ones(width), gains=torch.tensor(gains))})
    assert server["P"].tolist() == [[0] * 4, [0] * 4, [0.5, 1, 3, -2], [0] * 4]
    assert server["uploaded"].tolist() == [False, False, True, False]
    client = make_client()
    theta = nearby(client, 4)
    _, raw = FedFomo().weigh(client, client.own, theta)
    _, shares = FedFomo(affinity="normalised").weigh(client, client.own, theta)
    torch.testing.assert_close(shares, raw / raw.sum().abs())


# ---- a run


def test_traffic_and_the_first_round(fed: Federation) -> None:
    spec = specification(fed, rounds=3)
    done, _, _ = simulate(FedFomo(M=2), fed, spec)
    model, gains = 4 * 53, 4 * 4
    assert [this.bytes_down for this in done] == [0, 4 * 2 * (model + 8), 4 * 2 * (model + 8)]
    assert {this.bytes_up for this in done} == {4 * (model + gains)}


def test_a_lone_client_trains_alone_on_its_share_bit_for_bit() -> None:
    fed = blobs((20,))
    spec = specification(fed, rounds=3)
    _, _, ours = simulate(FedFomo(), fed, spec)
    site = fed.clients[0]
    kept: list[Samples] = []

    @dataclass(frozen=True)
    class Peek(FedFomo):
        def join(self, client: Client) -> None:
            super().join(client)
            kept.append(self.split(client)[0])

    simulate(Peek(), fed, spec)
    x, y = kept[0].inputs.numpy(), kept[0].labels.numpy()
    rest = own_data([Site(x, y, site.test.inputs.numpy(), site.test.labels.numpy())], task=f"classification:{CLASSES}")
    assert len(x) == 16
    _, _, alone = simulate(Local(), rest, specification(rest, rounds=3))
    assert torch.equal(ours.states[0]["own"], alone.states[0]["own"])


def test_clients_with_the_same_data_are_as_one() -> None:
    @dataclass(frozen=True)
    class Alike(FedFomo):
        def split(self, client: Client) -> tuple[Samples, Samples]:
            data = client.data.train
            return data.subset(torch.arange(8)), data.subset(torch.arange(8, 10))

    one = blobs((10,))
    site = one.clients[0]
    triplets = Federation("triplets", (site,) * 3, one.task, "own", 0)
    spec = specification(triplets, rounds=3, batch_size=8, momentum=0.0)
    _, _, ours = simulate(Alike(), triplets, spec)
    x, y = site.train.inputs[:8].numpy(), site.train.labels[:8].numpy()
    rest = own_data([Site(x, y, site.test.inputs.numpy(), site.test.labels.numpy())], task=f"classification:{CLASSES}")
    _, _, alone = simulate(Local(), rest, specification(rest, rounds=3, batch_size=8, momentum=0.0))
    for state in ours.states.values():
        torch.testing.assert_close(state["own"], alone.states[0]["own"])


def test_the_reference_is_where_the_last_training_started(fed: Federation) -> None:
    starts: dict[tuple[int, int], Tensor] = {}

    @dataclass(frozen=True)
    class Watching(FedFomo):
        def fit(self, client: Client, received: Tensor) -> Tensor:
            if client.round:
                assert torch.equal(client["reference"], starts[client.round - 1, client.id])
            starts[client.round, client.id] = received.clone()
            return super().fit(client, received)

    spec = specification(fed, rounds=3)
    _, _, engine = simulate(Watching(), fed, spec, evaluate_every=9)
    for client, state in engine.states.items():
        assert torch.equal(starts[0, client], spec.initial(client)), "there is nobody to try in the first round"
        assert torch.equal(state["reference"], starts[2, client])


def test_affinities_are_kept_for_every_round(fed: Federation) -> None:
    done, server, _ = simulate(FedFomo(), fed, specification(fed, rounds=3))
    assert torch.equal(done[-1].observed["P"], server["P"])
    assert not bool(done[0].observed["P"].any()), "nobody has gained yet"
    assert bool(server["P"].any())


def test_caveats_and_one_architecture(fed: Federation) -> None:
    assert not FedFomo().caveats()
    assert any("never explores" in sentence for sentence in FedFomo(epsilon=0.0).caveats())
    with pytest.raises(UserError, match="same architecture"):
        FedFomo().setup(fleet(fed))
