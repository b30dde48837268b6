"""What crosses: it comes back bit for bit, and nothing else comes in."""

import pytest
import torch
from flwr.app import Array, ArrayRecord, MetricRecord, RecordDict
from flwr.app import Message as Letter
from flwr.supercore.task_identity import TaskIdentity
from hypothesis import given
from hypothesis import strategies as st

from fedgraft.core.evaluation import Scores
from fedgraft.core.exchange import Outcome
from fedgraft.core.message import DTYPES, Message
from fedgraft.core.task import Classification
from fedgraft.engines.flower import records
from fedgraft.engines.flower.records import Hello, Holdings, Order, RecordError, Tag
from fedgraft.testing import classified
from trials.federated import over_the_wire

COUNTS = ("correct", "total", "loss", "broken")
TAG = Tag("0" * 32, 3, 7, 1)
TaskIdentity.run_id, TaskIdentity.node_id, TaskIdentity.task_id = 1, 1, 1


def travelled(content: RecordDict) -> RecordDict:
    return over_the_wire(Letter(content, 5, "train")).content


@pytest.mark.parametrize("dtype", sorted(DTYPES, key=str), ids=str)
@pytest.mark.parametrize("shape", [(), (0,), (1,), (2, 3), (0, 4)], ids=str)
def test_every_tensor_comes_back(dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    sent = torch.arange(max(1, torch.Size(shape).numel()))[: torch.Size(shape).numel()].reshape(shape).to(dtype)
    found = Order.unpack(travelled(Order(TAG, (2, 0), Message(one=sent, other=5)).pack()))
    assert (found.tag, found.version) == (TAG, (2, 0))
    assert found.message["one"].dtype == dtype
    assert torch.equal(found.message["one"], sent)
    assert int(found.message["other"]) == 5


def test_what_is_laid_out_otherwise_comes_back_too() -> None:
    sent = torch.arange(24.0).reshape(2, 3, 4).permute(2, 0, 1)
    assert torch.equal(records.message(travelled(Order(TAG, (0, 0), Message(one=sent)).pack()))["one"], sent)


def test_a_message_may_be_empty() -> None:
    assert len(Order.unpack(travelled(Order(TAG, (0, 0), Message()).pack())).message) == 0


def test_an_answer_comes_back_with_special_numbers() -> None:
    sent = Outcome(Message(w=torch.tensor([torch.nan, -0.0, torch.inf])), float("nan"), 3, 0.5)
    found = records.outcome(travelled(records.answer(TAG, sent, 40)), 12, 40)
    assert found.reply["w"].numpy().tobytes() == sent.reply["w"].numpy().tobytes()
    assert (found.steps, found.seconds, found.round) == (3, 0.5, 7)
    assert found.loss != found.loss


def test_an_answer_says_on_how_many_samples_it_was_trained() -> None:
    content = records.answer(TAG, Outcome(Message(), 0.5, 3, 0.5), 2)
    with pytest.raises(RecordError, match="was trained on 2 samples; the site had 13 when the run began"):
        records.outcome(content, 0, 13)
    del content["figures"]["samples"]
    with pytest.raises(RecordError, match="lacks its loss, steps, seconds or samples"):
        records.outcome(content, 0, 13)


TASK = Classification(3)
METRICS = TASK.judges()


def told(scores: Scores) -> dict[str, object]:
    return {
        f"{kind}/{point}": (score.total, score.broken, {name: t.tolist() for name, t in score.tallies.items()})
        for kind, points in scores.sets.items()
        for point, score in points.items()
    }


NONE = classified(0, 0, 0.0)
SCORE, OTHER = classified(3, 5, 1.25, broken=2), classified(0, 2, 0.5)
TESTED = Scores({"received": SCORE, "trained": SCORE})
VALIDATED = Scores({"received": SCORE, "trained": SCORE}, {"received": OTHER, "trained": OTHER})


def test_scores_come_back() -> None:
    for sent, holdings in ((TESTED, Holdings(9, 0, 5)), (VALIDATED, Holdings(9, 2, 5))):
        found = records.scores(travelled(records.report(TAG, sent, METRICS)), holdings, TASK, METRICS)
        assert told(found) == told(sent)


@pytest.mark.parametrize(
    ("sent", "holdings", "complaint"),
    [
        (VALIDATED, Holdings(9, 0, 5), "nobody asked for validation"),
        (TESTED, Holdings(9, 2, 5), "validation/received/total is missing"),
        (TESTED, Holdings(9, 0, 6), "test figures are of 5 samples; it had 6 when the run began"),
        (VALIDATED, Holdings(9, 3, 5), "validation figures are of 2 samples; it had 3"),
        (
            Scores({"received": classified(0, 0, 0.0), "trained": SCORE}),
            Holdings(9, 0, 5),
            "test figures are of 0 samples",
        ),
    ],
)
def test_figures_of_other_sets_or_samples_than_the_site_announced(
    sent: Scores, holdings: Holdings, complaint: str
) -> None:
    with pytest.raises(RecordError, match=complaint):
        records.scores(travelled(records.report(TAG, sent, METRICS)), holdings, TASK, METRICS)


def test_greetings_come_back() -> None:
    sent = Hello("a", 12, 2, 5, "1.0", "f")
    assert sent.holdings == Holdings(12, 2, 5)
    assert Hello.unpack(travelled(sent.pack())) == sent
    with pytest.raises(RecordError):
        Hello.unpack(RecordDict())


@pytest.mark.parametrize(
    "figures",
    [
        {},
        {"test/received/correct": 1},
        {f"test/{p}/{n}": 1.5 for p in ("received", "trained") for n in ("correct", "total", "oss", "broken")},
        {f"test/{p}/{n}": 1 for p in ("received", "trained") for n in ("correct", "total", "loss")},
        {f"{k}/{p}/{n}": 1 for k in ("test", "all") for p in ("received", "trained") for n in COUNTS},
        {f"test/{p}/{n}": [1] for p in ("received", "trained") for n in COUNTS},
        {f"test/{p}/{n}": float("nan") for p in ("received", "trained") for n in COUNTS},
    ],
)  # fmt: skip
def test_figures_that_are_not_as_agreed(figures: dict[str, float]) -> None:
    with pytest.raises(RecordError, match="not as agreed"):
        records.scores(RecordDict({"figures": MetricRecord(figures)}), Holdings(9, 0, 1), TASK, METRICS)


def test_names_that_python_would_take_for_its_own() -> None:
    made = RecordDict({"message": ArrayRecord({"self": Array(torch.zeros(1).numpy())})})
    with pytest.raises(RecordError):
        records.message(made)


GOOD = Array(torch.arange(6.0).reshape(2, 3).numpy())


@given(st.integers(0, len(GOOD.data) - 1), st.integers(0, 255), st.integers(0, 40))
def test_whatever_the_bytes_are_it_is_a_tensor_as_declared_or_a_refusal(place: int, value: int, cut: int) -> None:
    data = bytearray(GOOD.data)
    data[place] = value
    made = Array(GOOD.dtype, GOOD.shape, GOOD.stype, bytes(data[: len(data) - cut]))
    try:
        found = records.message(RecordDict({"message": ArrayRecord({"one": made})}), 24)["one"]
    except RecordError:
        return
    assert (found.dtype, tuple(found.shape)) == (torch.float32, (2, 3))


@given(st.sampled_from(["float32", "float64", "int8", "object", "complex64", "<f4"]), st.lists(st.integers(-2, 9)))
def test_whatever_is_declared_it_is_borne_out_or_refused(dtype: str, shape: list[int]) -> None:
    made = Array(dtype, tuple(shape), GOOD.stype, GOOD.data)
    try:
        found = records.message(RecordDict({"message": ArrayRecord({"one": made})}), 24)["one"]
    except RecordError:
        return
    assert (found.dtype, tuple(found.shape)) == (torch.float32, (2, 3))
