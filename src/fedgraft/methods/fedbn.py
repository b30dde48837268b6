"""FedBN: FedAvg in which BatchNorm layers never leave their client.

Li, Jiang, Zhang, Kamp, Dou. FedBN: Federated Learning on Non-IID Features via Local Batch Normalization. ICLR 2021,
arXiv 2102.07623.

    client i    trains the whole network: the received layers, with its own BatchNorm layers between them
    server      averages all layers but those

Readings
- What stays at the client is all of a BatchNorm layer: scale, shift, and the statistics, whatever the run's ``buffers``
  say about sending them (``buffers="keep"``, with which statistics never change, would defeat the purpose). The
  authors' code recognizes them by "bn" in a layer's name, we by the layer's type. Other normalisations (LayerNorm,
  GroupNorm) hold nothing of other samples and are averaged.
- Mean: the authors' code weights all clients equally, ``weighting="uniform"``; the default is FedAvg's.
- ``received`` is the newest layers with the client's own BatchNorm: the paper's figure. A client that never trained has
  the initial BatchNorm layers, between layers that were trained with those of other clients.
- FedBN is made for clients whose samples look different (scanners, styles); where their classes differ it changes
  little.
- Without BatchNorm in the network it is FedAvg, bit for bit. Of the networks that come with fedgraft, the VGGs have it.
"""

from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from fedgraft.core.client import Client
from fedgraft.core.model import Shared
from fedgraft.core.optimizer import Stepper
from fedgraft.methods.fedavg import FedAvg


@dataclass(frozen=True)
class FedBN(FedAvg):
    """A common network, everybody's own normalisation."""

    name = "fedbn"
    family = "split models"
    citation = "Li et al., ICLR 2021, arXiv 2102.07623"
    idea = "average all layers but BatchNorm; every client keeps its own scale, shift and statistics"
    sends = "down: the global model without BatchNorm layers; up: the trained model without BatchNorm layers"
    averages = "the model without its BatchNorm layers"

    def shared(self) -> Shared:
        return "all but BatchNorm"

    def fit_newcomer(self, client: Client, received: Tensor) -> Tensor:
        """Fit the BatchNorm layers, which are all that is the client's own; without any, everything."""
        span = client.layout.span("all")
        resting = torch.ones(client.layout.size, dtype=torch.bool, device=client.device)
        for slot in client.layout.slots:
            resting[slot.start : slot.stop] = not slot.batchnorm
        if bool(resting[span].all()):
            return super().fit_newcomer(client, received)

        def update(weights: Tensor, gradient: Tensor, step: Stepper) -> None:
            before = weights.clone()
            step(weights, gradient)
            weights.copy_(torch.where(resting[span], before, weights))

        return client.train(received, partial(self.loss, client), update=update)

    def caveats(self) -> tuple[str, ...]:
        return ("FedBN differs from FedAvg by BatchNorm layers alone: with a network that has none, it is FedAvg",)
