"""Arrays: one .npz file for each site."""

from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar

import numpy as np

from fedgraft.base.errors import UserError
from fedgraft.data.datasets import read_npz
from fedgraft.data.datasets.dataset import sound
from fedgraft.data.datasets.formats import Array
from fedgraft.data.site import Site
from fedgraft.data.sources.fitted import Fitted, announced_task
from fedgraft.data.sources.source import Found, Reading, Source, stems

NPZ = frozenset({".npz"})


class ArrayFolder(Source):
    """A folder with one .npz file for each site: x_train, y_train, x_test, y_test and perhaps x_val, y_val."""

    name: ClassVar[str] = "arrays"
    about: ClassVar[str] = "a folder with one .npz file for each site"

    @classmethod
    def fits(cls, path: Path) -> bool:
        return path.is_dir() and bool(stems(path, NPZ))

    @classmethod
    def serves(cls, path: Path) -> bool:
        return path.suffix.lower() == ".npz"

    def read(self, reading: Reading, task: str | None, seed: int, fitted: Fitted | None = None) -> Found:
        files = stems(self.path, NPZ)
        held = {file.stem: sound(read_npz(file), file, task) for file in files}
        _insist_on_classes(
            [y for arrays in held.values() for key, y in arrays.items() if key[0] == "y"], task, self.path
        )
        return Found([Site(**arrays, name=name) for name, arrays in held.items()])

    @classmethod
    def own(cls, path: Path, reading: Reading, task: str | None, seed: int, fitted: Fitted | None, site: str) -> Site:
        return Site(**sound(read_npz(path), path, task), name=None)


def _insist_on_classes(targets: Sequence[Array], task: str | None, path: Path) -> None:
    """Refuse samples that are all of one class; one site alone may be like that."""
    labels = all(y.dtype.kind == "i" and y.ndim == 1 for y in targets)
    if labels and announced_task(task)[0] in (None, "classification"):
        classes = np.unique(np.concatenate(targets))
        if len(classes) < 2:
            raise UserError(f"all samples of all sites in {path} are of class {classes[0]}: there are no two classes")
