"""FedAMP: similar clients attract each other, through a personal cloud model for each of them.

Huang, Chu, Zhou, Wang, Liu, Pei, Zhang. Personalized Cross-Silo Federated Learning on Non-IID Data. AAAI 2021,
arXiv 2007.03797.

Symbols
    w_i       model that client i uploaded last; u_i its cloud model
    A         attention-inducing function A(x) = 1 - exp(-x / sigma), so A'(x) = exp(-x / sigma) / sigma
    alpha_k   step size of round k, falling; lam how much the clients' models attract each other

    objective     sum_i F_i(w_i) + lam sum_{i<j} A(||w_i - w_j||^2)
    server        xi_ij = alpha_k A'(||w_i - w_j||^2) for j != i,   xi_ii = 1 - sum_{j != i} xi_ij
                  u_i   = sum_j xi_ij w_j
    client        w_i   = argmin_v F_i(v) + lam / (2 alpha_k) ||v - u_i||^2,   by SGD

Readings
- Scale: the printed kernel only discriminates if sigma is about as large as the squared distances, which grow with
  the network and with training, and only mixes (xi_ii >= 0) if alpha_k (N - 1) <= sigma. With the paper's alpha of 1e4
  that asks for a sigma so large that all peers have the same weight; with sigma = 1 on a deep network none has any.
  So by default distances are measured in their median and the peers' terms are averaged instead of summed,
  xi_ij = alpha_k A'(||w_i - w_j||^2 / median) / (N - 1): the same settings then suit any network and any number of
  clients. ``scale="printed"`` is the printed formula.
- Pull: alpha_k is also the step of the clients' proximal term, whose strength lam / alpha_k therefore grows tenfold
  with each decay. It never exceeds 1 / learning rate, at which one step ends on u_i.
- Start: the paper asks for a minimiser and does not say where SGD starts. Here it starts at u_i; ``start="own"``
  starts at the client's last w_i, and u_i acts through the pull alone.
- Absent clients: the paper has all clients in every round. Here a cloud model mixes the last uploads of all clients.
- A client that joins after training, which the paper does not have, starts as the mean of all models.
- Distances are taken over trained parameters; BatchNorm statistics are mixed with the same weights.
"""

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from fedgraft.core import bank
from fedgraft.core.client import Client, ClientId
from fedgraft.core.message import Message
from fedgraft.core.method import Inbox, Method, Server, Spec, hyper
from fedgraft.methods.fedprox import pulled


@dataclass(frozen=True)
class MessagePassing(Method):
    """What FedAMP and HeurFedAMP have in common: everything but the attention."""

    citation = "Huang et al., AAAI 2021, arXiv 2007.03797"
    sends = "down: the client's own cloud model; up: the trained model"
    headline = "trained"
    newcomers = "rounds"
    shows = {"xi": "share of another client's last upload in the cloud model of the client; rows sum to one"}

    lam: float = hyper(1.0, "how much models attract each other; the pull to the cloud model is lam / alpha", low=0.0)
    alpha: float = hyper(1e4, "step size alpha_k of the first rounds", above=0.0)
    decay: float = hyper(0.1, "factor on alpha after each period", above=0.0, high=1.0)
    period: int = hyper(30, "rounds between two decays of alpha", low=1)
    start: Literal["cloud", "own"] = hyper(
        "cloud",
        "where local training starts: at the cloud model, or at the client's last model",
        choices=("cloud", "own"),
    )

    def step(self, round: int) -> float:
        """Step size alpha_k of a round, however late never quite zero."""
        return max(self.alpha * self.decay ** (round // self.period), sys.float_info.min)

    # ---- server half
    def setup(self, spec: Spec) -> Server:
        layout = spec.one_architecture(self.name).layout
        start = layout.take(spec.initial(0), self.shared(), spec.settings.buffers)
        xi = torch.eye(spec.clients, dtype=torch.float64)
        return Server(spec, bank=start.repeat(spec.clients, 1), xi=xi)

    def send(self, server: Server, client: ClientId) -> Message:
        return self.dispatch(server, [client])[client]

    def dispatch(self, server: Server, clients: Sequence[ClientId]) -> Mapping[ClientId, Message]:
        mixed = bank.mix(server["xi"][list(clients)], server["bank"])
        return {client: Message(weights=weights) for client, weights in zip(clients, mixed, strict=True)}

    def merge(self, server: Server, inbox: Inbox) -> None:
        W = server["bank"].clone()
        for client, message in inbox.items():
            W[client] = message["weights"]
        parameters = W[:, : server.spec.layout(0).trained]
        server["bank"], server["xi"] = W, self.attention(parameters, self.step(server.round + 1))

    def attention(self, W: Tensor, alpha: float) -> Tensor:
        """Return xi: how much of each model (column) goes into each client's cloud model (row)."""
        raise NotImplementedError

    # ---- client half
    def discloses(self) -> Mapping[str, str]:
        return {}

    def fit(self, client: Client, received: Tensor) -> Tensor:
        pull = min(self.lam / self.step(client.round), 1 / client.rate)
        start = received if self.start == "cloud" else client.own
        return client.train(start, pulled(self, client, received, pull), self.plan(client))

    # ---- a newcomer: a cloud model of its own, mixed by its distance to the others, who stay where they are
    def admit(self, server: Server, client: ClientId) -> None:
        W = torch.cat([server["bank"], server["bank"].mean(0, keepdim=True)])
        parameters = W[:, : server.spec.layout(0).trained]
        server["bank"], server["xi"] = W, self.attention(parameters, self.step(0))

    # ---- for people
    def observe(self, server: Server) -> Mapping[str, Tensor]:
        return {"xi": server["xi"]}


@dataclass(frozen=True)
class FedAMP(MessagePassing):
    """Federated attentive message passing."""

    name = "fedamp"
    family = "mixed on the server for each client"
    idea = "a cloud model for each client mixes all models by their distance, and local training is pulled towards it"

    lam: float = hyper(0.1, "how much models attract each other; the pull to the cloud model is lam / alpha", low=0.0)
    alpha: float = hyper(1.0, "step size alpha_k of the first rounds", above=0.0)
    sigma: float = hyper(1.0, "reach of the attention, in squared distances", above=0.0)
    scale: Literal["median", "printed"] = hyper(
        "median",
        "unit of squared distances: their median, peers averaged; or one, peers summed",
        choices=("median", "printed"),
    )

    def attention(self, W: Tensor, alpha: float) -> Tensor:
        distances, peers = bank.squared_distances(W), 1
        if self.scale == "median":
            apart = distances[distances > 0]
            distances = distances / (apart.median() if len(apart) else 1.0)
            peers = max(len(W) - 1, 1)
        xi = alpha * torch.exp(-distances / self.sigma) / self.sigma / peers
        xi.fill_diagonal_(0)
        return xi + torch.diag(1 - xi.sum(1))

    # ---- for people
    def caveats(self) -> Sequence[str]:
        sentences = []
        if self.lam == 0:
            sentences.append("lam = 0 takes the pull towards the cloud model away")
            if self.start == "own":
                sentences.append("lam = 0 with start = own makes FedAMP local training")
        if self.alpha > self.sigma:
            sentences.append("alpha > sigma lets a client's own weight fall below zero when its peers are close")
        return sentences
