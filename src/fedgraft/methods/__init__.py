"""The registry: every method by the name that people type."""

import difflib
import importlib
import inspect
import tomllib
from collections.abc import Iterable, Iterator, Mapping, MutableMapping
from dataclasses import fields
from typing import TYPE_CHECKING, Any

from fedgraft.core.errors import UserError, unknown

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
    """Make a method by name; a wrong name or parameter is answered with the nearest valid one."""
    if name not in METHODS:
        raise unknown("method", name, METHODS)
    known = [parameter.name for parameter in fields(METHODS[name])]
    for parameter in parameters:
        if parameter not in known:
            near = difflib.get_close_matches(parameter, known, n=1, cutoff=0.5)
            hint = f"did you mean {near[0]!r}?" if near else f"it has: {', '.join(known) or 'none'}"
            raise UserError(f"{name} has no parameter {parameter!r}; {hint}")
    return METHODS[name](**parameters)


def parse(text: str) -> "Method":
    """Make a method from its name, with settings behind a colon if wanted: ``fedapa:mu=0.3,clip=false``."""
    name, parameters = split(text)
    return make(name, **parameters)


def split(text: str) -> tuple[str, dict[str, Any]]:
    """Return the name of a method and its settings."""
    name, _, rest = text.partition(":")
    return name.strip(), assignments(filter(None, rest.split(",")))


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
    """Return the method's name, with the settings that differ from its defaults."""
    changed = [f"{p.name}={getattr(method, p.name)}" for p in fields(method) if getattr(method, p.name) != p.default]
    return method.name + (":" + ",".join(changed) if changed else "")


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
