"""SCAFFOLD: FedAvg whose local steps are corrected by how the client's gradient differs from the mean of all clients.

Karimireddy, Kale, Mohri, Reddi, Stich, Suresh. SCAFFOLD: Stochastic Controlled Averaging for Federated Learning.
ICML 2020, arXiv 1910.06378.

Symbols
    x, c       global model and server control variate (at first 0)
    y_i, c_i   local model and private control variate of client i (at first 0)
    K          local steps that the client took; eta_l, eta_g local and server rate
    S, N       clients of the round, number of all clients

    client i    y_i = x, then K times  y_i <- y_i - eta_l (grad F_i(y_i; batch) - c_i + c)
                c_i+ = grad F_i(x)                              option I
                c_i+ = c_i - c + (x - y_i) / (K eta_l)          option II: the mean gradient of the K steps
                sends y_i - x and c_i+ - c_i; keeps c_i+
    server      x <- x + eta_g/|S| sum_i (y_i - x)
                c <- c + 1/N       sum_i (c_i+ - c_i),          so that c is always the mean of all c_i

The correction is the gradient of a linear term, <c - c_i, y>, in the local objective.

Readings
- Plain SGD: option II is the mean gradient only without momentum and clipping, so both are off here, whatever the run
  says, and SCAFFOLD's steps are shorter than those of the other methods in a run with momentum; ``eta_l`` sets a rate
  of its own. On digits (30 rounds, lr 0.01, momentum 0.9) FedAvg's global model has a client mean of 77.7 %, SCAFFOLD's
  29.8 at the run's rate, 79.1 with eta_l = 0.03 and 89.5 with 0.1; but in a run with lr 0.05, eta_l = 0.15 is too much
  and learns nothing. Weight decay stays: it is the gradient of a term that belongs to the objective.
- K is what a client's data give in the run's epochs, and so differs between clients, where the paper has one K for all.
  c_i is a mean over the client's own K steps; but a client with more data goes further, and since all count equally,
  the global model follows the large clients.
- Mean: all clients equally, as in the paper, and not by samples.
- The control variates cover trained parameters. BatchNorm statistics are sent with y_i - x and are averaged without
  eta_g, which could make a variance negative.
- Option I takes the gradient of all samples at x without augmentation, in evaluation mode.
- With option II, a client that took no step keeps its c_i; option I needs no steps.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from fedgraft.core.client import Client, ClientId
from fedgraft.core.evaluation import BATCH
from fedgraft.core.message import Field, Message
from fedgraft.core.method import Inbox, Method, Server, Spec, Sums, average, hyper
from fedgraft.core.model import Model
from fedgraft.core.settings import Training


@dataclass(frozen=True)
class SCAFFOLD(Method):
    """FedAvg with control variates against drift."""

    name = "scaffold"
    family = "one global model, fine-tuning, and training alone"
    citation = "Karimireddy et al., ICML 2020, arXiv 1910.06378"
    idea = "one global model; control variates take the clients' drift out of their local steps"
    sends = "down: the global model and control variate; up: the changes of both"
    averages = "the changes of model and control variate"

    eta_g: float = hyper(1.0, "learning rate of the server", above=0.0)
    eta_l: float | None = hyper(None, "local learning rate; none is the run's", above=0.0)
    option: Literal["I", "II"] = hyper(
        "II", "the client's control variate: its gradient at the received model, or of its steps", choices=("I", "II")
    )

    # ---- server half
    def setup(self, spec: Spec) -> Server:
        layout = spec.one_architecture(self.name).layout
        x = layout.take(spec.initial(0), self.shared(), spec.settings.buffers)
        return Server(spec, x=x, c=torch.zeros(layout.trained, dtype=layout.dtype))

    def send(self, server: Server, client: ClientId) -> Message:
        return Message(weights=server["x"], control=server["c"])

    def expects(self, server: Server, client: ClientId) -> Mapping[str, Field]:
        return {name: Field(server[of].shape, server[of].dtype) for name, of in (("delta_y", "x"), ("delta_c", "c"))}

    def sums(self) -> Sums:
        return "uniform"

    def merge(self, server: Server, inbox: Inbox) -> None:
        spec = server.spec
        delta_x = average(spec, inbox, "delta_y", uniform=True)
        delta_x[spec.layout(0).span("all")] *= self.eta_g
        server["x"] = server["x"] + delta_x
        delta_c = average(spec, inbox, "delta_c", uniform=True)
        server["c"] = server["c"] + len(inbox) / spec.clients * delta_c

    # ---- client half
    def discloses(self) -> Mapping[str, str]:
        return {} if self.option == "II" else {"delta_c": "a gradient over all samples"}

    def join(self, client: Client) -> None:
        client["c_i"] = torch.zeros_like(client.own[client.layout.span("all")])

    def assemble(self, client: Client, message: Message) -> Tensor:
        client["correction"] = message["control"] - client["c_i"]
        return super().assemble(client, message)

    def plain(self, client: Client) -> Training:
        """Return the run's settings as plain SGD."""
        lr = client.settings.lr if self.eta_l is None else self.eta_l
        return client.settings.plain.but(lr=lr)

    def fit(self, client: Client, received: Tensor) -> Tensor:
        correction = client["correction"]

        def corrected(model: Model, inputs: Tensor, labels: Tensor) -> Tensor:
            y = model.weights
            linear = correction @ (y - y.detach())  # worth nothing, so that the reported loss is that of the data
            return self.loss(client, model, inputs, labels) + linear

        return client.train(received, corrected, self.plan(client), settings=self.plain(client))

    def reply(self, client: Client, received: Tensor, trained: Tensor) -> Message:
        c_i = client["c_i"]
        client["c_i"] = self.control(client, received, trained)
        del client["correction"]
        return Message(delta_y=client.take(trained - received, self.shared()), delta_c=client["c_i"] - c_i)

    def control(self, client: Client, received: Tensor, trained: Tensor) -> Tensor:
        """Return c_i+."""
        if self.option == "I":
            return self.gradient(client, received)
        way = client.steps * self.plain(client).lr * client.factor
        x, y_i = (weights[client.layout.span("all")] for weights in (received, trained))
        return (x - y_i) / way - client["correction"] if way else client["c_i"]

    def gradient(self, client: Client, x: Tensor) -> Tensor:
        """Return grad F_i(x) over all training samples."""
        model, data = client.model(x), client.data.train
        total = client.settings.weight_decay * x[client.layout.span("all")]
        with model.evaluating(), torch.enable_grad():
            for start in range(0, len(data), BATCH):
                inputs, labels = (tensor.to(client.device) for tensor in data.batch(slice(start, start + BATCH)))
                loss = self.loss(client, model, inputs, labels)
                total += len(labels) / len(data) * model.differentiate(loss)
        return total

    # ---- for people
    def caveats(self) -> Sequence[str]:
        steps = "SCAFFOLD's clients take as many local steps as their data give, not the same number K as in the paper"
        if self.eta_l is not None:
            return [steps]
        plain = "SCAFFOLD steps without momentum at the run's lr: in a run with momentum expect it below FedAvg"
        return [f"{plain} unless its own rate, eta_l, is raised (as far as it stays stable)", steps]
