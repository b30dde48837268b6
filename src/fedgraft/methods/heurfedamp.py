"""HeurFedAMP: FedAMP for deep networks, with attention by the cosine of models and a self-attention set by hand.

Huang, Chu, Zhou, Wang, Liu, Pei, Zhang. Personalized Cross-Silo Federated Learning on Non-IID Data. AAAI 2021,
arXiv 2007.03797 (its heuristic improvement of FedAMP).

Symbols as in FedAMP; s the self-attention, sigma the sharpness of the attention

    server        xi_ii = s
                  xi_ij = (1 - s) exp(sigma cos(w_i, w_j)) / sum_{h != i} exp(sigma cos(w_i, w_h)) for j != i
                  u_i   = sum_j xi_ij w_j
    client        as in FedAMP

Readings
- Self-attention: the paper sets s from the number of clients with the same distribution, which is known only in
  controlled settings. Here it is 0.5 by default. s = 1 / N with equal cosines is FedAvg's mean without weights.
- Cosines are taken between whole models (trained parameters, in float64). Models that began alike have cosines near
  one for a long time, so sigma has to be large, in the tens, or attention is uniform.
- alpha_k occurs in the clients' pull alone, lam / alpha_k: nearly nothing in the first rounds, as in the paper.
- Absent clients count with their last upload. A lone client's cloud model is its own model.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from fedgraft.core.method import hyper
from fedgraft.methods.fedamp import MessagePassing


@dataclass(frozen=True)
class HeurFedAMP(MessagePassing):
    """Message passing with cosine attention."""

    name = "heurfedamp"
    family = "mixed on the server for each client"
    idea = "FedAMP for deep networks: cloud models mix by cosine similarity, with a fixed share for its own model"

    sigma: float = hyper(25.0, "sharpness of the attention", low=0.0)
    s: float = hyper(0.5, "self-attention: the share of the client's own model in its cloud model", low=0.0, high=1.0)

    def attention(self, W: Tensor, alpha: float) -> Tensor:
        own = torch.eye(len(W), dtype=torch.float64)
        if len(W) == 1:
            return own
        directions = functional.normalize(W.to(torch.float64), dim=1)
        cosines = directions @ directions.T
        peers = torch.softmax((self.sigma * cosines).masked_fill(own.bool(), -torch.inf), dim=1)
        return self.s * own + (1 - self.s) * peers

    # ---- for people
    def caveats(self) -> Sequence[str]:
        sentences = []
        if self.s == 1:
            sentences.append("s = 1 mixes nothing: what is left is local training, pulled a little to where it began")
        if self.s == 0:
            sentences.append("s = 0 leaves a client's own model out of its cloud model")
        if self.sigma == 0:
            sentences.append("sigma = 0 gives all other clients the same weight")
        return sentences
