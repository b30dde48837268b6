"""What a configuration names, looked for before torch is imported, which takes seconds: a typo is answered at once.

And what a run is called in tables.
"""

import dataclasses
from typing import TYPE_CHECKING, Any

from fedgraft import models
from fedgraft.core.hyper import search_range
from fedgraft.data.partition import OWN, SCHEMES
from fedgraft.methods import METHODS
from fedgraft.runs.config import RunConfig

if TYPE_CHECKING:
    from fedgraft.core.method import Method


def insist(config: RunConfig, methods: list[str] | None = None) -> None:
    """Refuse names that stand for nothing; ``methods`` are those of a comparison, instead of the configuration's."""
    from fedgraft.data import datasets  # numpy, which help does not wait for

    insist_on_learning(config, methods)
    if not datasets.lies_at_sites(config.dataset):
        datasets.insist(config.dataset)
    if config.partition != OWN and not config.partition.endswith(".json"):
        SCHEMES.insist(config.partition)


def insist_on_learning(config: RunConfig, methods: list[str] | None = None) -> None:
    """Refuse methods and models that are not there; those at sites have their data elsewhere."""
    for name in [config.method] if methods is None else methods:
        METHODS.insist(name)
    models.insist(config.model)


def label(method: "Method", tuned: int | None = None) -> str:
    """What a method is called in tables: by its name and what is not as usual, but for numbers that tuning chose."""
    usual = {each.name: each.default for each in searched(method)}
    return METHODS.label(dataclasses.replace(method, **usual) if tuned else method)


def searched(method: "Method") -> "list[dataclasses.Field[Any]]":
    """The hyper-parameters in which tuning looks for better values."""
    return [each for each in dataclasses.fields(method) if search_range(each) is not None]
