"""Stages at the crossing: what was meant arrives, as exactly as can be; what is not coded as agreed is refused."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from fedgraft.core.compression import Coding, Float16, Int8, TopK
from fedgraft.core.message import Message
from fedgraft.core.stages import Pipeline, Stage, StageError

STAGES = [Float16(), Int8(), TopK(share=0.3)]


def drawn(size: int, seed: int = 0, scale: float = 1.0) -> Tensor:
    return scale * torch.randn(size, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("stage", STAGES, ids=lambda stage: stage.name)
@given(size=st.integers(0, 3000), seed=st.integers(0, 10**6), scale=st.sampled_from([1e-6, 1.0, 1e4]))
@settings(max_examples=30, deadline=None)
def test_names_shapes_types_and_other_entries_arrive(stage: Stage, size: int, seed: int, scale: float) -> None:
    sent = Message(weights=drawn(size, seed, scale), counts=torch.arange(5), loss=0.5)
    pipe = Pipeline([stage])
    got = pipe.decode("up", pipe.encode("up", sent, {}, {}), {})
    assert set(got) == set(sent)
    for name in sent:
        assert (got[name].shape, got[name].dtype) == (sent[name].shape, sent[name].dtype)
    assert torch.equal(got["counts"], sent["counts"])


def test_what_travels_is_as_small_as_it_says() -> None:
    message = Message(weights=drawn(10_240))
    sizes = {stage.name: stage.encode(message, {}, {}).nbytes for stage in STAGES}
    assert sizes == {"float16": 2 * 10_240, "int8": 10_240 + 4 * 10, "topk": 8 * 3072 + 8}


def test_a_change_travels_against_what_the_other_side_has() -> None:
    """The known part is large and exact; only the small change is rounded."""
    known = {"weights": drawn(500, 1, 100.0)}
    sent = Message(weights=known["weights"] + drawn(500, 2, 1e-3))
    for stage in (Float16(), Int8()):
        got = stage.decode(stage.encode(sent, known, {}), known)
        assert float((got["weights"] - sent["weights"]).abs().max()) < 2e-4


def test_rounding_to_a_byte_errs_by_half_a_step_at_most() -> None:
    sent = drawn(2000)
    got = Int8().decode(Int8().encode(Message(w=sent), {}, {}), {})["w"]
    steps = torch.stack([block.abs().max() / 127 for block in sent.split(1024)]).repeat_interleave(1024)[:2000]
    assert bool(((got - sent).abs() <= steps / 2 + 1e-7).all())


def test_the_largest_entries_are_chosen_and_the_rest_is_remembered() -> None:
    memory: dict[str, Tensor] = {}
    stage = TopK(share=0.5)
    first = stage.decode(stage.encode(Message(w=torch.tensor([4.0, -1.0, 2.0, -3.0])), {}, memory), {})["w"]
    assert first.tolist() == [4, 0, 0, -3]
    assert memory["w"].tolist() == [0, -1, 2, 0]
    second = stage.decode(stage.encode(Message(w=torch.tensor([0.0, -1.0, 0.5, 0.25])), {}, memory), {})["w"]
    assert second.tolist() == [0, -2, 2.5, 0]


@pytest.mark.parametrize("stage", [Int8(), TopK(share=0.1)], ids=lambda stage: stage.name)
def test_with_error_feedback_nothing_is_lost_for_good(stage: Coding) -> None:
    """The sum of what arrived is the sum of what was meant, but for what is still remembered."""
    memory: dict[str, Tensor] = {}
    meant, arrived = torch.zeros(300), torch.zeros(300)
    for seed in range(20):
        change = drawn(300, seed)
        meant += change
        arrived += stage.decode(stage.encode(Message(w=change), {}, memory), {})["w"]
    torch.testing.assert_close(arrived + memory["w"], meant, rtol=1e-4, atol=1e-4)


def test_stages_follow_each_other_and_are_undone_in_turn() -> None:
    pipe, state = Pipeline([TopK(share=0.2), Int8()]), dict[str, Tensor]()
    known = {"weights": drawn(4000, 1)}
    sent = Message(weights=known["weights"] + drawn(4000, 2, 0.01))
    wire = pipe.encode("up", sent, known, state)
    assert wire.nbytes < 0.35 * sent.nbytes
    got = pipe.decode("up", wire, known)
    largest = (sent["weights"] - known["weights"]).abs().topk(800).indices
    torch.testing.assert_close(got["weights"][largest], sent["weights"][largest], rtol=0, atol=2e-4)
    assert {name.split("/")[1] for name in state} == {"topk", "int8"}


def test_a_stage_works_on_the_ways_it_is_told() -> None:
    message = Message(w=drawn(10))
    assert Pipeline([Float16()]).encode("down", message, {}, {}) is message
    assert Pipeline([Float16(up=False, down=True)]).encode("down", message, {}, {}).nbytes == 20


@pytest.mark.parametrize(
    ("stage", "wire", "words"),
    [
        (Float16(), {"w@float16:float32": torch.zeros(3)}, "not coded as agreed"),
        (Float16(), {"w@float16:complex64": torch.zeros(3).half()}, "no kind of floats"),
        (Float16(), {"w@float16:float32": torch.zeros(3).half(), "w": torch.zeros(3)}, "twice"),
        (Int8(), {"w@int8:float32": torch.zeros(3, dtype=torch.int8)}, "not coded as agreed"),
        (
            Int8(),
            {"w@int8:float32": torch.zeros(3, dtype=torch.int8), "w@int8.scale": torch.zeros(2)},
            "2 scales for 1 blocks",
        ),
    ],
)
def test_what_is_not_coded_as_agreed_is_refused(stage: Stage, wire: dict[str, Tensor], words: str) -> None:
    with pytest.raises(StageError, match=words):
        stage.decode(Message(**wire), {})


@pytest.mark.parametrize(
    ("places", "shape", "words"),
    [
        ([0, 99], [20], "places that are not there"),
        ([3, 3], [20], "one twice"),
        ([-1, 3], [20], "places that are not there"),
        ([0, 1], [10**12], "not the agreed share"),
        ([0, 1], [4, -5], "do not belong together"),
    ],
)
def test_places_that_lie_are_refused_before_memory_is_taken(places: list[int], shape: list[int], words: str) -> None:
    wire = Message(
        **{
            "w@topk:float32": torch.ones(2),
            "w@topk.places": torch.tensor(places, dtype=torch.int32),
            "w@topk.shape": torch.tensor(shape),
        }
    )
    with pytest.raises(StageError, match=words):
        TopK(share=0.1).decode(wire, {})


def test_beyond_the_range_of_two_bytes_is_the_largest_there_is() -> None:
    got = Float16().decode(Float16().encode(Message(w=torch.tensor([1e9, -1e9, 1.0])), {}, {}), {})["w"]
    assert got.tolist() == [65504, -65504, 1]
    assert math.isfinite(float(got.sum()))
