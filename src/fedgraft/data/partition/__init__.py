"""Schemes that share a dataset out among clients, by name; see docs/partitions.md.

Names are loaded when they are first used: a misspelt scheme does not wait for torch.
"""

import importlib
from typing import TYPE_CHECKING, Any, NamedTuple

from fedgraft.base.registry import Registry

if TYPE_CHECKING:
    from fedgraft.data.partition.scheme import Scheme

SCHEMES: "Registry[Scheme]" = Registry(
    "partition scheme", __name__, group="fedgraft.partitions", base=f"{__name__}.scheme:Scheme"
)
OWN = "own"
"""The partition of data that was never split: it lies at its sites."""
_PLACES = {"Partition": f"{__name__}.partition", "Scheme": f"{__name__}.scheme", "draw": f"{__name__}.picture"}


def steady(partition: str) -> bool:
    """Whether client 3 of one seed is client 3 of another: a site, or a scheme's own source of samples."""
    name, _ = SCHEMES.split(partition)
    return partition == OWN or (name in SCHEMES and bool(getattr(SCHEMES[name], "steady", False)))


class Listed(NamedTuple):
    """One line of the list of schemes."""

    name: str
    syntax: str
    about: str
    paper: str
    python: str


def listing() -> tuple[Listed, ...]:
    """List all schemes, for people and for programs."""
    return tuple(
        Listed(name, getattr(s, "syntax", name), getattr(s, "about", ""), getattr(s, "paper", ""), s.__name__)
        for name, s in SCHEMES.items()
    )


def __getattr__(name: str) -> Any:
    place = _PLACES.get(name) or SCHEMES.classes.get(name)
    if place is None:
        raise AttributeError(f"{__name__} has no {name!r}")
    return getattr(importlib.import_module(place), name)
