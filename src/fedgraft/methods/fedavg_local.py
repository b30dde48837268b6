"""FedAvg-local: FedAvg, and each client uses its own model after local training, before it was averaged.

Training: McMahan, Moore, Ramage, Hampson, Agüera y Arcas. Communication-Efficient Learning of Deep Networks from
Decentralized Data. AISTATS 2017, arXiv 1602.05629. The baseline: Luo, Wu. Adapt to Adaptation: Learning
Personalization for Cross-Silo Federated Learning. IJCAI 2022, arXiv 2110.08394.

    rounds      w as in FedAvg
    client i    L_i = its model after its last local training (before its first: the initial model)

Readings
- L_i does not depend on the newest message, so ``received`` and ``trained`` agree; FedAvg's own ``trained`` figure is
  the same model.
- Freshness: L_i is as old as the client's last participation (``stale``, the default). ``refresh`` lets every client,
  selected or not, train the newest global model once more, as in a round, on a copy that is discarded: ``received`` is
  then one aggregation ahead of ``trained``, and no client is tested with the initial model.
- More local epochs bring L_i closer to local training from a good start: the figure means little without them.
"""

from dataclasses import dataclass
from typing import Literal

from torch import Tensor

from fedgraft.core.client import Client, Predictor
from fedgraft.core.message import Message
from fedgraft.core.method import hyper
from fedgraft.methods.fedavg import FedAvg


@dataclass(frozen=True)
class FedAvgLocal(FedAvg):
    """FedAvg, judged before the averaging."""

    name = "fedavg-local"
    family = "one global model, fine-tuning, and training alone"
    citation = "baseline in Luo and Wu, IJCAI 2022, arXiv 2110.08394; training: McMahan et al., AISTATS 2017"
    idea = "FedAvg; every client uses its model after its last local training"
    headline = "trained"

    freshness: Literal["stale", "refresh"] = hyper(
        "stale",
        "use the last trained model, or train the newest global model once more for the test",
        choices=("stale", "refresh"),
    )

    # ---- client half
    def personal(self, client: Client, message: Message, trained: Tensor | None = None) -> Predictor:
        if trained is None and self.freshness == "refresh":
            return client.predictor(self.fit(client, self.assemble(client, message)))
        return client.predictor(client.own)
