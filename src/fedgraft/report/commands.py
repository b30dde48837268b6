"""The command lines that repeat a run or a comparison."""

import shlex
from collections.abc import Iterator
from typing import Any

from pydantic import BaseModel

from fedgraft.base.errors import UserError
from fedgraft.data.datasets import lies_at_sites
from fedgraft.data.federation import OWN
from fedgraft.methods import METHODS
from fedgraft.runs.comparison import REFERENCES, Comparison
from fedgraft.runs.config import MACHINE, RunConfig
from fedgraft.runs.config import flag as typed_as

_ALWAYS_SAID = {"dataset", "clients", "partition", "model", "rounds"}
_SAID_OTHERWISE = {"method", "params", "training", "seed"}


def repeatable(config: RunConfig) -> bool:
    """Whether a command line can say it all: not for data, modules and methods that came from Python."""
    own_data = config.partition == OWN and not lies_at_sites(config.dataset)
    return config.model != "custom" and not own_data and config.method in METHODS


def run_command(label: str, config: RunConfig) -> str:
    """Return the command that repeats one run; a label does not say what tuning chose."""
    told = METHODS.label(METHODS.make(config.method, **config.params)) if config.tuned else label
    name, _, changed = told.partition(":")
    settings = [word for pair in filter(None, changed.split(",")) for word in ("--set", pair)]
    return shlex.join(["fedgraft", "run", name, *flags(config), "--seed", str(config.seed), *settings])


def compare_command(comparison: Comparison[Any]) -> str | None:
    """Return the command that repeats a whole comparison, where one command can."""
    seeds = comparison.seeds
    complete = all(tuple(each) == seeds for each in comparison.facts.values())
    contiguous = seeds == tuple(range(seeds[0], seeds[0] + len(seeds)))
    if not complete or not contiguous or not set(REFERENCES) <= comparison.runs.keys() or comparison.tuned:
        return None
    chosen = [label for label in comparison.runs if label not in REFERENCES]
    if not all(_parsable(label) for label in chosen):
        return None
    counted = ["--seed", str(seeds[0]), "--seeds", str(len(seeds))]
    return shlex.join(["fedgraft", "compare", *chosen, *flags(comparison.config), *counted])


def flags(config: RunConfig) -> list[str]:
    """What the data and the model are, and every setting that differs from its default, as it is typed."""
    return [*_changed(config, _SAID_OTHERWISE | MACHINE), *_changed(config.training, set())]


def _changed(settings: BaseModel, skipped: frozenset[str] | set[str]) -> Iterator[str]:
    for name, info in type(settings).model_fields.items():
        value: Any = getattr(settings, name)
        usual = value == info.get_default(call_default_factory=True) and name not in _ALWAYS_SAID
        if name in skipped or usual or (name, value) == ("partition", OWN):
            continue
        flag = typed_as(name)
        if isinstance(value, bool):
            yield flag if value else f"--no-{flag[2:]}"
        elif isinstance(value, tuple):
            yield from (word for each in value for word in (flag, each))
        else:
            yield from (flag, str(value))


def _parsable(label: str) -> bool:
    try:
        if METHODS.split(label)[0] not in METHODS:  # no code of somebody's own is imported only to write a report
            return False
        METHODS.make(label)
    except UserError:
        return False
    return True
