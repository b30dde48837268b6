"""pFedMe: the personal model is a proximal point around the global one, which descends the Moreau envelope.

Dinh, Tran, Nguyen. Personalized Federated Learning with Moreau Envelopes. NeurIPS 2020, arXiv 2006.08848.

Symbols
    w         global model; w_i the copy of it that client i moves and uploads
    theta_i   personal model, private: nearly argmin f_i(theta) + lam/2 ||theta - w_i||^2
    R, K      local rounds (one batch D each), and steps on theta in each of them
    eta, eta_p, beta   step sizes of w_i, of theta and of the server

Round: client i starts with theta = w_i = w and repeats R times, with a new batch D each time,

    K times   theta <- theta - eta_p (grad f_i(theta; D) + lam (theta - w_i))
              w_i   <- w_i - eta lam (w_i - theta)

keeps theta_i = theta and uploads w_i. The server: w <- (1 - beta) w + beta mean_i w_i.

Readings
- In the paper every client computes in every round and some of them upload; here a client computes when it is selected,
  as in every other method, and otherwise keeps its last theta_i.
- The mean: the paper averages uniformly, the authors' code by samples. We do as the code, like FedAvg;
  ``weighting="uniform"`` is the paper's.
- Local work: R counts batches and not epochs, and 20 is the authors' value. R = 0 goes through the run's epochs.
- Step sizes: a local round moves w_i by about eta times a gradient, for lam (theta - w_i) is one once theta has
  settled, and there is no momentum. Unless given, eta is as far as the run's SGD goes for a gradient with its momentum,
  lr / (1 - momentum), but at most 3/4 of the way to theta (0.75 / lam; with all of it theta and w_i would be the same).
  The authors' 0.005 to 0.01 are slow for a short run next to methods with momentum: with lr 0.01 and momentum 0.9 the
  client mean is 66.5 % for eta = 0.01, 98.2 for 0.05, 98.6 for 1 / lam and 97.7 for local training on digits (30
  rounds), and 57.5, 88.3, 88.0 and 91.6 on a tenth of Fashion-MNIST (10 rounds). eta_p has a value of its own, one of
  the authors' for a deep network. Both follow the run's ``schedule``.
- The tested model: the authors' code overwrites theta with w_i before it tests, and libraries that took it over test
  the global model. We test a copy of theta_i, which needs no download, so that both points agree. ``tested="global"``
  tests w at ``received``, the paper's other number; ``tested="solved"`` tests there a theta solved again around the
  newest w, by the same R times K steps.
- The steps on theta are plain: the run's momentum does not enter. Its weight decay does, in place of a decay of
  0.001 which the authors' code has and the paper has not.
- BatchNorm statistics are those that theta gathers, and go from theta to w_i to w as the weights do, but never
  further than their target, for a variance must not become negative.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Literal

import torch
from torch import Tensor

from fedgraft.core.client import Client, Predictor
from fedgraft.core.message import Message
from fedgraft.core.method import Inbox, Server, Sums, hyper
from fedgraft.methods.fedavg import FedAvg

FARTHEST = 0.75
"""Share of the way to theta that w_i goes at most in a local round, unless told."""


@dataclass(frozen=True)
class PFedMe(FedAvg):
    """Personal models on springs around a common one."""

    name = "pfedme"
    family = "a global model and a personal model"
    citation = "Dinh, Tran, Nguyen, NeurIPS 2020, arXiv 2006.08848"
    idea = "a personal model near the global one, which moves towards the personal models"
    sends = "down: the global model; up: the client's updated copy of it"
    headline = "trained"
    newcomers = "train"

    lam: float = hyper(15.0, "strength of the proximal term between theta and w_i", low=0.0)
    K: int = hyper(5, "steps on theta for each batch", low=1)
    R: int = hyper(20, "local rounds, one batch each; 0: the batches of the run's epochs", low=0)
    eta: float | None = hyper(
        None, "step size of w_i, eta * lam of the way to theta; none: lr / (1 - momentum), at most 0.75 / lam", low=0.0
    )
    eta_p: float = hyper(0.05, "step size of theta", above=0.0)
    beta: float = hyper(1.0, "step of the server towards the mean; beyond 1 it extrapolates", low=0.0)
    tested: Literal["personal", "global", "solved"] = hyper(
        "personal",
        "the model at `received`: theta_i, the global w, or theta solved around it",
        choices=("personal", "global", "solved"),
    )

    # ---- server half
    def sums(self) -> Sums:
        return self.weighting

    def merge(self, server: Server, inbox: Inbox) -> None:
        before = dict(server)
        super().merge(server, inbox)
        for kind in {server.spec.assignment[client] for client in inbox}:
            name, trained = f"weights/{kind}", server.spec.architectures[kind].layout.trained
            server[name] = toward(before[name], server[name], self.beta, trained)

    # ---- client half
    def discloses(self) -> Mapping[str, str]:
        return {"weights": "drawn to a model that is trained on the samples in a loop of its own"}

    def join(self, client: Client) -> None:
        client["theta"] = client.own

    def fit(self, client: Client, received: Tensor) -> Tensor:
        client["theta"], w_i = self.rounds(client, received, self.step(client))
        return w_i

    def step(self, client: Client) -> float:
        """Return eta in this round."""
        settings, eta = client.settings, self.eta
        if eta is None:
            eta = settings.lr / (1 - (settings.momentum if settings.optimizer == "sgd" else 0))
            eta = min(eta, FARTHEST / self.lam) if self.lam else eta
        return eta * client.factor

    def rounds(self, client: Client, w: Tensor, eta: float) -> tuple[Tensor, Tensor]:
        """Local rounds around the download ``w``: theta and w_i after them."""
        parameters, plain = client.layout.span("all"), client.settings.but(optimizer="sgd", momentum=0.0)
        model, losses = client.model(w).train_on(client.samples), []
        theta = w_i = w
        with client.stepper("theta", lr=self.eta_p, settings=plain) as step:
            for x, y in self.draws(client):
                for _ in range(self.K):
                    loss = self.loss(client, model, x, y)
                    gradient = model.differentiate(loss)
                    gradient.add_(model.vector[parameters] - w_i[parameters], alpha=self.lam)
                    step(model.vector[parameters], gradient)
                    client.steps += 1
                theta = client.trained(model, w)
                w_i = toward(w_i, theta, eta * self.lam, client.layout.trained)
                losses.append(float(loss.detach()))
        client.loss = sum(losses) / len(losses) if losses else float("nan")
        return theta, w_i

    def draws(self, client: Client) -> Iterator[tuple[Tensor, Tensor]]:
        """R batches, from as many passes over the data as it takes."""
        return islice(client.batches("batches", epochs=self.R), self.R) if self.R else client.batches("batches")

    def personal(self, client: Client, message: Message, trained: Tensor | None = None) -> Predictor:
        if trained is not None or self.tested == "personal":
            return client.predictor(client["theta"])
        w = self.assemble(client, message)
        return client.predictor(w if self.tested == "global" else self.rounds(client, w, eta=0.0)[0])

    # ---- for people
    def caveats(self) -> Sequence[str]:
        sentences = []
        if self.beta == 0 or self.eta == 0 or self.lam == 0:
            sentences.append("with beta, eta or lam = 0 the global model never moves from its first weights")
        if self.eta is not None and self.eta * self.lam > 2:
            sentences.append("eta * lam > 2 may make the uploaded model diverge")
        return sentences


def toward(start: Tensor, end: Tensor, share: float, trained: int) -> Tensor:
    """Go from ``start`` towards ``end`` by ``share`` of the way; statistics never go further than ``end``."""
    moved = torch.lerp(start, end, share)
    moved[trained:] = torch.lerp(start[trained:], end[trained:], min(share, 1.0))
    return moved
