"""A dataset in memory, and what makes one valid."""

import hashlib
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np

from fedgraft.base.errors import UserError
from fedgraft.data.datasets.formats import Array, Arrays

Constants = tuple[float, ...] | None
ARRAYS = ("x_train", "y_train", "x_test", "y_test", "x_val", "y_val")
MOST_CLASSES = 100_000
"""A head with a row for each of more classes than these would be larger than any network here."""


@dataclass(frozen=True, eq=False)
class Dataset:
    """Samples and labels in their official split.

    Samples are pixels (uint8, N x H x W or N x H x W x C) or features (float32, N x anything); labels are int64,
    0 .. classes - 1. ``mean`` and ``std`` are the customary constants per channel for pixels scaled to [0, 1]; they
    are None where no custom exists (features, your own files).
    """

    name: str
    x_train: Array
    y_train: Array
    x_test: Array
    y_test: Array
    classes: int
    mean: Constants = None
    std: Constants = None
    x_val: Array | None = None
    y_val: Array | None = None

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of one sample."""
        return self.x_train.shape[1:]

    @property
    def arrays(self) -> Arrays:
        """The arrays by name, without those that are None."""
        return {name: getattr(self, name) for name in ARRAYS if getattr(self, name) is not None}

    @cached_property
    def fingerprint(self) -> str:
        """SHA-256 of names, shapes and contents: equal for equal data, wherever it was read from."""
        digest = hashlib.sha256()
        for name, array in self.arrays.items():
            digest.update(f"{name} {array.dtype.str} {array.shape}\n".encode())
            digest.update(np.ascontiguousarray(array).data)
        return digest.hexdigest()


def checked(
    name: str,
    arrays: Arrays,
    where: Path | str,
    *,
    classes: int | None = None,
    mean: Constants = None,
    std: Constants = None,
) -> Dataset:
    """Make a dataset of ``arrays``, or say in one sentence what is wrong with them; ``where`` names their file."""
    good = sound(arrays, where)
    classes = class_count({str(where): good}, classes)
    pixels = good["x_train"]
    if pixels.dtype != np.uint8 or mean is None or len(mean) != _channels(pixels):
        mean = std = None
    return Dataset(name=name, classes=classes, mean=mean, std=std, **good)


def sound(arrays: Mapping[str, Array], where: Path | str) -> Arrays:
    """Return samples and labels as training needs them, or say in one sentence what is wrong with them.

    Pixels become bytes, features float32, whole numbers (tokens) and labels int64. ``where`` names the file or the
    site that they are from. How many classes there are is another question, which may concern several sites.
    """
    missing = [key for key in ("x_train", "y_train", "x_test", "y_test") if key not in arrays]
    if missing:
        raise UserError(
            f"{where} lacks {', '.join(missing)}; a dataset needs the arrays x_train, y_train, x_test and y_test"
        )
    if ("x_val" in arrays) != ("y_val" in arrays):
        raise UserError(f"{where} has only one of x_val and y_val; give both or neither")
    good = {
        key: _samples(array, f"{key} in {where}") if key.startswith("x") else _labels(array, f"{key} in {where}")
        for key, array in arrays.items()
    }
    for key in (key for key in good if key.startswith("x")):
        x, y, first = good[key], good["y" + key[1:]], good["x_train"]
        if len(x) != len(y):
            raise UserError(f"{key} in {where} has {len(x)} samples but y{key[1:]} has {len(y)} labels")
        if (x.shape[1:], x.dtype) != (first.shape[1:], first.dtype):
            raise UserError(
                f"{key} in {where} has samples of {x.dtype} {x.shape[1:]} "
                f"but x_train has {first.dtype} {first.shape[1:]}"
            )
    return good


def class_count(held: Mapping[str, Mapping[str, Array]], announced: int | None = None) -> int:
    """Tell how many classes there are in what several places hold: as ``announced``, or up to the highest label."""
    labels = {
        f"{key} in {where}": array for where, arrays in held.items() for key, array in arrays.items() if key[0] == "y"
    }
    tops = {what: int(array.max()) for what, array in labels.items()}
    top = max(tops, key=tops.__getitem__)
    # A class nobody has ever seen would only waste a row of the head; labels beyond the samples are surely a mistake.
    if tops[top] >= (announced or sum(map(len, labels.values()))):
        expected = f"0..{announced - 1}" if announced else "numbered 0, 1, 2, ..."
        raise UserError(f"{top} holds the label {tops[top]}; labels must be {expected}")
    classes = announced or tops[top] + 1
    if not 1 <= classes <= MOST_CLASSES:
        raise UserError(f"there may be up to {MOST_CLASSES:,} classes, not {classes:,}")
    return classes


def pixel_constants(images: Iterable[Array]) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Mean and deviation per channel of the pixels of several sites, scaled to [0, 1].

    Each site's part is a count for each of the 256 values of each channel: sums, never an image, would have to be told.
    """
    tables = [
        np.stack([np.bincount(channel.reshape(-1), minlength=256) for channel in np.moveaxis(_with_channels(x), 3, 0)])
        for x in images
    ]
    counts, values = np.sum(tables, axis=0).astype(np.float64), np.arange(256) / 255
    mean = counts @ values / counts.sum(axis=1)
    variance = counts @ values**2 / counts.sum(axis=1) - mean**2
    std = np.sqrt(np.maximum(variance, (1 / 255) ** 2))  # pixels that are all alike have no deviation to divide by
    return tuple(mean.tolist()), tuple(std.tolist())


def _with_channels(pixels: Array) -> Array:
    return pixels if pixels.ndim == 4 else pixels[..., None]


def _channels(pixels: Array) -> int:
    return int(_with_channels(pixels).shape[-1])


def _samples(array: Array, what: str) -> Array:
    if array.size == 0:
        raise UserError(f"{what} is empty")
    if array.dtype == np.uint8:
        if array.ndim not in (3, 4):
            raise UserError(f"{what} has shape {array.shape}; pixels must be N,H,W or N,H,W,C")
        if array.ndim == 4 and array.shape[1] <= 4 < array.shape[3]:
            raise UserError(f"{what} has shape {array.shape}, the channels first; pixels must be N,H,W or N,H,W,C")
        return np.ascontiguousarray(array)
    if array.dtype.kind in "iu" and array.ndim == 2:
        return np.ascontiguousarray(array, dtype=np.int64)
    if array.dtype.kind != "f":
        raise UserError(f"{what} is {array.dtype}; save pixels as uint8 and features as float32")
    if array.ndim < 2:
        raise UserError(f"{what} has shape {array.shape}; features must be N,F or N,...")
    with np.errstate(over="ignore"):  # what is too large for float32 becomes infinite, and is refused as that
        features = np.ascontiguousarray(array, dtype=np.float32)
    if not np.isfinite(features).all():
        raise UserError(f"{what} holds NaN or infinite values, or such that float32 cannot hold")
    return features


def _labels(array: Array, what: str) -> Array:
    if array.size == 0:
        raise UserError(f"{what} is empty")
    if array.ndim == 2 and array.shape[1] == 1:
        array = array[:, 0]
    if array.ndim != 1:
        raise UserError(f"{what} has shape {array.shape}; labels must be one number a sample")
    if array.dtype.kind not in "iu":
        raise UserError(f"{what} is {array.dtype}; labels must be integers")
    if array.min() < 0:
        raise UserError(f"{what} holds the negative label {array.min()}; labels must be numbered 0, 1, 2, ...")
    if array.max() > np.iinfo(np.int64).max:
        raise UserError(f"{what} holds the label {array.max()}; labels must be numbered 0, 1, 2, ...")
    return np.ascontiguousarray(array, dtype=np.int64)


def write_npz(dataset: Dataset, path: Path) -> None:
    """Write the arrays so that a reader sees the whole file or none."""
    part = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        with part.open("wb") as stream:
            np.savez(stream, **dataset.arrays)  # type: ignore[arg-type, unused-ignore]
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)
