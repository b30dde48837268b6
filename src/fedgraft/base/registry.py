"""One registry for everything that has a name: methods, partition schemes, optimizers, metrics, stages, trackers.

A thing is registered where it is defined: a class in a module of its room, whose body says ``name = "..."``. Names are
read off the files, so that a typo is answered before anything heavy is imported; a module is imported when one of its
things is asked for. Packages that are installed beside this one add things by entry points (``fedgraft.methods`` and so
on), and a thing of one's own needs no registration: ``package.module:Name`` or ``./file.py:Name`` names it.

One syntax serves all: ``name``, ``name:value`` for the one parameter without which it cannot be, and
``name:key=value,...``, also behind a reference: ``./file.py:Name:key=value``.
"""

import dataclasses
import difflib
import importlib
import inspect
import re
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from functools import cached_property
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Generic, TypeVar

from fedgraft.base.errors import UserError, unknown
from fedgraft.base.reference import is_reference, reference, resolve, split

T = TypeVar("T")
_CLASS = re.compile(r"^class (\w+)", re.MULTILINE)
_NAME = re.compile(r'^    name(?:: ClassVar\[str\])? = "([^"]+)"$', re.MULTILINE)


class Registry(Mapping[str, "type[T]"], Generic[T]):
    """The things of one kind by name; ``rooms`` are the modules and packages in which they are defined."""

    def __init__(self, kind: str, *rooms: str, group: str | None = None) -> None:
        self.kind, self.rooms, self.group = kind, rooms, group
        self._added: dict[str, type[T]] = {}

    # ---- a mapping of names
    def __getitem__(self, name: str) -> "type[T]":
        if name in self._added:
            return self._added[name]
        if name in self._shipped:
            module, _, thing = self._shipped[name].partition(":")
            return getattr(importlib.import_module(module), thing)  # type: ignore[no-any-return]
        if name in self._installed:
            return self._loaded(name)
        raise KeyError(name)

    def __iter__(self) -> Iterator[str]:
        return iter(dict.fromkeys((*self._shipped, *self._installed, *self._added)))

    def __len__(self) -> int:
        return len(list(iter(self)))

    def __contains__(self, name: object) -> bool:  # without the import that a look at the class would cost
        return name in self._shipped or name in self._added or name in self._installed

    def add(self, thing: "type[T]") -> "type[T]":
        """Register a class of this session by its ``name``; a decorator."""
        self._added[thing.name] = thing  # type: ignore[attr-defined]
        return thing

    @cached_property
    def _shipped(self) -> dict[str, str]:
        """Where each thing of the rooms is defined, read off the files."""
        found: dict[str, str] = {}
        for room in self.rooms:
            spec = find_spec(room)
            assert spec is not None
            assert spec.origin is not None
            home, is_package = Path(spec.origin), spec.submodule_search_locations is not None
            for file in sorted(home.parent.glob("*.py")) if is_package else [home]:
                module = f"{room}.{file.stem}" if is_package else room
                found |= {name: f"{module}:{thing}" for name, thing in _defined(file.read_text("utf-8"))}
        return found

    @cached_property
    def _installed(self) -> dict[str, Any]:
        from importlib.metadata import entry_points  # help does not wait for it

        return {point.name: point for point in entry_points(group=self.group)} if self.group else {}

    def _loaded(self, name: str) -> "type[T]":
        try:
            return self._installed[name].load()  # type: ignore[no-any-return]
        except Exception as error:
            text = f"{type(error).__name__}: {error}".partition("\n")[0]
            raise UserError(f"the {self.kind} {name!r} of an installed package cannot be imported: {text}") from error

    # ---- by the text that people type
    def find(self, text: str) -> "type[T]":
        """Return the class that a name or a reference stands for."""
        if text in self:
            return self[text]
        if is_reference(text):
            found = resolve(text, self.kind)
            if not isinstance(found, type):
                raise UserError(f"{text!r} is not a class, so it is no {self.kind}")
            return found
        raise unknown(self.kind, text, self)

    def make(self, text: str, **more: Any) -> T:
        """Make the thing that a text describes; ``more`` are parameters besides those in the text."""
        kind, values = self.asked(text, *more)
        return kind(**values, **more)

    def asked(self, text: str, *more: str) -> "tuple[type[T], dict[str, Any]]":
        """Return the class that a text describes and the parameters in it, if with ``more`` they are those it takes."""
        name, values = self.split(text)
        kind = self.find(name)
        if not dataclasses.is_dataclass(kind):
            raise UserError(f"{name!r} is no {self.kind}: it is not a dataclass")
        known = [field.name for field in dataclasses.fields(kind) if field.init]
        if None in values:
            values = {_bare(self.kind, name, kind): values[None], **{k: v for k, v in values.items() if k is not None}}
        for parameter in (*values, *more):
            if parameter not in known:
                near = difflib.get_close_matches(str(parameter), known, n=1, cutoff=0.5)
                hint = f"did you mean {near[0]!r}?" if near else f"it has: {', '.join(known) or 'none'}"
                raise UserError(f"{name} has no parameter {parameter!r}; {hint}")
        if twice := [parameter for parameter in more if parameter in values]:
            raise UserError(f"{twice[0]} of the {self.kind} {name} is given by the run, not behind its name")
        if lacking := [field for field in _required(kind) if field not in {*values, *more}]:
            raise UserError(f"{name} needs {', '.join(lacking)}: write {name}:{lacking[0]}=VALUE")
        return kind, {str(key): value for key, value in values.items()}

    def split(self, text: str) -> tuple[str, dict[str | None, Any]]:
        """Split ``name:key=value,...``; a bare value has the key None. A reference has a colon of its own."""
        name, _, rest = text.strip().partition(":")
        if name not in self and (found := split(text.strip())):
            name, rest = found
        return name.strip(), assignments(rest.split(","))

    def settled(self, text: str) -> str:
        """Return the text by which the same is found from any folder: a reference to a file names its whole path."""
        name, _ = self.split(text)
        if name in self or not is_reference(name):
            return text
        return (reference(self.find(name)) or name) + text.strip().removeprefix(name)

    def text(self, thing: T) -> str:
        """Return the text by which a thing is found again: its name or reference, and how it differs from usual."""
        kind = type(thing)
        known = str(getattr(kind, "name", kind.__qualname__))
        name = known if known in self and self[known] is kind else reference(kind) or known
        return name + (f":{changed}" if (changed := changes(thing)) else "")


def _defined(source: str) -> Iterable[tuple[str, str]]:
    """The classes of a file that have a name, in their order."""
    pieces = _CLASS.split(source)[1:]
    for thing, body in zip(pieces[::2], pieces[1::2], strict=True):
        if found := _NAME.search(body):
            yield found[1], thing


def changes(thing: Any) -> str:
    """Return the fields of a dataclass that differ from their defaults, as they are typed."""
    different = [f for f in dataclasses.fields(thing) if f.init and getattr(thing, f.name) != f.default]
    return ",".join(f"{field.name}={getattr(thing, field.name)}" for field in different)


def assignments(pairs: Iterable[str]) -> dict[str | None, Any]:
    """Read ``name=value`` pairs, or one bare value; values are TOML's, or plain words."""
    values: dict[str | None, Any] = {}
    for pair in filter(None, (pair.strip() for pair in pairs)):
        name, equals, text = (part.strip() for part in pair.partition("="))
        key = name if equals else None
        if equals and not name:
            raise UserError(f"a parameter is set as name=value, not as {pair!r}")
        if key in values:
            raise UserError(f"{key} was given twice" if key else f"there are two bare values, the second is {pair!r}")
        values[key] = _value(text if equals else name)
    return values


def _value(text: str) -> Any:
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except (ValueError, RecursionError):  # not TOML
        return {"True": True, "False": False}.get(text, text)


def _required(thing: type[Any]) -> list[str]:
    """The parameters without which a thing cannot be made."""
    missing = dataclasses.MISSING
    fields = [field for field in dataclasses.fields(thing) if field.init]
    return [field.name for field in fields if field.default is missing and field.default_factory is missing]


def _bare(kind: str, name: str, thing: type[Any]) -> str:
    """Which parameter a bare value is for: the only one without a default, or the only one there is."""
    fields = [field for field in dataclasses.fields(thing) if field.init]
    required = _required(thing)
    own = [field.name for field in fields if field.name in inspect.get_annotations(thing)]
    chosen = required if len(required) == 1 else own
    if len(chosen) != 1:
        raise UserError(f"{name} does not take a bare value: write {kind} parameters as name=value")
    return chosen[0]
