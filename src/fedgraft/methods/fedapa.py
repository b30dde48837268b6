"""FedAPA: the server learns, for each client, how to mix all clients' feature extractors.

Sun, Sun, Pan, Fu, Guo. FedAPA: Server-side Gradient-Based Adaptive Personalized Aggregation for Federated Learning on
Heterogeneous Data. IJCAI 2025, arXiv 2502.07456.

Symbols
    theta_j    extractor that client j uploaded last; Theta stacks them
    A          aggregation matrix, one row a_i for each client, at first the identity
    theta_i+   extractor of client i after its local training; Delta_i = theta_i+ - sum_j a_ij theta_j

Round: client i receives sum_j a_ij theta_j, trains it together with its private head, uploads theta_i+. Then

    g_ij = <theta_j, Delta_i>             with the same theta_j that were mixed
    a_i  <- a_i + eta g_i                 one gradient step on 1/2 ||theta_i+ - sum_j a_ij theta_j||^2
    a_i  <- clip to [0, 1];  a_ii <- mu;  a_i <- a_i / sum_j a_ij

Readings
- Sign: the paper prints a minus, which is ascent: off-diagonal weights are pushed below zero, clipped, and A stays the
  identity. The authors' code descends, and so do we. ``sign="paper"`` gives the printed formula.
- Order: the paper mixes the models stored at the beginning of the round (``snapshot``); the authors' code serves the
  clients one after another, and each sees the uploads before it (``sequential``).
- Self-weight: mu is set before the division, so the weight that remains is mu / (mu + rest) and tends to mu. The
  paper's 0.5 is the default; the authors' code has 1. Table 3's "without self-weight" is mu = 0;
  ``self_weight=False`` leaves a_ii as learned.
- Momentum: the authors' code gives the whole matrix one SGD optimizer with momentum 0.9, so that rows also move when
  other clients are served. ``server_momentum`` does the same; the paper has none. As in their code, a step is then
  followed by clipping the whole matrix, and a row gets its self-weight and is divided only when its own client is
  served, just before the mixing; the treated row is what that client's step starts from. (If all rows were treated
  after every such step, those of the others would shrink as often.) Without momentum a row moves only when its client
  was served, and treating it at once is the same.
- A client that joins after training, which the paper does not have, starts with an even mixture of all
  extractors, and with their mean as its own stored extractor; its rounds are the usual ones.
- A row without weight (sum at most 1e-8), which the paper does not mention, falls back to the client's own model.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor
from torch.nn import functional

from fedgraft.core import bank
from fedgraft.core.client import ClientId
from fedgraft.core.message import Message
from fedgraft.core.method import Inbox, Method, Server, Spec, hyper
from fedgraft.core.model import Part


@dataclass(frozen=True)
class FedAPA(Method):
    """Adaptive personalized aggregation, learned on the server."""

    name = "fedapa"
    family = "mixed on the server for each client"
    citation = "Sun et al., IJCAI 2025, arXiv 2502.07456"
    idea = "the server learns each client's mixture of all extractors from where its training ended; heads stay private"
    sends = "down: the client's own mixture of extractors; up: the trained extractor"
    headline = "trained"
    newcomers = "rounds"
    shows = {"A": "aggregation weights: share of another client's model in the mixture that the client receives"}

    eta: float = hyper(0.01, "step size of the aggregation rows", low=0.0)
    mu: float = hyper(0.5, "self-weight set in each row before it is normalised", low=0.0, high=1.0)
    sign: Literal["descent", "paper"] = hyper("descent", "direction of the row step", choices=("descent", "paper"))
    order: Literal["snapshot", "sequential"] = hyper(
        "snapshot",
        "mix the models stored at the beginning of the round, or serve clients one after another",
        choices=("snapshot", "sequential"),
    )
    clip: bool = hyper(True, "clip weights to [0, 1]")
    self_weight: bool = hyper(True, "set the client's own weight to mu")
    normalise: bool = hyper(True, "divide each row by its sum")
    share: Literal["extractor", "all"] = hyper("extractor", "which part is mixed", choices=("extractor", "all"))
    server_momentum: float = hyper(0.0, "momentum of the row steps", low=0.0, high=0.999)

    def shared(self) -> Part:
        return self.share

    # ---- server half
    def setup(self, spec: Spec) -> Server:
        layout = spec.one_architecture(self.name).layout
        start = layout.take(spec.initial(0), self.shared(), spec.settings.buffers)
        A = torch.eye(spec.clients, dtype=layout.dtype)
        return Server(spec, bank=start.repeat(spec.clients, 1), A=A, velocity=torch.zeros_like(A))

    def waves(self, server: Server, round: int, picked: Sequence[ClientId]) -> Iterable[Sequence[ClientId]]:
        if self.order == "snapshot":
            return [picked]
        return self.in_turn(server, round, picked)

    def send(self, server: Server, client: ClientId) -> Message:
        return self.dispatch(server, [client])[client]

    def dispatch(self, server: Server, clients: Sequence[ClientId]) -> Mapping[ClientId, Message]:
        mixed = self.mixtures(server, clients)
        return {client: Message(weights=weights) for client, weights in zip(clients, mixed, strict=True)}

    def merge(self, server: Server, inbox: Inbox) -> None:
        Theta, A = server["bank"], server["A"].clone()
        senders = sorted(inbox)
        uploads = torch.stack([inbox[client]["weights"] for client in senders])
        parameters = server.spec.layout(0).span(self.shared())
        width = parameters.stop - parameters.start

        A[senders] = self.rows(server, senders)
        Delta = (uploads - self.mixtures(server, senders))[:, :width]
        gradient = torch.zeros_like(A)
        gradient[senders] = bank.inner(Delta, Theta[:, :width])
        velocity = self.server_momentum * server["velocity"] + gradient
        A = A + velocity * (self.eta if self.sign == "descent" else -self.eta)

        if self.server_momentum:
            A = A.clamp(0, 1) if self.clip else A
        else:
            A[senders] = self.settled(A, senders)
        server["A"], server["velocity"] = A, velocity
        server["bank"] = bank.replace(Theta, senders, uploads)

    def mixtures(self, server: Server, clients: Sequence[ClientId]) -> Tensor:
        """sum_j a_ij theta_j for each of the clients: sent, and where their training began when they reply."""
        return server.once("mixtures", clients, lambda: bank.mix(self.rows(server, clients), server["bank"]))

    def rows(self, server: Server, clients: Sequence[ClientId]) -> Tensor:
        """The rows that the clients are served with; with momentum they are settled here, else after their step."""
        return self.settled(server["A"], clients) if self.server_momentum else server["A"][list(clients)]

    def settled(self, A: Tensor, clients: Sequence[ClientId]) -> Tensor:
        return torch.stack([self.settle(A[client], client) for client in clients])

    def settle(self, row: Tensor, client: ClientId) -> Tensor:
        """Clip a row, set its self-weight, normalise it."""
        row = row.clamp(0, 1) if self.clip else row.clone()
        if self.self_weight:
            row[client] = self.mu
        if self.normalise:
            total = row.sum()
            own = torch.zeros_like(row).index_fill_(0, torch.tensor(client), 1.0)
            row = row / total if float(total) > 1e-8 else own
        return row

    # ---- a newcomer: its row over a bank in which nobody else's model moves, learned by the same rule
    def admit(self, server: Server, client: ClientId) -> None:
        Theta, A = server["bank"], functional.pad(server["A"], (0, 1, 0, 1))
        server["bank"] = torch.cat([Theta, Theta.mean(0, keepdim=True)])
        A[client, :client] = 1 / client
        A[client] = self.settle(A[client], client)
        server["A"], server["velocity"] = A, functional.pad(server["velocity"], (0, 1, 0, 1))

    # ---- for people
    def observe(self, server: Server) -> Mapping[str, Tensor]:
        return {"A": self.rows(server, range(server.spec.clients))}

    def caveats(self) -> Sequence[str]:
        sentences = []
        if self.eta == 0 and (self.normalise or not self.self_weight or self.mu == 1):
            sentences.append("eta = 0 never moves the aggregation matrix: FedAPA is then local training")
        elif self.eta == 0:
            sentences.append("eta = 0 mixes nothing, and with normalise = false a client gets mu times its upload back")
        if self.sign == "paper":
            sentences.append("sign = paper ascends, as printed: the aggregation matrix usually stays the identity")
        if not self.self_weight and self.mu != FedAPA.mu:
            sentences.append("mu does nothing with self_weight = false, which leaves a client's own weight as learned")
        return sentences
