"""What people may hand in by mistake, or by malice: one sentence each, and nothing is written."""

import io
import json
import struct
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from fedgraft.base import memory
from fedgraft.base.errors import UserError
from fedgraft.cli import app

runner = CliRunner()
RUN = ["run", "local", "--rounds", "1", "--workers", "1", "--clients", "2", "--partition", "iid", "--out", "out"]


def arrays(**changes: Any) -> dict[str, Any]:
    rng = np.random.default_rng(0)
    good = {
        "x_train": rng.standard_normal((40, 6)).astype(np.float32), "y_train": np.arange(40) % 3,
        "x_test": rng.standard_normal((20, 6)).astype(np.float32), "y_test": np.arange(20) % 3,
    }  # fmt: skip
    return {name: array for name, array in (good | changes).items() if array is not None}


def npz(**changes: Any) -> bytes:
    stream = io.BytesIO()
    np.savez(stream, **arrays(**changes))
    return stream.getvalue()


def declaring(shape: str, descr: str = "<f4") -> bytes:
    """A file whose header of x_train promises more than the hundred bytes that follow."""
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w") as archive:
        for name, array in arrays().items():
            member = io.BytesIO()
            np.save(member, array)
            content = member.getvalue()
            if name == "x_train":
                header = f"{{'descr': '{descr}', 'fortran_order': False, 'shape': {shape}}}".encode().ljust(117) + b"\n"
                content = b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header)) + header + bytes(100)
            archive.writestr(f"{name}.npy", content)
    return stream.getvalue()


def answer(words: list[str]) -> str:
    """The sentence with which a command is refused; ``main`` prints it and exits with 2."""
    refused = runner.invoke(app, words)
    assert isinstance(refused.exception, UserError), refused.exception or refused.output
    assert "\n" not in str(refused.exception)
    assert not Path("out").exists()
    return str(refused.exception)


@pytest.fixture(autouse=True)
def own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


ones = np.ones
DATA: dict[str, tuple[Callable[[], bytes], str]] = {
    "a pixel that is no number": (lambda: npz(x_train=ones((40, 6), "f4") * np.nan), "x_train in d.npz holds NaN"),
    "an infinite test sample": (lambda: npz(x_test=ones((20, 6), "f4") * np.inf), "x_test in d.npz holds NaN"),
    "integers as features": (
        lambda: npz(x_train=ones((40, 6), "i8"), x_test=ones((20, 6), "i8")), "is int64; save pixels as uint8"
    ),
    "some integers as features": (lambda: npz(x_train=ones((40, 6), "i8")), "float32 (6,) but x_train has int64 (6,)"),
    "complex numbers": (lambda: npz(x_train=ones((40, 6), "c8")), "is complex64"),
    "words as labels": (lambda: npz(y_train=np.array(["cat"] * 40)), "targets are numbers"),
    "floats as labels": (lambda: npz(y_train=ones(40)), "y_test in d.npz is int64 but y_train is float64"),
    "a negative label": (lambda: npz(y_train=-ones(40, int)), "holds the negative label -1"),
    "a label beyond reason": (lambda: npz(y_test=ones(20, int) * 10**12), "holds the label 1000000000000"),
    "a label beyond int64": (lambda: npz(y_test=ones(20, "u8") * (2**64 - 1)), "holds the label 18446744073709551615"),
    "a label too few": (lambda: npz(y_train=ones(39, int)), "has 40 samples but y_train has 39 labels"),
    "no training sample": (lambda: npz(x_train=ones((0, 6), "f4"), y_train=ones(0, int)), "x_train in d.npz is empty"),
    "no test sample": (lambda: npz(x_test=ones((0, 6), "f4"), y_test=ones(0, int)), "x_test in d.npz is empty"),
    "fewer samples than clients": (
        lambda: npz(x_train=ones((1, 6), "f4"), y_train=ones(1, int) * 0), "2 clients need at least one training"
    ),
    "features without width": (lambda: npz(x_train=ones((40, 0), "f4"), x_test=ones((20, 0), "f4")), "is empty"),
    "a number for an array": (lambda: npz(x_train=np.float32(3)), "x_train in d.npz has shape ()"),
    "an array that lacks": (lambda: npz(y_test=None), "d.npz lacks y_test"),
    "other samples to test": (lambda: npz(x_test=ones((20, 5), "f4")), "x_test in d.npz has samples of float32 (5,)"),
    "Python objects": (lambda: npz(x_train=np.array([{}] * 40)), "x_train is an array of Python objects"),
    "objects by header": (lambda: declaring("(4, 6)", "|O"), "x_train is an array of Python objects"),
    "a header of 22 TiB": (lambda: declaring("(1000000000000, 6)"), "more than the limit of 16 GiB"),
    "a header of huge items": (lambda: declaring("(4, 6)", "|V1000000000"), "more than the limit of 16 GiB"),
    "a header that lies": (lambda: declaring("(100, 6)"), "x_train declares 2400 bytes, and 100 are there"),
    "a negative shape": (lambda: declaring("(-1, 6)"), "x_train declares -24 bytes"),
    "half a file": (lambda: npz()[:1500], "d.npz is damaged or truncated"),
    "all but the end": (lambda: npz()[:-5], "d.npz is damaged or truncated"),
    "an empty file": (lambda: b"", "d.npz is damaged or truncated"),
    "something else": (lambda: b"hello", "d.npz is damaged or truncated"),
}  # fmt: skip


@pytest.mark.parametrize("kind", DATA)
def test_data(kind: str) -> None:
    content, sentence = DATA[kind]
    Path("d.npz").write_bytes(content())
    assert sentence in answer([*RUN, "--dataset", "d.npz"])


def test_objects_are_never_unpickled(monkeypatch: pytest.MonkeyPatch) -> None:
    class Trap:
        def __reduce__(self) -> tuple[Any, ...]:
            return Path.touch, (Path("sprung"),)

    Path("d.npz").write_bytes(npz(x_train=np.array([Trap()] * 40, dtype=object)))
    assert "array of Python objects" in answer([*RUN, "--dataset", "d.npz"])
    assert not Path("sprung").exists()


def test_a_bomb_is_refused_before_it_is_unpacked(monkeypatch: pytest.MonkeyPatch) -> None:
    with zipfile.ZipFile("d.npz", "w", zipfile.ZIP_DEFLATED) as archive, archive.open("x_train.npy", "w") as member:
        np.save(member, np.zeros((2**15, 32, 32), np.uint8))  # 32 MiB in 32 KiB
    assert Path("d.npz").stat().st_size < 2**17
    monkeypatch.setattr(memory, "total", lambda: 2**24)
    assert "more than this machine's 0.0 GiB of memory" in answer([*RUN, "--dataset", "d.npz"])


SITES = [word for word in RUN if word not in ("--clients", "2", "--partition", "iid")]


def test_one_bad_site_among_good_ones() -> None:
    Path("sites").mkdir()
    Path("sites/a.npz").write_bytes(npz())
    for content, sentence in (
        (npz()[:99], "sites/b.npz is damaged or truncated"),
        (npz(x_train=ones((40, 7), "f4"), x_test=ones((20, 7), "f4")), "different shapes: (6,), (7,)"),
        (npz(x_train=ones((40, 6), "f4") * np.nan), "x_train in sites/b.npz holds NaN"),
        (npz(x_train=ones((0, 6), "f4"), y_train=ones(0, int)), "x_train in sites/b.npz is empty"),
    ):
        Path("sites/b.npz").write_bytes(content)
        assert sentence in answer([*SITES, "--dataset", "sites"])


@pytest.mark.parametrize(
    "changes",
    [
        {"y_train": np.arange(40) % 2 * 2},  # nobody has class 1
        {"y_train": np.zeros(40, int), "y_test": np.zeros(20, int)},
        {"y_test": np.full(20, 7)},  # nobody has ever trained on what is tested
        {"x_train": ones((2, 6), "f4"), "y_train": np.array([0, 1])},  # one sample for each client
    ],
    ids=["a missing class", "a single class", "classes to test only", "one sample each"],
)
@pytest.mark.parametrize("method", ["local", "fedpac", "fedgh"])
def test_odd_data_that_can_be_used_is_used(changes: dict[str, Any], method: str) -> None:
    Path("d.npz").write_bytes(npz(**changes))
    done = runner.invoke(app, [RUN[0], method, *RUN[2:], "--dataset", "d.npz"])
    assert done.exit_code == 0, done.exception
    result = json.loads(Path("out/result.json").read_text())
    assert result["refused"] == 0
    assert result["last"]["trained"]["accuracy"]["pooled"] is not None


CONFIGURATIONS = {
    "a list for a name": ('dataset = ["digits"]', "dataset should be a valid string"),
    "a date for a name": ("dataset = 2020-01-01", "dataset should be a valid string"),
    "an empty name": ('dataset = ""', "dataset should have at least 1 character"),
    "a truth for a number": ("seed = true", "seed is not a thing to switch on or off, so not true"),
    "a truth for a rate": ("[training]\nlr = false", "training.lr is not a thing to switch on or off, so not false"),
    "a list for a table": ("training = [1]", "training should be a valid dictionary"),
    "a list of parameters": ("params = [1]", "params should be a valid dictionary"),
    "an unknown parameter": ("[params]\nx = 1", "local has no parameter 'x'"),
    "a word for a number": ('[training]\nlr = "fast"', "training.lr should be a valid number"),
    "infinity": ("[training]\nlr = inf", "training.lr should be a finite number"),
    "no number": ("[training]\nmomentum = nan", "training.momentum should be a finite number"),
    "a bound of nothing": ("[training]\nstages = ['bound:norm=0']", "bound: norm has to be above 0, not 0"),
    "a bound of the past": ("[training]\nmax_norm = 5.0", 'write stages = ["bound:norm=5.0"]'),
    "a factor of the past": ("outlier_factor = 3", 'write stages = ["bound:factor=3"]'),
    "an average of the past": ('averaging = "median"', 'averaging is a stage now: write stages = ["median"]'),
    "the mean of the past": ('averaging = "mean"', "the mean needs none: leave it out"),
    "a bound of two kinds": ("[training]\nstages = ['bound:factor=yes']", "bound: factor is a number, not 'yes'"),
    "a code for nobody": ("[training]\nstages = ['int8:up=false']", "int8 codes nothing: up and down are both false"),
    "a negative seed": ("seed = -1", "seed should be greater than or equal to 0"),
    "images of a mile": ("resize = 100000000", "resize should be less than or equal to 1024"),
    "a model that is no function": (
        'model = "os.path:sep"',
        "is neither a class nor a function, so it is no model",
    ),
    "a model that needs more": ('model = "os.path:join"', "os.path:join needs a: write os.path:join:a=VALUE"),
    "a model that is not there": ('model = "os.path:network"', "the model 'os.path:network' cannot be found"),
    "a module of no kind": ('model = "email.message:Message"', "gives a Message, not a module"),
    "a head that is not there": ('head = "nose"', "the module has no submodule 'nose'"),
    "a device of no kind": ('device = "tpu"', "a device is cpu or cuda, or cuda:1 for the second, not 'tpu'"),
    "a device that is not here": ('device = "cuda:99"', "there is no device 'cuda:99' here"),
    "a share beyond one": ('participation = "0.5..2"', "participation has to lie above 0 and up to 1"),
    "an infinite deadline": ("deadline = inf", "deadline should be a finite number"),
    "brackets without end": ("a = " + "[" * 5000 + "]" * 5000, "is not a readable configuration file"),
    "a key twice": ("seed = 1\nseed = 2", "is not a readable configuration file"),
}


@pytest.mark.parametrize("kind", CONFIGURATIONS)
def test_configurations(kind: str) -> None:
    text, sentence = CONFIGURATIONS[kind]
    Path("c.toml").write_text(text)
    assert sentence in answer(["run", "local", "--config", "c.toml", "--out", "out"])


def test_configurations_that_are_no_text() -> None:
    Path("c.toml").write_bytes(b"\x00\xff\xfe")
    Path("d.toml").mkdir()
    for name in ("c.toml", "d.toml"):
        assert f"{name} is not a readable configuration file" in answer(
            ["run", "local", "--config", name, "--out", "out"]
        )


def test_places_that_cannot_be_written() -> None:
    Path("file").write_text("mine")
    assert "not empty" in answer(["run", "local", "--out", "file"])
    assert "cannot be made" in answer(["run", "local", "--out", "file/run"])
    assert "cannot write the partition file file/p.json" in answer(["partition", "iid", "--save", "file/p.json"])
    assert Path("file").read_text() == "mine"
