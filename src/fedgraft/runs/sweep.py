"""Methods under several settings: which values are tried, and what came out under each."""

import itertools
import re
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import RenderableType

from fedgraft.base import characters
from fedgraft.base.errors import UserError, unknown
from fedgraft.base.registry import assignments
from fedgraft.core.method import Method
from fedgraft.core.settings import Training
from fedgraft.methods import METHODS
from fedgraft.runs.comparison import Comparison, Reading
from fedgraft.runs.config import AT, MACHINE, At, RunConfig, configure

_SWEPT = [
    name
    for name in (*RunConfig.model_fields, *Training.model_fields)
    if name not in MACHINE | {"method", "params", "seed", "training"}
]
"""Settings of a run that may have several values."""


@dataclass(frozen=True)
class Grid:
    """Values to be tried of settings (``lr``) and of hyper-parameters (``fedapa.mu``)."""

    values: Mapping[str, tuple[Any, ...]]

    @classmethod
    def of(cls, over: Mapping[str, Sequence[Any]]) -> "Grid":
        """Check what somebody wants to try."""
        for name, values in over.items():
            if isinstance(values, str) or not isinstance(values, Sequence) or not values:
                raise UserError(f"a sweep needs the values of {name}, such as [0.01, 0.1], not {values!r}")
            if len(set(map(str, values))) < len(values):
                raise UserError(f"a sweep over {name} has a value twice: {', '.join(map(str, values))}")
            if "." not in name and name not in _SWEPT:
                raise unknown("setting that can be swept", name, _SWEPT)
        return cls({name: tuple(values) for name, values in over.items()})

    @classmethod
    def typed(cls, texts: Iterable[str]) -> "Grid":
        """Read what was typed: ``lr=0.01,0.1``, ``fedapa.mu=0.3,0.5``."""
        over: dict[str, Sequence[Any]] = {}
        for text in texts:
            name, equals, values = (part.strip() for part in text.partition("="))
            if not equals or not name or not values:
                raise UserError(f"a sweep is written name=value,value, such as lr=0.01,0.1, not {text!r}")
            name = name if "." in name else name.replace("-", "_")
            if name in over:
                raise UserError(f"a sweep over {name} was given twice")
            over[name] = _listed(values)
        return cls.of(over)

    def settings(self, config: RunConfig) -> dict[str, RunConfig]:
        """The configuration with every combination of the values of settings, by their names."""
        names = [name for name in self.values if "." not in name]
        found: dict[str, RunConfig] = {}
        for values in itertools.product(*(self.values[name] for name in names)):
            chosen = dict(zip(names, values, strict=True))
            found[",".join(f"{name}={_word(value)}" for name, value in chosen.items())] = configure(config, chosen)
        return found

    def variants(self, members: Mapping[str, Method]) -> dict[str, Method]:
        """The methods with every combination of the values of their hyper-parameters, by their labels."""
        swept: dict[str, dict[str, tuple[Any, ...]]] = {}
        for name, values in self.values.items():
            method, dot, parameter = name.rpartition(".")
            if dot:
                swept.setdefault(method, {})[parameter] = values
        names = {method.name for method in members.values()}
        if strange := sorted(swept.keys() - names):
            what = f"{strange[0]}.{next(iter(swept[strange[0]]))}"
            raise UserError(f"a sweep over {what} needs {strange[0]} among the methods that are compared")
        found: dict[str, Method] = {}
        for member in members.values():
            for made in _combined(member, swept.get(member.name, {})):
                found.setdefault(METHODS.label(made), made)
        return found


def _combined(method: Method, values: Mapping[str, Sequence[Any]]) -> Iterable[Method]:
    for chosen in itertools.product(*values.values()):
        changed = dict(zip(values, chosen, strict=True))
        yield METHODS.make(METHODS.named(method), **{**method.parameters(), **changed}) if changed else method


def _listed(text: str) -> list[Any]:
    """Values as TOML has them, or plain words between commas; one with a comma of its own is written in quotes."""
    try:
        found: list[Any] = tomllib.loads(f"values = [{text}]")["values"]
    except tomllib.TOMLDecodeError:
        found = [assignments([f"value={word}"])["value"] for word in text.split(",") if word.strip()]
    return found


def _word(value: Any) -> str:
    """A value in the name of a folder."""
    return re.sub(r"[^\w.+=-]+", "", str(value)) or "none"


@dataclass(frozen=True, eq=False, repr=False)
class Sweep:
    """The comparisons of a sweep by their settings; one, without a name, where no setting was swept."""

    comparisons: Mapping[str, Comparison[Any]]

    def __repr__(self) -> str:
        return f"Sweep({'; '.join(name or 'one setting' for name in self.comparisons)})"

    def __str__(self) -> str:
        return characters.as_text(self._picture())

    def _repr_html_(self) -> str:
        return characters.as_html(self._picture())

    def _picture(self) -> RenderableType:
        from fedgraft.report.sweep import view

        return view(self)

    def report(self, path: str | Path, at: At = AT[0], metric: str | None = None) -> Path:
        """Write everything into one HTML file."""
        from fedgraft.report.page import write

        return write(Reading(list(self.comparisons.values())), Path(path), at, metric)

    def to_json(self, at: At = AT[0]) -> dict[str, Any]:
        """The tables of all settings, for programs."""
        return {name: each.to_json(at) for name, each in self.comparisons.items()}
