"""Local training, the reference without federation (also called "Separate" or "Standalone").

Every client trains its own model on its own data and exchanges nothing. All start from the same weights, and a client
trains only when it is selected, so that the comparison with a federated method is at equal local work.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from torch import Tensor

from fedgraft.core.client import Client, ClientId
from fedgraft.core.message import Field, Message
from fedgraft.core.method import Method, Server
from fedgraft.core.model import Part


@dataclass(frozen=True)
class Local(Method):
    """Each client alone."""

    name = "local"
    family = "one global model, fine-tuning, and training alone"
    idea = "every client trains alone: what federation has to beat"
    sends = "nothing"
    averages = "nothing, for nothing is sent"
    headline = "trained"
    aside = ("batches",)

    def shared(self) -> Part:
        return "nothing"

    # ---- server half: there is none
    def send(self, server: Server, client: ClientId) -> Message:
        return Message()

    def expects(self, server: Server, client: ClientId) -> Mapping[str, Field]:
        return {}

    # ---- client half
    def discloses(self) -> Mapping[str, str]:
        return {}

    def assemble(self, client: Client, message: Message) -> Tensor:
        return client.own

    def reply(self, client: Client, received: Tensor, trained: Tensor) -> Message:
        return Message()
