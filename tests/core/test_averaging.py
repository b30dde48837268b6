"""Averages that a minority of hostile clients cannot carry away."""

import pytest
import torch
from conftest import blobs, simulate, small_network, specification
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

import fedgraft as fg
from fedgraft.base.errors import UserError
from fedgraft.core import bank
from fedgraft.core.averaging import Clip, Median, Trimmed
from fedgraft.core.message import Message
from fedgraft.core.method import Inbox, Server
from fedgraft.core.stages import Pipeline, pipeline
from fedgraft.data.federation import Federation
from fedgraft.methods import METHODS
from fedgraft.methods.fedavg import FedAvg


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
    assert within(Median().average(everybody, claimed), honest)
    assert within(Trimmed(share=len(hostile) / n).average(everybody, claimed), honest)
    clipped = Clip(norm=0.5).average(everybody, claimed)
    assert float((clipped - Median().average(everybody, claimed)).norm()) <= 0.5 + 1e-4


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
    assert within(Median().average(everybody, ones), honest)
    assert within(Trimmed(share=0.2).average(everybody, ones), honest)
    assert within(Trimmed(share=0.1).average(everybody, ones), honest), "a tenth of eleven is two"
    assert not within(Trimmed(share=0.09).average(everybody, ones), honest), "one of eleven is not enough"
    assert float((Clip(norm=1).average(everybody, ones) - bank.mean(honest, ones[:9])).norm()) < 2


def test_what_the_rules_come_to_by_hand() -> None:
    uploads = torch.tensor([[1.0, 5.0], [2.0, 1.0], [9.0, 2.0], [3.0, 3.0]])
    weights = torch.tensor([3.0, 1.0, 1.0, 1.0])
    assert bank.mean(uploads, weights).tolist() == pytest.approx([17 / 6, 21 / 6])
    assert Median().average(uploads, weights).tolist() == [2.5, 2.5]
    assert Trimmed(share=0.25).average(uploads, weights).tolist() == [2.5, 2.5]
    assert Trimmed(share=0.01).average(uploads, weights).tolist() == [2.5, 2.5], "a share is rounded up"
    assert Trimmed(share=0).average(uploads, weights).tolist() == bank.mean(uploads, torch.ones(4)).tolist()
    assert torch.equal(Clip(norm=100).average(uploads, weights), bank.mean(uploads, weights))
    # the medians are (0, 0): the last is ten away and is drawn to two
    cross = torch.tensor([[1.0, 0.0], [-1.0, 0.0], [0.0, 1.0], [0.0, -1.0], [6.0, 8.0]])
    assert Clip(norm=2).average(cross, torch.ones(5)).tolist() == pytest.approx([1.2 / 5, 1.6 / 5])


@pytest.mark.parametrize("replies", [3, 4, 5])
def test_a_fifth_of_three_replies_is_one(replies: int) -> None:
    honest = rows(replies - 1, 0)
    everybody = torch.cat([honest, torch.full((1, 7), 1e6)])
    assert within(Trimmed(share=0.2).average(everybody, torch.ones(replies)), honest)


def test_two_replies_cannot_be_told_apart() -> None:
    two = rows(2, 0)
    assert torch.equal(Trimmed(share=0.4).average(two, torch.ones(2)), bank.mean(two, torch.ones(2)))


def test_alone_a_client_is_its_own_average() -> None:
    upload = rows(1, 3)
    for rule in (Pipeline(), *(Pipeline([stage]) for stage in (Median(), Trimmed(share=0.49), Clip(norm=0.1)))):
        assert torch.equal(rule.mean(upload, torch.ones(1)), upload[0])


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("mode", "no stage is called 'mode'"),
        ("trimmed", "trimmed needs share: write trimmed:share=VALUE"),
        ("median:3", "median does not take a bare 3: write median"),
        ("trimmed:0.5", "a share from 0 up to, but not, 0.5 is trimmed at each end, not 0.5"),
        ("trimmed:-0.1", "a share from 0"),
        ("trimmed:nan", "a share from 0"),
        ("trimmed:true", "a share from 0"),
        ("clip:0", "uploads are clipped to a norm above 0, not 0"),
        ("clip:inf", "uploads are clipped to a norm above 0"),
        ("clip:", "clip needs norm"),
    ],
)
def test_mistakes_are_sentences(fed: Federation, text: str, sentence: str) -> None:
    with pytest.raises(UserError, match=sentence):
        fg.run("fedavg", fed, model=small_network(), rounds=1, stages=[text])


def test_one_stage_at_most_takes_the_place_of_the_mean() -> None:
    with pytest.raises(UserError, match="the stages median and clip both take the place of the mean"):
        pipeline(("bound", "median", "clip:3"))


@pytest.mark.parametrize("name", METHODS)
def test_a_method_that_says_that_it_averages_does(fed: Federation, name: str) -> None:
    method = METHODS[name]()

    def bits(*stages: str) -> dict[str, Tensor]:
        spec = specification(fed, rounds=2, epochs=1, stages=stages)
        return dict(simulate(method, fed, spec, evaluate_every=9)[1])

    plain, robust = bits(), bits("median")
    changed = any(not torch.equal(plain[key], robust[key]) for key in plain)
    assert changed == (bool(method.averages) and name != "local")
    if not method.averages:
        with pytest.raises(UserError, match=f"{name} does not average what clients send"):
            fg.run(method, fed, model=small_network(), rounds=1, stages=["median"])


@pytest.mark.parametrize("rule", ["median", "trimmed:0.2", "clip:1"])
def test_fedavg_learns_in_spite_of_a_liar(rule: str) -> None:
    class Lied(FedAvg):
        def merge(self, server: Server, inbox: Inbox) -> None:
            lie = Message(weights=torch.full_like(inbox[1]["weights"], 1e4))
            super().merge(server, {**inbox, 1: lie})

    fed = blobs((20, 13, 31, 20, 25))
    settings = {"model": small_network(), "rounds": 8, "lr": 0.05, "batch_size": 8, "workers": 1}
    carried = fg.run(Lied(), fed, **settings)
    steady = fg.run(Lied(), fed, stages=[rule], **settings)
    assert carried.server is not None
    assert steady.server is not None
    assert float(carried.server["weights/0"].norm()) > 1e3
    assert float(steady.server["weights/0"].norm()) < 20
    assert steady.value > 0.7


def test_a_comparison_has_local_in_it_whatever_the_average(fed: Federation) -> None:
    comparison = fg.compare(
        [], seeds=1, federation=lambda seed: fed, model=small_network(), rounds=1, workers=1, stages=["median"]
    )
    assert list(comparison.runs) == ["local", "fedavg"]
