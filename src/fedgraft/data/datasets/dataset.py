"""A dataset in memory, and what makes one valid."""

import hashlib
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from fedgraft.base.errors import UserError
from fedgraft.data.datasets.formats import Array, Arrays

if TYPE_CHECKING:
    from fedgraft.core.task import Task

Constants = tuple[float, ...] | None
ARRAYS = ("x_train", "y_train", "x_test", "y_test", "x_val", "y_val")


@dataclass(frozen=True, eq=False)
class Dataset:
    """Samples and labels in their official split.

    Samples are pixels (uint8, N x H x W or N x H x W x C) or features (float32, N x anything); targets are as the
    ``task`` has them (classes: int64, from 0). ``mean`` and ``std`` are the customary constants per channel for pixels
    scaled to [0, 1]; they are None where no custom exists (features, your own files).
    """

    name: str
    x_train: Array
    y_train: Array
    x_test: Array
    y_test: Array
    task: "Task"
    mean: Constants = None
    std: Constants = None
    x_val: Array | None = None
    y_val: Array | None = None

    @property
    def classes(self) -> int:
        """How many classes there are."""
        return self.task.classes

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of one sample."""
        return self.x_train.shape[1:]

    @property
    def strata(self) -> tuple[Array, Array]:
        """By what schemes tell training and test samples apart: their classes, or what the task has in their place."""
        both = self.task.strata(np.concatenate([self.y_train, self.y_test]))
        return both[: len(self.y_train)], both[len(self.y_train) :]

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
    task: str | None = None,
    mean: Constants = None,
    std: Constants = None,
) -> Dataset:
    """Make a dataset of ``arrays``, or say in one sentence what is wrong with them; ``where`` names their file.

    ``task`` says what is learned and, if it matters, with how many outputs (``classification:10``).
    """
    good = sound(arrays, where, task)
    pixels = good["x_train"]
    if pixels.dtype != np.uint8 or mean is None or len(mean) != _channels(pixels):
        mean = std = None
    return Dataset(name=name, task=task_of({str(where): good}, task), mean=mean, std=std, **good)


def sound(arrays: Mapping[str, Array], where: Path | str, task: str | None = None) -> Arrays:
    """Return samples and targets as training needs them, or say in one sentence what is wrong with them.

    Pixels become bytes, features float32, whole numbers (tokens) int64; targets as the ``task`` wants them, or as they
    look. ``where`` names the file or the site that they are from. How many classes there are is another question, which
    may concern several sites.
    """
    from fedgraft.core.task import kind_named, kind_of  # torch comes with it, and the list of datasets needs none

    missing = [key for key in ("x_train", "y_train", "x_test", "y_test") if key not in arrays]
    if missing:
        raise UserError(
            f"{where} lacks {', '.join(missing)}; a dataset needs the arrays x_train, y_train, x_test and y_test"
        )
    if ("x_val" in arrays) != ("y_val" in arrays):
        raise UserError(f"{where} has only one of x_val and y_val; give both or neither")
    for key, array in arrays.items():
        if array.size == 0:
            raise UserError(f"{key} in {where} is empty")
        if key.startswith("y") and array.dtype.kind not in "iufb":
            raise UserError(f"{key} in {where} is {array.dtype}; targets are numbers")
        if key.startswith("y") and (array.dtype.kind == "f") != (arrays["y_train"].dtype.kind == "f"):
            raise UserError(f"{key} in {where} is {array.dtype} but y_train is {arrays['y_train'].dtype}")
    kind = kind_named(task)[0] if task else kind_of(arrays["y_train"], f"y_train in {where}")
    good = {
        key: _samples(array, f"{key} in {where}") if key.startswith("x") else kind.clean(array, f"{key} in {where}")
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


def task_of(held: Mapping[str, Mapping[str, Array]], task: str | None = None) -> "Task":
    """Tell what is learned from what several places hold: as ``task`` says, or as their targets look."""
    from fedgraft.core.task import kind_named, kind_of

    targets = {
        f"{key} in {where}": array for where, arrays in held.items() for key, array in arrays.items() if key[0] == "y"
    }
    if task is not None:
        kind, outputs = kind_named(task)
        return kind.of(targets, outputs)
    kinds = {where: kind_of(each["y_train"], f"y_train in {where}") for where, each in held.items()}
    first = next(iter(kinds))
    for where, kind in kinds.items():
        if kind is not kinds[first]:
            raise UserError(
                f"y_train in {first} looks like {kinds[first].name} and in {where} like {kind.name}: say which it is "
                "with the setting task"
            )
    return kinds[first].of(targets)


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


def write_npz(dataset: Dataset, path: Path) -> None:
    """Write the arrays so that a reader sees the whole file or none."""
    part = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        with part.open("wb") as stream:
            np.savez(stream, **dataset.arrays)  # type: ignore[arg-type, unused-ignore]
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)
