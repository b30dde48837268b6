"""One registry for all that has a name: methods, models, partition schemes, datasets, optimizers, stages, trackers.

A thing is registered where it is defined: a class in a module of its room, whose body says ``name = "..."``. Names are
read off the files, so that a typo is answered before anything heavy is imported; a module is imported when one of its
things is asked for. Packages that are installed beside this one add things by entry points (``fedgraft.methods`` and so
on), and a thing of one's own needs no registration: ``package.module:Name`` or ``./file.py:Name`` names it.

One syntax serves all: ``name``; ``name:value`` for what it cannot be without (``step:30,0.1``), or for its only
parameter; ``name:key=value,...``; also behind a reference: ``./file.py:Name:key=value``.
"""

import dataclasses
import difflib
import importlib
import inspect
import re
import tomllib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Generic, TypeVar

from fedgraft.base.errors import UserError, unknown
from fedgraft.base.reference import is_reference, reference, resolve, split

T = TypeVar("T")
_CLASS = re.compile(r"^class (\w+)", re.MULTILINE)
_NAME = re.compile(r'^    name(?:: ClassVar\[str\])? = "([^"]+)"$', re.MULTILINE)
_REQUIRED = inspect.Parameter.empty
_COMMA = re.compile(r",(?![^\[]*\])")  # not those of a list


class Registry(Mapping[str, "type[T]"], Generic[T]):
    """The things of one kind by name; ``rooms`` are the modules and packages in which they are defined.

    ``base`` (``module:Class``) is what all of them derive from. Without one, a function that makes the thing will do.
    """

    def __init__(self, kind: str, *rooms: str, group: str | None = None, base: str | None = None) -> None:
        self.kind, self.rooms, self.group, self.base = kind, rooms, group, base
        self._added: dict[str, type[T]] = {}

    # ---- a mapping of names
    def __getitem__(self, name: str) -> "type[T]":
        if name in self._added:
            return self._added[name]
        if name in self.shipped:
            module, _, thing = self.shipped[name].partition(":")
            return getattr(importlib.import_module(module), thing)  # type: ignore[no-any-return]
        if name in self._installed:
            return self._loaded(name)
        raise KeyError(name)

    def __iter__(self) -> Iterator[str]:
        return iter(dict.fromkeys((*self.shipped, *self._installed, *self._added)))

    def __len__(self) -> int:
        return len(list(iter(self)))

    def __contains__(self, name: object) -> bool:  # without the import that a look at the class would cost
        return name in self.shipped or name in self._added or name in self._installed

    def add(self, thing: "type[T]") -> "type[T]":
        """Register a class of this session by its ``name``; a decorator."""
        self._added[thing.name] = thing  # type: ignore[attr-defined]
        return thing

    @cached_property
    def shipped(self) -> dict[str, str]:
        """Where each thing of the rooms is defined (``module:Class``), read off the files."""
        found: dict[str, str] = {}
        for room in self.rooms:
            spec = find_spec(room)
            assert spec is not None
            assert spec.origin is not None
            home, is_package = Path(spec.origin), spec.submodule_search_locations is not None
            for file in sorted(home.parent.glob("[!_]*.py")) if is_package else [home]:
                module = f"{room}.{file.stem}" if is_package else room
                found |= {name: f"{module}:{thing}" for name, thing in _defined(file.read_text("utf-8"))}
        return found

    @property
    def classes(self) -> dict[str, str]:
        """The module of every class of the rooms: what a package offers by name."""
        return {thing: module for module, _, thing in (place.partition(":") for place in self.shipped.values())}

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
    def split(self, text: str) -> tuple[str, str]:
        """Part a name, or a reference with a colon of its own, from the parameters behind it."""
        name, _, rest = text.strip().partition(":")
        if name.strip() not in self and (found := split(text.strip())):
            name, rest = found
        return name.strip(), rest

    def insist(self, text: str) -> None:
        """Refuse a name that stands for nothing, with the nearest one that there is, and import nothing for it."""
        name, _ = self.split(text)
        if name not in self and not is_reference(name):
            raise self._unknown(name)

    def find(self, text: str) -> "type[T]":
        """Return the class (or the function) that a name or a reference stands for."""
        if text not in self and not is_reference(text):
            raise self._unknown(text)
        found: Any = self[text] if text in self else resolve(text, self.kind)
        if self.base is None:
            if not callable(found):
                raise UserError(f"{text!r} is neither a class nor a function, so it is no {self.kind}")
            return found  # type: ignore[no-any-return]
        module, _, base = self.base.partition(":")
        if not (isinstance(found, type) and issubclass(found, getattr(importlib.import_module(module), base))):
            kind = f"{'an' if self.kind[0] in 'aeiou' else 'a'} {self.kind}"
            raise UserError(f"{text!r} is not {kind}: it has to be a class that derives from fedgraft.{base}")
        return found

    def _unknown(self, name: str) -> UserError:
        if name.endswith(".py"):
            return UserError(f"{name!r} is a file: say which {self.kind} in it, such as ./{Path(name).name}:Mine")
        return unknown(self.kind, name, self)

    def read(self, text: str) -> tuple[str, dict[str, Any]]:
        """Return the name, or the reference, in a text and its parameters by their names."""
        name, rest = self.split(text)
        bare, values = _parameters(rest)
        if bare:
            kind = self.find(name)
            takes = _takes_bare(kind)
            if len(bare) > len(takes):
                what = f"more than {len(takes)} bare values" if takes else f"a bare {bare[0]!r}"
                raise UserError(f"{name} does not take {what}: write {_written(name, kind, takes)}")
            for key, value in zip(takes, bare, strict=False):
                if key in values:
                    raise UserError(f"{name} was given {key} twice")
                values[key] = value
        return name, values

    def make(self, text: str, /, **more: Any) -> T:
        """Make the thing that a text describes; ``more`` are parameters besides those in the text."""
        kind, given = self.prepared(text, **more)
        try:
            return kind(**given)
        except TypeError as error:
            raise UserError(f"the {self.kind} {text!r} cannot be made: {error}") from error

    def prepared(self, text: str, /, **more: Any) -> "tuple[type[T], dict[str, Any]]":
        """Find what a text describes, and all that it is made of; it has these parameters, and lacks none."""
        name, values = self.read(text)
        kind = self.find(name)
        known, usual = _defaults(kind), _usual(kind)
        # a constructor of its own need not take what it inherits
        given = {
            key: value
            for key, value in (values | more).items()
            if key in known or not _same(value, usual.get(key, dataclasses.MISSING))
        }
        _insist_on_parameters(name, given, list(known))
        if missing := [key for key, default in known.items() if default is _REQUIRED and key not in given]:
            raise UserError(f"{name} needs {' and '.join(missing)}: write {_written(name, kind, missing)}")
        for key, value in given.items():  # a file has lists only
            if isinstance(known[key], tuple) and isinstance(value, list):
                given[key] = tuple(value)
        return kind, given

    # ---- what a thing is called, and found again by
    def named(self, thing: T) -> str:
        """Return the text by which the class of a thing is found again; what cannot be found is called by its name."""
        own = self.get(_name(thing)) is not type(thing)
        return (reference(type(thing)) if own else None) or self._called(thing)

    def findable(self, thing: T) -> bool:
        """Whether a thing can be found again: it is registered, or in a file or a module of the user's."""
        return self.get(_name(thing)) is type(thing) or reference(type(thing)) is not None

    def label(self, thing: T) -> str:
        """Return a thing's name, with the parameters that differ from usual: what is different has another label."""
        usual = _usual(type(thing))
        values = {name: getattr(thing, name) for name in usual} | vars(thing)
        changed = [
            f"{name}={value}"
            for name, value in values.items()
            if not _same(value, usual.get(name, dataclasses.MISSING))
        ]
        return self._called(thing) + (":" + ",".join(changed) if changed else "")

    def _called(self, thing: T) -> str:
        """A thing's name; a subclass that kept the name of a registered one is told from it by its class."""
        kept = self.get(_name(thing)) not in (None, type(thing))
        return type(thing).__name__ if kept else _name(thing)


def _defined(source: str) -> Iterable[tuple[str, str]]:
    """The classes of a file that have a name, in their order."""
    pieces = _CLASS.split(source)[1:]
    for thing, body in zip(pieces[::2], pieces[1::2], strict=True):
        if found := _NAME.search(body):
            yield found[1], thing


def _defaults(kind: type[Any]) -> dict[str, Any]:
    """The parameters of a class or a function by name, with their defaults."""
    several = inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD
    found = inspect.signature(kind).parameters.values()
    return {each.name: each.default for each in found if each.kind not in several}


def _name(thing: object) -> str:
    return str(getattr(thing, "name", type(thing).__qualname__))


def _usual(kind: type[Any]) -> dict[str, Any]:
    """The defaults of a dataclass's fields."""
    if not dataclasses.is_dataclass(kind):
        return {}
    return {
        field.name: field.default if field.default_factory is dataclasses.MISSING else field.default_factory()
        for field in dataclasses.fields(kind)
    }


def _same(one: Any, two: Any) -> bool:
    """Whether two values are equal; arrays, which do not say so in one word, are told apart by what they print."""
    try:
        return bool(one == two)
    except (TypeError, ValueError, RuntimeError):
        return str(one) == str(two)


def _insist_on_parameters(name: str, given: Iterable[str], known: list[str]) -> None:
    for parameter in given:
        if parameter not in known:
            near = difflib.get_close_matches(parameter, known, n=1, cutoff=0.5)
            hint = f"did you mean {near[0]!r}?" if near else f"it has: {', '.join(known) or 'none'}"
            raise UserError(f"{name} has no parameter {parameter!r}; {hint}")


def _takes_bare(kind: type[Any]) -> list[str]:
    """Which parameters bare values are for: those without a default, or the only one that the thing itself has."""
    known = _defaults(kind)
    if required := [name for name, default in known.items() if default is _REQUIRED]:
        return required
    own = [name for name in known if isinstance(kind, type) and name in inspect.get_annotations(kind)] or list(known)
    return own if len(own) == 1 else []


def _written(name: str, kind: type[Any], parameters: Sequence[str]) -> str:
    """How a thing is written, as it says itself, or with these parameters."""
    syntax = getattr(kind, "syntax", None)
    values = ",".join(f"{each}=VALUE" for each in parameters or _defaults(kind))
    return syntax if isinstance(syntax, str) else f"{name}:{values}" if values else name


def _parameters(text: str) -> tuple[list[Any], dict[str, Any]]:
    """Read the bare values and the ``name=value`` pairs behind a name."""
    words = list(filter(None, (word.strip() for word in _COMMA.split(text))))
    bare = [word for word in words if "=" not in word]
    return [_value(word) for word in bare], assignments(word for word in words if "=" in word)


def assignments(pairs: Iterable[str]) -> dict[str, Any]:
    """Read ``name=value`` pairs; values are TOML's numbers, truths, texts and lists, or plain words."""
    values: dict[str, Any] = {}
    for pair in pairs:
        name, equals, text = (part.strip() for part in pair.partition("="))
        if not equals or not name:
            raise UserError(f"a parameter is set as name=value, not as {pair!r}")
        if name in values:
            raise UserError(f"{name} was given twice")
        values[name] = _value(text)
    return values


def _value(text: str) -> Any:
    try:
        value = tomllib.loads(f"value = {text}")["value"]
    except (ValueError, RecursionError):  # not TOML
        return {"True": True, "False": False}.get(text, text)
    return value if isinstance(value, bool | int | float | str | list) else text  # 2000-10-10 is no date here
