"""LP-FT: FedAvg, and each client first probes with a new head for its data, then fine-tunes the whole copy from there.

The recipe: Kumar, Raghunathan, Jones, Ma, Liang. Fine-Tuning can Distort Pretrained Features and Underperform
Out-of-Distribution. ICLR 2022, arXiv 2202.10054. In federated learning: Chen, Ghoukasian, Jin, Wang, Karimireddy, Li. A
Closer Look at Personalized Fine-Tuning in Heterogeneous Federated Learning. arXiv 2511.12695, 2025.

Symbols: (phi, psi) extractor and head of the global model w, E_lp and E_ft epochs.

    rounds      w as in FedAvg
    client i    psi_i = SGD over psi alone on F_i(phi, psi), from psi, for E_lp epochs        the linear probe
                v_i   = SGD over (phi, psi) on F_i, from (phi, psi_i), for E_ft epochs; v_i is used, then discarded

A head that fits the client before the extractor may change sends smaller gradients through it: the common features are
distorted less.

Readings
- Points: as in FedAvg-FT. ``received`` is v_i, made from the newest global model by every client, selected or not;
  ``trained`` is the model after the last round's training. The rounds are those of FedAvg, bit for bit.
- The head starts from the global one, as in federated learning there is one; Kumar et al. start theirs at random, or
  fit it to the end on fixed features.
- While the head is probed, the extractor is in evaluation mode, as fixed features are: BatchNorm statistics are fixed,
  and there is no dropout. Fine-tuning is in training mode.
- E_lp, E_ft: the papers probe until it no longer improves, and fine-tune at the best of several smaller rates. Here
  both are 5 epochs at the run's rate, as FedAvg-FT's; so LP-FT does twice the work of FedAvg-FT after the download.
  ``fine_tune_epochs=0`` is the probe alone (their LP), ``probe_epochs=0`` is FedAvg-FT.
- Each phase has a fresh optimizer and batches of its own.
"""

from dataclasses import dataclass

from torch import Tensor

from fedgraft.core.client import Client
from fedgraft.core.method import hyper
from fedgraft.core.model import Model
from fedgraft.methods.fedavg_ft import FedAvgFT, fine_tune


@dataclass(frozen=True)
class LPFT(FedAvgFT):
    """FedAvg, then everybody adapts the head of a copy, then all of it."""

    name = "lp-ft"
    family = "one global model, fine-tuning, and training alone"
    citation = "Kumar et al., ICLR 2022, arXiv 2202.10054; in federated learning: Chen et al., arXiv 2511.12695, 2025"
    idea = "FedAvg; every client fits the head of a temporary copy, then fine-tunes all of it"

    probe_epochs: int = hyper(5, "E_lp, epochs of the linear probe", low=0)
    probe_lr: float | None = hyper(None, "learning rate of the linear probe; none is the run's", above=0.0)

    # ---- client half
    def adapted(self, client: Client, w: Tensor) -> Tensor:
        return super().adapted(client, self.probe(client, w))

    def probe(self, client: Client, w: Tensor) -> Tensor:
        """Return ``w`` with the head that suits the client's data, on features that stay as they are."""

        def on_fixed_features(model: Model, x: Tensor, y: Tensor) -> Tensor:
            model.module.eval()
            return self.loss(client, model, x, y)

        return fine_tune(client, w, on_fixed_features, "head", self.probe_epochs, self.probe_lr, name="probe")

    # ---- for people
    def caveats(self) -> tuple[str, ...]:
        off = ("probe_epochs = 0 makes LP-FT the same as FedAvg-FT",) if self.probe_epochs == 0 else ()
        return (*off, *super().caveats())
