"""The data of one site, in the form in which it lies there: an .npz file, a table, or folders of images."""

import csv
import re
from pathlib import Path

import numpy as np

from fedgraft.core.errors import UserError
from fedgraft.data.datasets import Dataset, load
from fedgraft.data.datasets.dataset import checked
from fedgraft.data.datasets.formats import Array, Arrays, sentences
from fedgraft.data.federation import Site

SETS = ("train", "test")
_PICTURES = frozenset({".png", ".jpg", ".jpeg", ".bmp", ".tif", ".tiff"})


def read(path: Path) -> Site:
    """Read a site's samples.

    - an .npz file: x_train, y_train, x_test, y_test.
    - a .csv file with a header: the column `label` holds whole numbers from 0, the column `set` says `train` or `test`,
      every other column is a feature.
    - a folder: train/CLASS/... and test/CLASS/... hold images of one size, and CLASS begins with the number of the
      class, such as 0 or 3-pneumonia.
    """
    found = _dataset(path)
    return Site(found.x_train, found.y_train, found.x_test, found.y_test)


def _dataset(path: Path) -> Dataset:
    if path.is_dir():
        with sentences(path):
            return checked(path.name, _images(path), path)
    if path.suffix == ".csv":
        with sentences(path):
            return checked(path.stem, _table(path), path)
    return load(path)


def _table(path: Path) -> Arrays:
    with path.open(newline="", encoding="utf-8-sig") as stream:
        rows = csv.reader(stream)
        header = [name.strip() for name in next(rows, [])]
        if missing := {"label", "set"} - set(header):
            raise UserError(f"{path} has no column {sorted(missing)[0]!r}; its first line names the columns")
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
                raise UserError(f"{where}: the column set says train or test, not {name!r}")
            try:
                y[name].append(int(row[label]))
                x[name].append([float(row[column]) for column in features])
            except ValueError as error:
                raise UserError(f"{where}: {error}; a table holds numbers only, and none is left out") from None
    arrays: Arrays = {}
    for name in SETS:
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
    with Image.open(files[0]) as first:
        size = first.size
    mode = "L" if all(_grey(file) for file in files) else "RGB"

    def pixels(file: Path) -> Array:
        with Image.open(file) as image:
            if image.size != size:
                raise UserError(
                    f"{file} is {image.size[0]}x{image.size[1]}, {files[0]} is {size[0]}x{size[1]}; scale them alike"
                )
            return np.asarray(image.convert(mode), dtype=np.uint8)

    arrays: Arrays = {}
    for name, pairs in found.items():
        arrays[f"x_{name}"] = np.stack([pixels(file) for _, file in pairs])
        arrays[f"y_{name}"] = np.array([number for number, _ in pairs], dtype=np.int64)
    return arrays


def _grey(file: Path) -> bool:
    from PIL import Image

    with Image.open(file) as image:
        return image.mode in ("1", "L")


def _number(folder: Path) -> int:
    """The class of a folder: sites with different classes have to number them alike."""
    match = re.match(r"\d+", folder.name)
    if match is None:
        raise UserError(f"{folder} does not begin with the number of its class, such as 0 or 3-pneumonia")
    return int(match.group())
