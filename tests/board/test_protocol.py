"""The protocol that is shipped, and protocols that are none."""

from pathlib import Path

import pytest

from fedgraft.base.errors import UserError
from fedgraft.board import protocol
from fedgraft.data.datasets import brings_sites

SETTING = """
[settings.one]
title = "One"
kind = "synthetic"
size = "small"
settings = {{ dataset = "digits"{more} }}
"""


def test_what_is_shipped() -> None:
    told = protocol.read()
    assert (told.trials, told.draws) == (8, 5)
    kinds = [each.kind for each in told.settings.values()]
    assert (kinds.count("synthetic"), kinds.count("natural")) == (4, 4)
    assert kinds[:4].count("natural") == 2  # two of each come first
    for name, each in told.settings.items():
        assert brings_sites(each.settings["dataset"]) == (each.kind == "natural"), name
        assert told.measured(each, 3).seed == 3
        assert told.tuned(each).seed not in told.seeds


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("trials = 2", "it lacks settings"),
        ("draws = 0" + SETTING.format(more=""), "draws: input should be greater"),
        ("draw = 3" + SETTING.format(more=""), "draw: extra inputs"),
        ("tuning_seed = 1" + SETTING.format(more=""), "is one of the 5 draws"),
        (SETTING.format(more=", seed = 3"), "one: seed is decided for all settings"),
        (SETTING.format(more=", round = 3"), "there is no setting 'round'; did you mean 'rounds'"),
        (SETTING.format(more=', model = "lenet"'), "did you mean 'lenet5'"),
        ("[settings]", "it has no settings"),
        ("trials = ", "not a readable protocol"),
    ],
)
def test_what_is_no_protocol(tmp_path: Path, text: str, sentence: str) -> None:
    (tmp_path / "own.toml").write_text(text)
    with pytest.raises(UserError, match=sentence):
        protocol.read(tmp_path / "own.toml")


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="there is no protocol of a board"):
        protocol.read(tmp_path / "none.toml")
