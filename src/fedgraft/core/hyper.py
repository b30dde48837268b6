"""Hyper-parameters: fields of a method with a meaning and a range."""

import dataclasses
from collections.abc import Sequence
from typing import Any, Literal, NamedTuple

from fedgraft.base.errors import UserError


def hyper(
    default: Any,
    doc: str,
    *,
    low: float | None = None,
    high: float | None = None,
    above: float | None = None,
    choices: Sequence[Any] | None = None,
    search: "tuple[float, float] | tuple[()] | None" = None,
    scale: Literal["linear", "log"] = "linear",
) -> Any:
    """Declare a hyper-parameter: its default, what it means, and which values make sense.

    Args:
        default: its value unless another is given.
        doc: what it means, in a few words.
        low: the smallest value.
        high: the largest value.
        above: a bound that every value has to exceed.
        choices: all values, if they are few.
        search: where tuning looks for a better value, if :func:`search_range` would not look in a sensible range;
            ``()`` is nowhere.
        scale: how tuning looks there.

    Returns:
        A field of a frozen dataclass.
    """
    span = None if search is None else Range(*search, scale == "log", isinstance(default, int)) if search else ()
    rules = {"doc": doc, "low": low, "high": high, "above": above, "choices": choices, "search": span}
    return dataclasses.field(default=default, metadata=rules)


class Range(NamedTuple):
    """Where a better value is looked for, and whether by its logarithm."""

    low: float
    high: float
    log: bool = False
    whole: bool = False

    def within(self, value: float) -> float:
        """The nearest value that is in it."""
        return min(max(value, self.low), self.high)


def search_range(parameter: "dataclasses.Field[Any]") -> Range | None:
    """Where tuning looks for a better value of a hyper-parameter; nowhere, if it is a switch or none by default.

    As declared, else between its bounds, else from a tenth to ten times the default. Whole numbers are epochs, widths
    and the like, with which a run would cost more, so they are searched only where that is declared.
    """
    rules, default = parameter.metadata, parameter.default
    if not rules or rules["choices"] is not None:
        return None
    if rules["search"] is not None:
        return rules["search"] or None
    if not isinstance(default, float):
        return None
    low, high = rules["low"] if rules["low"] is not None else rules["above"], rules["high"]
    if low is not None and high is not None:
        return Range(low if rules["above"] is None else low + (high - low) / 100, high)
    return Range(default / 10, default * 10, log=True) if default > 0 else None


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
