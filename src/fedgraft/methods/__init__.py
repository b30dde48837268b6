"""The registry: every method by the name that people type."""

import difflib
import inspect
from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from fedgraft.core.errors import UserError, unknown
from fedgraft.core.method import Method
from fedgraft.methods.fedapa import FedAPA
from fedgraft.methods.fedavg import FedAvg
from fedgraft.methods.fedper import FedPer
from fedgraft.methods.fedprox import FedProx
from fedgraft.methods.local import Local

METHODS: dict[str, type[Method]] = {method.name: method for method in (Local, FedAvg, FedProx, FedPer, FedAPA)}


def make(name: str, **parameters: Any) -> Method:
    """Make a method by name; a wrong name or parameter is answered with the nearest valid one."""
    if name not in METHODS:
        raise unknown("method", name, METHODS)
    known = [parameter.name for parameter in fields(METHODS[name])]
    for parameter in parameters:
        if parameter not in known:
            near = difflib.get_close_matches(parameter, known, n=1)
            hint = f"did you mean {near[0]!r}?" if near else f"it has: {', '.join(known) or 'none'}"
            raise UserError(f"{name} has no parameter {parameter!r}; {hint}")
    return METHODS[name](**parameters)


def describe(method: type[Method]) -> dict[str, Any]:
    """Tell all about a method: what `fedgraft methods NAME` prints."""
    module = inspect.getmodule(method)
    _, _, readings = (module.__doc__ or "").partition("\nReadings\n") if module else ("", "", "")
    return {
        "name": method.name,
        "idea": method.idea,
        "citation": method.citation,
        "sends": method.sends,
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
        return f"> {above:g}"
    if low is not None and high is not None:
        return f"{low:g} .. {high:g}"
    return f">= {low:g}" if low is not None else ""
