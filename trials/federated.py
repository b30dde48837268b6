"""A Grid within this process that drives the real ServerApp and ClientApp, over Flower's own wire format."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from flwr.app import Context, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.proto.node_pb2 import NodeInfo
from flwr.serverapp import Grid
from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects
from flwr.supercore.inflatable.inflatable_utils import inflate_object_from_contents
from flwr.supercore.task_identity import TaskIdentity
from safetensors.torch import load_file

from fedgraft.core.settings import TASKS
from fedgraft.data.federation import Federation
from fedgraft.deploy.charter import Charter, charter
from fedgraft.deploy.serving import branch, serve
from fedgraft.engines.flower import client
from fedgraft.engines.flower.server import Rules

Handler = Callable[[Message, Context], Message]
FAST = Rules(quorum=1, deadline=0.2, patience=0.5, grace=30.0, pause=0.01, again=0.0)


def over_the_wire(message: Message) -> Message:
    """Take a message apart and put it together again as Flower does between machines."""
    objects = get_all_nested_objects(message)
    contents = {name: thing.deflate() for name, thing in objects.items()}
    made = inflate_object_from_contents(message.object_id, contents)
    assert isinstance(made, Message)
    made.metadata.__dict__["_message_id"] = message.object_id
    return made


@dataclass
class Node:
    """A SuperNode: an app and its configuration; ``meddle`` stands between it and the grid."""

    app: Handler
    config: dict[str, Any]
    meddle: Callable[[Message, Handler, Context], list[Message]] | None = None

    def answer(self, message: Message) -> list[Message]:
        context = Context(1, message.metadata.dst_node_id, self.config, RecordDict(), {})
        if self.meddle is not None:
            return self.meddle(message, self.app, context)
        return [self.app(message, context)]


@dataclass
class InProcessGrid(Grid):
    """Nodes in this process; a message is answered when it is pushed, and heard when it is pulled."""

    nodes: dict[int, Node] = field(default_factory=dict)
    replies: list[Message] = field(default_factory=list)
    sent: list[Message] = field(default_factory=list)
    registered: dict[int, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        TaskIdentity.run_id, TaskIdentity.node_id, TaskIdentity.task_id = 1, 1, 1

    def set_run(self, run: Any) -> None:
        raise NotImplementedError

    @property
    def run(self) -> Any:
        raise NotImplementedError

    def create_message(self, *_: Any, **__: Any) -> Message:
        raise NotImplementedError

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> Iterable[Message]:
        raise NotImplementedError

    def get_node_ids(self) -> Iterable[int]:
        return list(self.nodes)

    def get_nodes(self) -> Iterable[NodeInfo]:
        return [NodeInfo(node_id=node, name=self.registered.get(node)) for node in self.nodes]

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        assert isinstance(messages, list), "Flower's deployment takes a list and nothing else"
        ids = []
        for message in messages:
            message.metadata.__dict__["_message_id"] = message.object_id
            arrived = over_the_wire(message)
            self.sent.append(arrived)
            node = self.nodes.get(message.metadata.dst_node_id)
            self.replies += [over_the_wire(reply) for reply in (node.answer(arrived) if node else [])]
            ids.append(arrived.metadata.message_id)
        return ids

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        """Hand over what answers the letters asked about, and whatever answers no letter at all."""
        wanted, known = set(message_ids), {message.metadata.message_id for message in self.sent}
        heard = [r for r in self.replies if r.metadata.reply_to_message_id in wanted or
                 r.metadata.reply_to_message_id not in known]  # fmt: skip
        self.replies = [reply for reply in self.replies if not any(reply is each for each in heard)]
        return heard


def write_sites(folder: Path, fed: Federation) -> list[str]:
    """Lay a federation's data out as sites: NAME.npz, NAME.toml and a state directory each."""
    folder.mkdir(parents=True, exist_ok=True)
    names = [chr(ord("a") + client) for client in range(len(fed))]
    for name, data in zip(names, fed.clients, strict=True):
        arrays: dict[str, Any] = {}
        for part, samples in (("train", data.train), ("test", data.test)):
            arrays |= {f"x_{part}": samples.inputs.numpy(), f"y_{part}": samples.labels.numpy()}
        np.savez(folder / f"{name}.npz", **arrays)
        describe(folder, name)
    return names


def describe(folder: Path, name: str, called: str | None = None) -> Path:
    """Write a site's description."""
    path = folder / f"{called or name}.toml"
    path.write_text(f'name = "{name}"\ndata = "{name}.npz"\nstate = "state-{name}"\n', "utf-8")
    return path


def agreed(
    fed: Federation, names: list[str], directory: Path, rules: dict[str, Any] | None = None, **run: Any
) -> Charter:
    """The charter of a federation whose data are given."""
    inputs = fed.clients[0].train.inputs
    kind = "pixels" if inputs.dtype == torch.uint8 else "features"
    data = {"name": fed.name, "kind": kind, "shape": list(inputs.shape[1:]), "task": TASKS.label(fed.task)}
    return charter({"directory": str(directory), "sites": names, "data": data, "rules": dict(rules or {}), "run": run})


def app(made: Charter) -> ClientApp:
    """The real ClientApp."""
    return client.make(lambda place: branch(made, place))


@dataclass
class Federated:
    """A federation in this process: sites on disk, nodes, a server; run it as often as you like."""

    folder: Path
    fed: Federation
    run: dict[str, Any]
    rules: Rules = FAST
    directory: str = "run"
    grid: InProcessGrid = field(default_factory=InProcessGrid)

    def __post_init__(self) -> None:
        self.names = write_sites(self.folder / "sites", self.fed)
        self.charter = agreed(self.fed, self.names, self.folder / self.directory, **self.run)
        for name in self.names:
            self.join(name)

    def join(self, name: str, called: str | None = None, node: int | None = None) -> Node:
        """Start a node for a site."""
        place = describe(self.folder / "sites", name, called)
        made = Node(app(self.charter), {"site": str(place)})
        self.grid.nodes[node or 100 + len(self.grid.nodes)] = made
        return made

    def node(self, name: str) -> Node:
        return self.grid.nodes[100 + self.names.index(name)]

    def heard(self) -> list[Message]:
        """Keep every answer of the sites that are there, from now on."""
        answers: list[Message] = []

        def listen(message: Message, app: Handler, context: Context) -> list[Message]:
            answers.append(app(message, context))
            return answers[-1:]

        for node in self.grid.nodes.values():
            node.meddle = listen
        return answers

    def serve(self) -> Any:
        return serve(self.grid, self.charter, self.rules)

    def state(self, name: str) -> dict[str, torch.Tensor]:
        """The newest private state on a site's disk; nothing, if there is none."""
        found = sorted((self.folder / "sites" / f"state-{name}").glob("*/state-*.safetensors"))
        return load_file(found[-1]) if found else {}
