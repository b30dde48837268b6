"""FedPAC: statistics, prototypes and mixtures by hand, its loss against finite differences, its sibling FedRep."""

from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch
from conftest import CLASSES, blobs, simulate, slope, specification, visit
from torch import Tensor
from torch.nn import functional

from fedgraft.core.client import Client
from fedgraft.core.message import Message, objection
from fedgraft.core.method import Server
from fedgraft.core.training import Phase
from fedgraft.data.federation import Federation, Site, own_data
from fedgraft.engines.newcomer import Newcomer, welcome
from fedgraft.methods.fedgpa import FedGPA
from fedgraft.methods.fedpac import FedPAC, statistics
from fedgraft.methods.fedrep import FedRep


def tiny() -> torch.nn.Module:
    """One feature, which is the input times one weight; a head of six weights."""
    return torch.nn.Sequential(torch.nn.Linear(1, 1, bias=False), torch.nn.Linear(1, CLASSES))


def held(*inputs: tuple[list[float], int]) -> Federation:
    """One client with these inputs and labels."""
    x = np.array([x for x, _ in inputs], dtype=np.float32)
    y = np.array([y for _, y in inputs])
    return own_data([Site(x, y, x, y)], task=f"classification:{CLASSES}")


def taken(fed: Federation) -> tuple[Tensor, Tensor]:
    """The statistics of a network whose features are its inputs."""
    width = fed.input_shape[0]

    def build() -> torch.nn.Module:
        return torch.nn.Sequential(torch.nn.Linear(width, width, bias=False), torch.nn.Linear(width, CLASSES))

    spec = specification(fed, build=build)
    weights = spec.initial(0)
    spec.layout(0).named(weights)["0.weight"].copy_(torch.eye(width))
    return statistics(visit(fed, spec), weights)


def answer(extractor: float, head: float, means: list[float], counts: list[int], variance: float = 1.0) -> Message:
    """A reply of the tiny network whose class means did not move in training."""
    c = torch.tensor(means, dtype=torch.float32)[:, None]
    return Message(
        extractor=torch.tensor([extractor], dtype=torch.float32),
        head=torch.full((6,), head, dtype=torch.float32),
        prototypes=c,
        means=c,
        variance=torch.tensor(variance),
        counts=torch.tensor(counts),
    )


def toy(method: FedPAC, sizes: tuple[int, ...]) -> Server:
    fed = blobs(sizes, dims=1)
    return method.setup(specification(fed, build=tiny))


# ---- statistics


def test_variance_of_two_classes_without_spread() -> None:
    # mean ||z||^2 = 1, h_1 = (.5, 0), h_2 = (0, .5): v = (1 - 1/4 - 1/4) / 6
    means, v = taken(held(*[([1.0, 0.0], 0), ([0.0, 1.0], 1)] * 3))
    assert float(v) == pytest.approx(0.5 / 6)
    assert means.tolist() == [[1, 0], [0, 1], [0, 0]]


def test_variance_of_one_class_is_its_spread() -> None:
    # features 0 and 2: mean square 2, squared mean 1, two samples
    means, v = taken(held(([0.0], 2), ([2.0], 2)))
    assert means.tolist() == [[0], [0], [1]]
    assert float(v) == pytest.approx(0.5)


def test_one_sample_or_identical_ones_have_no_variance() -> None:
    assert float(taken(held(([0.3, 0.7], 1)))[1]) == 0
    assert float(taken(held(*[([0.1, 0.7], 1)] * 7))[1]) == pytest.approx(0, abs=1e-9)


def test_rounding_makes_no_variance_negative() -> None:
    # the mean of two neighbouring floats is rounded up, and its square is above the mean of their squares
    assert float(taken(held(([1 + 2**-23], 1), ([1 + 2**-22], 1)))[1]) == 0


def test_statistics_leave_batchnorm_alone() -> None:
    fed = blobs()
    spec = specification(fed, norm=True)
    client = visit(fed, spec)
    before = client.own.clone()
    statistics(client, client.own)
    assert torch.equal(client.model().vector, before)


# ---- the server


def test_prototypes_are_weighed_by_how_many_samples_they_stand_for() -> None:
    method = FedPAC()
    server = toy(method, (4, 4, 2))
    method.merge(server, {0: answer(0, 0, [1, 5, 0], [3, 1, 0]), 1: answer(0, 0, [2, 0, 0], [4, 0, 0])})
    assert server["prototypes"][:, 0].tolist() == pytest.approx([(3 * 1 + 4 * 2) / 7, 5, 0])
    assert server["known"].tolist() == [True, True, False]
    method.merge(server, {2: answer(0, 0, [0, 9, 7], [0, 1, 1])})
    assert server["prototypes"][:, 0].tolist() == pytest.approx([11 / 7, 9, 7]), "nobody had class 0: it stays"
    assert server["known"].tolist() == [True, True, True]


def test_extractors_are_averaged_by_samples_and_heads_mixed_from_one_snapshot() -> None:
    # equal h: beta is (4/7, 2/7, 1/7) for everybody, by the inverse variances
    method = FedPAC()
    server = toy(method, (6, 3, 3))
    replies = [answer(float(i), [7.0, 14.0, 70.0][i], [1, 1, 0], [3, 3, 0], [1.0, 2.0, 4.0][i]) for i in range(3)]
    method.merge(server, dict(enumerate(replies)))
    assert server["extractor"].tolist() == pytest.approx([(0 * 6 + 1 * 3 + 2 * 3) / 12])
    torch.testing.assert_close(server["beta"], torch.tensor([4 / 7, 2 / 7, 1 / 7]).double().expand(3, 3))
    torch.testing.assert_close(server["heads"], torch.full((3, 6), 4.0 + 4.0 + 10.0))


def test_clients_that_differ_keep_to_themselves() -> None:
    # h_0 = (1, 0, 0), h_1 = (0, 1, 0): row 0 minimises v b^2 + v (1-b)^2 + 2 (1-b)^2, so b = (v + 2) / (2v + 2)
    method = FedPAC()
    server = toy(method, (2, 2))
    method.merge(server, {0: answer(0, 1, [1, 0, 0], [2, 0, 0], 0.5), 1: answer(0, 0, [0, 1, 0], [0, 2, 0], 0.5)})
    assert server["beta"][0].tolist() == pytest.approx([2.5 / 3, 0.5 / 3])
    assert float(server["heads"][0, 0]) == pytest.approx(2.5 / 3)


def test_class_means_count_by_their_share_of_the_clients_samples() -> None:
    # equal means, but h_0 = (1/4, 3/4, 0) and h_1 = (3/4, 1/4, 0), whose squared distance is 1/2:
    # row 0 minimises v b^2 + (v + 1/2) (1-b)^2, so b = (v + 1/2) / (2v + 1/2)
    method = FedPAC()
    server = toy(method, (4, 4))
    method.merge(server, {0: answer(0, 1, [1, 1, 0], [1, 3, 0], 0.5), 1: answer(0, 0, [1, 1, 0], [3, 1, 0], 0.5)})
    assert server["beta"].tolist() == [pytest.approx([2 / 3, 1 / 3]), pytest.approx([1 / 3, 2 / 3])]


def test_small_weights_are_dropped_before_mixing() -> None:
    replies = {0: answer(0, 1, [1, 0, 0], [2, 0, 0], 1e-3), 1: answer(0, 0, [0, 1, 0], [0, 2, 0], 1e-3)}
    for threshold, expected in ((1e-3, 1.0), (0.0, 2.001 / 2.002)):
        method = FedPAC(threshold=threshold)
        server = toy(method, (2, 2))
        method.merge(server, replies)
        assert float(server["beta"][0, 0]) == pytest.approx(expected, abs=1e-7)


def test_absent_clients_keep_their_head_and_receive_the_rest() -> None:
    method = FedPAC()
    server = toy(method, (2, 2, 2))
    before = server["heads"][1].clone()
    method.merge(server, {0: answer(3, 1, [1, 0, 0], [2, 0, 0]), 2: answer(5, 2, [2, 0, 0], [2, 0, 0])})
    message = method.send(server, 1)
    assert torch.equal(message["head"], before)
    assert message["extractor"].tolist() == [4]
    assert message["prototypes"][0].tolist() == [1.5]
    assert server["beta"][1].tolist() == [0, 1, 0]
    assert float(server["beta"][0, 1]) == 0, "absent clients are not mixed in"


def test_replies_that_make_no_sense_are_refused() -> None:
    method = FedPAC()
    server = toy(method, (4, 4))
    expected = method.expects(server, 0)
    assert objection(answer(0, 0, [0, 0, 0], [2, 2, 0]), expected) is None
    assert "below 0" in str(objection(answer(0, 0, [0, 0, 0], [2, 2, 0], -1.0), expected))
    assert "above 4" in str(objection(answer(0, 0, [0, 0, 0], [5, 0, 0]), expected))
    assert "below 0" in str(objection(answer(0, 0, [0, 0, 0], [-1, 2, 0]), expected))
    assert "not finite" in str(objection(answer(0, 0, [float("nan"), 0, 0], [2, 2, 0]), expected))


# ---- the client


def objective(method: FedPAC, client: Client, received: Tensor) -> Callable[..., Tensor]:
    """The loss that ``fit`` hands to the training."""
    caught: list[Any] = []

    def train(start: Tensor, loss: Any, phases: Any) -> Tensor:
        caught.append(loss)
        return start

    client.train = train  # type: ignore[method-assign,assignment]
    method.fit(client, received)
    return caught[0]


def precise(fed: Federation) -> Any:
    build = torch.nn.Sequential
    return specification(
        fed,
        build=lambda: build(torch.nn.Linear(6, 4), torch.nn.Tanh(), torch.nn.Linear(4, CLASSES)).double(),
    )


def test_the_loss_is_the_formula_and_its_gradient_that_of_finite_differences() -> None:
    fed, method = blobs(), FedPAC(lam=0.7)
    spec = precise(fed)
    client = visit(fed, spec, round=1)
    G = torch.randn(CLASSES, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    client["prototypes"], client["known"] = G, torch.ones(CLASSES, dtype=torch.bool)
    loss = objective(method, client, client.own)
    x, y = client.data.train.batch(slice(0, 5))
    model = client.model(client.own)

    def f(weights: Tensor) -> float:
        w = spec.layout(0).named(weights)
        z = torch.tanh(x @ w["0.weight"].T + w["0.bias"])
        apart = sum(float(((z[b] - G[y[b]]) ** 2).sum()) for b in range(5)) / (5 * 4)
        return float(functional.cross_entropy(z @ w["2.weight"].T + w["2.bias"], y)) + 0.7 * apart

    assert loss(model, x, y).item() == pytest.approx(f(client.own))
    gradient = model.differentiate(loss(model, x, y))
    for entry in range(spec.layout(0).trained):
        assert float(gradient[entry]) == pytest.approx(slope(f, client.own, entry), rel=1e-5, abs=1e-9)


def test_nothing_is_aligned_in_the_first_round_unless_there_are_prototypes() -> None:
    fed = blobs()
    C, nobody, everybody = torch.ones(CLASSES, 5), torch.zeros(CLASSES).bool(), torch.ones(CLASSES).bool()
    client = visit(fed, specification(fed), round=0)
    client["prototypes"], client["known"] = C, nobody
    assert FedPAC().targets(client, client.own) is None
    client["known"] = everybody  # a newcomer, whose rounds begin when the others' are over
    targets = FedPAC().targets(client, client.own)
    assert targets is not None
    assert torch.equal(targets, C)
    client = visit(fed, specification(fed), round=1)
    client["prototypes"], client["known"] = C, nobody  # somebody who was absent in the first round, in FedGPA
    targets = FedPAC().targets(client, client.own)
    assert targets is not None
    assert torch.equal(targets, statistics(client, client.own)[0])


@pytest.mark.parametrize("kind", [FedPAC, FedGPA])
def test_a_newcomer_is_aligned_in_its_first_round(fed: Federation, kind: type[FedPAC | FedGPA]) -> None:
    few = replace(fed, clients=fed.clients[:3], names=fed.names[:3])
    _, server, _ = simulate(kind(), few, specification(few))
    ulm = Newcomer("ulm", fed.clients[3])
    aligned, free = (welcome(kind(lam=lam), server, ulm, 1).state["own"] for lam in (1.0, 0.0))
    assert not torch.equal(aligned, free)


def test_a_class_without_global_prototype_is_drawn_to_the_own_mean_before_training() -> None:
    fed = blobs()
    client = visit(fed, specification(fed), round=1)  # client 0 has classes 1 and 2
    received = client.initial(0, independent=True)
    own, _ = statistics(client, received)
    assert not torch.equal(own, statistics(client, client.own)[0]), "of what it received, not of what it had"
    C = torch.full((CLASSES, 5), 9.0)
    client["prototypes"], client["known"] = C, torch.tensor([False, True, False])
    targets = FedPAC().targets(client, received)
    assert targets is not None
    assert torch.equal(targets[1], C[1])
    assert torch.equal(targets[2], own[2])
    client["known"] = torch.tensor([False, True, True])
    targets = FedPAC().targets(client, received)
    assert targets is not None
    assert torch.equal(targets, C), "class 0 is not its own: nothing is missing"


def test_first_the_head_at_its_own_rate_then_the_extractor() -> None:
    fed = blobs()
    client = visit(fed, specification(fed))
    assert FedPAC().plan(client) == (Phase("head", 1, 0.1), Phase("extractor"))
    head, extractor = (client.layout.span(part) for part in ("head", "extractor"))
    for epochs, head_epochs, moved, rested in ((0, 1, head, extractor), (1, 0, extractor, head)):
        spec = specification(fed, rounds=1, epochs=epochs)
        _, _, engine = simulate(FedPAC(head_epochs=head_epochs), fed, spec)
        own, start = engine.states[0]["own"], spec.initial(0)
        assert torch.equal(own[rested], start[rested])
        assert not torch.equal(own[moved], start[moved])


def test_statistics_are_of_the_received_model_and_prototypes_of_the_trained_one() -> None:
    fed, method = blobs(), FedPAC()
    client = visit(fed, specification(fed))
    received, trained = client.own, client.own + 0.1
    reply = method.reply(client, received, trained)
    means, v = statistics(client, received)
    assert torch.equal(reply["means"], means)
    assert torch.equal(reply["variance"], v)
    assert torch.equal(reply["prototypes"], statistics(client, trained)[0])
    assert torch.equal(reply["counts"], client.counts)
    assert objection(reply, method.expects(method.setup(specification(fed)), 0)) is None


# ---- whole runs


@pytest.mark.parametrize("share", [0.75, 1.0])
@pytest.mark.parametrize("norm", [False, True], ids=["plain", "batchnorm"])
def test_without_alignment_and_mixing_it_is_fedrep_bit_for_bit(fed: Federation, share: float, norm: bool) -> None:
    spec = specification(fed, rounds=3, lr=0.1, epochs=2, norm=norm)
    ours, _, mine = simulate(FedPAC(lam=0.0, qp="own", head_lr=0.1), fed, spec, share=share)
    theirs, _, other = simulate(FedRep(tau_h=1, tau_b=2), fed, spec, share=share)
    for client in range(len(fed)):
        assert torch.equal(mine.states[client]["own"], other.states[client]["own"])
    assert ours[-1].test == theirs[-1].test


def test_rows_are_on_the_simplex_in_every_round(fed: Federation) -> None:
    done, _, _ = simulate(FedPAC(), fed, specification(fed, rounds=4), share=0.75)
    for this in done:
        beta = this.observed["beta"]
        assert bool((beta >= 0).all())
        assert beta.sum(1).tolist() == pytest.approx([1] * len(fed))
    for before, this in pairwise(done):
        for absent in set(range(len(fed))) - set(this.participants):
            assert torch.equal(this.observed["beta"][absent], before.observed["beta"][absent])
    assert not torch.equal(done[-1].observed["beta"], torch.eye(len(fed), dtype=torch.float64))


def test_what_is_tested_is_the_mixed_head_or_the_trained_one(fed: Federation) -> None:
    spec = specification(fed, rounds=2)
    done, server, engine = simulate(FedPAC(), fed, spec, share=0.75)
    live, layout = spec.architectures[0].model(), spec.layout(0)
    for client, data in enumerate(fed.clients):
        x, y = data.test.batch(slice(None))
        own = engine.states[client]["own"]
        mixed = layout.put(own, server["extractor"], "extractor", "average")
        mixed = layout.put(mixed, server["heads"][client], "head", "average")
        for point, weights in (("received", mixed), ("trained", own)):
            with live.load(weights).evaluating():
                right = (live(x).argmax(1) == y).float().mean()
            assert done[-1].test[point].per_client[client] == pytest.approx(float(right))


def test_bytes_are_the_model_and_its_statistics(fed: Federation) -> None:
    done, _, _ = simulate(FedPAC(), fed, specification(fed, rounds=1))
    model, prototypes = 4 * 53, 4 * CLASSES * 5
    assert done[0].bytes_down == 4 * (model + prototypes + CLASSES)
    assert done[0].bytes_up == 4 * (model + 2 * prototypes + 4 + 8 * CLASSES)


def test_caveats_name_settings_that_switch_it_off() -> None:
    assert not FedPAC().caveats()
    assert any("aligns no features" in sentence for sentence in FedPAC(lam=0).caveats())
    assert any("mixes no heads" in sentence for sentence in FedPAC(qp="own").caveats())
    assert any("never trains the heads" in sentence for sentence in FedPAC(head_epochs=0).caveats())
