"""FedPPA+: FedPPA whose averages weight clients by the entropy of their labels.

Prasetya, Saputra, Putra. FedPPA: Progressive Parameter Alignment for Personalized Federated Learning.
arXiv 2510.14698, 2025.

Symbols: as in FedPPA; pi_ik the share of class k among the training samples of client i, and

    H_i  =  - sum_k pi_ik ln pi_ik
    e_i  =  H_i / sum_j H_j                                                      (Eq. 6)

    m_i^t+1[l]  <-  sum_{j in C_il} e_j m_j^t[l]  /  sum_{j in C_il} e_j         then FedPPA's alignment

Readings
- Eq. 7 multiplies the plain mean by e_i, the weight of the client that receives it: with M clients every averaged
  weight shrinks to about 1/M in each round, and a client with one class gets zeros. The text wants clients with richer
  data to count more, so we weight the contributors, and divide by the weights of those who contribute to the layer.
  ``weight="literal"`` is the printed formula.
- A client with one class has e_i = 0: it receives and gives nothing. If all contributors to a layer have 0, they count
  alike; if all clients have, e_i = 1/M.
- Numbers of samples do not enter.
- The entropy is sent with every reply; it never changes. Clients that have not replied yet have e_i = 0.
- Everything else is as in FedPPA.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from fedgraft.core.client import Client, ClientId
from fedgraft.core.message import Field, Message
from fedgraft.core.method import Inbox, Server, Spec, hyper
from fedgraft.methods.fedppa import FedPPA


@dataclass(frozen=True)
class FedPPAPlus(FedPPA):
    """FedPPA with entropy weights."""

    name = "fedppa+"
    family = "clients with different architectures"
    idea = "FedPPA in which clients with more varied labels count more in the averages"
    sends = "down: the averaged layers and how many contributed; up: the layers shared with others, the label entropy"
    needs_classes = True
    shows = {
        **FedPPA.shows,
        "e": "weight of the client in the averages of layers: the entropy of its labels, made to sum to one",
    }

    weight: Literal["normalised", "literal"] = hyper(
        "normalised", "weight the contributors, or scale the mean as printed", choices=("normalised", "literal")
    )

    # ---- server half
    def setup(self, spec: Spec) -> Server:
        server = super().setup(spec)
        server["H"] = torch.zeros(spec.clients, dtype=torch.float64)
        return server

    def expects(self, server: Server, client: ClientId) -> Mapping[str, Field]:
        most = math.log(min(server.spec.classes, server.spec.samples[client])) + 1e-9
        return {**super().expects(server, client), "entropy": Field((), torch.float64, low=0, high=most)}

    def merge(self, server: Server, inbox: Inbox) -> None:
        H = server["H"].clone()
        for client, message in inbox.items():
            H[client] = message["entropy"]
        server["H"] = H
        super().merge(server, inbox)

    def blend(self, server: Server, uploads: Tensor, C: Sequence[ClientId]) -> Tensor:
        e = weights(server["H"])[list(C)]
        if self.weight == "literal":
            return e[:, None].to(uploads.dtype) * super().blend(server, uploads, C)
        # in units of the largest, so that equal entropies are equal shares to the last bit
        shares = e / e.max() if e.any() else torch.ones_like(e)
        return server.spec.mean(uploads, shares).expand_as(uploads)

    # ---- client half
    def discloses(self) -> Mapping[str, str]:
        return {**super().discloses(), "entropy": "how evenly the samples are spread over the classes"}

    def reply(self, client: Client, received: Tensor, trained: Tensor) -> Message:
        return Message(**super().reply(client, received, trained), entropy=entropy(client.counts))

    # ---- for people
    def observe(self, server: Server) -> Mapping[str, Tensor]:
        return {"e": weights(server["H"])}


def entropy(counts: Tensor) -> Tensor:
    """H: Shannon's entropy of a label histogram, in nats."""
    pi = counts[counts > 0].to(torch.float64) / counts.sum()
    return -(pi * pi.log()).sum().clamp(max=0.0)


def weights(H: Tensor) -> Tensor:
    """e: the entropies, made to sum to one."""
    return H / H.sum() if H.any() else torch.full_like(H, 1 / len(H))
