"""Run a method on a federation: from Python, and from the command line through the same door."""

import copy
import importlib
import json
import os
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Protocol

import tomli_w
import torch
from torch import nn

from fedgraft import methods, models
from fedgraft.core.errors import UserError
from fedgraft.core.method import Method, Server, Spec
from fedgraft.core.model import Architecture
from fedgraft.core.rounds import Participation, Round, rounds
from fedgraft.core.training import Training
from fedgraft.data.federation import Federation, federate
from fedgraft.engines.local import LocalEngine, single_thread
from fedgraft.runs import results
from fedgraft.runs.config import RunConfig, configure, participation_range
from fedgraft.version import __version__

Model = nn.Module | Callable[[], nn.Module]


class Watcher(Protocol):
    """Somebody who wants to know how a run goes: a progress display, a tracker."""

    def begin(self, run: "Run") -> None: ...

    def round(self, run: "Run", this: Round) -> None: ...

    def end(self, run: "Run") -> None: ...


@dataclass
class Run:
    """A run and, when it is over, its result."""

    method: Method
    federation: Federation
    config: RunConfig
    spec: Spec
    directory: Path | None = None
    records: list[dict[str, Any]] = field(default_factory=list)
    result: dict[str, Any] = field(default_factory=dict)
    server: Server | None = None
    _weights: dict[int, torch.Tensor] = field(default_factory=dict)

    def module(self, client: int) -> nn.Module:
        """The client's network as its last training left it, ready for use."""
        if client not in self._weights:
            raise UserError(f"there is no client {client}; there are 0 to {self.spec.clients - 1}")
        model = self.spec.architecture(client).model()
        return model.load(self._weights[client]).module.eval()

    @property
    def accuracy(self) -> float:
        """The method's headline: pooled accuracy of the last round, at the point where its paper measures."""
        return float(self.result["last"][self.method.headline]["pooled"])


def run(
    method: Method | str,
    federation: Federation | None = None,
    *,
    model: Model | str | None = None,
    out: str | Path | None = None,
    watchers: Iterable[Watcher] = (),
    config: RunConfig | None = None,
    recipe: str | None = None,
    **settings: Any,
) -> Run:
    """Run ``method`` on ``federation`` and return its result.

    ``settings`` are those of a configuration file (``rounds=50, lr=0.01, participation="0.6..1", workers=2, ...``).
    Without a federation, one is made as they say. ``model`` is a name, a module (its weights are everybody's start)
    or a function that builds one. With ``out``, the run leaves a directory.
    """
    if isinstance(model, str):
        settings["model"], model = model, None
    if config is None:
        config = configure(settings, recipe_name=recipe)
    if isinstance(method, str):
        method = methods.make(method, **config.params)
    if federation is None:
        federation = _federation(config)
    plan = _plan(method, federation, config, model)
    if out is not None:
        plan.directory = _fresh_directory(Path(out))
        results.write_bytes(plan.directory / "config.toml", tomli_w.dumps(_plain(plan.config)).encode())
    for watcher in watchers:
        watcher.begin(plan)
    with single_thread():
        _execute(plan, list(watchers))
    return plan


def _plan(method: Method, federation: Federation, config: RunConfig, model: Model | None) -> Run:
    """Check that everything fits before anything is written or trained."""
    architectures, assignment, name = _architectures(config, federation, model)
    spec = Spec(
        samples=federation.samples, architectures=architectures, assignment=assignment,
        classes=federation.classes, rounds=config.rounds, seed=config.seed,
        settings=Training(**config.training.model_dump()),
    )  # fmt: skip
    for architecture in architectures:
        if architecture.outputs < federation.classes:
            raise UserError(f"the model has {architecture.outputs} outputs for {federation.classes} classes")
    known = {"method": method.name, "params": method.parameters(), "model": name, "clients": len(federation)}
    known |= {"dataset": config.dataset if federation.name in config.dataset else federation.name}
    known |= {"partition": federation.partition}
    return Run(method, federation, config.model_copy(update=known), spec)


def _execute(run: Run, watchers: list[Watcher]) -> None:
    config, spec = run.config, run.spec
    server = run.server = run.method.setup(spec)
    participation = Participation(*participation_range(config.participation))
    observed = []
    started = time.perf_counter()
    metrics = None if run.directory is None else (run.directory / "metrics.jsonl").open("w", encoding="utf-8")
    try:
        with LocalEngine(
            run.method, spec, run.federation.clients, workers=_workers(config, spec), device=config.device
        ) as engine:
            for this in rounds(run.method, server, engine, participation, evaluate_every=config.evaluate_every):
                run.records.append(results.record(this))
                observed.append(this.observed)
                if metrics is not None:
                    metrics.write(json.dumps(run.records[-1]) + "\n")
                    metrics.flush()
                for watcher in watchers:
                    watcher.round(run, this)
            run._weights = {client: state["own"] for client, state in engine.states.items()}
    finally:
        if metrics is not None:
            metrics.close()
    run.result = _result(run, time.perf_counter() - started)
    if run.directory is not None:
        results.write_observations(run.directory / "observed.safetensors", observed)
        results.write_json(run.directory / "result.json", run.result)
    for watcher in watchers:
        watcher.end(run)


def _result(run: Run, seconds: float) -> dict[str, Any]:
    config = run.config
    up, down = results.per_message(run.records)
    return {
        "fedgraft": __version__,
        "method": run.method.name,
        "params": run.method.parameters(),
        "reconstruction": run.method.reconstruction,
        "headline": run.method.headline,
        "dataset": config.dataset,
        "partition": config.partition,
        "clients": config.clients,
        "model": config.model,
        "seed": config.seed,
        "samples": list(run.spec.samples),
        "label_counts": run.federation.counts().tolist(),
        "seconds": round(seconds, 3),
        "bytes_up_per_client": up,
        "bytes_down_per_client": down,
        "refused": sum(len(r["refused"]) for r in run.records),
        "versions": {"torch": torch.__version__},
        "rounds": run.records,
        **results.best_and_last(run.records),
    }


def _federation(config: RunConfig) -> Federation:
    return federate(
        config.dataset, config.clients, config.partition, config.seed,
        validation=config.validation, normalise=config.normalise, augment=config.augment, resize=config.resize,
        data_dir=config.data_dir,
    )  # fmt: skip


def _architectures(
    config: RunConfig, federation: Federation, model: Model | None
) -> tuple[tuple[Architecture, ...], tuple[int, ...], str]:
    """Return the distinct architectures, which client has which, and how the configuration names them."""
    example = federation.example
    if model is None and ":" in config.model and "." in config.model.partition(":")[0]:
        model = _imported(config.model)
    if model is not None:
        name = config.model if ":" in config.model else "custom"
        build = partial(copy.deepcopy, model) if isinstance(model, nn.Module) else model
        return (Architecture(build, example, config.head, name),), (0,) * len(federation), name
    shape, classes = federation.input_shape, federation.classes
    name = models.resolve(config.model, shape, classes)
    fleet = models.fleet(name, len(federation))
    kinds = list(dict.fromkeys(fleet))
    architectures = tuple(
        Architecture(lambda kind=kind: models.build(kind, shape, classes), example, config.head or "head", kind)  # type: ignore[misc]
        for kind in kinds
    )
    return architectures, tuple(kinds.index(kind) for kind in fleet), name


def _imported(path: str) -> Callable[[], nn.Module]:
    """Read ``package.module:function``."""
    module, _, name = path.partition(":")
    try:
        found = getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError) as error:
        raise UserError(f"the model {path!r} cannot be imported: {error}") from None
    if not callable(found):
        raise UserError(f"{path!r} is not a function that builds a module")
    return found  # type: ignore[no-any-return]


def _workers(config: RunConfig, spec: Spec) -> int:
    if config.workers != "auto":
        return config.workers
    if config.device != "cpu":
        return 1
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, min(cores, spec.clients))


def _fresh_directory(path: Path) -> Path:
    """Make a run's directory, and never write into somebody else's."""
    if path.exists() and any(path.iterdir() if path.is_dir() else [path]):
        raise UserError(f"{path} is there already and not empty; name another directory with --out")
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"the directory {path} cannot be made: {error.strerror}") from None
    return path


def _plain(config: RunConfig) -> Mapping[str, Any]:
    """The configuration as TOML has it: without what is not set."""

    def without_none(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: without_none(inner) for key, inner in value.items() if inner is not None}
        return value

    return without_none(config.model_dump())  # type: ignore[no-any-return]
