"""The registry: every method by the name that people type."""

import difflib
import importlib
import inspect
import tomllib
from collections.abc import Iterable, Iterator, Mapping, MutableMapping, Sequence
from dataclasses import MISSING, Field, fields
from typing import TYPE_CHECKING, Any

from fedgraft.base import reference
from fedgraft.base.errors import UserError, unknown

if TYPE_CHECKING:
    from fedgraft.core.method import Method

_CLASSES = {
    # one model for all, and what to make of it
    "local": "local.Local",
    "fedavg": "fedavg.FedAvg",
    "fedavg-local": "fedavg_local.FedAvgLocal",
    "fedavg-ft": "fedavg_ft.FedAvgFT",
    "fedprox": "fedprox.FedProx",
    "fedprox-ft": "fedprox_ft.FedProxFT",
    "lp-ft": "lp_ft.LPFT",
    "scaffold": "scaffold.SCAFFOLD",
    # split models
    "fedper": "fedper.FedPer",
    "fedrep": "fedrep.FedRep",
    "fedbabu": "fedbabu.FedBABU",
    "lg-fedavg": "lg_fedavg.LGFedAvg",
    "fedas": "fedas.FedAS",
    "dbe": "dbe.DBE",
    # a global model and a personal twin
    "ditto": "ditto.Ditto",
    "pfedme": "pfedme.PFedMe",
    "apfl": "apfl.APFL",
    "fedphp": "fedphp.FedPHP",
    "fedala": "fedala.FedALA",
    "pfedamf": "pfedamf.PFedAMF",
    # mixed on the server
    "fedamp": "fedamp.FedAMP",
    "heurfedamp": "heurfedamp.HeurFedAMP",
    "pfedhn": "pfedhn.PFedHN",
    "pfedla": "pfedla.PFedLA",
    "fedpac": "fedpac.FedPAC",
    "fedgpa": "fedgpa.FedGPA",
    "fedapa": "fedapa.FedAPA",
    # many models to each client
    "fedfomo": "fedfomo.FedFomo",
    "apple": "apple.APPLE",
    # prototypes
    "fedproto": "fedproto.FedProto",
    "fedgh": "fedgh.FedGH",
    # different architectures
    "flexifed": "flexifed.FlexiFed",
    "fedppa": "fedppa.FedPPA",
    "fedppa+": "fedppa_plus.FedPPAPlus",
}
PLACES = {
    class_name: f"{__name__}.{module}" for module, class_name in (place.split(".") for place in _CLASSES.values())
}
"""The module of every class: what `fedgraft` offers by name."""


class Registry(MutableMapping[str, "type[Method]"]):
    """Methods by name. A name is known before its file, and torch with it, is imported: a typo is answered at once."""

    def __init__(self, places: Mapping[str, str]) -> None:
        self._found: dict[str, str | type[Method]] = dict(places)

    def __getitem__(self, name: str) -> "type[Method]":
        found = self._found[name]
        if isinstance(found, str):
            module, _, class_name = found.partition(".")
            found = self._found[name] = getattr(importlib.import_module(f"{__name__}.{module}"), class_name)
        assert not isinstance(found, str)
        return found

    def __setitem__(self, name: str, method: "type[Method]") -> None:
        self._found[name] = method

    def __delitem__(self, name: str) -> None:
        del self._found[name]

    def __contains__(self, name: object) -> bool:  # without the import that a look at the class would cost
        return name in self._found

    def __iter__(self) -> Iterator[str]:
        return iter(self._found)

    def __len__(self) -> int:
        return len(self._found)


METHODS = Registry(_CLASSES)


def make(name: str, /, **parameters: Any) -> "Method":
    """Make a method by name, or one of your own by reference (``./my.py:Mine``).

    A wrong name or parameter is answered with the nearest valid one.
    """
    if name not in METHODS and reference.is_reference(name):
        return _own(name, parameters)
    if name not in METHODS:
        raise unknown("method", name, METHODS)
    known = [parameter.name for parameter in fields(METHODS[name])]
    _insist_on_parameters(name, parameters, known)
    return METHODS[name](**parameters)


def _insist_on_parameters(name: str, parameters: Iterable[str], known: Sequence[str]) -> None:
    for parameter in parameters:
        if parameter not in known:
            near = difflib.get_close_matches(parameter, known, n=1, cutoff=0.5)
            hint = f"did you mean {near[0]!r}?" if near else f"it has: {', '.join(known) or 'none'}"
            raise UserError(f"{name} has no parameter {parameter!r}; {hint}")


def find(text: str) -> "type[Method]":
    """Return the class of a method by its name, or of one of the user's own by reference."""
    from fedgraft.core.method import Method

    if text in METHODS:
        return METHODS[text]
    if not reference.is_reference(text):
        raise unknown("method", text, METHODS)
    found = reference.resolve(text, "method")
    if not (isinstance(found, type) and issubclass(found, Method)):
        raise UserError(f"{text!r} is not a method: it has to be a class that derives from fedgraft.Method")
    return found


def _own(text: str, parameters: Mapping[str, Any]) -> "Method":
    """Make a method of the user's own."""
    found = find(text)
    known = inspect.signature(found).parameters
    usual = {p.name: _default(p) for p in fields(found)}  # a constructor of its own need not take what it inherits
    given = {
        key: value for key, value in parameters.items() if key in known or not _same(value, usual.get(key, MISSING))
    }
    _insist_on_parameters(text, given, list(known))
    for key, value in given.items():  # a file has lists only
        if isinstance(known[key].default, tuple) and isinstance(value, list):
            given[key] = tuple(value)
    try:
        return found(**given)
    except TypeError as error:
        raise UserError(f"the method {text!r} cannot be made: {error}") from None


def parse(text: str) -> "Method":
    """Make a method from its name, with settings behind a colon if wanted: ``fedapa:mu=0.3,clip=false``."""
    name, parameters = split(text)
    return make(name, **parameters)


def split(text: str) -> tuple[str, dict[str, Any]]:
    """Return the name of a method, or the reference to one, and its settings."""
    name, _, rest = text.partition(":")
    if name.strip() not in METHODS and (found := reference.split(text.strip())):
        name, rest = found
    return name.strip(), assignments(filter(None, rest.split(",")))


def findable(method: "Method") -> bool:
    """Whether ``make`` can find the method again: it is registered, or in a file or a module of the user's."""
    return METHODS.get(method.name) is type(method) or reference.reference(type(method)) is not None


def named(method: "Method") -> str:
    """Return the text by which ``make`` finds the method again; what cannot be found is called by its name."""
    own = METHODS.get(method.name) is not type(method)
    return (reference.reference(type(method)) if own else None) or _called(method)


def _called(method: "Method") -> str:
    """A method's name; a subclass that kept the name of a registered method is told from it by its class."""
    kept = METHODS.get(method.name) not in (None, type(method))
    return type(method).__name__ if kept else method.name


def assignments(pairs: Iterable[str]) -> dict[str, Any]:
    """Read ``name=value`` pairs; values are TOML's, or plain words."""
    values: dict[str, Any] = {}
    for pair in pairs:
        name, equals, text = (part.strip() for part in pair.partition("="))
        if not equals or not name:
            raise UserError(f"a hyper-parameter is set as name=value, not as {pair!r}")
        try:
            values[name] = tomllib.loads(f"value = {text}")["value"]
        except (ValueError, RecursionError):  # not TOML
            values[name] = {"True": True, "False": False}.get(text, text)
    return values


def label(method: "Method") -> str:
    """Return the method's name, with the settings that differ from its defaults: another method has another label."""
    usual = {p.name: _default(p) for p in fields(method)}
    values = {name: getattr(method, name) for name in usual} | vars(method)
    changed = [f"{name}={value}" for name, value in values.items() if not _same(value, usual.get(name, MISSING))]
    return _called(method) + (":" + ",".join(changed) if changed else "")


def _default(parameter: "Field[Any]") -> Any:
    return parameter.default if parameter.default_factory is MISSING else parameter.default_factory()


def _same(one: Any, two: Any) -> bool:
    """Whether two values are equal; arrays, which do not say so in one word, are told apart by what they print."""
    try:
        return bool(one == two)
    except (TypeError, ValueError, RuntimeError):
        return str(one) == str(two)


def describe(method: "type[Method]") -> dict[str, Any]:
    """Tell all about a method: what `fedgraft methods NAME` prints."""
    module = inspect.getmodule(method)
    _, _, readings = (module.__doc__ or "").partition("\nReadings\n") if module else ("", "", "")
    return {
        "name": method.name,
        "idea": method.idea,
        "citation": method.citation,
        "sends": method.sends,
        "averages": method.averages,
        "headline": method.headline,
        "reconstruction": method.reconstruction,
        "shows": dict(method.shows),
        "parameters": [
            {"name": p.name, "default": p.default, "range": _range(p.metadata), "doc": p.metadata.get("doc", "")}
            for p in fields(method)
        ],
        "readings": readings.strip("\n"),
    }


def _range(rules: Mapping[str, Any]) -> str:
    if rules.get("choices") is not None:
        return " | ".join(map(str, rules["choices"]))
    low, high, above = rules.get("low"), rules.get("high"), rules.get("above")
    if above is not None:
        return f"> {above:g}" + ("" if high is None else f", <= {high:g}")
    if low is not None and high is not None:
        return f"{low:g} .. {high:g}"
    return f">= {low:g}" if low is not None else ""
