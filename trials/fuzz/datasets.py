"""The readers of data files: an npz of a site, a saved partition, an IDX file."""

import gzip
import io
import json
import struct
import zipfile
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from hypothesis import strategies as st
from hypothesis.strategies import DrawFn

from fedgraft.data.datasets import load
from fedgraft.data.datasets.formats import idx, sentences
from fedgraft.data.federation import federate
from fedgraft.data.partition import SCHEMES, Partition
from trials.fuzz import Reader, damage

ARRAYS = ("x_train", "y_train", "x_test", "y_test")


def prepare() -> Reader:
    """Make good files once."""
    rng = np.random.default_rng(0)
    arrays: dict[str, np.ndarray] = {
        "x_train": rng.integers(0, 255, (12, 4, 4), dtype=np.uint8), "y_train": np.arange(12) % 3,
        "x_test": rng.integers(0, 255, (6, 4, 4), dtype=np.uint8), "y_test": np.arange(6) % 3,
    }  # fmt: skip
    members = {name: _npy(array) for name, array in arrays.items()}
    partition = SCHEMES.make("iid").split(arrays["y_train"], arrays["y_test"], 3, 0)
    images = b"\0\0\x08\x03" + struct.pack(">III", 12, 4, 4) + arrays["x_train"].tobytes()
    with TemporaryDirectory() as room:
        partition.save(Path(room) / "partition.json")
        saved = (Path(room) / "partition.json").read_bytes()
    return Reader(
        st.one_of(
            st.tuples(st.just(_read_site), _spoiled_npz(members)),
            st.tuples(st.just(_read_partition), _spoiled_partition(saved)),
            st.tuples(st.just(_read_idx), _spoiled_idx(images)),
        ),
        lambda case, room: case[0](case[1], room),
    )


def _read_site(content: bytes, room: Path) -> None:
    path = room / "site.npz"
    path.write_bytes(content)
    data = load(path)
    for part in ("train", "test"):
        x, y = getattr(data, f"x_{part}"), getattr(data, f"y_{part}")
        assert len(x) == len(y) > 0, "samples and labels differ"
        assert x.dtype in (np.uint8, np.float32), f"samples of {x.dtype}"
        assert np.isfinite(x).all(), "samples are not finite"
        assert 0 <= y.min() <= y.max() < data.classes, "labels are out of range"
    federate(room)


def _read_partition(content: bytes, room: Path) -> None:
    path = room / "partition.json"
    path.write_bytes(content)
    read = Partition.load(path)
    assert not np.intersect1d(np.concatenate(read.train), np.concatenate(read.test)).size


def _read_idx(content: bytes, _: Path) -> None:
    with sentences("train-images"):
        assert idx(content).ndim in (1, 3)


@st.composite
def _spoiled_partition(draw: DrawFn, saved: bytes) -> bytes:
    if draw(st.booleans()):
        return draw(damage.damaged(saved))
    content: dict[str, Any] = json.loads(saved)
    content[draw(st.sampled_from([*content]))] = draw(damage.values())
    if draw(st.booleans()):
        content.pop("fingerprint", None)
    return json.dumps(content).encode()


@st.composite
def _spoiled_idx(draw: DrawFn, images: bytes) -> bytes:
    if draw(damage.rarely()):
        sizes = draw(st.sampled_from([b"\xff" * 12, b"\x7f" * 12, bytes(12)]))
        images = b"\0\0\x08" + draw(st.sampled_from([b"\x01", b"\x03"])) + sizes + images[16:]
    return draw(damage.damaged(gzip.compress(images, 1, mtime=0) if draw(st.booleans()) else images))


def _npy(array: np.ndarray) -> bytes:
    stream = io.BytesIO()
    np.lib.format.write_array(stream, array, allow_pickle=True)
    return stream.getvalue()


@st.composite
def _spoiled_npz(draw: DrawFn, members: dict[str, bytes]) -> bytes:
    parts, name = dict(members), draw(st.sampled_from(ARRAYS))
    kind = draw(st.sampled_from(["archive", "missing", "member", "header", "odd"]))
    if kind == "missing":
        del parts[name]
    elif kind == "member":
        parts[name] = draw(damage.damaged(parts[name]))
    elif kind == "header":
        parts[name] = draw(_lying_header()) + parts[name][-64:]
    elif kind == "odd":
        parts[name] = draw(st.sampled_from(ODD_ARRAYS))
    stream = io.BytesIO()
    packing = draw(st.sampled_from([zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED]))
    with zipfile.ZipFile(stream, "w", packing) as archive:
        for key, data in parts.items():
            archive.writestr(zipfile.ZipInfo(f"{key}.npy"), data, packing)  # without the time: a case can be repeated
    return draw(damage.damaged(stream.getvalue())) if kind == "archive" else stream.getvalue()


@st.composite
def _lying_header(draw: DrawFn) -> bytes:
    """The head of an npy file that promises something else than what follows."""
    shapes = ["(2**40,)", "(1099511627776, 4, 4)", "(-1, 4)", "()", "(0, 4, 4)", "(12, 4, 4, 1)", "[12]"]
    types = ["'|u1'", "'<f4'", "'<i8'", "'|O'", "'<U9'", "[('a', '<i4')]", "'<M8[s]'", "__import__"]
    order = draw(st.sampled_from(["False", "True", "1"]))
    descr, shape = draw(st.sampled_from(types)), draw(st.sampled_from(shapes))
    header = f"{{'descr': {descr}, 'fortran_order': {order}, 'shape': {shape}, }}"
    text = header.encode().ljust(draw(st.sampled_from([118, 60, 9000]))) + b"\n"
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(text)) + text


ODD_ARRAYS = [
    _npy(array)
    for array in (
        np.full((12, 4, 4), np.nan, np.float32), np.array([{}, print], dtype=object), np.full(12, 2**62),
        np.full(12, -1), np.zeros((12, 1)), np.array(3), np.zeros(0), np.full((12, 4), 1e300),
        np.zeros((12, 4, 4), np.complex64),
        np.array(["a"] * 12), np.full(12, 2**64 - 1, np.uint64), np.zeros((12, 4, 0, 4), np.uint8),
    )
]  # fmt: skip
