"""FedFomo: every client tries a few others' models on its own validation samples and moves towards those that help.

Zhang, Sapra, Fidler, Yeung, Alvarez. Personalized Federated Learning with First Order Model Optimization. ICLR 2021,
arXiv 2012.08565.

Symbols
    theta_n   model that client n uploaded last
    r_i       reference of client i: the model from which its last training started
    P         affinities, one row for each client: how much others' models have helped it so far

Round t: the server picks M others for client i, one after another: at random with probability eps_t, else the one of
largest P_in among those left (ties at random); eps_t = max(0, epsilon - t decay). Client i computes, for these and for
its own theta_i,

    u_n = (L_i(r_i) - L_i(theta_n)) / ||theta_n - r_i||           L_i its mean loss on validation samples
    w_n = max(u_n, 0) / sum_m max(u_m, 0)
    s_i = r_i + sum_n w_n (theta_n - r_i) = sum_n w_n theta_n     and r_i <- s_i for next time

trains s_i on its other samples, uploads the result and the u_n; the server adds them to its row of P.

Readings
- M: the models downloaded. The authors count the client's own, which costs nothing: their "5 models" are M = 4.
- No model better than the reference (all u_n <= 0): the client continues with its own model. The authors' code goes
  back to the reference: ``fallback="reference"``.
- Norm: Euclidean; the authors' code takes the sum of absolute values by default (``norm="l1"``). Over trained
  parameters only.
- Affinity: the u_n are added as they are; the authors' code divides them by |sum_n u_n| first
  (``affinity="normalised"``).
- Validation samples are set aside once, out of the client's training samples, whatever the run sets aside besides; so
  FedFomo trains on less than other methods. A client with a single sample uses it for both.
- Candidates are all clients that ever uploaded, so that there are none in the first round. The authors' code has those
  of the last round, and also offers averages of clusters of clients, a variant of its own that is left out.
- A distance of zero (the client's own model before its first training) makes u_n = 0, as does a loss that is not
  finite.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor
from torch.nn import functional

from fedgraft.core import bank, streams
from fedgraft.core.client import Client, ClientId
from fedgraft.core.evaluation import mean_loss
from fedgraft.core.message import Field, Message
from fedgraft.core.method import Inbox, Method, Server, Spec, hyper
from fedgraft.core.samples import Samples


@dataclass(frozen=True)
class FedFomo(Method):
    """First order model optimization."""

    name = "fedfomo"
    family = "many models to each client"
    citation = "Zhang et al., ICLR 2021, arXiv 2012.08565"
    idea = (
        "each client weights a few others' models by how much they lower its validation loss, and starts from the mean"
    )
    sends = "down: M others' models; up: the trained model and how much each of those models helped"
    newcomers = "rounds"
    nothing_common = "its server keeps the clients' models, and has none of its own"
    shows = {
        "P": "affinities: how much another client's models lowered the client's validation loss, per distance from "
        "where it started, summed over the rounds; below 0 they were worse than its start"
    }

    M: int = hyper(4, "others' models that a client tries in a round", low=1)
    epsilon: float = hyper(0.3, "probability that a model is chosen at random, in the first round", low=0.0, high=1.0)
    decay: float = hyper(0.05, "decrease of that probability in every round", low=0.0)
    validation: float = hyper(0.2, "share of the training samples set aside to compare models on", above=0.0, high=0.9)
    norm: Literal["l2", "l1"] = hyper("l2", "how the distance between models is measured", choices=("l2", "l1"))
    fallback: Literal["own", "reference"] = hyper(
        "own", "where to continue from when no model is better than the reference", choices=("own", "reference")
    )
    affinity: Literal["raw", "normalised"] = hyper(
        "raw", "what is added to the affinities: u_n, or its share in their sum", choices=("raw", "normalised")
    )

    # ---- server half
    def setup(self, spec: Spec) -> Server:
        width = spec.one_architecture(self.name).layout.width(self.shared(), spec.settings.buffers)
        N, dtype = spec.clients, spec.layout(0).dtype
        return Server(
            spec,
            bank=torch.zeros(N, width, dtype=dtype),
            uploaded=torch.zeros(N, dtype=torch.bool),
            P=torch.zeros(N, N, dtype=dtype),
        )

    def pick(self, server: Server, client: ClientId) -> Tensor:
        """Pick others' models for a client, epsilon-greedily on its affinities."""
        rng = streams.generator(server.spec.seed, self.name, "pick", server.round, client)
        epsilon = self.epsilon - server.round * self.decay
        others = [n for n in server["uploaded"].nonzero().flatten().tolist() if n != client]
        affinity = server["P"][client].tolist()
        ranked = sorted(rng.permutation(others).tolist(), key=lambda n: -affinity[n])
        count = min(self.M, len(ranked))
        picked = [ranked.pop(rng.integers(len(ranked)) if rng.random() < epsilon else 0) for _ in range(count)]
        return torch.tensor(picked, dtype=torch.int64)

    def send(self, server: Server, client: ClientId) -> Message:
        ids = self.pick(server, client)
        return Message(models=server["bank"][ids], ids=ids)

    def expects(self, server: Server, client: ClientId) -> Mapping[str, Field]:
        fields = super().expects(server, client)
        return {**fields, "gains": Field((server.spec.clients,), server.spec.layout(client).dtype)}

    def merge(self, server: Server, inbox: Inbox) -> None:
        for client, reply in inbox.items():
            server["bank"][client] = reply["weights"]
            server["P"][client] += reply["gains"]
            server["uploaded"][client] = True

    # ---- client half
    def discloses(self) -> Mapping[str, str]:
        return {"gains": "how others' models do on the samples", "weights": "trained from a mixture by these gains"}

    def split(self, client: Client) -> tuple[Samples, Samples]:
        """Split the client's samples, always in the same way, into those to train on and those to judge models by."""
        data = client.data.train
        order = torch.from_numpy(
            streams.generator(client.spec.seed, self.name, "split", client.id).permutation(len(data))
        )
        if len(data) == 1:
            return data, data
        aside = min(max(1, round(self.validation * len(data))), len(data) - 1)
        return data.subset(order[aside:]), data.subset(order[:aside])

    def join(self, client: Client) -> None:
        client["reference"] = client.own

    def assemble(self, client: Client, message: Message) -> Tensor:
        r, own, ids = client["reference"], client.own, message["ids"]
        models = [client.put(own, weights, self.shared()) for weights in message["models"]]
        theta = torch.stack([own, *models])
        w, u = self.weigh(client, r, theta)
        gains = u.new_zeros(client.clients)
        gains[client.id], gains[ids] = u[0], u[1:]
        client["gains"] = gains
        if not bool(w.any()):
            return own if self.fallback == "own" else r
        return bank.mix(w, theta)

    def weigh(self, client: Client, r: Tensor, theta: Tensor) -> tuple[Tensor, Tensor]:
        """Return the weights w_n of the models and the gains u_n that go to the server."""
        _, validation = self.split(client)
        trained = client.layout.span("all")
        loss = [mean_loss(client, client.predictor(model), validation) for model in (r, *theta)]
        distance = torch.linalg.vector_norm((theta - r)[:, trained], ord=2 if self.norm == "l2" else 1, dim=1)
        u = (loss[0] - theta.new_tensor(loss[1:])) / (distance + 1e-8)
        u = torch.where(u.isfinite() & (distance > 0), u, 0)
        w = u.clamp(min=0)
        w = w / w.sum() if bool(w.any()) else w
        return w, u / (u.sum().abs() + 1e-9) if self.affinity == "normalised" else u

    def fit(self, client: Client, received: Tensor) -> Tensor:
        client["reference"] = received.clone()
        train, _ = self.split(client)
        return client.train(
            received, lambda model, x, y: self.loss(client, model, x, y), self.plan(client), samples=train
        )

    def reply(self, client: Client, received: Tensor, trained: Tensor) -> Message:
        return Message(weights=client.take(trained, self.shared()), gains=client["gains"])

    # ---- a newcomer: it tries the others' models as they were uploaded last
    def admit(self, server: Server, client: ClientId) -> None:
        server["bank"] = functional.pad(server["bank"], (0, 0, 0, 1))
        server["uploaded"] = functional.pad(server["uploaded"], (0, 1))
        server["P"] = functional.pad(server["P"], (0, 1, 0, 1))

    # ---- for people
    def observe(self, server: Server) -> Mapping[str, Tensor]:
        return {"P": server["P"]}

    def caveats(self) -> Sequence[str]:
        if self.epsilon == 0:
            return ("epsilon = 0 never explores: the first models that helped a client are tried for ever",)
        return ()
