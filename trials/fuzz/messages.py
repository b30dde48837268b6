"""The decoder of what comes over the network: Flower's records, with anything in them that a stranger could send.

What is taken has to be what its record declares, tensor by tensor; nothing larger than the limit is ever made.
"""

from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, MetricRecord, RecordDict

from fedgraft.base.errors import UserError
from fedgraft.core.evaluation import Scores
from fedgraft.core.exchange import Outcome
from fedgraft.core.message import Message
from fedgraft.core.task import Classification
from fedgraft.engines.flower import records
from fedgraft.testing import classified
from trials.fuzz import Attempt, damage

LIMIT = 4096
Reader = Callable[[RecordDict], object]


def prepare() -> Attempt:
    """Pack one message of each kind."""
    generator = torch.Generator().manual_seed(0)
    reply = Message(
        weights=torch.randn(37, generator=generator), prototypes=torch.randn(3, 5, generator=generator),
        counts=torch.tensor([3, 0, 4]), known=torch.tensor([True, False, True]), variance=0.25, steps=7,
    )  # fmt: skip
    tag = records.Tag("run", 2, 5, 0)
    task, metrics = Classification(3), Classification(3).judges()
    points = {"received": classified(3, 10, 4.5), "trained": classified(7, 10, 1.5)}
    outcome = Outcome(reply, 0.5, 12, 0.1, 5)
    kinds: list[tuple[Callable[[], RecordDict], Reader]] = [
        (
            lambda: records.answer(tag, outcome, 20),
            lambda content: _fitting(records.outcome(content, LIMIT, 20).reply, content),
        ),
        (lambda: records.answer(tag, outcome, 20), lambda content: _fitting(records.message(content, LIMIT), content)),
        (
            lambda: records.report(tag, Scores(points, points), metrics),
            lambda content: records.scores(content, records.Holdings(20, 10, 10), task, metrics),
        ),
        (lambda: records.Order(tag, (4, 0), reply).pack(), records.Order.unpack),
        (lambda: records.Order(tag, (4, 0), reply).pack(), records.tag),
        (lambda: records.Hello("a", 20, 5, 5, "1", "s").pack(), records.Hello.unpack),
    ]

    def attempt(rng: Random, _: Path) -> None:
        pack, read = rng.choice(kinds)
        content = pack()
        for _ in range(rng.choice([1, 1, 1, 2, 4])):
            _spoil(rng, content)
        try:
            read(content)
        except records.RecordError as refusal:
            raise UserError(str(refusal)) from None

    return attempt


def _fitting(message: Message, content: RecordDict) -> None:
    held = content["message"]
    assert isinstance(held, ArrayRecord)
    assert message.keys() == held.keys(), "fields were lost or made up"
    assert message.nbytes <= LIMIT, "more was made than may be"
    for name, tensor in message.items():
        assert tuple(tensor.shape) == tuple(held[name].shape), f"{name} has another shape than it declares"
        raw = tensor.contiguous().numpy().tobytes()
        assert held[name].data.endswith(raw), f"{name} has other values than were sent"


def _spoil(rng: Random, content: RecordDict) -> None:
    """Change one record: take it away, put another kind in its place, change an entry."""
    name = rng.choice(list(content) or ["tag"])
    record, kind = content.get(name), rng.randrange(10)
    if kind == 0:
        content.pop(name, None)
    elif kind == 1:
        content.pop(name, None)
        content[name] = rng.choice([ConfigRecord(), MetricRecord(), ArrayRecord({})])
    elif isinstance(record, ArrayRecord):
        _spoil_array(rng, record)
    elif isinstance(record, ConfigRecord):
        record[rng.choice([*record, damage.text(rng)])] = _scalar(rng, (int, float, bool, str, bytes))
    elif isinstance(record, MetricRecord):
        record[rng.choice([*record, "test/received/more"])] = _scalar(rng, (int, float))
        if rng.random() < 0.2:
            record.pop(rng.choice(list(record)))


def _spoil_array(rng: Random, record: ArrayRecord) -> None:
    name = rng.choice(list(record) or ["x"])
    array = record.pop(name, None) or Array("float32", (1,), "numpy.ndarray", b"")
    kind = rng.randrange(8)
    if kind == 0:
        return  # it is missing
    if kind == 1:
        array.data = damage.damaged(rng, array.data)
    elif kind == 2:  # damage to the header, the length as it was
        head = damage.damaged(rng, array.data[:128], hits=1)[:128].ljust(128)
        array.data = head + array.data[128:]
    elif kind == 3:
        shapes = [(2**40,), (2**31, 2**31, 4), (-1,), (0,), (), (37, 1), (1, 37), (3, 4), tuple([1] * 70), (2**70,)]
        array.shape = rng.choice(shapes)
    elif kind == 4:
        array.dtype = rng.choice(["float64", "object", "O", "<U9", "complex64", "float32 ", "", "bfloat16", "int8"])
    elif kind == 5:
        array.stype = rng.choice(["torch.save", "pickle", "", "numpy.savez"])
    elif kind == 6:
        array.data = damage.text(rng).encode()
    else:
        name = damage.text(rng)
    record[name] = array


def _scalar(rng: Random, kinds: tuple[type, ...]) -> Any:
    """A value of a kind that the record can hold, or a list of such."""
    made: dict[type, Callable[[], Any]] = {
        int: lambda: rng.choice([0, 1, -1, 5, 2**31, 2**63 - 1, -(2**63)]),
        float: lambda: rng.choice([0.0, 1.5, -1e308, float("inf"), float("nan")]),
        bool: lambda: rng.random() < 0.5,
        str: lambda: damage.text(rng),
        bytes: lambda: rng.randbytes(rng.randint(0, 9)),
    }
    one = made[rng.choice(kinds)]
    return [one() for _ in range(rng.randint(0, 4))] if rng.random() < 0.3 else one()
