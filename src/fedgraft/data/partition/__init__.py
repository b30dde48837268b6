"""Schemes that share a dataset out among clients, by name; see docs/partitions.md."""

import dataclasses
import re
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple, get_type_hints

from fedgraft.base.errors import UserError, unknown

from .dirichlet import Dirichlet
from .dirichlet_balanced import DirichletBalanced
from .dirichlet_client import DirichletClient
from .dominant import Choices, Dominant, Remainder
from .dominant_settings import Dominant1, Dominant1Star, Dominant2, Dominant3
from .iid import IID
from .partition import Partition
from .pathological import Pathological
from .pathological_random import PathologicalRandom
from .picture import draw
from .practical import Practical
from .scheme import Scheme

__all__ = [
    "IID",
    "SCHEMES",
    "Dirichlet",
    "DirichletBalanced",
    "DirichletClient",
    "Dominant",
    "Dominant1",
    "Dominant1Star",
    "Dominant2",
    "Dominant3",
    "Listed",
    "Partition",
    "Pathological",
    "PathologicalRandom",
    "Practical",
    "Scheme",
    "draw",
    "listing",
    "parse",
]

SCHEMES: Mapping[str, type[Scheme]] = MappingProxyType(
    {
        scheme.name: scheme
        for scheme in (
            Dirichlet,
            Pathological,
            PathologicalRandom,
            Practical,
            DirichletBalanced,
            Dominant,
            Dominant1,
            Dominant2,
            Dominant3,
            Dominant1Star,
            DirichletClient,
            IID,
        )
    }
)


class Listed(NamedTuple):
    """One line of the list of schemes."""

    name: str
    syntax: str
    about: str
    paper: str
    python: str


def listing() -> tuple[Listed, ...]:
    """List all schemes, for people and for programs."""
    return tuple(Listed(s.name, s.syntax, s.about, s.paper, s.__name__) for s in SCHEMES.values())


def parse(text: str) -> Scheme:
    """Read a scheme as it is written on the command line, such as ``dirichlet:0.1``."""
    name, _, rest = text.strip().partition(":")
    if name not in SCHEMES:
        raise unknown("partition scheme", name, SCHEMES)
    kind = SCHEMES[name]
    readers = _readers(kind)
    required = kind.required()
    values: dict[str, Any] = {}
    for word in filter(None, (part.strip() for part in rest.split(","))):
        key, equals, value = (part.strip() for part in word.partition("="))
        if not equals:
            if len(required) != 1:
                raise UserError(f"{name} does not take a bare {word!r}: write {kind.syntax}")
            key, value = required[0], word
        if key not in readers:
            raise (
                unknown(f"parameter of {name}", key, readers)
                if readers
                else UserError(f"{name} takes no parameters, but {word!r} was given")
            )
        if key in values:
            raise UserError(f"{name} was given {key} twice")
        values[key] = readers[key](key, value)
    missing = [key for key in required if key not in values]
    if missing:
        raise UserError(f"{name} needs {' and '.join(missing)}: write {kind.syntax}")
    return kind(**values)


def _readers(kind: type[Scheme]) -> dict[str, Callable[[str, str], Any]]:
    hints = get_type_hints(kind)
    return {field.name: _READERS[hints[field.name]] for field in dataclasses.fields(kind)}


def _read_number(name: str, text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise UserError(f"{name} must be a number, not {text!r}") from None


def _read_whole(name: str, text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise UserError(f"{name} must be a whole number, not {text!r}") from None


def _read_choices(name: str, text: str) -> tuple[int, ...]:
    # The bar of the papers is a pipe to every shell, so the slash is the spelling we show.
    if ".." not in text:
        return tuple(_read_whole(name, word.strip()) for word in re.split(r"[/|]", text))
    first, last, *step = (_read_whole(name, word) for word in text.split(".."))
    if len(step) > 1 or any(s < 1 for s in step) or last < first:
        raise UserError(f"{name} must be a range such as 3..7 or 30..70..5, not {text!r}")
    return tuple(range(first, last + 1, *step))


def _read_word(name: str, text: str) -> str:
    return text


_READERS: dict[Any, Callable[[str, str], Any]] = {
    float: _read_number,
    int: _read_whole,
    int | None: _read_whole,
    Choices: _read_choices,
    Choices | None: _read_choices,
    Remainder: _read_word,
}
