"""What a run works on: the federation and the architectures that its configuration asks for."""

import copy
import importlib
import re
from collections.abc import Callable
from functools import partial
from typing import Protocol

import torch
from torch import nn

from fedgraft import kernels, models
from fedgraft.core import streams
from fedgraft.core.errors import UserError
from fedgraft.core.model import Architecture, as_taken
from fedgraft.data.federation import Array, Federation, federate
from fedgraft.runs.config import RunConfig

Model = nn.Module | Callable[[], nn.Module]


class Population(Protocol):
    """What a plan has to know of the clients: sizes and shapes, wherever their data lie."""

    @property
    def name(self) -> str: ...

    @property
    def partition(self) -> str: ...

    @property
    def classes(self) -> int: ...

    @property
    def samples(self) -> tuple[int, ...]: ...

    @property
    def example(self) -> torch.Tensor: ...

    @property
    def input_shape(self) -> tuple[int, ...]: ...

    def __len__(self) -> int: ...

    def counts(self) -> Array | None:
        """Clients x classes: who holds how many samples of what, if that may be known here."""
        ...


def federation(config: RunConfig) -> Federation:
    """Make the federation."""
    return federate(
        config.dataset, config.clients, config.partition, config.seed,
        validation=config.validation, normalise=config.normalise, augment=config.augment, resize=config.resize,
        data_dir=config.data_dir,
    )  # fmt: skip


def architectures(
    config: RunConfig, fed: Population, model: Model | None
) -> tuple[tuple[Architecture, ...], tuple[int, ...], str]:
    """Return the distinct architectures, which client has which, and how the configuration names them."""
    example = fed.example
    if model is None and ":" in config.model and "." in config.model.partition(":")[0]:
        model = _imported(config.model)
    if model is not None:
        name = config.model if ":" in config.model else "custom"
        build = partial(copy.deepcopy, model) if isinstance(model, nn.Module) else model
        return (_architecture(build, example, config, config.head, name),), (0,) * len(fed), name
    shape, classes = fed.input_shape, fed.classes
    name = models.resolve(config.model, shape, classes)
    fleet = models.fleet(name, len(fed))
    kinds = list(dict.fromkeys(fleet))
    made = tuple(
        _architecture(partial(models.build, kind, shape, classes), example, config, config.head or "head", kind)
        for kind in kinds
    )
    return made, tuple(kinds.index(kind) for kind in fleet), name


def _architecture(
    build: Callable[[], nn.Module], example: torch.Tensor, config: RunConfig, head: str | None, name: str
) -> Architecture:
    """Let our kernels run what they can of the module, if they compute the same on an example."""
    with streams.untouched():
        example = as_taken(build(), example)
        found = kernels.accelerate(build(), example, config.kernels).chains if example.is_floating_point() else ()
    if config.device != "cpu" or not found:
        return Architecture(build, example, head, name)

    def accelerated() -> nn.Module:
        return kernels.accelerate(build(), choice=config.kernels).module

    return Architecture(accelerated, example, head, name)


def _imported(path: str) -> Callable[[], nn.Module]:
    """Read ``package.module:function``."""
    module, _, name = path.partition(":")
    try:
        found = getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError) as error:
        raise UserError(f"the model {path!r} cannot be imported: {error}") from None
    if not callable(found):
        raise UserError(f"{path!r} is not a function that builds a module")
    try:
        with torch.random.fork_rng(devices=[]):
            made = found()
    except Exception as error:
        raise UserError(f"the model {path!r} cannot be built: {type(error).__name__}: {error}") from error
    if not isinstance(made, nn.Module):
        raise UserError(f"{path!r} gives a {type(made).__name__}, not a module")
    return found  # type: ignore[no-any-return]


def insist_on_device(name: str) -> None:
    """Refuse a device that this machine does not have."""
    if not re.fullmatch(r"(cpu|cuda|mps|xpu)(:\d+)?", name):
        raise UserError(f"a device is cpu or cuda, or cuda:1 for the second, not {name!r}")
    try:
        torch.zeros(1, device=name)
    except (RuntimeError, AssertionError) as error:
        raise UserError(f"there is no device {name!r} here: {str(error).partition(chr(10))[0]}") from None
