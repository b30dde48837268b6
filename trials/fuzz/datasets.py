"""The readers of data files: an npz of a site, a saved partition, an IDX file."""

import gzip
import io
import json
import struct
import zipfile
from pathlib import Path
from random import Random

import numpy as np

from fedgraft.data.datasets import load
from fedgraft.data.datasets.formats import idx, sentences
from fedgraft.data.federation import own_data, read_sites
from fedgraft.data.partition import SCHEMES, Partition
from trials.fuzz import Attempt, damage

ARRAYS = ("x_train", "y_train", "x_test", "y_test")


def prepare() -> Attempt:
    """Write good files once."""
    rng = np.random.default_rng(0)
    arrays = {
        "x_train": rng.integers(0, 255, (12, 4, 4), dtype=np.uint8), "y_train": np.arange(12) % 3,
        "x_test": rng.integers(0, 255, (6, 4, 4), dtype=np.uint8), "y_test": np.arange(6) % 3,
    }  # fmt: skip
    members = {name: _npy(array) for name, array in arrays.items()}
    partition = SCHEMES.make("iid").split(arrays["y_train"], arrays["y_test"], 3, 0)
    images = b"\0\0\x08\x03" + struct.pack(">III", 12, 4, 4) + arrays["x_train"].tobytes()

    def site(rng: Random, room: Path) -> None:
        path = room / "site.npz"
        path.write_bytes(_spoiled_npz(rng, members))
        data = load(path)
        for part in ("train", "test"):
            x, y = getattr(data, f"x_{part}"), getattr(data, f"y_{part}")
            assert len(x) == len(y) > 0, "samples and labels differ"
            assert x.dtype in (np.uint8, np.float32), f"samples of {x.dtype}"
            assert np.isfinite(x).all(), "samples are not finite"
            assert 0 <= y.min() <= y.max() < data.classes, "labels are out of range"
        own_data(read_sites(room))

    def saved(rng: Random, room: Path) -> None:
        path = room / "partition.json"
        partition.save(path)
        if rng.random() < 0.5:
            path.write_bytes(damage.damaged(rng, path.read_bytes()))
        else:
            content = json.loads(path.read_text())
            content[rng.choice([*content])] = damage.value(rng)
            if rng.random() < 0.5:
                content.pop("fingerprint", None)
            path.write_text(json.dumps(content))
        read = Partition.load(path)
        assert not np.intersect1d(np.concatenate(read.train), np.concatenate(read.test)).size

    def letters(rng: Random, room: Path) -> None:
        data = images
        if rng.random() < 0.3:
            sizes = rng.choice([b"\xff" * 12, b"\x7f" * 12, bytes(12)])
            data = b"\0\0\x08" + rng.choice([b"\x01", b"\x03"]) + sizes + data[16:]
        if rng.random() < 0.5:
            data = gzip.compress(data, 1)
        with sentences("train-images"):
            assert idx(damage.damaged(rng, data)).ndim in (1, 3)

    def attempt(rng: Random, room: Path) -> None:
        rng.choice([site, site, site, saved, letters])(rng, room)

    return attempt


def _npy(array: np.ndarray) -> bytes:
    stream = io.BytesIO()
    np.lib.format.write_array(stream, array, allow_pickle=True)
    return stream.getvalue()


def _spoiled_npz(rng: Random, members: dict[str, bytes]) -> bytes:
    parts, kind = dict(members), rng.randrange(6)
    name = rng.choice(ARRAYS)
    if kind == 0:
        del parts[name]
    elif kind == 1:
        parts[name] = damage.damaged(rng, parts[name])
    elif kind == 2:  # a header that promises something else than what follows
        shape = rng.choice(["(2**40,)", "(1099511627776, 4, 4)", "(-1, 4)", "()", "(0, 4, 4)", "(12, 4, 4, 1)", "[12]"])
        descr = rng.choice(["'|u1'", "'<f4'", "'<i8'", "'|O'", "'<U9'", "[('a', '<i4')]", "'<M8[s]'", "__import__"])
        header = f"{{'descr': {descr}, 'fortran_order': {rng.choice(['False', 'True', '1'])}, 'shape': {shape}, }}"
        text = header.encode().ljust(rng.choice([118, 60, 9000])) + b"\n"
        parts[name] = b"\x93NUMPY\x01\x00" + struct.pack("<H", len(text)) + text + parts[name][-64:]
    elif kind == 3:
        odd = rng.choice([
            np.full((12, 4, 4), np.nan, np.float32), np.array([{}, print], dtype=object), np.full(12, 2**62),
            np.full(12, -1), np.zeros((12, 1)), np.array(3), np.zeros(0), np.full((12, 4), 1e300),
            np.zeros((12, 4, 4), np.complex64),
            np.array(["a"] * 12), np.full(12, 2**64 - 1, np.uint64), np.zeros((12, 4, 0, 4), np.uint8),
        ])  # fmt: skip
        parts[name] = _npy(odd)
    stream = io.BytesIO()
    packing = rng.choice([zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED])
    with zipfile.ZipFile(stream, "w", packing) as archive:
        for key, data in parts.items():
            archive.writestr(f"{key}.npy", data)
    return damage.damaged(rng, stream.getvalue()) if kind > 3 else stream.getvalue()
