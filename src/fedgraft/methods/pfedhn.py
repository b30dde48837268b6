"""pFedHN: one hypernetwork on the server writes every client's weights.

Shamsian, Navon, Fetaya, Chechik. Personalized Federated Learning using Hypernetworks. ICML 2021, arXiv 2103.04628.

Symbols
    v_i       embedding of client i; phi the weights of the hypernetwork h
    theta_i   h(v_i; phi), the weights that client i receives; theta_i~ after its local training
    d_i       theta_i - theta_i~, what client i uploads: OLD minus NEW

    server    g = J^T d_i with J = d theta_i / d (phi, v_i), one vector-Jacobian product, clipped to a norm of 50
              (phi, v) <- SGD step on g with momentum and weight decay

The hypernetwork is a linear layer and ``depth`` times ReLU and a linear layer, of ``hidden`` units, then one linear
output for each weight tensor; side by side these outputs are one layer as wide as the model.

Readings
- Sign: the paper's text writes the change as new minus old, with which the server would ascend. Like the authors' code
  we take old minus new.
- Order: the authors serve one client at each server step, and so do we: the clients of a round are served one after
  another, in random order, and each is followed by a step. ``order="averaged"`` serves them at once and takes one step
  with their mean g: faster on several cores, and another run.
- Local work: the authors take 50 steps on newly drawn batches (learning rate 5e-3, momentum 0.9, weight decay 5e-5);
  here the run's epochs and optimizer hold, as for every method. d_i grows with them, so another number of epochs wants
  another server_lr. The clip of local gradients at the same norm is theirs.
- One optimizer owns all embeddings, so momentum and weight decay also move those of absent clients.
- ``private_head=True`` is pFedHN-PC: the hypernetwork writes the extractor, heads stay with their clients (the authors
  then use a server_lr of 0.05).
- BatchNorm statistics are not written by the hypernetwork; every client keeps its own.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal

import torch
from torch import Tensor
from torch.nn import functional

from fedgraft.core import streams
from fedgraft.core.client import Client, ClientId
from fedgraft.core.message import Field, Message
from fedgraft.core.method import Inbox, Method, Server, Spec, hyper
from fedgraft.core.model import Part


def drawn(name: str, sizes: Sequence[int], rng: torch.Generator, dtype: torch.dtype, *copies: int) -> dict[str, Tensor]:
    """Draw linear layers that lead from one size to the next, as torch draws them; all at once for several networks."""
    state = {}
    for layer, (into, out) in enumerate(pairwise(sizes)):
        for tensor, shape in (("weight", (out, into)), ("bias", (out,))):
            uniform = 2 * torch.rand(*copies, *shape, generator=rng, dtype=dtype) - 1
            state[f"{name}/{layer}/{tensor}"] = uniform / into**0.5
    return state


@dataclass(frozen=True)
class PFedHN(Method):
    """A hypernetwork for everybody, an embedding for each."""

    name = "pfedhn"
    family = "mixed on the server for each client"
    citation = "Shamsian et al., ICML 2021, arXiv 2103.04628"
    idea = "a hypernetwork on the server turns a learned embedding of each client into that client's weights"
    sends = "down: the weights written for the client; up: how its training changed them"
    newcomers = "rounds"
    refuses_start = "a hypernetwork writes all its models, and begins with models of its own"
    shows = {"v": "embedding from which the hypernetwork writes the client's weights; similar rows mean similar models"}

    server_lr: float = hyper(0.01, "learning rate of the hypernetwork and the embeddings", low=0.0)
    server_momentum: float = hyper(0.9, "momentum of the server's steps", low=0.0, high=0.999)
    server_decay: float = hyper(1e-3, "weight decay of the server's steps", low=0.0)
    clip: float = hyper(50.0, "largest norm of a gradient, on the server and in local training", above=0.0)
    hidden: int = hyper(100, "width of the hypernetwork", low=1)
    depth: int = hyper(3, "hidden layers of the hypernetwork", low=0)
    embedding: int = hyper(0, "length of an embedding; 0 takes 1 + N/4", low=0)
    order: Literal["sequential", "averaged"] = hyper(
        "sequential",
        "one server step for each client in turn, or one for their mean",
        choices=("sequential", "averaged"),
    )
    private_head: bool = hyper(False, "leave the heads with the clients (pFedHN-PC)")

    def shared(self) -> Part:
        return "extractor" if self.private_head else "all"

    # ---- server half
    def setup(self, spec: Spec) -> Server:
        layout = spec.one_architecture(self.name).layout
        written = layout.span(self.shared())
        sizes = [
            self.embedding or 1 + spec.clients // 4,
            *[self.hidden] * (self.depth + 1),
            written.stop - written.start,
        ]
        rng = streams.torch_generator(spec.seed, self.name, "hypernetwork")
        state = {"v": torch.randn(spec.clients, sizes[0], generator=rng, dtype=layout.dtype)}
        state |= drawn("phi", sizes, rng, layout.dtype)
        velocity = {f"velocity/{name}": torch.zeros_like(tensor) for name, tensor in state.items()}
        return Server(spec, **state, **velocity)

    def waves(self, server: Server, round: int, picked: Sequence[ClientId]) -> Iterable[Sequence[ClientId]]:
        if self.order == "averaged":
            return [picked]
        return self.in_turn(server, round, picked)

    def write(self, state: Mapping[str, Tensor], client: ClientId) -> Tensor:
        """theta_i = h(v_i; phi)."""
        h = state["v"][client]
        for layer in range(self.depth + 2):
            h = functional.relu(h) if 1 <= layer <= self.depth else h
            h = functional.linear(h, state[f"phi/{layer}/weight"], state[f"phi/{layer}/bias"])
        return h

    def send(self, server: Server, client: ClientId) -> Message:
        return Message(weights=self.write(server, client))

    def expects(self, server: Server, client: ClientId) -> Mapping[str, Field]:
        written = server.spec.layout(client).span(self.shared())
        return {"change": Field((written.stop - written.start,), server.spec.layout(client).dtype)}

    def merge(self, server: Server, inbox: Inbox) -> None:
        learned = [name for name in server if not name.startswith("velocity/")]
        live = {name: server[name].clone().requires_grad_() for name in learned}
        thetas = [self.write(live, client) for client in inbox]
        changes = [message["change"] / len(inbox) for message in inbox.values()]
        gradients = torch.autograd.grad(thetas, list(live.values()), changes)
        norm = torch.stack([gradient.norm() for gradient in gradients]).norm()
        for name, gradient in zip(live, gradients, strict=True):
            step = gradient * torch.clamp(self.clip / norm, max=1.0) + self.server_decay * server[name]
            velocity = self.server_momentum * server[f"velocity/{name}"] + step
            server[f"velocity/{name}"] = velocity
            server[name] = server[name] - self.server_lr * velocity

    # ---- client half
    def discloses(self) -> Mapping[str, str]:
        return {}

    def assemble(self, client: Client, message: Message) -> Tensor:
        weights = client.own.clone()
        weights[client.layout.span(self.shared())] = message["weights"]
        return weights

    def fit(self, client: Client, received: Tensor) -> Tensor:
        settings = client.settings.but(clip_norm=min(self.clip, client.settings.clip_norm or self.clip))
        return client.train(received, lambda m, x, y: self.loss(client, m, x, y), self.plan(client), settings=settings)

    def reply(self, client: Client, received: Tensor, trained: Tensor) -> Message:
        return Message(change=(received - trained)[client.layout.span(self.shared())])

    # ---- a newcomer: its embedding is learned, from the mean of all; the hypernetwork rests
    def admit(self, server: Server, client: ClientId) -> None:
        server["v"] = torch.cat([server["v"], server["v"].mean(0, keepdim=True)])
        server["velocity/v"] = functional.pad(server["velocity/v"], (0, 0, 0, 1))

    def merge_newcomer(self, server: Server, inbox: Inbox) -> None:
        resting = {name: tensor for name, tensor in server.items() if "phi/" in name}
        self.merge(server, inbox)
        server.update(resting)

    # ---- for people
    def observe(self, server: Server) -> Mapping[str, Tensor]:
        return {"v": server["v"]}

    def caveats(self) -> Sequence[str]:
        return ("server_lr = 0 never trains the hypernetwork",) if self.server_lr == 0 else ()
