"""A dataset in memory, and what makes one valid."""

import hashlib
import os
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np

from fedgraft.core.errors import UserError
from fedgraft.data.datasets.formats import Array, Arrays

Constants = tuple[float, ...] | None


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
        names = ("x_train", "y_train", "x_test", "y_test", "x_val", "y_val")
        return {name: getattr(self, name) for name in names if getattr(self, name) is not None}

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
    labels = {key: int(array.max()) for key, array in good.items() if key.startswith("y")}
    samples = sum(len(good[key]) for key in labels)
    top = max(labels, key=labels.__getitem__)
    # A class nobody has ever seen would only waste a row of the head; labels beyond the samples are surely a mistake.
    if labels[top] >= (classes or samples):
        expected = f"0..{classes - 1}" if classes else "numbered 0, 1, 2, ..."
        raise UserError(f"{top} in {where} holds the label {labels[top]}; labels must be {expected}")
    pixels = good["x_train"]
    channels = pixels.shape[3] if pixels.ndim == 4 else 1
    if pixels.dtype != np.uint8 or mean is None or len(mean) != channels:
        mean = std = None
    return Dataset(name=name, classes=classes or labels[top] + 1, mean=mean, std=std, **good)


def _samples(array: Array, what: str) -> Array:
    if array.size == 0:
        raise UserError(f"{what} is empty")
    if array.dtype == np.uint8:
        if array.ndim not in (3, 4):
            raise UserError(f"{what} has shape {array.shape}; pixels must be N,H,W or N,H,W,C")
        return np.ascontiguousarray(array)
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
