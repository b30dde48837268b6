"""What a worker needs of its device's memory, seen before anything runs there.

One client of each architecture does a round with a single step, and is tested, on the processor; a ledger looks on and
keeps count of all tensors that live at one time: weights and gradients, what the optimizer remembers, the activations
of a batch, a method's teachers and copies. No formula for each method is needed, and none can be out of date.
"""

import weakref
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from fedgraft.core import evaluation, streams
from fedgraft.core.client import ClientId
from fedgraft.core.method import Method, Spec
from fedgraft.core.optimizer import optimizer
from fedgraft.core.rounds import deliver
from fedgraft.core.samples import ClientData, Samples
from fedgraft.engines.states import first_states
from fedgraft.engines.together import perform
from fedgraft.engines.workshop import Job, Workshop, single_thread

CONTEXT = 600 * 2**20
"""Bytes that a process needs on a CUDA device before its first tensor: the driver's context and the libraries'
kernels. An assumption from what is usually seen, 300 to 600 MiB; no device was at hand to measure it."""
SLACK = 1.25
"""By how much an allocator that rounds and keeps blocks, and the workspaces of cuDNN and cuBLAS, add to the tensors. An
assumption too."""


@dataclass(frozen=True)
class Footprint:
    """Bytes of a worker on its device."""

    weights: int
    gradients: int
    optimizer: int
    besides: int
    """Activations of a batch, samples, copies and whatever else the method has: at the moment when it is most."""

    @property
    def tensors(self) -> int:
        return self.weights + self.gradients + self.optimizer + self.besides

    @property
    def need(self) -> int:
        """What has to be free for one worker."""
        return CONTEXT + round(SLACK * self.tensors)

    def __str__(self) -> str:
        parts = ("weights", "gradients", "optimizer", "besides")
        told = ", ".join(f"{name} {getattr(self, name):,}" for name in parts)
        return f"{self.need:,} bytes: {SLACK:g} times {self.tensors:,} ({told}) and {CONTEXT:,} for CUDA itself"


class Ledger(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Keeps count of the tensors that are made while it looks on; ``peak`` is the most bytes that lived at one time."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.now = self.peak = 0
        self._held: dict[int, int] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = func(*args, **(kwargs or {}))
        given = {_storage(each)._cdata for each in tree_leaves((args, kwargs)) if isinstance(each, Tensor)}
        for each in tree_leaves(made):
            if isinstance(each, Tensor) and (key := _storage(each)._cdata) not in self._held and key not in given:
                self._held[key] = _storage(each).nbytes()
                weakref.finalize(_storage(each), self._gone, key)
                self.now += self._held[key]
                self.peak = max(self.peak, self.now)
        return made

    def _gone(self, key: int) -> None:
        self.now -= self._held.pop(key)


def _storage(tensor: Tensor) -> torch.UntypedStorage:
    return tensor.untyped_storage()


def footprint(method: Method, spec: Spec, data: Sequence[ClientData], together: int | None = None) -> Footprint:
    """Rehearse a round with the largest client of each architecture, one step and one test each.

    Where clients train ``together``, as many of the largest do.
    """
    short = replace(spec, settings=spec.settings.but(steps=1))
    kinds = [_largest(spec, kind, together or 1) for kind in sorted(set(spec.assignment))]
    largest = [client for clients in kinds for client in clients]
    most = max(evaluation.BATCH, spec.settings.batch_size)
    some = {client: _few(data[client], most) for client in largest}
    workshop = Workshop(method, short, some, torch.device("cpu"))
    server = method.setup(short)
    with single_thread(), streams.untouched():
        states, messages = first_states(method, short, largest), deliver(method, server, largest)
        with Ledger() as ledger:
            for clients in kinds:
                jobs = [Job("train", client, 0, messages[client], states[client]) for client in clients]
                done = workshop.perform(jobs[0]) if together is None else perform(workshop, jobs)[0]
                left = {name: jobs[0].state[name] for name in done.same} | (done.state or {})
                workshop.perform(Job("evaluate", clients[0], 0, jobs[0].message, left))
                del done, left
    layouts = [architecture.layout for architecture in spec.architectures]
    weights = sum(layout.size * layout.dtype.itemsize for layout in layouts)
    gradients = sum(layout.trained * layout.dtype.itemsize for layout in layouts)
    memory = len(optimizer(spec.settings).slots) * max(layout.trained * layout.dtype.itemsize for layout in layouts)
    return Footprint(weights, gradients, memory, max(0, ledger.peak - weights - gradients - memory))


def _largest(spec: Spec, kind: int, count: int) -> list[ClientId]:
    clients = [client for client in range(spec.clients) if spec.assignment[client] == kind]
    return sorted(clients, key=lambda client: (-spec.samples[client], client))[:count]


def _few(data: ClientData, most: int) -> ClientData:
    """As many samples as can be on a device at one time."""

    def first(samples: Samples) -> Samples:
        return samples.subset(torch.arange(min(len(samples), most)))

    return ClientData(first(data.train), first(data.test), first(data.validation))
