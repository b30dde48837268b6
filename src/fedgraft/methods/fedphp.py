"""FedPHP: every client keeps a history of its own models, which teaches the received model and is its personal model.

Li, Zhan, Shao, Li, Song. FedPHP: Federated Personalization with Inherited Private Models. ECML-PKDD 2021.

Symbols: w the global model, v the model in training, q_i the history model of client i, k_i how often the client has
taken part, T the number of rounds, C the share of clients in a round.

Round: client i starts at v = w and minimises, with q_i fixed as its teacher,

    (1 - rho) CE(v) + rho R(v, q_i)
    R = KD    cross-entropy from softmax(logits of q_i / temperature) to softmax(logits of v)
    R = MMD   maximum mean discrepancy between the features that v and q_i have of the batch

Then, once,

    m   = mu min(1, k_i / (C T))       0 at the first time: q_i becomes the trained model
    q_i <- m q_i + (1 - m) v;   k_i <- k_i + 1

The server averages the trained models as FedAvg does.

Readings
- The schedule of m uses the client's own count k_i, as in the authors' code (a library counts rounds, which gives
  weight to a history that an often absent client does not have). C is the run's share of clients in a round, the
  middle of its range if it has one; ``share`` states another.
- KD: the temperature acts on the teacher alone and there is no factor temperature^2, as in the authors' code.
- MMD: the sum of five Gaussian kernels whose widths are 1/4, 1/2, 1, 2 and 4 times the mean squared distance in the
  batch, as in the authors' code. Features come from the same pass as the logits.
- The tested model is q_i, which needs no download: both points agree, and a client that was never selected has the
  initial model.
- The teacher runs in evaluation mode; the history takes in BatchNorm statistics in the same proportion.
- The authors clip gradients; that is a setting of the run here.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor
from torch.nn import functional

from fedgraft.core import bank
from fedgraft.core.client import Client, Predictor
from fedgraft.core.message import Message
from fedgraft.core.method import hyper
from fedgraft.core.model import Model
from fedgraft.methods.fedavg import FedAvg

WIDTHS = (0.25, 0.5, 1.0, 2.0, 4.0)


@dataclass(frozen=True)
class FedPHP(FedAvg):
    """Every client's past teaches its present."""

    name = "fedphp"
    family = "a global model and a personal model"
    citation = "Li et al., ECML-PKDD 2021"
    idea = "a running mean of the client's own models is its personal model, and teaches each received model"
    headline = "trained"
    newcomers = "train"
    needs_classes = True

    rho: float = hyper(0.05, "weight of the teacher in the loss", low=0.0, high=1.0)
    transfer: Literal["kd", "mmd"] = hyper("kd", "the teacher passes on its outputs or features", choices=("kd", "mmd"))
    temperature: float = hyper(4.0, "softens the teacher's outputs", above=0.0)
    mu: float = hyper(0.9, "weight of the history once the client has taken part C T times", low=0.0, high=1.0)
    share: float | None = hyper(
        None, "C, the expected share of rounds in which a client is selected; none is the run's", above=0.0, high=1.0
    )

    # ---- client half
    def discloses(self) -> Mapping[str, str]:
        return {} if self.transfer == "kd" else {"weights": "trained on a discrepancy between whole batches"}

    def join(self, client: Client) -> None:
        client["q"] = client.own
        client["k"] = torch.zeros((), dtype=torch.int64)

    def fit(self, client: Client, received: Tensor) -> Tensor:
        q, k = client["q"], client["k"]
        teacher = client.model(q, role="teacher")

        def loss(model: Model, x: Tensor, y: Tensor) -> Tensor:
            with teacher.evaluating():
                lesson, answers = teacher.score(x)
            features, logits = model.score(x)
            R = distillation(logits, answers / self.temperature) if self.transfer == "kd" else mmd(features, lesson)
            return (1 - self.rho) * client.task.loss(logits, y) + self.rho * R

        v = client.train(received, loss, self.plan(client))
        C = client.share if self.share is None else self.share
        m = self.mu * min(1.0, int(k) / (C * client.rounds))
        client["q"], client["k"] = torch.lerp(v, q, m), k + 1
        return v

    def personal(self, client: Client, message: Message, trained: Tensor | None = None) -> Predictor:
        return client.predictor(client["q"])

    # ---- for people
    def caveats(self) -> Sequence[str]:
        sentences = []
        if self.rho == 0:
            sentences.append("rho = 0 trains without the teacher: the global model is FedAvg's")
        if self.rho == 1:
            sentences.append("rho = 1 trains without labels")
        if self.mu == 0:
            sentences.append("mu = 0 inherits nothing: the personal model is the last trained one")
        if self.mu == 1:
            sentences.append("mu = 1 ends in a history that no longer changes")
        if self.transfer == "mmd" and self.temperature != FedPHP.temperature:
            sentences.append("temperature does nothing with transfer = mmd, which compares features")
        return sentences


def distillation(logits: Tensor, answers: Tensor) -> Tensor:
    """Cross-entropy from the teacher's ``answers`` to the student's ``logits``."""
    return functional.cross_entropy(logits, answers.softmax(dim=1))


def mmd(ours: Tensor, theirs: Tensor) -> Tensor:
    """Squared maximum mean discrepancy between two batches of features, over a family of Gaussian kernels."""
    distances = bank.squared_distances(torch.cat([ours.flatten(1), theirs.flatten(1)]))
    mean = distances.detach().sum() / (len(distances) * (len(distances) - 1)) + 1e-8
    kernels = torch.stack([torch.exp(-distances / (width * mean)) for width in WIDTHS]).sum(0)
    side = torch.ones(len(distances), dtype=kernels.dtype, device=kernels.device)
    side[len(ours) :] = -1
    return ((side @ kernels @ side) / len(ours) ** 2).to(ours.dtype)
