"""Attacks: what somebody who means harm, or a careless hand, can try, and what then has to happen.

    python -m trials.attack [NAME ...] [--times 1] [--seed 0]
    python -m trials.attack --list

An attack is a function with a sentence of what has to hold. It makes its own victim (a run, a federation, a file),
tries to harm it, and returns in a few words what happened, or raises ``BreachError`` if the harm was done. It gets a
folder of its own and a stream of random numbers: the same seed is the same attack. Attacks live in the modules of this
folder, by the room that they attack; those that need no process of their own run with the tests.
"""

import importlib
import pkgutil
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory

Attempt = Callable[[Path, Random], str]


class BreachError(AssertionError):
    """The harm was done; the text says which."""


@dataclass(frozen=True)
class Attack:
    """Something to try. ``holds`` says what has to be true afterwards; ``processes``: it starts servers or workers."""

    name: str
    holds: str
    attempt: Attempt
    processes: bool = False


@dataclass
class Outcome:
    """How often an attack was tried, and what happened."""

    attack: Attack
    tried: int = 0
    happened: Counter[str] = field(default_factory=Counter)
    breaches: list[str] = field(default_factory=list)
    seconds: float = 0.0

    def row(self) -> str:
        """Return a row of the table in docs/reliability.md."""
        what = "; ".join(text if count == self.tried else f"{text} ({count})" for text, count in self.happened.items())
        broken = f"**{len(self.breaches)} breaches**" if self.breaches else ""
        told = "; ".join(filter(None, (what, broken)))
        return f"| {self.attack.name} | {self.tried} | {self.attack.holds} | {told} |"


_ATTACKS: dict[str, Attack] = {}


def attack(name: str, holds: str, *, processes: bool = False) -> Callable[[Attempt], Attempt]:
    """Put a function on the list of attacks."""

    def enlist(attempt: Attempt) -> Attempt:
        if name in _ATTACKS:
            raise ValueError(f"two attacks are called {name!r}")
        _ATTACKS[name] = Attack(name, holds, attempt, processes)
        return attempt

    return enlist


def attacks() -> dict[str, Attack]:
    """Every attack by its name, those of one room together."""
    for module in sorted(found.name for found in pkgutil.iter_modules(__path__) if not found.name.startswith("_")):
        importlib.import_module(f"{__name__}.{module}")
    return dict(_ATTACKS)


def carry_out(one: Attack, seeds: Iterable[int]) -> Outcome:
    """Try an attack once for each seed; an exception that it did not foresee is a breach too."""
    outcome, started = Outcome(one), time.perf_counter()
    for seed in seeds:
        outcome.tried += 1
        with TemporaryDirectory(prefix="attack-") as folder:
            try:
                outcome.happened[one.attempt(Path(folder), Random(f"{one.name}/{seed}"))] += 1
            except Exception:
                outcome.breaches.append(f"{one.name}, seed {seed}\n{traceback.format_exc()}")
    outcome.seconds = time.perf_counter() - started
    return outcome
