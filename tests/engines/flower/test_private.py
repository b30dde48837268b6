"""Private training at sites: noise from the site's own secret, within its own ledger, and nothing else that leaves."""

import json
import stat
from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import a_few_first, blobs
from flwr.app import Message

from fedgraft.core.privacy import objection
from fedgraft.engines.flower import records
from fedgraft.engines.flower.ledger import LEDGER, SECRET
from fedgraft.engines.flower.records import Order
from fedgraft.engines.flower.site import Memory, SiteError
from fedgraft.methods import METHODS
from fedgraft.runs.run import run
from trials.federated import Federated

RUN = "0123456789abcdef" * 2
SETTINGS: dict[str, Any] = {
    "rounds": 2,
    "model": "mlp:5",
    "training": {"lr": 0.1, "momentum": 0.0, "epochs": 1, "batch_size": 4, "noise": 2.0},
}


def federated(folder: Path, name: str = "fedavg", **more: Any) -> Federated:
    return Federated(folder, blobs(), {"method": name, **SETTINGS, **more})


def trained(answers: list[Message]) -> list[torch.Tensor]:
    return [records.message(each.content)["weights"] for each in answers if "message" in each.content]


def test_a_site_draws_its_noise_from_a_secret_that_the_server_does_not_have(tmp_path: Path) -> None:
    one, two = federated(tmp_path / "one"), federated(tmp_path / "two")
    first, second = one.heard(), two.heard()
    one.serve()
    two.serve()
    for a, b in zip(trained(first), trained(second), strict=True):
        assert not torch.equal(a, b)  # same seed, same data, same round
    place = tmp_path / "one" / "sites" / "state-a" / SECRET
    assert len(place.read_bytes()) == 32
    assert stat.S_IMODE(place.stat().st_mode) == 0o600
    everything = b"".join(thing.deflate() for each in (*first, *one.grid.sent) for thing in (each.content,))
    assert place.read_bytes() not in everything
    simulated = run("fedavg", blobs(), workers=1, progress=False, **SETTINGS)
    assert not torch.equal(trained(first)[-4], simulated._states[0]["own"])  # nor does the seed tell it


def test_nothing_leaves_but_noised_weights_and_public_numbers(tmp_path: Path) -> None:
    made = federated(tmp_path, "ditto")
    answers = made.heard()
    done = made.serve()
    for each in answers:
        kind = set(each.content)
        if "hello" in kind:
            assert set(each.content["hello"]) == {"site", "train", "validation", "test", "fedgraft", "settings"}
        elif "message" in kind:
            assert set(each.content["message"]) == {"weights"}
            figures = each.content["figures"]
            assert set(figures) == {"loss", "steps", "seconds", "samples"}
            assert figures["loss"] != figures["loss"]
        else:
            assert not each.content["figures"]
    assert done.result["last"]["round"] is None
    assert all("received" not in record and record["loss"] is None for record in done.records)
    assert done.result["privacy"][0]["unit"] == "sample"
    assert not done.result["refused"]
    for name in made.names:  # the site has its own model all the same
        assert list((tmp_path / "sites" / f"state-{name}").glob("*/personal.safetensors"))


def test_an_order_is_answered_alike_or_paid_for(tmp_path: Path) -> None:
    """Asked again, a site sends the same bits; with another message, other noise; and never past its budget."""
    made = federated(tmp_path)
    made.serve()
    node = made.node("a")
    letters = [each for each in made.grid.sent if each.metadata.message_type == "train"]
    order = Order.unpack(letters[0].content)
    assert order.tag.client == 0
    ledger = next((tmp_path / "sites" / "state-a").glob(f"*/{LEDGER}"))
    lines = ledger.read_text().splitlines()
    assert [json.loads(line)["steps"] for line in lines] == [5, 5]
    again = [records.message(node.answer(letters[0])[0].content)["weights"] for _ in range(2)]
    assert torch.equal(again[0], again[1])
    assert ledger.read_text().splitlines() == lines
    other = Order(order.tag, order.version, type(order.message)(weights=order.message["weights"] + 1))
    asked = Message(other.pack(), 100, "train")
    asked.metadata.__dict__["_message_id"] = asked.object_id
    (refusal,) = node.answer(asked)
    assert "has spent its privacy: 10 of 10 noised steps" in refusal.error.reason


def test_a_ledger_forgets_nothing_and_knows_one_order_from_another(tmp_path: Path) -> None:
    memory = Memory(tmp_path, "a", RUN)
    memory.place.mkdir()
    first = memory.spend("one", 4, 10)
    assert memory.spend("one", 4, 10) == first
    assert memory.spend("two", 4, 10) != first
    with pytest.raises(SiteError, match="8 of 10 noised steps are made, and this order takes 4"):
        memory.spend("three", 4, 10)
    assert Memory(tmp_path, "a", RUN).spend("one", 4, 10) == first
    other = Memory(tmp_path, "a", RUN[::-1])
    other.place.mkdir()
    assert other.spend("one", 4, 10) != first
    (memory.place / LEDGER).write_text("{", "utf-8")
    with pytest.raises(SiteError, match="ledger of site a is damaged"):
        memory.spend("one", 4, 10)


@pytest.mark.parametrize("name", a_few_first(name for name in METHODS if objection(METHODS.make(name)) is None))
def test_every_covered_method_runs_at_sites(name: str, tmp_path: Path) -> None:
    assert len(federated(tmp_path, name, rounds=1).serve().records) == 1
