"""DBE: FedAvg without domain bias; a private shift of the features absorbs what is local in their mean.

Zhang, Hua, Cao, Wang, Song, Xue, Ma, Guan. Eliminating Domain Bias for Federated Learning in Representation Space.
NeurIPS 2023, arXiv 2311.14975 (there FedAvg+DBE).

Symbols
    f, h        extractor and head of the shared model; z = f(x)
    b_i         private bias of client i, as large as a feature, at first zero
    m           running mean of a client's features, from zero in each round: m <- (1 - mu) m + mu mean of the batch
    zbar        consensus mean, sum_i n_i m_i / sum_i n_i, fixed

    once        every client trains from the initial model without b_i and uploads its m_i; these models are discarded
    client      minimise CE(h(z + b_i), y) + kappa mean_over_features( (m - zbar)^2 / 2 ) over f, h and b_i
    server      FedAvg of (f, h)
    inference   h(f(x) + b_i)

Readings
- The measurement is an exchange of its own before the first round, with all clients, whichever are selected
  afterwards. It costs every client the download of a model and the upload of a mean, and is counted.
- The regulariser reaches f through the current batch alone; what m holds of earlier batches is constant.
- b_i is trained as the model is, by the run's SGD with a momentum buffer of its own. In the authors' code both have
  plain SGD at one rate; with the run's momentum for the model alone, b_i would learn ten times too slowly.
- kappa: the authors take 50 for a small CNN and 1 for ResNet-18, both with 512 features, at a learning rate of 0.005
  without momentum. The mean over features leaves kappa / 512 of the pull to each of them, so with the 64 or 84
  features of the networks here, and their larger steps, 50 is far too stiff: the default is 1.
- mu = 1 (m is the mean of the batch itself) is the authors' for the CNN; for ResNet-18 they take 0.1. With mu < 1 the
  running mean starts near zero, uncorrected, as in the paper.
- zbar is sent along with every model, because a client may be selected late.
- The features, and so b_i, are the input of the head: a map if the head takes maps.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from fedgraft.core.client import Client, ClientId, Predictor
from fedgraft.core.message import Field, Message
from fedgraft.core.method import Inbox, Server, Spec, Sums, average, hyper
from fedgraft.core.model import Model
from fedgraft.core.optimizer import Stepper
from fedgraft.methods.fedavg import FedAvg


@dataclass(frozen=True)
class DBE(FedAvg):
    """FedAvg with the domain bias eliminator."""

    name = "dbe"
    family = "prototypes and features"
    citation = "Zhang et al., NeurIPS 2023, arXiv 2311.14975"
    idea = "FedAvg whose features are pulled towards a common mean, with a private bias for what is local in them"
    sends = "down: the global model and the consensus mean; up: the trained model (once: the mean of the features)"
    averages = "the model (once: the mean of the features)"
    newcomers = "train"

    kappa: float = hyper(1.0, "strength of the pull to the consensus mean", low=0.0)
    mu: float = hyper(1.0, "weight of the newest batch in the running mean of the features", above=0.0, high=1.0)
    private_bias: bool = hyper(True, "train the private bias")

    # ---- server half
    def setup(self, spec: Spec) -> Server:
        spec.one_architecture(self.name)
        return super().setup(spec)

    def waves(self, server: Server, round: int, picked: Sequence[ClientId]) -> Iterable[Sequence[ClientId]]:
        if "mean" not in server:
            yield range(server.spec.clients)
        yield picked

    def send(self, server: Server, client: ClientId) -> Message:
        known = {"mean": server["mean"]} if "mean" in server else {}
        return Message(**super().send(server, client), **known)

    def expects(self, server: Server, client: ClientId) -> Mapping[str, Field]:
        architecture = server.spec.architecture(client)
        if "mean" not in server:
            return {"mean": Field(architecture.features, architecture.layout.dtype)}
        return super().expects(server, client)

    def sums(self) -> Sums:
        return self.weighting

    def merge(self, server: Server, inbox: Inbox) -> None:
        if "mean" not in server:
            server["mean"] = average(server.spec, inbox, "mean", uniform=self.weighting == "uniform")
        else:
            super().merge(server, inbox)

    # ---- client half
    def discloses(self) -> Mapping[str, str]:
        return {"mean": "the mean of the samples' features"}

    def join(self, client: Client) -> None:
        client["bias"] = client.own.new_zeros(client.architecture.features)

    def assemble(self, client: Client, message: Message) -> Tensor:
        if "mean" in message:
            client["mean"] = message["mean"]
        return super().assemble(client, message)

    def fit(self, client: Client, received: Tensor) -> Tensor:
        b, m, zbar = client["bias"].clone(), torch.zeros_like(client["bias"]), client.get("mean")
        b.requires_grad_(zbar is not None and self.private_bias)

        def shift(z: Tensor) -> Tensor:
            nonlocal m
            m = (1 - self.mu) * m.detach() + self.mu * z.mean(0)
            return z + b

        def loss(model: Model, x: Tensor, y: Tensor) -> Tensor:
            _, logits = model.score(x, edit=shift)
            error = client.task.loss(logits, y)
            return error if zbar is None else error + self.kappa * ((m - zbar).square() / 2).mean()

        def update(weights: Tensor, gradient: Tensor, step: Stepper) -> None:
            step(weights, gradient)
            if b.grad is not None:
                step_b(b.data.view(-1), b.grad.view(-1))
                b.grad = None

        if zbar is None:
            client.train(received, loss, name="measurement")
            client["measured"] = m
            return received
        with client.stepper("bias", length=b.numel()) as step_b:
            trained = client.train(received, loss, update=update)
        client["bias"] = b
        return trained

    def reply(self, client: Client, received: Tensor, trained: Tensor) -> Message:
        if "mean" not in client:
            return Message(mean=client.pop("measured"))
        return super().reply(client, received, trained)

    def personal(self, client: Client, message: Message, trained: Tensor | None = None) -> Predictor:
        model = client.model(self.assemble(client, message) if trained is None else trained)
        b = client["bias"]
        return lambda x: model.score(x, edit=lambda z: z + b)[1]

    # ---- for people
    def caveats(self) -> Sequence[str]:
        sentences = []
        if self.kappa == 0:
            sentences.append("kappa = 0 switches the pull to the consensus mean off")
        if not self.private_bias:
            sentences.append("private_bias = false leaves every client with the global model")
        if self.kappa == 0 and not self.private_bias:
            sentences.append("kappa = 0 without private bias makes DBE the same as FedAvg")
        return sentences
