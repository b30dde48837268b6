"""Where the clients are, as the round loop sees it: an engine trains and tests them, wherever that happens."""

from collections.abc import Collection, Mapping
from typing import Protocol, Self, runtime_checkable

from torch import Tensor

from fedgraft.core.client import ClientId
from fedgraft.core.evaluation import Kind, Scores
from fedgraft.core.exchange import Failure, Outcome
from fedgraft.core.message import Message
from fedgraft.core.state import State


@runtime_checkable
class Engine(Protocol):
    """Trains the clients: in this process, in workers, on other machines. It is used as a context, and closed."""

    @property
    def sets(self) -> Collection[Kind]:
        """The sets on which clients are asked to test their models."""
        ...

    @property
    def quorum(self) -> int:
        """How many clients have to be heard in a round (all of it, if it has fewer); 0, if it counts in any case.

        A round below the quorum is undone, and repeated after ``wait``.
        """
        ...

    def train(self, round: int, messages: Mapping[ClientId, Message]) -> Mapping[ClientId, Outcome | Failure]:
        """Deliver a wave of messages and collect the replies, one at most from each client.

        A client that failed, or of which two replies came, is absent in this round. A reply shares no memory with what
        a client keeps: the server may do with it what it likes.
        """
        ...

    def commit(self, accepted: Collection[ClientId]) -> None:
        """Let the clients that were served last keep what they learned, if the server accepted their reply."""
        ...

    def evaluate(self, round: int, messages: Mapping[ClientId, Message]) -> Mapping[ClientId, Scores]:
        """Test every client's own model at both points; a client that fails is left out."""
        ...

    def observe(self) -> Mapping[str, Tensor]:
        """Return private figures of the clients, where this engine may see them."""
        ...

    def snapshot(self) -> Mapping[ClientId, State]:
        """Return what a checkpoint holds of every client, as of the last commit; later rounds do not change it."""
        ...

    def restore(self, clients: Mapping[ClientId, State]) -> None:
        """Let the clients be what they were when ``snapshot`` returned this, also in an earlier process or run."""
        ...

    def wait(self, count: int, round: int, reason: str) -> None:
        """Wait until ``count`` clients can be asked again in a round that was undone for a ``reason``, or stop the run.

        It is called after each try of the round; whoever has waited long enough raises a ``UserError``.
        """
        ...

    def close(self) -> None:
        """Let go of processes and connections."""
        ...

    def __enter__(self) -> Self: ...

    def __exit__(self, *_: object) -> None: ...
