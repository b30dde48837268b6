"""FedALA: before it trains, a client mixes its old model with the download, element by element, as it has learned to.

Zhang, Hua, Wang, Song, Xue, Ma, Guan. FedALA: Adaptive Local Aggregation for Personalized Federated Learning. AAAI
2023, arXiv 2212.01197.

Symbols: w the global model, theta the client's last trained model, A its mixing weights for the top p layers (one for
each element, all 1 at first), s the model that training starts from, CE its cross-entropy.

    lower layers   s = w
    top p layers   s = theta + A (w - theta)                       element by element
    learn A        A <- clip(A - eta (grad CE at s) (w - theta), 0, 1)   on batches of a random part of the data

The first time A is learned until the loss settles, later for one epoch. Then the client trains from s as in FedAvg,
and the server averages the trained models. At its first participation a client starts from w.

Readings
- p counts layers here; in the authors' code it counts tensors, so that their 2 is the head, our p = 1 (a p beyond the
  number of layers is all of them). A normalisation belongs to the layer before it.
- The random part of the data is drawn; the authors' code takes one contiguous block, which misses classes where the
  data are sorted.
- "Settled": the standard deviation of the last ten epochs' losses is below ``threshold``. The authors state 0.01 and
  have 0.1 in their code, our default. The loss of an epoch is its mean; their code looks at the last batch alone, and
  may search forever, which ``limit`` prevents.
- The model at ``received`` is s: A is learned on the new download, on a fork, as before training. Absent clients keep
  theta and A, and one that has never trained holds w.
- BatchNorm statistics are not mixed: s has those of w, and what learning A does to them is discarded.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from fedgraft.core.client import Client
from fedgraft.core.layers import layers_of
from fedgraft.core.message import Message
from fedgraft.core.method import hyper
from fedgraft.core.model import Architecture
from fedgraft.core.samples import Samples
from fedgraft.methods.fedavg import FedAvg

WINDOW = 10


@dataclass(frozen=True)
class FedALA(FedAvg):
    """Take from the global model what helps, element by element."""

    name = "fedala"
    family = "a global model and a personal model"
    citation = "Zhang et al., AAAI 2023, arXiv 2212.01197"
    idea = "learn, for each element of the top layers, how much of the download replaces the client's old model"
    newcomers = "train"
    shows = {
        "A": "how much of the download replaces the client's old model in the top layers, mean over their elements: "
        "1 is all of it, 0 nothing"
    }

    p: int = hyper(1, "how many layers, from the top, are mixed", low=1)
    s: float = hyper(0.8, "part of the training data on which A is learned", above=0.0, high=1.0)
    eta: float = hyper(1.0, "step size of A", low=0.0)
    threshold: float = hyper(0.1, "the first search ends when the losses deviate less than this", low=0.0)
    limit: int = hyper(50, "the first search ends after at most this many epochs", low=1)

    # ---- client half
    def discloses(self) -> Mapping[str, str]:
        return {"weights": "trained from a mixture that is learned on the samples"}

    def assemble(self, client: Client, message: Message) -> Tensor:
        w = super().assemble(client, message)
        if "A" not in client:  # it has no old model yet
            return w
        top, data = top_layers(client.architecture, self.p), portion(client, self.s)
        s, theta, A, losses = w.clone(), client.own, client["A"], list[float]()
        with client.model().only("head" if int(top.min()) >= client.layout.span("head").start else "all"):
            while len(losses) < (1 if "settled" in client else self.limit) and not self.settled(losses):
                values = []
                for x, y in client.batches(f"A/{len(losses)}", epochs=1, samples=data):
                    s[top] = torch.lerp(theta[top], w[top], A)
                    model = client.model(s).train_on(len(data))
                    value = self.loss(client, model, x, y)
                    gradient = model.differentiate(value)[top]
                    A = (A - self.eta * gradient * (w[top] - theta[top])).clamp(0, 1)
                    values.append(value.detach())
                losses.append(float(torch.stack(values).mean()))
        client["A"], client["settled"] = A, A.new_ones(())
        s[top] = torch.lerp(theta[top], w[top], A)
        return s

    def settled(self, losses: Sequence[float]) -> bool:
        """Whether the epochs' losses have stopped moving."""
        return len(losses) > WINDOW and float(np.std(losses[-WINDOW:])) < self.threshold

    def fit(self, client: Client, received: Tensor) -> Tensor:
        client.setdefault("A", received.new_ones(len(top_layers(client.architecture, self.p))))
        return super().fit(client, received)

    # ---- for people
    def observe_client(self, client: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
        return {"A": client["A"].mean()} if "A" in client else {}

    def caveats(self) -> Sequence[str]:
        sentences = []
        if self.eta == 0:
            sentences.append("eta = 0 keeps A at 1: every client starts from the download, as in FedAvg")
        if self.limit <= WINDOW + 1:
            sentences.append(f"limit <= {WINDOW + 1} ends the first search before threshold can end it")
        return sentences


def top_layers(architecture: Architecture, p: int) -> Tensor:
    """Where the weights of the last ``p`` layers lie in the vector."""
    spans = [span for layer in layers_of(architecture)[-p:] for span in layer.spans]
    return torch.cat([torch.arange(span.start, span.stop) for span in spans])


def portion(client: Client, share: float) -> Samples:
    """A random part of the client's training data, never empty."""
    count = max(1, int(share * client.samples))
    return client.data.train.subset(torch.from_numpy(client.stream("portion").permutation(client.samples)[:count]))
