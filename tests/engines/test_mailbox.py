"""Letters between a parent and a worker: the same values whichever way they take, and none that a later one changes."""

from multiprocessing import Pipe
from typing import Any

import pytest
import torch

from fedgraft.core.message import Message
from fedgraft.engines.mailbox import Mailbox, packed, shared_memory, unpacked

LETTER = {
    "message": Message(weights=torch.arange(1000.0), seen=torch.tensor([True, False]), rate=0.5),
    "state": {"own": torch.randn(3, 5).T, "none": torch.zeros(0), "count": torch.tensor(7)},
    "words": ("round", 3),
}


def ends(capacity: int | None) -> tuple[Mailbox, Mailbox]:
    here, there = Pipe()
    memory = None if capacity is None else shared_memory(capacity)
    return Mailbox(here, outgoing=memory, incoming=None), Mailbox(there, outgoing=None, incoming=memory)


@pytest.mark.parametrize("capacity", [2**20, 128, None], ids=["memory", "too small a memory", "pipe alone"])
@pytest.mark.parametrize("keep", [True, False])
def test_a_letter_arrives_as_it_was_sent(capacity: int | None, keep: bool) -> None:
    sender, reader = ends(capacity)
    sender.send(LETTER)
    got = reader.receive(keep=keep)
    assert got["words"] == LETTER["words"]
    assert type(got["message"]) is Message
    for part in ("message", "state"):
        sent = LETTER[part]
        assert isinstance(sent, dict | Message)
        assert list(got[part]) == list(sent)
        for name, tensor in sent.items():
            assert got[part][name].dtype == tensor.dtype
            assert torch.equal(got[part][name], tensor)


def test_what_is_kept_outlives_the_next_letter_and_may_be_written_to() -> None:
    sender, reader = ends(2**20)
    sender.send(torch.ones(4))
    kept = reader.receive(keep=True)
    sender.send(torch.full((4,), 5.0))
    assert torch.equal(kept, torch.ones(4))
    assert torch.equal(reader.receive(keep=True), torch.full((4,), 5.0))
    kept += 1
    sender.send(torch.zeros(4))
    assert torch.equal(kept, torch.full((4,), 2.0))


def test_what_is_not_kept_is_not_copied() -> None:
    sender, reader = ends(2**20)
    sender.send(torch.ones(4))
    lent = reader.receive(keep=False)
    sender.send(torch.full((4,), 5.0))
    assert torch.equal(lent, torch.full((4,), 5.0))


def test_tensors_do_not_go_down_the_pipe_where_there_is_memory() -> None:
    here, there = Pipe()
    Mailbox(here, outgoing=shared_memory(2**22), incoming=None).send(torch.zeros(2**18))
    assert len(there.recv_bytes()) < 1000


def test_a_packed_value_comes_out_as_it_went_in_with_memory_of_its_own() -> None:
    shared = torch.arange(5.0)
    value: dict[str, Any] = {
        "messages": {3: Message.of({"weights": shared}), 4: Message.of({"weights": shared, "count": torch.tensor(2)})},
        "odd": [torch.ones(3, 4).T, torch.zeros(0), torch.tensor(1.5), torch.tensor([True, False])],
        "rest": ("train", None, ValueError("no")),
    }
    whole = packed(value)
    found = unpacked(whole)
    whole.fill_(7)
    assert torch.equal(found["messages"][3]["weights"], shared)
    assert found["messages"][3]["weights"] is found["messages"][4]["weights"], "it travelled once"
    assert int(found["messages"][4]["count"]) == 2
    for tensor, was in zip(found["odd"], value["odd"], strict=True):
        assert tensor.dtype == was.dtype
        assert torch.equal(tensor, was)
    assert found["rest"][:2] == ("train", None)
    assert repr(found["rest"][2]) == "ValueError('no')"
    found["messages"][3]["weights"].add_(1)
    assert float(shared.sum()) == 10


def test_a_packed_value_is_hardly_longer_than_its_tensors() -> None:
    assert len(packed([torch.zeros(1000), torch.zeros(1000)])) < 8000 + 500
