"""pFedAMF: after training, fuse the local, the global and the client's history model; teach the fusion to the upload.

A RECONSTRUCTION. Of the paper only the abstract was available, and no public code was found. The abstract says that the
global model and history models are preserved as knowledge, that after local training an adaptive knowledge matrix fuses
local, global and history models, and that the fusion is distilled into the model that feeds the global one. All that
is more precise than this is ours; results are those of our interpretation, not of the authors' method.

Yao, Zhu, Liu, Xu, Jin. Rethinking Personalized Federated Learning from Knowledge Perspective. ICPP 2024.

Symbols
    g          the received global model, kept as it came
    theta_i    the model after local training from g
    q_i        history: the client's last fused model
    A_i        knowledge matrix, a row of three logits for each layer, at first zeros: equal thirds
    m_i        fused model; (a, b, c) = softmax of a layer's row

Round: client i trains theta_i from g as in FedAvg, then

    m_i = a theta_i + b g + c q_i                        layer by layer
    learn A_i by SGD on CE(m_i), the three models fixed: dCE/da = <grad CE(m_i), theta_i> and so on
    theta_i <- SGD on (1 - rho) CE + rho T^2 KL(softmax(m_i / T) || softmax(theta_i / T))
    q_i <- m_i

and uploads theta_i. The server averages as FedAvg does. The personal model is m_i.

Readings
- The matrix has a row for each layer; the abstract does not say whether layers, tensors or single weights have their
  own. BatchNorm statistics are mixed like the weights of their layer.
- At its first participation a client has no history: g stands in for it, and A_i is not learned yet.
- With rho = 0 there is nothing to distil, and theta_i is uploaded as FedAvg's training left it.
- The model at ``received`` is the fusion of the last upload, the newest global model and q_i with the stored A_i; at
  ``trained`` it is m_i as it was fused. A client that was never selected holds the global model.
- The savings in computation and communication that the abstract reports must come from fewer rounds: a round costs as
  much communication as one of FedAvg, and more computation.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from fedgraft.core.client import Client, Predictor
from fedgraft.core.message import Message
from fedgraft.core.method import hyper
from fedgraft.core.model import Layout, Model
from fedgraft.core.training import Phase
from fedgraft.methods.fedala import portion
from fedgraft.methods.fedavg import FedAvg


@dataclass(frozen=True)
class PFedAMF(FedAvg):
    """Local, global and past knowledge in one model."""

    name = "pfedamf"
    family = "a global model and a personal model"
    citation = "Yao et al., ICPP 2024"
    idea = "fuse local, global and history models by a learned matrix, and distil the fusion into the upload"
    sends = "down: the global model; up: the distilled model"
    headline = "trained"
    newcomers = "train"
    needs_classes = True
    reconstruction = True
    shows = {
        "knowledge": "shares of three models in the client's own, mean over layers: column 0 is its local model, 1 the "
        "global one, 2 its history"
    }

    eta: float = hyper(1.0, "step size of the knowledge matrix", low=0.0)
    fusion_epochs: int = hyper(1, "epochs of learning the matrix", low=0)
    s: float = hyper(0.8, "part of the training data on which the matrix is learned", above=0.0, high=1.0)
    rho: float = hyper(0.5, "weight of the fused model in the distillation", low=0.0, high=1.0)
    T: float = hyper(2.0, "temperature of the distillation", above=0.0)
    distil_epochs: int = hyper(1, "epochs of distillation", low=0)

    # ---- client half
    def discloses(self) -> Mapping[str, str]:
        return {"weights": "distilled from a mixture that is learned on the samples"}

    def join(self, client: Client) -> None:
        client["A"] = client.own.new_zeros(len(layers(client.layout)), 3)

    def fit(self, client: Client, received: Tensor) -> Tensor:
        theta = super().fit(client, received)
        knowledge = torch.stack([theta, received, client.get("q", received)])
        if "q" in client:
            client["A"] = self.learn(client, knowledge)
        client["q"] = m = fuse(client.layout, client["A"], knowledge)
        return self.distil(client, theta, m) if self.rho and self.distil_epochs else theta

    def learn(self, client: Client, knowledge: Tensor) -> Tensor:
        """Return the knowledge matrix after some epochs of SGD on the fused model's loss."""
        A, data = client["A"], portion(client, self.s)
        for x, y in client.batches("A", epochs=self.fusion_epochs, samples=data):
            logits = A.clone().requires_grad_()
            m = fuse(client.layout, logits, knowledge)
            model = client.model(m.detach()).train_on(len(data))
            gradient = model.differentiate(self.loss(client, model, x, y))
            (slope,) = torch.autograd.grad(m[client.layout.span("all")], logits, gradient)
            A = A - self.eta * slope
        return A

    def distil(self, client: Client, theta: Tensor, m: Tensor) -> Tensor:
        """Teach ``theta`` what the fused model says."""
        teacher = client.model(m, role="teacher")

        def loss(model: Model, x: Tensor, y: Tensor) -> Tensor:
            with teacher.evaluating():
                answers = teacher(x)
            logits = model(x)
            lesson = softened_kl(answers, logits, self.T)
            return (1 - self.rho) * client.task.loss(logits, y) + self.rho * lesson

        return client.train(theta, loss, (Phase(epochs=self.distil_epochs),), name="distillation")

    def personal(self, client: Client, message: Message, trained: Tensor | None = None) -> Predictor:
        if trained is not None:
            return client.predictor(client.get("q", trained))
        w = self.assemble(client, message)
        if "q" in client:
            w = fuse(client.layout, client["A"], torch.stack([client.own, w, client["q"]]))
        return client.predictor(w)

    # ---- for people
    def observe_client(self, client: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
        return {"knowledge": client["A"].softmax(dim=1).mean(dim=0)} if "A" in client else {}

    def caveats(self) -> Sequence[str]:
        sentences = []
        if self.rho == 0 or self.distil_epochs == 0:
            sentences.append("rho = 0 or distil_epochs = 0 distils nothing: the global model is FedAvg's")
        if self.eta == 0 or self.fusion_epochs == 0:
            sentences.append("eta = 0 or fusion_epochs = 0 leaves the knowledge matrix at equal thirds")
        return sentences


def layers(layout: Layout) -> list[str]:
    """The network's layers in their order."""
    return list(dict.fromkeys(slot.layer for slot in layout.slots))


def fuse(layout: Layout, A: Tensor, knowledge: Tensor) -> Tensor:
    """Mix whole models (the rows of ``knowledge``), each layer by the softmax of its row of ``A``."""
    shares = dict(zip(layers(layout), A.softmax(dim=1), strict=True))
    return torch.cat([shares[slot.layer] @ knowledge[:, slot.start : slot.stop] for slot in layout.slots])


def softened_kl(answers: Tensor, logits: Tensor, T: float) -> Tensor:
    """T^2 KL(softmax(answers / T) || softmax(logits / T)): the factor keeps the gradient's size at any T."""
    student, teacher = (logits / T).log_softmax(dim=1), (answers / T).log_softmax(dim=1)
    return T**2 * functional.kl_div(student, teacher, reduction="batchmean", log_target=True)
