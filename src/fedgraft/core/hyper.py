"""Hyper-parameters: fields of a method with a meaning and a range."""

import dataclasses
from collections.abc import Sequence
from typing import Any

from fedgraft.base.errors import UserError


def hyper(
    default: Any,
    doc: str,
    *,
    low: float | None = None,
    high: float | None = None,
    above: float | None = None,
    choices: Sequence[Any] | None = None,
) -> Any:
    """Declare a hyper-parameter: its default, what it means, and which values make sense."""
    return dataclasses.field(
        default=default, metadata={"doc": doc, "low": low, "high": high, "above": above, "choices": choices}
    )


def check(method: str, parameter: "dataclasses.Field[Any]", value: Any) -> None:
    """Refuse a hyper-parameter out of its range, in a sentence."""
    rules, default = parameter.metadata, parameter.default
    if not rules:
        return
    choices, low, high, above = (rules[key] for key in ("choices", "low", "high", "above"))
    if choices is not None:
        if value not in choices:
            raise UserError(f"{method}: {parameter.name} is one of {', '.join(map(str, choices))}, not {value!r}")
        return
    if value is None and default is None:
        return
    if isinstance(default, bool) != isinstance(value, bool):
        raise UserError(f"{method}: {parameter.name} is {'true or false' if isinstance(default, bool) else 'a number'}")
    if not isinstance(value, bool | int | float) or not _finite(value):
        raise UserError(f"{method}: {parameter.name} is a number, not {value!r}")
    if (isinstance(default, int) or parameter.type == int | None) and not isinstance(value, int):
        raise UserError(f"{method}: {parameter.name} is a whole number, not {value!r}")
    if (low is not None and value < low) or (high is not None and value > high):
        bounds = f"between {low:g} and {high:g}" if None not in (low, high) else (
            f"at least {low:g}" if high is None else f"at most {high:g}"
        )  # fmt: skip
        raise UserError(f"{method}: {parameter.name} has to be {bounds}, not {value!r}")
    if above is not None and value <= above:
        raise UserError(f"{method}: {parameter.name} has to be greater than {above:g}, not {value!r}")


def _finite(value: float) -> bool:
    """Whether a network's floats can hold the number, with room to calculate."""
    try:
        return abs(float(value)) <= 1e30
    except OverflowError:  # a whole number that no float can hold
        return False
