"""Which engine has the clients of a run: the one that its configuration names, made with what it asks for."""

import dataclasses
import inspect
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from fedgraft.base.errors import UserError
from fedgraft.core.engine import Engine
from fedgraft.core.method import Method, Spec
from fedgraft.data.federation import Federation
from fedgraft.engines import devices
from fedgraft.engines.devices import Device
from fedgraft.engines.footprint import footprint
from fedgraft.engines.local import Faults, cores
from fedgraft.engines.together import objection
from fedgraft.runs.config import DEPLOYED, ENGINES, RunConfig

GIVEN = ("method", "spec", "data", "everyone")
"""What every engine is made with: the method, what everybody knows, the clients' data, and the test samples of all."""
ASKED = {
    "workers": ("workers",),
    "faults": ("retries", "failed_client", "deadline"),
    "device": ("device",),
    "storage": ("storage",),
    "together": ("together",),
}
"""Parameters by which an engine asks for settings of the machine."""


def insist_on_engine(config: RunConfig) -> None:
    """Refuse an engine that cannot have the clients of a run on this machine, and settings that it has no use for."""
    name, _ = ENGINES.split(config.engine)
    if name == DEPLOYED:
        raise UserError(
            f"the clients of the engine {name} are sites on other machines: `fedgraft deploy init` describes such a run"
        )
    kind, wanted = ENGINES.find(name), _wanted(config)
    lacks = sorted(each for each in dir(Engine) if not each.startswith("_") and each not in _members(kind))
    if lacks and isinstance(kind, type):
        raise UserError(f"{name!r} is not an engine: it has no {', '.join(lacks)}")
    if twice := sorted(ENGINES.read(config.engine)[1].keys() & set(wanted)):
        raise UserError(f"{twice[0]} of the engine {name} is given by the run, not behind its name")
    ENGINES.prepared(config.engine, **dict.fromkeys(wanted))
    for field, settings in ASKED.items():
        for setting in settings:
            if field not in wanted and getattr(config, setting) != RunConfig.model_fields[setting].default:
                raise UserError(f"{setting} means nothing to the engine {name}: it has no parameter {field!r}")


def insist_on_together(config: RunConfig, method: Method, spec: Spec, federation: Federation) -> None:
    """Refuse to train clients together where that would not be what they do by themselves."""
    if config.together is None:
        return
    reason = objection(method, spec, federation.clients)
    if config.deadline is not None:
        reason = "the deadline is that of a single client"
    if _is_many(ENGINES.find(ENGINES.split(config.engine)[0])):
        reason = f"the engine {config.engine} has clients that are alike in several places"
    if reason:
        raise UserError(f"clients cannot train together here: {reason}; leave together out")


@dataclass(frozen=True)
class Seats:
    """The device of each worker of a run, and what there is to say about it."""

    places: tuple[str, ...]
    notes: tuple[str, ...] = ()


def seated(config: RunConfig, method: Method, spec: Spec, federation: Federation) -> Seats:
    """Decide how many workers a run has, and give each its device; refuse what this machine has no room for."""
    found, names = devices.there(config.device), devices.listed(config.device)
    alone = "workers" not in _wanted(config)
    if alone and len(names) > 1:
        raise UserError(f"device names several, and the engine {config.engine} has no workers that could share them")
    told = None if config.workers == "auto" else config.workers
    if told is not None and not alone and len(names) > 1 and told < len(found):
        raise UserError(f"device names {len(found)} for {told} worker{'s' if told > 1 else ''}: the others would idle")
    kind = devices.kind(names[0])
    if kind not in (devices.CPU, devices.CUDA):
        if (told or 1) > 1:
            raise UserError(f"workers share the processor or a CUDA device: on {config.device} there is one")
        return Seats(names[:1])
    workers = 1 if alone else min(told or max(cores(), len(found)), spec.clients)  # more would have nothing to do
    if kind == devices.CPU:
        return Seats(devices.seats(found, 1, workers, told=False))
    return _seated_by_memory(found, workers, method, spec, federation, told=told is not None, together=config.together)


def _seated_by_memory(
    found: Sequence[Device],
    workers: int,
    method: Method,
    spec: Spec,
    federation: Federation,
    *,
    told: bool,
    together: int | None,
) -> Seats:
    """Let as many workers share devices as their memory has room for."""
    notes = []
    if len(labels := dict.fromkeys(device.label for device in found)) > 1:
        notes.append(f"the devices are not alike ({', '.join(labels)}): last bits depend on who trained on which")
    try:
        each = footprint(method, spec, federation.clients, together)
    except UserError:
        raise
    except Exception as error:  # somebody's own code, which may need the device itself
        first = str(error).partition("\n")[0]
        notes.append(f"what a worker needs of its device could not be seen beforehand ({first}): each device has one")
        places = tuple(device.name for device in found)[:workers]
        return Seats(places * -(-workers // len(places)) if told else places, tuple(notes))
    places = devices.seats(found, each.need, workers, told=told)
    shared = ", ".join(f"{name} {count}" for name, count in Counter(places).items())
    return Seats(places, (*notes, f"workers by device: {shared}; each needs about {each}"))


def engine(config: RunConfig, method: Method, spec: Spec, federation: Federation, places: Sequence[str]) -> Engine:
    """Make the engine that has all clients of a federation; each worker has one of the places."""
    there: dict[str, Any] = {
        "method": method,
        "spec": spec,
        "data": federation.clients,
        "everyone": federation.everyone() if config.global_test else None,
        "workers": len(places),
        "faults": Faults(config.retries, config.failed_client, config.deadline),
        "device": ",".join(places),
        "storage": config.storage,
        "together": config.together,
    }
    made: Engine = ENGINES.make(config.engine, **{name: there[name] for name in _wanted(config)})
    return made


def follow(config: RunConfig, method: Method, spec: Spec, federation: Federation, places: Sequence[str]) -> None:
    """Do the work of this process's clients, and end it, if it is one of several and another one leads the run."""
    if follows(config):
        engine(config, method, spec, federation, places).serve()  # type: ignore[attr-defined]
        raise SystemExit(0)


def follows(config: RunConfig) -> bool:
    """Whether another process leads the run: then this one writes nothing and shows nothing."""
    kind = ENGINES.find(ENGINES.split(config.engine)[0])
    return _is_many(kind) and bool(kind.follows())


def insist_on_one_process(engine_name: str) -> None:
    """Refuse an engine of several processes where many runs are shared out between processes in another way."""
    if _is_many(ENGINES.find(ENGINES.split(engine_name)[0])):
        raise UserError(
            f"the engine {engine_name} is for one run (`fedgraft run`): many runs are shared out by `fedgraft work`"
        )


def _is_many(kind: type[Any]) -> bool:
    """Whether an engine is made of several processes that were started alike."""
    return hasattr(kind, "follows")


def _wanted(config: RunConfig) -> list[str]:
    """What the run's engine is made with: what every one gets, and what it asks for."""
    parameters = inspect.signature(ENGINES.find(ENGINES.split(config.engine)[0])).parameters
    return [*GIVEN, *(name for name in ASKED if name in parameters)]


def _members(kind: type[Any]) -> set[str]:
    """What objects of a class have, as far as the class says."""
    fields = dataclasses.fields(kind) if dataclasses.is_dataclass(kind) else ()
    return {*dir(kind), *(field.name for field in fields)}
