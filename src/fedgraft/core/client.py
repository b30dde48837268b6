"""A client: its private named tensors, and the tools with which a method works on its data."""

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedgraft.base.errors import ContractError
from fedgraft.core import streams
from fedgraft.core.model import Layout, Model, Shared
from fedgraft.core.noise import Noising, Telling
from fedgraft.core.optimizer import Stepper, optimizer
from fedgraft.core.samples import ClientData, Samples
from fedgraft.core.settings import Training
from fedgraft.core.spec import ClientId as ClientId
from fedgraft.core.spec import Spec
from fedgraft.core.state import Borrower, State
from fedgraft.core.training import Loss, Phase, Update, descend, descend_privately, draws, plainly
from fedgraft.core.workbench import Workbench

Predictor = Callable[[Tensor], Tensor]


class Client(Borrower):
    """One client in one round.

    As a mapping it is the client's private state: named tensors that never leave it, and all that a checkpoint
    holds of it. ``own`` is always there: the whole weights as its last local training left them.
    """

    def __init__(
        self,
        id: ClientId,
        state: State,
        data: ClientData,
        spec: Spec,
        workbench: Workbench,
        *,
        round: int,
        purpose: str = "train",
        secret: str | None = None,
    ) -> None:
        super().__init__(state, workbench.device)
        self.id, self.data, self.spec, self.round = id, data, spec, round
        self.architecture, self.settings = spec.architecture(id), spec.settings
        self.rounds, self.clients, self.task = spec.rounds, spec.clients, spec.task
        self.share = spec.share  # of the clients in a round, as the run has it
        self.loss: float = float("nan")
        self.steps = 0
        self._workbench, self._purpose, self._secret = workbench, purpose, secret
        self._noise: Noising | None = None
        self._telling: Telling | None = None
        self.counted: int | None = None
        """The noised steps that were asked for, while nobody trains and they are only counted."""
        self.told: dict[str, Tensor] = {}
        """The noised sums over the samples that this round has, by name."""

    @property
    def own(self) -> Tensor:
        """The weights after the last local training (at first: the initial ones)."""
        return self["own"]

    # facts
    @property
    def layout(self) -> Layout:
        return self.architecture.layout

    @property
    def samples(self) -> int:
        """How many training samples the client has."""
        return len(self.data.train)

    @property
    def classes(self) -> int:
        """How many classes there are in the federation."""
        return self.task.classes

    @property
    def counts(self) -> Tensor:
        """How many training samples of each class the client has."""
        return self.data.train.counts(self.classes).to(self.device)

    @property
    def factor(self) -> float:
        """The factor of the run's schedule on a learning rate in this round."""
        return self.settings.factor(self.round, self.rounds)

    @property
    def rate(self) -> float:
        """The run's learning rate in this round."""
        return self.settings.lr * self.factor

    def initial(self, client: ClientId, independent: bool = False) -> Tensor:
        """Return a client's initial weights: they follow from the seed, which all clients share."""
        return self.spec.initial(client, independent)

    # what travels of a vector
    def take(self, vector: Tensor, part: Shared) -> Tensor:
        """Copy what is sent when ``part`` is shared, buffers by the run's policy."""
        return self.layout.take(vector, part, self.settings.buffers)

    def put(self, vector: Tensor, values: Tensor, part: Shared) -> Tensor:
        """Return ``vector`` with the received ``values`` in the place of ``part``."""
        return self.layout.put(vector, values, part, self.settings.buffers)

    def receive(self, values: Tensor, part: Shared) -> Tensor:
        """Return the client's own weights with the received ``values`` in the place of ``part``."""
        own = self._state["own"].to(self.device)  # only read: there is no need to copy it first
        return self.put(own, values, part)

    # random numbers
    def stream(self, purpose: str) -> np.random.Generator:
        """Random numbers of this client, round and purpose."""
        return streams.generator(self.spec.seed, self._purpose, purpose, self.round, self.id)

    def torch_stream(self, purpose: str) -> torch.Generator:
        """The same as a generator of torch's."""
        return streams.torch_generator(self.spec.seed, self._purpose, purpose, self.round, self.id)

    def secret_stream(self, what: str) -> np.random.Generator:
        """Random numbers for privacy, which at a site nobody else can know."""
        key: tuple[streams.Key, ...] = (self.spec.seed,) if self._secret is None else ("secret", self._secret)
        return streams.generator(*key, what, self.round, self.id)

    # models
    def model(self, weights: Tensor | None = None, role: str = "own") -> Model:
        """Return the network, loaded with ``weights``; a second ``role`` gives a second one."""
        model = self._workbench.model(self.architecture, role)
        if weights is not None:
            model.load(weights)
            frozen = self.layout.frozen
            if frozen.start < frozen.stop:  # a mixture of models may round them away from themselves
                model.vector[frozen] = self.own[frozen]
            model.integers = self.get("integers", self.architecture.integers)
        return model

    @property
    def device(self) -> torch.device:
        return self._workbench.device

    # work
    def train(
        self,
        start: Tensor,
        loss: Loss,
        phases: tuple[Phase, ...] = (Phase(),),
        *,
        samples: Samples | None = None,
        name: str = "batches",
        order: str | None = None,
        settings: Training | None = None,
        update: Update = plainly,
    ) -> Tensor:
        """Train from ``start`` on ``loss``, phase by phase; return the trained weights.

        Each ``name`` has its own batch order and its own memory of the optimizer, where the run keeps that. ``order``
        takes the batch order of another name, for a twin that is to see the same batches.
        ``settings`` replace the run's, for a method that is only itself with others (plain SGD, say); ``update``
        replaces the optimizer's step, for a method whose weights are made of something else that it learns.
        """
        settings = settings or self.settings
        model, data = self.model(start), self.data.train if samples is None else samples
        order = order or name
        rng, augmentation = self.stream(order), self._augmentation(order, data)
        noising = self._noising(name, samples)
        with self.stepper(name, settings=settings) as step:
            for phase in phases:
                epochs = draws(len(data), settings, phase.epochs, rng, pairs=model.normalises_batches)
                count = sum(map(len, epochs))
                if self.counted is not None:
                    self.counted += 0 if noising is None else count
                    continue
                rate = settings.lr if phase.lr is None else phase.lr
                move = step.on(self.layout.span(phase.part), rate * settings.factor(self.round, self.rounds))
                how: dict[str, Any] = {"part": phase.part, "augmentation": augmentation, "step": move, "update": update}
                if noising is None:
                    self.loss = descend(model, data, loss, epochs, **how)
                else:
                    descend_privately(model, data, loss, count, noising, **how)
                self.steps += count
        return self.trained(model, start)

    def _noising(self, name: str, samples: Samples | None) -> Noising | None:
        """What makes a training private, if it has to be: all that may reach what leaves, and nothing of a test."""
        budget = self.spec.budget
        if budget is None or self._purpose != "train" or name in budget.aside:
            return None
        if samples is not None:
            raise ContractError(f"{name!r} trains on a part of the samples, and is not counted so under privacy")
        if self._noise is None:
            sampling, noise = self.secret_stream("sampling"), self.secret_stream("noise")
            rate, left = budget.rates[self.id], budget.steps[self.id]
            expected = rate * self.samples
            self._noise = Noising(budget.clip, budget.noises[self.id], rate, expected, left, sampling, noise)
        return self._noise

    @property
    def private(self) -> bool:
        """Whether what is computed from the samples may leave only with noise."""
        return self.spec.budget is not None and self._purpose == "train"

    def tell(self, name: str, width: int, parts: Callable[[], Iterable[Tensor]]) -> Tensor:
        """Return a sum over the samples that may leave, under privacy: ``parts`` has a row for each sample.

        Each row is drawn in to a norm of 1, and the sum is noised. Asked for the same ``name`` again in a round, it is
        the same sum, and costs nothing.
        """
        budget = self.spec.budget
        assert budget is not None
        if name not in self.told:
            if self.counted is not None:
                self.told[name] = torch.zeros(width, dtype=torch.float64)
                return self.told[name]
            if self._telling is None:
                noise = self.secret_stream("sums")
                self._telling = Telling(budget.sum_noises[self.id], budget.sums[self.id], noise)
            self.told[name] = self._telling.sum(parts())
        return self.told[name]

    @contextmanager
    def stepper(
        self, name: str, *, lr: float | None = None, length: int | None = None, settings: Training | None = None
    ) -> Iterator[Stepper]:
        """Lend the run's optimizer for something called ``name``, at a rate of its own if it has one.

        What the optimizer remembers of it (momentum) begins with zeros, or as it was left where the run keeps that. The
        thing is as long as the network's parameters unless told otherwise.
        """
        settings = settings or self.settings
        made = optimizer(settings)
        kept = settings.optimizer_state == "kept"
        state: dict[str, Tensor] = {}
        for slot in made.slots:
            left = self.get(f"{slot}/{name}") if kept else None
            state[slot] = self._zeros(length or self.layout.trained) if left is None else left.clone()
        rate = (settings.lr if lr is None else lr) * settings.factor(self.round, self.rounds)
        yield Stepper(made, settings, rate, state)
        if kept:
            self.update({f"{slot}/{name}": vector for slot, vector in state.items()})

    def _augmentation(self, order: str, samples: Samples) -> torch.Generator | None:
        """What crops and mirror images are drawn from, if there are any."""
        return self.torch_stream(order + "/augmentation") if samples.preparation.augments else None

    def _zeros(self, length: int) -> Tensor:
        return torch.zeros(length, dtype=self.layout.dtype, device=self.device)

    def trained(self, model: Model, start: Tensor) -> Tensor:
        """Copy the weights of a live model that was trained from ``start``, its buffers by the run's policy."""
        if len(self.architecture.integers):
            self["integers"] = model.integers
        weights = model.vector.clone()
        if self.settings.buffers == "keep":
            weights[self.layout.trained :] = start[self.layout.trained :]
        return weights

    def batches(
        self, name: str, epochs: float | None = None, samples: Samples | None = None
    ) -> Iterator[tuple[Tensor, Tensor]]:
        """Shuffled training batches, for methods with an inner loop of their own."""
        data, settings = self.data.train if samples is None else samples, self.settings
        rng, augmentation = self.stream(name), self._augmentation(name, data)
        for epoch in draws(len(data), settings, epochs, rng, pairs=self.model().normalises_batches):
            for index in epoch:
                x, y = data.batch(index, augmentation)
                yield x.to(self.device), y.to(self.device)

    def predictor(self, weights: Tensor) -> Predictor:
        """Return a scorer that is the plain network with ``weights``."""
        return self.model(weights)
