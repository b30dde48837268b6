"""FedAvg: one global model, the mean of the clients' models weighted by their numbers of samples.

McMahan, Moore, Ramage, Hampson, Agüera y Arcas. Communication-Efficient Learning of Deep Networks from Decentralized
Data. AISTATS 2017, arXiv 1602.05629.

Symbols: w the global model, n_i the samples of client i, S the clients of a round.

Readings
- The global model (``received``) is FedAvg's; the model a client holds after its local training (``trained``) is the
  baseline that other papers call FedAvg-local.
- Weights: the paper weights by samples. Several authors (LG-FedAvg, FedBABU, FedRep, Ditto) average without weights,
  which is ``weighting="uniform"`` here and in every method that builds on FedAvg's mean.
- In a federation of several architectures the mean is taken among clients of the same one.
"""

from dataclasses import dataclass
from typing import Literal

from torch import Tensor

from fedgraft.core.client import ClientId
from fedgraft.core.message import Message
from fedgraft.core.method import Inbox, Method, Server, Spec, Sums, average, hyper


@dataclass(frozen=True)
class FedAvg(Method):
    """One model for everybody."""

    name = "fedavg"
    family = "one global model, fine-tuning, and training alone"
    citation = "McMahan et al., AISTATS 2017, arXiv 1602.05629"
    idea = "one global model: the sample-weighted mean of all clients' models"
    sends = "down: the global model; up: the trained model"
    averages = "the model"

    weighting: Literal["samples", "uniform"] = hyper(
        "samples",
        "the weight of a client in the mean: its number of samples, or the same for all",
        choices=("samples", "uniform"),
    )

    # ---- server half
    def setup(self, spec: Spec) -> Server:
        server = Server(spec)
        for client, kind in enumerate(spec.assignment):
            if f"weights/{kind}" not in server:
                start = spec.initial(client)
                server[f"weights/{kind}"] = spec.layout(client).take(start, self.shared(), spec.settings.buffers)
        return server

    def send(self, server: Server, client: ClientId) -> Message:
        return Message(weights=server[f"weights/{server.spec.assignment[client]}"])

    def sums(self) -> Sums:
        return self.weighting

    def merge(self, server: Server, inbox: Inbox) -> None:
        for kind, mean in self.means(server.spec, inbox).items():
            server[f"weights/{kind}"] = mean

    def means(self, spec: Spec, inbox: Inbox) -> dict[int, Tensor]:
        """Return sum_i n_i w_i / sum_i n_i over the clients of the round, for each architecture."""
        alike: dict[int, dict[ClientId, Message]] = {}
        for client, message in inbox.items():
            alike.setdefault(spec.assignment[client], {})[client] = message
        uniform = self.weighting == "uniform"
        return {kind: average(spec, messages, uniform=uniform) for kind, messages in alike.items()}
