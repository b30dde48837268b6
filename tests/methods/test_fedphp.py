"""FedPHP: the schedule and both transfers on paper; the history model is the client's own; the rest is FedAvg."""

import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from conftest import simulate, slope, small_network, specification, visit
from torch import Tensor
from torch.nn import functional

from fedgraft.core.exchange import train
from fedgraft.core.message import Message
from fedgraft.data.federation import Federation
from fedgraft.methods.fedavg import FedAvg
from fedgraft.methods.fedphp import WIDTHS, FedPHP, distillation, mmd
from fedgraft.runs.run import run


@pytest.mark.parametrize("transfer", ["kd", "mmd"])
@pytest.mark.parametrize("norm", [False, True])
def test_without_the_teacher_it_is_fedavg_bit_for_bit(fed: Federation, transfer: Any, norm: bool) -> None:
    spec = specification(fed, norm=norm)
    done, ours, mine = simulate(FedPHP(rho=0.0, mu=0.0, transfer=transfer), fed, spec, share=0.75)
    average, theirs, other = simulate(FedAvg(), fed, spec, share=0.75)
    assert torch.equal(ours["weights/0"], theirs["weights/0"])
    for client in range(4):
        assert torch.equal(mine.states[client]["own"], other.states[client]["own"])
        # mu = 0 inherits nothing: the history is the last trained model
        assert torch.equal(mine.states[client].get("q", spec.initial(client)), other.states[client]["own"])
    assert done[-1].test["received"] == done[-1].test["trained"] == average[-1].test["trained"]


def test_the_history_follows_the_schedule(fed: Federation) -> None:
    # T = 4 rounds, C = 1/2, mu = .8: m = .8 min(1, k / 2) = 0, .4, .8, .8, whatever the round's number
    spec = specification(fed, rounds=4)
    method, q = FedPHP(mu=0.8, share=0.5), torch.full((53,), torch.nan, dtype=torch.float64)
    state: dict[str, Tensor] = {}
    for number, m in ((0, 0.0), (1, 0.4), (1, 0.8), (3, 0.8)):
        client = visit(fed, spec, round=number)
        client.update(state)
        train(method, client, Message(weights=torch.full((53,), 0.1 * number)))
        v = client.own.double()
        q = v if m == 0 else m * q + (1 - m) * v
        assert client["q"].tolist() == pytest.approx(q.tolist(), abs=1e-6)
        state = dict(client)
    assert int(state["k"]) == 4
    assert state["k"].dtype == torch.int64


def test_the_share_is_the_run_s_unless_told(fed: Federation) -> None:
    # two of the clients in each of three rounds: m = .9 k / (.5 * 3), which is .6 at the second time
    started = run(FedPHP(), fed, model=small_network(), rounds=3, participation="0.25..0.75", workers=1)
    assert started.spec.share == 0.5
    for told, k, m in ((None, 1, 0.6), (None, 2, 0.9), (1.0, 1, 0.3)):
        client = visit(fed, replace(specification(fed, rounds=3), share=0.5))
        method = FedPHP(share=told)
        method.join(client)
        q, client["k"] = client["q"].clone(), torch.tensor(k)
        v = method.fit(client, client.initial(0, False))
        torch.testing.assert_close(client["q"], m * q + (1 - m) * v)


def test_the_first_history_is_the_trained_model_and_then_it_lags(fed: Federation) -> None:
    _, _, engine = simulate(FedPHP(), fed, specification(fed, rounds=1))
    assert all(torch.equal(state["q"], state["own"]) for state in engine.states.values())
    _, _, engine = simulate(FedPHP(), fed, specification(fed, rounds=2))
    assert not any(torch.equal(state["q"], state["own"]) for state in engine.states.values())


def test_only_those_who_take_part_change_their_history(fed: Federation) -> None:
    histories = []
    for rounds in (2, 3):
        # the schedule divides by the rounds: keep it the same for both runs
        done, _, engine = simulate(FedPHP(share=1 / rounds), fed, specification(fed, rounds=rounds), share=0.5)
        histories.append({client: state.get("q") for client, state in engine.states.items()})
    assert [len(this.participants) for this in done] == [2, 2, 2]
    for client in range(4):
        before, after = (history[client] for history in histories)
        if before is None:
            assert (after is None) == (client not in done[-1].participants)
        else:
            assert after is not None
            assert torch.equal(before, after) == (client not in done[-1].participants)


def test_a_history_with_full_weight_stands_still(fed: Federation) -> None:
    spec = specification(fed, rounds=4)
    _, _, engine = simulate(FedPHP(mu=1.0, share=0.25), fed, spec)
    client = visit(fed, spec)
    train(FedPHP(mu=1.0, share=0.25), client, Message(weights=spec.initial(0)))
    assert torch.equal(engine.states[0]["q"], client.own), "as its first participation left it"
    assert any("no longer changes" in sentence for sentence in FedPHP(mu=1.0).caveats())


def test_distillation_by_hand() -> None:
    # the teacher says (4 ln 3, 0), which at temperature 4 is (3/4, 1/4)
    answers = torch.tensor([[4 * math.log(3), 0.0]]) / FedPHP().temperature
    assert float(distillation(torch.zeros(1, 2), answers)) == pytest.approx(math.log(2))
    agreeing = distillation(torch.tensor([[math.log(3), 0.0]]), answers)
    assert float(agreeing) == pytest.approx(-0.75 * math.log(0.75) - 0.25 * math.log(0.25))


def test_mmd_by_hand() -> None:
    # features 0 and 1: the mean squared distance of two different rows is 1, k(0, 0) = 5, k(0, 1) = sum of e^(-1/width)
    expected = 2 * 5 - 2 * sum(math.exp(-1 / width) for width in WIDTHS)
    assert float(mmd(torch.tensor([[0.0]]), torch.tensor([[1.0]]))) == pytest.approx(expected, rel=1e-6)
    same = torch.randn(7, 3, generator=torch.Generator().manual_seed(0))
    assert float(mmd(same, same.flip(0))) == pytest.approx(0, abs=1e-6)
    assert float(mmd(same, 100 * same)) == pytest.approx(float(mmd(same / 1e4, same / 1e2)), rel=1e-3), "no scale"


def test_mmd_draws_the_features_together() -> None:
    generator = torch.Generator().manual_seed(1)
    theirs = torch.randn(8, 2, generator=generator)
    ours = (torch.randn(8, 2, generator=generator) + 2).requires_grad_()
    distance = mmd(ours, theirs)
    distance.backward()  # type: ignore[no-untyped-call]
    assert ours.grad is not None
    assert bool(torch.isfinite(ours.grad).all())
    assert float(mmd(ours.detach() - 0.1 * ours.grad, theirs)) < float(distance.detach())


def test_mmd_of_a_large_batch_has_its_gradient() -> None:
    # 129 and 129 features: more rows than a product of the bank has in a block
    generator = torch.Generator().manual_seed(2)
    ours, theirs = (torch.randn(129, 3, generator=generator, dtype=torch.float64) + shift for shift in (1, 0))
    rows = torch.cat([ours, theirs])
    mean = (rows[:, None] - rows[None]).square().sum() / (258 * 257)  # the widths are fixed by the batch

    def kernel(a: Tensor, b: Tensor) -> Tensor:
        distances = (a[:, None] - b[None]).square().sum(2)
        return torch.stack([torch.exp(-distances / (s * mean)) for s in WIDTHS]).sum(0).mean()

    def discrepancy(ours: Tensor) -> float:
        return float(kernel(ours, ours) + kernel(theirs, theirs) - 2 * kernel(ours, theirs))

    features = ours.clone().requires_grad_()
    distance = mmd(features, theirs)
    distance.backward()  # type: ignore[no-untyped-call]
    assert float(distance.detach()) == pytest.approx(discrepancy(ours))
    assert features.grad is not None
    for entry in (0, 200, 386):
        assert float(features.grad.view(-1)[entry]) == pytest.approx(slope(discrepancy, ours, entry), rel=1e-4)


@pytest.mark.parametrize("transfer", ["kd", "mmd"])
def test_the_step_descends_the_mixed_loss(fed: Federation, transfer: Any) -> None:
    build = lambda: small_network()().double()  # noqa: E731
    spec = specification(fed, build=build, momentum=0.0, epochs=1, batch_size=100)
    client = visit(fed, spec)
    method = FedPHP(rho=0.3, transfer=transfer)
    method.join(client)
    client["q"] = q = spec.initial(0, independent=True)
    w = spec.initial(0)
    step = (w - method.fit(client, w.clone())) / 0.1
    (x, y), model = client.data.train.batch(slice(None)), spec.architectures[0].model()
    with model.load(q).evaluating():
        lesson, answers = (tensor.clone() for tensor in model.score(x))
    with model.load(w).evaluating():
        features = model.score(x)[0].clone()
    rows = torch.cat([features, lesson])
    mean = (rows[:, None] - rows[None]).square().sum() / (40 * 39)  # the widths are fixed by the batch

    def kernel(a: Tensor, b: Tensor) -> Tensor:
        return sum((torch.exp(-(a[:, None] - b[None]).square().sum(2) / (s * mean)) for s in WIDTHS), torch.zeros(()))

    def objective(at: Tensor) -> float:
        with model.load(at).evaluating():
            features, logits = model.score(x)
        if transfer == "kd":
            R = -((answers / 4).softmax(1) * logits.log_softmax(1)).sum(1).mean()
        else:
            R = (kernel(features, features) + kernel(lesson, lesson) - 2 * kernel(features, lesson)).mean()
        return float(0.7 * functional.cross_entropy(logits, y) + 0.3 * R)

    for entry in (0, 17, 33, 40, 52):
        assert float(step[entry]) == pytest.approx(slope(objective, w, entry), rel=1e-4, abs=1e-8)


def test_the_teacher_s_statistics_do_not_drift(fed: Federation) -> None:
    spec = specification(fed, norm=True)
    client = visit(fed, spec)
    method = FedPHP()
    method.join(client)
    q = client["q"].clone()
    method.fit(client, spec.initial(0))
    assert torch.equal(client.model(role="teacher").vector, q)


def test_statistics_are_inherited_in_the_same_proportion(fed: Federation) -> None:
    spec = specification(fed, norm=True, rounds=2)
    client = visit(fed, spec)
    method = FedPHP()
    method.join(client)
    q = client["q"] = torch.full((spec.layout(0).size,), 2.0)
    client["k"] = torch.tensor(1)
    v = method.fit(client, spec.initial(0))  # m = .9 * 1/2
    torch.testing.assert_close(client["q"], 0.45 * q + 0.55 * v)


def test_the_history_is_tested_at_both_points(fed: Federation) -> None:
    spec = specification(fed)
    client = visit(fed, spec)
    for _ in range(2):
        train(FedPHP(), client, Message(weights=spec.initial(0)))
    assert not torch.equal(client["q"], client.own)
    for trained in (None, client.own):
        FedPHP().personal(client, Message(weights=spec.initial(0)), trained)
        assert torch.equal(client.model().vector, client["q"])


def test_caveats() -> None:
    assert not FedPHP().caveats()
    assert any("FedAvg" in sentence for sentence in FedPHP(rho=0).caveats())
    assert any("without labels" in sentence for sentence in FedPHP(rho=1).caveats())
    assert any("inherits nothing" in sentence for sentence in FedPHP(mu=0).caveats())
    assert any("temperature does nothing" in sentence for sentence in FedPHP(transfer="mmd", temperature=2).caveats())
    assert not FedPHP(transfer="mmd").caveats()
    assert not FedPHP(temperature=2).caveats()
