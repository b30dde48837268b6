"""FedProx-FT: FedProx, and each client fine-tunes a copy of the global model on its own data before it uses it.

Training: Li, Sahu, Zaheer, Sanjabi, Talwalkar, Smith. Federated Optimization in Heterogeneous Networks. MLSys 2020,
arXiv 1812.06127. The baseline: Luo, Wu. Adapt to Adaptation: Learning Personalization for Cross-Silo Federated
Learning. IJCAI 2022, arXiv 2110.08394.

    rounds      local objective F_i(v) + mu/2 ||v - w||^2, w the received model
    client i    v_i = SGD from w on H_i, for E_ft epochs at rate eta_ft; v_i is used, then discarded
                H_i(v) = F_i(v)   or   F_i(v) + mu/2 ||v - w||^2

Readings
- The fine-tuning objective H_i is not stated where the baseline appears. The default is the plain loss, pure
  adaptation; ``fine_tune_pull=True`` keeps the pull towards the global model.
- Everything else is as in FedAvg-FT (points, part, epochs, rate) and FedProx (mu, weights of the mean).
"""

from dataclasses import dataclass

from torch import Tensor

from fedgraft.core.client import Client
from fedgraft.core.method import hyper
from fedgraft.core.training import Loss
from fedgraft.methods.fedavg_ft import FedAvgFT
from fedgraft.methods.fedprox import FedProx, pulled


@dataclass(frozen=True)
class FedProxFT(FedAvgFT, FedProx):
    """FedProx, then everybody adapts a copy."""

    name = "fedprox-ft"
    family = "one global model, fine-tuning, and training alone"
    citation = "baseline in Luo and Wu, IJCAI 2022, arXiv 2110.08394; training: Li et al., MLSys 2020"
    idea = "FedProx; every client fine-tunes a temporary copy of the global model"

    fine_tune_pull: bool = hyper(False, "keep the pull towards the global model while fine-tuning")

    # ---- client half
    def adaptation(self, client: Client, w: Tensor) -> Loss:
        return pulled(self, client, w, self.mu) if self.fine_tune_pull else super().adaptation(client, w)

    def caveats(self) -> tuple[str, ...]:
        tuning = super().caveats()
        return (*tuning, "mu = 0 makes FedProx-FT the same as FedAvg-FT") if self.mu == 0 else tuning
