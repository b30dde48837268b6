"""FedProx: FedAvg whose local objective is pulled towards the received model.

Li, Sahu, Zaheer, Sanjabi, Talwalkar, Smith. Federated Optimization in Heterogeneous Networks. MLSys 2020,
arXiv 1812.06127.

    local objective   F_i(v) + mu/2 ||v - w||^2,   w the received model, fixed for the round

Readings
- The paper samples clients by size and averages uniformly; here clients are sampled uniformly and averaged by size,
  as in FedAvg, so that the two are comparable.
- The pull covers trained parameters only, not BatchNorm statistics.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from torch import Tensor

from fedgraft.core.client import Client
from fedgraft.core.method import Method, hyper
from fedgraft.core.model import Model
from fedgraft.core.training import Loss
from fedgraft.methods.fedavg import FedAvg


def pulled(method: Method, client: Client, w: Tensor, mu: float) -> Loss:
    """Return the method's loss with a pull towards ``w``: F_i(v) + mu/2 ||v - w||^2."""
    anchor = w[client.layout.span("all")].clone()

    def loss(model: Model, x: Tensor, y: Tensor) -> Tensor:
        return method.loss(client, model, x, y) + mu / 2 * (model.weights - anchor).square().sum()

    return loss


@dataclass(frozen=True)
class FedProx(FedAvg):
    """FedAvg on a leash."""

    name = "fedprox"
    family = "one global model, fine-tuning, and training alone"
    citation = "Li et al., MLSys 2020, arXiv 1812.06127"
    idea = "FedAvg with a quadratic pull towards the received model during local training"

    mu: float = hyper(0.1, "strength of the pull", low=0.0)

    # ---- client half
    def discloses(self) -> Mapping[str, str]:
        return {}

    def fit(self, client: Client, received: Tensor) -> Tensor:
        return client.train(received, pulled(self, client, received, self.mu), self.plan(client))

    def caveats(self) -> tuple[str, ...]:
        return ("mu = 0 makes FedProx the same as FedAvg",) if self.mu == 0 else ()
