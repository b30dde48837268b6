"""FedBABU: all clients have the same random head, which is never trained; only the body is learned together.

Oh, Kim, Yun. FedBABU: Toward Enhanced Representation for Federated Image Classification. ICLR 2022, arXiv 2106.06042.

Symbols: phi the body (extractor), psi_0 the initial random head, n_i the samples of client i.

    client i    phi_i = SGD over phi alone on F_i(phi, psi_0), from the received phi
    server      phi <- sum_i n_i phi_i / sum_i n_i over the clients of the round
    in use      v_i = SGD from (phi, psi_0) on F_i, for E_ft epochs at rate eta_ft, the whole network; discarded

Readings
- Points: ``received`` is v_i, fine-tuned from the newest body by every client, selected or not. The paper's figure
  before personalization is ``fine_tune_epochs=0``, from the same rounds. ``trained`` is (phi_i, psi_0), not fine-tuned.
- The paper tunes the whole network and studies ``part="head"`` and ``part="body"`` too.
- eta_ft: the authors' 0.001 is where their training rate ends (0.1, divided by 10 at T/2 and again at 3T/4), so the
  default is the run's rate; ``fine_tune_lr`` sets another. Their schedule is left to the run's ``schedule``.
- Mean: the authors' code weights all clients equally, ``weighting="uniform"``; the default is FedAvg's.
- psi_0 is not sent: every client generates it from the run's seed. It is outside the optimizer, so that neither
  momentum nor weight decay can move it.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from fedgraft.core.client import Client
from fedgraft.core.model import Part
from fedgraft.core.training import Phase
from fedgraft.methods.fedavg_ft import FedAvgFT


@dataclass(frozen=True)
class FedBABU(FedAvgFT):
    """Body learned together under one fixed head."""

    name = "fedbabu"
    family = "split models"
    citation = "Oh et al., ICLR 2022, arXiv 2106.06042"
    idea = "average the extractor under one fixed random head; every client fine-tunes a temporary copy"
    sends = "down: the extractor; up: the trained extractor"
    averages = "the extractor"

    def shared(self) -> Part:
        return "extractor"

    # ---- client half
    def discloses(self) -> Mapping[str, str]:
        return {}

    def plan(self, client: Client) -> tuple[Phase, ...]:
        return (Phase("extractor"),)
