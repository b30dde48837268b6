"""Clients that are alike take their steps together: one computation on a batch of networks, instead of many small ones.

Each client has its own weights, batches and random streams, and ends where it would by itself, up to rounding. Their
weights are rows of a matrix; ``torch.func.vmap`` lets the network run on all rows at once, and the optimizer's step is
the same few operations on the matrix. A client with fewer steps leaves when it has made them; a batch that is smaller
than others is filled up with a sample that counts nothing.

Only the plain client half can be done so: that a method leaves ``fit`` and ``loss`` alone can be seen, and that a
network gives each row the gradient that it has alone is tried on samples before the run starts.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.func import functional_call, vmap

from fedgraft.core import exchange, streams
from fedgraft.core.client import Client, ClientId
from fedgraft.core.gradients import Whole
from fedgraft.core.message import Message
from fedgraft.core.method import Method, Spec
from fedgraft.core.model import Model
from fedgraft.core.optimizer import SGD, Stepper, optimizer
from fedgraft.core.samples import ClientData
from fedgraft.core.task import Task
from fedgraft.core.training import Phase, draws
from fedgraft.engines.workshop import Done, Job, Workshop

NAME = "batches"
"""What the training of the plain client half is called, by which its batches are drawn."""
ROLE = "together"
_TRIED = 3
"""Samples on which a network is tried."""


class Group(list[Job]):
    """Jobs of clients that train together."""


def groups(jobs: Sequence[Job], spec: Spec, most: int) -> Iterator[Group]:
    """Put clients with the same architecture together, those with about as many samples first.

    Who is with whom is decided by who takes part, and not by workers, since it may decide the last bits.
    """
    by_size = sorted(jobs, key=lambda job: (spec.assignment[job.client], -spec.samples[job.client], job.client))
    group = Group()
    for job in by_size:
        if group and (len(group) == most or spec.assignment[job.client] != spec.assignment[group[0].client]):
            yield group
            group = Group()
        group.append(job)
    if group:
        yield group


def perform(workshop: Workshop, group: Sequence[Job]) -> list[Done]:
    """Do the jobs of clients that train together."""
    started = time.perf_counter()
    visits = [_Visit.of(workshop, job) for job in group]
    plans: dict[tuple[Phase, ...], list[_Visit]] = {}
    for visit in visits:
        plans.setdefault(workshop.method.plan(visit.client), []).append(visit)
    for phases, some in plans.items():
        _train(sorted(some, key=lambda visit: -visit.client.samples), phases)
    replies = [visit.answer(workshop.method) for visit in visits]
    seconds = (time.perf_counter() - started) / len(visits)
    return [
        workshop.part(visit.job, visit.client, visit.message, reply, seconds)
        for visit, reply in zip(visits, replies, strict=True)
    ]


@dataclass
class _Visit:
    """A client between its download and its upload."""

    job: Job
    client: Client
    message: Message
    received: Tensor
    back: Callable[[], None]
    """Puts the generators where they were after the download."""
    trained: Tensor

    @classmethod
    def of(cls, workshop: Workshop, job: Job) -> "_Visit":
        client, message = workshop.meet(job)
        received = exchange.receive(workshop.method, client, message)
        return cls(job, client, message, received, streams.noted(), received)

    def answer(self, method: Method) -> Message:
        self.back()
        return exchange.answer(method, self.client, self.received, self.trained)


def _train(visits: Sequence[_Visit], phases: Sequence[Phase]) -> None:
    """Train clients, of whom the first has most samples, as ``Client.train`` does each of them."""
    clients, first = [visit.client for visit in visits], visits[0].client
    settings = first.settings
    with ExitStack() as lent:
        steppers = [lent.enter_context(client.stepper(NAME)) for client in clients]
        memory = {slot: torch.stack([each.state[slot] for each in steppers]) for slot in steppers[0].state}
        rows = torch.empty(len(clients), first.layout.size, dtype=first.layout.dtype, device=first.device)
        for row, visit in zip(rows, visits, strict=True):
            row.copy_(visit.client.model(visit.received).vector)
        stack, feeds = Stack(first.model(role=ROLE), first.task, rows), [_Feed(client) for client in clients]
        for phase in phases:
            rate = (settings.lr if phase.lr is None else phase.lr) * settings.factor(first.round, first.rounds)
            _descend(stack, feeds, phase, Stepper(steppers[0].optimizer, settings, rate, memory))
        for number, stepper in enumerate(steppers):
            for slot, vector in stepper.state.items():
                vector.copy_(memory[slot][number])
    for visit, row in zip(visits, rows, strict=True):
        visit.trained = visit.client.trained(visit.client.model(row), visit.received)


def _descend(stack: "Stack", feeds: Sequence["_Feed"], phase: Phase, step: Stepper) -> None:
    """Do one phase; clients that have made their steps, the last ones, leave."""
    span = stack.model.layout.span(phase.part)
    steps = [feed.draw(phase) for feed in feeds]
    total, seen = stack.weights.new_zeros(len(feeds)), [0] * len(feeds)
    for number in range(steps[0]):
        active = sum(count > number for count in steps)
        x, y, shares, sizes = _filled([feed.batch(number) for feed in feeds[:active]], stack.weights)
        losses = stack.differentiate(x, y, shares, span)
        part = {slot: vector[:active] for slot, vector in step.state.items()}
        moves = Stepper(step.optimizer, step.settings, step.rate, part).on(span, step.rate)
        moves(stack.weights[:active, span], stack.gradient[:active, span])
        counted = [size if feed.is_last(number) else 0 for size, feed in zip(sizes, feeds, strict=False)]
        if any(counted):
            total[:active] += losses * losses.new_tensor(counted)
            seen[:active] = [before + now for before, now in zip(seen, counted, strict=False)]
    for feed, loss, count, made in zip(feeds, total.tolist(), seen, steps, strict=True):
        feed.client.loss = loss / count if count else float("nan")
        feed.client.steps += made


class _Feed:
    """A client's batches, in the order in which it would meet them by itself."""

    def __init__(self, client: Client) -> None:
        self.client = client
        self._rng, self._augmentation = client.stream(NAME), client.torch_stream(NAME + "/augmentation")
        self._batches: list[Tensor] = []
        self._last = 0

    def draw(self, phase: Phase) -> int:
        """Draw the batches of a phase; return how many there are."""
        data, settings = self.client.data.train, self.client.settings
        epochs = draws(len(data), settings, phase.epochs, self._rng, pairs=False)
        self._batches = [index for epoch in epochs for index in epoch]
        self._last = len(self._batches) - (len(epochs[-1]) if epochs else 0)
        return len(self._batches)

    def batch(self, number: int) -> tuple[Tensor, Tensor]:
        return self.client.data.train.batch(self._batches[number], self._augmentation)

    def is_last(self, number: int) -> bool:
        """Whether a batch is of the last epoch, whose loss is told."""
        return number >= self._last


def _filled(batches: Sequence[tuple[Tensor, Tensor]], like: Tensor) -> tuple[Tensor, Tensor, Tensor, list[int]]:
    """Lay batches under each other, filled up to the longest; say each sample's share in a mean, and their lengths."""
    sizes = [len(y) for _, y in batches]
    width = max(sizes)
    shares = torch.tensor([[1 / size] * size + [0.0] * (width - size) for size in sizes], dtype=like.dtype)
    if min(sizes) < width:  # with a sample that is there: on made-up ones a network may give what is not finite
        batches = [(_lengthened(x, width), _lengthened(y, width)) for x, y in batches]
    x, y = torch.stack([x for x, _ in batches]), torch.stack([y for _, y in batches])
    return x.to(like.device), y.to(like.device), shares.to(like.device), sizes


def _lengthened(rows: Tensor, length: int) -> Tensor:
    more = length - len(rows)
    return torch.cat([rows, rows[:1].expand(more, *rows.shape[1:])]) if more else rows


_Views = tuple[dict[str, Tensor], list[Tensor], list[Tensor]]


class Stack:
    """Networks of one architecture: their weights under each other, and the gradients of their losses."""

    def __init__(self, model: Model, task: Task, weights: Tensor) -> None:
        self.model, self.weights = model, weights
        self.gradient = torch.zeros(len(weights), model.layout.trained, dtype=weights.dtype, device=weights.device)
        self._whole = Whole(model, lambda model, x, y: _each(task, model.score(x)[1], y))
        self._views: dict[tuple[int, int, int], _Views] = {}

    def differentiate(self, x: Tensor, y: Tensor, shares: Tensor, span: slice) -> Tensor:
        """Let the first rows meet a batch each; their gradients are left in ``gradient``, and the losses returned."""
        self.model.module.train()
        named, moved, gradients = self._seen(len(x), span)
        losses: Tensor = vmap(self._loss)(named, x, y, shares)
        if moved:
            found = torch.autograd.grad(losses.sum(), moved, allow_unused=True, materialize_grads=True)
            for gradient, each in zip(gradients, found, strict=True):
                gradient.copy_(each)
        return losses.detach()

    def _loss(self, named: dict[str, Tensor], x: Tensor, y: Tensor, shares: Tensor) -> Tensor:
        value: Tensor = (functional_call(self._whole, named, (x, y)) * shares).sum()
        return value

    def _seen(self, rows: int, span: slice) -> "_Views":
        """The tensors of the first rows by name, those in the span, which move, and the gradients of these."""
        key = (rows, span.start, span.stop)
        if key not in self._views:
            slots = self.model.layout.slots
            named = {slot.name: vmap(slot.view)(self.weights[:rows]).detach() for slot in slots}
            moving = [s for s in slots if s.trained and span.start <= s.start and s.stop <= span.stop]
            moved = [named[slot.name].requires_grad_() for slot in moving]
            gradients = [vmap(slot.view)(self.gradient[:rows]) for slot in moving]
            self._views[key] = {f"module.{name}": view for name, view in named.items()}, moved, gradients
        return self._views[key]


def _each(task: Task, outputs: Tensor, targets: Tensor) -> Tensor:
    """The loss of each sample."""
    return vmap(lambda output, target: task.loss(output[None], target[None]))(outputs, targets)


# ---- whether it can be


def objection(method: Method, spec: Spec, data: Sequence[ClientData]) -> str | None:
    """Say why a method or a network cannot be trained so, or nothing."""
    for hook in ("fit", "loss"):
        if getattr(type(method), hook) is not getattr(Method, hook):
            return f"{method.name} has its own {hook}"
    settings = spec.settings
    if spec.budget is not None:
        return "private training takes its samples one by one already"
    if type(optimizer(settings)) is not SGD:
        return f"{settings.optimizer} is not written for several clients at once, as sgd is"
    if settings.clip_norm is not None:
        return "clip_norm is not written for several clients at once"
    for kind in sorted(set(spec.assignment)):
        client = max(range(spec.clients), key=lambda c: (spec.assignment[c] == kind, spec.samples[c]))
        if complaint := _complaint(spec, client, data[client]):
            return complaint
    return None


def _complaint(spec: Spec, client: ClientId, data: ClientData) -> str | None:
    """Say why the network of a client does not train with others, by trying it."""
    architecture, task = spec.architecture(client), spec.task
    if architecture.state:
        return f"the network keeps state in Python ({architecture.state[0]})"
    x, y = data.train.batch(slice(0, _TRIED))
    fewer = max(1, len(y) - 1)  # in the second batch the last sample counts nothing
    batches = [(x, y), (x[:fewer], y[:fewer])]
    shares = _filled(batches, torch.zeros((), dtype=architecture.layout.dtype))[2]
    rows = torch.stack([architecture.initial("together", number) for number in range(2)])
    with streams.untouched():
        alone = architecture.model()
        if alone.normalises_batches:
            return "BatchNorm changes its statistics in training"
        expected = []
        for row, (inputs, targets) in zip(rows, batches, strict=True):
            alone.load(row).train_on(_TRIED)
            before, integers = torch.get_rng_state(), alone.integers
            expected.append(alone.differentiate(task.loss(alone(inputs), targets)).clone())
            if not torch.equal(before, torch.get_rng_state()):
                return "the network draws random numbers (dropout)"
            if not (torch.equal(alone.vector, row) and torch.equal(alone.integers, integers)):
                return "the network has buffers that training changes"
        try:
            stack = Stack(architecture.model(), task, rows)
            stack.differentiate(torch.stack([x, x]), torch.stack([y, y]), shares, architecture.layout.span("all"))
        except Exception as error:  # of somebody's own module or task
            said = str(error).partition("\n")[0]
            return f"the network does not run on several clients' weights at once ({type(error).__name__}: {said})"
    for found, wanted in zip(stack.gradient, expected, strict=True):
        if not torch.allclose(found, wanted, rtol=1e-3, atol=1e-5 * (1 + float(wanted.abs().max()))):
            return "in a batch of networks it has other gradients: do samples of a batch reach each other?"
    return None
