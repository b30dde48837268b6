"""FedRep: a shared extractor and private heads, trained in turns.

Collins, Hassani, Mokhtari, Shakkottai. Exploiting Shared Representations for Personalized Federated Learning.
ICML 2021, arXiv 2102.07078.

Symbols: phi the extractor (representation), h_i the private head of client i, n_i its samples.

    client i    h_i   = SGD over h alone on F_i(phi, h), tau_h epochs, from its last h_i
                phi_i = SGD over phi alone on F_i(phi, h_i), tau_b epochs, from the received phi
    server      phi  <- sum_i n_i phi_i / sum_i n_i over the clients of the round

Readings
- Work: tau_h = 10 and tau_b = 1 are the authors' (tau_b = 5 for CIFAR-100 and FEMNIST). They replace the run's epochs,
  so at equal rounds FedRep does not do the same local work as the other methods in a table.
- Last round: the authors' code ends with a round in which all clients train their heads, without averaging, for 10
  epochs (tau_h, if that is more), and tests then. ``final_head_epochs=10`` does so on a copy, for ``received`` after
  the last round; the default is the algorithm without it.
- Mean: the authors weight by samples on LEAF's data and all clients equally elsewhere (``weighting="uniform"``); the
  default is FedAvg's.
- Momentum: each part has its own, so that none is left over to move the part that is fixed.
- BatchNorm in the extractor: the network is in training mode in both phases, as in the authors' code, so the
  statistics move in the head phase although the parameters are fixed.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from torch import Tensor

from fedgraft.core.client import Client, Predictor
from fedgraft.core.message import Message
from fedgraft.core.method import hyper
from fedgraft.core.training import Phase
from fedgraft.methods.fedavg_ft import fine_tune
from fedgraft.methods.fedper import FedPer


@dataclass(frozen=True)
class FedRep(FedPer):
    """FedPer in turns: first the head, then the body."""

    name = "fedrep"
    family = "split models"
    citation = "Collins et al., ICML 2021, arXiv 2102.07078"
    idea = "FedPer's split, trained in turns: the private head on the fixed extractor, then the extractor"

    tau_h: int = hyper(10, "epochs of the head in a round", low=0)
    tau_b: int = hyper(1, "epochs of the extractor in a round", low=0)
    final_head_epochs: int = hyper(0, "epochs of the head before the test after the last round", low=0)

    # ---- client half
    def discloses(self) -> Mapping[str, str]:
        return {}

    def plan(self, client: Client) -> tuple[Phase, ...]:
        return Phase("head", self.tau_h), Phase("extractor", self.tau_b)

    def personal(self, client: Client, message: Message, trained: Tensor | None = None) -> Predictor:
        if trained is None and client.round == client.rounds - 1:
            start, loss = self.assemble(client, message), partial(self.loss, client)
            return client.predictor(fine_tune(client, start, loss, "head", self.final_head_epochs))
        return super().personal(client, message, trained)

    # ---- for people
    def caveats(self) -> Sequence[str]:
        sentences = []
        if self.tau_b == 0:
            sentences.append("tau_b = 0 never moves the extractor: each client trains a head on the initial features")
        if self.tau_h == 0:
            sentences.append("tau_h = 0 never moves the heads: FedRep is then FedBABU without its fine-tuning")
        return sentences
