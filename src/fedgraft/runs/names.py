"""What a configuration names, looked for before torch is imported, which takes seconds: a typo is answered at once."""

from fedgraft import models
from fedgraft.data.partition import OWN, SCHEMES
from fedgraft.methods import METHODS
from fedgraft.runs.config import RunConfig


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
