"""Run a method on a federation: from Python, and from the command line through the same door."""

import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import nn

from fedgraft import kernels, methods
from fedgraft.core import exchange
from fedgraft.core.errors import UserError
from fedgraft.core.method import Method, Server, Spec
from fedgraft.core.model import Model as LiveModel
from fedgraft.core.rounds import Participation, Round, rounds
from fedgraft.core.state import State
from fedgraft.core.training import Training
from fedgraft.data.federation import OWN, Federation
from fedgraft.engines.local import Faults, LocalEngine, Workshop, cores, single_thread
from fedgraft.runs import checkpoint, directory, results, setting
from fedgraft.runs.checkpoint import Checkpoint
from fedgraft.runs.config import MACHINE, RunConfig, configure, participation_range
from fedgraft.runs.config import read as read_settings
from fedgraft.runs.setting import Model
from fedgraft.version import __version__

AUTO_SECONDS = 20.0


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
    notes: list[str] = field(default_factory=list)
    observed: dict[str, torch.Tensor] = field(default_factory=dict)
    _states: dict[int, State] = field(default_factory=dict)

    @property
    def _workshop(self) -> Workshop:
        return Workshop(self.method, self.spec, self.federation.clients, torch.device("cpu"))

    def module(self, client: int) -> nn.Module:
        """The client's own network, as its last training left it, ready for use.

        A method whose personal model is more than a network (a nearest prototype, a shifted feature) has none.
        """
        if self.server is None or client not in self._states:
            raise UserError(f"there is no client {client}; there are 0 to {self.spec.clients - 1}")
        subject = self._workshop.client(client, self._states[client], self.spec.rounds - 1, "evaluate")
        exchange.contact(self.method, subject)
        message = self.method.send(self.server, client).copy()
        own = self.method.personal(subject, message, subject.own)
        if not isinstance(own, LiveModel):
            raise UserError(f"the personal model of {self.method.name} is not a plain network")
        return self.spec.architecture(client).model().load(own.vector).module.eval()

    def report(self, path: str | Path) -> Path:
        """Write the run's report, one HTML file that opens from disk."""
        from fedgraft.report.page import report_runs

        return report_runs([self], Path(path))

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
    given = federation is not None
    planned = plan(method, federation or setting.federation(config), config, model, given=given)
    return start(planned, None if out is None else Path(out), watchers)


def start(run: Run, out: Path | None, watchers: Iterable[Watcher]) -> Run:
    """Carry a planned run out, in a fresh directory if one is wanted."""
    if out is None:
        return _conduct(run, list(watchers), None)
    run.directory = directory.fresh(out)
    with directory.locked(run.directory):
        directory.write_config(run.directory, run.config)
        return _conduct(run, list(watchers), None)


def resume(
    place: str | Path,
    federation: Federation | None = None,
    *,
    model: Model | None = None,
    watchers: Iterable[Watcher] = (),
    **changes: Any,
) -> Run:
    """Go on with a run that was interrupted, from its newest whole checkpoint, to the same bits.

    ``federation`` and ``model`` are needed if the run was given objects of its own. ``changes`` may set what is the
    machine's and not the run's: ``workers``, ``device``, ``checkpoint_every`` and so on.
    """
    place = Path(place)
    if surplus := set(changes) - MACHINE:
        raise UserError(f"resuming cannot change {', '.join(sorted(surplus))}: it would be another run")
    if (place / "result.json").exists():
        raise UserError(f"the run in {place} is complete; there is nothing to resume")
    if not (place / "config.toml").exists():
        raise UserError(f"{place} holds no run: there is no config.toml in it")
    config = configure(read_settings(place / "config.toml"), changes)
    run = plan(methods.make(config.method, **config.params), federation or setting.federation(config), config, model)
    run.directory = place
    with directory.locked(place):
        found, complaints = checkpoint.read(place / "checkpoints")
        run.notes += complaints
        run.records = directory.recorded(place, found.round if found else 0)
        return _conduct(run, list(watchers), found)


def plan(method: Method, federation: Federation, config: RunConfig, model: Model | None, *, given: bool = False) -> Run:
    """Check that everything fits before anything is written or trained; ``given``: the federation is the caller's."""
    architectures, assignment, name = setting.architectures(config, federation, model)
    spec = Spec(
        samples=federation.samples, architectures=architectures, assignment=assignment,
        classes=federation.classes, rounds=config.rounds, seed=config.seed,
        settings=Training(**config.training.model_dump()),
    )  # fmt: skip
    for architecture in architectures:
        if architecture.outputs < federation.classes:
            raise UserError(f"the model has {architecture.outputs} outputs for {federation.classes} classes")
    known = {"method": method.name, "params": method.parameters(), "model": name, "clients": len(federation)}
    if given:
        known |= {"dataset": federation.name, "partition": federation.partition}
    elif federation.partition == OWN:
        known |= {"partition": OWN}
    return Run(method, federation, config.model_copy(update=known), spec)


def _conduct(run: Run, watchers: list[Watcher], start: Checkpoint | None) -> Run:
    """Do the rounds that are left, keep what they give, close the books."""
    config, spec = run.config, run.spec
    server = run.server = run.method.setup(spec)
    participation = Participation(*participation_range(config.participation))
    observed = [] if start is None else list(start.observed)
    for watcher in watchers:
        watcher.begin(run)
    started = saved = time.perf_counter()
    with (
        single_thread(),
        LocalEngine(
            run.method,
            spec,
            run.federation.clients,
            workers=_workers(config, spec),
            device=config.device,
            everyone=run.federation.everyone() if config.global_test else None,
            faults=Faults(config.retries, config.failed_client, config.deadline),
        ) as engine,
        directory.metrics(run.directory, run.records) as metrics,
    ):
        if start is not None:
            server.restore(start.server, start.round)
            engine.states = {client: dict(state) for client, state in start.clients.items()}
        for this in rounds(run.method, server, engine, participation, evaluate_every=config.evaluate_every):
            run.records.append(results.record(this))
            observed.append(this.observed)
            metrics(run.records[-1])
            if run.directory is not None and _due(config, server.round, time.perf_counter() - saved):
                now = Checkpoint(server.round, server, engine.states, observed)
                checkpoint.write(run.directory / "checkpoints", now)
                saved = time.perf_counter()
            for watcher in watchers:
                watcher.round(run, this)
        run._states = dict(engine.states)
    run.result = _result(run, time.perf_counter() - started)
    run.observed = results.stacked(observed)
    if run.directory is not None:
        results.write_observations(run.directory / "observed.safetensors", run.observed)
        results.write_json(run.directory / "result.json", run.result)
    for watcher in watchers:
        watcher.end(run)
    return run


def _due(config: RunConfig, done: int, seconds: float) -> bool:
    """Whether to write a checkpoint after ``done`` rounds, ``seconds`` after the last one."""
    if config.checkpoint_every == "auto":
        return seconds > AUTO_SECONDS or done == config.rounds
    return config.checkpoint_every > 0 and (done % config.checkpoint_every == 0 or done == config.rounds)


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
        "kernels": kernels.describe(config.kernels),
        "versions": {"torch": torch.__version__},
        "rounds": run.records,
        **results.best_and_last(run.records),
    }


def _workers(config: RunConfig, spec: Spec) -> int:
    """How many worker processes: as told, or one for each core."""
    if config.workers != "auto":
        return config.workers
    if config.device != "cpu":
        return 1
    return max(1, min(cores(), spec.clients))
