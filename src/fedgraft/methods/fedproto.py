"""FedProto: clients exchange nothing but prototypes, the mean features of their classes.

Tan, Long, Liu, Zhou, Lu, Jiang, Zhang. FedProto: Federated Prototype Learning across Heterogeneous Clients. AAAI 2022,
arXiv 2105.00243.

Symbols
    f_i, h_i    extractor and head of client i, both private
    mu_ic       mean feature of class c at client i, which has n_ic samples of it
    G_c         global prototype of class c

    client      minimise CE(h_i(f_i(x)), y) + lam dist(f_i(x), G_y); upload mu_i and n_i
    server      G_c = sum_i n_ic mu_ic / sum_i n_ic over the clients of the round that have class c
    inference   argmin_c ||f_i(x) - G_c||, or the client's own head

Readings
- Distance: the paper's is Euclidean, between local and global prototypes; its code takes the squared error of every
  sample, averaged over features, and its lam belongs to that (``mse``, the default). With ``euclidean`` the prototypes
  of the batch are compared, summed over its classes. The two want different lam.
- Samples of a class without a global prototype have no second term, but count in the mean.
- Prototypes: the authors average features seen during the last epoch, by a network that is still changing; here they
  are taken after training, in evaluation mode, from all samples.
- Mean: the printed formula divides twice, by the number of holders and by the samples. We divide by the samples;
  ``weighting="uniform"`` takes the plain mean over the holders.
- A class that no client of a round has keeps its prototype.
- Inference: nearest prototype among all classes that have one. The authors' tests look only among the client's own
  classes (``candidates="own"``); ``inference="head"`` asks the client's head, which also answers as long as there is no
  prototype at all.
- No weights are received, so ``received`` and ``trained`` are the same network with the newest prototypes.
- Networks may differ between clients as long as their features are equally long.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from fedgraft.core.client import Client, ClientId, Predictor
from fedgraft.core.features import class_means, pooled_means, prototypes
from fedgraft.core.message import Field, Message
from fedgraft.core.method import Inbox, Server, Spec, hyper
from fedgraft.core.model import Model
from fedgraft.methods.local import Local


@dataclass(frozen=True)
class FedProto(Local):
    """Local training towards common class means."""

    name = "fedproto"
    family = "prototypes and features"
    citation = "Tan et al., AAAI 2022, arXiv 2105.00243"
    idea = "every client keeps its network; features are pulled towards the mean of their class over all clients"
    sends = "down: the prototype of each class; up: the client's own prototypes and how many samples each stands for"
    averages = ""
    needs_classes = True

    lam: float = hyper(1.0, "strength of the pull to the global prototypes", low=0.0)
    distance: Literal["mse", "euclidean"] = hyper(
        "mse", "squared error of each sample, or distance of the batch's prototypes", choices=("mse", "euclidean")
    )
    weighting: Literal["samples", "uniform"] = hyper(
        "samples", "the weight of a client in a prototype: its samples of the class, or the same for all that have it",
        choices=("samples", "uniform"),
    )  # fmt: skip
    inference: Literal["prototype", "head"] = hyper(
        "prototype", "what classifies: the nearest prototype, or the client's head", choices=("prototype", "head")
    )
    candidates: Literal["all", "own"] = hyper(
        "all", "which prototypes are compared: all, or those of classes the client has", choices=("all", "own")
    )

    # ---- server half
    def setup(self, spec: Spec) -> Server:
        size, dtype = spec.one_feature_size(self.name), spec.architectures[0].layout.dtype
        known = torch.zeros(spec.classes, dtype=torch.bool)
        return Server(spec, prototypes=torch.zeros(spec.classes, size, dtype=dtype), known=known)

    def send(self, server: Server, client: ClientId) -> Message:
        return Message(prototypes=server["prototypes"], known=server["known"])

    def expects(self, server: Server, client: ClientId) -> Mapping[str, Field]:
        G, n = server["prototypes"], server.spec.samples[client]
        return {
            "prototypes": Field(tuple(G.shape), G.dtype),
            "counts": Field((len(G),), torch.int64, low=0, high=n, total=(n, n)),
        }

    def merge(self, server: Server, inbox: Inbox) -> None:
        # G_c <- sum_i n_ic mu_ic / sum_i n_ic
        mu = torch.stack([message["prototypes"] for message in inbox.values()])
        n = torch.stack([message["counts"] for message in inbox.values()])
        n = n if self.weighting == "samples" else n.clamp(max=1)
        held = n.sum(0) > 0
        server["prototypes"] = torch.where(held[:, None], pooled_means(mu, n), server["prototypes"])
        server["known"] = server["known"] | held

    # ---- client half
    def discloses(self) -> Mapping[str, str]:
        return {} if self.distance == "mse" else {"prototypes": "made by training on the class means of whole batches"}

    def assemble(self, client: Client, message: Message) -> Tensor:
        client["prototypes"], client["known"] = message["prototypes"], message["known"]
        return client.own

    def loss(self, client: Client, model: Model, x: Tensor, y: Tensor) -> Tensor:
        z, logits = model.score(x)
        G, known = client["prototypes"], client["known"]
        if self.distance == "mse":
            apart = (known[y] * (z.flatten(1) - G[y]).square().mean(1)).mean()
        else:
            present = known & (torch.bincount(y, minlength=len(G)) > 0)
            apart = (class_means(z.flatten(1), y, len(G)) - G)[present].norm(dim=1).sum()
        return client.task.loss(logits, y) + self.lam * apart

    def reply(self, client: Client, received: Tensor, trained: Tensor) -> Message:
        mu, n = prototypes(client, trained)
        return Message(prototypes=mu, counts=n)

    def personal(self, client: Client, message: Message, trained: Tensor | None = None) -> Predictor:
        model, G, known = client.model(client.own), message["prototypes"], message["known"]
        own = known & (client.counts > 0)
        candidates = own if self.candidates == "own" and bool(own.any()) else known
        if self.inference == "head" or not bool(known.any()):
            return model

        def nearest(x: Tensor) -> Tensor:
            z, _ = model.score(x)
            closeness = -torch.cdist(z.flatten(1), G).square()
            never = closeness.amin(dim=1, keepdim=True) - 100  # below all others, and yet of finite loss
            return torch.where(candidates, closeness, never)

        return nearest

    # ---- for people
    def caveats(self) -> Sequence[str]:
        if self.lam > 0:
            return ()
        same = ": FedProto is then local training" if self.inference == "head" else ""
        return (f"lam = 0 takes the pull to the prototypes away{same}",)
