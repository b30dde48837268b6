"""Replies out of all proportion: measured by what was sent, by the model and by the others, and refused by default."""

import math
from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from conftest import HOSTILE, Outcomes, Wire, a_few_first, blobs, fleet, simulate, specification
from torch import Tensor

from fedgraft.core.exchange import Outcome
from fedgraft.core.message import Message
from fedgraft.core.method import Spec
from fedgraft.core.proportion import excesses
from fedgraft.core.rounds import Participation, Round, rounds
from fedgraft.data.federation import Federation
from fedgraft.methods import METHODS
from fedgraft.methods.fedavg import FedAvg
from fedgraft.methods.fedbn import FedBN


def weights(*values: float) -> Message:
    return Message(weights=torch.tensor(values))


@pytest.fixture
def spec(fed: Federation) -> Spec:
    return specification(fed)


def test_weights_count_by_their_distance_from_what_was_sent(spec: Spec) -> None:
    sent = dict.fromkeys(range(3), weights(30.0, 40.0))  # of norm 50, and three tenths are 15
    moved = {0: weights(30.0, 43.0), 1: weights(39.0, 52.0), 2: weights(30.0, 340.0)}  # 3, 15 and 300 away
    found = excesses(spec, sent, moved)
    assert [found[client]["weights"] for client in range(3)] == [0.2, 1.0, 20.0]
    calm = {client: weights(30.0, 60.0 + 20.0 * client) for client in range(3)}  # 20, 40 and 60: the median counts
    assert [round(each["weights"], 3) for each in excesses(spec, sent, calm).values()] == [0.5, 1.0, 1.5]


def test_one_or_two_replies_are_measured_by_what_was_sent_alone(spec: Spec) -> None:
    sent = dict.fromkeys(range(2), weights(30.0, 40.0))
    replies = {0: weights(30.0, 40.0), 1: weights(30.0, 90.0)}
    assert [each["weights"] for each in excesses(spec, sent, replies).values()] == [0.0, 1.0]


def test_replies_of_nothing_do_not_make_the_honest_ones_outliers() -> None:
    spec = specification(blobs((8,) * 5))
    sent = dict.fromkeys(range(5), weights(30.0, 40.0))
    replies = dict.fromkeys(range(3), sent[0]) | dict.fromkeys((3, 4), weights(30.0, 55.0))
    assert excesses(spec, sent, replies)[4]["weights"] == 1.0


def test_what_was_never_sent_counts_by_its_norm(spec: Spec) -> None:
    norm = float(spec.initial(0).norm())
    one = {0: Message(means=torch.tensor([3.0, 4.0]))}
    assert excesses(spec, {0: Message()}, one)[0]["means"] == pytest.approx(5 / norm)
    assert excesses(spec, {0: weights(300.0, 400.0)}, one)[0]["means"] == pytest.approx(0.01)
    longer = {0: Message(weights=torch.tensor([3.0, 4.0, 0.0]))}
    assert excesses(spec, {0: weights(300.0, 400.0)}, longer)[0]["weights"] == pytest.approx(0.01)


def test_rows_count_one_by_one(spec: Spec) -> None:
    few, many = torch.zeros(3, 2), torch.full((3, 2), 4.0)
    few[1] = 4.0
    replies = {client: Message(prototypes=few) for client in range(3)} | {3: Message(prototypes=many)}
    sent = {client: Message(prototypes=torch.zeros(3, 2)) for client in range(4)}
    assert {each["prototypes"] for each in excesses(spec, sent, replies).values()} == {1.0}, "more rows, none larger"


def test_counts_and_single_numbers_are_left_to_the_methods_own_bounds(spec: Spec) -> None:
    reply = {0: Message(counts=torch.tensor([10**9]), fisher=torch.tensor(1e9))}
    assert excesses(spec, {0: Message()}, reply) == {0: {}}


def test_halves_do_not_overflow(spec: Spec) -> None:
    sent = {0: Message(weights=torch.full((4,), -6e4, dtype=torch.float16))}
    found = excesses(spec, sent, {0: Message(weights=torch.full((4,), 6e4, dtype=torch.float16))})
    assert found[0]["weights"] == pytest.approx(2.0)


# in the loop


def run(name: str, fed: Federation, spec: Spec, forge: Callable[[Tensor], Tensor] | None, share: float) -> list[Round]:
    method = METHODS[name]()
    server, engine = method.setup(spec), Wire(method, spec, fed.clients)

    def lie(_: int, outcomes: Outcomes) -> Outcomes:
        honest = outcomes.get(HOSTILE)
        if forge is None or not isinstance(honest, Outcome):
            return outcomes
        told = {n: forge(t) if t.is_floating_point() and t.dim() else t for n, t in honest.reply.items()}
        return {**outcomes, HOSTILE: replace(honest, reply=Message(**told))}

    engine.forge = lie
    return list(rounds(method, server, engine, Participation(share, share), evaluate_every=100))


LARGE: dict[str, Callable[[Tensor], Tensor]] = {
    "1e6 for each weight": lambda t: torch.full_like(t, 1e6),
    "a thousand times as large": lambda t: 1000 * t + 1000,
}


@pytest.mark.parametrize("forge", LARGE.values(), ids=LARGE)
@pytest.mark.parametrize("name", sorted(METHODS.keys() - {"local"}))
def test_a_reply_out_of_all_proportion_is_refused_by_default(
    fed: Federation, name: str, forge: Callable[[Tensor], Tensor]
) -> None:
    for this in run(name, fed, specification(fed, rounds=2, epochs=1), forge, 1.0):
        reasons = [r.reason for r in this.refused if r.client == HOSTILE]
        assert len(reasons) >= 1, f"round {this.number + 1}"
        assert "times out of proportion to the model and the other replies, above bound:factor=10" in reasons[0]
        assert {r.client for r in this.refused} == {HOSTILE}


@pytest.mark.parametrize("name", sorted(METHODS))
def test_no_honest_reply_is_refused(fed: Federation, name: str) -> None:
    assert not any(this.refused for this in run(name, fed, specification(fed, norm=True), None, 1.0))


@pytest.mark.parametrize("share", [0.5, 0.25], ids=["two", "one"])
@pytest.mark.parametrize("name", a_few_first(sorted(METHODS)))
def test_nor_one_where_few_take_part(fed: Federation, name: str, share: float) -> None:
    assert not any(this.refused for this in run(name, fed, specification(fed, norm=True), None, share))


@pytest.mark.parametrize("name", ["fedproto", "flexifed", "fedppa", "fedppa+", "lg-fedavg"])
def test_nor_one_in_a_fleet_of_several_networks(fed: Federation, name: str) -> None:
    assert not any(this.refused for this in run(name, fed, fleet(fed, norm=True, lr=0.02), None, 1.0))


def test_the_run_may_set_another_factor_or_none(fed: Federation) -> None:
    large = LARGE["a thousand times as large"]
    assert not run("fedavg", fed, specification(fed, rounds=1, stages=("bound:factor=0",)), large, 1.0)[0].refused
    assert not run("fedavg", fed, specification(fed, rounds=1, stages=("bound:factor=1e9",)), large, 1.0)[0].refused
    strict = run("fedavg", fed, specification(fed, rounds=1, stages=("bound:factor=1e-3",)), None, 1.0)[0]
    assert [refusal.client for refusal in strict.refused] == [0, 1, 2, 3]


def test_an_outlier_leaves_the_same_bits_as_an_absent_client(fed: Federation) -> None:
    spec = specification(fed)
    servers = []
    for forge in (lambda t: torch.full_like(t, 1e6), lambda t: torch.full_like(t, math.nan)):
        method = FedAvg()
        server, engine = method.setup(spec), Wire(method, spec, fed.clients)

        def lie(_: int, outcomes: Outcomes, forge: Callable[[Tensor], Tensor] = forge) -> Outcomes:
            honest = outcomes[HOSTILE]
            assert isinstance(honest, Outcome)
            return {**outcomes, HOSTILE: replace(honest, reply=Message(weights=forge(honest.reply["weights"])))}

        engine.forge = lie
        list(rounds(method, server, engine, Participation()))
        servers.append(server["weights/0"])
    assert torch.equal(*servers)
    _, alone, _ = simulate(FedAvg(), fed, spec)
    assert not torch.equal(servers[0], alone["weights/0"])


def test_statistics_of_batchnorm_have_more_room_and_are_bounded_all_the_same(fed: Federation) -> None:
    """An honest last layer's variance went from 1 to 230 in a round; a million is nobody's."""
    spec = specification(fed, norm=True)
    method = FedAvg()
    sent = {client: method.send(method.setup(spec), client) for client in range(4)}

    def excess(variance: float) -> float:
        replies = {client: Message(weights=message["weights"] + 0.1) for client, message in sent.items()}
        replies[2]["weights"][-1] = variance
        return excesses(spec, sent, replies)[2]["weights"]

    assert excess(230.0) < 10 < excess(1e6)


def test_batchnorm_that_stays_at_home_counts_as_it_began(fed: Federation) -> None:
    spec = specification(fed, norm=True)
    method = FedBN()
    sent = {0: method.send(method.setup(spec), 0)}
    norm = float(sent[0]["weights"].norm())
    moved = {0: Message(weights=sent[0]["weights"] + 0.1)}  # 53 weights; the five scales at home began as ones
    assert excesses(spec, sent, moved)[0]["weights"] == pytest.approx(math.sqrt(0.53 / (norm**2 + 5)))
    assert specification(fed).first_batchnorm_norms == (0.0,)
