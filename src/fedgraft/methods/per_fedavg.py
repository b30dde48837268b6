"""Per-FedAvg: learn a common start from which one gradient step on a client's data makes a good model for it.

Fallah, Mokhtari, Ozdaglar. Personalized Federated Learning with Theoretical Guarantees: A Model-Agnostic Meta-Learning
Approach. NeurIPS 2020, arXiv 2002.07948.

Symbols: w the common start, f_i the loss of client i, F_i(w) = f_i(w - alpha grad f_i(w)) what is minimised; D, D' and
D'' batches, drawn independently of each other; alpha the step of adaptation, beta the step of w.

Local step of client i

    w~ = w - alpha grad f_i(w; D)
    g  = grad f_i(w~; D')
    w <- w - beta g                                          FO, first order: the Hessian is left out
    w <- w - beta (g - alpha d)                              HF, Hessian-free:
    d  = (grad f_i(w + delta g; D'') - grad f_i(w - delta g; D'')) / (2 delta),   nearly the Hessian at w times g

The server averages as FedAvg does. In use: v_i = w - alpha grad f_i(w; D), discarded afterwards.

Readings
- Points: ``received`` is v_i, made from the newest w by every client, selected or not: the paper's figure. It contains
  one step of training after the download. ``trained`` is w_i after the last round's training, not adapted.
- Variants: HF is the better approximation, and the default; ``variant="fo"`` is cheaper (two gradients a step instead
  of four) and what most comparisons run.
- Work: the run's epochs are passes of D', one step of w for each batch, as many as FedAvg makes; D and D'' come from
  passes of their own. The paper counts steps (tau = 10), and so does a run with ``steps``.
- beta is the run's learning rate with its optimizer, momentum, decay and schedule; the paper's is 0.001 with plain SGD.
  So alpha = 0 is FedAvg, bit for bit.
- alpha: the paper's 0.01. It is a part of what is minimised and not a rate of training, so it does not follow the
  schedule. The step of adaptation is plain SGD on a batch of the run's size; others take several (``adapt_steps``).
- delta: 0.001, as in code by others. There is no code by the authors. Where ReLU or max-pooling makes grad f_i jump
  between the two points, the jump counts alpha / (2 delta) = 5 times, so single steps can be far too long: on digits
  accuracy falls by 20 points and more for a few rounds, more often with delta = 0.0001, hardly ever with 0.1.
- BatchNorm statistics are those that w~ gathers on D'; the passes over D and D'' leave them alone. In use, the batch of
  adaptation moves them.
- Mean: the paper's is uniform over the selected clients, ``weighting="uniform"``; the default is FedAvg's.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Literal

import torch
from torch import Tensor

from fedgraft.core.client import Client, Predictor
from fedgraft.core.message import Message
from fedgraft.core.method import hyper
from fedgraft.core.model import Model
from fedgraft.core.optimizer import Stepper
from fedgraft.methods.fedavg import FedAvg


@dataclass(frozen=True)
class PerFedAvg(FedAvg):
    """A start that is easy to adapt."""

    name = "per-fedavg"
    family = "one global model, fine-tuning, and training alone"
    citation = "Fallah, Mokhtari, Ozdaglar, NeurIPS 2020, arXiv 2002.07948"
    idea = "meta-learning: a global model from which one gradient step on its own data fits each client"

    alpha: float = hyper(0.01, "step of adaptation", low=0.0)
    variant: Literal["hf", "fo"] = hyper(
        "hf", "the gradient of the adapted loss: Hessian-free, or first-order", choices=("hf", "fo")
    )
    delta: float = hyper(
        0.001, "half of the distance over which the Hessian is measured, in units of g", above=0.0, search=()
    )
    adapt_steps: int = hyper(1, "steps of adaptation of the model in use", low=0)

    # ---- client half
    def discloses(self) -> Mapping[str, str]:
        return {"weights": "trained behind steps on the samples that are not noised"}

    def fit(self, client: Client, received: Tensor) -> Tensor:
        D, D2 = client.batches("D"), client.batches("D''")
        span, aside = client.layout.span("all"), client.model(received, role="aside")
        w = received[span]

        def gradient_at(point: Tensor, x: Tensor, y: Tensor) -> Tensor:
            aside.vector[span] = point
            aside.train_on(client.samples)
            with torch.random.fork_rng(devices=[]):  # dropout in these passes must leave that of D' alone
                return aside.differentiate(self.loss(client, aside, x, y)).clone()

        def adapted_loss(model: Model, x: Tensor, y: Tensor) -> Tensor:
            nonlocal w
            w = model.vector[span].clone()
            model.vector[span] = w - self.alpha * gradient_at(w, *next(D))
            return self.loss(client, model, x, y)

        def update(weights: Tensor, g: Tensor, step: Stepper) -> None:
            weights.copy_(w)
            if self.variant == "hf":
                batch = next(D2)
                there, back = (gradient_at(w + sign * self.delta * g, *batch) for sign in (1, -1))
                g.sub_((there - back) / (2 * self.delta), alpha=self.alpha)
            step(weights, g)

        return client.train(received, adapted_loss, update=update)

    def personal(self, client: Client, message: Message, trained: Tensor | None = None) -> Predictor:
        return client.predictor(self.adapted(client, self.assemble(client, message)) if trained is None else trained)

    def adapted(self, client: Client, w: Tensor) -> Tensor:
        """Return v_i, one step (or a few) from ``w``."""
        if not self.adapt_steps:
            return w
        settings = client.settings.plain.but(
            lr=self.alpha, weight_decay=0.0, schedule="constant", steps=self.adapt_steps
        )
        return client.train(w, partial(self.loss, client), name="adapt", settings=settings)

    # ---- for people
    def caveats(self) -> Sequence[str]:
        sentences = []
        if self.alpha == 0:
            sentences.append("alpha = 0 makes Per-FedAvg the same as FedAvg")
        if self.adapt_steps == 0:
            sentences.append("adapt_steps = 0 tests the common start as it is, which was made to be adapted first")
        if self.variant == "fo" and self.delta != PerFedAvg.delta:
            sentences.append("delta does nothing with variant = fo, which leaves the Hessian out")
        return sentences
