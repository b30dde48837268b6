"""Arrays: one .npz file for each site."""

from pathlib import Path
from typing import ClassVar

from fedgraft.data.datasets import read_npz
from fedgraft.data.datasets.dataset import sound
from fedgraft.data.site import Site
from fedgraft.data.sources.fitted import Fitted
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
        return Found([Site(**sound(read_npz(file), file, task), name=file.stem) for file in files])

    @classmethod
    def own(cls, path: Path, reading: Reading, task: str | None, seed: int, fitted: Fitted | None, site: str) -> Site:
        return Site(**sound(read_npz(path), path, task), name=None)
