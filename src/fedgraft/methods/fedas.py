"""FedAS: FedPer whose clients first align what they receive with their own prototypes, weighted by Fisher information.

Yang, Huang, Ye. FedAS: Bridging Inconsistency in Personalized Federated Learning. CVPR 2024, pp. 11986-11995.

Symbols
    theta, theta_i, phi_i    global extractor, the previous one of client i, its private head
    f(x; theta)              features of a sample, d numbers
    c_ik                     prototype: mean of f(x; theta_i) over the training samples of class k at client i
    F_i                      trace of the client's empirical Fisher information

Round: client i receives theta and aligns it, with the head fixed, by SGD on

    sum_{k in batch} 1/(b_k d) sum_{x of class k} ||f(x; theta) - c_ik||^2         b_k samples of class k in the batch

then trains extractor and head on cross-entropy, and sends theta_i with

    F_i  =  sum_batches ||grad CE(batch; theta_i, phi_i)||^2                       CE the batch's mean

    theta  <-  sum_i F_i theta_i / sum_i F_i                                       over the clients of the round

Readings
- The procedure is that of the authors' code.
- Their code hands the server's own extractor to the clients, so that each client's alignment changes what the next
  one gets; here, as in later implementations, every client aligns a copy.
- The target of a sample is its class mean, so the loss is not zero where theta = theta_i: alignment also contracts the
  classes, in the first round too. ``pull="means"`` compares the class means of the batch with the prototypes instead.
- The trace is of gradients of batch means: it depends on the size of the batches and grows with their number. The
  batches are those of the data in its order, ``fisher_batch`` samples each (the authors': 16); 1 is the per-sample
  trace. A smaller last batch, which the authors' loader drops, counts here as much as a full one, although the mean of
  few samples has the larger gradient. The trace covers the private head too, though only the extractor is averaged;
  ``fisher_over="extractor"`` does not.
- If all traces are zero, clients count equally. ``fisher=False`` is FedPer's mean, by ``weighting``, and
  no trace is taken.
- The authors test the model after local training (``trained``).
- The extractor is averaged, so all clients need the same architecture.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from fedgraft.core.client import Client, ClientId
from fedgraft.core.features import class_means, features
from fedgraft.core.message import Field, Message
from fedgraft.core.method import Inbox, Server, Spec, Sums, hyper
from fedgraft.core.model import Model
from fedgraft.core.training import Phase
from fedgraft.methods.fedper import FedPer


@dataclass(frozen=True)
class FedAS(FedPer):
    """Aligned extractors, averaged by Fisher information."""

    name = "fedas"
    family = "split models"
    citation = "Yang et al., CVPR 2024, pp. 11986-11995"
    idea = "align the received extractor with the client's own prototypes; average extractors by Fisher information"
    sends = "down: the extractor; up: the trained extractor, the trace of the Fisher information"
    headline = "trained"
    needs_classes = True

    align_lr: float = hyper(0.01, "step size of the alignment", low=0.0)
    align_epochs: int = hyper(1, "epochs of alignment", low=0)
    align_batch: int = hyper(16, "samples in a batch of the alignment", low=1)
    pull: Literal["samples", "means"] = hyper(
        "samples",
        "what is pulled to a prototype: each feature, or the batch's class mean",
        choices=("samples", "means"),
    )
    fisher: bool = hyper(True, "weight clients by the trace of their Fisher information")
    fisher_batch: int = hyper(16, "samples in a batch of the trace", low=1)
    fisher_over: Literal["all", "extractor"] = hyper(
        "all", "the weights that the trace covers", choices=("all", "extractor")
    )

    # ---- server half
    def setup(self, spec: Spec) -> Server:
        spec.one_architecture(self.name)
        return super().setup(spec)

    def expects(self, server: Server, client: ClientId) -> Mapping[str, Field]:
        trace = {"fisher": Field((), torch.float64, low=0)} if self.fisher else {}
        return {**super().expects(server, client), **trace}

    def sums(self) -> Sums:
        """The server needs every client's Fisher information beside its extractor, if it weighs by that."""
        return "" if self.fisher else super().sums()

    def merge(self, server: Server, inbox: Inbox) -> None:
        super().merge(server, inbox)
        if self.fisher:
            F = torch.stack([message["fisher"] for message in inbox.values()])
            theta = torch.stack([message["weights"] for message in inbox.values()])
            F = F if F.any() else torch.ones_like(F)
            server["weights/0"] = server.spec.mean(theta, F)

    # ---- client half
    def discloses(self) -> Mapping[str, str]:
        trace = {"fisher": "the size of the samples' gradients"} if self.fisher else {}
        return {**trace, "weights": "aligned with the samples' class means"}

    def assemble(self, client: Client, message: Message) -> Tensor:
        received = super().assemble(client, message)
        c = class_means(*features(client, client.own), client.classes)

        def loss(model: Model, x: Tensor, y: Tensor) -> Tensor:
            return self.distance(model.score(x)[0].flatten(1), y, c)

        plain = client.settings.plain.but(
            batch_size=self.align_batch, drop_last=False, weight_decay=0.0, schedule="constant"
        )
        phase = Phase("extractor", self.align_epochs, self.align_lr)
        return client.train(received, loss, (phase,), name="alignment", settings=plain)

    def distance(self, f: Tensor, y: Tensor, c: Tensor) -> Tensor:
        """Return the loss of the alignment on a batch of features ``f`` with labels ``y``, prototypes ``c``."""
        b = torch.bincount(y, minlength=len(c))
        if self.pull == "means":
            return (class_means(f, y, len(c)) - c)[b > 0].square().mean(dim=1).sum()
        return ((f - c[y]).square().mean(dim=1) / b[y]).sum()

    def reply(self, client: Client, received: Tensor, trained: Tensor) -> Message:
        trace = {"fisher": self.trace(client, trained)} if self.fisher else {}
        return Message(**super().reply(client, received, trained), **trace)

    def trace(self, client: Client, trained: Tensor) -> Tensor:
        """F_i, in evaluation mode."""
        model, data = client.model(trained), client.data.train
        span = client.layout.span(self.fisher_over)
        model.module.eval()
        F = torch.zeros((), dtype=torch.float64, device=client.device)
        for start in range(0, len(data), self.fisher_batch):
            x, y = data.batch(slice(start, start + self.fisher_batch))
            gradient = model.differentiate(self.loss(client, model, x.to(client.device), y.to(client.device)))
            F += gradient[span].square().sum()
        return F

    # ---- for people
    def caveats(self) -> Sequence[str]:
        if (self.align_lr == 0 or self.align_epochs == 0) and not self.fisher:
            return ("without alignment and Fisher weights FedAS is FedPer",)
        return ()
