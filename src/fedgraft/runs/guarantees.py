"""What the rounds of a run have spent of its clients' privacy, from the record of who was asked.

Nothing else has to be kept: noise, rates and steps follow from the settings and the numbers of samples, and whom a
round asked stands in its record. Whoever was asked counts, whether or not the server took the answer, for it may have
been sent. A round that is repeated after an interruption gives the same bits, and costs nothing more.
"""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from fedgraft.core.budget import Budget
from fedgraft.core.spec import Spec


def guarantees(spec: Spec, records: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return what stands in result.json: one entry for each unit that is protected."""
    if not spec.private:
        return []
    times = Counter(client for record in records for client in record["participants"])
    asked = [times[client] for client in range(spec.clients)]
    return [*_samples(spec, asked), *_clients(spec, asked, len(records))]


def _samples(spec: Spec, asked: Sequence[int]) -> list[dict[str, Any]]:
    """What each client has spent of its samples' privacy."""
    budget, settings = spec.budget, spec.settings
    if budget is None:
        return []
    each = [
        {
            "epsilon": _finite(budget.spent(client, times)),
            "noise": budget.noises[client],
            "rate": budget.rates[client],
            "steps": budget.steps[client] * times,
            **_sums(budget, client, times),
        }
        for client, times in enumerate(asked)
    ]
    return [_entry("sample", each, delta=budget.delta, budget=settings.epsilon, clip=budget.clip)]


def _sums(budget: Budget, client: int, times: int) -> dict[str, Any]:
    """The noised sums over its samples that a client has told besides, if it tells any."""
    noise, count = budget.told(client, times)
    return {"sums": count, "sum_noise": noise} if budget.sums else {}


def _clients(spec: Spec, asked: Sequence[int], rounds: int) -> list[dict[str, Any]]:
    """What has been spent of the clients' own privacy; who might have been asked counts, where that is a secret."""
    privacy, settings = spec.client_privacy, spec.settings
    if privacy is None:
        return []
    each = [
        {"epsilon": _finite(privacy.spent(client, times)), "noise": privacy.noise, "rate": privacy.rate, "steps": times}
        for client, times in enumerate(asked if privacy.sharing else [rounds] * spec.clients)
    ]
    return [_entry("client", each, delta=privacy.delta, budget=settings.client_epsilon, clip=privacy.clip)]


def _entry(unit: str, each: list[dict[str, Any]], **facts: Any) -> dict[str, Any]:
    known = [spent["epsilon"] for spent in each if spent["epsilon"] is not None]
    return {
        "unit": unit,
        "epsilon": max(known) if len(known) == len(each) else None,
        **facts,
        "accountant": f"dp-accounting {_version()}, privacy loss distributions, zero-out",
        "per_client": each,
    }


def _finite(epsilon: float) -> float | None:
    """JSON has no infinity."""
    return epsilon if math.isfinite(epsilon) else None


def _version() -> str:
    try:
        return version("dp-accounting")
    except PackageNotFoundError:
        return "unknown"
