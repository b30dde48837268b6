"""How far do honest replies go? The largest excess over what is in proportion, for every method and entry.

    python benchmarks/proportion.py [--recipe fedapa] [--methods fedavg,fedpac] [--rounds 30] [--epochs 2]

Without a recipe: digits, ten clients, dirichlet:0.1. A reply above the factor of the stage `bound` is refused; what
this prints is how much room the default leaves. "alone" marks waves of fewer than three replies, measured by what
was sent alone.
"""

import argparse
from collections.abc import Mapping
from typing import Any
from unittest.mock import patch

from fedgraft.core import bound
from fedgraft.core.client import ClientId
from fedgraft.core.message import Message
from fedgraft.core.method import Spec
from fedgraft.core.proportion import CROWD, excesses
from fedgraft.core.rounds import Participation, rounds
from fedgraft.engines.local import LocalEngine
from fedgraft.engines.workshop import single_thread
from fedgraft.methods import METHODS
from fedgraft.runs import population
from fedgraft.runs.config import RunConfig, configure, participation_range
from fedgraft.runs.run import plan


def measured(name: str, config: RunConfig) -> tuple[dict[str, float], int]:
    """Run a method without testing it; return the largest excess of each entry, and how many replies were refused."""
    method, largest = METHODS.make(name), dict[str, float]()
    federation = population.federation(config)
    run = plan(method, federation, config, None)
    server, picking = method.setup(run.spec), Participation(*participation_range(config.participation))

    def watched(spec: Spec, sent: Mapping[ClientId, Message], replies: Mapping[ClientId, Message]) -> Any:
        found = excesses(spec, sent, replies)
        for entry, excess in ((entry, excess) for each in found.values() for entry, excess in each.items()):
            key = entry if len(replies) >= CROWD else f"{entry} (alone)"
            largest[key] = max(largest.get(key, 0.0), excess)
        return found

    with (
        patch.object(bound, "excesses", watched),
        single_thread(),
        LocalEngine(method, run.spec, federation.clients) as engine,
    ):
        done = list(rounds(method, server, engine, picking, evaluate_every=config.rounds))
    return largest, sum("out of proportion" in refusal.reason for this in done for refusal in this.refused)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--recipe")
    parser.add_argument("--methods", default=",".join(name for name in METHODS if name != "local"))
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--epochs", type=int)
    given = parser.parse_args()
    changes = {"rounds": given.rounds} | ({"epochs": given.epochs} if given.epochs else {})
    config = configure(changes, recipe_name=given.recipe)
    for name in given.methods.split(","):
        largest, refused = measured(name, config)
        told = ", ".join(f"{entry} {excess:.2f}" for entry, excess in sorted(largest.items()))
        print(f"{name}: {told}; {refused} refused", flush=True)


if __name__ == "__main__":
    main()
