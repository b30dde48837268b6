"""APPLE: its gradients against finite differences, the odds of its downloads, its traffic, its siblings."""

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from conftest import blobs, fleet, simulate, slope, small_network, specification, visit
from torch import Tensor
from torch.nn import functional

from fedgraft.base.errors import UserError
from fedgraft.core.client import Client
from fedgraft.core.message import Message
from fedgraft.core.method import Inbox, Server, Spec
from fedgraft.data.federation import Federation
from fedgraft.methods import apple
from fedgraft.methods.apple import APPLE, choose
from fedgraft.methods.fedavg import FedAvg
from fedgraft.methods.local import Local


class Bench:
    """Client 1 of three in float64, with nine samples that fit into one batch and a p far from p0."""

    def __init__(self, method: APPLE, *, round: int = 0, **settings: float) -> None:
        fed = blobs((6, 9, 3))
        plain: dict[str, float] = {"momentum": 0.0, "epochs": 1, "batch_size": 9} | settings
        spec = specification(fed, rounds=4, build=lambda: small_network(6)().double(), **plain)
        self.client = client = visit(fed, spec, 1, round=round)
        client["own"] = spec.initial(1, independent=True)
        method.join(client)
        method.assemble(client, method.send(method.setup(spec), 1))
        client["p"] = torch.tensor([0.7, 1.3, -0.4], dtype=torch.float64)
        self.W, self.p = client["cores"].clone(), client["p"].clone()
        self.trained = method.fit(client, self.p @ self.W)
        self.moved_p, self.moved_w = client["p"] - self.p, client["cores"][1] - self.W[1]

    def risk(self, p: Tensor, W: Tensor) -> float:
        """L(sum_j p_j w_j), computed from the formulas of the network alone."""
        slots, data = self.client.layout.named(p @ W), self.client.data.train
        hidden = functional.relu(functional.linear(data.inputs, slots["0.weight"], slots["0.bias"]))
        logits = functional.linear(hidden, slots["2.weight"], slots["2.bias"])
        return float(functional.cross_entropy(logits, data.labels))


P0 = torch.tensor([6 / 18, 9 / 18, 3 / 18], dtype=torch.float64)


@pytest.mark.parametrize(("half", "factor"), [(True, 0.5), (False, 1.0)])
@pytest.mark.parametrize("round", [0, 1])
def test_one_step_moves_p_and_the_core_down_the_gradient(half: bool, factor: float, round: int) -> None:
    method = APPLE(eta2=0.01, mu=2.0, L=1.0, half=half)
    bench = Bench(method, round=round)
    fade = {0: 1.0, 1: (math.cos(math.pi / 4) + 1) / 2}[round]

    def F(p: Tensor, W: Tensor) -> float:
        return bench.risk(p, W) + fade * 2.0 * factor * float((p - P0).square().sum())

    assert bench.client.loss == pytest.approx(F(bench.p, bench.W)), "the loss that is reported is F"
    for j in range(3):
        by_p = slope(lambda p: F(p, bench.W), bench.p, j)
        assert float(bench.moved_p[j]) == pytest.approx(-0.01 * by_p, rel=1e-5), f"p of client {j}"
    for k in range(0, bench.W.shape[1], 4):
        by_w = slope(lambda w: F(bench.p, torch.stack([bench.W[0], w, bench.W[2]])), bench.W[1], k)
        assert float(bench.moved_w[k]) == pytest.approx(-0.1 * by_w, rel=1e-5, abs=1e-9), f"weight {k}"


def test_training_leaves_the_others_cores_and_ends_at_the_mixture() -> None:
    bench = Bench(APPLE(eta2=0.01))
    assert torch.equal(bench.client["cores"][[0, 2]], bench.W[[0, 2]])
    torch.testing.assert_close(bench.trained, bench.client["p"] @ bench.client["cores"])


def test_p_has_its_own_step_size_which_decays_with_the_run_and_no_weight_decay() -> None:
    plain = Bench(APPLE(eta2=0.01, mu=0.0), round=2)
    slower = Bench(APPLE(eta2=0.01, mu=0.0), round=2, schedule="exponential:0.5")
    decayed = Bench(APPLE(eta2=0.01, mu=0.0), round=2, weight_decay=0.3)
    torch.testing.assert_close(slower.moved_p, plain.moved_p / 4)
    torch.testing.assert_close(slower.moved_w, plain.moved_w / 4)
    assert torch.equal(decayed.moved_p, plain.moved_p)
    torch.testing.assert_close(decayed.moved_w, plain.moved_w - 0.1 * 0.3 * plain.W[1])


def test_momentum_is_on_both_groups() -> None:
    # the second step goes along the first one's direction, too: v2 = m g1 + g2
    one = Bench(APPLE(eta2=1e-7, mu=0.0), lr=1e-7)
    two = Bench(APPLE(eta2=1e-7, mu=0.0), lr=1e-7, epochs=2, momentum=0.9)
    for first, both in ((one.moved_p, two.moved_p), (one.moved_w, two.moved_w)):
        torch.testing.assert_close(both, first * (1 + 0.9 + 1), rtol=1e-5, atol=0)


@pytest.mark.parametrize("buffers", ["fresh", "kept"])
def test_momentum_of_p_survives_where_the_run_keeps_it(fed: Federation, buffers: str) -> None:
    _, _, engine = simulate(APPLE(), fed, specification(fed, rounds=2, optimizer_state=buffers))
    for state in engine.states.values():
        assert ("momentum/p" in state) == ("momentum/batches" in state) == (buffers == "kept")


def test_the_fading_of_the_proximal_term() -> None:
    cosine, exponential = APPLE(L=0.2), APPLE(L=0.2, schedule="exponential")
    for method in (cosine, exponential):
        assert method.fading(0, 100) == 1.0
        values = [method.fading(r, 100) for r in range(20)]
        assert values == sorted(values, reverse=True)
        assert [method.fading(r, 100) for r in (20, 21, 99)] == [0, 0, 0]
    assert cosine.fading(10, 100) == pytest.approx(0.5)
    assert exponential.fading(10, 100) == pytest.approx(0.0316, abs=1e-4)


def test_the_proximal_term_draws_p_back(fed: Federation) -> None:
    spec = specification(fed, rounds=4)
    shares = torch.tensor(fed.samples) / sum(fed.samples)

    def away(method: APPLE) -> float:
        _, _, engine = simulate(method, fed, spec)
        return sum(float((state["p"] - shares).norm()) for state in engine.states.values())

    assert away(APPLE(L=1.0, eta2=0.01, mu=20.0)) < 0.7 * away(APPLE(L=1.0, eta2=0.01, mu=0.0))


# ---- where it starts, and what a client holds


def test_p_starts_at_the_data_shares_and_every_core_from_its_own_draw(fed: Federation) -> None:
    spec = specification(fed, rounds=1)
    _, server, engine = simulate(APPLE(eta2=0.0), fed, spec)
    for state in engine.states.values():
        assert state["p"].tolist() == pytest.approx([20 / 72, 13 / 72, 31 / 72, 8 / 72])
    first = APPLE().setup(spec)["bank"]
    assert all(torch.equal(first[c], spec.initial(c, independent=True)) for c in range(4))
    assert not torch.equal(first[0], first[1])
    shared = APPLE(init="shared").setup(spec)["bank"]
    assert all(torch.equal(core, spec.initial(0)) for core in shared)
    assert not torch.equal(server["bank"], first)


def test_equal_cores_mix_to_themselves(fed: Federation) -> None:
    # p sums to one at first
    seen: list[Tensor] = []

    @dataclass(frozen=True)
    class Watching(APPLE):
        def assemble(self, client: Client, message: Message) -> Tensor:
            seen.append(super().assemble(client, message))
            return seen[-1]

    spec = specification(fed, rounds=1)
    simulate(Watching(init="shared"), fed, spec, evaluate_every=9)
    for v in seen[:4]:
        torch.testing.assert_close(v, spec.initial(0))


def test_a_lone_client_without_p_steps_is_local_training_bit_for_bit() -> None:
    fed = blobs((13,))
    for buffers in ("fresh", "kept"):
        spec = specification(fed, rounds=3, momentum=0.9, optimizer_state=buffers, norm=True)
        _, _, ours = simulate(APPLE(eta2=0.0, init="shared"), fed, spec)
        _, _, alone = simulate(Local(), fed, spec)
        assert torch.equal(ours.states[0]["own"], alone.states[0]["own"])


def test_equal_sizes_and_fixed_p_take_a_fedavg_step() -> None:
    # v' = sum_j 1/N (w_j - N eta 1/N G_j) = v - eta mean_j G_j
    fed = blobs((12, 12, 12))
    spec = specification(fed, rounds=1, lr=0.3, momentum=0.0, epochs=1, batch_size=12)
    _, ours, _ = simulate(APPLE(eta2=0.0), fed, spec)
    v = APPLE().setup(spec)["bank"].mean(0)

    @dataclass(frozen=True)
    class FromV(FedAvg):
        def setup(self, spec: Spec) -> Server:
            return Server(spec, **{"weights/0": v})

    _, theirs, _ = simulate(FromV(), fed, specification(fed, rounds=1, lr=0.1, momentum=0.0, epochs=1, batch_size=12))
    torch.testing.assert_close(ours["bank"].mean(0), theirs["weights/0"])


@dataclass(frozen=True)
class Open(APPLE):
    """Shows the server's bank after every round."""

    def observe(self, server: Server) -> Mapping[str, Tensor]:
        return {"bank": server["bank"]}


def test_received_and_trained_are_the_mixtures_with_the_newest_and_the_downloaded_cores(fed: Federation) -> None:
    spec = specification(fed, rounds=4)
    done, after, engine = simulate(Open(eta2=0.01), fed, spec)
    downloaded = done[-2].observed["bank"]
    live = spec.architectures[0].model()
    for client, data in enumerate(fed.clients):
        p, W = engine.states[client]["p"], downloaded.clone()
        W[client] = after["bank"][client]
        torch.testing.assert_close(engine.states[client]["own"], p @ W)
        assert torch.equal(engine.states[client]["core"], after["bank"][client])
        x, y = data.test.batch(slice(None))
        for point, weights in (("received", p @ after["bank"]), ("trained", engine.states[client]["own"])):
            with live.load(weights).evaluating():
                right = (live(x).argmax(1) == y).float().mean()
            assert done[-1].test[point].per_client[client] == pytest.approx(float(right))


def test_the_personalised_model_may_be_uploaded_as_the_core(fed: Federation) -> None:
    _, server, engine = simulate(APPLE(upload="personalised"), fed, specification(fed, rounds=2))
    for client, state in engine.states.items():
        assert torch.equal(server["bank"][client], state["own"])
        assert torch.equal(state["core"], state["own"])
    _, server, engine = simulate(APPLE(), fed, specification(fed, rounds=2))
    assert not torch.equal(server["bank"][0], engine.states[0]["own"])


def test_absent_clients_keep_core_and_p_and_the_server_their_last_core(fed: Federation) -> None:
    method = APPLE(eta2=0.01, mu=0.0)
    done, server, engine = simulate(method, fed, specification(fed, rounds=4), share=0.5)
    _, before, then = simulate(method, fed, specification(fed, rounds=3), share=0.5)
    absent = [c for c in range(4) if c not in done[-1].participants]
    assert absent
    for client in absent:
        assert torch.equal(server["bank"][client], before["bank"][client])
        for name, value in then.states[client].items():
            assert torch.equal(value, engine.states[client][name]), name


def test_trajectories_of_p_are_kept(fed: Federation) -> None:
    done, _, engine = simulate(APPLE(eta2=0.01), fed, specification(fed, rounds=3))
    trajectory = torch.stack([this.observed["p"] for this in done])
    assert trajectory.shape == (3, 4, 4)
    for client in range(4):
        assert torch.equal(trajectory[-1, client], engine.states[client]["p"])
    assert not torch.equal(trajectory[0], trajectory[1])


def test_batchnorm_statistics_stay_with_the_client_even_with_negative_p(fed: Federation) -> None:
    for policy in ("average", "local", "keep"):
        spec = specification(fed, rounds=3, norm=True, buffers=policy)
        done, server, engine = simulate(APPLE(eta2=0.5), fed, spec)
        trained = spec.layout(0).trained
        assert server["bank"].shape == (4, trained)
        assert float(torch.stack([state["p"] for state in engine.states.values()]).min()) < 0
        for state in engine.states.values():
            variances = state["own"][trained + 5 :]
            assert bool((variances > 0).all())
            assert bool((variances == 1).all()) == (policy == "keep")
        assert not any(this.refused for this in done)


# ---- the download budget


def test_odds_of_the_paper() -> None:
    # r = 10, B = 2, N = 5: b = 4; 4^.5, 4^.2, 4^.1, 4^.05 = 2, 1.3195, 1.1487, 1.0718, in sum 5.54
    p, seen = np.array([9.0, 0.5, -0.2, 0.1, -0.05]), np.ones(5, dtype=bool)
    rng, counts = np.random.default_rng(0), np.zeros((2, 5))
    for _ in range(20_000):
        first, second = choose(p, seen, 0, 2, 4.0, rng)
        assert first != second
        counts[0, first] += 1
        counts[1, second] += 1
    shares = counts / 20_000
    odds = 4.0 ** np.abs(p[1:]) / (4.0 ** np.abs(p[1:])).sum()
    assert odds == pytest.approx([0.361, 0.238, 0.207, 0.193], abs=1e-3)
    assert shares[0, 1:] == pytest.approx(odds, abs=0.012)
    # without replacement: the second is drawn with the odds of those that are left
    second = [sum(odds[k] * odds[j] / (1 - odds[k]) for k in range(4) if k != j) for j in range(4)]
    assert shares[1, 1:] == pytest.approx(second, abs=0.012)
    assert shares[:, 0].tolist() == [0, 0], "nobody downloads its own core"


def test_equal_relationships_make_a_uniform_draw_and_huge_ones_do_not_overflow() -> None:
    rng, counts = np.random.default_rng(1), np.zeros(4)
    for _ in range(9_000):
        counts[choose(np.array([0.3, -0.3, 0.3, 0.0]), np.ones(4, dtype=bool), 3, 1, 8.0, rng)] += 1
    assert counts / 9_000 == pytest.approx([1 / 3, 1 / 3, 1 / 3, 0], abs=0.015)
    ids = choose(np.array([0.0, 1e6, 2e6, 0.0]), np.ones(4, dtype=bool), 0, 2, 100.0, rng)
    assert ids.tolist() == [2, 1]


def test_cores_never_seen_come_first() -> None:
    p, rng = np.array([0.0, 50.0, 0.0, 90.0, 40.0]), np.random.default_rng(2)
    seen = np.array([True, True, False, False, True])
    drawn = [choose(p, seen, 0, 3, 2.0, rng).tolist() for _ in range(400)]
    assert all(set(ids[:2]) == {2, 3} for ids in drawn), "the two new ones"
    assert sum(ids[0] == 2 for ids in drawn) == pytest.approx(200, abs=50), "whatever their p"
    assert sum(ids[2] == 1 for ids in drawn) > 380, "then those with a large |p|"


def test_the_base_grows_with_the_downloads_so_far(fed: Federation, monkeypatch: pytest.MonkeyPatch) -> None:
    bases: list[float] = []

    def recorded(p: np.ndarray, seen: np.ndarray, own: int, count: int, base: float, rng: np.random.Generator):  # type: ignore[no-untyped-def,type-arg]
        bases.append(base)
        return choose(p, seen, own, count, base, rng)

    monkeypatch.setattr(apple, "choose", recorded)
    simulate(APPLE(budget=2), fed, specification(fed, rounds=5), evaluate_every=9)
    # asked at the end of round r - 1 for round r: r B / N = r / 2
    assert bases[::4] == [1.5, 1.5, 1.5, 2.0, 2.5]


@dataclass(frozen=True)
class Recorded(APPLE):
    """Keeps every reply that the server takes."""

    def merge(self, server: Server, inbox: Inbox) -> None:
        REPLIES.extend(inbox.values())
        super().merge(server, inbox)


REPLIES: list[Message] = []


@pytest.mark.parametrize(("budget", "models"), [(None, 3), (7, 3), (3, 3), (2, 2), (1, 1)])
def test_traffic_is_that_of_the_cores_and_p_is_never_uploaded(fed: Federation, budget: int | None, models: int) -> None:
    REPLIES.clear()
    done, _, engine = simulate(Recorded(budget=budget), fed, specification(fed, rounds=4))
    core, ids = 4 * 53, 8 * models if models < 3 else 0
    for this in done:
        assert this.bytes_up == 4 * (core + ids)
        if this.number:
            assert this.bytes_down == 4 * (core * models + ids)
    # at first contact the four counts (8 bytes each), and under a budget no cores: they follow from the seed
    assert done[0].bytes_down == 4 * (4 * 8 + (core * 3 if models == 3 else 0))
    private = [state["p"] for state in engine.states.values()]
    for reply in REPLIES:
        assert set(reply) == ({"core", "ids"} if models < 3 else {"core"})
        assert not any(value.shape == p.shape for value in reply.values() for p in private)


def test_a_sufficient_budget_is_no_budget(fed: Federation) -> None:
    spec = specification(fed, rounds=3)
    _, free, _ = simulate(APPLE(), fed, spec)
    _, enough, engine = simulate(APPLE(budget=3), fed, spec)
    assert torch.equal(free["bank"], enough["bank"])
    assert all("cores" not in state for state in engine.states.values()), "what comes anew every round is not kept"


@pytest.mark.parametrize("init", ["independent", "shared"])
def test_stale_copies_stand_in_for_what_was_not_downloaded(init: str) -> None:
    fed = blobs((9, 9, 9, 9, 9))
    method, spec = Open(budget=1, init=init), specification(fed, rounds=4)  # type: ignore[arg-type]
    done, _, engine = simulate(method, fed, spec, evaluate_every=99)
    banks = [method.setup(spec)["bank"], *(this.observed["bank"] for this in done)]
    for client, state in engine.states.items():
        others = [j for j in range(5) if j != client]
        # a copy is as old as its download; one that was never downloaded is the initial core
        age = {j: [r for r in range(4) if torch.equal(state["cores"][j], banks[r][j])] for j in others}
        assert sorted(r[0] for r in age.values()) == [0, 1, 2, 3], "nothing in the first round, then a new one each"
        assert [bool(state["seen"][j]) for j in others] == [age[j] != [0] for j in others]
        assert torch.equal(state["core"], banks[4][client])
        torch.testing.assert_close(state["own"], state["p"] @ state["cores"])


def test_uniform_selection_ignores_what_was_seen() -> None:
    fed = blobs((9, 9, 9, 9, 9))
    _, _, paper = simulate(APPLE(budget=1), fed, specification(fed, rounds=5))
    _, _, uniform = simulate(APPLE(budget=1, select="uniform"), fed, specification(fed, rounds=5))
    assert all(int(state["seen"].sum()) == 5 for state in paper.states.values())
    assert any(int(state["seen"].sum()) < 5 for state in uniform.states.values())


def test_a_client_that_asks_for_nobody_is_refused(fed: Federation) -> None:
    @dataclass(frozen=True)
    class Lost(APPLE):
        def reply(self, client: Client, received: Tensor, trained: Tensor) -> Message:
            good = super().reply(client, received, trained)
            return Message(core=good["core"], ids=good["ids"] + 4 * (client.id == 2))

    done, server, engine = simulate(Lost(budget=1), fed, specification(fed, rounds=2))
    assert [refusal.client for this in done for refusal in this.refused] == [2, 2]
    assert not bool(server["met"][2]), "it gets the counts again"
    assert "p" not in engine.states[2]


# ---- settings


def test_it_needs_one_architecture(fed: Federation) -> None:
    with pytest.raises(UserError, match="same architecture"):
        APPLE().setup(fleet(fed))


def test_caveats_and_refused_values() -> None:
    assert not APPLE().caveats()
    assert any("never moves p" in sentence for sentence in APPLE(eta2=0.0).caveats())
    assert any("proximal" in sentence for sentence in APPLE(mu=0.0).caveats())
    assert any("unlike the paper" in sentence for sentence in APPLE(upload="personalised").caveats())
    with pytest.raises(UserError, match="budget has to be at least 1"):
        APPLE(budget=0)
    with pytest.raises(UserError, match="budget is a whole number"):
        APPLE(budget=2.5)  # type: ignore[arg-type]
