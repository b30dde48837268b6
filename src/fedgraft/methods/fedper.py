"""FedPer: a shared extractor, a private head, both trained together.

Arivazhagan, Aggarwal, Singh, Choudhary. Federated Learning with Personalization Layers. arXiv 1912.00818, 2019.

Readings
- The paper keeps the last K_P blocks private; here, as in most comparisons, the private part is the head.
- All heads start from the same random weights.
"""

from dataclasses import dataclass

from fedgraft.core.model import Part
from fedgraft.methods.fedavg import FedAvg


@dataclass(frozen=True)
class FedPer(FedAvg):
    """A common body, everybody's own head."""

    name = "fedper"
    family = "split models"
    citation = "Arivazhagan et al., arXiv 1912.00818, 2019"
    idea = "average the extractor; every client keeps its own head"
    sends = "down: the extractor; up: the trained extractor"
    averages = "the extractor"

    def shared(self) -> Part:
        return "extractor"
