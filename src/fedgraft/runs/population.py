"""What a run works on: the federation and the architectures that its configuration asks for."""

import copy
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import nn

from fedgraft import kernels, models
from fedgraft.base.errors import UserError
from fedgraft.base.reference import absolute
from fedgraft.core import streams
from fedgraft.core.method import Method, Server, sums_of
from fedgraft.core.model import Architecture, as_taken
from fedgraft.core.secure import LEAST, Secure
from fedgraft.core.settings import TASKS
from fedgraft.core.stages import Averaging, Stage
from fedgraft.core.task import Task
from fedgraft.data.datasets import lies_at_sites
from fedgraft.data.datasets.formats import Array
from fedgraft.data.digest import Fingerprint
from fedgraft.data.federation import OWN, Federation, federate
from fedgraft.data.partition import SCHEMES
from fedgraft.data.sources.fitted import Fitted
from fedgraft.data.sources.source import Reading
from fedgraft.engines import devices
from fedgraft.runs import directory
from fedgraft.runs.config import CLIENTS, MACHINE, READING, SCHEME, RunConfig

Model = nn.Module | Callable[[], nn.Module]
KEPT = 32
"""Architectures of ours that a process remembers: a comparison plans many runs of one, a site one for each message."""
_known: dict[Any, Architecture] = {}


class Population(Protocol):
    """What a plan has to know of the clients: sizes and shapes, wherever their data lie."""

    @property
    def name(self) -> str: ...

    @property
    def partition(self) -> str: ...

    @property
    def names(self) -> tuple[str, ...]: ...

    @property
    def notes(self) -> tuple[str, ...]: ...

    @property
    def task(self) -> Task: ...

    @property
    def fitted(self) -> Fitted | None:
        """How rows, folders or characters became samples, if they did."""
        ...

    @property
    def samples(self) -> tuple[int, ...]: ...

    @property
    def example(self) -> torch.Tensor: ...

    @property
    def input_shape(self) -> tuple[int, ...]: ...

    @property
    def fingerprints(self) -> tuple[Fingerprint, ...] | None:
        """What tells the data of each client from any other, if that may be known here."""
        ...

    def __len__(self) -> int: ...

    def counts(self) -> Array | None:
        """Clients x classes: who holds how many samples of what, if that may be known here."""
        ...


def federation(config: RunConfig, place: Path | None = None) -> Federation:
    """Make the federation. What nobody asked for is decided by the data: sites are as many as they are.

    A run that starts from an earlier one has its data prepared as they were there; ``place`` is its own directory, if
    it has begun.
    """
    at_sites = lies_at_sites(config.dataset)
    fitted = None
    if config.start_from is not None and at_sites:
        fitted = directory.read_preparation(place or Path(config.start_from).expanduser())
    decided = {"clients", "partition"} if at_sites else {"clients"} if config.partition.endswith(".json") else set()
    left_out = decided - config.model_fields_set
    made = federate(
        config.dataset,
        None if "clients" in left_out else config.clients,
        None if "partition" in left_out else config.partition,
        config.drawn_by,
        validation=config.validation, normalise=config.normalise, augment=config.augment, resize=config.resize,
        data_dir=config.data_dir, task=config.task,
        on_disk=config.storage == "disk" and not at_sites, fitted=fitted,
        **{name: getattr(config, name) for name in READING},
    )  # fmt: skip
    ignored = sorted(name for name in left_out if getattr(config, name) not in (CLIENTS, SCHEME, facts(made)[name]))
    if not ignored:
        return made
    return replace(made, notes=(*made.notes, f"the recipe's {' and '.join(ignored)} gave way to what the data are"))


def drawn_by(config: RunConfig) -> str:
    """All that decides the federation of a configuration, but for the files themselves."""
    others = {*MACHINE, "method", "params", "model", "head", "rounds", "seed", "training", "metrics", "kernels"}
    others |= {"participation", "evaluate_every", "global_test"}
    others.remove("data_dir")
    return f"{config.drawn_by} {config.model_dump_json(exclude=others)}"


def reading(config: RunConfig) -> Reading:
    """Return the settings that say how data at sites are read."""
    return Reading(**{name: getattr(config, name) for name in READING})


def facts(fed: Federation) -> dict[str, Any]:
    """Return the settings that a federation has decided."""
    return {
        "dataset": fed.name,
        "clients": len(fed) + len(fed.unseen),
        "partition": fed.partition,
        "validation": fed.validation,
        "normalise": fed.normalise,
        "augment": fed.augment,
        "resize": fed.resize,
        "task": TASKS.named(fed.task),
        **{name: getattr(fed.reading, name) for name in READING},
    }


def held_out(config: RunConfig, fed: Population) -> Population:
    """Take the clients that the run holds out away, drawn by the seed of the data; never all of them, and one at least.

    What is left is the federation: whatever is indexed by client, counted or averaged, knows nothing of them.
    """
    if config.hold_out is None:
        return fed
    if not isinstance(fed, Federation):
        raise UserError(
            "hold_out takes clients out of a federation, and those on other machines are there to take part"
        )
    if len(fed) < 2:
        raise UserError("hold_out keeps clients away from training, and there is only one")
    count = min(max(1, round(config.hold_out * len(fed))), len(fed) - 1)
    chosen = streams.generator(config.drawn_by, "hold out").permutation(len(fed))[:count]
    return fed.without({int(client) for client in chosen})


def insist_on_agreement(config: RunConfig, fed: Federation) -> None:
    """Refuse settings beside a given federation that it was not made with: they would be of no effect."""
    if config.data_dir is not None:
        raise UserError("data_dir is of no effect beside a federation, whose data are there: leave it out")
    if config.data_seed is not None:
        raise UserError("data_seed is of no effect beside a federation, whose data are split: leave it out")
    for name, made in facts(fed).items():
        wished = getattr(config, name)
        if name in config.model_fields_set and _canonical(name, wished) != _canonical(name, made):
            raise UserError(
                f"{name} = {wished!r} is of no effect beside a federation that has {name} = {made!r}: "
                f"leave it out, or make the federation so"
            )


def _canonical(name: str, value: Any) -> Any:
    """Two spellings of one scheme are the same, and a task is one with however many outputs."""
    if name == "task":
        return None if value is None else absolute(TASKS.split(value)[0])
    if name != "partition" or SCHEMES.split(value)[0] not in SCHEMES:
        return value
    return SCHEMES.make(value).text


def settled(config: RunConfig, fed: Population, *, given: bool) -> RunConfig:
    """Write what the data are into the configuration: that of a federation that was ``given``, or of what was made."""
    config = found_again(config)
    if config.start_from is not None and isinstance(fed, Federation):
        config = config.model_copy(update={"start_from": str(Path(config.start_from).expanduser().resolve())})
    known: dict[str, Any] = {"clients": len(fed) + (len(fed.unseen) if isinstance(fed, Federation) else 0)}
    if given and isinstance(fed, Federation):
        known = facts(fed)
    elif given:
        known |= {"dataset": fed.name, "partition": fed.partition}
    elif fed.partition == OWN:
        known |= {"partition": OWN}
    return config.model_copy(update=known)


def found_again(config: RunConfig) -> RunConfig:
    """Name files of the user's own by their whole paths, so that the run is repeated from any folder."""
    training = config.training
    inner = {name: _whole(getattr(training, name)) for name in ("optimizer", "schedule", "stages")}
    outer = {name: _whole(getattr(config, name)) for name in ("dataset", "partition", "task", "metrics", "engine")}
    return config.model_copy(update={**outer, "training": training.but(**inner)})


def _whole(value: Any) -> Any:
    if isinstance(value, tuple):
        return tuple(map(_whole, value))
    return None if value is None else absolute(value)


def architectures(
    config: RunConfig, fed: Population, model: Model | None
) -> tuple[tuple[Architecture, ...], tuple[int, ...], str]:
    """Return the distinct architectures, which client has which, and how the configuration names them."""
    example = fed.example
    if model is not None:
        build = partial(copy.deepcopy, model) if isinstance(model, nn.Module) else model
        return (_own_architecture(build, example, config, "custom"),), (0,) * len(fed), "custom"
    tokens = not example.is_floating_point()
    if tokens and fed.task.name != "next-token" and models.is_shipped(config.model) and "vocab" not in config.model:
        raise UserError(
            f"x_train in {fed.name} is {str(example.dtype).removeprefix('torch.')}; save pixels as uint8 and features "
            "as float32 (or are these tokens? then say how many there are: --model embed:vocabulary=500)"
        )
    name = models.resolve(config.model, fed.input_shape, fed.task.outputs, tokens=tokens)
    fleet = models.fleet(name, len(fed))
    kinds = list(dict.fromkeys(fleet))
    found = tuple(_named_architecture(kind, fed, example, config) for kind in kinds)
    return found, tuple(kinds.index(kind) for kind in fleet), name


def _named_architecture(name: str, fed: Population, example: torch.Tensor, config: RunConfig) -> Architecture:
    """A model of ours, or somebody's own that is found by its name or by reference."""
    build = models.builder(name, fed.input_shape, fed.task.outputs)
    if not models.is_shipped(name):
        return _own_architecture(build, example, config, name)
    bits = (example.shape, example.dtype, example.contiguous().view(torch.uint8).numpy().tobytes())
    chosen = (config.head, kernels.describe(config.kernels), devices.on_processor(config.device))
    key = (name, fed.task.outputs, chosen, bits)
    if key not in _known:
        while len(_known) >= KEPT:
            del _known[next(iter(_known))]  # the oldest
        _known[key] = _architecture(build, example, config, config.head or "head", name)
    return _known[key]


def _own_architecture(
    build: Callable[[], nn.Module], example: torch.Tensor, config: RunConfig, name: str
) -> Architecture:
    """Try somebody's own module on two samples: what it cannot take is said in terms of shapes, not by a traceback."""
    what = "the model" if name == "custom" else f"the model {name!r}"
    try:
        with torch.random.fork_rng(devices=[]):
            made = build()
    except Exception as error:
        raise UserError(f"{what} cannot be built: {type(error).__name__}: {_first_line(error)}") from error
    if not isinstance(made, nn.Module):
        raise UserError(f"{what} gives a {type(made).__name__}, not a module")
    try:
        return _architecture(build, example, config, config.head, name)
    except UserError:
        raise
    except Exception as error:
        shape = "x".join(map(str, example.shape[1:]))
        raise UserError(
            f"{what} cannot take this data's samples, which are of shape {shape} "
            f"({str(example.dtype).removeprefix('torch.')}): {_first_line(error)}"
        ) from error


def _first_line(error: Exception) -> str:
    return str(error).strip().partition("\n")[0][:300]


def _architecture(
    build: Callable[[], nn.Module], example: torch.Tensor, config: RunConfig, head: str | None, name: str
) -> Architecture:
    """Let our kernels run what they can of the module, if they compute the same on an example."""
    with streams.untouched():
        example = as_taken(build(), example)
        found = kernels.accelerate(build(), example, config.kernels).chains if example.is_floating_point() else ()
    if not devices.on_processor(config.device) or not found:
        return Architecture(build, example, head, name)

    def accelerated() -> nn.Module:
        return kernels.accelerate(build(), choice=config.kernels).module

    return Architecture(accelerated, example, head, name)


def _insist_on_sums(method: Method, server: Server, stage: Secure) -> None:
    """Refuse secure aggregation where the server needs more than a sum, or where a sum would hide nobody."""
    spec, expected = server.spec, method.expects(server, 0)
    if not expected:  # nothing is sent, so there is nothing to hide
        return
    if not sums_of(method):
        raise UserError(
            f"{method.name} needs what each client sends ({', '.join(expected)}), not only the sum of it: the stage "
            f"{stage.name} cannot serve it"
        )
    if len(spec.architectures) > 1:
        raise UserError(f"the stage {stage.name} adds up models, so all clients need the same architecture")
    if spec.clients < LEAST:
        raise UserError(f"a sum hides nobody among fewer than {LEAST} clients: the stage {stage.name} needs as many")


def insist_on_stages(method: Method, server: Server) -> None:
    """Refuse a stage that would have nothing to do."""
    for stage in server.spec.pipeline.stages:
        if isinstance(stage, Averaging) and not method.averages:
            raise UserError(f"{method.name} does not average what clients send: the stage {stage.name} means nothing")
        if isinstance(stage, Secure):
            _insist_on_sums(method, server, stage)
        if type(stage).objection is Stage.objection:  # it has none, so nobody need send for it to look
            continue
        if complaint := stage.objection(method.send(server, 0), method.expects(server, 0)):
            raise UserError(f"the stage {stage.name} does nothing for {method.name}: {complaint}")
