"""Models of one's own on the command line, and how many workers they get."""

import json
import sys
from pathlib import Path

import pytest
from conftest import blobs
from torch import nn
from typer.testing import CliRunner

import fedgraft as fg
from fedgraft.base.errors import UserError
from fedgraft.cli import app
from fedgraft.runs.directory import read_preparation
from fedgraft.runs.hosting import seated
from fedgraft.runs.run import resume

runner = CliRunner()
NETWORK = """
from torch import nn


def build():
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 5), nn.ReLU(), nn.Linear(5, 10))


def narrow():
    return nn.Sequential(nn.Flatten(), nn.Linear(63, 10))


class Net(nn.Sequential):
    def __init__(self):
        super().__init__(nn.Flatten(), nn.Linear(64, 10))


def needy(width):
    return nn.Linear(width, 10)


def broken():
    raise RuntimeError("no weights\\nhere")


ready = build()
word = "word"
"""
RUN = ["run", "local", "--rounds", "1", "--workers", "1", "--clients", "2", "--partition", "iid", "--out", "out"]


@pytest.fixture(autouse=True)
def own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.path", list(sys.path))
    Path("apinet.py").write_text(NETWORK)
    Path("deep").mkdir()
    Path("deep/apinet2.py").write_text(NETWORK)


@pytest.mark.parametrize(
    "model", ["apinet:build", "./apinet.py:build", "apinet.py:Net", "deep/apinet2.py:build", "deep.apinet2:build"]
)
def test_a_model_in_the_current_folder(model: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    done = runner.invoke(app, [*RUN, "--model", model])
    assert done.exit_code == 0, done.exception
    named = json.loads(Path("out/result.json").read_text())["model"]
    if ".py:" in model:
        monkeypatch.chdir("deep")  # a file is found again from whatever folder
        Path("../out/result.json").unlink()
        assert resume("../out", workers=1).result["model"] == named
    else:
        assert named == model


@pytest.mark.parametrize(
    ("model", "sentence"),
    [
        (
            "apinet:narrow",
            "the model 'apinet:narrow' cannot take this data's samples, which are of shape 1x8x8 (float32)",
        ),
        ("apinet:bild", "has no 'bild'; did you mean 'build'?"),
        ("apinett:build", "there is no module 'apinett'"),
        ("./apinett.py:build", "there is no file"),
        ("apinet:needy", "apinet:needy needs width: write apinet:needy:width=VALUE"),
        ("apinet:broken", "cannot be built: RuntimeError: no weights"),
        ("apinet:ready", "'apinet:ready' is not a function that builds a module"),
        ("apinet:word", "'apinet:word' is neither a class nor a function, so it is no model"),
        ("..:x", "neither a module nor a Python file"),
        ("lenet:5", "no model is called 'lenet'; did you mean 'lenet5'?"),
        ("mlp:wide", "wide"),
    ],
)
def test_a_model_that_will_not_do_is_a_sentence(model: str, sentence: str) -> None:
    refused = runner.invoke(app, [*RUN, "--model", model])
    assert isinstance(refused.exception, UserError), refused.exception
    assert sentence in str(refused.exception)
    assert "\n" not in str(refused.exception)
    assert not Path("out").exists()


def test_a_module_from_python_that_cannot_take_the_data() -> None:
    with pytest.raises(UserError, match=r"the model cannot take this data's samples, which are of shape 6 .*9x3"):
        fg.run("local", blobs(), model=nn.Linear(9, 3), rounds=1, workers=1)
    with pytest.raises(UserError, match="the model gives a str, not a module"):
        fg.run("local", blobs(), model=lambda: "net", rounds=1, workers=1)  # type: ignore[arg-type, return-value]


@pytest.mark.parametrize(
    ("text", "wrong"),
    [
        ('{"window": "x"}', "window: input should be"),
        ('{"inputs": [{"name": 3}]}', r"inputs\.0\.name: input should be a valid string"),
        ("{", "[Ii]nvalid JSON"),
    ],
)
def test_a_preparation_that_is_damaged_is_told_by_its_field(tmp_path: Path, text: str, wrong: str) -> None:
    (tmp_path / "preparation.json").write_text(text)
    with pytest.raises(UserError, match=f"preparation.json is damaged: {wrong}"):
        read_preparation(tmp_path)


def test_no_more_workers_than_clients() -> None:
    run = fg.run("local", blobs(), model="linear", rounds=1, workers=1)
    wished = run.config.model_copy(update={"workers": 999})
    assert seated(wished, run.method, run.spec, blobs()).places == ("cpu",) * 4
