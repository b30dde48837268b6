"""A few kills, and that a difference in one bit would be noticed."""

import json
import shutil
from pathlib import Path

import pytest

import fedgraft as fg
from trials import crash


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="processes are looked up in /proc")
@pytest.mark.slow
def test_a_killed_run_ends_in_the_same_bits() -> None:
    told: list[str] = []
    stories = crash.campaign(3, seed=5, tell=told.append)
    assert sum(len(story.kills) for story in stories) == 3
    assert [story.difference for story in stories] == [None] * len(stories), told
    assert not any(story.leftovers for story in stories)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("crash") / "whole"
    fg.run(**{**crash.settings("fedapa"), "rounds": 2}, workers=1, out=place)
    return place


@pytest.mark.parametrize("what", ["server", "clients", "metrics", "result", "missing"])
def test_a_difference_is_noticed(whole: Path, tmp_path: Path, what: str) -> None:
    other = tmp_path / "other"
    shutil.copytree(whole, other)
    assert crash.difference(whole, other) is None
    if what in ("server", "clients"):
        file = other / "checkpoints" / "round-000002" / f"{what}.safetensors"
        data = bytearray(file.read_bytes())
        data[-3] ^= 1
        file.write_bytes(bytes(data))
    elif what == "metrics":
        lines = (other / "metrics.jsonl").read_text().splitlines()
        (other / "metrics.jsonl").write_text(lines[0] + "\n")
    elif what == "result":
        result = json.loads((other / "result.json").read_text())
        result["rounds"][0]["loss"] += 1e-9
        (other / "result.json").write_text(json.dumps(result))
    else:
        (other / "result.json").unlink()
    assert crash.difference(whole, other) is not None


def test_a_run_that_died_before_it_had_a_configuration_can_begin_again(tmp_path: Path) -> None:
    (tmp_path / ".lock").touch()
    (tmp_path / "config.toml1234.part").write_text("meth")
    fg.run(**{**crash.settings("local"), "rounds": 1}, workers=1, out=tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        ".lock", "checkpoints", "config.toml", "metrics.jsonl", "result.json", "run.json"
    ]  # fmt: skip
