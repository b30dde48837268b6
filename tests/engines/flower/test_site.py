"""A site's description, and its memory."""

from pathlib import Path

import pytest
import torch

from fedgraft.base.errors import UserError
from fedgraft.engines.flower.site import BEGINNING, Memory, SiteError, describe

RUN = "0123456789abcdef" * 2


def write(folder: Path, text: str) -> Path:
    path = folder / "site.toml"
    path.write_text(text, "utf-8")
    return path


def test_paths_are_relative_to_the_description(tmp_path: Path) -> None:
    found = describe(write(tmp_path, 'name = "a"\ndata = "d/x.npz"\nstate = "/var/lib/a"\n'))
    assert (found.name, found.data, found.state) == ("a", tmp_path / "d" / "x.npz", Path("/var/lib/a"))
    assert found.device == "cpu"


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ('name = "a"\nstate = "s"\n', "data is missing"),
        ('name = "a/b"\ndata = "x"\nstate = "s"\n', "letters, digits"),
        ('name = "a"\ndata = "x"\nstate = "s"\ndate = 5\n', "no setting 'date'"),
        ('name = "a"\ndata = 5\nstate = "s"\n', "data is missing, or is not a text"),
        ("name = ", "not a readable site description"),
    ],
)
def test_a_description_that_is_wrong(text: str, sentence: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=sentence):
        describe(write(tmp_path, text))
    with pytest.raises(UserError, match="there is no site description"):
        describe(tmp_path / "other.toml")


def tensors(value: int) -> dict[str, torch.Tensor]:
    return {"own": torch.full((3,), float(value)), "count": torch.tensor(value)}


def kept(memory: Memory) -> list[tuple[int, int]]:
    return memory._versions()


@pytest.fixture
def memory(tmp_path: Path) -> Memory:
    made = Memory(tmp_path, "a", RUN)
    made.place.mkdir()
    return made


def test_a_state_comes_back_bit_for_bit(memory: Memory) -> None:
    memory.keep((1, 0), BEGINNING, tensors(1))
    found = memory.recall((1, 0))
    assert found is not None
    assert {name: tensor.tolist() for name, tensor in found.items()} == {"own": [1.0] * 3, "count": 1}
    assert memory.recall(BEGINNING) is None


def test_three_states_are_kept(memory: Memory) -> None:
    for number in range(1, 6):
        memory.keep((number, 0), (number - 1, 0), tensors(number))
    assert kept(memory) == [(3, 0), (4, 0), (5, 0)]


def test_what_the_server_did_not_take_is_forgotten(memory: Memory) -> None:
    """Round 3 was refused: round 4 starts from 2, and 3 goes."""
    for number in range(1, 4):
        memory.keep((number, 0), (number - 1, 0), tensors(number))
    memory.keep((4, 0), (2, 0), tensors(4))
    assert kept(memory) == [(1, 0), (2, 0), (4, 0)]


def test_a_server_that_went_back_is_followed(memory: Memory) -> None:
    """The server knows of round 3 and the site has 5: round 4 starts from 3 again, and what came after goes."""
    for number in range(1, 6):
        memory.keep((number, 0), (number - 1, 0), tensors(number))
    memory.keep((4, 0), (3, 0), tensors(40))
    assert kept(memory) == [(3, 0), (4, 0)]
    found = memory.recall((4, 0))
    assert found is not None
    assert int(found["count"]) == 40


def test_waves_of_one_round_are_told_apart(memory: Memory) -> None:
    memory.keep((1, 0), BEGINNING, tensors(1))
    memory.keep((1, 1), (1, 0), tensors(2))
    assert int((memory.recall((1, 0)) or {})["count"]) == 1
    assert int((memory.recall((1, 1)) or {})["count"]) == 2


def test_another_runs_or_sites_state_is_not_taken(memory: Memory, tmp_path: Path) -> None:
    memory.keep((1, 0), BEGINNING, tensors(1))
    with pytest.raises(SiteError, match="was altered, or is another's"):
        Memory(tmp_path, "b", RUN).recall((1, 0))
    with pytest.raises(SiteError, match="lacks its state of round 1"):
        Memory(tmp_path, "a", RUN[::-1]).recall((1, 0))


@pytest.mark.parametrize("run", ["", "../../etc", "A" * 32, "0" * 31])
def test_a_run_is_no_path(run: str, tmp_path: Path) -> None:
    with pytest.raises(SiteError, match="names no run"):
        Memory(tmp_path, "a", run)


def test_two_processes_do_not_share_a_state(memory: Memory, tmp_path: Path) -> None:
    with (
        memory.alone(),
        pytest.raises(SiteError, match="another process is working on the state of site a") as refused,
        memory.alone(),
    ):
        raise AssertionError
    assert str(tmp_path) not in str(refused.value)
