"""FedProto: prototypes and their pull by hand, classes without prototype, and both ways to classify."""

from dataclasses import replace

import pytest
import torch
from conftest import fleet, simulate, slope, small_network, specification, visit
from torch import Tensor
from torch.nn import functional

from fedgraft.base.errors import UserError
from fedgraft.core.client import Client
from fedgraft.core.features import features
from fedgraft.core.message import Message, objection
from fedgraft.core.method import Server, Spec
from fedgraft.core.model import Architecture
from fedgraft.data.federation import Federation
from fedgraft.methods.fedproto import FedProto
from fedgraft.methods.local import Local


def upload(prototypes: dict[int, float], counts: dict[int, int]) -> Message:
    """Prototypes whose five entries are all the same number."""
    mu, n = torch.zeros(3, 5), torch.zeros(3, dtype=torch.int64)
    for c, value in prototypes.items():
        mu[c], n[c] = value, counts[c]
    return Message(prototypes=mu, counts=n)


TWO = {0: upload({0: 1.0, 1: 7.0}, {0: 1, 1: 4}), 2: upload({0: 5.0}, {0: 3})}


def merged(fed: Federation, method: FedProto) -> Server:
    server = method.setup(specification(fed))
    method.merge(server, TWO)
    return server


def test_prototypes_are_means_weighed_by_samples(fed: Federation) -> None:
    server = merged(fed, FedProto())
    assert server["prototypes"][:, 0].tolist() == pytest.approx([4, 7, 0])  # (1 * 1 + 3 * 5) / 4; one holder; nobody
    assert server["known"].tolist() == [True, True, False]
    assert merged(fed, FedProto(weighting="uniform"))["prototypes"][:, 0].tolist() == pytest.approx([3, 7, 0])


def test_a_class_that_nobody_brings_keeps_its_prototype(fed: Federation) -> None:
    method = FedProto()
    server = merged(fed, method)
    method.merge(server, {1: upload({0: 2.0, 2: 9.0}, {0: 1, 2: 1})})
    assert server["prototypes"][:, 0].tolist() == pytest.approx([2, 7, 9])
    assert server["known"].all()


def test_prototypes_lie_between_those_of_the_holders(fed: Federation) -> None:
    rng = torch.Generator().manual_seed(0)
    method = FedProto()
    server = method.setup(specification(fed))
    inbox = {
        c: Message(prototypes=torch.randn(3, 5, generator=rng), counts=torch.randint(1, 9, (3,), generator=rng))
        for c in range(4)
    }
    method.merge(server, inbox)
    mu = torch.stack([message["prototypes"] for message in inbox.values()])
    assert bool((server["prototypes"] <= mu.amax(0) + 1e-6).all())
    assert bool((server["prototypes"] >= mu.amin(0) - 1e-6).all())


def exact(fed: Federation) -> tuple[Spec, Client]:
    """A client with prototypes of the classes 1 and 2 in float64; it has the classes 0 and 2."""
    spec = specification(fed, build=lambda: small_network()().double())
    client = visit(fed, spec, 1)
    G = torch.tensor([[0.0], [1.0], [2.0]], dtype=torch.float64).expand(3, 5)
    FedProto().assemble(client, Message(prototypes=G, known=torch.tensor([False, True, True])))
    return spec, client


def test_the_pull_by_hand(fed: Federation) -> None:
    _, client = exact(fed)
    x, y = client.data.train.batch(slice(None))
    z, _ = features(client, client.own)
    model = client.model(client.own)
    error = float(functional.cross_entropy(model(x).detach(), y))
    assert y.unique().tolist() == [0, 2]
    squares = sum(float((z[i] - 2).square().sum()) / 5 for i in range(len(y)) if y[i] == 2) / len(y)
    assert float(FedProto(lam=0.7).loss(client, model, x, y).detach()) == pytest.approx(error + 0.7 * squares)
    distance = float((z[y == 2].mean(0) - 2).norm())
    euclidean = FedProto(lam=0.7, distance="euclidean")
    assert float(euclidean.loss(client, model, x, y).detach()) == pytest.approx(error + 0.7 * distance)


@pytest.mark.parametrize("distance", ["mse", "euclidean"])
def test_the_gradient_is_that_of_finite_differences(fed: Federation, distance: str) -> None:
    _, client = exact(fed)
    x, y = client.data.train.batch(slice(None))
    method, model = FedProto(lam=0.7, distance=distance), client.model(client.own)

    def objective(weights: Tensor) -> float:
        return float(method.loss(client, model.load(weights), x, y).detach())

    gradient = model.differentiate(method.loss(client, model, x, y)).clone()
    start = client.own.clone()
    for entry in (0, 17, 34, 40, 52):
        assert float(gradient[entry]) == pytest.approx(slope(objective, start, entry), rel=1e-5, abs=1e-8)


@pytest.mark.parametrize("norm", [False, True])
def test_without_the_pull_the_heads_are_those_of_local_training_bit_for_bit(fed: Federation, norm: bool) -> None:
    spec = specification(fed, rounds=3, norm=norm)
    mine, _, ours = simulate(FedProto(lam=0.0, inference="head"), fed, spec, share=0.75)
    theirs, _, alone = simulate(Local(), fed, spec, share=0.75)
    for client in range(4):
        assert torch.equal(ours.states[client]["own"], alone.states[client]["own"])
    assert mine[-1].test == theirs[-1].test


def test_the_reply_holds_class_means_after_training_and_counts(fed: Federation) -> None:
    method, spec = FedProto(), specification(fed, norm=True)
    client = visit(fed, spec, 1)
    trained = method.fit(client, method.assemble(client, method.send(method.setup(spec), 1)))
    reply = method.reply(client, client.own, trained)
    model = client.model(trained)
    x, y = client.data.train.batch(slice(None))
    with model.evaluating():
        z, _ = model.score(x)
    assert reply["counts"].tolist() == [7, 0, 6]
    torch.testing.assert_close(reply["prototypes"][0], z[y == 0].mean(0))
    assert reply["prototypes"][1].tolist() == [0] * 5


def classify(fed: Federation, method: FedProto, G: Tensor, known: list[bool]) -> tuple[Tensor, Tensor]:
    """What client 1 (classes 0 and 2) says of its test data, with the features it says it of."""
    client = visit(fed, specification(fed), 1)
    predict = method.personal(client, Message(prototypes=G, known=torch.tensor(known)))
    x, _ = client.data.test.batch(slice(None))
    model = client.model()
    with model.evaluating():
        return predict(x), model.score(x)[0]


def test_the_nearest_prototype_wins(fed: Federation) -> None:
    G = torch.tensor([[0.1], [0.5], [400.0]]).expand(3, 5)
    logits, z = classify(fed, FedProto(), G, [True, True, True])
    nearest = (z[:, None] - G[None]).norm(dim=2).argmin(1)
    assert len(nearest.unique()) == 2, "the example has something to decide"
    assert torch.equal(logits.argmax(1), nearest)
    torch.testing.assert_close(logits[:, 0], -(z - 0.1).square().sum(1))


def test_a_class_without_prototype_is_never_chosen_and_costs_finitely(fed: Federation) -> None:
    # the placeholder at zero is nearest, and the prototypes are further than any fixed bound
    G = torch.tensor([[0.0], [500.0], [501.0]]).expand(3, 5)
    logits, _ = classify(fed, FedProto(), G, [False, True, True])
    assert set(logits.argmax(1).tolist()) == {1}
    missing = torch.zeros(len(logits), dtype=torch.int64)
    assert bool(torch.isfinite(functional.cross_entropy(logits, missing)))


def test_candidates_may_be_the_clients_own_classes(fed: Federation) -> None:
    G = torch.tensor([[50.0], [0.2], [60.0]]).expand(3, 5)
    everything, _ = classify(fed, FedProto(), G, [True, True, True])
    own, _ = classify(fed, FedProto(candidates="own"), G, [True, True, True])
    assert set(everything.argmax(1).tolist()) == {1}
    assert set(own.argmax(1).tolist()) == {0}
    strangers, _ = classify(fed, FedProto(candidates="own"), G, [False, True, False])
    assert set(strangers.argmax(1).tolist()) == {1}, "none of its classes has a prototype"


def test_before_the_first_prototype_the_head_answers(fed: Federation) -> None:
    logits, _ = classify(fed, FedProto(), torch.zeros(3, 5), [False, False, False])
    by_head, _ = classify(fed, FedProto(inference="head"), torch.ones(3, 5), [True, True, True])
    assert torch.equal(logits, by_head)


def test_both_points_are_the_clients_own_network_and_no_weights_travel(fed: Federation) -> None:
    done, server, _ = simulate(FedProto(), fed, specification(fed, rounds=2))
    assert done[-1].test["received"] == done[-1].test["trained"]
    assert done[-1].bytes_up == 4 * (3 * 5 * 4 + 3 * 8)
    assert done[-1].bytes_down == 4 * (3 * 5 * 4 + 3)
    assert set(server) == {"prototypes", "known"}


def test_counts_out_of_range_are_refused(fed: Federation) -> None:
    method = FedProto()
    expected = method.expects(method.setup(specification(fed)), 3)  # eight samples
    good = upload({0: 1.0}, {0: 8})
    assert objection(good, expected) is None
    assert "above 8" in str(objection(upload({0: 1.0}, {0: 9}), expected))
    assert "below 0" in str(objection(upload({0: 1.0}, {0: -1}), expected))


def test_networks_may_differ_as_long_as_features_do_not(fed: Federation) -> None:
    done, server, _ = simulate(FedProto(), fed, fleet(fed, rounds=2))
    assert not done[-1].refused
    assert server["prototypes"].shape == (3, 4)
    mixed = fleet(fed)
    wide = Architecture(small_network(), fed.example)
    with pytest.raises(UserError, match=r"fedproto compares features.*\[4, 5\]"):
        FedProto().setup(replace(mixed, architectures=(mixed.architectures[0], wide)))


def test_caveats_name_settings_that_switch_it_off() -> None:
    assert not FedProto().caveats()
    assert "local training" in FedProto(lam=0, inference="head").caveats()[0]
    assert "local training" not in FedProto(lam=0).caveats()[0]
