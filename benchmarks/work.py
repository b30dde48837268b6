"""The work that is measured: federations of images, real where they are at hand."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from fedgraft.base.errors import UserError
from fedgraft.core.samples import ClientData
from fedgraft.core.task import Classification
from fedgraft.data.datasets import Dataset, load
from fedgraft.data.federation import Federation, federate
from fedgraft.methods import METHODS
from fedgraft.runs.config import RunConfig, configure
from fedgraft.runs.run import Run, plan

SHAPES = {"cifar10": (32, 32, 3), "mnist": (28, 28), "digits": (8, 8)}
SIZES = {"cifar10": (50_000, 10_000), "mnist": (60_000, 10_000), "digits": (1_500, 297)}


def images(name: str, *, tiny: bool = False) -> tuple[Dataset, str]:
    """A dataset and where it is from: the real one, or noise around ten pictures in its shape and size."""
    if not tiny:
        try:
            return load(name, download=False), "real"
        except UserError:
            pass
    train, test = (400, 100) if tiny else SIZES[name]
    rng = np.random.default_rng(0)
    pictures = rng.normal(128, 40, (10, *SHAPES[name])).astype(np.float32)

    def draw(count: int) -> tuple[np.ndarray, np.ndarray]:
        labels = rng.integers(0, 10, count)
        noise = rng.standard_normal((count, *SHAPES[name]), dtype=np.float32)
        return (pictures[labels] + 40 * noise).clip(0, 255).astype(np.uint8), labels

    (x_train, y_train), (x_test, y_test) = draw(train), draw(test)
    return Dataset(name, x_train, y_train, x_test, y_test, Classification(10)), "synthetic"


def clients(run: Run) -> Sequence[ClientData]:
    """The data of a run whose clients are all here."""
    assert isinstance(run.federation, Federation)
    return run.federation.clients


def planned(
    method: str, *, tiny: bool = False, recipe: str | None = None, dataset: Dataset | None = None, **settings: Any
) -> tuple[Run, str]:
    """A run that is ready to be carried out, and where its data is from."""
    config: RunConfig = configure(settings, recipe_name=recipe)
    source, origin = (dataset, "given") if dataset is not None else images(config.dataset, tiny=tiny)
    federation = federate(
        source, config.clients, config.partition, config.seed, normalise=config.normalise,
        on_disk=config.storage == "disk",
    )  # fmt: skip
    return plan(METHODS.make(method), federation, config, None), origin
