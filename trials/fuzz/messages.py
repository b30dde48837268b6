"""The decoder of what comes over the network: Flower's records, with anything in them that a stranger could send.

What is taken has to be what its record declares, tensor by tensor; nothing larger than the limit is ever made.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, MetricRecord, RecordDict
from hypothesis import strategies as st
from hypothesis.strategies import DrawFn, SearchStrategy

from fedgraft.base.errors import UserError
from fedgraft.core.evaluation import Point, Score, Scores
from fedgraft.core.exchange import Outcome
from fedgraft.core.message import Message
from fedgraft.core.task import Classification
from fedgraft.engines.flower import records
from fedgraft.testing import classified
from trials.fuzz import Reader, damage

LIMIT = 4096
SHAPES = [(2**40,), (2**31, 2**31, 4), (-1,), (0,), (), (37, 1), (1, 37), (3, 4), (1,) * 70, (2**70,)]
DTYPES = ["float64", "object", "O", "<U9", "complex64", "float32 ", "", "bfloat16", "int8"]
INTEGERS = st.sampled_from([0, 1, -1, 5, 2**31, 2**63 - 1, -(2**63)])
FLOATS = st.sampled_from([0.0, 1.5, -1e308, float("inf"), float("nan")])
BOOLEANS, TEXTS, BYTES = st.booleans(), damage.texts(), st.binary(max_size=9)
Reading = Callable[[RecordDict], object]


def prepare() -> Reader:
    """Pack one message of each kind."""
    generator = torch.Generator().manual_seed(0)
    reply = Message(
        weights=torch.randn(37, generator=generator), prototypes=torch.randn(3, 5, generator=generator),
        counts=torch.tensor([3, 0, 4]), known=torch.tensor([True, False, True]), variance=0.25, steps=7,
    )  # fmt: skip
    tag = records.Tag("run", 2, 5, 0)
    task, metrics = Classification(3), Classification(3).judges()
    points: dict[Point, Score] = {"received": classified(3, 10, 4.5), "trained": classified(7, 10, 1.5)}
    outcome = Outcome(reply, 0.5, 12, 0.1, 5)
    kinds: list[tuple[Callable[[], RecordDict], Reading]] = [
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

    return Reader(_spoiled(kinds), _attempt)


def _attempt(case: tuple[Reading, RecordDict], _: Path) -> None:
    read, content = case
    try:
        read(content)
    except records.RecordError as refusal:
        raise UserError(str(refusal)) from None


def _fitting(message: Message, content: RecordDict) -> None:
    held = content["message"]
    assert isinstance(held, ArrayRecord)
    assert message.keys() == held.keys(), "fields were lost or made up"
    assert message.nbytes <= LIMIT, "more was made than may be"
    for name, tensor in message.items():
        assert tuple(tensor.shape) == tuple(held[name].shape), f"{name} has another shape than it declares"
        raw = tensor.contiguous().numpy().tobytes()
        assert held[name].data.endswith(raw), f"{name} has other values than were sent"


@st.composite
def _spoiled(draw: DrawFn, kinds: list[tuple[Callable[[], RecordDict], Reading]]) -> tuple[Reading, RecordDict]:
    """Change a message: take records away, put others in their place, change entries."""
    pack, read = draw(st.sampled_from(kinds))
    content = pack()
    for _ in range(draw(st.sampled_from([1, 1, 1, 2, 4]))):
        name = draw(st.sampled_from([*content] or ["tag"]))
        record, kind = content.get(name), draw(st.integers(0, 9))
        if kind >= 8:
            content.pop(name, None)
        if kind == 9:
            content[name] = draw(st.sampled_from([ConfigRecord, MetricRecord, ArrayRecord]))()
        elif isinstance(record, ArrayRecord):
            draw(_spoiled_array(record))
        elif isinstance(record, ConfigRecord):
            record[draw(st.sampled_from([*record, "more"]) | damage.texts())] = draw(
                _scalars(BOOLEANS, INTEGERS, FLOATS, TEXTS, BYTES)
            )
        elif isinstance(record, MetricRecord):
            record[draw(st.sampled_from([*record, "test/received/more"]))] = draw(_scalars(INTEGERS, FLOATS))
            if draw(damage.rarely()):
                record.pop(draw(st.sampled_from([*record])))
    return read, content


@st.composite
def _spoiled_array(draw: DrawFn, record: ArrayRecord) -> None:
    name = draw(st.sampled_from([*record] or ["x"]))
    array = record.pop(name, None) or Array("float32", (1,), "numpy.ndarray", b"")
    kind = draw(st.sampled_from(["missing", "data", "header", "shape", "dtype", "stype", "text", "name"]))
    if kind == "missing":
        return
    if kind == "data":
        array.data = draw(damage.damaged(array.data))
    elif kind == "header":  # the length as it was
        head = draw(damage.damaged(array.data[:128], most=1))[:128].ljust(128)
        array.data = head + array.data[128:]
    elif kind == "shape":
        array.shape = draw(st.sampled_from(SHAPES))
    elif kind == "dtype":
        array.dtype = draw(st.sampled_from(DTYPES))
    elif kind == "stype":
        array.stype = draw(st.sampled_from(["torch.save", "pickle", "", "numpy.savez"]))
    elif kind == "text":
        array.data = draw(damage.texts()).encode()
    else:
        name = draw(damage.texts())
    record[name] = array


def _scalars(*kinds: SearchStrategy[Any]) -> SearchStrategy[Any]:
    """A value of a kind that the record can hold, or a list of such."""
    return st.one_of(*kinds, *(st.lists(kind, max_size=4) for kind in kinds))
