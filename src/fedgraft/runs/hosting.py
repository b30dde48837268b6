"""Which engine has the clients of a run: the one that its configuration names, made with what it asks for."""

import dataclasses
import inspect
from typing import Any

from fedgraft.base.errors import UserError
from fedgraft.core.engine import Engine
from fedgraft.core.method import Method, Spec
from fedgraft.data.federation import Federation
from fedgraft.engines.local import Faults, cores
from fedgraft.runs.config import DEPLOYED, ENGINES, RunConfig

GIVEN = ("method", "spec", "data", "everyone")
"""What every engine is made with: the method, what everybody knows, the clients' data, and the test samples of all."""
ASKED = {
    "workers": ("workers",),
    "faults": ("retries", "failed_client", "deadline"),
    "device": ("device",),
    "storage": ("storage",),
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


def engine(config: RunConfig, method: Method, spec: Spec, federation: Federation) -> Engine:
    """Make the engine that has all clients of a federation."""
    there: dict[str, Any] = {
        "method": method,
        "spec": spec,
        "data": federation.clients,
        "everyone": federation.everyone() if config.global_test else None,
        "workers": _workers(config, spec),
        "faults": Faults(config.retries, config.failed_client, config.deadline),
        "device": config.device,
        "storage": config.storage,
    }
    made: Engine = ENGINES.make(config.engine, **{name: there[name] for name in _wanted(config)})
    return made


def follow(config: RunConfig, method: Method, spec: Spec, federation: Federation) -> None:
    """Do the work of this process's clients, and end it, if it is one of several and another one leads the run."""
    if follows(config):
        engine(config, method, spec, federation).serve()  # type: ignore[attr-defined]
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


def _workers(config: RunConfig, spec: Spec) -> int:
    """How many worker processes: as told, or one for each core."""
    if config.workers != "auto":
        return min(config.workers, spec.clients)  # more would have nothing to do
    if config.device != "cpu":
        return 1
    return max(1, min(cores(), spec.clients))
