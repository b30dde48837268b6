"""What a source is: data that lie at sites, in one form of the many that there are.

A source is one class in one file of this folder, found by what lies at a path. The same classes read for `run`,
`compare` and `inspect`, where all sites are at hand, and for `deploy`, where a site reads its own.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, ClassVar

from fedgraft.base.errors import UserError
from fedgraft.data.site import Site
from fedgraft.data.sources.fitted import Fitted

FEWEST = 20
"""Samples that a site needs before we split them: a test on three rows tells nothing."""


@dataclass(frozen=True)
class Reading:
    """How data at sites are read: those settings of a run, under their names, that say what is in the files."""

    target: str | None = None
    site_column: str | None = None
    split: str | None = None
    test_share: float = 0.25
    window: int | None = None
    ignore: tuple[str, ...] = ()
    categories: tuple[str, ...] = ()

    @property
    def given(self) -> dict[str, Any]:
        """The settings that are not as they would be anyway."""
        named = {field.name: getattr(self, field.name) for field in fields(self)}
        usual = {field.name: field.default for field in fields(self)}
        return {name: value for name, value in named.items() if value != usual[name]}

    def insist(self, takes: frozenset[str], what: str) -> None:
        """Refuse settings that would be of no effect."""
        for name, value in self.given.items():
            if name not in takes:
                raise UserError(f"{name} = {value!r} is of no effect on {what}: leave it out")


@dataclass(frozen=True, eq=False)
class Found:
    """What a source gave: the samples of every site, how they were prepared, and what there is to know of them."""

    sites: list[Site]
    fitted: Fitted | None = None
    task: str | None = None
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Source(ABC):
    """The data of all sites, at ``path``."""

    path: Path
    name: ClassVar[str]
    about: ClassVar[str]
    takes: ClassVar[frozenset[str]] = frozenset()
    """The settings of a :class:`Reading` that say something here."""

    @classmethod
    @abstractmethod
    def fits(cls, path: Path) -> bool:
        """Whether this is what lies at a path."""

    @abstractmethod
    def read(self, reading: Reading, task: str | None, seed: int, fitted: Fitted | None = None) -> Found:
        """Read all sites, prepared as an earlier federation's were if that is given, or say what is wrong."""

    @classmethod
    def serves(cls, path: Path) -> bool:
        """Whether a path holds one site's own data in this form."""
        return False

    @classmethod
    def own(cls, path: Path, reading: Reading, task: str | None, seed: int, fitted: Fitted | None, site: str) -> Site:
        """Read what lies at one site, as its federation has agreed to prepare it."""
        raise NotImplementedError

    def frames(self, reading: Reading) -> Mapping[str, Any] | None:
        """Return the table of each site, where there are tables."""
        return None


def stems(folder: Path, endings: frozenset[str]) -> list[Path]:
    """Return the files of a folder with one of these endings, in the order of their names."""
    return sorted(file for file in folder.iterdir() if file.suffix.lower() in endings and file.is_file())
