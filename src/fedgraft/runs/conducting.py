"""The rounds of a planned run, from the first or from its last checkpoint, and what is left when they are over."""

import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from fedgraft import kernels
from fedgraft.base import memory
from fedgraft.base.version import __version__
from fedgraft.core.engine import Engine
from fedgraft.core.method import Method, Server
from fedgraft.core.rounds import Participation, Round, rounds
from fedgraft.core.secure import Secure
from fedgraft.core.stages import pipeline
from fedgraft.core.state import State
from fedgraft.data.federation import MANY, Federation
from fedgraft.engines.states import First, Shelf, States
from fedgraft.engines.workshop import single_thread
from fedgraft.runs import checkpoint, directory, names, results, unseen
from fedgraft.runs.checkpoint import Checkpoint
from fedgraft.runs.config import RunConfig, participation_range
from fedgraft.runs.guarantees import guarantees
from fedgraft.runs.history import History
from fedgraft.runs.population import Population
from fedgraft.runs.resultfile import FORMAT

if TYPE_CHECKING:
    from fedgraft.runs.run import Run

AUTO_SECONDS = 20.0


class Watcher(Protocol):
    """Somebody who wants to know how a run goes: a progress display, a tracker."""

    def begin(self, run: "Run") -> None: ...

    def round(self, run: "Run", this: Round) -> None: ...

    def end(self, run: "Run") -> None: ...


Hosting = Callable[["Run"], Engine]


def conduct(run: "Run", watchers: list[Watcher], host: Hosting, *, begun: bool = False) -> "Run":
    """Do the rounds that are left where ``host`` has the clients, keep what they give, close the books.

    A run that was ``begun`` before goes on from its newest whole checkpoint.
    """
    config, spec = run.config, run.spec
    server = run.server = run.method.setup(spec)
    participation = taking_part(config)
    saves = None if run.directory is None else run.directory / "checkpoints"
    if run.start is not None:
        run.start.settle(server)
    with single_thread(), host(run) as engine:
        if run.start is not None:
            engine.restore(run.start.clients)
        history = _past(run, server, engine, saves) if begun and saves else checkpoint.begin(saves)
        run.records = history.records
        for watcher in watchers:
            watcher.begin(run)
        saved = time.perf_counter()
        with directory.metrics(run.directory, run.records) as metrics:
            for this in rounds(
                run.method, server, engine, participation,
                evaluate_every=config.evaluate_every, evaluate_clients=config.evaluate_clients,
            ):  # fmt: skip
                history.add(results.record(this), this.observed)
                metrics(run.records[-1])
                if saves is not None and _due(config, server.round, time.perf_counter() - saved):
                    checkpoint.write(saves, _now(run, server, engine, history))
                    memory.give_back()
                    saved = time.perf_counter()
                for watcher in watchers:
                    watcher.round(run, this)
        run._states = everybodys_states(run, engine.snapshot())
    run.result = _result(run) | unseen.joined(run.method, server, run.federation, config)
    run.observed = history.observed()
    if run.directory is not None:
        results.write_observations(run.directory / "observed.safetensors", run.observed)
        results.write_result(run.directory, run.result)
    for watcher in watchers:
        watcher.end(run)
    return run


def taking_part(config: RunConfig) -> Participation:
    """Who takes part in a round; where whole clients are protected by a trusted server, by chance for each of them."""
    training = config.training
    trusted = training.client_private and not isinstance(pipeline(training.stages).gathering, Secure)
    return Participation(*participation_range(config.participation), poisson=trusted)


def _now(run: "Run", server: Server, engine: Engine, history: History) -> Checkpoint:
    """Say where a run is."""
    return Checkpoint(server.round, server, engine.snapshot(), history, run.identity.digest)


def _past(run: "Run", server: Server, engine: Engine, saves: Path) -> History:
    """Let server and clients be what they were at the newest whole checkpoint, and return what had happened."""
    directory.sweep(saves.parent)
    begun = _now(run, server, engine, History())
    if isinstance(run.federation, Federation):
        begun = replace(begun, clients=First(run.method, run.spec))
    start, complaints = checkpoint.read(saves, begun)
    run.notes += complaints
    if start is None:
        return checkpoint.begin(saves)
    server.restore(start.server, start.round)
    engine.restore(start.clients)
    known = results.tested_and_diverged(start.history.records, run.spec.clients)["test_samples"]
    server.tested = {("test", client): count for client, count in enumerate(known) if count}
    return start.history


def everybodys_states(run: "Run", met: Mapping[int, State]) -> Mapping[int, State]:
    """Return the states of all clients: as they were left, or as they began, where the run has them here."""
    if not isinstance(run.federation, Federation):
        return dict(met)
    return States(First(run.method, run.spec), met if isinstance(met, Shelf) else dict(met))


def _due(config: RunConfig, done: int, seconds: float) -> bool:
    """Whether to write a checkpoint after ``done`` rounds, ``seconds`` after the last one."""
    if config.checkpoint_every == "auto":
        return seconds > AUTO_SECONDS or done == config.rounds
    return config.checkpoint_every > 0 and (done % config.checkpoint_every == 0 or done == config.rounds)


def _label_counts(population: Population) -> list[list[int]] | None:
    """Who holds how many samples of what; of very many clients it is not written down, and no picture shows it."""
    counts = None if len(population) > MANY else population.counts()
    return None if counts is None else counts.tolist()


def _chosen(method: Method, config: RunConfig) -> dict[str, float | int]:
    """What tuning decides."""
    return {"lr": config.training.lr, **{each.name: getattr(method, each.name) for each in names.searched(method)}}


def _result(run: "Run") -> dict[str, Any]:
    config = run.config
    up, down = results.per_message(run.records)
    return {
        "format": FORMAT,
        "fedgraft": __version__,
        "digest": run.identity.digest,
        "method": run.method.name,
        "label": run.label,
        "params": run.method.parameters(),
        "tuned": _chosen(run.method, config) if config.tuned else {},
        "reconstruction": run.method.reconstruction,
        "headline": run.method.headline,
        "shows": dict(run.method.shows),
        "task": run.spec.task.name,
        "metrics": [metric.model_dump() for metric in run.metrics],
        "dataset": config.dataset,
        "partition": config.partition,
        "clients": run.spec.clients,
        "model": config.model,
        "seed": config.seed,
        **({} if run.start is None else {"start": dict(run.start.facts)}),
        "names": list(run.federation.names),
        "samples": list(run.spec.samples),
        "label_counts": _label_counts(run.federation),
        **results.lasted(run.records),
        "bytes_up_per_client": up,
        "bytes_down_per_client": down,
        "refused": sum(len(r["refused"]) for r in run.records),
        "privacy": guarantees(run.spec, run.records),
        "kernels": kernels.describe(config.kernels),
        "versions": run.identity.versions,
        "instructions": run.identity.instructions,
        "arithmetic": run.identity.arithmetic,
        "rounds": list(run.records),
        **results.tested_and_diverged(run.records, run.spec.clients),
        **results.best_and_last(run.records, run.metrics),
    }
