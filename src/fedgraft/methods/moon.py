"""MOON: FedAvg whose features are pulled towards the received model's and away from those of the client's last model.

Li, He, Song. Model-Contrastive Federated Learning. CVPR 2021, arXiv 2103.16257.

Symbols: w the received model, w_prev the client's model after its last training, z, z_glob and z_prev the features
of a sample x in the network that is trained, in w and in w_prev, sim the cosine, tau the temperature.

    l_con = -log( exp(sim(z, z_glob)/tau) / (exp(sim(z, z_glob)/tau) + exp(sim(z, z_prev)/tau)) )
          = log(1 + exp((sim(z, z_prev) - sim(z, z_glob)) / tau))
    local objective   F_i(v) + mu E[l_con]

Readings
- Features are the input of the network's head. The authors put a projection (two layers, 256 wide) between their
  networks and the last layer, and compare what it gives; they also have networks without one. Here the network is the
  run's, the same for every method: a projection that is part of it is the features that are compared.
- w and w_prev are in evaluation mode, as in the authors' code, and no gradient reaches them.
- A client that has not trained yet has the first weights for w_prev, as in the authors' code. In the first round these
  are w too: the term is log 2, and its gradient zero.
- w_prev is the client's model after its last training, however many rounds ago that was, also as there.
- mu: the authors' code has 1; the paper takes the best of 0.1, 1, 5 and 10 (5 on CIFAR-10, 10 on CIFAR-100, 0.1 on
  Tiny-ImageNet). tau: their 0.5, the best of 0.1, 0.5 and 1.
- The paper aims at one good global model, which is ``received``.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from fedgraft.core.client import Client
from fedgraft.core.method import hyper
from fedgraft.core.model import Model
from fedgraft.methods.fedavg import FedAvg


@dataclass(frozen=True)
class MOON(FedAvg):
    """FedAvg with a contrast between models."""

    name = "moon"
    family = "prototypes and features"
    citation = "Li, He, Song, CVPR 2021, arXiv 2103.16257"
    idea = "FedAvg whose features are pulled towards the received model's, away from those of the client's last model"

    mu: float = hyper(1.0, "weight of the contrastive loss", low=0.0)
    tau: float = hyper(0.5, "temperature of the contrastive loss", above=0.0)

    # ---- client half
    def discloses(self) -> Mapping[str, str]:
        return {}

    def fit(self, client: Client, received: Tensor) -> Tensor:
        w, w_prev = client.model(received, role="received"), client.model(client.own, role="previous")

        def loss(model: Model, x: Tensor, y: Tensor) -> Tensor:
            z, logits = model.score(x)
            with w.evaluating(), w_prev.evaluating():
                z_glob, z_prev = w.score(x)[0], w_prev.score(x)[0]
            return client.task.loss(logits, y) + self.mu * contrast(z, z_glob, z_prev, self.tau)

        return client.train(received, loss, self.plan(client))

    def caveats(self) -> tuple[str, ...]:
        return ("mu = 0 makes MOON the same as FedAvg",) if self.mu == 0 else ()


def contrast(z: Tensor, z_glob: Tensor, z_prev: Tensor, tau: float) -> Tensor:
    """Return the mean of l_con over a batch of features."""
    near, far = (torch.cosine_similarity(z.flatten(1), other.flatten(1)) for other in (z_glob, z_prev))
    return functional.softplus((far - near) / tau).mean()
