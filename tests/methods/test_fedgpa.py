"""FedGPA: both rules of mixing by hand, the edge cases, the ablations, and its siblings FedAvg and FedPAC."""

import time
from collections.abc import Callable
from dataclasses import dataclass
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
from fedgraft.core.method import Inbox, Server
from fedgraft.core.training import Phase
from fedgraft.data.federation import Federation, Site, own_data
from fedgraft.methods import describe
from fedgraft.methods.fedavg import FedAvg
from fedgraft.methods.fedgpa import FedGPA
from fedgraft.methods.fedpac import FedPAC, statistics

OFF = {"lga": False, "gpa_f": False, "gpa_c": False}


def tiny() -> torch.nn.Module:
    """One feature, which is the input times one weight; a head of six weights."""
    return torch.nn.Sequential(torch.nn.Linear(1, 1, bias=False), torch.nn.Linear(1, CLASSES))


def toy(method: FedGPA, sizes: tuple[int, ...]) -> Server:
    fed = blobs(sizes, dims=1)
    return method.setup(specification(fed, build=tiny))


def answer(
    extractor: float, head: float, means: list[float], counts: list[int], variance: float = 1.0, moved: float = 0.0
) -> Message:
    """A reply of the tiny network; training moved its class means by ``moved``."""
    c = torch.tensor(means, dtype=torch.float32)[:, None]
    return Message(
        extractor=torch.tensor([extractor], dtype=torch.float32),
        head=torch.full((6,), head, dtype=torch.float32),
        prototypes=c + moved,
        means=c,
        variance=torch.tensor(variance),
        counts=torch.tensor(counts),
    )


def weighed(method: FedGPA, means: list[list[float]], counts: list[list[int]], n: list[int]) -> Tensor:
    """Extractor weights of clients with one feature."""
    c = torch.tensor(means)[:, :, None]
    return method.extractor_weights(torch.tensor(counts), c, torch.tensor(n, dtype=torch.float64))


# ---- extractor weights


def test_similarity_is_the_inverse_distance_and_self_twice_the_nearest() -> None:
    # one class, prototypes 0, 2, 4. Row 0: distances (0, 2, 4), zero becomes 1: 1/(1, 2, 4) -> (4, 2, 1) / 7
    # row 1: (2, 0, 2), zero becomes 1 -> (1, 2, 1) / 4
    alpha = weighed(FedGPA(mu=1.0), [[0.0], [2.0], [4.0]], [[5]] * 3, [5] * 3)
    assert alpha[0].tolist() == pytest.approx([4 / 7, 2 / 7, 1 / 7])
    assert alpha[1].tolist() == pytest.approx([1 / 4, 1 / 2, 1 / 4])


def test_similarity_and_size_are_blended_by_mu() -> None:
    alpha = weighed(FedGPA(mu=0.4), [[0.0], [2.0], [4.0]], [[1], [1], [2]], [1, 1, 2])
    assert alpha[0].tolist() == pytest.approx([0.4 * 4 / 7 + 0.6 / 4, 0.4 * 2 / 7 + 0.6 / 4, 0.4 / 7 + 0.6 * 2 / 4])
    alpha = weighed(FedGPA(mu=0.0), [[0.0], [2.0], [4.0]], [[1], [1], [2]], [1, 1, 2])
    assert alpha.tolist() == [pytest.approx([1 / 4, 1 / 4, 1 / 2])] * 3


def test_classes_are_weighed_by_what_the_receiver_holds() -> None:
    # classes at distance 1 and 5; client 0 has them 3 to 1: P_01 = 3/4 + 5/4 = 2; client 1 has them 1 to 3: P_10 = 4
    method = FedGPA()
    P = method.distances(torch.tensor([[3, 1], [1, 3]]), torch.tensor([[0.0, 0.0], [1.0, 5.0]])[:, :, None])
    assert P.tolist() == [pytest.approx([1, 2]), pytest.approx([4, 2])]


def test_a_class_that_the_other_lacks_counts_as_zero_or_not_at_all() -> None:
    # client 0 has classes 0 and 1 (3 to 1) at 2 and 7, client 1 has class 0 at 1, client 2 only class 2
    counts = torch.tensor([[3, 1, 0], [4, 0, 0], [0, 0, 4]])
    means = torch.tensor([[2.0, 7.0, 0.0], [1.0, 0.0, 0.0], [0.0, 0.0, 3.0]])[:, :, None]
    zero = FedGPA().distances(counts, means)
    assert zero[0, 1:].tolist() == pytest.approx([3 / 4 + 7 / 4, 6 / 4 + 7 / 4])
    skip = FedGPA(missing="skip").distances(counts, means)
    assert skip[0, 1:].tolist() == [1, torch.inf]
    assert skip[1, :2].tolist() == [1, 0.5]
    assert skip[2].tolist() == [torch.inf, torch.inf, 1]
    alpha = FedGPA(missing="skip", mu=1.0).extractor_weights(counts, means, torch.full((3,), 4.0))
    assert alpha[2].tolist() == [0, 0, 1], "nobody shares its class"
    assert alpha[0].tolist() == pytest.approx([2 / 3, 1 / 3, 0])


def test_clients_that_cannot_be_told_apart_count_alike() -> None:
    alpha = weighed(FedGPA(mu=1.0), [[3.0]] * 4, [[2]] * 4, [2] * 4)
    assert alpha.tolist() == [[0.25] * 4] * 4
    alpha = weighed(FedGPA(mu=1.0), [[3.0], [3.0], [5.0]], [[2]] * 3, [2] * 3)
    assert alpha[0].tolist() == pytest.approx([0.4, 0.4, 0.2]), "a twin counts as much as oneself"


def test_equal_prototypes_of_many_clients_are_at_distance_zero() -> None:
    """Not merely at the distance of rounding, which would then be the smallest one of the row."""
    c = torch.randn(1, 10, 64, generator=torch.Generator().manual_seed(0)).repeat(40, 1, 1)
    c[-1] += 1
    P = FedGPA().distances(torch.full((40, 10), 3), c)
    assert P[0, :39].tolist() == pytest.approx([4.0] * 39)
    assert float(P[0, 39]) == pytest.approx(8.0)


# ---- the server


def test_a_round_by_hand() -> None:
    # one class at features 0, 2, 4 and equal variances, n = (4, 4, 8)
    method = FedGPA(mu=0.5, threshold=0.0)
    server = toy(method, (4, 4, 8))
    replies = {
        i: answer([1.0, 2.0, 4.0][i], [10.0, 20.0, 30.0][i], [2.0 * i, 0, 0], [[4], [4], [8]][i] + [0, 0], 1.0, 1.0)
        for i in range(3)
    }
    method.merge(server, replies)
    a = [0.5 * 4 / 7 + 0.5 / 4, 0.5 * 2 / 7 + 0.5 / 4, 0.5 / 7 + 0.5 / 2]
    assert server["alpha"][0].tolist() == pytest.approx(a)
    assert server["extractor"][0].tolist() == pytest.approx([a[0] * 1 + a[1] * 2 + a[2] * 4])
    # row 0: min b0^2 + b1^2 + b2^2 + (2 b1 + 4 b2)^2. With b2 = 0: b0 + b1 = 1, b0 = 5 b1. There b2's slope is
    # 4 * 2 b1 = 8/6 > 5/6 = b0's, so b2 = 0 is right
    assert server["beta"][0].tolist() == pytest.approx([5 / 6, 1 / 6, 0], abs=1e-6)
    assert server["head"][0].tolist() == pytest.approx([5 / 6 * 10 + 1 / 6 * 20] * 6)
    # global prototypes are those after training: (4 * 1 + 4 * 3 + 8 * 5) / 16
    assert server["prototypes"][:, 0, 0].tolist() == pytest.approx([3.5] * 3)
    assert server["known"].tolist() == [[True, False, False]] * 3


def test_statistics_after_training_steer_with_post() -> None:
    replies = {i: answer(0, i, [2.0 * i, 0, 0], [4, 0, 0], 1.0, float(i)) for i in range(3)}
    post = {i: Message(**{k: v for k, v in reply.items() if k != "means"}) for i, reply in replies.items()}
    method, after = FedGPA(mu=1.0), FedGPA(mu=1.0, stats="post")
    for this, inbox, apart in ((method, replies, 2.0), (after, post, 3.0)):
        server = toy(this, (4, 4, 4))
        assert objection(inbox[0], this.expects(server, 0)) is None
        this.merge(server, inbox)
        c = torch.tensor([[0.0], [apart], [2 * apart]])[:, :, None]
        expected = this.classifier_weights(torch.full((3, 1), 4), c, torch.ones(3))
        torch.testing.assert_close(server["beta"], expected)
        assert server["alpha"][0].tolist() == pytest.approx([4 / 7, 2 / 7, 1 / 7])


def test_prototypes_ignore_clients_without_the_class() -> None:
    method = FedGPA()
    two = {0: answer(0, 0, [1, 5, 0], [3, 1, 0]), 1: answer(0, 0, [2, 0, 0], [4, 0, 0])}
    three = {**two, 2: answer(0, 0, [0, 9, 0], [0, 4, 0])}
    seen = []
    for inbox in (two, three):
        server = toy(method, (4, 4, 4))
        method.merge(server, inbox)
        seen.append(server["prototypes"][0, :, 0].tolist())
        assert server["known"][0].tolist() == [True, True, False], "nobody holds class 2"
    assert seen[0] == pytest.approx([11 / 7, 5, 0])
    assert seen[1] == pytest.approx([11 / 7, 41 / 5, 0])


def test_prototypes_are_of_the_round_alone() -> None:
    method = FedGPA()
    server = toy(method, (4, 4))
    method.merge(server, {0: answer(0, 0, [1, 0, 0], [4, 0, 0])})
    method.merge(server, {0: answer(0, 0, [0, 2, 0], [0, 4, 0])})
    assert server["known"][0].tolist() == [False, True, False]


def test_one_participant_gets_itself_back() -> None:
    method = FedGPA()
    server = toy(method, (4, 4, 4))
    method.merge(server, {1: answer(3, 7, [1, 0, 0], [4, 0, 0])})
    for weights in (server["alpha"], server["beta"]):
        assert weights[1].tolist() == [0, 1, 0]
    assert server["extractor"][1].tolist() == [3]
    assert server["head"][1].tolist() == [7] * 6


def test_clients_without_variance_keep_their_classifier() -> None:
    method = FedGPA()
    server = toy(method, (4, 4, 4))
    method.merge(server, {i: answer(0, i, [float(i**2), 1, 0], [2, 2, 0], 0.0) for i in range(3)})
    torch.testing.assert_close(server["beta"], torch.eye(3, dtype=torch.float64), atol=1e-6, rtol=0)


def test_own_leaves_classifiers_where_they_are() -> None:
    method = FedGPA(qp="own")
    server = toy(method, (4, 4, 4))
    method.merge(server, {i: answer(0, float(i), [1, 1, 0], [2, 2, 0]) for i in range(3)})
    assert server["head"][:, 0].tolist() == [0, 1, 2]


@pytest.mark.parametrize("absent", ["stale", "broadcast"])
def test_absent_clients_stay_behind_or_get_the_mean(absent: Any) -> None:
    method = FedGPA(absent=absent)
    server = toy(method, (2, 2, 6))
    method.merge(server, {i: answer(float(i), float(i), [1, 0, 0], [2, 0, 0]) for i in range(3)})
    before = method.send(server, 1).copy()
    method.merge(server, {0: answer(8, 8, [3, 0, 0], [2, 0, 0]), 2: answer(4, 4, [5, 0, 0], [6, 0, 0])})
    after = method.send(server, 1)
    assert torch.equal(after["head"], before["head"])
    if absent == "stale":
        assert all(torch.equal(after[name], before[name]) for name in before)
    else:
        assert after["extractor"].tolist() == [(2 * 8 + 6 * 4) / 8]
        assert after["prototypes"][0].tolist() == [(2 * 3 + 6 * 5) / 8]
        assert torch.equal(after["prototypes"], method.send(server, 0)["prototypes"])
    assert float(server["alpha"][0, 1]) == float(server["beta"][0, 1]) == 0


def test_a_client_that_comes_back_goes_on_from_its_own_stale_model(fed: Federation) -> None:
    spec = specification(fed, rounds=6)
    last: dict[int, tuple[int, Tensor]] = {client: (0, spec.initial(client)) for client in range(len(fed))}
    away = []

    @dataclass(frozen=True)
    class Noting(FedGPA):
        def fit(self, client: Client, received: Tensor) -> Tensor:
            when, kept = last[client.id]
            away.append(client.round - when)
            assert torch.equal(received, kept)
            return super().fit(client, received)

        def merge(self, server: Server, inbox: Inbox) -> None:
            super().merge(server, inbox)
            for client in inbox:
                last[client] = server.round, torch.cat([server["extractor"][client], server["head"][client]])

    simulate(Noting(), fed, spec, share=0.5)
    assert max(away) > 1, "the seed was chosen so that somebody is away for a while"


def test_a_hundred_clients_are_weighed_in_no_time() -> None:
    rng = torch.Generator().manual_seed(0)
    counts = torch.randint(0, 30, (100, 10), generator=rng)
    means = torch.randn(100, 10, 128, generator=rng) * (counts > 0)[:, :, None]
    method, started = FedGPA(), time.process_time()
    alpha = method.extractor_weights(counts, means, counts.sum(1).double())
    beta = method.classifier_weights(counts, means, torch.rand(100, generator=rng))
    assert time.process_time() - started < 1.0
    for weights in (alpha, beta):
        assert weights.sum(1).tolist() == pytest.approx([1] * 100)


# ---- the client


def objective(method: FedGPA, client: Client) -> Callable[..., Tensor]:
    """The loss that ``fit`` hands to the training."""
    caught: list[Any] = []

    def train(start: Tensor, loss: Any, phases: Any) -> Tensor:
        caught.append(loss)
        return start

    client.train = train  # type: ignore[method-assign,assignment]
    method.fit(client, client.own)
    return caught[0]


@pytest.mark.parametrize("reg", ["sample_mse", "prototype"])
def test_the_loss_is_the_formula_and_its_gradient_that_of_finite_differences(reg: Any) -> None:
    fed, method = blobs(), FedGPA(lam=0.7, reg=reg)

    def build() -> torch.nn.Module:
        return torch.nn.Sequential(torch.nn.Linear(6, 4), torch.nn.Tanh(), torch.nn.Linear(4, CLASSES)).double()

    spec = specification(fed, build=build)
    client = visit(fed, spec, round=1)
    C = torch.randn(CLASSES, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    client["prototypes"], client["known"] = C, torch.ones(CLASSES, dtype=torch.bool)
    loss = objective(method, client)
    x, y = client.data.train.batch(slice(0, 5))
    assert len(set(y.tolist())) == 2
    model = client.model(client.own)

    def f(weights: Tensor) -> float:
        w = spec.layout(0).named(weights)
        z = torch.tanh(x @ w["0.weight"].T + w["0.bias"])
        if reg == "sample_mse":
            apart = sum(float(((z[b] - C[y[b]]) ** 2).sum()) for b in range(5)) / (5 * 4)
        else:
            apart = sum(float((z[y == y[b]].mean(0) - C[y[b]]).norm()) for b in range(5)) / 5
        return float(functional.cross_entropy(z @ w["2.weight"].T + w["2.bias"], y)) + 0.7 * apart

    assert loss(model, x, y).item() == pytest.approx(f(client.own))
    gradient = model.differentiate(loss(model, x, y))
    for entry in range(spec.layout(0).trained):
        assert float(gradient[entry]) == pytest.approx(slope(f, client.own, entry), rel=1e-5, abs=1e-9)


@pytest.mark.parametrize("stats", ["pre", "post"])
def test_replies_carry_the_statistics_of_the_received_or_the_trained_model(stats: Any) -> None:
    fed, method = blobs(), FedGPA(stats=stats)
    client = visit(fed, specification(fed))
    received, trained = client.own, client.own + 0.1
    reply = method.reply(client, received, trained)
    before, after = statistics(client, received), statistics(client, trained)
    assert torch.equal(reply["prototypes"], after[0])
    assert torch.equal(reply["variance"], before[1] if stats == "pre" else after[1])
    assert ("means" in reply) == (stats == "pre")
    if stats == "pre":
        assert torch.equal(reply["means"], before[0])
    assert objection(reply, method.expects(method.setup(specification(fed)), 0)) is None


def test_everything_is_trained_together() -> None:
    fed = blobs()
    assert FedGPA().plan(visit(fed, specification(fed))) == (Phase(),)


# ---- ablations and siblings


@pytest.mark.parametrize("norm", [False, True], ids=["plain", "batchnorm"])
@pytest.mark.parametrize(("share", "absent"), [(1.0, "stale"), (0.75, "broadcast")])
def test_without_its_three_modules_it_is_fedavg_bit_for_bit(
    fed: Federation, share: float, absent: Any, norm: bool
) -> None:
    spec = specification(fed, rounds=3, norm=norm)
    ours, _, mine = simulate(FedGPA(absent=absent, **OFF), fed, spec, share=share)
    theirs, _, other = simulate(FedAvg(), fed, spec, share=share)
    for client in range(len(fed)):
        assert torch.equal(mine.states[client]["own"], other.states[client]["own"])
    assert [this.test for this in ours] == [this.test for this in theirs]


def test_without_lambda_and_with_equal_weights_it_is_the_plain_mean() -> None:
    method = FedGPA(lam=0.0)
    server = toy(method, (4, 4, 4))
    method.merge(server, {i: answer(2.0**i, 3.0**i, [1, 1, 0], [2, 2, 0]) for i in range(3)})
    torch.testing.assert_close(server["extractor"], torch.full((3, 1), 7 / 3))
    torch.testing.assert_close(server["head"], torch.full((3, 6), 13 / 3))


def test_in_fedpacs_phases_and_with_a_common_extractor_it_is_fedpac_bit_for_bit(fed: Federation) -> None:
    @dataclass(frozen=True)
    class InTurns(FedGPA):
        def plan(self, client: Client) -> tuple[Phase, ...]:
            return FedPAC().plan(client)

    spec = specification(fed, rounds=4)
    ours, mixed, mine = simulate(InTurns(gpa_f=False, absent="broadcast"), fed, spec, share=0.75)
    theirs, heads, other = simulate(FedPAC(), fed, spec, share=0.75)
    for client in range(len(fed)):
        assert torch.equal(mine.states[client]["own"], other.states[client]["own"])
    assert torch.equal(mixed["head"], heads["heads"])
    assert torch.equal(mixed["beta"], heads["beta"])
    assert ours[-1].test == theirs[-1].test


def test_mu_zero_is_fedavgs_extractor(fed: Federation) -> None:
    spec = specification(fed, rounds=1)
    _, personal, _ = simulate(FedGPA(mu=0.0), fed, spec)
    _, common, _ = simulate(FedGPA(gpa_f=False), fed, spec)
    torch.testing.assert_close(personal["extractor"], common["extractor"])
    assert torch.equal(common["extractor"][0], common["extractor"][3])
    n = torch.tensor(fed.samples).double()
    torch.testing.assert_close(personal["alpha"], (n / n.sum()).expand(4, 4))


@pytest.mark.parametrize("flag", ["lga", "gpa_f", "gpa_c"])
def test_each_module_acts_alone(fed: Federation, flag: str) -> None:
    spec = specification(fed, rounds=2)
    off, _, _ = simulate(FedGPA(**OFF), fed, spec)
    on, server, _ = simulate(FedGPA(**{**OFF, flag: True}), fed, spec)
    same = (server["alpha"][0] == server["alpha"][3]).all(), (server["beta"][0] == server["beta"][3]).all()
    assert [bool(s) for s in same] == [flag != "gpa_f", flag != "gpa_c"]
    ours, theirs = ([this.test["received"].figures["log_loss"].pooled for this in done] for done in (on, off))
    assert ours[1] != theirs[1]
    assert (ours[0] == theirs[0]) == (flag == "lga"), "no alignment in round 1"


def test_three_ways_to_switch_alignment_off_are_one(fed: Federation) -> None:
    spec = specification(fed, rounds=3)
    ends = [simulate(m, fed, spec)[2] for m in (FedGPA(lga=False), FedGPA(reg="off"), FedGPA(lam=0.0))]
    for other in ends[1:]:
        assert torch.equal(ends[0].states[2]["own"], other.states[2]["own"])


# ---- whole runs


@pytest.mark.parametrize("share", [0.5, 1.0])
def test_rows_are_on_the_simplex_in_every_round(fed: Federation, share: float) -> None:
    done, _, _ = simulate(FedGPA(), fed, specification(fed, rounds=4), share=share)
    for name in ("alpha", "beta"):
        for this in done:
            rows = this.observed[name]
            assert bool((rows >= 0).all())
            assert rows.sum(1).tolist() == pytest.approx([1] * len(fed))
        for before, this in pairwise(done):
            for absent in set(range(len(fed))) - set(this.participants):
                assert torch.equal(this.observed[name][absent], before.observed[name][absent])


def test_nobody_counts_more_than_oneself_among_equals() -> None:
    fed = blobs((12, 12, 12, 12))
    done, _, _ = simulate(FedGPA(), fed, specification(fed, rounds=3))
    alpha = done[-1].observed["alpha"]
    assert bool((alpha.diagonal()[:, None] >= alpha).all())
    assert float(alpha[0, 3]) > float(alpha[0, 1]), "clients 0 and 3 have the same classes"


def test_what_is_tested_is_the_personal_mixture_or_the_trained_model(fed: Federation) -> None:
    spec = specification(fed, rounds=2)
    done, server, engine = simulate(FedGPA(), fed, spec, share=0.75)
    live = spec.architectures[0].model()
    for client, data in enumerate(fed.clients):
        x, y = data.test.batch(slice(None))
        mixed = torch.cat([server["extractor"][client], server["head"][client]])
        for point, weights in (("received", mixed), ("trained", engine.states[client]["own"])):
            with live.load(weights).evaluating():
                right = (live(x).argmax(1) == y).float().mean()
            assert done[-1].test[point].per_client[client] == pytest.approx(float(right))


@pytest.mark.parametrize("parameters", [{}, {"stats": "post"}, {"missing": "skip"}, {"absent": "broadcast"}], ids=str)
def test_one_class_clients_and_a_class_that_nobody_holds(parameters: dict[str, Any]) -> None:
    rng = np.random.default_rng(1)

    def site(labels: list[int]) -> Site:
        y = np.array(labels)
        x = (rng.standard_normal((len(y), 6)) + 3 * y[:, None]).astype(np.float32)
        return Site(x, y, x, y)

    fed = own_data([site([0] * 7), site([1]), site([0, 1] * 4), site([1] * 5)], task=f"classification:{CLASSES}")
    for share in (0.5, 1.0):
        done, server, engine = simulate(FedGPA(**parameters), fed, specification(fed, rounds=4), share=share)
        assert not any(this.refused for this in done)
        assert not bool(server["known"][:, 2].any())
        assert all(bool(torch.isfinite(state["own"]).all()) for state in engine.states.values())
        for name in ("alpha", "beta"):
            assert done[-1].observed[name].sum(1).tolist() == pytest.approx([1] * 4)


def test_batchnorm_statistics_are_mixed_with_the_extractor(fed: Federation) -> None:
    spec = specification(fed, rounds=2, norm=True)
    _, server, _ = simulate(FedGPA(), fed, spec)
    assert server["extractor"].shape[1] == spec.layout(0).width("extractor", "average") == 35 + 10 + 10
    assert not torch.equal(server["extractor"][0, -10:], server["extractor"][1, -10:])


def test_bytes_are_the_model_and_its_statistics(fed: Federation) -> None:
    model, prototypes = 4 * 53, 4 * CLASSES * 5
    for stats, sets in (("pre", 2), ("post", 1)):
        done, _, _ = simulate(FedGPA(stats=stats), fed, specification(fed, rounds=1))  # type: ignore[arg-type]
        assert done[0].bytes_down == 4 * (model + prototypes + CLASSES)
        assert done[0].bytes_up == 4 * (model + sets * prototypes + 4 + 8 * CLASSES)


def test_caveats_name_settings_that_switch_it_off() -> None:
    assert not FedGPA().caveats()
    assert "without lga, gpa_f and gpa_c, FedGPA is FedAvg" in FedGPA(**OFF).caveats()
    for off in ({"lga": False}, {"lam": 0.0}, {"reg": "off"}):
        assert any("aligns no features" in sentence for sentence in FedGPA(**off).caveats())
    for off in ({"gpa_f": False}, {"mu": 0.0}):
        assert any("the same extractor" in sentence for sentence in FedGPA(**off).caveats())
    assert any("the same classifier" in sentence for sentence in FedGPA(gpa_c=False).caveats())
    assert any("its own classifier" in sentence for sentence in FedGPA(qp="own").caveats())


def test_readings_and_switches_are_printed() -> None:
    facts = describe(FedGPA)
    for switch in ("stats", "qp", "missing", "absent", "reg", "threshold"):
        assert switch in facts["readings"]
    assert facts["headline"] == "received"
