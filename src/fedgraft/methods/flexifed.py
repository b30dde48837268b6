"""FlexiFed: networks of different depth average the layers on which they agree from the input onwards.

Wang, He, Chen, Chen, Huang, Jin, Yang. FlexiFed: Personalized Federated Learning for Edge Clients with Heterogeneous
Model Architectures. The ACM Web Conference (WWW) 2023, doi 10.1145/3543507.3583347.

Symbols
    a_i        layers of client i in forward order; a layer is known by name, type and shapes
    w_i^l      weights of layer l at client i after its local training
    C_il       contributors: the clients whose layer l client i averages, itself among them

Round: every client trains its network, then, from the uploads as they are,

    w_i^l  <-  1/|C_il| sum_{j in C_il} w_j^l        for every client i and layer l

    basic-common       C_il = everybody   while a_j[1..l] is the same for all j;   {i} behind
    clustered-common   C_il = everybody   on that prefix;   {j : a_j = a_i} behind it
    max-common         C_il = {j : a_j[1..l] = a_i[1..l]}

Readings
- The authors published code for basic-common and max-common only; clustered-common is what three independent
  implementations agree on. max-common is the default.
- Comparison stops at the first layer that differs: layers of the same name and shape after it are not averaged. The
  end of a network counts as a difference. The authors compare names alone; here types and shapes count too.
- A layer here is a convolution (or any module with weights) with the normalisation after it: a network with
  normalisation does not agree with one without.
- Weights are uniform, whatever the clients' sizes, as in all implementations.
- Classifier: the authors average the fully connected layers at the end where architectures are identical; two other
  implementations leave them private, which is ``include_classifier=False``.
- BatchNorm statistics are averaged with their layer, as in the authors' code; the run's ``buffers`` policy ``local``
  leaves them at the client. Integer counters are never averaged (the authors' code divides them).
- The authors test in training mode, in which BatchNorm normalises by the test batch and dropout is on; here, as
  everywhere in this library, tests are in evaluation mode.
- Every client begins with its own random weights, also among identical architectures, so nothing is averaged before
  the first training. The authors train on a moving tenth of the data in each round; here it is the run's setting.
- Absent clients: the code has none. Here C_il is restricted to the clients that took part, and the others keep
  what they have.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from fedgraft.core.client import Client, ClientId
from fedgraft.core.layers import Layer, agreeing, before_classifier, edges, identical, layers_of, put, take
from fedgraft.core.message import Field, Message
from fedgraft.core.method import Inbox, Method, Server, Spec, hyper
from fedgraft.core.model import Architecture


@dataclass(frozen=True)
class FlexiFed(Method):
    """Average common layers."""

    name = "flexifed"
    family = "clients with different architectures"
    citation = "Wang et al., WWW 2023, doi 10.1145/3543507.3583347"
    idea = "networks of different depth average the layers that agree from the input onwards"
    sends = "down: the averaged layers and how many contributed to each; up: the layers shared with other clients"
    averages = "the common layers, each for itself"
    independent_start = True

    strategy: Literal["basic-common", "clustered-common", "max-common"] = hyper(
        "max-common", "who averages which layers", choices=("basic-common", "clustered-common", "max-common")
    )
    include_classifier: bool = hyper(True, "average the fully connected layers at the end of the network too")

    def layers(self, architecture: Architecture) -> Sequence[Layer]:
        """a_i: the layers that may be averaged."""
        network = layers_of(architecture)
        return network if self.include_classifier else network[: before_classifier(network)]

    def contributors(self, spec: Spec) -> list[list[list[ClientId]]]:
        """Return for each layer the sets C_il of more than one client."""
        a = [self.layers(spec.architecture(client)) for client in range(spec.clients)]
        sets = agreeing(a)
        if self.strategy != "max-common":
            groups = identical(a) if self.strategy == "clustered-common" else []
            prefix = sum(len(at_depth[0]) == spec.clients for at_depth in sets)
            sets[prefix:] = [[C for C in groups if depth < len(a[C[0]])] for depth in range(prefix, len(sets))]
        return [[C for C in at_depth if len(C) > 1] for at_depth in sets]

    # ---- server half
    def setup(self, spec: Spec) -> Server:
        server, sets = Server(spec), self.contributors(spec)
        for client in range(spec.clients):
            # contributor sets shrink with depth, so the layers that a client shares are its leading ones
            shared = sum(any(client in C for C in at_depth) for at_depth in sets)
            leading = self.layers(spec.architecture(client))[:shared]
            start = spec.initial(client, independent=True)
            server[f"weights/{client}"] = take(start, leading, spec.settings.buffers)
            server[f"contributors/{client}"] = torch.ones(shared, dtype=torch.int64)
        return server

    def send(self, server: Server, client: ClientId) -> Message:
        return Message(weights=server[f"weights/{client}"], contributors=server[f"contributors/{client}"])

    def expects(self, server: Server, client: ClientId) -> Mapping[str, Field]:
        width = len(server[f"weights/{client}"])
        return {"weights": Field((width,), server.spec.layout(client).dtype)}

    def merge(self, server: Server, inbox: Inbox) -> None:
        spec = server.spec
        averaged = {i: message["weights"].clone() for i, message in inbox.items()}
        sizes = {i: torch.ones_like(server[f"contributors/{i}"]) for i in inbox}
        for depth, sets in enumerate(self.contributors(spec)):
            for C in ([j for j in everybody if j in inbox] for everybody in sets):
                if len(C) < 2:
                    continue
                start, stop = edges(self.layers(spec.architecture(C[0])), spec.settings.buffers)[depth : depth + 2]
                uploads = torch.stack([inbox[j]["weights"][start:stop] for j in C])
                for i, row in zip(C, self.blend(server, uploads, C), strict=True):
                    averaged[i][start:stop] = row
                    sizes[i][depth] = len(C)
        for i in inbox:
            server[f"weights/{i}"], server[f"contributors/{i}"] = averaged[i], sizes[i]

    def blend(self, server: Server, uploads: Tensor, C: Sequence[ClientId]) -> Tensor:
        """Return what each client of ``C`` gets for one layer, from everybody's upload of it."""
        return server.spec.mean(uploads, torch.ones(len(C))).expand_as(uploads)

    # ---- client half
    def discloses(self) -> Mapping[str, str]:
        return {}

    def assemble(self, client: Client, message: Message) -> Tensor:
        client["contributors"] = message["contributors"]
        return put(client.own, message["weights"], self.received_layers(client), client.settings.buffers)

    def reply(self, client: Client, received: Tensor, trained: Tensor) -> Message:
        return Message(weights=take(trained, self.received_layers(client), client.settings.buffers))

    def received_layers(self, client: Client) -> Sequence[Layer]:
        """Return the layers that travel between this client and the server."""
        return self.layers(client.architecture)[: len(client["contributors"])]

    # ---- a newcomer: the mean of the layers that agree with its own, as far as they travel
    def admit(self, server: Server, client: ClientId) -> None:
        spec, own = server.spec, self.layers(server.spec.architecture(client))
        cut, layers, sizes = edges(own, spec.settings.buffers), [spec.initial(client)[:0]], list[int]()
        for depth, sets in enumerate(self.contributors(spec)):
            partners = [j for C in sets if client in C for j in C if j < client]
            there = [server[f"weights/{j}"] for j in partners if len(server[f"contributors/{j}"]) > depth]
            if not there:
                break
            start, stop = cut[depth : depth + 2]
            layers.append(torch.stack([weights[start:stop] for weights in there]).mean(0))
            sizes.append(len(there) + 1)
        server[f"weights/{client}"], server[f"contributors/{client}"] = torch.cat(layers), torch.tensor(sizes).long()
