"""A server that mixes models, on ranks: rounds of FedAPA with a thousand clients, in which all ranks multiply.

The seconds are those of the clock, because ranks work side by side: measure on a machine that does nothing else.
"""

from typing import Any

from benchmarks import million
from benchmarks.machine import median


def points(*, tiny: bool) -> list[dict[str, Any]]:
    """More clients than are multiplied at once, also where there is little to do."""
    size = {"clients": 300, "model": "mlp:8"} if tiny else {"clients": 1000, "model": "mlp:512"}
    mixing = {"method": "fedapa", "storage": "memory", "learned": "bank", "share": 1.0, "rounds": 4, **size}
    kinds = (("local", 1), ("distributed", 2)) if tiny else (("local", 1), *(("distributed", n) for n in (1, 2, 4)))
    return [{**mixing, "engine": engine, "ranks": ranks} for engine, ranks in kinds]


def measure(*, tiny: bool = False) -> list[dict[str, Any]]:
    """Medians of the rounds behind the first."""
    found = million.each_measured(points(tiny=tiny))
    return [
        {**row, "round": median(row["whole_rounds"][1:]), "server": median(row["server_rounds"][1:])} for row in found
    ]
