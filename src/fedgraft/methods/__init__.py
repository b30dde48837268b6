"""Every method by the name that people type."""

import inspect
from collections.abc import Mapping
from dataclasses import fields
from typing import TYPE_CHECKING, Any

from fedgraft.base.registry import Registry

if TYPE_CHECKING:
    from fedgraft.core.method import Method

METHODS: "Registry[Method]" = Registry("method", __name__, group="fedgraft.methods", base="fedgraft.core.method:Method")


def describe(method: "type[Method]") -> dict[str, Any]:
    """Tell all about a method: what `fedgraft methods NAME` prints."""
    module = inspect.getmodule(method)
    _, _, readings = (module.__doc__ or "").partition("\nReadings\n") if module else ("", "", "")
    return {
        "name": method.name,
        "family": method.family,
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
