"""FedRoD: a generic head that is trained as if all classes were equally frequent, and a private one on top of it.

Chen, Chao. On Bridging Generic and Personalized Federated Learning for Image Classification. ICLR 2022, arXiv
2107.00778.

Symbols: z = f(x; theta) the features, psi the generic head, phi_i the private head of client i, n_ic its samples of
class c.

    generic logits     g_G = h(z; psi)                       what everybody shares: theta and psi
    personal logits    g_P = h(z; psi) + h(z; phi_i)         what client i uses

    client i    (theta, psi) by SGD on the balanced softmax   -log( n_iy^gamma exp(g_Gy) / sum_c n_ic^gamma exp(g_Gc) )
                phi_i        by SGD on the cross-entropy of g_P; no gradient reaches z and h(z; psi)
    server      theta, psi <- their means, as in FedAvg

The balanced softmax takes the client's class frequencies out of the generic logits, so that all clients train towards
the same goal; the private head puts them back, with all else that is particular to the client.

Readings
- Points: the private head needs no download. ``received`` is the newest theta and psi under the client's own phi_i,
  ``trained`` those of its last training. The paper's generic predictor, theta and psi alone, is no client's own model
  and is not reported.
- Both losses see the same batches, and each batch's z and h(z; psi) as they were before the step on it.
- Start of phi_i: not stated. At zero (the default) a client begins with the generic model; ``start="head"`` is a copy
  of the first generic head, as in code by others. A head of several layers needs the latter: from zero it cannot
  learn.
- gamma: 1 is the balanced softmax; 0 is the plain loss, with which theta and psi are FedAvg's, bit for bit.
- A class that the client does not have has weight zero and is left out of its softmax.
- The paper also writes phi_i by a hypernetwork from the client's class shares, to serve clients that never trained.
  That form is left out: here the private head is the paper's linear one. A client that never trained has the generic
  model.
- There is no public code by the authors.
- BatchNorm statistics inside a head are the generic head's.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from fedgraft.core.client import Client, Predictor
from fedgraft.core.features import class_counts
from fedgraft.core.message import Message
from fedgraft.core.method import hyper
from fedgraft.core.model import Model
from fedgraft.core.optimizer import Stepper
from fedgraft.methods.fedavg import FedAvg


@dataclass(frozen=True)
class FedRoD(FedAvg):
    """Robust decoupling: two losses, two heads."""

    name = "fedrod"
    family = "split models"
    citation = "Chen, Chao, ICLR 2022, arXiv 2107.00778"
    idea = "FedAvg on a loss that is balanced over classes; a private head's logits are added to the generic ones"
    needs_classes = True
    newcomers = "train"

    gamma: float = hyper(1.0, "how far class frequencies are taken out of the generic loss", low=0.0)
    start: Literal["zero", "head"] = hyper(
        "zero", "the private head at first: zero, or a copy of the generic one", choices=("zero", "head")
    )

    # ---- client half
    def discloses(self) -> Mapping[str, str]:
        return {}

    def join(self, client: Client) -> None:
        head = client.own[client.layout.span("head")]
        client["phi"] = torch.zeros_like(head) if self.start == "zero" else head.clone()

    def fit(self, client: Client, received: Tensor) -> Tensor:
        phi, private = client.layout.span("head"), client.model(received, role="private")
        private.vector[phi] = client["phi"]
        priors = class_counts(client, client.architecture.outputs).to(received).pow(self.gamma).log()
        z, generic, labels = received, received, received

        def balanced(model: Model, x: Tensor, y: Tensor) -> Tensor:
            nonlocal z, generic, labels
            features, logits = model.score(x)
            z, generic, labels = features.detach(), logits.detach(), y
            private.module.train(model.module.training)
            return client.task.loss(logits + priors, y)

        def met() -> bool:
            """Look at the batch as a whole, where the loss sees its samples one by one; it may be empty."""
            nonlocal z, generic, labels
            model = client.model()
            assert model.batch is not None
            x, labels = model.batch
            with torch.no_grad():
                z, generic = model.score(x) if len(x) else (x, x)
            return bool(len(x))

        def update(weights: Tensor, gradient: Tensor, step: Stepper) -> None:
            some = not client.private or met()
            step(weights, gradient)
            if not some:
                return
            with torch.random.fork_rng(devices=[]):  # dropout in the private head must leave the generic one's alone
                gradient = private.differentiate(client.task.loss(generic + private.head(z), labels))
            step_phi(private.vector[phi], gradient[phi])

        with client.stepper("phi", length=len(client["phi"])) as step_phi, private.only("head"):
            trained = client.train(received, balanced, self.plan(client), update=update)
        client["phi"] = private.vector[phi].clone()
        return trained

    def personal(self, client: Client, message: Message, trained: Tensor | None = None) -> Predictor:
        weights = self.assemble(client, message) if trained is None else trained
        model, private = client.model(weights), client.model(weights, role="private")
        private.vector[client.layout.span("head")] = client["phi"]
        private.module.eval()

        def both(x: Tensor) -> Tensor:
            z, generic = model.score(x)
            own: Tensor = private.head(z)
            return generic + own

        return both

    def caveats(self) -> tuple[str, ...]:
        return ("gamma = 0 trains the generic head on the plain loss, as FedAvg",) if self.gamma == 0 else ()
