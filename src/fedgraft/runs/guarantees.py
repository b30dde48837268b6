"""What the rounds of a run have spent of its clients' privacy, from the record of who was asked.

Nothing else has to be kept: noise, rates and steps follow from the settings and the numbers of samples, and whom a
round asked stands in its record. Whoever was asked counts, whether or not the server took the answer, for it may have
been sent. A round that is repeated after an interruption gives the same bits, and costs nothing more.
"""

import math
from collections.abc import Mapping, Sequence
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from fedgraft.core.spec import Spec


def guarantees(spec: Spec, records: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return what stands in result.json: one entry for each unit that is protected."""
    budget = spec.budget
    if budget is None:
        return []
    asked = [sum(client in record["participants"] for record in records) for client in range(spec.clients)]
    each = [
        {
            "epsilon": _finite(budget.spent(client, times)),
            "noise": budget.noises[client],
            "rate": budget.rates[client],
            "steps": budget.steps[client] * times,
        }
        for client, times in enumerate(asked)
    ]
    known = [spent["epsilon"] for spent in each if spent["epsilon"] is not None]
    return [
        {
            "unit": "sample",
            "epsilon": max(known) if len(known) == len(each) else None,
            "delta": budget.delta,
            "budget": spec.settings.epsilon,
            "clip": budget.clip,
            "accountant": f"dp-accounting {_version()}, privacy loss distributions, zero-out",
            "per_client": each,
        }
    ]


def _finite(epsilon: float) -> float | None:
    """JSON has no infinity."""
    return epsilon if math.isfinite(epsilon) else None


def _version() -> str:
    try:
        return version("dp-accounting")
    except PackageNotFoundError:
        return "unknown"
