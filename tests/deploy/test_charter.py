"""The charter: what it takes, what it refuses and how it says so."""

from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest

from fedgraft.base.errors import UserError
from fedgraft.deploy.charter import Charter, charter, read

GOOD: dict[str, Any] = {
    "directory": "runs/one",
    "sites": ["berlin", "kyoto", "lagos"],
    "data": {"name": "digits", "kind": "pixels", "shape": [8, 8], "task": "classification:10"},
    "rules": {"deadline": 30},
    "run": {"method": "fedapa", "rounds": 5, "params": {"mu": 0.3}, "training": {"lr": 0.1}},
}


def changed(place: str, value: Any) -> dict[str, Any]:
    settings = deepcopy(GOOD)
    table = settings
    *path, last = place.split(".")
    for step in path:
        table = table.setdefault(step, {})
    table[last] = value
    return settings


def test_it_is_written_and_read_back(tmp_path: Path) -> None:
    made = charter(GOOD)
    made.write(tmp_path / "charter.toml")
    again = read(tmp_path / "charter.toml")
    assert again == made
    assert again.fingerprint == made.fingerprint
    assert (made.quorum, made.rules.deadline, made.run.training.lr) == (2, 30, 0.1)


def test_the_run_is_configured_as_a_federation() -> None:
    config = charter(GOOD).config
    assert (config.dataset, config.partition, config.clients) == ("digits", "own", 3)
    assert config.checkpoint_every == 1


def test_the_fingerprint_is_of_what_decides_the_result() -> None:
    made = charter(GOOD)
    for place, value in (("rules.quorum", 3), ("directory", "elsewhere")):
        assert charter(changed(place, value)).fingerprint == made.fingerprint
    sites = ["kyoto", "berlin", "lagos"]
    for place, other in (("run.seed", 1), ("data.task", "classification:11"), ("sites", sites)):
        assert charter(changed(place, other)).fingerprint != made.fingerprint


@pytest.mark.parametrize(
    ("place", "value", "sentence"),
    [
        ("sites", [], "sites: "),
        ("sites", ["a", "b", "a"], "two sites are called 'a'"),
        ("sites", ["../a"], "letters, digits"),
        ("rules.quorum", 4, "the quorum is 4, and there are 3 sites"),
        ("rules.quorum", 0, "rules.quorum"),
        ("rules.deadline", 0, "rules.deadline"),
        ("rules.speed", 1, "rules.speed"),
        ("data.kind", "sounds", "data.kind"),
        ("data.shape", [8], "height, width"),
        ("data.shape", [8, 0], "height, width"),
        ("data.classes", 3, "data.classes"),
        ("data.task", "telepathy:3", "no task is called"),
        ("data.task", "classification", "outputs"),
        ("data.mean", [0.5], "need normalise = 'standard'"),
        ("run.normalise", "standard", "needs the mean and std of the pixels"),
        ("run.workers", 2, "has 'workers', which is not a setting of a federation: each site trains its own client"),
        ("run.global_test", True, "test samples do not leave their site"),
        ("run.checkpoint_every", 5, "saved after every round"),
        ("run.rouns", 5, "did you mean 'rounds'?"),
        ("run.training", {"lr": -1}, "training.lr"),
        ("run", 5, "is a table of settings"),
        ("surplus", 1, "surplus"),
    ],
)
def test_what_is_wrong_is_said(place: str, value: Any, sentence: str) -> None:
    with pytest.raises(UserError) as refused:
        charter(changed(place, value))
    assert sentence in str(refused.value)
    assert "\n" not in str(refused.value)


def test_standard_needs_statistics_of_the_right_length() -> None:
    settings = changed("run.normalise", "standard")
    settings["data"] |= {"mean": [0.3], "std": [0.2]}
    assert charter(settings).data.mean == (0.3,)
    settings["data"]["std"] = [0.2, 0.2]
    with pytest.raises(UserError, match="one value for each of the 1 channels"):
        charter(settings)


def test_a_file_that_is_not_there_or_not_toml(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="there is no description of a federation"):
        read(tmp_path / "charter.toml")
    (tmp_path / "charter.toml").write_bytes(b"\xff\xfe[")
    with pytest.raises(UserError, match="is not a readable description"):
        read(tmp_path / "charter.toml")
    assert isinstance(charter(GOOD), Charter)
