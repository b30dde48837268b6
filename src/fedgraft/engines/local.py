"""All clients on one machine: worker processes with one thread each, and the data shared between them.

The parent owns every client's state. A job carries a client's message and state to an idle worker and brings its
reply and new state back, so that any worker can serve any client and a lost worker loses nothing.
"""

import io
import multiprocessing
import os
import pickle
import signal
import time
import traceback
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from fedgraft.core import exchange, streams
from fedgraft.core.client import Client, ClientId, State, Workbench
from fedgraft.core.errors import UserError
from fedgraft.core.evaluation import Scores
from fedgraft.core.exchange import Outcome
from fedgraft.core.message import Message
from fedgraft.core.method import Method, Spec
from fedgraft.core.samples import ClientData

Task = Literal["train", "evaluate"]
Arrays = dict[str, np.ndarray[Any, Any]]


class ClientError(RuntimeError):
    """A client's half of the method raised, or its worker died."""


@dataclass(frozen=True)
class Job:
    """One client's work in one round."""

    task: Task
    client: ClientId
    round: int
    message: Message
    state: State


@dataclass(frozen=True)
class Done:
    """What a job gave."""

    outcome: Outcome | None = None
    state: State | None = None
    scores: Scores | None = None


@dataclass(frozen=True, eq=False)
class Workshop:
    """Everything that a worker needs besides the job: it is there before the first job and never changes."""

    method: Method
    spec: Spec
    data: Sequence[ClientData]
    device: torch.device

    def perform(self, job: Job, workbench: Workbench) -> Done:
        """Do a job. The client works on copies: only what comes back with the result counts."""
        started, spec = time.perf_counter(), self.spec
        torch.manual_seed(streams.torch_seed(spec.seed, job.task, "torch", job.round, job.client))
        client = Client(
            job.client,
            {name: tensor.to(self.device, copy=True) for name, tensor in job.state.items()},
            self.data[job.client],
            spec.architecture(job.client),
            spec.settings,
            workbench,
            seed=spec.seed, round=job.round, rounds=spec.rounds, classes=spec.classes, clients=spec.clients,
            purpose=job.task,
        )  # fmt: skip
        message = job.message.to(self.device)
        if job.task == "evaluate":
            return Done(scores=exchange.evaluate(self.method, client, message))
        reply = exchange.train(self.method, client, message).to(torch.device("cpu"))
        outcome = Outcome(reply, client.loss, client.steps, time.perf_counter() - started)
        return Done(outcome, {name: tensor.cpu() for name, tensor in client.items()})


class LocalEngine:
    """Simulates a federation on this machine, with the same bits at any number of workers."""

    def __init__(
        self, method: Method, spec: Spec, data: Sequence[ClientData], *, workers: int = 1, device: str = "cpu"
    ) -> None:
        self.method, self.spec = method, spec
        self.states: dict[ClientId, State] = {}
        shared: dict[int, Tensor] = {}
        for client in range(spec.clients):
            if method.independent_start:
                own = spec.initial(client, independent=True)
            else:
                own = shared.setdefault(spec.assignment[client], spec.initial(client))
            self.states[client] = {"own": own}
        self._pending: dict[ClientId, State] = {}
        self._workshop = Workshop(method, spec, data, torch.device(device))
        self._workers = [Worker(self._workshop) for _ in range(workers)] if workers > 1 else []
        self._workbench = Workbench(self._workshop.device)

    def train(self, round: int, messages: Mapping[ClientId, Message]) -> Mapping[ClientId, Outcome]:
        done = self._perform([Job("train", c, round, m, self.states[c]) for c, m in messages.items()])
        self._pending = {client: result.state for client, result in done.items() if result.state is not None}
        return {client: result.outcome for client, result in done.items() if result.outcome is not None}

    def settle(self, accepted: Collection[ClientId]) -> None:
        for client in accepted:
            self.states[client] = self._pending[client]
        self._pending = {}

    def evaluate(self, round: int, messages: Mapping[ClientId, Message]) -> Mapping[ClientId, Scores]:
        done = self._perform([Job("evaluate", c, round, m, self.states[c]) for c, m in messages.items()])
        return {client: result.scores for client, result in done.items() if result.scores is not None}

    def traits(self) -> Mapping[str, Tensor]:
        each = [self.method.traits(self.states[client]) for client in range(self.spec.clients)]
        names = set.intersection(*(set(traits) for traits in each))
        return {name: torch.stack([traits[name] for traits in each]) for name in sorted(names)}

    def close(self) -> None:
        """End every worker."""
        for worker in self._workers:
            worker.close()
        self._workers = []

    def __enter__(self) -> "LocalEngine":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _perform(self, jobs: Sequence[Job]) -> dict[ClientId, Done]:
        """Do all jobs, the longest first, each on the next idle worker."""
        size = {job.client: len(self._workshop.data[job.client].train) for job in jobs}
        queue = sorted(jobs, key=lambda job: (-size[job.client], job.client))
        done: dict[ClientId, Done] = {}
        if not self._workers:
            for job in queue:
                try:
                    with own_random_state():
                        done[job.client] = self._workshop.perform(job, self._workbench)
                except UserError:
                    raise
                except Exception as error:
                    raise self._failure(job, error) from error
            return done
        waiting = iter(queue)
        busy: dict[Connection, tuple[Worker, Job]] = {}
        for worker, job in zip(self._workers, waiting, strict=False):
            worker.begin(job)
            busy[worker.connection] = worker, job
        while busy:
            for connection in wait(list(busy)):
                assert isinstance(connection, Connection)
                worker, job = busy.pop(connection)
                result = worker.finish()
                if isinstance(result, BaseException):
                    raise result if isinstance(result, UserError) else self._failure(job, result) from result
                done[job.client] = result
                if (following := next(waiting, None)) is not None:
                    worker.begin(following)
                    busy[connection] = worker, following
        return done

    def _failure(self, job: Job, error: BaseException) -> ClientError:
        where = f"{self.method.name}, round {job.round + 1}, client {job.client}"
        return ClientError(f"{where}: {type(error).__name__}: {error}")


class Worker:
    """A process that does one job at a time."""

    _connections: list[Connection] = []  # noqa: RUF012  (the parent's ends: a new worker closes those it inherits)

    def __init__(self, workshop: Workshop) -> None:
        # a fork shares the data without a copy and takes any module or method, also one defined in a notebook
        forks = hasattr(os, "fork")
        context: Any = multiprocessing.get_context("fork" if forks else "spawn")
        self.connection, theirs = context.Pipe()
        Worker._connections.append(self.connection)
        inherited = list(Worker._connections) if forks else []
        self.process: BaseProcess = context.Process(target=_serve, args=(theirs, workshop, inherited), daemon=True)
        self.process.start()
        theirs.close()

    def begin(self, job: Job) -> None:
        self.connection.send_bytes(_pack(job))

    def finish(self) -> Done | BaseException:
        try:
            result: Done | BaseException = _unpack(self.connection.recv_bytes())
        except (EOFError, ConnectionError):
            self.process.join(timeout=5)
            return RuntimeError(f"its worker process died (exit code {self.process.exitcode})")
        return result

    def close(self) -> None:
        Worker._connections.remove(self.connection)
        self.connection.close()
        self.process.join(timeout=2)
        if self.process.is_alive():
            self.process.terminate()
            self.process.join(timeout=5)


def _serve(connection: Connection, workshop: Workshop, inherited: list[Connection]) -> None:
    """A worker's life: jobs until the parent hangs up."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    for other in inherited:
        other.close()
    torch.set_num_threads(1)
    workbench = Workbench(workshop.device)
    while True:
        try:
            job = _unpack(connection.recv_bytes())
        except (EOFError, OSError):
            return
        try:
            result: Any = workshop.perform(job, workbench)
        except UserError as error:
            result = error
        except Exception as error:
            result = RuntimeError(f"{error!r}\n{traceback.format_exc()}")
        connection.send_bytes(_pack(result))


class _Pickler(pickle.Pickler):
    """Tensors travel as plain arrays: several times cheaper than torch's own pickling."""

    def reducer_override(self, obj: Any) -> Any:
        if type(obj) is Tensor:
            return torch.from_numpy, (obj.detach().contiguous().numpy(),)
        if type(obj) is Message:
            return _message, (dict(obj),)
        return NotImplemented


def _message(fields: dict[str, Tensor]) -> Message:
    return Message(**fields)


def _pack(value: Any) -> bytes:
    stream = io.BytesIO()
    _Pickler(stream, protocol=5).dump(value)
    return stream.getvalue()


def _unpack(data: bytes) -> Any:
    return pickle.loads(data)


@contextmanager
def own_random_state() -> Iterator[None]:
    """Leave the caller's torch generator as it was."""
    with torch.random.fork_rng(devices=[]):
        yield


@contextmanager
def single_thread() -> Iterator[None]:
    """One thread for torch: results must not depend on how many cores the machine has."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)
