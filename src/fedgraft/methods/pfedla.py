"""pFedLA: for each client a small hypernetwork on the server learns how to mix all clients' models, layer by layer.

Ma, Zhang, Guo, Xu. Layer-wised Model Aggregation for Personalized Federated Learning. CVPR 2022, arXiv 2205.03993.

Symbols
    theta_j^l   layer l of the model that client j uploaded last
    v_i, psi_i  embedding and weights of client i's hypernetwork HN_i
    alpha_i     HN_i(v_i; psi_i): a row for each layer, a column for each client; rows sum to one
    m_i         the mixture that client i receives, m_i^l = sum_j alpha_i[l, j] theta_j^l
    d_i         m_i - theta_i, old minus new, after the local training of client i

    server      d loss / d alpha_i[l, j] = <d_i^l, theta_j^l>, back through HN_i into (v_i, psi_i), a step of size eta

Readings
- Sign: descent needs old minus new. Public implementations (there is no official one) take new minus old and descend,
  which lowers a client's weight on its own model.
- Rows: public implementations divide ReLU outputs by their sum, which may be 0 / 0; here rows are softmaxes. They begin
  nearly uniform, so that the first rounds are those of FedAvg without sample weights.
- Step: public implementations take eta = 5e-3, with which softmax rows hardly leave the start in a hundred rounds (a
  step is eta times a product of weights and their change, through a softmax of N). With the default of 1 they move
  within ten: heads become the client's own while early layers stay mixed.
- A layer is a module: its weight, bias and BatchNorm statistics share a row, and only trained parameters steer it.
- Order: the clients of a round are served at once; absent clients count with their last upload.
- The client uploads its model, from which the server takes d_i.
- HeurpFedLA is ``retained`` > 0: the client keeps its own version of that many layers, those in which its own weight is
  largest. They are not downloaded, and their rows do not learn in that round. A client that joins after training, which
  the paper does not have, gets all layers until its first upload: it has no version of its own that was ever trained.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from fedgraft.core import bank, streams
from fedgraft.core.client import Client, ClientId
from fedgraft.core.message import Message
from fedgraft.core.method import Inbox, Method, Server, Spec, hyper
from fedgraft.core.model import Layout, Slot
from fedgraft.methods.pfedhn import drawn


def layers(layout: Layout, width: int) -> list[tuple[int, Slot]]:
    """Return the tensors in the first ``width`` entries of a vector, each with the row of its layer."""
    rows: dict[str, int] = {}
    return [(rows.setdefault(slot.layer, len(rows)), slot) for slot in layout.slots if slot.stop <= width]


def inside(layout: Layout, chosen: Tensor, width: int) -> Tensor:
    """Mark the entries of a vector that belong to the ``chosen`` layers."""
    return torch.cat([chosen[row].expand(slot.stop - slot.start) for row, slot in layers(layout, width)])


@dataclass(frozen=True)
class PFedLA(Method):
    """Layer-wise mixtures, learned by hypernetworks."""

    name = "pfedla"
    family = "mixed on the server for each client"
    citation = "Ma et al., CVPR 2022, arXiv 2205.03993"
    idea = "the server learns each client's mixture of all models, layer by layer, with a hypernetwork for each client"
    sends = "down: the client's own mixture (without retained layers); up: the trained model"
    newcomers = "rounds"
    shows = {
        "alpha": "share of another client's layer in that layer of the client's model, a slice for each layer from "
        "input to output; rows sum to one"
    }

    eta: float = hyper(1.0, "step size of the hypernetworks", low=0.0)
    embedding: int = hyper(100, "length of an embedding", low=1)
    hidden: int = hyper(100, "width of a hypernetwork", low=1)
    depth: int = hyper(3, "hidden layers of a hypernetwork", low=0)
    retained: int = hyper(0, "layers that a client keeps as its own (HeurpFedLA)", low=0)

    # ---- server half
    def setup(self, spec: Spec) -> Server:
        layout = spec.one_architecture(self.name).layout
        start = layout.take(spec.initial(0), self.shared(), spec.settings.buffers)
        rows = 1 + max(row for row, _ in layers(layout, len(start)))
        sizes = [self.embedding, *[self.hidden] * self.depth, rows * spec.clients]
        rng = streams.torch_generator(spec.seed, self.name, "hypernetworks")
        v = torch.randn(spec.clients, self.embedding, generator=rng, dtype=layout.dtype)
        psi = drawn("psi", sizes, rng, layout.dtype, spec.clients)
        return Server(spec, bank=start.repeat(spec.clients, 1), v=v, **psi)

    def hypernetwork(self, server: Server, client: ClientId) -> dict[str, Tensor]:
        """Return v_i and psi_i."""
        return {name: tensor[client] for name, tensor in server.items() if name not in ("bank", "unheard")}

    def rows(self, HN: Mapping[str, Tensor], clients: int) -> Tensor:
        """alpha_i = HN_i(v_i; psi_i)."""
        h = HN["v"]
        for layer in range(self.depth + 1):
            h = functional.relu(h) if layer else h
            h = functional.linear(h, HN[f"psi/{layer}/weight"], HN[f"psi/{layer}/bias"])
        return torch.softmax(h.view(-1, clients), dim=1)

    def mixture(self, server: Server, client: ClientId) -> tuple[Tensor, Tensor]:
        """Return m_i, and which layers the client keeps as they are."""
        Theta, clients = server["bank"], server.spec.clients
        alpha = self.rows(self.hypernetwork(server, client), clients)
        kept = torch.zeros(len(alpha), dtype=torch.bool)
        retained = 0 if "unheard" in server and bool(server["unheard"][client]) else self.retained
        kept[alpha[:, client].topk(min(retained, len(alpha))).indices] = True
        alpha[kept] = functional.one_hot(torch.tensor(client), clients).to(alpha.dtype)
        m = torch.empty_like(Theta[client])
        for row, slot in layers(server.spec.layout(client), len(m)):
            m[slot.start : slot.stop] = bank.mix(alpha[row], Theta[:, slot.start : slot.stop])
        return m, kept

    def send(self, server: Server, client: ClientId) -> Message:
        m, kept = self.mixture(server, client)
        return Message(weights=m[~inside(server.spec.layout(client), kept, len(m))], kept=kept)

    def merge(self, server: Server, inbox: Inbox) -> None:
        Theta, layout = server["bank"], server.spec.layout(0)
        after = {name: tensor.clone() for name, tensor in server.items()}
        for client, message in inbox.items():
            m, kept = self.mixture(server, client)
            d = m - message["weights"]
            gradient = Theta.new_zeros(len(kept), server.spec.clients)
            for row, slot in layers(layout, layout.trained):
                gradient[row] += bank.inner(d[slot.start : slot.stop], Theta[:, slot.start : slot.stop])
            gradient[kept] = 0
            HN = {name: t.clone().requires_grad_() for name, t in self.hypernetwork(server, client).items()}
            slopes = torch.autograd.grad(self.rows(HN, server.spec.clients), list(HN.values()), gradient)
            moved = {name: HN[name].detach() - self.eta * slope for name, slope in zip(HN, slopes, strict=True)}
            # uploads of absurd size, though finite, can make a step that no softmax survives
            if all(bool(t.isfinite().all()) for t in (*moved.values(), self.rows(moved, server.spec.clients))):
                for name, tensor in moved.items():
                    after[name][client] = tensor
            after["bank"][client] = message["weights"]
            if "unheard" in after:
                after["unheard"][client] = False
        server.update(after)

    # ---- client half
    def discloses(self) -> Mapping[str, str]:
        return {}

    def assemble(self, client: Client, message: Message) -> Tensor:
        weights, width = client.own.clone(), client.layout.width(self.shared(), client.settings.buffers)
        weights[:width][~inside(client.layout, message["kept"], width)] = message["weights"]
        return weights

    # ---- a newcomer: a hypernetwork of its own; those of the others are not needed in its copy of the server
    def admit(self, server: Server, client: ClientId) -> None:
        Theta = server["bank"]
        server.update(self.setup(server.spec))
        server["bank"] = torch.cat([Theta, Theta.mean(0, keepdim=True)])
        server["unheard"] = torch.arange(server.spec.clients) == client

    # ---- for people
    def observe(self, server: Server) -> Mapping[str, Tensor]:
        clients = range(server.spec.clients)
        return {"alpha": torch.stack([self.rows(self.hypernetwork(server, i), len(clients)) for i in clients])}

    def caveats(self) -> Sequence[str]:
        return ("eta = 0 leaves the weights as they begin, nearly uniform",) if self.eta == 0 else ()
