"""The hooks: everything in which one personalized method differs from another.

A method answers four questions: what is shared, what each client gets, how it trains, which model is its own. It is
a frozen dataclass of hyper-parameters and holds no state: the server's state is a ``Server``, a client's a
``Client``, both mappings of named tensors.
"""

import dataclasses
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar, Literal, Protocol

import torch
from torch import Tensor

from fedgraft.core import streams
from fedgraft.core.client import Client, ClientId, Predictor
from fedgraft.core.hyper import check
from fedgraft.core.hyper import hyper as hyper
from fedgraft.core.message import Field, Message
from fedgraft.core.model import Model, Part, Shared
from fedgraft.core.spec import Spec as Spec
from fedgraft.core.state import Holder
from fedgraft.core.training import Phase


class Secrets(Protocol):
    """Where a server on its own machine draws random numbers from that no client may know."""

    def sampling(self, round: int) -> str:
        """Return the key of a round's participants."""
        ...

    def noise(self, round: int, total: Mapping[str, Tensor]) -> str:
        """Return the key of the noise on a sum, or refuse if that would be more than the run may release."""
        ...


class Server(Holder):
    """The server's state: named tensors, and all that a checkpoint holds of it.

    ``tested`` is not the method's: how many samples of a kind each client tests on, as its first report said. Nor is
    ``secrets``: where others must not know the random numbers of this server, it draws them from there.
    """

    def __init__(self, spec: Spec, **state: Tensor) -> None:
        self.spec, self.round = spec, 0
        self.tested: dict[tuple[str, ClientId], int] = {}
        self.secrets: Secrets | None = None
        self._state = dict(state)
        self._made: tuple[Any, Tensor] | None = None

    def restore(self, state: Mapping[str, Tensor], round: int) -> None:
        """Restore the state that the server had after ``round`` rounds."""
        self._state, self.round, self._made = dict(state), round, None

    def once(self, name: str, clients: Sequence[ClientId], make: Callable[[], Tensor]) -> Tensor:
        """Return what ``make`` gives for some clients, or gave last time, if the state is what it was.

        For something dear that is needed twice: mixtures that are sent, and asked for again when replies come. It is no
        state, and nobody may change it.
        """
        now = {name: (id(tensor), tensor._version) for name, tensor in self.items()}
        key = (name, tuple(clients), now)
        if self._made is None or self._made[0] != key:
            self._made = None  # let go of it before the next one is made
            self._made = (key, make())
        return self._made[1]

    def __setitem__(self, name: str, value: Tensor) -> None:
        super().__setitem__(name, value)
        self._made = None


Inbox = Mapping[ClientId, Message]
Sums = Literal["samples", "uniform", ""]
Newcomers = Literal["adapt", "train", "rounds"]
PRIVATE: Mapping[Shared, Part] = {"extractor": "head", "head": "extractor"}
"""What a client keeps for itself of a network of which something travels; it trains all, if all travels or nothing."""


@dataclass(frozen=True)
class Method:
    """A personalized federated learning method; by default its clients do plain local training."""

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
    newcomers: ClassVar[Newcomers] = "adapt"
    """How a client that was not there in training is served when that is over, and nobody else moves any more: it fits
    what is private to what it receives (``adapt``), or trains as in any round (``train``), and sends nothing; or its
    replies are merged too (``rounds``), so that the server learns what concerns it alone."""
    refuses_newcomers: ClassVar[str] = ""
    """Why no such client can be served, if so, in half a sentence."""
    refuses_start: ClassVar[str] = ""
    """Why its clients cannot begin with a model that another method left, if so, in half a sentence."""
    nothing_common: ClassVar[str] = ""
    """Why no model of it can be everybody's beginning in another run, if so, in half a sentence."""
    aside: ClassVar[tuple[str, ...]] = ()
    """Names of trainings (``client.train(name=...)``) whose result never reaches a reply, in this or a later round."""
    told_share: ClassVar[float] = 0.3
    """Which share of a privacy budget the sums over samples have that leave besides (``client.tell``), if there are."""
    answers: ClassVar[Mapping[str, str]] = {}
    """Which entry of a message an entry of the reply is the new value of, where their names differ."""
    shows: ClassVar[Mapping[str, str]] = {}
    """What each name in ``observe`` and ``observe_client`` means, for whoever looks at the picture."""

    def __post_init__(self) -> None:
        for parameter in dataclasses.fields(self):
            check(self.name, parameter, getattr(self, parameter.name))

    # ---- what is shared
    def shared(self) -> Shared:
        """The part of the network that is sent."""
        return "all"

    # ---- server half
    def setup(self, spec: Spec) -> Server:
        """Return the server's initial state."""
        return Server(spec)

    def waves(self, server: Server, round: int, picked: Sequence[ClientId]) -> Iterable[Sequence[ClientId]]:
        """Groups of clients served one after another; each group's replies are merged before the next is served."""
        return [picked]

    def in_turn(self, server: Server, round: int, picked: Sequence[ClientId]) -> list[Sequence[ClientId]]:
        """Waves of one client each, in random order: for servers that learn from one client after another."""
        turn = streams.generator(server.spec.seed, self.name, "order", round).permutation(len(picked))
        return [[picked[i]] for i in turn]

    def send(self, server: Server, client: ClientId) -> Message:
        """Return the message for a client. It changes no state, because it is used for training and evaluation."""
        raise NotImplementedError

    def dispatch(self, server: Server, clients: Sequence[ClientId]) -> Mapping[ClientId, Message]:
        """Return the messages of many clients; a method that mixes models makes all of them in one product."""
        return {client: self.send(server, client) for client in clients}

    def expects(self, server: Server, client: ClientId) -> Mapping[str, Field]:
        """Return what a valid reply of the client looks like in this round; anything else is refused."""
        layout = server.spec.layout(client)
        return {"weights": Field((layout.width(self.shared(), server.spec.settings.buffers),), layout.dtype)}

    def sums(self) -> Sums:
        """How the server weighs replies, if their mean is all that it needs: then it gets no more (``core/inbox.py``).

        A class that changes ``merge`` says it anew.
        """
        return ""

    def merge(self, server: Server, inbox: Inbox) -> None:
        """Aggregate the accepted replies of the clients served together, keyed by client."""

    # ---- client half
    def join(self, client: Client) -> None:
        """Give the client its private state at its first contact."""

    def assemble(self, client: Client, message: Message) -> Tensor:
        """Return the weights that the client holds after the download: received where shared, its own elsewhere."""
        return client.receive(message["weights"], self.shared())

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
        """Return what is sent back to the server."""
        return Message(weights=client.take(trained, self.shared()))

    def personal(self, client: Client, message: Message, trained: Tensor | None = None) -> Predictor:
        """Return the client's own model: from the newest ``message``, or after its last training (``trained``)."""
        return client.predictor(self.assemble(client, message) if trained is None else trained)

    # ---- a newcomer: a client that was not there in training
    def admit(self, server: Server, client: ClientId) -> None:
        """Make room for a newcomer, the last client, in a copy of the server that serves no other client."""

    def fit_newcomer(self, client: Client, received: Tensor) -> Tensor:
        """Train a newcomer in one of its rounds; what is not trained is what the federation gave."""
        if self.newcomers != "adapt":
            return self.fit(client, received)
        part, start = PRIVATE.get(self.shared(), "all"), client.own  # which began as what it received first
        if part != "all":
            start = client.put(start, client.take(received, self.shared()), self.shared())
        return client.train(start, partial(self.loss, client), (Phase(part),))

    def merge_newcomer(self, server: Server, inbox: Inbox) -> None:
        """Aggregate a newcomer's reply in its own copy of the server; what came from others stays as it is."""
        self.merge(server, inbox)

    def discloses(self) -> Mapping[str, str]:
        """Return what of a reply is made of the client's samples past ``client.train`` and ``client.tell``, and how.

        These two clip and noise what each sample brings, and nothing covers anything else: under privacy a method that
        discloses something is refused. A class that changes the client half says it anew, if only that it is nothing.
        """
        return {}

    # ---- for people
    def observe(self, server: Server) -> Mapping[str, Tensor]:
        """Matrices and figures of the server to record after every round."""
        return {}

    def observe_client(self, client: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
        """Return private figures of a client to record after every round; they never leave its machine."""
        return {}

    def caveats(self) -> Sequence[str]:
        """Sentences about settings that switch the method, or a part of it, off, or that mislead in a comparison."""
        return ()

    def parameters(self) -> dict[str, Any]:
        """The hyper-parameters by name, also those that a method of one's own keeps without declaring them."""
        declared = dataclasses.asdict(self)
        return declared | {name: value for name, value in vars(self).items() if name not in declared}


def sums_of(method: Method) -> Sums:
    """Return what a method says in ``sums``, if it is said of the ``merge`` that it has."""
    said, done = (next(c for c in type(method).__mro__ if name in vars(c)) for name in ("sums", "merge"))
    return method.sums() if issubclass(said, done) else ""


def weight(method: Method, spec: Spec, samples: int) -> int:
    """Return what a client with so many samples counts in a sum; all alike, where a whole client is protected."""
    return samples if method.sums() == "samples" and spec.client_privacy is None else 1


def average(spec: Spec, inbox: Inbox, entry: str = "weights", *, uniform: bool = False) -> Tensor:
    """FedAvg's mean: the entries of the replies, weighed by how many samples each sender has, or all alike.

    A method that averages does so here, or by ``spec.mean``, and says so in ``averages``. What stands in everybody's
    place is its own mean.
    """
    senders = sorted(inbox)
    if len(inbox) > 1 and all(inbox[sender] is inbox[senders[0]] for sender in senders):
        return inbox[senders[0]][entry].clone()
    shares = torch.tensor([1 if uniform else spec.samples[sender] for sender in senders])
    return spec.mean(torch.stack([inbox[sender][entry] for sender in senders]), shares)
