"""LG-FedAvg: private extractors under a shared head.

Liang, Liu, Ziyin, Allen, Auerbach, Brent, Salakhutdinov, Morency. Think Locally, Act Globally: Federated Learning with
Local and Global Representations. arXiv 2001.01523, 2020 (NeurIPS 2019 workshop).

Symbols: phi_i the private extractor of client i (local), psi the head (global), n_i the samples of client i.

    client i    (phi_i, psi_i) = SGD from (phi_i, psi) on F_i, both parts together; phi_i stays, psi_i is sent
    server      psi <- sum_i n_i psi_i / sum_i n_i over the clients of the round

Readings
- Start: the authors begin from the model of several hundred rounds of FedAvg, ``warm_rounds``. Comparisons usually
  leave that out, and so does the default, 0: all extractors then start from the same weights, diverge, and early means
  of heads say little. With warm rounds, the whole model is sent in them, and once more to each client at its first
  contact afterwards (with FedAvg's extractor); after that only the head is sent.
- What is shared: the paper says the upper layers; here it is the head. The authors' released CIFAR network lists its
  layers so that the convolutions are shared instead, against the paper: we follow the paper.
- Mean: the authors' code weights all clients equally, ``weighting="uniform"``; the default is FedAvg's.
- A client that never trained has the initial extractor (or, with warm rounds, FedAvg's) under the newest head.
- The paper's auxiliary losses on the local representation are not part of the baseline.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from fedgraft.core.client import Client, ClientId
from fedgraft.core.message import Field, Message
from fedgraft.core.method import Inbox, Server, Spec, Sums, hyper
from fedgraft.core.model import Part
from fedgraft.methods.fedavg import FedAvg


@dataclass(frozen=True)
class LGFedAvg(FedAvg):
    """Everybody's own body, a common head."""

    name = "lg-fedavg"
    family = "split models"
    citation = "Liang et al., arXiv 2001.01523, 2020"
    idea = "average the head; every client keeps its own extractor"
    sends = "down: the head; up: the trained head (in warm rounds the whole model)"
    averages = "the head (in warm rounds the whole model)"
    answers = {"weights": "head"}

    warm_rounds: int = hyper(0, "rounds of FedAvg on the whole model before the extractors become private", low=0)

    def travels(self, round: int) -> Part:
        """Which part goes up in a round."""
        return "all" if round < self.warm_rounds else "head"

    # ---- server half
    def setup(self, spec: Spec) -> Server:
        server = super().setup(spec)  # whole models: the server keeps FedAvg's extractor for those who still need it
        server["parted"] = torch.full((spec.clients,), self.warm_rounds == 0)
        return server

    def send(self, server: Server, client: ClientId) -> Message:
        whole, spec = super().send(server, client), server.spec
        if not server["parted"][client]:
            return whole
        return Message(head=spec.layout(client).take(whole["weights"], "head", spec.settings.buffers))

    def expects(self, server: Server, client: ClientId) -> Mapping[str, Field]:
        layout = server.spec.layout(client)
        width = layout.width(self.travels(server.round), server.spec.settings.buffers)
        return {"weights": Field((width,), layout.dtype)}

    def sums(self) -> Sums:
        return self.weighting

    def merge(self, server: Server, inbox: Inbox) -> None:
        part, spec = self.travels(server.round), server.spec
        for kind, mean in self.means(spec, inbox).items():
            layout, w = spec.architectures[kind].layout, server[f"weights/{kind}"]
            server[f"weights/{kind}"] = layout.put(w, mean, part, spec.settings.buffers)
        if part == "head":
            server["parted"] = server["parted"].index_fill(0, torch.tensor(sorted(inbox)), True)

    def admit(self, server: Server, client: ClientId) -> None:
        """Let a newcomer have what there is of a common extractor, from the warm rounds."""
        server["parted"] = torch.cat([server["parted"], torch.tensor([self.warm_rounds == 0])])

    # ---- client half
    def discloses(self) -> Mapping[str, str]:
        return {}

    def assemble(self, client: Client, message: Message) -> Tensor:
        if "head" in message:
            return client.put(client.own, message["head"], "head")
        return super().assemble(client, message)

    def fit_newcomer(self, client: Client, received: Tensor) -> Tensor:
        return self.fit(client, client.put(client.own, client.take(received, "head"), "head"))

    def reply(self, client: Client, received: Tensor, trained: Tensor) -> Message:
        return Message(weights=client.take(trained, self.travels(client.round)))
