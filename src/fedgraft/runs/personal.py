"""The clients' own models when a run is over: as callables for every method, as modules that can be taken away."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from fedgraft.base.errors import UserError, unknown
from fedgraft.core import exchange, rounds, streams
from fedgraft.core.client import Client, ClientId, Predictor
from fedgraft.core.evaluation import POINTS, Point
from fedgraft.core.method import Method, Server, Spec
from fedgraft.core.model import Model
from fedgraft.core.samples import ClientData
from fedgraft.core.state import State
from fedgraft.engines.workshop import Workshop, single_thread


class Wrapped(nn.Module):
    """A personal model that is more than a network: the networks that it needs, and what is computed around them."""

    def __init__(self, predict: Callable[[Tensor], Tensor], networks: Sequence[nn.Module]) -> None:
        super().__init__()
        self.networks = nn.ModuleList(networks)
        self._predict = predict

    def forward(self, x: Tensor) -> Tensor:
        return self._predict(x)


def numbered(spec: Spec, client: ClientId | str) -> ClientId:
    """Find a client by its number or by its site's name."""
    if isinstance(client, str):
        if client in spec.names:
            return spec.names.index(client)
        if not client.isdecimal():
            raise unknown("client", client, spec.names)
        client = int(client)
    if not 0 <= client < spec.clients:
        raise UserError(f"there is no client {client}; there are 0 to {spec.clients - 1}")
    return client


@dataclass(frozen=True, eq=False)
class PersonalModels:
    """What a run leaves: the server, every client's state, and the data that some methods adapt a model on."""

    method: Method
    spec: Spec
    server: Server
    states: Mapping[ClientId, State]
    data: Sequence[ClientData] | Mapping[ClientId, ClientData]
    newcomer: str = ""
    """Who it is, if this is the copy of a server in which somebody is the last client who was not there in training."""

    def predictor(self, client: ClientId, point: Point) -> Predictor:
        """Return a client's own model as a callable that maps prepared inputs to outputs, in evaluation mode."""
        subject, predict, _ = self._tested(client, point)

        def answer(x: Tensor) -> Tensor:
            with subject.model().evaluating():
                return predict(x)

        return answer

    def module(self, client: ClientId, point: Point) -> nn.Module:
        """Return a client's own model as a module: the network itself, or what is computed around it."""
        _, predict, workshop = self._tested(client, point)
        if isinstance(predict, Model):
            return self.spec.architecture(client).module(predict.vector, predict.integers).eval()
        return Wrapped(predict, [model.module for model in workshop.workbench.models]).eval()

    def _tested(self, client: ClientId, point: Point) -> tuple[Client, Predictor, Workshop]:
        """Let the method give the client's own model, just as the last evaluation of the run had it."""
        if point not in POINTS:
            raise unknown("point", str(point), POINTS)
        spec, last = self.spec, self.spec.rounds - 1
        workshop = Workshop(self.method, spec, self.data, torch.device("cpu"), newcomer=self.newcomer)
        served = [client] if self.newcomer else range(spec.clients)
        with single_thread(), streams.untouched(), torch.enable_grad():  # some methods train here
            message = rounds.deliver(self.method, self.server, served)[client]
            workshop.begin("evaluate", client, last)
            subject = workshop.client(client, self.states[client], last, "evaluate")
            exchange.contact(self.method, subject)
            message = spec.pipeline.decode("down", message, {})
            predict = self.method.personal(subject, message, subject.own if point == "trained" else None)
        return subject, predict, workshop
