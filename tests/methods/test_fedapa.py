"""FedAPA: the row step worked out by hand, the invariants of the method, its siblings at degenerate settings."""

from typing import Any

import pytest
import torch
from conftest import blobs, simulate, slope, small_network, specification
from torch import Tensor

from fedgraft.core import bank
from fedgraft.core.message import Message
from fedgraft.core.method import Server
from fedgraft.data.federation import Federation
from fedgraft.methods.fedapa import FedAPA
from fedgraft.methods.fedavg import FedAvg
from fedgraft.methods.local import Local


def toy(method: FedAPA, theta: list[list[float]], A: list[list[float]], fed: Federation) -> Server:
    """A server whose bank is small enough to compute with on paper: the first entries of a wider bank of zeros."""
    server = method.setup(specification(fed))
    bank = torch.zeros(len(fed), server["bank"].shape[1])
    bank[: len(theta), : len(theta[0])] = torch.tensor(theta)
    rows = torch.eye(len(fed))
    rows[: len(A), : len(A)] = torch.tensor(A)
    server["bank"], server["A"] = bank, rows
    return server


def upload(server: Server, values: list[float]) -> Message:
    weights = torch.zeros(server["bank"].shape[1])
    weights[: len(values)] = torch.tensor(values)
    return Message(weights=weights)


def test_row_step_by_hand(fed: Federation) -> None:
    # theta_1 = (1,0), theta_2 = (0,1), a_1 = (1,0), theta_1+ = (1,1)
    # Delta = (0,1), g = (0,1), so the row becomes (1, .1), with the self-weight (.5, .1), divided by .6
    method = FedAPA(eta=0.1, mu=0.5)
    server = toy(method, [[1, 0], [0, 1]], [[1, 0], [0, 1]], fed)
    method.merge(server, {0: upload(server, [1, 1])})
    assert server["A"][0].tolist() == pytest.approx([5 / 6, 1 / 6, 0, 0])
    assert server["A"][1].tolist() == [0, 1, 0, 0], "the row of a client that did not take part stays"
    assert server["bank"][0, :2].tolist() == [1, 1], "its model is stored for the next round"


def test_the_step_is_measured_from_what_the_client_received(fed: Federation) -> None:
    # a_1 = (.5, .5) gave it (.5, .5), not its own last model: Delta = (.5, .5) = g, the row (.55, .55), then (.5, .55)
    method = FedAPA(eta=0.1, mu=0.5)
    server = toy(method, [[1, 0], [0, 1]], [[0.5, 0.5], [0, 1]], fed)
    method.merge(server, {0: upload(server, [1, 1])})
    assert server["A"][0].tolist() == pytest.approx([0.5 / 1.05, 0.55 / 1.05, 0, 0])


def test_printed_sign_is_ascent(fed: Federation) -> None:
    method = FedAPA(eta=0.1, mu=0.5, sign="paper")
    server = toy(method, [[1, 0], [0, 1]], [[1, 0], [0, 1]], fed)
    method.merge(server, {0: upload(server, [1, 1])})
    assert server["A"][0].tolist() == [1, 0, 0, 0]


def test_self_weight_dynamics_without_gradient() -> None:
    # the others' mass runs 1/10, 1/6, 1/4, 1/3, 2/5, ... towards 1 - mu
    method, row = FedAPA(mu=0.5), torch.tensor([0.9, 0.1])
    masses = []
    for _ in range(4):
        row = method.settle(row, 0)
        masses.append(float(row[1]))
    assert masses == pytest.approx([1 / 6, 1 / 4, 1 / 3, 2 / 5])


def test_the_step_descends_the_distance_to_the_upload(fed: Federation) -> None:
    rng = torch.Generator().manual_seed(0)
    method = FedAPA(eta=1e-3, clip=False, self_weight=False, normalise=False)
    server = method.setup(specification(fed, build=lambda: small_network()().double()))
    theta, A, target = (torch.randn(*shape, generator=rng, dtype=torch.float64) for shape in ((4, 35), (4, 4), (35,)))
    server["bank"], server["A"] = theta.clone(), A.clone()

    def f(row: Tensor) -> float:
        return float(0.5 * (target - row @ theta).square().sum())

    method.merge(server, {1: Message(weights=target)})
    step = (server["A"][1] - A[1]) / 1e-3
    for j in range(4):
        assert float(step[j]) == pytest.approx(-slope(f, A[1], j), rel=1e-5)
    assert f(server["A"][1]) < f(A[1])


@pytest.mark.parametrize("share", [0.5, 1.0])
def test_rows_are_on_the_simplex_with_the_self_weight_of_the_formula(fed: Federation, share: float) -> None:
    method = FedAPA(eta=0.05)
    done, server, _ = simulate(method, fed, specification(fed, rounds=4), share=share)
    for A in (this.observed["A"] for this in done):
        assert bool((A >= 0).all())
        assert bool((A <= 1).all())
        assert A.sum(1).tolist() == pytest.approx([1] * len(fed), abs=1e-6)
    assert not torch.equal(server["A"], torch.eye(len(fed)))
    row = torch.tensor([3.0, 0.2, -0.1, 0.1])
    assert method.settle(row, 0).tolist() == pytest.approx([0.5 / 0.8, 0.2 / 0.8, 0, 0.1 / 0.8])


@pytest.mark.parametrize("mu", [0.1, 0.5, 1.0])
@pytest.mark.parametrize("optimizer_state", ["fresh", "kept"])
def test_without_a_row_step_it_is_local_training_bit_for_bit(fed: Federation, mu: float, optimizer_state: str) -> None:
    spec = specification(fed, rounds=3, momentum=0.9, optimizer_state=optimizer_state)
    _, server, ours = simulate(FedAPA(eta=0.0, mu=mu), fed, spec, share=0.75)
    _, _, alone = simulate(Local(), fed, spec, share=0.75)
    assert torch.equal(server["A"], torch.eye(len(fed)))
    for client in range(len(fed)):
        assert torch.equal(ours.states[client]["own"], alone.states[client]["own"])


def test_the_first_mixture_is_the_common_start(fed: Federation) -> None:
    method = FedAPA()
    spec = specification(fed)
    server = method.setup(spec)
    server["A"] = torch.softmax(torch.randn(4, 4, generator=torch.Generator().manual_seed(1)), dim=1)
    start = spec.layout(0).take(spec.initial(0), "extractor", "average")
    for client in range(4):
        torch.testing.assert_close(method.send(server, client)["weights"], start)


def test_an_upload_of_what_was_sent_moves_nothing() -> None:
    fed = blobs((5,) * 12)
    method, random = FedAPA(), torch.Generator().manual_seed(0)
    server = method.setup(specification(fed))
    server["A"] = torch.softmax(torch.randn(12, 12, generator=random), dim=1)
    server["bank"] = torch.randn(server["bank"].shape, generator=random)
    for wave in (range(12), range(0, 12, 3)):
        method.merge(server, method.dispatch(server, wave))
        assert not server["velocity"].any(), "Delta is zero to the last bit"


def test_heads_never_travel(fed: Federation) -> None:
    spec = specification(fed, rounds=1)
    done, _, _ = simulate(FedAPA(), fed, spec)
    assert done[0].bytes_up == done[0].bytes_down == 4 * 4 * 35
    done, _, _ = simulate(FedAPA(share="all"), fed, spec)
    assert done[0].bytes_up == done[0].bytes_down == 4 * 4 * 53


def test_an_empty_row_falls_back_to_the_own_model(fed: Federation) -> None:
    assert FedAPA(mu=0.0).settle(torch.tensor([0.7, -0.2, -0.1]), 0).tolist() == [1, 0, 0]
    assert FedAPA(clip=False, self_weight=False).settle(torch.tensor([0.5, -0.3, -0.2]), 2).tolist() == [0, 0, 1]
    done, _, _ = simulate(FedAPA(mu=0.0), fed, specification(fed, rounds=3))
    assert bool(torch.isfinite(done[-1].observed["A"]).all())


def test_without_clipping_the_signed_sum_divides() -> None:
    row = FedAPA(clip=False, mu=0.5).settle(torch.tensor([1.0, -0.1, 0.6]), 0)
    assert row.tolist() == pytest.approx([0.5, -0.1, 0.6])
    assert FedAPA(normalise=False, mu=0.5).settle(torch.tensor([1.0, 0.2]), 0).tolist() == pytest.approx([0.5, 0.2])
    assert FedAPA(self_weight=False).settle(torch.tensor([0.6, 0.2]), 0).tolist() == pytest.approx([0.75, 0.25])


def test_snapshot_and_sequential_order(fed: Federation) -> None:
    # one client a round: there is no order to differ in
    alone = specification(fed, rounds=3)
    _, snapshot, _ = simulate(FedAPA(), fed, alone, share=0.25)
    _, sequential, _ = simulate(FedAPA(order="sequential"), fed, alone, share=0.25)
    assert torch.equal(snapshot["A"], sequential["A"])
    _, snapshot, _ = simulate(FedAPA(), fed, alone)
    _, sequential, _ = simulate(FedAPA(order="sequential"), fed, alone)
    assert not torch.equal(snapshot["A"], sequential["A"])


def test_momentum_moves_other_rows_too(fed: Federation) -> None:
    # second step for client 1 only: client 0's row still moves by what is left of its first step, and is not treated
    method = FedAPA(eta=0.1, mu=0.5, server_momentum=0.9)
    server = toy(method, [[1, 0], [0, 1]], [[1, 0], [0, 1]], fed)
    method.merge(server, {0: upload(server, [1, 1])})
    assert server["A"][0, :2].tolist() == pytest.approx([1, 0.1])
    assert method.rows(server, [0])[0, :2].tolist() == pytest.approx([0.5 / 0.6, 0.1 / 0.6]), "what it would be served"
    method.merge(server, {1: upload(server, [0, 1])})
    assert server["A"][0, :2].tolist() == pytest.approx([1, 0.1 + 0.1 * 0.9])
    assert method.observe(server)["A"][0, :2].tolist() == pytest.approx([0.5 / 0.69, 0.19 / 0.69])
    sent = method.send(server, 0)["weights"][:2]
    assert sent.tolist() == pytest.approx([0.5 / 0.69, (0.5 + 0.19) / 0.69])


def authors_loop(starts: Tensor, rounds: list[list[tuple[int, Tensor]]], *, momentum: float, mu: float) -> list[Tensor]:
    """The loop of the authors' server, written anew with torch's own SGD and autograd; what each client was sent."""
    models = list(starts)
    A = torch.zeros(len(models), len(models), dtype=starts.dtype, requires_grad=True)
    optimizer = torch.optim.SGD([A], lr=0.01, momentum=momentum)
    sent = []
    for uploads in rounds:
        for client, moved in uploads:
            with torch.no_grad():
                A[client, client] = mu
                A[client] /= A[client].sum()
            mixture = A[client] @ torch.stack(models)
            sent.append(mixture.detach())
            upload = mixture.detach() + moved
            optimizer.zero_grad()
            mixture.backward(gradient=mixture.detach() - upload)
            optimizer.step()
            with torch.no_grad():
                A.clamp_(0, 1)
            models[client] = upload
    return sent


@pytest.mark.parametrize("mu", [0.5, 1.0])
@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_it_is_the_authors_loop(momentum: float, mu: float) -> None:
    # one client served after another, some of them in each round only; uploads that are near each other
    fed, random = blobs((5,) * 6), torch.Generator().manual_seed(3)
    spec = specification(fed, build=lambda: small_network()().double())
    method = FedAPA(order="sequential", server_momentum=momentum, mu=mu)
    server = method.setup(spec)
    starts, width = server["bank"].clone(), server["bank"].shape[1]
    rounds = [
        [
            (int(client), torch.randn(width, generator=random, dtype=torch.float64) / 2 + starts[0])
            for client in torch.randperm(6, generator=random)[:4]
        ]
        for _ in range(8)
    ]
    theirs = authors_loop(starts, rounds, momentum=momentum, mu=mu)
    ours = []
    for client, moved in (one for uploads in rounds for one in uploads):
        ours.append(method.send(server, client)["weights"])
        method.merge(server, {client: Message(weights=ours[-1] + moved)})
    torch.testing.assert_close(torch.stack(ours), torch.stack(theirs), rtol=1e-9, atol=1e-9)
    apart = method.observe(server)["A"].fill_diagonal_(0)
    assert 0.05 < float(apart.sum(1).mean()) < 0.95, "the rows did mix"


def test_a_breath_of_momentum_changes_nothing(fed: Federation) -> None:
    # rows that are treated when they are served are those that are treated after their step
    spec = specification(fed, rounds=4)
    for order in ("snapshot", "sequential"):
        plain, _, _ = simulate(FedAPA(order=order, eta=0.05), fed, spec, share=0.5)
        breath, _, _ = simulate(FedAPA(order=order, eta=0.05, server_momentum=1e-12), fed, spec, share=0.5)
        for one, other in zip(plain, breath, strict=True):
            torch.testing.assert_close(one.observed["A"], other.observed["A"])


def test_a_single_client_is_local_training() -> None:
    fed = blobs((12,))
    spec = specification(fed, rounds=3)
    _, server, ours = simulate(FedAPA(), fed, spec)
    _, _, alone = simulate(Local(), fed, spec)
    assert server["A"].tolist() == [[1.0]]
    assert torch.equal(ours.states[0]["own"], alone.states[0]["own"])


def test_uniform_rows_over_the_whole_model_are_fedavg_with_equal_sizes() -> None:
    fed = blobs((12, 12, 12))
    spec = specification(fed, rounds=2)
    method = FedAPA(eta=0.0, share="all", clip=False, self_weight=False, normalise=False)
    server = method.setup(spec)
    server["A"] = torch.full((3, 3), 1 / 3)
    _, average, engine = simulate(FedAvg(), fed, specification(fed, rounds=1))
    method.merge(server, {c: Message(weights=engine.states[c]["own"]) for c in range(3)})
    torch.testing.assert_close(method.send(server, 0)["weights"], average["weights/0"])


@pytest.mark.parametrize("share", ["extractor", "all"])
def test_batchnorm_statistics_are_mixed_but_do_not_steer_the_rows(fed: Federation, share: Any) -> None:
    spec, method, rng = specification(fed, norm=True), FedAPA(share=share), torch.Generator().manual_seed(0)
    parameters = {"extractor": 45, "all": 63}[share]  # 35 of the layer and 10 of its norm, then 18 of the head
    matrices = []
    for drift in (0.0, 3.0):  # of the statistics alone
        server = method.setup(spec)
        bank, A = torch.randn(4, parameters + 10, generator=rng.manual_seed(0)), torch.full((4, 4), 0.25)
        assert server["bank"].shape == bank.shape
        server["bank"], server["A"] = bank, A
        upload = method.send(server, 0)["weights"].clone()
        torch.testing.assert_close(upload[parameters:], bank[:, parameters:].mean(0))
        upload[:parameters] += 1
        upload[parameters:] += drift
        method.merge(server, {0: Message(weights=upload)})
        assert torch.equal(server["bank"][0], upload)
        matrices.append(server["A"])
    assert torch.equal(*matrices)
    assert not torch.equal(matrices[0][0], FedAPA().settle(A[0], 0)), "the parameters did"


def test_caveats_name_settings_that_switch_it_off() -> None:
    assert not FedAPA().caveats()
    assert any("local training" in sentence for sentence in FedAPA(eta=0).caveats())
    assert any("ascends" in sentence for sentence in FedAPA(sign="paper").caveats())
    assert any("mu does nothing" in sentence for sentence in FedAPA(self_weight=False, mu=0.3).caveats())
    assert not FedAPA(self_weight=False).caveats()
    assert not FedAPA(mu=0.3).caveats()


@pytest.mark.parametrize("server_momentum", [0.0, 0.9])
@pytest.mark.parametrize(
    "how",
    [
        {},
        {"mu": 0.0},
        {"normalise": False},
        {"normalise": False, "mu": 1.0},
        {"normalise": False, "self_weight": False},
    ],
)
def test_the_caveat_of_a_matrix_that_rests_is_true(
    fed: Federation, how: dict[str, Any], server_momentum: float
) -> None:
    method, spec = FedAPA(eta=0.0, server_momentum=server_momentum, **how), specification(fed)
    (said,) = method.caveats()
    server, w = method.setup(spec), torch.ones(35)
    method.merge(server, {0: Message(weights=w)})
    back = method.send(server, 0)["weights"]
    assert ("local training" in said) == torch.equal(back, w)
    assert ("mu times its upload" in said) == torch.equal(back, 0.5 * w)


def test_a_mixture_that_was_sent_is_not_made_again_for_the_reply(
    fed: Federation, monkeypatch: pytest.MonkeyPatch
) -> None:
    method, made = FedAPA(), list[int]()
    server, mix = method.setup(specification(fed)), bank.mix

    def counted(rows: Tensor, models: Tensor) -> Tensor:
        made.append(len(rows))
        return mix(rows, models)

    monkeypatch.setattr(bank, "mix", counted)
    sent = method.dispatch(server, range(4))
    method.merge(server, {client: Message(weights=sent[client]["weights"] + 1) for client in range(4)})
    assert made == [4]
    method.dispatch(server, range(4))
    assert made == [4, 4], "the state is another one"
    server["A"].mul_(0.5)
    method.dispatch(server, range(4))
    assert made == [4, 4, 4], "it was changed in place"
    method.merge(server, {1: sent[1]})
    assert made == [4, 4, 4, 1]
