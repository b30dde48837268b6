"""Messages, their bytes, and what the boundary refuses."""

import math
import pickle

import numpy as np
import pytest
import torch
from conftest import blobs, specification
from hypothesis import given, settings
from hypothesis import strategies as st

from fedgraft.core import streams
from fedgraft.core.bound import Bound
from fedgraft.core.crossing import copies
from fedgraft.core.magnitude import finite
from fedgraft.core.message import DTYPES, Field, Message, objection


def test_numbers_become_tensors_and_bytes_are_counted() -> None:
    message = Message(weights=torch.zeros(5), counts=torch.zeros(3, dtype=torch.int32), rate=0.5, first=True)
    assert message["rate"].item() == 0.5
    assert message.nbytes == 20 + 12 + 8 + 1
    assert list(message) == ["weights", "counts", "rate", "first"]


def test_a_copy_shares_nothing() -> None:
    tensor = torch.zeros(3)
    message = Message(weights=tensor)
    copy = message.copy()
    tensor.fill_(1.0)
    assert copy["weights"].tolist() == [0, 0, 0]
    assert not Message(weights=torch.zeros(1, requires_grad=True) * 2)["weights"].requires_grad


def test_only_tensors_and_numbers_travel() -> None:
    with pytest.raises(TypeError, match="'model' is a str"):
        Message(model="code")  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="does not travel"):
        Message(weights=torch.zeros(1, dtype=torch.complex64))


@given(st.integers(0, 6), st.sampled_from([torch.float32, torch.float64, torch.int64]), st.booleans())
def test_exactly_the_expected_field_passes(width: int, dtype: torch.dtype, broken: bool) -> None:
    tensor = torch.ones(width, dtype=dtype)
    if broken and width and dtype.is_floating_point:
        tensor[0] = torch.inf
    fine = objection(Message(x=tensor), {"x": Field((3,), torch.float32, low=0, high=2)}) is None
    assert fine == (width == 3 and dtype == torch.float32 and not broken)


SHAPES = st.lists(st.integers(0, 3), max_size=3).map(tuple)


@st.composite
def messages(draw: st.DrawFn) -> Message:
    """Any named tensors of any type that travels, also such that are views of something larger."""
    fields = {}
    for name in draw(st.lists(st.sampled_from(["weights", "counts", "known", "x", "½"]), unique=True, max_size=4)):
        dtype, shape = draw(st.sampled_from(sorted(DTYPES, key=str))), draw(SHAPES)
        tensor = (torch.arange(math.prod(shape)).reshape(shape) % 7).to(dtype)
        fields[name] = tensor.T if draw(st.booleans()) and tensor.dim() == 2 else tensor
    return Message(**fields)


@settings(deadline=None)
@given(messages())
def test_a_copy_is_equal_and_shares_nothing_and_bytes_are_those_of_the_values(message: Message) -> None:
    copy = message.copy()
    assert list(copy) == list(message)
    assert copy.nbytes == message.nbytes == sum(len(t.contiguous().numpy().tobytes()) for t in message.values())
    for name, tensor in message.items():
        assert torch.equal(copy[name], tensor)
        assert copy[name].dtype == tensor.dtype
        assert copy[name].is_contiguous()
        if tensor.numel():
            before = tensor.clone()
            copy[name].add_(1) if tensor.dtype != torch.bool else copy[name].logical_not_()
            assert torch.equal(tensor, before)


def altered(draw: st.DataObject, name: str, tensor: torch.Tensor) -> dict[str, torch.Tensor]:
    """One field, changed in one respect."""
    kinds = ["missing", "renamed", "type", "longer"]
    if tensor.numel():
        kinds += ["low", "high"] if tensor.dtype != torch.bool else []
        kinds += ["nan", "infinite"] if tensor.is_floating_point() else []
    kind = draw.draw(st.sampled_from(kinds))
    if kind == "missing":
        return {}
    if kind == "renamed":
        return {name + "_": tensor}
    if kind == "type":
        return {name: tensor.to(torch.float64 if tensor.dtype != torch.float64 else torch.float32)}
    if kind == "longer":
        return {name: tensor[None]}
    changed = tensor.contiguous().clone()
    at = draw.draw(st.integers(0, tensor.numel() - 1))
    value = {"low": -1, "high": 8, "nan": torch.nan, "infinite": -torch.inf}[kind]
    if kind == "low" and tensor.dtype == torch.uint8:
        value = 8
    changed.view(-1)[at] = value
    return {name: changed}


@settings(deadline=None)
@given(messages(), st.data())
def test_any_one_altered_field_is_objected_to(message: Message, draw: st.DataObject) -> None:
    bounds = {name: (None, None) if t.dtype == torch.bool else (0, 7) for name, t in message.items()}
    expected = {name: Field(tuple(t.shape), t.dtype, *bounds[name]) for name, t in message.items()}
    assert objection(message, expected) is None
    assert objection(Message(**message, more=1.0), expected) == "holds more, which nobody asked for"
    if len(message):
        name = draw.draw(st.sampled_from(sorted(message)))
        others = {other: t for other, t in message.items() if other != name}
        complaint = objection(Message(**others, **altered(draw, name, message[name])), expected)
        assert complaint is not None
        assert name in complaint


def test_bounds() -> None:
    field = Field((2,), low=0, high=1)
    assert field.objection(torch.tensor([0.0, 1.0])) is None
    assert field.objection(torch.tensor([0.0, 1.1])) == "holds values above 1"
    assert field.objection(torch.tensor([-0.1, 1.0])) == "holds values below 0"


def test_finite_values_whose_norm_overflows_are_too_large_not_infinite() -> None:
    huge, field = torch.full((4,), 1e300, dtype=torch.float64), Field((4,), torch.float64)
    assert field.objection(huge) is None
    assert Bound(factor=0).judge(specification(blobs()), {}, {0: Message(w=huge)}) == {
        0: "'w' has norm inf, above bound:norm=1e+09"
    }
    assert "not finite" in str(field.objection(torch.tensor([1.0, math.inf, 0.0, 0.0], dtype=torch.float64)))


def test_torchs_own_numbers_follow_the_stream_as_after_manual_seed() -> None:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(streams.torch_seed("dropout", 3))
        wanted = torch.rand(4)
        streams.seed_torch(torch.device("cpu"), "dropout", 3)
        assert torch.equal(torch.rand(4), wanted)


def test_streams_depend_on_every_part_of_their_name() -> None:
    names = [(0, "a", 1), (0, "a", 2), (0, "b", 1), (1, "a", 1), (0, "a1"), (0, "a", "1"), ("0", "a", 1), (1, "a", 0)]
    assert len({streams.entropy(*name) for name in names}) == len(names)
    assert (
        streams.generator(0, "a").integers(0, 2**31, 3).tolist()
        == streams.generator(0, "a").integers(0, 2**31, 3).tolist()
    )


def test_a_stream_is_philox_with_the_key_of_its_name() -> None:
    name = (3, "train", "batches", 7, 41)
    ours, plain = streams.generator(*name), np.random.Generator(np.random.Philox(key=streams.entropy(*name)))
    assert str(ours.bit_generator.state) == str(plain.bit_generator.state)
    wanted = plain.permutation(100).tolist()
    assert pickle.loads(pickle.dumps(ours)).permutation(100).tolist() == wanted
    assert ours.permutation(100).tolist() == wanted


def test_partition_streams_never_change() -> None:
    assert streams.frozen_generator(0, "pinned").permutation(6).tolist() == [2, 3, 4, 0, 5, 1]


def test_copies_share_among_themselves_what_the_messages_shared_and_nothing_else() -> None:
    one, two = torch.arange(3.0), torch.arange(6.0).view(2, 3)
    messages = {c: Message(weights=one, row=two[c]) for c in range(2)}
    made = copies(messages)
    assert made[0]["weights"] is made[1]["weights"]
    made[0]["weights"].zero_()
    made[0]["row"].zero_()
    assert one.tolist() == [0, 1, 2]
    assert made[1]["row"].tolist() == [3, 4, 5]
    assert two.tolist() == [[0, 1, 2], [3, 4, 5]]


@pytest.mark.parametrize("value", [1e30, -1e30, 0.0])
def test_squares_may_overflow_and_the_numbers_are_finite_all_the_same(value: float) -> None:
    assert finite(torch.tensor([value, 1.0]))
    assert not finite(torch.tensor([value, math.inf]))
    assert not finite(torch.tensor([math.nan, value]))
