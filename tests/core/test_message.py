"""Messages, their bytes, and what the boundary refuses."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fedgraft.core import streams
from fedgraft.core.message import Field, Message, objection


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


def test_bounds() -> None:
    field = Field((2,), low=0, high=1)
    assert field.objection(torch.tensor([0.0, 1.0])) is None
    assert field.objection(torch.tensor([0.0, 1.1])) == "holds values above 1"
    assert field.objection(torch.tensor([-0.1, 1.0])) == "holds values below 0"


def test_streams_depend_on_every_part_of_their_name() -> None:
    names = [(0, "a", 1), (0, "a", 2), (0, "b", 1), (1, "a", 1), (0, "a1"), (0, "a", "1"), ("0", "a", 1)]
    assert len({streams.entropy(*name) for name in names}) == len(names)
    assert (
        streams.generator(0, "a").integers(0, 2**31, 3).tolist()
        == streams.generator(0, "a").integers(0, 2**31, 3).tolist()
    )


def test_partition_streams_never_change() -> None:
    assert streams.frozen_generator(0, "pinned").permutation(6).tolist() == [2, 3, 4, 0, 5, 1]
