"""Averages that a minority of hostile clients cannot carry away."""

import pytest
import torch
from conftest import blobs, simulate, small_network, specification
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

import fedgraft as fg
from fedgraft.base.errors import UserError
from fedgraft.core import averaging, bank
from fedgraft.core.message import Message
from fedgraft.core.method import Inbox, Server
from fedgraft.data.federation import Federation
from fedgraft.methods import METHODS
from fedgraft.methods.fedavg import FedAvg
from fedgraft.runs.config import configure


def rows(count: int, seed: int) -> Tensor:
    return torch.randn(count, 7, generator=torch.Generator().manual_seed(seed))


@st.composite
def crowds(draw: st.DrawFn) -> tuple[Tensor, Tensor]:
    """Honest rows, and hostile ones of any size, fewer than half of all."""
    count = draw(st.integers(1, 12))
    hostile = draw(st.integers(0, (count - 1) // 2))
    values = draw(st.lists(st.floats(-1e9, 1e9, width=32), min_size=7 * hostile, max_size=7 * hostile))
    return rows(count - hostile, draw(st.integers(0, 99))), torch.tensor(values).view(hostile, 7)


def within(result: Tensor, honest: Tensor) -> bool:
    return bool((result >= honest.amin(0) - 1e-5).all()) and bool((result <= honest.amax(0) + 1e-5).all())


@given(crowds(), st.data())
@settings(max_examples=200, deadline=None)
def test_below_the_breakdown_point_the_result_stays_among_the_honest(
    crowd: tuple[Tensor, Tensor], data: st.DataObject
) -> None:
    honest, hostile = crowd
    everybody = torch.cat([honest, hostile])
    n = len(everybody)
    everybody = everybody[torch.tensor(data.draw(st.permutations(range(n))))]
    claimed = torch.ones(n).index_fill_(0, torch.tensor([0]), 1e9)
    assert within(bank.mean(everybody, claimed, "median"), honest)
    assert within(bank.mean(everybody, claimed, f"trimmed:{len(hostile) / n:.17g}"), honest)
    clipped = bank.mean(everybody, claimed, "clip:0.5")
    assert float((clipped - bank.mean(everybody, claimed, "median")).norm()) <= 0.5 + 1e-4


@pytest.mark.parametrize("kind", ["mean", "median", "trimmed:0.1"])
def test_an_average_is_rounded_once(kind: str) -> None:
    """A thousand rows added up in single precision differ in the last digits."""
    many = torch.randn(1000, 50, generator=torch.Generator().manual_seed(0))
    assert torch.equal(
        bank.mean(many, torch.ones(1000), kind), bank.mean(many.double(), torch.ones(1000), kind).float()
    )


def test_the_plain_mean_is_carried_away_and_the_others_are_not() -> None:
    honest = rows(9, 0)
    everybody = torch.cat([honest, torch.full((2, 7), 1e6)])
    ones = torch.ones(11)
    assert not within(bank.mean(everybody, ones), honest)
    assert within(bank.mean(everybody, ones, "median"), honest)
    assert within(bank.mean(everybody, ones, "trimmed:0.2"), honest)
    assert within(bank.mean(everybody, ones, "trimmed:0.1"), honest), "a tenth of eleven is two"
    assert not within(bank.mean(everybody, ones, "trimmed:0.09"), honest), "one of eleven is not enough"
    assert float((bank.mean(everybody, ones, "clip:1") - bank.mean(honest, ones[:9])).norm()) < 2


def test_what_the_rules_come_to_by_hand() -> None:
    uploads = torch.tensor([[1.0, 5.0], [2.0, 1.0], [9.0, 2.0], [3.0, 3.0]])
    weights = torch.tensor([3.0, 1.0, 1.0, 1.0])
    assert bank.mean(uploads, weights).tolist() == pytest.approx([17 / 6, 21 / 6])
    assert bank.mean(uploads, weights, "median").tolist() == [2.5, 2.5]
    assert bank.mean(uploads, weights, "trimmed:0.25").tolist() == [2.5, 2.5]
    assert bank.mean(uploads, weights, "trimmed:0.01").tolist() == [2.5, 2.5], "a share is rounded up"
    assert bank.mean(uploads, weights, "trimmed:0").tolist() == bank.mean(uploads, torch.ones(4)).tolist()
    assert torch.equal(bank.mean(uploads, weights, "clip:100"), bank.mean(uploads, weights))
    # the medians are (0, 0): the last is ten away and is drawn to two
    cross = torch.tensor([[1.0, 0.0], [-1.0, 0.0], [0.0, 1.0], [0.0, -1.0], [6.0, 8.0]])
    assert bank.mean(cross, torch.ones(5), "clip:2").tolist() == pytest.approx([1.2 / 5, 1.6 / 5])


@pytest.mark.parametrize("replies", [3, 4, 5])
def test_a_fifth_of_three_replies_is_one(replies: int) -> None:
    honest = rows(replies - 1, 0)
    everybody = torch.cat([honest, torch.full((1, 7), 1e6)])
    assert within(bank.mean(everybody, torch.ones(replies), "trimmed:0.2"), honest)


def test_two_replies_cannot_be_told_apart() -> None:
    two = rows(2, 0)
    assert torch.equal(bank.mean(two, torch.ones(2), "trimmed:0.4"), bank.mean(two, torch.ones(2)))


def test_alone_a_client_is_its_own_average() -> None:
    upload = rows(1, 3)
    for rule in ("mean", "median", "trimmed:0.49", "clip:0.1"):
        assert torch.equal(bank.mean(upload, torch.ones(1), rule), upload[0])


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("mode", "is mean, median, trimmed:SHARE or clip:NORM, not 'mode'"),
        ("trimmed", "is mean, median, trimmed:SHARE or clip:NORM"),
        ("median:3", "is mean, median, trimmed:SHARE or clip:NORM"),
        ("trimmed:0.5", "trims a share from 0 up to, but not, 0.5 at each end, not '0.5'"),
        ("trimmed:-0.1", "trims a share"),
        ("trimmed:nan", "trims a share"),
        ("clip:0", "clips to a norm above 0, not '0'"),
        ("clip:inf", "clips to a norm above 0"),
        ("clip:", "clips to a norm above 0"),
    ],
)
def test_mistakes_are_sentences(text: str, sentence: str) -> None:
    with pytest.raises(UserError, match=f"training.averaging {sentence}"):
        configure({"averaging": text})


def test_texts_are_read() -> None:
    assert averaging.parse("trimmed:0.2") == ("trimmed", 0.2)
    assert configure({"averaging": "clip:10.0"}).training.averaging == "clip:10"
    assert configure({}).training.averaging == "mean"


@pytest.mark.parametrize("name", METHODS)
def test_a_method_that_says_that_it_averages_does(fed: Federation, name: str) -> None:
    method = METHODS[name]()

    def bits(rule: str) -> dict[str, Tensor]:
        spec = specification(fed, rounds=2, epochs=1, averaging=rule)
        return dict(simulate(method, fed, spec, evaluate_every=9)[1])

    plain, robust = bits("mean"), bits("median")
    changed = any(not torch.equal(plain[key], robust[key]) for key in plain)
    assert changed == (bool(method.averages) and name != "local")
    if not method.averages:
        with pytest.raises(UserError, match=f"{name} does not average what clients send"):
            fg.run(method, fed, model=small_network(), rounds=1, averaging="median")


@pytest.mark.parametrize("rule", ["median", "trimmed:0.2", "clip:1"])
def test_fedavg_learns_in_spite_of_a_liar(rule: str) -> None:
    class Lied(FedAvg):
        def merge(self, server: Server, inbox: Inbox) -> None:
            lie = Message(weights=torch.full_like(inbox[1]["weights"], 1e4))
            super().merge(server, {**inbox, 1: lie})

    fed = blobs((20, 13, 31, 20, 25))
    settings = {"model": small_network(), "rounds": 8, "lr": 0.05, "batch_size": 8, "workers": 1}
    carried = fg.run(Lied(), fed, **settings)
    steady = fg.run(Lied(), fed, averaging=rule, **settings)
    assert carried.server is not None
    assert steady.server is not None
    assert float(carried.server["weights/0"].norm()) > 1e3
    assert float(steady.server["weights/0"].norm()) < 20
    assert steady.accuracy > 0.7


def test_a_comparison_has_local_in_it_whatever_the_average(fed: Federation) -> None:
    comparison = fg.compare(
        [], seeds=1, federation=lambda seed: fed, model=small_network(), rounds=1, workers=1, averaging="median"
    )
    assert list(comparison.runs) == ["local", "fedavg"]
