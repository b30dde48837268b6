"""FedPAC: features aligned with global prototypes, and for each client its own best mixture of all clients' heads.

Xu, Tong, Huang. Personalized Federated Learning with Feature Alignment and Classifier Collaboration. ICLR 2023,
arXiv 2306.11867.

Symbols
    theta, phi_i    the common extractor; the head of client i
    n_ik, n_i       samples of class k at client i, and all; pi_ik = n_ik / n_i
    z, d            the feature of a sample and its width
    c_ik            mean feature of class k at client i before its training; h_ik = pi_ik c_ik (0 without the class)
    v_i             variance of the head that the data of client i give,
                    v_i = 1/n_i (1/n_i sum_x ||z(x)||^2 - sum_k ||h_ik||^2)
    C_k             global prototype of class k

Round: client i receives theta, phi_i and C, takes c_ik and v_i, then trains

    the head        on the cross-entropy, for one epoch at a rate of 0.1
    the extractor   on cross-entropy + lam/d ||z - C_y||^2, averaged over the batch

and uploads both with the class means of its new features. The server averages the extractors by n_i, the class means
by n_ik, and mixes the heads: phi_i <- sum_j beta_ij phi_j, where row i of beta minimises on the simplex

    sum_j v_j beta_j^2 + ||h_i - sum_j beta_j h_j||^2        variance + squared bias

Readings
- First round: there are no prototypes yet, so nothing is aligned. Later, a class without a global prototype is pulled
  towards the client's own mean before training, as in the authors' code.
- A class that no client of the round holds keeps its old prototype; the authors' code would stop.
- The programme is solved exactly. It is convex by construction (a Gram matrix plus a diagonal); the authors' code cuts
  eigenvalues below 0.01 off whenever rounding makes one negative, and real information with them.
- Where several mixtures are equally good (clients without variance), the most even one is taken.
- Weights below 1e-3 are dropped, as in the authors' code; ``threshold=0`` keeps them.
- ``qp="own"`` leaves every client its own head: alignment without collaboration.
- Partial participation: heads are mixed among the clients of the round. Absent clients keep their head and receive the
  new extractor and prototypes.
- A client that joins after training, which the paper does not have, mixes the heads that the others have at that time,
  by the statistics that each sent last; at first it gets their mean. It is aligned from its own first round on, for the
  prototypes are there.
- Statistics are taken in evaluation mode and on plain images; the authors' code takes them on augmented ones.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor
from torch.nn import functional

from fedgraft.core import bank, simplex
from fedgraft.core.client import Client, ClientId
from fedgraft.core.features import class_means, features, moments, pooled_means, prototypes
from fedgraft.core.message import Field, Message
from fedgraft.core.method import Inbox, Method, Server, Spec, average, hyper
from fedgraft.core.model import Model
from fedgraft.core.training import Phase


@dataclass(frozen=True)
class Aligned(Method):
    """What FedPAC and FedGPA share: alignment with prototypes, statistics, and the programme that mixes heads."""

    lam: float = hyper(1.0, "strength of the pull of features towards the global prototypes", low=0.0)
    qp: Literal["gram", "own"] = hyper(
        "gram", "mix heads by the quadratic programme, or leave each client its own", choices=("gram", "own")
    )
    threshold: float = hyper(
        1e-3, "weights of heads below this are dropped", low=0.0, high=1.0, search=(1e-4, 0.1), scale="log"
    )

    newcomers = "rounds"

    # ---- server half
    def start(self, spec: Spec) -> Mapping[str, Tensor]:
        """What everybody has before the first round; no class has a prototype yet."""
        layout, first = spec.one_architecture(self.name).layout, spec.initial(0)
        return {
            "extractor": layout.take(first, "extractor", spec.settings.buffers),
            "head": layout.take(first, "head", spec.settings.buffers),
            "prototypes": first.new_zeros(spec.classes, spec.one_feature_size(self.name)),
            "known": torch.zeros(spec.classes, dtype=torch.bool),
        }

    def expects(self, server: Server, client: ClientId) -> Mapping[str, Field]:
        spec, layout, n = server.spec, server.spec.layout(client), server.spec.samples[client]
        means = Field(tuple(server["prototypes"].shape[-2:]), layout.dtype)
        return {
            "extractor": Field((layout.width("extractor", spec.settings.buffers),), layout.dtype),
            "head": Field((layout.width("head", spec.settings.buffers),), layout.dtype),
            "prototypes": means,
            "means": means,
            "variance": Field((), layout.dtype, low=0),
            "counts": Field((spec.classes,), torch.int64, low=0, high=n, total=(n, n)),
        }

    def classifier_weights(self, counts: Tensor, means: Tensor, variances: Tensor) -> Tensor:
        """Row i weighs the heads for client i: least variance plus squared bias, on the simplex."""
        if self.qp == "own":
            return torch.eye(len(counts), dtype=torch.float64)
        h = shares(counts)[:, :, None] * means
        return simplex.prune(simplex.mixtures(h.flatten(1), variances), self.threshold)

    # what the server knows of everybody's features, so that a newcomer's weights can be found from its own
    def unheard(self, spec: Spec) -> dict[str, Tensor]:
        """Return the statistics of clients that were not heard yet: they have no samples."""
        c = self.start(spec)["prototypes"].repeat(spec.clients, 1, 1)
        return {"last/counts": c[:, :, 0].long(), "last/means": c, "last/variance": c[:, 0, 0].clone()}

    def remember(self, server: Server, inbox: Inbox, means: str = "means") -> None:
        """Keep what the clients of the round said of their features."""
        senders = torch.tensor(sorted(inbox))
        for name, entry in (("counts", "counts"), ("means", means), ("variance", "variance")):
            last = server[f"last/{name}"]
            server[f"last/{name}"] = last.index_copy(0, senders, stacked(inbox, entry).to(last.dtype))

    def admit(self, server: Server, client: ClientId) -> None:
        for name in ("last/counts", "last/means", "last/variance"):
            server[name] = torch.cat([server[name], torch.zeros_like(server[name][:1])])

    # ---- client half
    def discloses(self) -> Mapping[str, str]:
        return {}

    def assemble(self, client: Client, message: Message) -> Tensor:
        client["prototypes"], client["known"] = message["prototypes"], message["known"]
        return client.put(client.put(client.own, message["extractor"], "extractor"), message["head"], "head")

    def fit(self, client: Client, received: Tensor) -> Tensor:
        targets = self.targets(client, received)

        def loss(model: Model, x: Tensor, y: Tensor) -> Tensor:
            z, logits = model.score(x)
            supervised = client.task.loss(logits, y)
            return supervised if targets is None else supervised + self.lam * self.distance(z.flatten(1), y, targets)

        return client.train(received, loss, self.plan(client))

    def targets(self, client: Client, received: Tensor) -> Tensor | None:
        """Where the features of each class are drawn to: its global prototype, or else the client's own mean."""
        C, known = client["prototypes"], client["known"]
        if self.lam == 0 or (client.round == 0 and not bool(known.any())):
            return None
        if client.private:  # how many samples there are of a class is not to be seen in what is trained
            return C if bool(known.all()) else torch.where(known[:, None], C, statistics(client, received)[0])
        if bool((known | (client.counts == 0)).all()):
            return C
        return torch.where(known[:, None], C, class_means(*features(client, received), client.classes))

    def distance(self, z: Tensor, y: Tensor, targets: Tensor) -> Tensor:
        """How far the features are from their prototypes: the mean square over batch and width."""
        return functional.mse_loss(z, targets[y])

    def reply(self, client: Client, received: Tensor, trained: Tensor) -> Message:
        means, variance = statistics(client, received)
        after, counts = prototypes(client, trained, "after")
        return Message(
            extractor=client.take(trained, "extractor"),
            head=client.take(trained, "head"),
            prototypes=after,
            means=means,
            variance=variance,
            counts=counts,
        )


@dataclass(frozen=True)
class FedPAC(Aligned):
    """Feature alignment and classifier collaboration."""

    name = "fedpac"
    family = "mixed on the server for each client"
    citation = "Xu et al., ICLR 2023, arXiv 2306.11867"
    idea = "align features with global prototypes; give each client its own optimal mixture of all heads"
    sends = "down: extractor, its head, prototypes; up: both trained, class means before and after, counts, a variance"
    averages = "the extractor; heads and prototypes are mixed by rules of their own"
    shows = {"beta": "share of another client's head in the head that the client receives; rows sum to one"}

    head_lr: float = hyper(0.1, "learning rate of the head phase", low=0.0)
    head_epochs: int = hyper(1, "epochs of the head phase", low=0)

    # ---- server half
    def setup(self, spec: Spec) -> Server:
        first = dict(self.start(spec))
        heads = first.pop("head").repeat(spec.clients, 1)
        beta = torch.eye(spec.clients, dtype=torch.float64)
        return Server(spec, **first, heads=heads, beta=beta, **self.unheard(spec))

    def send(self, server: Server, client: ClientId) -> Message:
        common = {name: server[name] for name in ("extractor", "prototypes", "known")}
        return Message(**common, head=server["heads"][client])

    def merge(self, server: Server, inbox: Inbox) -> None:
        self.remember(server, inbox)
        server["extractor"] = average(server.spec, inbox, "extractor")
        counts = stacked(inbox, "counts")
        held = counts.sum(0) > 0
        C = pooled_means(stacked(inbox, "prototypes"), counts)
        server["prototypes"] = torch.where(held[:, None], C, server["prototypes"])
        server["known"] = server["known"] | held

        beta = self.classifier_weights(counts, stacked(inbox, "means"), stacked(inbox, "variance"))
        senders = torch.tensor(sorted(inbox))
        server["heads"] = server["heads"].index_copy(0, senders, bank.mix(beta, stacked(inbox, "head")))
        server["beta"] = with_block(server["beta"], senders, beta)

    # ---- a newcomer: its own mixture of the heads that the others have now; the extractor rests
    def admit(self, server: Server, client: ClientId) -> None:
        super().admit(server, client)
        server["heads"] = torch.cat([server["heads"], server["heads"].mean(0, keepdim=True)])

    def merge_newcomer(self, server: Server, inbox: Inbox) -> None:
        self.remember(server, inbox)
        who, counts, means, variances = acquainted(server)
        beta = self.classifier_weights(counts, means, variances)[-1]
        server["heads"] = with_own(server["heads"], who, beta, stacked(inbox, "head")[0])

    # ---- client half
    def discloses(self) -> Mapping[str, str]:
        return super().discloses()

    def plan(self, client: Client) -> tuple[Phase, ...]:
        return Phase("head", self.head_epochs, self.head_lr), Phase("extractor")

    # ---- for people
    def observe(self, server: Server) -> Mapping[str, Tensor]:
        return {"beta": server["beta"]}

    def caveats(self) -> Sequence[str]:
        sentences = {
            "lam = 0 aligns no features": self.lam == 0,
            'qp = "own" mixes no heads': self.qp == "own",
            "head_epochs = 0 or head_lr = 0 never trains the heads": self.head_epochs == 0 or self.head_lr == 0,
        }
        return tuple(sentence for sentence, applies in sentences.items() if applies)


def statistics(client: Client, weights: Tensor) -> tuple[Tensor, Tensor]:
    """Class means c_ik of the features of ``weights``, and the variance v_i of the head that they would give."""
    if client.private:
        told = moments(client, weights, "before")
        h = (told.counts / client.samples)[:, None] * told.means.to(torch.float64)
        return told.means, ((told.square - h.square().sum()) / client.samples).clamp(min=0).to(told.means.dtype)
    rows, labels = features(client, weights)
    means = class_means(rows, labels, client.classes)
    h = (client.counts / client.samples)[:, None] * means.to(torch.float64)
    variance = (rows.to(torch.float64).square().sum(1).mean() - h.square().sum()) / client.samples
    return means, variance.clamp(min=0).to(rows.dtype)


def shares(counts: Tensor) -> Tensor:
    """pi_ik: what share of its samples each client has in each class."""
    return counts / counts.sum(1, keepdim=True).clamp(min=1).to(torch.float64)


def stacked(inbox: Inbox, entry: str) -> Tensor:
    """One entry of all replies, in the order of the senders."""
    return torch.stack([inbox[sender][entry] for sender in sorted(inbox)])


def acquainted(server: Server) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return who was heard at least once, and the counts, means and variances that each of them sent last."""
    who = server["last/counts"].sum(1).nonzero()[:, 0]
    return who, server["last/counts"][who], server["last/means"][who], server["last/variance"][who]


def with_own(models: Tensor, who: Tensor, weights: Tensor, own: Tensor) -> Tensor:
    """Return the bank in which the last client has its mixture of the models of ``who``, its ``own`` the last."""
    mixed = bank.mix(weights, torch.cat([models[who[:-1]], own[None]]))
    return torch.cat([models[:-1], mixed[None]])


def with_block(matrix: Tensor, members: Tensor, block: Tensor) -> Tensor:
    """Return ``matrix`` with new rows for ``members``, who mix nobody but each other."""
    result = matrix.index_fill(0, members, 0.0)
    result[members[:, None], members] = block
    return result
