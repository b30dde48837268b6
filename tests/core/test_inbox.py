"""Means of replies that come in blocks: what the method gets of a wave, and what nobody has to hold."""

from collections.abc import Mapping
from dataclasses import dataclass, replace

import pytest
import torch
from conftest import HOSTILE, Outcomes, Wire, blobs, simulate, specification

from fedgraft.core import bank, inbox
from fedgraft.core.client import ClientId
from fedgraft.core.clientlevel import ClientPrivacy
from fedgraft.core.exchange import Failure, Outcome
from fedgraft.core.inbox import Mean, averaged, parted
from fedgraft.core.message import Message
from fedgraft.core.method import Inbox, Method, Server, sums_of
from fedgraft.core.rounds import Participation, Round, rounds
from fedgraft.data.federation import Federation
from fedgraft.engines.local import LocalEngine
from fedgraft.methods import METHODS
from fedgraft.methods.fedavg import FedAvg

SUMS = [name for name in METHODS if METHODS.make(name).sums()]


class Counting(LocalEngine):
    """Notes whom it was asked for at a time."""

    def train(self, round: int, messages: Mapping[ClientId, Message]) -> Mapping[ClientId, Outcome | Failure]:
        asked.append(list(messages))
        return super().train(round, messages)


asked: list[list[ClientId]] = []


def trained(method: Method, fed: Federation, stages: tuple[str, ...] = ()) -> Server:
    asked.clear()
    spec = specification(fed, rounds=1, stages=stages)
    server = method.setup(spec)
    list(rounds(method, server, Counting(method, spec, fed.clients), Participation(), evaluate_every=9))
    return server


def test_a_wave_is_parted_into_as_few_blocks_as_can_be_of_nearly_one_size() -> None:
    assert [len(block) for block in parted(range(1024))] == [1024]
    assert [len(block) for block in parted(range(1025))] == [512, 513]
    assert [len(block) for block in parted(range(5000))] == [1000] * 5
    assert [list(block) for block in parted([])] == [[]]


def test_blocks_are_added_up_by_what_they_weigh(fed: Federation) -> None:
    """Samples 1, 3 and 4: (1 * 1 + 3 * 5) / 4 = 4 in the first block; (4 * 4 + 4 * 8) / 8 = 6 with the second."""
    spec = replace(specification(fed), samples=(1, 3, 4, 9))
    mean = Mean(FedAvg(), spec)
    mean.add({}, {0: Message(weights=torch.tensor([1.0])), 1: Message(weights=torch.tensor([5.0]))})
    mean.add({}, {})
    mean.add({}, {2: Message(weights=torch.tensor([8.0]))})
    assert {client: reply["weights"].tolist() for client, reply in mean.inbox().items()} == {0: [6], 1: [6], 2: [6]}


def test_one_block_has_the_bits_of_the_mean_of_all_rows(fed: Federation) -> None:
    spec = replace(specification(fed), samples=(7, 11, 13, 17))
    rows = torch.randn(4, 3000, generator=torch.Generator().manual_seed(0))
    mean = Mean(FedAvg(), spec)
    mean.add({}, {client: Message(weights=row) for client, row in enumerate(rows)})
    assert torch.equal(mean.inbox()[0]["weights"], bank.mean(rows, torch.tensor(spec.samples)))


@pytest.mark.parametrize("name", SUMS)
def test_methods_end_where_they_would_with_all_replies_at_once(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two rounds of four clients, in one block and in two; DBE sends something else in the first."""
    method, fed = METHODS.make(name), blobs()
    _, whole, _ = simulate(method, fed, specification(fed, rounds=2))
    monkeypatch.setattr(inbox, "BLOCK", 2)
    _, parts, _ = simulate(method, fed, specification(fed, rounds=2))
    assert whole.keys() == parts.keys()
    for entry, tensor in whole.items():
        torch.testing.assert_close(parts[entry], tensor, rtol=1e-5, atol=1e-6)


def test_nobody_is_asked_before_the_block_ahead_was_heard(fed: Federation, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inbox, "BLOCK", 2)
    trained(FedAvg(), fed)
    assert asked == [[0, 1], [2, 3]]


def test_who_needs_every_reply_gets_it(fed: Federation, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another server half, and stages that take the place of the mean."""
    monkeypatch.setattr(inbox, "BLOCK", 2)
    seen: list[int] = []

    @dataclass(frozen=True)
    class Curious(FedAvg):
        def merge(self, server: Server, inbox: Inbox) -> None:
            seen.append(len({float(reply["weights"].norm()) for reply in inbox.values()}))

    trained(Curious(), fed)
    assert asked == [[0, 1, 2, 3]]
    assert seen == [4]
    for method, stages in ((FedAvg(), ("median",)), (FedAvg(), ("secure",)), (METHODS.make("fedapa"), ())):
        trained(method, fed, stages)
        assert asked == [[0, 1, 2, 3]], (method.name, stages)


def test_a_class_that_changes_merge_says_anew_that_a_mean_is_enough() -> None:
    @dataclass(frozen=True)
    class Curious(FedAvg):
        def merge(self, server: Server, inbox: Inbox) -> None: ...

    @dataclass(frozen=True)
    class Prouder(FedAvg):
        pass

    assert (sums_of(FedAvg()), sums_of(Curious()), sums_of(Prouder())) == ("samples", "", "samples")
    assert all(sums_of(METHODS.make(name)) for name in SUMS)


def test_several_architectures_have_a_mean_each(fed: Federation) -> None:
    spec = specification(fed)
    assert averaged(FedAvg(), spec)
    assert not averaged(FedAvg(), replace(spec, architectures=spec.architectures * 2, assignment=(0, 1, 0, 1)))


# what is refused


def attacked(fed: Federation, factor: float) -> tuple[list[Round], Server]:
    """One client of eight sends an update so many times as long as it is."""
    spec = specification(fed, rounds=1)
    server, engine = FedAvg().setup(spec), Wire(FedAvg(), spec, fed.clients)
    start = server["weights/0"].clone()

    def forge(_: int, outcomes: Outcomes) -> Outcomes:
        honest = outcomes.get(HOSTILE)
        if isinstance(honest, Outcome):
            away = start + factor * (honest.reply["weights"] - start)
            outcomes[HOSTILE] = replace(honest, reply=Message(weights=away))
        return outcomes

    engine.forge = forge
    return list(rounds(FedAvg(), server, engine, Participation(), evaluate_every=9)), server


@pytest.mark.parametrize(("factor", "reason"), [(1e4, "out of proportion"), (float("nan"), "not finite")])
def test_a_refused_reply_is_in_no_mean_and_its_block_goes_on(
    factor: float, reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two blocks of four: with three others beside it there is a median to be measured by."""
    fed = blobs((20, 13, 31, 8) * 2)
    monkeypatch.setattr(inbox, "BLOCK", 4)
    (this,), server = attacked(fed, factor)
    assert [refusal.client for refusal in this.refused] == [HOSTILE]
    assert reason in this.refused[0].reason
    assert this.accepted == 7
    assert this.heard == set(range(8)) - {HOSTILE}
    spec = specification(fed, rounds=1)
    engine = LocalEngine(FedAvg(), spec, fed.clients)
    honest = FedAvg().setup(spec)
    replies = engine.train(0, FedAvg().dispatch(honest, [client for client in range(8) if client != HOSTILE]))
    taken = {client: outcome.reply for client, outcome in replies.items() if isinstance(outcome, Outcome)}
    FedAvg().merge(honest, taken)
    torch.testing.assert_close(server["weights/0"], honest["weights/0"], rtol=1e-5, atol=1e-7)


def test_a_block_of_which_nothing_is_taken_counts_nothing(fed: Federation, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inbox, "BLOCK", 2)
    spec = specification(fed, rounds=1)
    server, engine = FedAvg().setup(spec), Wire(FedAvg(), spec, fed.clients)
    engine.forge = lambda _, outcomes: {c: Failure("it rained") if c < 2 else o for c, o in outcomes.items()}
    (this,) = rounds(FedAvg(), server, engine, Participation(), evaluate_every=9)
    assert (this.accepted, len(this.refused)) == (2, 2)
    assert bool(torch.isfinite(server["weights/0"]).all())


def test_updates_of_protected_clients_are_added_up_in_blocks_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """The noise is the same, and so is the sum, but for the order in which it was made."""
    fed = blobs((20, 13, 31, 8, 9, 10))
    privacy = ClientPrivacy(0.5, 1.0, 1e-3, 1.0, 6.0, (1,) * 6)
    ends = []
    for block in (1024, 2):
        monkeypatch.setattr(inbox, "BLOCK", block)
        spec = replace(specification(fed, rounds=1), client_privacy=privacy)
        _, server, _ = simulate(FedAvg(), fed, spec)
        ends.append(server["weights/0"])
    torch.testing.assert_close(ends[0], ends[1])
