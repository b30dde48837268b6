"""APFL: each client predicts with a learned mixture of a private model and the shared one, mixed weight by weight.

Deng, Kamani, Mahdavi. Adaptive Personalized Federated Learning. arXiv 2003.13461, 2020.

Symbols: w_i the client's copy of the global model w, v_i its private model, alpha_i in [0, 1] its mixing weight,
m_i = alpha_i v_i + (1 - alpha_i) w_i its personal model, b a batch, eta the run's learning rate.

Local step

    w_i     <- w_i - eta grad f(w_i; b)
    v_i     <- v_i - eta alpha_i grad f(m_i; b)
    alpha_i <- clip(alpha_i - eta_alpha <v_i - w_i, grad f(m_i; b)>, 0, 1)      v_i and m_i as before the step

The server averages the w_i: the global model is FedAvg's, whatever the private models do.

Readings
- Mixture: the paper mixes weights; the authors' code mixes outputs, and so do libraries that follow it. We mix
  weights, BatchNorm statistics included. The statistics of v_i are those that m_i gathers.
- Order: as in the authors' code, w_i steps first, and m_i is made with the new w_i (``sequential``).
  ``order="simultaneous"`` lets both step from the same point.
- When alpha learns: the authors' code, where it adapts at all, does so at the first step of a round
  (``adapt="round"``); other code at every step (``"step"``). ``"never"`` keeps the first alpha.
- How alpha learns: public code combines gradients at two points with an extra pull 0.02 alpha towards zero. We take
  the derivative, from the same backward pass as the gradient of v_i.
- The mean: the paper's is uniform over the selected clients, which is ``weighting="uniform"``; by samples is FedAvg's.
- Momentum, decay and clipping are the run's for both models; v_i has a momentum buffer of its own.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
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
class APFL(FedAvg):
    """A private model and the global one, mixed in a learned proportion."""

    name = "apfl"
    family = "a global model and a personal model"
    citation = "Deng, Kamani, Mahdavi, arXiv 2003.13461, 2020"
    idea = "a learned mixture of a private model and the global one, in weight space"
    headline = "trained"
    newcomers = "train"
    shows = {"alpha": "share of the private model in the client's personal model; the rest is the global model"}

    alpha: float = hyper(0.5, "share of the private model at first", low=0.0, high=1.0)
    adapt: Literal["round", "step", "never"] = hyper(
        "round", "when alpha learns: once a round, at every step, never", choices=("round", "step", "never")
    )
    order: Literal["sequential", "simultaneous"] = hyper(
        "sequential",
        "the private model's step sees the shared one's, or both start from the same point",
        choices=("sequential", "simultaneous"),
    )
    eta_alpha: float | None = hyper(None, "step size of alpha; none: the run's learning rate", low=0.0)

    # ---- client half
    def discloses(self) -> Mapping[str, str]:
        return {}

    def join(self, client: Client) -> None:
        client["v"] = client.own
        client["alpha"] = client.own.new_tensor(self.alpha)

    def fit(self, client: Client, received: Tensor) -> Tensor:
        parameters, start = client.layout.span("all"), client["v"]
        v, mixture = start[parameters].clone(), client.model(start, role="mixture")
        eta_alpha = client.rate if self.eta_alpha is None else self.eta_alpha
        adapting = self.adapt != "never"

        def loss(model: Model, x: Tensor, y: Tensor) -> Tensor:
            mixture.module.train(model.module.training)
            return self.loss(client, model, x, y)

        def private_step(w: Tensor) -> None:
            nonlocal adapting
            alpha, batch = client["alpha"], client.model().batch
            if batch is None or not len(batch[1]):  # a batch that is drawn by chance may be empty
                return
            mixture.vector[parameters] = torch.lerp(w, v, alpha)
            # the private branch must leave w's random numbers (dropout) alone
            with torch.random.fork_rng(devices=[]):
                gradient = mixture.differentiate(self.loss(client, mixture, *batch))
            if adapting:
                client["alpha"] = (alpha - eta_alpha * torch.dot(v - w, gradient)).clamp(0, 1)
                adapting = self.adapt == "step"
            step_v(v, gradient.mul_(alpha))

        def update(w: Tensor, gradient: Tensor, step_w: Stepper) -> None:
            if self.order == "simultaneous":
                private_step(w)
            step_w(w, gradient)
            if self.order == "sequential":
                private_step(w)

        with client.stepper("v") as step_v:
            trained = client.train(received, loss, self.plan(client), update=update)
        private = client.trained(mixture, start)
        private[parameters] = v
        client["v"] = private
        return trained

    def personal(self, client: Client, message: Message, trained: Tensor | None = None) -> Predictor:
        w = self.assemble(client, message) if trained is None else trained
        return client.predictor(torch.lerp(w, client["v"], client["alpha"]))

    # ---- for people
    def observe_client(self, client: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
        return {"alpha": client["alpha"]} if "alpha" in client else {}

    def caveats(self) -> Sequence[str]:
        sentences = []
        if self.alpha == 0:
            sentences.append("alpha = 0 keeps the private model where it began: APFL starts, and may stay, as FedAvg")
        if self.alpha == 1 and self.adapt == "never":
            sentences.append("alpha = 1 without adaptation makes the personal models those of local training")
        if self.eta_alpha == 0 and self.adapt != "never":
            sentences.append("eta_alpha = 0 never moves alpha, as adapt = never")
        return sentences
