"""The server half on Flower: an engine whose clients are sites behind a Grid.

Flower's node ids are handles of a session. A client is a site, known by its name: every unknown node is asked for it,
whenever one appears. Where nodes have keys, the name has to be the one that the operator registered the key for.
"""

import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import asdict, dataclass
from types import MappingProxyType
from typing import ClassVar, Self

import torch
from flwr.app import ConfigRecord, Context, RecordDict
from flwr.app import Message as Letter
from flwr.serverapp import Grid as Grid
from flwr.serverapp import ServerApp as ServerApp
from torch import Tensor

from fedgraft.base.errors import UserError
from fedgraft.base.foreign import plain
from fedgraft.base.version import __version__
from fedgraft.core.client import ClientId
from fedgraft.core.evaluation import Kind, Scores
from fedgraft.core.exchange import Failure, Outcome
from fedgraft.core.message import Field, Message
from fedgraft.core.method import Method, Server, weight
from fedgraft.core.release import leaves
from fedgraft.core.secure import Secure, shapes_of
from fedgraft.core.state import State
from fedgraft.engines.flower import records
from fedgraft.engines.flower.hiding import RECORD
from fedgraft.engines.flower.records import Hello, Holdings, Order, RecordError, Tag
from fedgraft.engines.flower.secure import SecureWave
from fedgraft.engines.flower.site import BEGINNING, Version

Say = Callable[[str], None]


@dataclass(frozen=True)
class Rules:
    """Whom a round waits for: ``quorum`` answers at least, none longer than ``deadline`` seconds.

    ``patience`` is how long a start, or a round below the quorum, waits for sites before the run stops. For ``grace``
    seconds after the deadline an answer is still heard, if only to say that it was late. ``pause`` is the time between
    two looks at the grid, ``again`` that before a node that was not let in, or a round below the quorum, is tried anew.
    A site that says it has more than ``max_samples`` training samples is not let in: they are its weight in a mean.
    """

    quorum: int = 1
    deadline: float = 600.0
    patience: float = 3600.0
    grace: float = 90.0
    pause: float = 0.5
    again: float = 15.0
    max_samples: int = 1_000_000


class StoppedError(UserError):
    """The run cannot go on without more sites; started again, it goes on from its last checkpoint."""


@dataclass(frozen=True)
class _Asked:
    """A letter that is on its way: to whom, until when, and what to say of an answer that comes too late."""

    node: int
    expires: float
    late: str = ""


class Sites:
    """The sites behind a grid: which are there, under which node id, and what they answer.

    ``holdings`` are the samples that each site had when the run began; without them, what a site says first counts.
    """

    def __init__(
        self,
        grid: Grid,
        names: Sequence[str],
        settings: str,
        rules: Rules,
        say: Say,
        holdings: Sequence[Holdings] = (),
        *,
        validating: bool = False,
    ) -> None:
        self.names, self.rules = list(names), rules
        self.holdings: dict[ClientId, Holdings] = dict(enumerate(holdings))
        self.strays = 0
        self._validating = validating
        self._grid, self._settings, self._say = grid, settings, say
        self._nodes: dict[ClientId, int] = {}
        self._claims: dict[int, ClientId] = {}
        self._greeting: dict[str, _Asked] = {}
        self._late: dict[str, _Asked] = {}
        self._next_try: dict[int, float] = {}
        self._complaints: dict[int, str] = {}
        self._online: set[int] = set()
        self._registered: dict[int, str] = {}

    @property
    def present(self) -> dict[ClientId, int]:
        """The sites that are there now, with their node ids."""
        return {client: node for client, node in self._nodes.items() if node in self._online}

    def gather(self, count: int, what: str, end: float | None = None) -> None:
        """Wait until so many sites are there, as long as patience lasts or until the moment ``end``."""
        end = time.monotonic() + self.rules.patience if end is None else end
        self.look()
        if len(self.present) < count:
            names = [name for client, name in enumerate(self.names) if client not in self.present]
            self._say(f"{what} waits until {', '.join(names)} answer{'s' if len(names) == 1 else ''}")
        while len(self.present) < count:
            if time.monotonic() > end:
                refused = "".join(f"; {complaint}" for complaint in self._complaints.values())
                raise StoppedError(
                    f"{what} needs {count} sites, and after {self.rules.patience:g} s {self._missing()}{refused}"
                )
            time.sleep(self.rules.pause)
            self.look()

    def _missing(self) -> str:
        names = [name for client, name in enumerate(self.names) if client not in self.present]
        return f"{', '.join(names)} {'is' if len(names) == 1 else 'are'} not there"

    def ask(self, kind: str, contents: Mapping[ClientId, RecordDict], about: str) -> dict[ClientId, Letter | Failure]:
        """Send every site its letter and wait for the replies, at most until the deadline."""
        self.look()
        present, end = self.present, time.monotonic() + self.rules.deadline
        there = {client: present[client] for client in contents if client in present}
        sent = self._post(kind, {node: contents[client] for client, node in there.items()})
        answers: dict[ClientId, Letter | Failure] = {
            client: Failure(
                f"site {self.names[client]} {'could not be reached' if client in there else 'is not connected'}"
            )
            for client in contents
        }
        waiting = {sent[node]: client for client, node in there.items() if node in sent}
        while waiting:
            for letter, client, reply in self._pull(dict(waiting)):
                twice = waiting.pop(letter, None) is None
                answers[client] = Failure(f"site {self.names[client]} answered twice") if twice else _judged(reply)
            if not waiting or time.monotonic() > end:
                break
            time.sleep(self.rules.pause)
            self.look()
        for letter, client in waiting.items():
            answers[client] = Failure(f"site {self.names[client]} gave no answer in {self.rules.deadline:g} s")
            late = f"site {self.names[client]} answered {about} after the deadline"
            self._late[letter] = _Asked(there[client], end + self.rules.grace, late)
        return answers

    def look(self) -> None:
        """See who is there; greet nodes that are new, and hear those that were greeted."""
        now = time.monotonic()
        self._registered = {node.node_id: node.name for node in self._grid.get_nodes()}
        self._online = set(self._registered)
        for client, node in list(self._nodes.items()):
            if node not in self._online:
                self._say(f"site {self.names[client]} is no longer connected")
                del self._nodes[client]
        self._greeting = {letter: each for letter, each in self._greeting.items() if each.expires > now}
        settled = {*self._nodes.values(), *self._claims, *(each.node for each in self._greeting.values())}
        new = [node for node in sorted(self._online - settled) if self._next_try.get(node, now) <= now]
        for node, letter in self._post("query.hello", {node: RecordDict() for node in new}).items():
            self._greeting[letter] = _Asked(node, now + self.rules.deadline + self.rules.grace)
        self._pull({})
        self._settle_claims()

    def _pull(self, waiting: Mapping[str, ClientId]) -> list[tuple[str, ClientId, Letter]]:
        """Return the replies that are waited for, in the order of their clients; deal with all others."""
        now = time.monotonic()
        self._late = {letter: each for letter, each in self._late.items() if each.expires > now}
        outstanding = [*self._late, *self._greeting, *waiting]
        found = list(self._grid.pull_messages(outstanding)) if outstanding else []
        expected: list[tuple[str, ClientId, Letter]] = []
        for reply in found:
            letter = reply.metadata.reply_to_message_id
            if letter in waiting:
                expected.append((letter, waiting[letter], reply))
            elif (greeted := self._greeting.pop(letter, None)) is not None:
                self._hear(greeted.node, reply)
            elif (late := self._late.pop(letter, None)) is not None:
                if not reply.has_error():
                    self._stray(late.late)
            else:
                self._stray("a reply came that nobody asked for")
        return sorted(expected, key=lambda each: each[1])

    def _stray(self, sentence: str) -> None:
        self.strays += 1
        self._say(f"refused: {sentence}")

    def _post(self, kind: str, contents: Mapping[int, RecordDict]) -> dict[int, str]:
        """Send letters and return their ids by node; a letter lives a little longer than it is waited for."""
        if not contents:
            return {}
        ttl = self.rules.deadline + self.rules.grace
        letters = [Letter(content, node, kind, ttl=ttl) for node, content in contents.items()]
        sent = list(self._grid.push_messages(letters))
        return {node: letter for node, letter in zip(contents, sent, strict=False) if letter}

    def _hear(self, node: int, reply: Letter) -> None:
        """Take a node's greeting: it is the site that it says, unless something speaks against it."""
        try:
            judged = _judged(reply)
            if isinstance(judged, Failure):
                raise RecordError(judged.reason)
            hello = Hello.unpack(judged.content)
            if hello.site not in self.names:
                raise RecordError(f"it says that it is site {hello.site!r}; there are {', '.join(self.names)}")
            if (registered := self._registered.get(node)) and registered != hello.site:
                raise RecordError(f"it says that it is site {hello.site}, and its key is registered for {registered}")
            if hello.fedgraft != __version__:
                raise RecordError(f"site {hello.site} has fedgraft {hello.fedgraft}, the server has {__version__}")
            if hello.settings != self._settings:
                raise RecordError(f"site {hello.site} runs with other settings than the server")
            client = self.names.index(hello.site)
            self._compare(client, hello)
        except RecordError as error:
            self._next_try[node] = time.monotonic() + self.rules.again
            self._complain(node, f"a node was not let in: {error}")
        else:
            self._claims[node] = client

    def _compare(self, client: ClientId, hello: Hello) -> None:
        """Insist that a site has data, and as much as when the run began."""
        for part, purpose in (("train", "to train on"), ("test", "to test its model on")):
            if getattr(hello, part) < 1:
                raise RecordError(f"site {hello.site} has nothing {purpose}")
        if hello.train > self.rules.max_samples:
            raise RecordError(
                f"site {hello.site} says that it has {hello.train} training samples, "
                f"above max_samples = {self.rules.max_samples}"
            )
        if hello.validation < 0 or (hello.validation and not self._validating):
            raise RecordError(f"site {hello.site} puts samples aside for validation, which was not agreed")
        if hello.holdings != (before := self.holdings.setdefault(client, hello.holdings)):
            raise RecordError(f"site {hello.site} has {hello.holdings}, and had {before} when the run began")

    def _settle_claims(self) -> None:
        """Let a node be the site that it says, once no other node is."""
        for node, client in list(self._claims.items()):
            if self.present.get(client) is not None and node in self._online:
                both = f"(node {self.present[client]}, not {node}; `fedgraft deploy nodes` shows their keys)"
                sentence = f"two nodes say that they are site {self.names[client]}; only the first is heard {both}"
                self._complain(node, sentence)
                continue
            del self._claims[node]
            if node in self._online:
                self._nodes[client] = node
                self._complaints.pop(node, None)
                self._say(f"site {self.names[client]} is there, with {self.holdings[client]}")

    def _complain(self, node: int, sentence: str) -> None:
        """Say what is wrong with a node, once."""
        if self._complaints.get(node) != sentence:
            self._complaints[node] = sentence
            self._say(sentence)


class FlowerEngine:
    """Trains and tests clients that are sites on other machines.

    All that the server holds of a client is the version of its state: the client keeps the state itself.
    """

    name: ClassVar[str] = "flower"

    def __init__(
        self, sites: Sites, method: Method, server: Server, run: str, say: Say, *, validation: bool = False
    ) -> None:
        self.sites, self.method, self.server, self.run = sites, method, server, run
        asked: list[Kind] = ["test", "validation"] if validation else ["test"]
        if server.spec.private:  # what a model can do tells of the samples that it was trained on
            asked = []
        self.sets = frozenset(asked)
        self.quorum = sites.rules.quorum
        self._versions: dict[ClientId, Version] = dict.fromkeys(range(len(sites.names)), BEGINNING)
        self._origins: dict[ClientId, str] = {}
        self._patience = (-1, 0.0)
        self._say = say
        self._turn = (-1, 0)
        self._asked: Collection[ClientId] = ()

    def train(self, round: int, messages: Mapping[ClientId, Message]) -> Mapping[ClientId, Outcome | Failure]:
        self._turn = (round, self._turn[1] + 1 if self._turn[0] == round else 0)
        stages = self.server.spec.pipeline
        limits = {client: stages.size(self._expected(client)) for client in messages}
        stage = stages.gathering
        if isinstance(stage, Secure) and self.method.sums() and messages:
            return self._securely(stage, messages, limits)
        return self._trained(messages, limits, {})

    def _trained(
        self,
        messages: Mapping[ClientId, Message],
        limits: Mapping[ClientId, int],
        beside: Mapping[ClientId, ConfigRecord],
    ) -> dict[ClientId, Outcome | Failure]:
        """Let clients train; ``beside`` the message there may be something else for them."""
        replies = self._ask("train", self._turn, messages, beside)
        return {
            client: reply if isinstance(reply, Failure) else self._read(client, reply, limits[client])
            for client, reply in replies.items()
        }

    def _securely(
        self, stage: Secure, messages: Mapping[ClientId, Message], limits: Mapping[ClientId, int]
    ) -> dict[ClientId, Outcome | Failure]:
        """Let clients train, and learn nothing but the mean of their replies."""
        number, wave = self._turn
        zeros = {name: torch.zeros(f.shape, dtype=f.dtype) for name, f in self._expected(min(messages)).items()}
        return SecureWave(
            stage,
            {client: weight(self.method, self.server.spec, self.sites.holdings[client].train) for client in messages},
            shapes_of(stage.encode(Message(**zeros), {}, {})),
            f"{self.run}/{number}/{wave}".encode(),
            lambda kind, facts: self._question(kind, self._turn, facts),
            lambda beside: self._trained({client: messages[client] for client in beside}, limits, beside),
        ).run()

    def _expected(self, client: ClientId) -> Mapping[str, Field]:
        return leaves(self.method, self.server, client)

    def _read(self, client: ClientId, reply: Letter, limit: int) -> Outcome | Failure:
        try:
            return records.outcome(reply.content, limit, self.sites.holdings[client].train)
        except RecordError as error:
            return Failure(f"the reply of site {self.sites.names[client]} {error}")

    def _scores(self, client: ClientId, reply: Letter) -> Scores:
        spec = self.server.spec
        return records.scores(reply.content, self.sites.holdings[client], spec.task, spec.metrics)

    def commit(self, accepted: Collection[ClientId]) -> None:
        number, wave = self._turn
        for client in accepted:
            self._versions[client] = (number + 1, wave)
            self._origins.pop(client, None)

    def snapshot(self) -> dict[ClientId, State]:
        """Return the version of each client's state, and of which earlier run it is, if it is not of this one."""
        found: dict[ClientId, State] = {}
        for client, version in self._versions.items():
            found[client] = {"version": torch.tensor(version)}
            if origin := self._origins.get(client):
                found[client]["origin"] = torch.frombuffer(bytearray.fromhex(origin), dtype=torch.uint8)
        return found

    def restore(self, clients: Mapping[ClientId, State]) -> None:
        for client, state in clients.items():
            number, wave = state["version"].tolist()
            self._versions[client] = (number, wave)
            self._origins.pop(client, None)
            if "origin" in state:
                self._origins[client] = bytes(state["origin"].tolist()).hex()

    def wait(self, count: int, round: int, reason: str) -> None:
        """Wait for sites to come back, as long as the rules have patience with a round."""
        rules = self.sites.rules
        if self._patience[0] != round:
            self._patience = (round, time.monotonic() + rules.patience)
        end = self._patience[1]
        if time.monotonic() > end:
            raise StoppedError(f"{reason}; started again, the run goes on after round {round}")
        self._say(f"{reason}; it is tried again")
        self.sites.gather(count, f"round {round + 1}", end)
        time.sleep(min(rules.again, max(0.0, end - time.monotonic())))

    def evaluate(self, round: int, messages: Mapping[ClientId, Message]) -> Mapping[ClientId, Scores]:
        """Test every client that is there; at least one has to answer, if only with figures that are refused."""
        end = time.monotonic() + self.sites.rules.patience
        while True:
            tested: dict[ClientId, Scores] = {}
            replies = self._ask("evaluate", (round, 0), messages)
            for client, reply in replies.items():
                try:
                    if isinstance(reply, Failure):
                        raise RecordError(reply.reason)
                    if self.sets:
                        tested[client] = self._scores(client, reply)
                except RecordError as error:
                    self._say(f"round {round + 1}: site {self.sites.names[client]} was not tested: {error}")
            if not all(isinstance(reply, Failure) for reply in replies.values()):
                return tested
            if time.monotonic() > end:
                raise StoppedError(f"round {round + 1}: no site could be tested")
            self.sites.gather(1, "the evaluation", end)
            time.sleep(self.sites.rules.pause)

    def observe(self) -> Mapping[str, Tensor]:
        """Return nothing: what is private stays at its site."""
        return {}

    def close(self) -> None:
        """End nothing: the grid is Flower's."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _ask(
        self,
        kind: str,
        turn: tuple[int, int],
        messages: Mapping[ClientId, Message],
        beside: Mapping[ClientId, ConfigRecord] = MappingProxyType({}),
    ) -> dict[ClientId, Letter | Failure]:
        """Send messages, with what there may be ``beside`` them."""
        contents = {}
        for client, message in messages.items():
            version, spec = self._versions[client], self.server.spec
            first = spec.initial(client) if spec.begun and version == BEGINNING else None
            origin = self._origins.get(client, "")
            contents[client] = Order(self._tag(client, turn), version, message, origin, first).pack()
            if client in beside:
                contents[client][RECORD] = beside[client]
        return self._answers(kind, turn, contents)

    def _question(
        self, kind: str, turn: tuple[int, int], facts: Mapping[ClientId, ConfigRecord]
    ) -> dict[ClientId, Letter | Failure]:
        """Ask sites something about a wave."""
        tags = {client: ConfigRecord(asdict(self._tag(client, turn))) for client in facts}
        contents = {client: RecordDict({"tag": tags[client], RECORD: each}) for client, each in facts.items()}
        return self._answers(kind, turn, contents)

    def _answers(
        self, kind: str, turn: tuple[int, int], contents: Mapping[ClientId, RecordDict]
    ) -> dict[ClientId, Letter | Failure]:
        """Send letters and take the replies that carry the tag of what was asked."""
        replies = self.sites.ask(kind, contents, f"round {turn[0] + 1}")
        return {
            client: reply if isinstance(reply, Failure) else _tagged(reply, self._tag(client, turn))
            for client, reply in sorted(replies.items())
        }

    def _tag(self, client: ClientId, turn: tuple[int, int]) -> Tag:
        return Tag(self.run, client, *turn)


def make(main: Callable[[Grid], None]) -> ServerApp:
    """Make the ServerApp that does ``main`` over its grid."""
    app = ServerApp()

    @app.main()
    def serve(grid: Grid, context: Context) -> None:
        main(grid)

    return app


def _judged(reply: Letter) -> Letter | Failure:
    """Return a reply, or what it says went wrong."""
    if not reply.has_error():
        return reply
    return Failure(f"the client failed: {plain(reply.error.reason or f'Flower reports code {reply.error.code}')}")


def _tagged(reply: Letter, expected: Tag) -> Letter | Failure:
    try:
        found = records.tag(reply.content)
    except RecordError as error:
        return Failure(f"the reply {error}")
    if found == expected:
        return reply
    if (found.run, found.client) != (expected.run, expected.client):
        return Failure(
            f"the reply is of client {found.client} of {'this' if found.run == expected.run else 'another'} run"
        )
    return Failure(f"the reply belongs to round {found.round + 1}, wave {found.wave + 1}")
