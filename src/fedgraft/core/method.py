"""The hooks: everything in which one personalized method differs from another.

A method answers four questions: what is shared, what each client gets, how it trains, which model is its own. It is
a frozen dataclass of hyper-parameters and holds no state: the server's state is a ``Server``, a client's a
``Client``, both mappings of named tensors.
"""

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from fedgraft.core import streams
from fedgraft.core.client import Client, ClientId, Predictor
from fedgraft.core.hyper import check
from fedgraft.core.hyper import hyper as hyper
from fedgraft.core.message import Field, Message
from fedgraft.core.model import Model, Shared
from fedgraft.core.spec import Spec as Spec
from fedgraft.core.state import Holder
from fedgraft.core.training import Phase


class Server(Holder):
    """The server's state: named tensors, and all that a checkpoint holds of it.

    ``tested`` is not the method's: how many samples of a kind each client tests on, as its first report said.
    """

    def __init__(self, spec: Spec, **state: Tensor) -> None:
        self.spec, self.round = spec, 0
        self.tested: dict[tuple[str, ClientId], int] = {}
        self._state = dict(state)

    def restore(self, state: Mapping[str, Tensor], round: int) -> None:
        """Become what the server was after ``round`` rounds."""
        self._state, self.round = dict(state), round


Inbox = Mapping[ClientId, Message]


@dataclass(frozen=True)
class Method:
    """A personalized federated learning method; the defaults of its client half are plain local training."""

    name: ClassVar[str] = "method"
    family: ClassVar[str] = ""
    """What it is like, in a few words: methods are listed by them."""
    citation: ClassVar[str] = ""
    idea: ClassVar[str] = ""
    sends: ClassVar[str] = ""
    averages: ClassVar[str] = ""
    headline: ClassVar[str] = "received"
    reconstruction: ClassVar[bool] = False
    independent_start: ClassVar[bool] = False
    needs_classes: ClassVar[bool] = False
    """Whether it works with classes (prototypes, label counts), so that no other task than classification will do."""
    aside: ClassVar[tuple[str, ...]] = ()
    """Names of trainings (``client.train(name=...)``) whose result never reaches a reply, in this or a later round."""
    shows: ClassVar[Mapping[str, str]] = {}
    """What each name in ``observe`` and ``observe_client`` means, for whoever looks at the picture."""

    def __post_init__(self) -> None:
        for parameter in dataclasses.fields(self):
            check(self.name, parameter, getattr(self, parameter.name))

    # ---- what is shared
    def shared(self) -> Shared:
        """What of the network travels."""
        return "all"

    # ---- server half
    def setup(self, spec: Spec) -> Server:
        """Return the server's first state."""
        return Server(spec)

    def waves(self, server: Server, round: int, picked: Sequence[ClientId]) -> Iterable[Sequence[ClientId]]:
        """Groups of clients served one after another; each group's replies are merged before the next is served."""
        return [picked]

    def in_turn(self, server: Server, round: int, picked: Sequence[ClientId]) -> list[Sequence[ClientId]]:
        """Waves of one client each, in random order: for servers that learn from one client after another."""
        turn = streams.generator(server.spec.seed, self.name, "order", round).permutation(len(picked))
        return [[picked[i]] for i in turn]

    def send(self, server: Server, client: ClientId) -> Message:
        """Return the message for a client. It changes nothing, for it serves training and evaluation."""
        raise NotImplementedError

    def dispatch(self, server: Server, clients: Sequence[ClientId]) -> Mapping[ClientId, Message]:
        """Return the messages of many clients; a method that mixes models makes all of them in one product."""
        return {client: self.send(server, client) for client in clients}

    def expects(self, server: Server, client: ClientId) -> Mapping[str, Field]:
        """Return what a valid reply of the client looks like in this round; anything else is refused."""
        layout = server.spec.layout(client)
        return {"weights": Field((layout.width(self.shared(), server.spec.settings.buffers),), layout.dtype)}

    def merge(self, server: Server, inbox: Inbox) -> None:
        """Digest the accepted replies of a wave, keyed by client."""

    # ---- client half
    def join(self, client: Client) -> None:
        """Give the client its private state at its first contact."""

    def assemble(self, client: Client, message: Message) -> Tensor:
        """Return the weights that the client holds after the download: received where shared, its own elsewhere."""
        return client.put(client.own, message["weights"], self.shared())

    def loss(self, client: Client, model: Model, x: Tensor, y: Tensor) -> Tensor:
        """Return what local training minimises on a batch."""
        return client.task.loss(model(x), y)

    def plan(self, client: Client) -> tuple[Phase, ...]:
        """Phases of local training."""
        return (Phase(),)

    def fit(self, client: Client, received: Tensor) -> Tensor:
        """Train locally; return the trained weights."""
        return client.train(received, lambda model, x, y: self.loss(client, model, x, y), self.plan(client))

    def reply(self, client: Client, received: Tensor, trained: Tensor) -> Message:
        """Return what goes back to the server."""
        return Message(weights=client.take(trained, self.shared()))

    def personal(self, client: Client, message: Message, trained: Tensor | None = None) -> Predictor:
        """Return the client's own model: from the newest ``message``, or as its last training left it (``trained``)."""
        return client.predictor(self.assemble(client, message) if trained is None else trained)

    def discloses(self) -> Mapping[str, str]:
        """Return what of a reply is made of the client's samples past ``client.train``, and how.

        Private training clips and noises every gradient, and covers nothing else: a method that discloses something is
        refused there. A class that changes the client half says it anew, if only that there is nothing.
        """
        return {}

    # ---- for people
    def observe(self, server: Server) -> Mapping[str, Tensor]:
        """Matrices and figures of the server worth keeping for every round."""
        return {}

    def observe_client(self, client: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
        """Return private figures of a client worth keeping for every round; they never leave its machine."""
        return {}

    def caveats(self) -> Sequence[str]:
        """Sentences about settings that switch the method, or a part of it, off, or that mislead in a comparison."""
        return ()

    def parameters(self) -> dict[str, Any]:
        """The hyper-parameters by name, also those that a method of one's own keeps without declaring them."""
        declared = dataclasses.asdict(self)
        return declared | {name: value for name, value in vars(self).items() if name not in declared}


def average(spec: Spec, inbox: Inbox, entry: str = "weights", *, uniform: bool = False) -> Tensor:
    """FedAvg's mean: the entries of the replies, weighed by how many samples each sender has, or all alike.

    A method that averages does so here, or by ``spec.mean``, and says so in ``averages``.
    """
    senders = sorted(inbox)
    shares = torch.tensor([1 if uniform else spec.samples[sender] for sender in senders])
    return spec.mean(torch.stack([inbox[sender][entry] for sender in senders]), shares)
