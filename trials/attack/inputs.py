"""Attacks through what people hand in: arrays, tables, images, names."""

import struct
import tracemalloc
import zlib
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import torch

from fedgraft.base.errors import UserError
from fedgraft.data.federation import Site, federate, own_data
from fedgraft.data.sources import read_own
from fedgraft.data.sources.source import Reading
from fedgraft.runs.config import configure
from fedgraft.runs.population import architectures
from trials.attack import BreachError, attack

MEMORY = 64 * 2**20
"""Bytes that reading something small may take; what is promised below would take far more."""


def refused(act: Callable[[], object], *words: str) -> str:
    """Insist that ``act`` is refused in one sentence that holds ``words``, and cheaply."""
    tracemalloc.start()
    try:
        act()
    except UserError as error:
        if "\n" in str(error) or len(str(error)) > 1000 or not all(word in str(error) for word in words):
            raise BreachError(f"it was refused, but not in a sentence: {str(error)[:200]!r}") from error
    else:
        raise BreachError("it was taken")
    finally:
        most = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    if most > MEMORY:
        raise BreachError(f"it was refused after {most / 2**20:.0f} MiB had been taken")
    return "refused in a sentence"


def site(rng: Random, **changes: Any) -> Site:
    draw = np.random.default_rng(rng.randrange(2**32))
    good: dict[str, Any] = {
        "x_train": draw.standard_normal((8, 3)), "y_train": np.arange(8) % 3,
        "x_test": draw.standard_normal((4, 3)), "y_test": np.arange(4) % 3,
    }  # fmt: skip
    return Site(**(good | changes))


@attack("a label beyond reason", "one label of millions or more does not become as many classes")
def label(_: Path, rng: Random) -> str:
    labels = np.arange(8) % 3
    labels[rng.randrange(8)] = rng.choice([10**5, 10**7, 10**12, 2**62])
    return refused(lambda: own_data([site(rng), site(rng, y_train=labels)]), "y_train in site 1 holds the label")


@attack("values that are no numbers in float32", "no infinite sample reaches a network, from arrays or tensors")
def values(_: Path, rng: Random) -> str:
    x = np.zeros((4, 3))
    x[rng.randrange(4), rng.randrange(3)] = rng.choice([1e39, -1e300, np.inf, np.nan])
    wrong: Any = rng.choice([x, torch.from_numpy(x), x.tolist()])
    return refused(lambda: own_data([site(rng, x_test=wrong)]), "x_test in site 0", "float32")


@attack("things that are no arrays", "whatever is handed in as samples is a sentence at worst")
def things(_: Path, rng: Random) -> str:
    wrong: Any = rng.choice(
        [None, "text", [[1.0], [1.0, 2.0]], {}, np.array([object()] * 8), torch.zeros(8, 3).to_sparse(), 3.0,
         torch.zeros(8, 3, 9, 9, dtype=torch.uint8), np.zeros((8, 3), "M8[s]")]
    )  # fmt: skip
    return refused(lambda: own_data([site(rng, x_train=wrong)]), "site 0")


@attack("a table that repeats its label", "a second column of labels, in any spelling, does not become a feature")
def second_label(folder: Path, rng: Random) -> str:
    twin = rng.choice(["label", "Label", " LABEL", "label "])
    columns = ["set", "age", "label", twin]
    rng.shuffle(columns)
    rows = [dict.fromkeys(columns, "1") | {"set": part} for part in ("train", "test")]
    lines = [",".join(columns), *(",".join(row[name] for name in columns) for row in rows)]
    (folder / "a.csv").write_text("\n".join(lines))
    return refused(lambda: read_own(folder / "a.csv", Reading()), "column")


@attack("a table with an over-long field", "a field of megabytes is a sentence, and a short one")
def field(folder: Path, rng: Random) -> str:
    long = rng.choice('x9,\0"') * rng.choice([10**5, 10**6, 5 * 10**6])
    place = rng.choice(["train,{},1\n", "{},1,1\n", "train,1,{}\n"])
    (folder / "a.csv").write_text("set,age,label\ntest,1,0\n" + place.format(long), "utf-8")
    return refused(lambda: read_own(folder / "a.csv", Reading()), "a.csv")


@attack("an image that promises 20,000 x 20,000 pixels", "it is refused by its head, before it is decoded")
def image(folder: Path, rng: Random) -> str:
    def chunk(kind: bytes, content: bytes) -> bytes:
        return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))

    side = rng.choice([4097, 9000, 20_000, 65_000])
    head = chunk(b"IHDR", struct.pack(">IIBBBBB", side, side, 8, 0, 0, 0, 0))
    picture = b"\x89PNG\r\n\x1a\n" + head + chunk(b"IDAT", zlib.compress(bytes(10**6))) + chunk(b"IEND", b"")
    for part in ("train", "test"):
        (folder / part / "0").mkdir(parents=True)
        (folder / part / "0" / "a.png").write_bytes(picture)
    return refused(lambda: read_own(folder, Reading()), "pixels")


@attack("names that no file can have", "256 characters, zero bytes and empty names are a sentence")
def names(folder: Path, rng: Random) -> str:
    name = rng.choice(["n" * 256, "n" * 800, "a\0b", "a\nb", "\x1b[2J"])
    long = name if len(name) > 255 or "\0" in name else "n" * 300
    return refused(
        rng.choice(
            [
                lambda: own_data([site(rng, name=name)]),
                lambda: federate(f"{folder}/{long}.npz", 2, "iid"),
                lambda: federate(long, 2, "iid"),
                lambda: federate("digits", 2, f"{long}.json") if "\0" not in long else own_data([site(rng, name="")]),
                lambda: federate("digits", 2, "iid", data_dir=folder / ("n" * 300)),
            ]
        )
    )


@attack("a model that is none", "a reference to nothing, or to something else, is a sentence")
def model(folder: Path, rng: Random) -> str:
    (folder / "net.py").write_text("import sys\nword = 'w'\ndef ends(): sys.exit(3)\ndef narrow():\n"
                                   "    from torch import nn\n    return nn.Linear(4, 3)\n")  # fmt: skip
    (folder / "ends.py").write_text("raise SystemExit(7)\n")
    inside = [f"{folder}/{name}" for name in ("net.py:word", "net.py:none", "net.py:narrow", "ends.py:x", "no.py:x")]
    text = rng.choice(["..:x", ".:x", "/:x", "os:getcwd", "builtins:len", f"{'m' * 300}.py:f", *inside])
    fed = own_data([site(rng), site(rng)])
    return refused(lambda: architectures(configure({"model": text}), fed, None))
