"""All clients on one machine: worker processes with one thread each, and the data shared between them.

The parent owns every client's state. A job carries a client's message and state to an idle worker and brings its
reply and new state back, so that any worker can serve any client and a lost worker loses nothing.
"""

import multiprocessing
import os
import signal
import time
import traceback
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from threading import Thread
from typing import Any, Literal

import torch
from torch import Tensor

from fedgraft.base.errors import UserError
from fedgraft.core import streams
from fedgraft.core.client import ClientId
from fedgraft.core.exchange import Failure
from fedgraft.engines import devices, together
from fedgraft.engines.mailbox import Mailbox, shared_memory
from fedgraft.engines.simulation import Simulation
from fedgraft.engines.workshop import Done, Job, Workshop

GLANCE = 0.2
"""Seconds between two looks at workers that are busy."""


BATCHES = 8
"""Into how many batches, at least, the jobs of one worker in a wave are put: the fewer, the longer others wait."""
HEAVY = 2**25
"""Bytes with which a batch is large enough, however short its jobs are."""


class ClientError(RuntimeError):
    """A client's half of the method raised, or its worker died."""


class OverdueError(TimeoutError):
    """A worker had its time and was not done: no fault in anybody's code."""


@dataclass(frozen=True)
class Faults:
    """What to do about a client that raises, whose worker dies, or that takes too long.

    A worker that has computed for less than a thousandth of ``idle`` seconds hangs, or was suspended: it is replaced.
    """

    retries: int = 1
    then: Literal["stop", "absent"] = "stop"
    deadline: float | None = None
    idle: float = 600.0


@dataclass(eq=False)
class LocalEngine(Simulation):
    """Simulates a federation on this machine, with the same bits at any number of workers."""

    name = "local"
    workers: int = field(default=1, kw_only=True)
    faults: Faults = field(default=Faults(), kw_only=True)
    together: int | None = field(default=None, kw_only=True)
    """How many clients that are alike train as one batch of networks; none: each by itself."""

    def __post_init__(self) -> None:
        super().__post_init__()
        places, kind = devices.listed(self.device), self.workshop.device.type
        apart = self.workers > 1 or kind == devices.CUDA  # this process opens no CUDA: it could not fork any more
        if not apart and self.faults.deadline is not None:  # nobody can stop a job in this process
            if kind != devices.CPU:
                raise UserError(
                    f"a deadline needs a worker process, and clients on {self.device} train in this one: leave it out"
                )
            apart = True
        shops = [replace(self.workshop, device=torch.device(places[n % len(places)])) for n in range(self.workers)]
        self._workers = [Worker(shop) for shop in shops] if apart else []

    def close(self) -> None:
        """End every worker."""
        for worker in self._workers:
            worker.close()
        self._workers = []

    def perform(self, jobs: Sequence[Job]) -> dict[ClientId, Done | Failure]:
        """Do all jobs, the longest first, each on the next idle worker; short ones go to it several at a time."""
        queue = deque(self._batches(jobs))
        tries = {job.client: 0 for job in jobs}
        done: dict[ClientId, Done | Failure] = {}

        def note(job: Job, result: Done | BaseException) -> None:
            """Keep a result; put a job that failed back, as often as the faults allow."""
            if isinstance(result, Done):
                done[job.client] = result
                return
            if isinstance(result, UserError):
                raise result
            tries[job.client] += 1
            if tries[job.client] <= self.faults.retries:
                queue.append(self._alone(job))
            elif self.faults.then == "absent":
                done[job.client] = Failure(f"the client failed: {_first_line(result)}")
            else:
                where = f"{self.method.name}, round {job.round + 1}, {self.spec.called(job.client)}"
                if isinstance(result, OverdueError):
                    raise UserError(f"{where}: {result}; --failed-client absent goes on without it") from None
                raise ClientError(f"{where}: {result}") from result

        if not self._workers:
            with streams.untouched():
                while queue:
                    batch = queue.popleft()
                    for job, result in zip(batch, _results(self.workshop, batch), strict=True):
                        note(job, result)
            return done
        idle, busy = list(self._workers), dict[Connection, _Duty]()
        while queue or busy:
            while queue and idle:
                worker, batch = idle.pop(), queue.popleft()
                try:
                    worker.begin(batch)
                except OSError:  # it died while it had nothing to do
                    worker = self._replace(worker)
                    worker.begin(batch)
                busy[worker.connection] = _Duty(worker, batch)
            ready = set(wait(list(busy), timeout=GLANCE))
            for connection, duty in list(busy.items()):
                results = duty.worker.finish() if connection in ready else duty.overdue(self.faults)
                if results is None:
                    continue
                worker, keep = duty.worker, connection in ready and duty.worker.process.is_alive()
                del busy[connection]
                idle.append(worker if keep else self._replace(worker))
                if isinstance(results, BaseException) and len(duty.batch) > 1:  # each by itself: who was it?
                    queue.extend(map(self._alone, duty.batch))
                    continue
                each = [results] if isinstance(results, BaseException) else results
                for job, result in zip(duty.batch, each, strict=True):
                    note(job, result)
        return done

    def _batches(self, jobs: Sequence[Job]) -> Iterator[list[Job]]:
        """Put jobs together that are short beside what each worker has to do; a deadline is for one client alone."""
        if self.together is not None and all(job.purpose == "train" for job in jobs):
            yield from together.groups(jobs, self.spec, self.together)
            return
        size = {job.client: len(self.workshop.data[job.client].train) for job in jobs}
        enough = sum(size.values()) / (BATCHES * max(1, len(self._workers)))
        alone = not self._workers or self.faults.deadline is not None
        batch, samples, weight, travelling = list[Job](), 0, 0, dict[int, Tensor]()
        for job in sorted(jobs, key=lambda job: (-size[job.client], job.client)):
            batch.append(job)
            samples += size[job.client]
            more = {id(tensor): tensor for some in (job.message, job.state) for tensor in some.values()}
            weight += sum(tensor.nbytes for key, tensor in more.items() if key not in travelling)
            travelling |= more  # a message that several share travels once
            if alone or samples >= enough or weight >= HEAVY:
                yield batch
                batch, samples, weight, travelling = [], 0, 0, {}
        if batch:
            yield batch

    def _alone(self, job: Job) -> list[Job]:
        """A batch of one job, which is done as it would be among others."""
        return together.Group([job]) if self.together is not None and job.purpose == "train" else [job]

    def _replace(self, worker: "Worker") -> "Worker":
        """Put a fresh worker in the place of one that died or hangs."""
        worker.close(patience=0.0)
        fresh = Worker(worker.workshop)
        self._workers[self._workers.index(worker)] = fresh
        return fresh


class _Duty:
    """Jobs that a worker is at, and how long it may be."""

    def __init__(self, worker: "Worker", batch: Sequence[Job]) -> None:
        self.worker, self.batch = worker, batch
        self._started = self._looked = time.monotonic()
        self._watched = 0.0
        self._used: float | None = None

    def overdue(self, faults: Faults) -> OverdueError | None:
        """Say that the worker has had its time: that of the run, or so much in which it did as good as nothing.

        Only time in which we looked on counts: if this process was stopped as well, so was everything.
        """
        now = time.monotonic()
        if faults.deadline is not None and now - self._started > faults.deadline:
            return OverdueError(f"it took more than the {faults.deadline:g} s of the deadline")
        if not self._watched:
            if now - self._started < GLANCE:  # most jobs are done before anybody has to ask how they go
                return None
            self._used = self.worker.processor_seconds()
        self._watched += min(now - self._looked, 5 * GLANCE)
        self._looked = now
        if self._watched < faults.idle or self._used is None:
            return None
        before, self._used = self._used, self.worker.processor_seconds()
        if self._used is not None and self._used - before < faults.idle / 1000:
            return OverdueError(f"its worker process did nothing for {faults.idle:g} s: it hangs, or was suspended")
        self._watched = 0.0
        return None


class Worker:
    """A process that does one batch of jobs at a time."""

    _connections: list[Connection] = []  # noqa: RUF012  (the parent's ends: a new worker closes those it inherits)

    def __init__(self, workshop: Workshop) -> None:
        self.workshop = workshop
        # a fork shares the data without a copy and takes any module or method, also one defined in a notebook
        forks = devices.forks(workshop.device)
        context: Any = multiprocessing.get_context("fork" if forks else "spawn")
        self.connection, theirs = context.Pipe()
        jobs, results = (shared_memory(), shared_memory()) if forks else (None, None)
        self._mailbox = Mailbox(self.connection, outgoing=jobs, incoming=results)
        Worker._connections.append(self.connection)
        inherited = list(Worker._connections) if forks else []
        life = (Mailbox(theirs, outgoing=results, incoming=jobs), workshop, inherited, os.getpid())
        self.process: BaseProcess = context.Process(target=_serve, args=life, daemon=True)
        self.process.start()
        theirs.close()

    def begin(self, batch: Sequence[Job]) -> None:
        self._mailbox.send(batch)

    def finish(self) -> list[Done | BaseException] | BaseException:
        try:
            results: list[Done | BaseException] = self._mailbox.receive(keep=True)
        except (EOFError, ConnectionError):
            self.process.join(timeout=5)
            return RuntimeError(f"its worker process died (exit code {self.process.exitcode})")
        return results

    def processor_seconds(self) -> float | None:
        """How long the process has computed; nothing, where the system does not say."""
        try:
            told = Path(f"/proc/{self.process.pid}/stat").read_text("utf-8").rpartition(")")[2].split()
            return (int(told[11]) + int(told[12])) / os.sysconf("SC_CLK_TCK")
        except (OSError, ValueError, IndexError):
            return None

    def close(self, patience: float = 2.0) -> None:
        """Hang up; a worker that does not go by itself is killed."""
        Worker._connections.remove(self.connection)
        self.connection.close()
        self.process.join(timeout=patience)
        if self.process.is_alive():
            self.process.kill()
            self.process.join(timeout=5)


def _first_line(error: BaseException) -> str:
    return str(error).partition("\n")[0] or type(error).__name__


def _serve(mailbox: Mailbox, workshop: Workshop, inherited: list[Connection], parent: int) -> None:
    """A worker's life: jobs until the parent hangs up or is gone."""
    Thread(target=_end_with, args=(parent,), daemon=True).start()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole group; the parent decides
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    for other in inherited:
        other.close()
    torch.set_num_threads(1)
    closed = _closed(workshop)
    while True:
        try:
            batch = mailbox.receive(keep=False)
        except (EOFError, OSError):
            return
        try:
            mailbox.send([closed] * len(batch) if closed else [_sent(each) for each in _results(workshop, batch)])
        except OSError:  # the parent is gone
            return


def _closed(workshop: Workshop) -> UserError | None:
    """Open the device of this worker, or say why it has none."""
    try:
        devices.opened(workshop.device)
    except UserError as error:
        return error
    return None


def _results(workshop: Workshop, batch: Sequence[Job]) -> Iterator[Done | BaseException]:
    """Do jobs, one after another or together."""
    if isinstance(batch, together.Group):
        yield from _group(workshop, batch)
        return
    for job in batch:
        try:
            yield workshop.perform(job)
        except torch.OutOfMemoryError as error:
            yield devices.out_of_memory(workshop.device, error)
        except Exception as error:
            yield error


def _group(workshop: Workshop, group: together.Group) -> Sequence[Done | BaseException]:
    """Do jobs together; if that fails, each by itself: who was it?"""
    try:
        return together.perform(workshop, group)
    except torch.OutOfMemoryError as error:
        return [devices.out_of_memory(workshop.device, error)] * len(group)
    except Exception as error:
        if len(group) == 1:
            return [error]
    return [result for job in group for result in _group(workshop, together.Group([job]))]


def _sent(result: Done | BaseException) -> Done | BaseException:
    """Make a result one that can travel; of a state, what is as it was need not go back."""
    if isinstance(result, UserError):
        return result
    if isinstance(result, BaseException):
        told = "".join(traceback.format_exception(result))
        return RuntimeError(f"{type(result).__name__}: {result}\n{told}")
    if result.state is None:
        return result
    return replace(result, state={name: tensor for name, tensor in result.state.items() if name not in result.same})


def _end_with(parent: int) -> None:
    """End this worker soon after its parent was killed, even in a job that never ends: nobody waits for it."""
    while os.getppid() == parent:
        time.sleep(1)
    os._exit(1)


def cores() -> int:
    """How many cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
