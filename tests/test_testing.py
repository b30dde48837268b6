"""The shipped checks: sound methods pass them, and each notices a method that breaks what it is about."""

import re
from dataclasses import dataclass
from typing import ClassVar

import pytest
import torch
from torch import Tensor

from fedgraft import testing
from fedgraft.core.client import Client, ClientId
from fedgraft.core.message import Message
from fedgraft.core.method import Inbox, Method, Server, Spec, hyper
from fedgraft.methods.fedavg import FedAvg
from fedgraft.methods.fedprox import FedProx
from fedgraft.testing import CheckError, check_method, checks


@dataclass(frozen=True)
class Mine(FedAvg):
    """FedAvg whose server keeps a share of what it had."""

    name = "mine"
    idea = "the server goes only a part of the way"
    keep: float = hyper(0.1, "what the server keeps of its model", low=0.0, high=1.0)

    def merge(self, server: Server, inbox: Inbox) -> None:
        before = {name: tensor.clone() for name, tensor in server.items()}
        super().merge(server, inbox)
        for name, tensor in before.items():
            server[name] = torch.lerp(server[name], tensor, self.keep)


@pytest.mark.slow
def test_a_sound_method_passes_every_check() -> None:
    check_method(FedProx)


@pytest.mark.slow
def test_every_check_says_what_it_looks_at_and_one_s_own_method_passes() -> None:
    told = dict(checks(Mine))
    assert len(told) == 10
    assert all(told)
    assert set(told.values()) == {None}


@dataclass(frozen=True)
class Idle(Mine):
    weight: float = hyper(0.5, "nothing")


@dataclass(frozen=True)
class Silent(Mine):
    keep: float = 0.1


@dataclass
class Loose:
    """Not frozen, and not even a method's dataclass."""

    name = "loose"


@dataclass(frozen=True)
class Impure(Mine):
    def send(self, server: Server, client: ClientId) -> Message:
        server["weights/0"].add_(1)
        return super().send(server, client)


@dataclass(frozen=True)
class Unkeyed(Mine):
    """Draws from a generator of its own, that goes on from run to run."""

    def reply(self, client: Client, received: Tensor, trained: Tensor) -> Message:
        return super().reply(client, received, trained + torch.randn(trained.shape, generator=GENERATOR))


GENERATOR = torch.Generator().manual_seed(0)


@dataclass(frozen=True)
class Divider(Mine):
    """A class that a client lacks is a division by zero."""

    def reply(self, client: Client, received: Tensor, trained: Tensor) -> Message:
        return super().reply(client, received, trained / client.counts[0])


@dataclass(frozen=True)
class Greedy(Mine):
    """Sends what nobody asked for."""

    def reply(self, client: Client, received: Tensor, trained: Tensor) -> Message:
        return Message(weights=client.take(trained, self.shared()), more=1.0)


@dataclass(frozen=True)
class Forgetful(Mine):
    """Counts its rounds where no checkpoint looks."""

    merged: ClassVar[list[int]] = []

    def setup(self, spec: Spec) -> Server:
        self.merged.clear()
        return super().setup(spec)

    def merge(self, server: Server, inbox: Inbox) -> None:
        self.merged.append(len(inbox))
        super().merge(server, inbox)
        server["weights/0"] = server["weights/0"] / len(self.merged)


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        (Idle, "hyper-parameters without effect: weight"),
        (Silent, "would say what keep means"),
        (Loose, "hash"),
        (Impure, "send changed the server"),
        (Unkeyed, "other bits|not keyed"),
        (Divider, "refused|not finite"),
        (Greedy, "its own replies are refused"),
        (Forgetful, "resumed run ends with another server"),
    ],
    ids=lambda value: value.__name__ if isinstance(value, type) else "",
)
def test_a_broken_method_is_noticed(kind: type[Method], words: str) -> None:
    assert any(re.search(words, wrong) for _, wrong in checks(kind) if wrong)


@pytest.mark.slow
def test_all_that_is_wrong_is_told_at_once() -> None:
    with pytest.raises(CheckError, match=r"(?s)Silent fails 1 checks\n- .*would say what keep means"):
        check_method(Silent)


def test_a_parameter_may_need_company(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(testing, "CHECKS", ())  # the other checks have nothing to do with it

    @dataclass(frozen=True)
    class Shy(Mine):
        extra: float = hyper(0.5, "acts if keep is more than a half", low=0.0, high=1.0)

        def merge(self, server: Server, inbox: Inbox) -> None:
            super().merge(server, inbox)
            if self.keep > 0.5:
                server["weights/0"] = server["weights/0"] * self.extra

    def complaints(**companions: dict[str, float]) -> list[str | None]:
        return [wrong for about, wrong in checks(Shy, companions) if "hyper-parameter changes" in about]

    assert complaints() != [None]
    assert complaints(extra={"keep": 0.9}) == [None]


def test_the_checks_do_not_depend_on_how_many_threads_torch_has() -> None:
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        assert next(wrong for about, wrong in checks(Mine) if "same bits: whatever" in about) is None
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)
