"""FedAvg-FT: FedAvg, and each client fine-tunes a copy of the global model on its own data before it uses it.

Training: McMahan, Moore, Ramage, Hampson, Agüera y Arcas. Communication-Efficient Learning of Deep Networks from
Decentralized Data. AISTATS 2017, arXiv 1602.05629. The baseline: Luo, Wu. Adapt to Adaptation: Learning
Personalization for Cross-Silo Federated Learning. IJCAI 2022, arXiv 2110.08394; also Cheng, Chadha, Duchi,
arXiv 2108.07313.

    rounds      w as in FedAvg
    client i    v_i = SGD from w on F_i, for E_ft epochs at rate eta_ft; v_i is used, then discarded

Readings
- Points: ``received`` is v_i, fine-tuned from the newest global model by every client, selected or not: the method's
  figure, so that here ``received`` contains training after the download. ``trained`` is the model after the last
  round's training, without fine-tuning (FedAvg-local). The copy is never fed back: the rounds are those of FedAvg, bit
  for bit.
- What is tuned: two baselines go by this name, full fine-tuning (the default) and head-only, which the authors of
  FedRep use in their tables (``part="head"``, 10 epochs). BatchNorm statistics change with any part, because the
  network runs in training mode.
- E_ft and eta_ft: not stated where the baseline appears. FedBABU's authors give it 5 epochs at 0.001, the rate at which
  their training ends; so the default is 5 epochs at the run's rate. A rate set by ``fine_tune_lr`` does not decay.
- The optimizer is fresh (no momentum from the rounds); there is no early stopping.
"""

from dataclasses import dataclass
from functools import partial
from typing import Literal

from torch import Tensor

from fedgraft.core.client import Client, Predictor
from fedgraft.core.message import Message
from fedgraft.core.method import hyper
from fedgraft.core.model import Part
from fedgraft.core.training import Loss, Phase
from fedgraft.methods.fedavg import FedAvg

PARTS: dict[str, Part] = {"full": "all", "head": "head", "body": "extractor"}


def fine_tune(
    client: Client, start: Tensor, loss: Loss, part: Part, epochs: int, lr: float | None = None, name: str = "fine-tune"
) -> Tensor:
    """Return a copy of ``start`` that was fine-tuned with an optimizer of its own, at ``lr`` or the run's rate."""
    lr = client.rate if lr is None else lr
    settings = client.settings.but(lr=lr, schedule="constant", optimizer_state="fresh")
    return client.train(start, loss, (Phase(part, epochs),), name=name, settings=settings)


@dataclass(frozen=True)
class FedAvgFT(FedAvg):
    """FedAvg, then everybody adapts a copy."""

    name = "fedavg-ft"
    family = "one global model, fine-tuning, and training alone"
    citation = "baseline in Luo and Wu, IJCAI 2022, arXiv 2110.08394; training: McMahan et al., AISTATS 2017"
    idea = "FedAvg; every client fine-tunes a temporary copy of the global model"

    fine_tune_epochs: int = hyper(5, "E_ft, epochs of fine-tuning", low=0)
    fine_tune_lr: float | None = hyper(None, "eta_ft, learning rate of fine-tuning; none is the run's", above=0.0)
    part: Literal["full", "head", "body"] = hyper("full", "what is fine-tuned", choices=("full", "head", "body"))

    # ---- client half
    def personal(self, client: Client, message: Message, trained: Tensor | None = None) -> Predictor:
        if trained is not None:
            return client.predictor(trained)
        return client.predictor(self.adapted(client, self.assemble(client, message)))

    def adapted(self, client: Client, w: Tensor) -> Tensor:
        """Return v_i, made from the newest global model ``w``."""
        loss, part = self.adaptation(client, w), PARTS[self.part]
        return fine_tune(client, w, loss, part, self.fine_tune_epochs, self.fine_tune_lr)

    def adaptation(self, client: Client, w: Tensor) -> Loss:
        """Return what fine-tuning from ``w`` minimises."""
        return partial(self.loss, client)

    def caveats(self) -> tuple[str, ...]:
        if self.fine_tune_epochs:
            return ()
        return (f"fine_tune_epochs = 0 leaves the received model as it is: {self.name} without its fine-tuning",)
