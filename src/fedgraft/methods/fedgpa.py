"""FedGPA: features aligned with global prototypes; extractor and classifier mixed for each client, by two rules.

Han, Feng, Zhu, Tian, Hao, Song. FedGPA: Federated Learning with Global Personalized Aggregation. AI Open 2025,
doi 10.1016/j.aiopen.2025.03.001.

Symbols
    w_i^f, w_i^c    extractor and classifier of client i
    n_ik, n_i       |D_ik| and |D_i|: samples of class k at client i, and all; pi_ik = n_ik / n_i
    z, d            the feature of a sample and its width
    C_ik, C_k       local and global prototype of class k
    c_ik            mean feature of class k at client i before its training (0 without the class)
    delta_i^2       intra-class variance of client i

Round: client i receives [w_i^f; w_i^c] and C, trains both together on

    cross-entropy + lam/d ||z - C_y||^2, averaged over the batch                                     (5)    LGA

and uploads them with its prototypes C_ik (3). Among the clients of the round, the server forms

    C_k       = sum_i n_ik C_ik / sum_i n_ik                                                         (4)
    P_ij      = sum_k pi_ik ||c_ik - c_jk||,    S_ij = 1/P_ij / sum_l 1/P_il                         (8-9)
    alpha_ij  = mu S_ij + (1 - mu) n_j / sum_l n_l                                                   (10-11)
    w_i^f    <- sum_j alpha_ij w_j^f                                                                 (6)    GPA(f)
    delta_i^2 = 1/n_i (1/n_i sum_x ||z(x)||^2 - sum_k pi_ik^2 ||c_ik||^2)                            (13)
    beta_i    = argmin sum_j delta_j^2 beta_j^2 + ||h_i - sum_j beta_j h_j||^2 on the simplex,
                h_i the vectors pi_ik c_ik of all classes                                            (15-16)
    w_i^c    <- sum_j beta_ij w_j^c                                                                  (7)    GPA(c)

Table 3 is ``lga``, ``gpa_c`` and ``gpa_f`` switched on one after another; with all three off it is FedAvg.

Readings
- (5) prints the distance between local and global prototype, not squared, and leaves open what the local prototype of a
  batch is. The authors' code pulls each sample's feature towards the global prototype, in the mean square over batch
  and width, with lam = 1, and so do we. ``reg="prototype"`` is the printed form on the class means of the batch;
  ``reg="off"`` is what remains if the local prototype is a stored constant: no gradient.
- First round: nothing is aligned. Later, a class without a global prototype is pulled towards the client's own mean
  before training, as in the authors' code.
- (8) has pi_ik outside of the sum over k; it belongs inside. A class that j does not hold enters with c_jk = 0, as in
  the authors' code; ``missing="skip"`` averages over the classes that both hold, and without any, S_ij = 0.
- (9) divides by P_ii = 0. As in the authors' code, a zero becomes half of the smallest other distance of its row; if
  there is none, those at distance zero count equally.
- (10) prints |D_i|, which is the same for all j; the authors' code has n_j, and so do we. mu = 0.5 is the middle of the
  range that the paper calls good; the authors' code has 0.9. Its rounding of distances to 1 and of weights to 3
  decimals is not copied: with it the rows sum to anything from 0.99 to 1.01.
- (13) divides only the first sum by |D_i|, so that a variance can be negative; the authors' code divides both.
- (15) has Q = Diag(delta^2) + P with P of (8): not symmetric, indefinite and the same for all clients. The authors'
  code solves FedPAC's programme, and so do we; where a matrix is not semidefinite, it leaves the client its own
  classifier, which with the printed Q would be the rule: ``qp="own"``. Where several mixtures are equally good (clients
  without variance), we take the most even one. Weights below ``threshold`` are dropped.
- Statistics c_ik and delta_i^2: Algorithm 1 knows only prototypes after training (``stats="post"``); the authors' code
  compares clients before training, by the model that each received (``stats="pre"``). We take them in evaluation mode
  and on plain images, the authors' code on augmented ones.
- Absent clients keep the model and the prototypes of their last round and continue from there, as in the authors' code
  (``absent="stale"``). ``absent="broadcast"`` sends them, as FedPAC does, the new prototypes and the sample-weighted
  mean of the round's extractors (and of its classifiers, where those are not personal).
- A class that no client of the round holds has no global prototype; the authors' code would stop.
- Extractor and classifier train together, by plain SGD in the authors' code: that is ``momentum=0`` of the run.
- Measured is the personal model before local training, which is Algorithm 1's output. The authors' code prints the
  accuracy before and after; the paper does not say which is in its tables. It averages over the clients of the round,
  each rounded to a tenth of a percent; here, as for every method, all clients are evaluated.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from fedgraft.core import bank
from fedgraft.core.client import Client, ClientId
from fedgraft.core.features import class_means, pooled_means
from fedgraft.core.message import Field, Message
from fedgraft.core.method import Inbox, Server, Spec, average, hyper
from fedgraft.methods.fedpac import Aligned, acquainted, shares, stacked, with_block, with_own


@dataclass(frozen=True)
class FedGPA(Aligned):
    """Global personalized aggregation: everybody's own mixture of extractors and of classifiers."""

    name = "fedgpa"
    family = "mixed on the server for each client"
    citation = "Han et al., AI Open 2025, doi 10.1016/j.aiopen.2025.03.001"
    idea = "align features with global prototypes; mix extractors by prototype distance and size, classifiers by a QP"
    sends = "down: the client's extractor and classifier, prototypes; up: both trained, class means, counts, a variance"
    shows = {
        "alpha": "share of another client's feature extractor in that of the client; rows sum to one",
        "beta": "share of another client's classifier in that of the client; rows sum to one",
    }

    mu: float = hyper(0.5, "share of prototype similarity, not size, in the extractors' weights", low=0.0, high=1.0)
    lga: bool = hyper(True, "local-global alignment: pull features towards the global prototypes")
    gpa_f: bool = hyper(True, "global personalized aggregation of the extractors")
    gpa_c: bool = hyper(True, "global personalized aggregation of the classifiers")
    stats: Literal["pre", "post"] = hyper(
        "pre", "compare clients by their features before or after training", choices=("pre", "post")
    )
    missing: Literal["zero", "skip"] = hyper(
        "zero", "a class that the other client lacks: its mean is zero, or it is left out", choices=("zero", "skip")
    )
    absent: Literal["stale", "broadcast"] = hyper(
        "stale", "absent clients keep what they have, or get the mean of the round", choices=("stale", "broadcast")
    )
    reg: Literal["sample_mse", "prototype", "off"] = hyper(
        "sample_mse",
        "what is pulled towards the prototypes: each sample, the class means of a batch, nothing",
        choices=("sample_mse", "prototype", "off"),
    )

    # ---- server half
    def setup(self, spec: Spec) -> Server:
        everybody = {name: value.expand(spec.clients, *value.shape).clone() for name, value in self.start(spec).items()}
        own = torch.eye(spec.clients, dtype=torch.float64)
        return Server(spec, **everybody, alpha=own, beta=own.clone(), **self.unheard(spec))

    def send(self, server: Server, client: ClientId) -> Message:
        return Message(**{name: server[name][client] for name in ("extractor", "head", "prototypes", "known")})

    def expects(self, server: Server, client: ClientId) -> Mapping[str, Field]:
        return {name: field for name, field in super().expects(server, client).items() if self.travels(name)}

    def travels(self, entry: str) -> bool:
        """After training, the class means are the prototypes: they need not be sent twice."""
        return entry != "means" or self.stats == "pre"

    @property
    def compared(self) -> str:
        """Which entry of a reply clients are compared by."""
        return "means" if self.stats == "pre" else "prototypes"

    def merge(self, server: Server, inbox: Inbox) -> None:
        spec, senders = server.spec, torch.tensor(sorted(inbox))
        counts, n = stacked(inbox, "counts"), torch.tensor(spec.samples, dtype=torch.float64)[senders]
        self.remember(server, inbox, self.compared)
        means = stacked(inbox, self.compared)
        alpha = beta = (n / n.sum()).expand(len(n), -1)
        if self.gpa_f:
            alpha = self.extractor_weights(counts, means, n)
        if self.gpa_c:
            beta = self.classifier_weights(counts, means, stacked(inbox, "variance"))
        server["alpha"] = with_block(server["alpha"], senders, alpha)
        server["beta"] = with_block(server["beta"], senders, beta)

        told = torch.arange(spec.clients) if self.absent == "broadcast" else senders
        news = {"prototypes": pooled_means(stacked(inbox, "prototypes"), counts), "known": counts.sum(0) > 0}
        if not self.gpa_f or self.absent == "broadcast":
            news["extractor"] = average(spec, inbox, "extractor")
        if not self.gpa_c:
            news["head"] = average(spec, inbox, "head")
        for name, value in news.items():
            server[name] = server[name].index_copy(0, told, value.expand(len(told), *value.shape))
        for part, personal, weights in (("extractor", self.gpa_f, alpha), ("head", self.gpa_c, beta)):
            if personal:
                server[part] = server[part].index_copy(0, senders, bank.mix(weights, stacked(inbox, part)))

    def extractor_weights(self, counts: Tensor, means: Tensor, n: Tensor) -> Tensor:
        """Row i weighs the extractors for client i: mu of it by similarity, the rest by size."""
        nearness = 1 / self.distances(counts, means)
        S = nearness / nearness.sum(1, keepdim=True)
        alpha = self.mu * S + (1 - self.mu) * n / n.sum()
        return alpha / alpha.sum(1, keepdim=True)

    def distances(self, counts: Tensor, means: Tensor) -> Tensor:
        """P_ij, where a zero counts as half of the smallest other distance of its row."""
        pi, c = shares(counts), means.to(torch.float64).transpose(0, 1)
        # by differences: a matrix product would leave rounding where the distance is zero
        apart = torch.cdist(c, c, compute_mode="donot_use_mm_for_euclid_dist")
        if self.missing == "zero":
            P = torch.einsum("ik,kij->ij", pi, apart)
        else:
            held = (counts > 0).to(pi.dtype)
            common = pi @ held.T
            P = torch.einsum("ik,jk,kij->ij", pi, held, apart) / common
            P = P.masked_fill(common == 0, torch.inf)
        nearest = P.masked_fill(P == 0, torch.inf).amin(1, keepdim=True)
        return torch.where(P == 0, torch.where(nearest.isfinite(), nearest / 2, 1.0), P)

    # ---- a newcomer: its own mixtures of the extractors and classifiers that the others have now
    def admit(self, server: Server, client: ClientId) -> None:
        super().admit(server, client)
        C, known = server["prototypes"], server["known"]
        news = {part: server[part].mean(0) for part in ("extractor", "head")}
        news |= {"prototypes": pooled_means(C, known.long()), "known": known.any(0)}
        for name, value in news.items():
            server[name] = torch.cat([server[name], value[None]])

    def merge_newcomer(self, server: Server, inbox: Inbox) -> None:
        self.remember(server, inbox, self.compared)
        who, counts, means, variances = acquainted(server)
        n = torch.tensor(server.spec.samples, dtype=torch.float64)[who]
        alpha = self.extractor_weights(counts, means, n) if self.gpa_f else (n / n.sum())[None]
        beta = self.classifier_weights(counts, means, variances) if self.gpa_c else (n / n.sum())[None]
        for part, weights in (("extractor", alpha), ("head", beta)):
            server[part] = with_own(server[part], who, weights[-1], stacked(inbox, part)[0])

    # ---- client half
    def discloses(self) -> Mapping[str, str]:
        return super().discloses()

    def targets(self, client: Client, received: Tensor) -> Tensor | None:
        return super().targets(client, received) if self.lga and self.reg != "off" else None

    def distance(self, z: Tensor, y: Tensor, targets: Tensor) -> Tensor:
        if self.reg == "sample_mse":
            return super().distance(z, y, targets)
        if len(y) == 1:  # a sample by itself, as under privacy, is its own class mean
            gap: Tensor = torch.linalg.vector_norm(z - targets[y], dim=1)
            return gap.mean()
        gaps: Tensor = torch.linalg.vector_norm(class_means(z, y, len(targets)) - targets, dim=1)
        return gaps[y].mean()

    def reply(self, client: Client, received: Tensor, trained: Tensor) -> Message:
        reply = super().reply(client, received if self.stats == "pre" else trained, trained)
        return Message(**{name: value for name, value in reply.items() if self.travels(name)})

    # ---- for people
    def observe(self, server: Server) -> Mapping[str, Tensor]:
        return {"alpha": server["alpha"], "beta": server["beta"]}

    def caveats(self) -> Sequence[str]:
        aligned = self.lga and self.reg != "off" and self.lam > 0
        personal = self.gpa_f and self.mu > 0
        sentences = {
            "without lga, gpa_f and gpa_c, FedGPA is FedAvg": not (aligned or personal or self.gpa_c),
            'lga off, lam = 0 or reg = "off" aligns no features': not aligned,
            "gpa_f off or mu = 0 gives all clients of a round the same extractor": not personal,
            "gpa_c off gives all clients of a round the same classifier": not self.gpa_c,
            'qp = "own" leaves every client its own classifier': self.gpa_c and self.qp == "own",
        }
        return tuple(sentence for sentence, applies in sentences.items() if applies)
