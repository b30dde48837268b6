"""Clients that train together end where each would by itself: in float64 to a part in 10^12, with the same batches."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import Interrupt, awkward, blobs, final, same, specification
from torch import Tensor, nn

import fedgraft as fg
from fedgraft.base.errors import UserError
from fedgraft.core.client import Client
from fedgraft.core.message import Message
from fedgraft.core.method import Method
from fedgraft.core.rounds import Participation, Round, rounds
from fedgraft.core.samples import ClientData, Samples
from fedgraft.core.spec import Spec
from fedgraft.data.federation import Federation
from fedgraft.engines import together
from fedgraft.engines.footprint import footprint
from fedgraft.engines.local import ClientError, Faults, LocalEngine
from fedgraft.engines.workshop import Job
from fedgraft.methods import METHODS
from fedgraft.methods.fedavg import FedAvg
from fedgraft.runs import archive
from fedgraft.runs.config import configure
from fedgraft.testing import state_of

PLAIN = ["fedavg", "fedper", "fedrep", "fedbabu", "lg-fedavg", "local", "fedavg-ft"]
RUN: dict[str, Any] = {"dataset": "digits", "clients": 5, "partition": "dirichlet:0.5", "model": "mlp:8", "rounds": 3}


def doubled(fed: Federation) -> Federation:
    def exact(samples: Samples) -> Samples:
        return Samples(samples.inputs.double(), samples.labels, samples.preparation)

    def each(data: ClientData) -> ClientData:
        return ClientData(exact(data.train), exact(data.test), exact(data.validation))

    return replace(fed, clients=tuple(map(each, fed.clients)))


def network(*more: nn.Module) -> Callable[[], nn.Module]:
    def build() -> nn.Module:
        return nn.Sequential(nn.Linear(6, 5), nn.Tanh(), *more, nn.Linear(5, 3)).double()

    return build


def ended(
    method: Method, fed: Federation, spec: Spec, most: int | None, share: float = 1.0, **engine: Any
) -> tuple[dict[str, Tensor], list[Round]]:
    server = method.setup(spec)
    with LocalEngine(method, spec, fed.clients, together=most, **engine) as made:
        done = list(rounds(method, server, made, Participation(share, share)))
        return state_of(server, made), done


def insist_on_same(method: Method, fed: Federation, spec: Spec, share: float = 1.0) -> None:
    assert together.objection(method, spec, fed.clients) is None
    alone, before = ended(method, fed, spec, None, share)
    for most in (2, 3, 50):
        found, after = ended(method, fed, spec, most, share)
        assert found.keys() == alone.keys()
        for name, tensor in found.items():
            torch.testing.assert_close(tensor, alone[name], rtol=1e-12, atol=1e-12, msg=f"{name}, by {most}")
        told = [one.loss for one in before]  # which a client alone adds up in float32
        assert [one.loss for one in after] == pytest.approx(told, rel=1e-6)


@pytest.mark.parametrize("name", PLAIN)
def test_each_ends_where_it_would_alone(name: str) -> None:
    fed = doubled(blobs())
    insist_on_same(METHODS.make(name), fed, specification(fed, build=network(), rounds=2), share=0.75)


@pytest.mark.parametrize(
    "settings",
    [
        {"momentum": 0.0},
        {"weight_decay": 0.1},
        {"optimizer_state": "kept"},
        {"epochs": 0.5},
        {"steps": 5},
        {"drop_last": True, "batch_size": 6},
        {"schedule": "exponential:0.5"},
        {"stages": ("bound", "int8")},
    ],
    ids=lambda settings: next(iter(settings)),
)
def test_with_any_settings_of_training(settings: dict[str, Any]) -> None:
    fed = doubled(blobs())
    insist_on_same(FedAvg(), fed, specification(fed, build=network(), rounds=2, **settings))


def test_awkward_clients_too() -> None:
    fed = doubled(awkward())
    insist_on_same(FedAvg(), fed, specification(fed, build=network(), rounds=2))


class Scaled(nn.Module):
    """Has a buffer that stays as it is, a frozen parameter and a whole number."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("scale", torch.linspace(0.5, 1.5, 5))
        self.register_buffer("number", torch.tensor(3))
        self.shift = nn.Parameter(torch.ones(5), requires_grad=False)

    def forward(self, x: Tensor) -> Tensor:
        return x * self.scale + self.shift * self.number


def test_buffers_and_frozen_parameters_that_stay_are_no_hindrance() -> None:
    fed = doubled(blobs())
    insist_on_same(FedAvg(), fed, specification(fed, build=network(Scaled()), rounds=2))


def test_convolutions_and_augmented_images() -> None:
    fed = fg.federate("digits", 3, "iid", augment=True)
    given = {"model": "cnn-digits", "rounds": 1, "epochs": 0.2, "workers": 1}
    alone, found = (fg.run("fedavg", fed, together=most, **given) for most in (None, 3))
    assert alone.server is not None
    assert found.server is not None
    torch.testing.assert_close(found.server["weights/0"], alone.server["weights/0"], rtol=1e-4, atol=1e-5)


@dataclass(frozen=True)
class Drawing(FedAvg):
    """Draws from torch's own generator before and after training."""

    def assemble(self, client: Client, message: Message) -> Tensor:
        return super().assemble(client, message) + 1e-3 * torch.rand((), dtype=torch.float64)

    def reply(self, client: Client, received: Tensor, trained: Tensor) -> Message:
        return Message(weights=trained + 1e-3 * torch.rand((), dtype=torch.float64))


def test_hooks_draw_the_numbers_that_they_draw_alone() -> None:
    fed = doubled(blobs())
    insist_on_same(Drawing(), fed, specification(fed, build=network(), rounds=2))


def test_bits_do_not_depend_on_workers(fed: Federation) -> None:
    spec = specification(fed, rounds=2)
    one, two = (ended(FedAvg(), fed, spec, 2, workers=workers)[0] for workers in (1, 2))
    assert all(torch.equal(tensor, two[name]) for name, tensor in one.items())


def test_groups_are_of_clients_that_are_alike() -> None:
    spec = replace(specification(blobs()), samples=(5, 9, 7, 9, 4), assignment=(0, 0, 1, 0, 0))
    jobs = [Job("train", client, 0, Message(), {}) for client in (4, 3, 2, 1, 0)]
    found = [[job.client for job in group] for group in together.groups(jobs, spec, 3)]
    assert found == [[1, 3, 0], [4], [2]]


class Mixing(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x - x.mean(dim=0)


class Counting(nn.Module):
    seen: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("seen", torch.zeros(()))

    def forward(self, x: Tensor) -> Tensor:
        self.seen += len(x)
        return x


class Looking(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x if float(x.sum()) > 0 else -x


@pytest.mark.parametrize(
    ("layer", "reason"),
    [
        (nn.BatchNorm1d(5), "BatchNorm"),
        (nn.Dropout(0.5), "draws random numbers"),
        (Mixing(), "do samples of a batch reach each other"),
        (Counting(), "buffers that training changes"),
        (Looking(), "does not run on several clients' weights at once"),
    ],
)
def test_networks_that_cannot(layer: nn.Module, reason: str) -> None:
    fed = doubled(blobs())
    complaint = together.objection(FedAvg(), specification(fed, build=network(layer)), fed.clients)
    assert complaint is not None
    assert reason in complaint


@pytest.mark.parametrize(
    ("method", "settings", "reason"),
    [
        ("ditto", {}, "ditto has its own fit"),
        ("fedproto", {}, "fedproto has its own loss"),
        ("fedavg", {"optimizer": "adam"}, "adam is not written for several clients at once"),
        ("fedavg", {"clip_norm": 1.0}, "clip_norm is not written"),
        ("fedavg", {"epsilon": 3.0}, "private training"),
        ("fedavg", {"deadline": 9.0}, "the deadline is that of a single client"),
        ("fedavg", {"engine": "distributed"}, "the engine distributed"),
    ],
)
def test_what_cannot_be_is_a_sentence(tmp_path: Path, method: str, settings: dict[str, Any], reason: str) -> None:
    with pytest.raises(UserError, match=f"clients cannot train together here: {reason}.*leave together out"):
        fg.run(method, together=2, out=tmp_path / "out", **{**RUN, **settings})
    assert not (tmp_path / "out").exists()


def test_it_makes_another_run(tmp_path: Path) -> None:
    usual = fg.run("fedavg", workers=1, out=tmp_path / "usual", **RUN)
    assert "together" not in (tmp_path / "usual" / "run.json").read_text(), (
        "whoever does not ask for it has no other run"
    )
    whole = fg.run("fedavg", workers=1, together=3, out=tmp_path / "whole", **RUN)
    assert whole.identity.digest["settings"] != usual.identity.digest["settings"]
    assert archive.key(whole.identity, whole.federation.names) != archive.key(usual.identity, usual.federation.names)
    with pytest.raises(KeyboardInterrupt):
        fg.run(
            "fedavg", workers=1, together=3, out=tmp_path / "cut", checkpoint_every=1, watchers=[Interrupt(2)], **RUN
        )
    with pytest.raises(UserError, match="resuming cannot change together"):
        fg.resume(tmp_path / "cut", together=2)
    again = fg.resume(tmp_path / "cut", workers=2)
    same(whole, again)
    assert configure({**RUN, "together": 3}).together == again.config.together
    assert final(tmp_path / "whole")["result"]["last"] == final(tmp_path / "cut")["result"]["last"]


@dataclass(frozen=True)
class Faulty(FedAvg):
    """Client 2 cannot say what it learned."""

    def reply(self, client: Client, received: Tensor, trained: Tensor) -> Message:
        if client.id == 2:
            raise ZeroDivisionError("the client's data is odd")
        return super().reply(client, received, trained)


@pytest.mark.parametrize("workers", [1, 2])
def test_who_fails_is_named_and_others_are_not(fed: Federation, workers: int) -> None:
    spec = specification(fed, rounds=1)
    with pytest.raises(ClientError, match=r"fedavg, round 1, client 2: .*the client's data is odd"):
        ended(Faulty(), fed, spec, 50, workers=workers)
    _, done = ended(Faulty(), fed, spec, 50, workers=workers, faults=Faults(0, "absent"))
    assert [refusal.client for refusal in done[0].refused] == [2]


def test_more_clients_at_once_need_more_memory() -> None:
    fed = blobs((20,) * 6)
    spec = specification(fed)
    alone, few, many = (footprint(FedAvg(), spec, fed.clients, most).tensors for most in (None, 2, 6))
    assert alone < few < many
