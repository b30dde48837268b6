"""FedGH: one head for all clients, trained on the server with the clients' class means; extractors stay private.

Yi, Wang, Liu, Shi, Yu. FedGH: Heterogeneous Federated Learning with Generalized Global Header. ACM MM 2023,
arXiv 2303.13137.

Symbols
    f_i         extractor of client i, of any architecture with features of one size
    h           the global head
    mu_ic       mean feature of class c at client i, after its local training

    client      replace the head by h, train extractor and head together, upload (mu_ic, c) for its classes
    server      SGD on CE(h(mu_ic), c) over all uploaded pairs, in random order

Readings
- The released code back-propagates into the global head but steps another optimizer, so that its head keeps
  its initial weights. Here, as in the paper, the head is trained.
- The server takes one pair at each step and passes once over them, like the authors' code; its SGD is plain.
- A class mean is the mean over all samples (the authors' code averages means of batches), in evaluation mode.
- Pairs count equally, however many samples they stand for. The outputs of a class that no client has are only ever
  pushed down.
- Dropout and BatchNorm inside a head are in evaluation mode on the server, which has no data to take statistics from.
- The authors test after local training (``trained``), with the locally trained head; ``received`` is the client's own
  extractor under the new global head.
- Extractors of one architecture start alike.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from fedgraft.base.errors import UserError
from fedgraft.core import streams
from fedgraft.core.client import Client, ClientId
from fedgraft.core.features import prototypes
from fedgraft.core.message import Field, Message
from fedgraft.core.method import Inbox, Method, Server, Spec, hyper
from fedgraft.core.model import Part
from fedgraft.core.training import batches


@dataclass(frozen=True)
class FedGH(Method):
    """Private extractors under a generalized global header."""

    name = "fedgh"
    family = "prototypes and features"
    citation = "Yi et al., ACM MM 2023, arXiv 2303.13137"
    idea = "the server trains one head on the class means of all clients' features; extractors stay private"
    sends = "down: the global head; up: the client's class means and which classes it has"
    headline = "trained"
    needs_classes = True

    server_lr: float = hyper(0.01, "learning rate of the global head", low=0.0)
    server_epochs: int = hyper(1, "passes over the uploaded class means in each round", low=0)
    server_batch: int = hyper(1, "class means in a step of the server", low=1)

    def shared(self) -> Part:
        return "head"

    # ---- server half
    def setup(self, spec: Spec) -> Server:
        spec.one_feature_size(self.name)
        if len({tuple(s.shape for s in a.layout.slots if s.part == "head") for a in spec.architectures}) > 1:
            raise UserError(f"{self.name} shares the head, so all clients' models need heads of the same shape")
        return Server(spec, head=spec.layout(0).take(spec.initial(0), "head", spec.settings.buffers))

    def send(self, server: Server, client: ClientId) -> Message:
        return Message(weights=server["head"])

    def expects(self, server: Server, client: ClientId) -> Mapping[str, Field]:
        classes, size = server.spec.classes, server.spec.one_feature_size(self.name)
        return {
            "prototypes": Field((classes, size), server.spec.layout(client).dtype),
            "held": Field((classes,), torch.bool, total=(1, server.spec.samples[client])),
        }

    def merge(self, server: Server, inbox: Inbox) -> None:
        spec, architecture = server.spec, server.spec.architecture(0)
        mu = torch.cat([message["prototypes"][message["held"]] for message in inbox.values()])
        c = torch.cat([message["held"].nonzero()[:, 0] for message in inbox.values()])
        if not len(c):
            return
        model = architecture.model()
        model.load(model.layout.put(model.vector, server["head"], "head", spec.settings.buffers))
        model.module.eval()
        rng = streams.generator(spec.seed, self.name, "pairs", server.round)
        with model.only("head") as head:
            for _ in range(self.server_epochs):
                for pairs in batches(len(c), self.server_batch, rng, drop_last=False, pairs=False):
                    logits = model.head(mu[pairs].view(-1, *architecture.features))
                    gradient = model.differentiate(functional.cross_entropy(logits, c[pairs]))
                    model.vector[head] -= self.server_lr * gradient[head]
        server["head"] = model.layout.take(model.vector, "head", spec.settings.buffers)

    # ---- client half
    def discloses(self) -> Mapping[str, str]:
        return {}

    def reply(self, client: Client, received: Tensor, trained: Tensor) -> Message:
        mu, n = prototypes(client, trained)
        return Message(prototypes=mu, held=n > 0)

    # ---- for people
    def caveats(self) -> Sequence[str]:
        if self.server_lr > 0 and self.server_epochs > 0:
            return ()
        return ("without steps of the server the global head stays as it was drawn",)
