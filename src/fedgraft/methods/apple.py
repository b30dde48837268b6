"""APPLE: every client learns how much of each client's core model goes into its own.

Luo, Wu. Adapt to Adaptation: Learning Personalization for Cross-Silo Federated Learning. IJCAI 2022, arXiv 2110.08394.

Symbols
    w_j    core model of client j, with its own random start; W stacks them
    p_i    directed relationships of client i: how much of each core it takes. They never leave the client
    v_i    personalised model, sum_j p_ij w_j
    p0     prox-centre and first value of every p_i: (n_1, ..., n_N) / n, with n_j the samples of client j

Round r: client i downloads the others' cores (all, or ``budget`` of them) and minimises over w_i and p_i

    F_i = L_i(v_i) + lambda(r) mu/2 ||p_i - p0||^2

by SGD with step sizes eta_1 (the run's) and eta_2. With G the gradient of L_i at v_i, from one backward pass,

    dF_i/dw_i  = p_ii G
    dF_i/dp_ij = <G, w_j> + lambda(r) mu (p_ij - p0_j)        for every j, also j = i

and both move at once; the others' cores stay as they came. Then it uploads w_i. The weight lambda(r), r = 0, 1, ..., of
the proximal term is (cos(pi r / T) + 1) / 2 or 0.001^(r / T) while r < T, and 0 from then on; T is the share L of the
rounds.

With a budget of B cores in a round, a client asks for cores that it never downloaded, at random; then it draws without
replacement with odds b^|p_ij|, b = max(1.5, r B / N). What it does not download is used as it was downloaded last.

Readings
- Half: the paper penalises mu/2 ||p - p0||^2, the authors' code mu ||p - p0||^2. ``half=False`` is the code.
- p is neither non-negative nor does it sum to one, although the paper speaks of a convex combination.
- The paper calls FedAvg the special case of a very large mu. Not quite: with p held at p0 the mixture is FedAvg's, but
  w_i moves with step n_i/n eta_1. At first every core moves that slowly, so APPLE wants many local steps or a larger
  learning rate.
- Choice under a budget: the paper's equation 9 is called a probability of download; it can only be the odds of a draw.
  The authors' code never marks a core as seen, so it draws uniformly: ``select="uniform"``.
- First contact: every client has all initial cores, because they follow from the seed. So with a budget nothing is
  downloaded at first (the authors' code copies all, and remarks that this stands for sharing seeds); without one, the
  first round is like any other. The N sample counts for p0 come with the first message, 8 N bytes.
- A client knows best what it wants next, so with a budget its reply names the ids, and the server sends these along.
- Start: the paper and its code start every core at random by itself. ``init="shared"`` starts all from the same
  weights.
- Upload: ``upload="personalised"`` sends v_i in place of w_i, which then also replaces the core: what a widespread
  reimplementation does.
- Values: Table 3 of the paper differs from dataset to dataset (eta_2 1e-3 or 1e-4, mu from 0.001 to 1, L from 10 to
  30 %, mostly cosine); the defaults lie in its middle. The authors' code has exponential and L = 10 %.
- Data: the paper merges the three parts of a MedMNIST dataset and splits them again, 80 to 20 by class; here, as for
  every method, the official training and test files are kept apart.
- Weight decay and clipping of the run: p is not decayed (it has its own penalty), and is clipped by itself.
- BatchNorm statistics belong to v_i, and mixing them with p, which may be negative, could make variances negative. They
  stay with their client under every policy of the run, so P is the number of trained parameters.
- A client that joins after training, which the paper does not have: p starts at p0, with its samples counted in,
  its core as the mixture that p0 gives.
- Absent clients, which the paper does not have, keep w_i and p_i; the others continue to use the core that such a
  client uploaded last.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from fedgraft.core import bank
from fedgraft.core.client import Client, ClientId
from fedgraft.core.message import Field, Message
from fedgraft.core.method import Inbox, Method, Server, Spec, hyper
from fedgraft.core.model import Model
from fedgraft.core.optimizer import Stepper


@dataclass(frozen=True)
class APPLE(Method):
    """Adaptive personalized cross-silo federated learning."""

    name = "apple"
    family = "many models to each client"
    citation = "Luo and Wu, IJCAI 2022, arXiv 2110.08394"
    idea = "each client learns, together with its core model, how to mix all clients' core models into its own"
    sends = "down: the others' core models (at most `budget` of them); up: the client's core model"
    headline = "trained"
    newcomers = "rounds"
    shows = {
        "p": "directed relationships: the weight of another client's core model in the model of the client; may be "
        "negative, and need not sum to one"
    }

    eta2: float = hyper(0.001, "step size of the directed relationships p", low=0.0)
    mu: float = hyper(0.1, "strength of the proximal term that keeps p near the data shares", low=0.0)
    schedule: Literal["cosine", "exponential"] = hyper(
        "cosine", "how the proximal term fades", choices=("cosine", "exponential")
    )
    L: float = hyper(0.2, "share of the rounds after which the proximal term is gone", low=0.0, high=1.0)
    budget: int | None = hyper(None, "most cores that a client downloads in a round (none: all the others)", low=1)
    select: Literal["paper", "uniform"] = hyper(
        "paper",
        "which cores are downloaded under a budget: new ones and those of large |p|, or any",
        choices=("paper", "uniform"),
    )
    half: bool = hyper(True, "mu/2 in the proximal term, as printed; or mu, as in the authors' code")
    init: Literal["independent", "shared"] = hyper(
        "independent",
        "every core starts from its own random weights, or all from the same",
        choices=("independent", "shared"),
    )
    upload: Literal["core", "personalised"] = hyper(
        "core", "what a client uploads as its core", choices=("core", "personalised")
    )

    @property
    def independent_start(self) -> bool:  # type: ignore[override]
        """Whether every client draws its own first weights."""
        return self.init == "independent"

    def limit(self, clients: int) -> int | None:
        """How many cores a client may download in a round, if it cannot have them all."""
        return self.budget if self.budget is not None and self.budget < clients - 1 else None

    # ---- server half
    def setup(self, spec: Spec) -> Server:
        trained, N = spec.one_architecture(self.name).layout.trained, spec.clients
        W = torch.stack([spec.initial(client, self.independent_start)[:trained] for client in range(N)])
        others = ~torch.eye(N, dtype=torch.bool)
        wanted = others if self.limit(N) is None else torch.zeros_like(others)
        return Server(spec, bank=W, wanted=wanted, met=torch.zeros(N, dtype=torch.bool))

    def send(self, server: Server, client: ClientId) -> Message:
        wanted = server["wanted"][client]
        content = {"cores": server["bank"][wanted]}
        if self.limit(server.spec.clients) is not None:
            content["ids"] = wanted.nonzero().flatten()
        if not server["met"][client]:
            content["samples"] = torch.tensor(server.spec.samples)
        return Message(**content)

    def expects(self, server: Server, client: ClientId) -> Mapping[str, Field]:
        layout, N = server.spec.layout(client), server.spec.clients
        core = {"core": Field((layout.trained,), layout.dtype)}
        if (limit := self.limit(N)) is None:
            return core
        return {**core, "ids": Field((limit,), torch.int64, low=0, high=N - 1)}

    def merge(self, server: Server, inbox: Inbox) -> None:
        for client, reply in inbox.items():
            server["bank"][client] = reply["core"]
            server["met"][client] = True
            if "ids" in reply:
                server["wanted"][client] = False
                server["wanted"][client, reply["ids"]] = True

    # ---- client half
    def discloses(self) -> Mapping[str, str]:
        return {}

    def join(self, client: Client) -> None:
        client["core"] = client.own[: client.layout.trained]
        if self.limit(client.clients) is not None:
            everybody = range(client.clients)
            client["cores"] = torch.stack(
                [client.initial(j, self.independent_start)[: client.layout.trained] for j in everybody]
            ).to(client.device)
            client["seen"] = torch.tensor([j == client.id for j in everybody], device=client.device)

    def assemble(self, client: Client, message: Message) -> Tensor:
        if "p" not in client:
            samples = message["samples"].to(client.own.dtype)
            client["p"] = client["p0"] = samples / samples.sum()
        if "ids" in message:
            W, rows = client["cores"], message["ids"]
            client["seen"][rows] = True
        else:
            W = client.own.new_empty(client.clients, client.layout.trained)
            rows = torch.arange(client.clients, device=client.device) != client.id
        W[rows], W[client.id] = message["cores"], client["core"]
        client["cores"] = W
        v = client.own.clone()
        v[: client.layout.trained] = bank.mix(client["p"], W)
        return v

    def fit(self, client: Client, received: Tensor) -> Tensor:
        i, W, p, p0 = client.id, client["cores"], client["p"].clone(), client["p0"]
        pull = self.fading(client.round, client.rounds) * self.mu * (1 if self.half else 2)

        def objective(model: Model, x: Tensor, y: Tensor) -> Tensor:
            return self.loss(client, model, x, y) + pull / 2 * (p - p0).square().sum()

        undecayed = client.settings.but(weight_decay=0.0)
        with client.stepper("p", lr=self.eta2, length=client.clients, settings=undecayed) as step_p:

            def update(v: Tensor, G: Tensor, step_w: Stepper) -> None:
                dw, dp = p[i] * G, bank.inner(G, W) + pull * (p - p0)
                step_w(W[i], dw)
                step_p(p, dp)
                v.copy_(bank.mix(p, W))

            trained = client.train(received, objective, self.plan(client), update=update)
        client["p"] = p
        return trained

    def fading(self, round: int, rounds: int) -> float:
        """Return lambda(r), the weight of the proximal term in a round."""
        last = int(self.L * rounds)
        if round >= last:
            return 0.0
        return (math.cos(math.pi * round / last) + 1) / 2 if self.schedule == "cosine" else 1e-3 ** (round / last)

    def reply(self, client: Client, received: Tensor, trained: Tensor) -> Message:
        # a copy, for a view would keep all cores alive
        core = (client["cores"][client.id] if self.upload == "core" else trained[: client.layout.trained]).clone()
        client["core"] = core
        if (limit := self.limit(client.clients)) is None:
            del client["cores"]  # the next message brings them all again
            return Message(core=core)
        seen = client["seen"].cpu().numpy() if self.select == "paper" else np.zeros(client.clients, dtype=bool)
        base = max(1.5, (client.round + 1) * limit / client.clients)
        ids = choose(client["p"].cpu().numpy(), seen, client.id, limit, base, client.stream("select"))
        return Message(core=core, ids=torch.from_numpy(ids))

    # ---- a newcomer: its core and its p, learned over the others' cores as they are; it downloads them all once
    def admit(self, server: Server, client: ClientId) -> None:
        start = server.spec.initial(client, self.independent_start)[: server["bank"].shape[1]]
        server["bank"] = torch.cat([server["bank"], start[None]])
        server["wanted"] = functional.pad(server["wanted"], (0, 1, 0, 1))
        server["wanted"][client, :client] = True
        server["met"] = functional.pad(server["met"], (0, 1))

    # ---- for people
    def observe_client(self, client: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
        return {"p": client["p"]} if "p" in client else {}

    def caveats(self) -> Sequence[str]:
        sentences = []
        if self.eta2 == 0:
            sentences.append("eta2 = 0 never moves p: everybody keeps the mixture by numbers of samples")
        if self.mu == 0 or self.L == 0:
            sentences.append("mu = 0 or L = 0 leaves out the proximal term")
        if self.upload == "personalised":
            sentences.append("upload = personalised replaces every core by a mixture of cores, unlike the paper")
        return sentences


def choose(
    p: np.ndarray[Any, Any],
    seen: np.ndarray[Any, Any],
    own: ClientId,
    count: int,
    base: float,
    rng: np.random.Generator,
) -> np.ndarray[Any, Any]:
    """Choose cores to download: unseen ones at random, then others without replacement with odds base^|p|.

    A client has ``seen`` its ``own`` core, or none at all.
    """
    # the largest of log-odds plus Gumbel noise are such draws, and no power overflows
    keys = rng.gumbel(size=len(p)) + np.where(seen, np.abs(p) * math.log(base), 0)
    keys[own] = -np.inf
    return np.lexsort((-keys, seen))[:count]
