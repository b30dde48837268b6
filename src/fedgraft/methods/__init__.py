"""The registry: every method by the name that people type."""

import difflib
import inspect
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import MISSING, Field, fields
from typing import Any

from fedgraft.core import reference
from fedgraft.core.errors import UserError, unknown
from fedgraft.core.method import Method
from fedgraft.methods.apfl import APFL
from fedgraft.methods.apple import APPLE
from fedgraft.methods.dbe import DBE
from fedgraft.methods.ditto import Ditto
from fedgraft.methods.fedala import FedALA
from fedgraft.methods.fedamp import FedAMP
from fedgraft.methods.fedapa import FedAPA
from fedgraft.methods.fedas import FedAS
from fedgraft.methods.fedavg import FedAvg
from fedgraft.methods.fedavg_ft import FedAvgFT
from fedgraft.methods.fedavg_local import FedAvgLocal
from fedgraft.methods.fedbabu import FedBABU
from fedgraft.methods.fedfomo import FedFomo
from fedgraft.methods.fedgh import FedGH
from fedgraft.methods.fedgpa import FedGPA
from fedgraft.methods.fedpac import FedPAC
from fedgraft.methods.fedper import FedPer
from fedgraft.methods.fedphp import FedPHP
from fedgraft.methods.fedppa import FedPPA
from fedgraft.methods.fedppa_plus import FedPPAPlus
from fedgraft.methods.fedproto import FedProto
from fedgraft.methods.fedprox import FedProx
from fedgraft.methods.fedprox_ft import FedProxFT
from fedgraft.methods.fedrep import FedRep
from fedgraft.methods.flexifed import FlexiFed
from fedgraft.methods.heurfedamp import HeurFedAMP
from fedgraft.methods.lg_fedavg import LGFedAvg
from fedgraft.methods.local import Local
from fedgraft.methods.pfedamf import PFedAMF
from fedgraft.methods.pfedhn import PFedHN
from fedgraft.methods.pfedla import PFedLA
from fedgraft.methods.pfedme import PFedMe
from fedgraft.methods.scaffold import SCAFFOLD

_CLASSES: tuple[type[Method], ...] = (
    # one model for all, and what to make of it
    Local, FedAvg, FedAvgLocal, FedAvgFT, FedProx, FedProxFT, SCAFFOLD,
    # split models
    FedPer, FedRep, FedBABU, LGFedAvg, FedAS, DBE,
    # a global model and a personal twin
    Ditto, PFedMe, APFL, FedPHP, FedALA, PFedAMF,
    # mixed on the server
    FedAMP, HeurFedAMP, PFedHN, PFedLA, FedPAC, FedGPA, FedAPA,
    # many models to each client
    FedFomo, APPLE,
    # prototypes
    FedProto, FedGH,
    # different architectures
    FlexiFed, FedPPA, FedPPAPlus,
)  # fmt: skip
METHODS: dict[str, type[Method]] = {method.name: method for method in _CLASSES}


def make(name: str, /, **parameters: Any) -> Method:
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


def _own(text: str, parameters: Mapping[str, Any]) -> Method:
    """Make a method of the user's own."""
    found = reference.resolve(text, "method")
    if not (isinstance(found, type) and issubclass(found, Method)):
        raise UserError(f"{text!r} is not a method: it has to be a class that derives from fedgraft.Method")
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


def parse(text: str) -> Method:
    """Make a method from its name, with settings behind a colon if wanted: ``fedapa:mu=0.3,clip=false``."""
    name, parameters = split(text)
    return make(name, **parameters)


def split(text: str) -> tuple[str, dict[str, Any]]:
    """Return the name of a method, or the reference to one, and its settings."""
    name, _, rest = text.partition(":")
    if name.strip() not in METHODS and (found := reference.split(text.strip())):
        name, rest = found
    return name.strip(), assignments(filter(None, rest.split(",")))


def findable(method: Method) -> bool:
    """Whether ``make`` can find the method again: it is registered, or in a file or a module of the user's."""
    return METHODS.get(method.name) is type(method) or reference.reference(type(method)) is not None


def named(method: Method) -> str:
    """Return the text by which ``make`` finds the method again; what cannot be found is called by its name."""
    own = METHODS.get(method.name) is not type(method)
    return (reference.reference(type(method)) if own else None) or _called(method)


def _called(method: Method) -> str:
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


def label(method: Method) -> str:
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


def describe(method: type[Method]) -> dict[str, Any]:
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
