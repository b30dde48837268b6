"""The data of one site, in the form in which it lies there: an .npz file, a table, or folders of images."""

import csv
import re
import warnings
from pathlib import Path
from typing import Any

import numpy as np

from fedgraft.base.errors import UserError
from fedgraft.data.datasets import read_npz
from fedgraft.data.datasets.dataset import sound
from fedgraft.data.datasets.formats import Array, Arrays, affordable, sentences
from fedgraft.data.federation import Site

SETS = ("train", "test")
LARGEST_SIDE = 4096
_PICTURES = frozenset({".png", ".jpg", ".jpeg", ".bmp", ".tif", ".tiff"})


def read(path: Path, task: str | None = None) -> Site:
    """Read a site's samples.

    - an .npz file: x_train, y_train, x_test, y_test; x_val, y_val, if it has validation samples of its own.
    - a .csv file with a header: the column `label` holds whole numbers from 0, the column `set` says `train` or `test`,
      every other column is a feature.
    - a folder: train/CLASS/... and test/CLASS/... hold images of one size, and CLASS begins with the number of the
      class, such as 0 or 3-pneumonia.
    """
    with sentences(path):
        read_arrays = _images if path.is_dir() else _table if path.suffix == ".csv" else read_npz
        return Site(**sound(read_arrays(path), path, task), name=None)


def _table(path: Path) -> Arrays:
    try:
        with path.open(newline="", encoding="utf-8-sig") as stream:
            return _columns(csv.reader(stream), path)
    except csv.Error as error:
        raise UserError(f"{path} is not a table of numbers: {error}") from None


def _header(names: list[str], path: Path) -> list[str]:
    """Read the first line; a label that a second column repeats, in any spelling, would be a feature too."""
    header = [name.strip() for name in names]
    if missing := {"label", "set"} - set(header):
        raise UserError(f"{path} has no column {sorted(missing)[0]!r}; its first line names the columns")
    spelled = [name.casefold() for name in header]
    if twice := [name for name, same in zip(header, spelled, strict=True) if spelled.count(same) > 1]:
        raise UserError(f"{path} has two columns called {twice[0][:50]!r}; every column needs a name of its own")
    return header


def _columns(rows: Any, path: Path) -> Arrays:
    header = _header(next(rows, []), path)
    label, part = header.index("label"), header.index("set")
    features = [column for column in range(len(header)) if column not in (label, part)]
    x: dict[str, list[list[float]]] = {name: [] for name in SETS}
    y: dict[str, list[int]] = {name: [] for name in SETS}
    for row in rows:
        if not row:
            continue
        where = f"{path}, line {rows.line_num}"
        if len(row) != len(header):
            raise UserError(f"{where} has {len(row)} columns, the first line {len(header)}")
        if (name := row[part].strip()) not in SETS:
            raise UserError(f"{where}: the column set says train or test, not {name[:50]!r}")
        try:
            y[name].append(int(row[label]))
            x[name].append([float(row[column]) for column in features])
        except ValueError as error:
            raise UserError(f"{where}: {str(error)[:100]}; a table holds numbers only, and none is left out") from None
    arrays: Arrays = {}
    for name in SETS:
        with np.errstate(over="ignore"):  # infinite then, and refused as that
            arrays[f"x_{name}"] = np.array(x[name], dtype=np.float32).reshape(len(x[name]), len(features))
        arrays[f"y_{name}"] = np.array(y[name], dtype=np.int64)
    return arrays


def _images(folder: Path) -> Arrays:
    from PIL import Image  # an import that only folders of images pay for

    found: dict[str, list[tuple[int, Path]]] = {}
    for name in SETS:
        if not (folder / name).is_dir():
            raise UserError(f"{folder} has no folder {name}; images lie in train/CLASS and test/CLASS")
        found[name] = [
            (_number(home), file)
            for home in sorted((folder / name).iterdir())
            if home.is_dir()
            for file in sorted(home.iterdir())
            if file.suffix.lower() in _PICTURES
        ]
        if not found[name]:
            raise UserError(f"{folder / name} holds no images")
    files = [file for pairs in found.values() for _, file in pairs]
    size, grey = _size_and_grey(files[0])
    for file in files[1:]:
        other, also = _size_and_grey(file)
        grey = grey and also
        if other != size:
            raise UserError(f"{file} is {other[0]}x{other[1]}, {files[0]} is {size[0]}x{size[1]}; scale them alike")
    affordable(len(files) * size[0] * size[1] * (1 if grey else 3))

    def pixels(file: Path) -> Array:
        with Image.open(file) as image:
            return np.asarray(image.convert("L" if grey else "RGB"), dtype=np.uint8)

    arrays: Arrays = {}
    for name, pairs in found.items():
        arrays[f"x_{name}"] = np.stack([pixels(file) for _, file in pairs])
        arrays[f"y_{name}"] = np.array([number for number, _ in pairs], dtype=np.int64)
    return arrays


def _size_and_grey(file: Path) -> tuple[tuple[int, int], bool]:
    """Look at the head of an image file: a small one can promise more pixels than there is memory."""
    from PIL import Image

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", Image.DecompressionBombWarning)  # ours is the lower bound
            with Image.open(file) as image:
                width, height = image.size
                grey = image.mode in ("1", "L")
    except Image.DecompressionBombError:
        width = height = LARGEST_SIDE + 1
    if width * height > LARGEST_SIDE**2:
        raise UserError(
            f"{file} has more pixels than the {LARGEST_SIDE}x{LARGEST_SIDE} that are allowed; scale it down"
        )
    return (width, height), grey


def _number(folder: Path) -> int:
    """The class of a folder: sites with different classes have to number them alike."""
    match = re.match(r"\d+", folder.name)
    if match is None:
        raise UserError(f"{folder} does not begin with the number of its class, such as 0 or 3-pneumonia")
    return int(match.group())
