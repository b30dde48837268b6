"""Ditto: FedAvg, and on each client a second, personal model that is pulled towards the received one.

Li, Hu, Beirami, Smith. Ditto: Fair and Robust Federated Learning Through Personalization. ICML 2021, arXiv 2012.04221.

Symbols: w the global model, v_i the personal model of client i, at first the initial w.

    client i    w_i = SGD from w on F_i                                  sent back, as in FedAvg
                v_i = SGD from v_i on F_i(v) + lam/2 ||v - w||^2         w the received model, fixed for the round
    server      w  <- sum_i n_i w_i / sum_i n_i over the clients of the round

Readings
- v_i does not depend on the newest message, so ``received`` and ``trained`` agree.
- Order: both branches start from the received w, so neither sees the other, and w moves exactly as in FedAvg. They see
  the same batches, as in the authors' code. The personal branch works for the run's epochs at the run's rate, also as
  there; ``personal_epochs`` and ``personal_lr`` change that.
- lam: the authors' 1, from a grid of 0.1, 1 and 2. Their choice of lam by each client on validation data, meant
  against attacks, is left out.
- Mean: the authors' code weights all clients equally, ``weighting="uniform"``; the default is FedAvg's.
- The pull covers trained parameters only; the BatchNorm statistics of v_i are its own.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from torch import Tensor

from fedgraft.core.client import Client, Predictor
from fedgraft.core.message import Message
from fedgraft.core.method import hyper
from fedgraft.core.training import Phase
from fedgraft.methods.fedavg import FedAvg
from fedgraft.methods.fedprox import pulled


@dataclass(frozen=True)
class Ditto(FedAvg):
    """A personal twin that stays near the global model."""

    name = "ditto"
    family = "a global model and a personal model"
    citation = "Li et al., ICML 2021, arXiv 2012.04221"
    idea = "FedAvg, and on each client a second, private model with a quadratic pull towards the received one"
    headline = "trained"
    newcomers = "train"
    aside = ("personal",)

    lam: float = hyper(1.0, "strength of the pull (the proximal term)", low=0.0)
    personal_epochs: int | None = hyper(None, "epochs of the personal model in a round; none is the run's", low=0)
    personal_lr: float | None = hyper(None, "learning rate of the personal model; none is the run's", above=0.0)

    # ---- client half
    def discloses(self) -> Mapping[str, str]:
        return {}

    def join(self, client: Client) -> None:
        client["v"] = client.own.clone()

    def fit(self, client: Client, received: Tensor) -> Tensor:
        w_i = super().fit(client, received)
        objective = pulled(self, client, received, self.lam)
        phase = Phase(epochs=self.personal_epochs, lr=self.personal_lr)
        client["v"] = client.train(client["v"], objective, (phase,), name="personal", order="batches")
        return w_i

    def personal(self, client: Client, message: Message, trained: Tensor | None = None) -> Predictor:
        return client.predictor(client["v"])

    # ---- for people
    def caveats(self) -> tuple[str, ...]:
        if self.personal_epochs == 0:
            return ("personal_epochs = 0 never moves the personal models",)
        return ("lam = 0 makes the personal models those of local training",) if self.lam == 0 else ()
