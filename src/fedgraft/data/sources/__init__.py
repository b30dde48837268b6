"""Data that lie at sites, found by what is at a path; see docs/data.md."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedgraft.base.errors import UserError
from fedgraft.base.registry import Registry

if TYPE_CHECKING:
    from fedgraft.data.site import Site
    from fedgraft.data.sources.fitted import Fitted
    from fedgraft.data.sources.source import Reading, Source

SOURCES: "Registry[Any]" = Registry("source", __name__, group="fedgraft.sources", base=f"{__name__}.source:Source")


def find(path: Path, reading: "Reading") -> "Source":
    """Return the source that reads what lies at a path; settings that it does not know decide between two."""
    if not path.exists():
        raise UserError(f"there is nothing at {path}")
    fitting = [kind for kind in SOURCES.values() if kind.fits(path)]
    knowing = [kind for kind in fitting if reading.given.keys() <= kind.takes]
    if not fitting:
        raise UserError(
            f"{path} holds no data of sites: put one .npz, .csv, .parquet or .txt file for each site there, or a "
            "folder of images for each (docs/data.md)"
        )
    if len(fitting) > 1 and len(knowing) != 1:
        names = " and ".join(kind.name for kind in fitting)
        raise UserError(f"{path} holds {names}: keep one kind of data in a folder, or name the tables' --target")
    chosen: Source = (knowing or fitting)[0](path)
    reading.insist(chosen.takes, f"{path}, which holds {chosen.name}")
    return chosen


def beside(path: Path, chosen: "Source") -> list[str]:
    """Say what else lies at a path and is not read."""
    others = [kind.name for kind in SOURCES.values() if kind.fits(path) and not isinstance(chosen, kind)]
    return [f"{path} also holds {each}: they are not read, only the {chosen.name}" for each in others]


def unused(path: Path, reading: "Reading") -> list[str]:
    """Say which settings have no effect on one site's own data, and which files beside images are not read."""
    kind = next((kind for kind in SOURCES.values() if kind.serves(path)), None)
    if kind is None:
        return []
    idle = [f"{name} = {value!r} has no effect on {path.name}, which holds {kind.name}"
            for name, value in reading.given.items() if name not in kind.takes]  # fmt: skip
    if path.is_dir():
        strange = sorted(each.name for each in path.iterdir() if each.is_file() and not each.name.startswith("."))
        idle += [f"{each} in {path.name} is not read: images lie in folders of their classes" for each in strange[:3]]
    return idle


def read_own(
    path: Path,
    reading: "Reading",
    task: str | None = None,
    seed: int = 0,
    fitted: "Fitted | None" = None,
    site: str | None = None,
) -> "Site":
    """Read what lies at one site: an .npz file, a table, a text, or folders of images."""
    from fedgraft.data.datasets.dataset import ARRAYS, sound
    from fedgraft.data.datasets.formats import sentences
    from fedgraft.data.site import Site

    kinds = [kind for kind in SOURCES.values() if kind.serves(path)]
    with sentences(path):
        if not kinds:
            path.stat()
            raise UserError(f"{path} is no .npz file, table, text or folder of images")
        if fitted is not None and fitted.inputs and kinds[0].name in ("images", "texts"):
            if path.is_dir() and (tables := sorted(each for each in path.iterdir() if SOURCES["tables"].serves(each))):
                raise UserError(f"{path} is a folder, and one file is wanted: the site's table, such as {tables[0]}")
            raise UserError(f"{path} holds {kinds[0].name}, and the federation's sites have tables")
        held = kinds[0].own(path, reading, task, seed, fitted, site or path.stem)
        given = {name: getattr(held, name) for name in ARRAYS if getattr(held, name) is not None}
        return Site(**sound(given, path, task), name=None)
