"""The client half on Flower: one message in, one reply out, and the private state kept on the site's own disk.

Flower starts a new process for every message, so everything is read anew each time and imports are kept few.
"""

import logging
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from flwr.app import Context, Error, Message, RecordDict
from flwr.clientapp import ClientApp as ClientApp
from torch import Tensor

from fedgraft.base.version import __version__
from fedgraft.core import exchange, streams
from fedgraft.core.client import ClientId
from fedgraft.core.exchange import Outcome
from fedgraft.core.method import weight
from fedgraft.core.model import Model
from fedgraft.core.secure import Secure, weighed
from fedgraft.core.stages import StageError
from fedgraft.data.digest import Fingerprint, fingerprint
from fedgraft.engines.flower.hiding import Hidden
from fedgraft.engines.flower.ledger import digest
from fedgraft.engines.flower.records import Hello, Order, RecordError, Tag, answer, report, tag
from fedgraft.engines.flower.site import BEGINNING, Memory, SiteError
from fedgraft.engines.states import first_states
from fedgraft.engines.workshop import Job, Purpose, Workshop, single_thread

log = logging.getLogger("fedgraft.site")
"""Its lines stand in the node's output, marked as ours; `fedgraft deploy site` shows them."""
FAILED = 1
"""The code of our own errors; Flower's differ, and nobody looks at them."""


@dataclass(frozen=True, eq=False)
class Branch:
    """A client at home: who it is, its data and tools, and where it keeps its state."""

    site: str
    client: ClientId
    workshop: Workshop
    state: Path
    settings: str

    def memory(self, tag: Tag) -> Memory:
        """Open the client's memory of a run, if the message is for this client and the data are still the run's."""
        if tag.client != self.client:
            raise SiteError(f"site {self.site} is client {self.client}, and the message is for client {tag.client}")
        memory = Memory(self.state, self.site, tag.run)
        memory.insist_on_data(self.fingerprint)
        return memory

    @property
    def fingerprint(self) -> Fingerprint:
        """Which data the site has now."""
        return fingerprint(self.workshop.data[self.client])

    def job(self, order: Order, memory: Memory, purpose: Purpose) -> Job:
        """Join what the server sent with the state that it knows of."""
        state = memory.recall(order.version, order.origin)
        if state is None:
            state = first_states(self.workshop.method, self.workshop.spec, [self.client])[self.client]
        return Job(purpose, self.client, order.tag.round, order.message, state)

    def begun(self, first: Tensor | None) -> "Branch":
        """Return a client that begins with these weights, if there are any, and not with those of the seed."""
        if first is None:
            return self
        spec = self.workshop.spec
        if first.shape != (spec.layout(self.client).size,):
            raise SiteError(f"site {self.site} is to begin with weights of another network than its own")
        begun = (first,) * len(spec.architectures)
        return replace(self, workshop=replace(self.workshop, spec=replace(spec, begun=begun)))

    def private(self, job: Job, order: Order, memory: Memory) -> Job:
        """Let a job draw its noise from the site's secret, if it trains privately and the budget has room for it.

        Another message, or another state, gives other noise: one and the same noise on two gradients would cancel out.
        """
        budget, privacy, tag = self.workshop.spec.budget, self.workshop.spec.client_privacy, order.tag
        shared = privacy is not None and privacy.sharing > 0
        if budget is None and not shared:
            return job
        # what is added up is another sum at each attempt of a wave: the same noise in two of them would cancel out
        attempt = Hidden(memory, tag).attempt if shared else ""
        asked = digest(f"{tag.round}/{tag.wave}{attempt}", job.message, job.state)
        steps = 1 if budget is None else max(int(shared or bool(budget.sums)), budget.steps[self.client])
        held = budget or privacy
        assert held is not None
        return replace(job, secret=memory.spend(asked, steps, steps * held.rounds[self.client]))


def make(branch: Callable[[Path], Branch]) -> ClientApp:
    """Make the ClientApp; ``branch`` reads the site's description, which the node's configuration names."""
    app = ClientApp()
    _speak()

    def handler(work: Callable[[Branch, Message], Message]) -> Callable[[Message, Context], Message]:
        def handle(message: Message, context: Context) -> Message:
            """Do the work; of a failure only its class, or a sentence of our own, leaves the site."""
            try:
                place = context.node_config.get("site")
                if not isinstance(place, str):
                    raise SiteError("the node was started without --node-config 'site=\"/path/of/its.toml\"'")
                with streams.untouched(), single_thread():
                    return work(branch(Path(place)), message)
            except (SiteError, RecordError) as error:
                log.error("%s", error)
                reason = str(error)
            except Exception as error:
                log.exception("this message failed")
                reason = f"it raised {type(error).__name__}; the site's own log says more"
            return Message(Error(FAILED, reason), reply_to=message)

        return handle

    app.query("hello")(handler(_hello))
    app.query("keys")(handler(_keys))
    app.query("shares")(handler(_shares))
    app.query("unmask")(handler(_unmask))
    app.train()(handler(_train))
    app.evaluate()(handler(_evaluate))
    return app


class _Marked(logging.Formatter):
    """Marks a line as ours, and says how bad it is, if it is."""

    def format(self, record: logging.LogRecord) -> str:
        level = f"{record.levelname.lower()}: " if record.levelno > logging.INFO else ""
        return f"fedgraft: {level}{super().format(record)}"


def _speak() -> None:
    """Let our own log be heard in this process, from INFO on, unless somebody has seen to that."""
    ours = logging.getLogger("fedgraft")
    if not ours.handlers:
        handler = logging.StreamHandler()
        handler.setFormatter(_Marked())
        ours.addHandler(handler)
        ours.setLevel(logging.INFO)


def _hello(branch: Branch, message: Message) -> Message:
    method = branch.workshop.method
    log.info("site %s takes part; what is sent with %s: %s", branch.site, method.name, method.sends)
    data = branch.workshop.data[branch.client]
    counts = len(data.train), len(data.validation), len(data.test)
    return Message(Hello(branch.site, *counts, __version__, branch.settings).pack(), reply_to=message)


def _train(branch: Branch, message: Message) -> Message:
    """Train, keep the new state, then reply: after a crash in between, the server asks for the state before."""
    order = Order.unpack(message.content)
    branch = branch.begun(order.first)
    memory = branch.memory(order.tag)
    with memory.alone():
        done = branch.workshop.perform(branch.private(branch.job(order, memory, "train"), order, memory))
        assert done.outcome is not None
        assert done.state is not None
        basis = BEGINNING if order.origin else order.version
        memory.keep((order.tag.round + 1, order.tag.wave), basis, done.state)
        outcome = _hidden(branch, memory, order.tag, done.outcome, message.content)
    sent = outcome.reply
    entries = ", ".join(f"{name} {list(tensor.shape)}" for name, tensor in sent.items()) or "nothing"
    log.info("%s: trained; what leaves: %s, %s bytes", _of(branch, order.tag), entries, f"{sent.nbytes:,}")
    samples = len(branch.workshop.data[branch.client].train)
    return Message(answer(order.tag, outcome, samples), reply_to=message)


def _hidden(branch: Branch, memory: Memory, tag: Tag, outcome: Outcome, content: RecordDict) -> Outcome:
    """Mask a reply where the run has secure aggregation: there, none leaves the site as it is."""
    method, spec = branch.workshop.method, branch.workshop.spec
    if not isinstance(spec.pipeline.gathering, Secure) or not outcome.reply:
        return outcome
    samples = len(branch.workshop.data[branch.client].train)
    try:
        part = weighed(outcome.reply, weight(method, spec, samples), spec.clients)
    except StageError as error:
        raise SiteError(f"the reply of site {branch.site} {error}") from None
    return replace(outcome, reply=Hidden(memory, tag).mask(part, content))


def _keys(branch: Branch, message: Message) -> Message:
    return _of_a_wave(branch, message, lambda hidden: hidden.advertise())


def _shares(branch: Branch, message: Message) -> Message:
    return _of_a_wave(branch, message, lambda hidden: hidden.share(message.content))


def _unmask(branch: Branch, message: Message) -> Message:
    return _of_a_wave(branch, message, lambda hidden: hidden.unmask(message.content))


def _of_a_wave(branch: Branch, message: Message, work: Callable[[Hidden], RecordDict]) -> Message:
    """Do a site's part of secure aggregation."""
    wave = tag(message.content)
    memory = branch.memory(wave)
    with memory.alone():
        return Message(work(Hidden(memory, wave)), reply_to=message)


def _evaluate(branch: Branch, message: Message) -> Message:
    order = Order.unpack(message.content)
    branch = branch.begun(order.first)
    memory = branch.memory(order.tag)
    job = branch.job(order, memory, "evaluate")
    done = branch.workshop.perform(job)
    assert done.scores is not None
    _keep_personal(branch, memory, job)
    last = order.tag.round + 1 == branch.workshop.spec.rounds
    log.info("%s%s: the site's own model was tested", "done: " if last else "", _of(branch, order.tag))
    spec, scores = branch.workshop.spec, done.scores
    if not spec.private:
        return Message(report(order.tag, scores, spec.metrics), reply_to=message)
    for point, score in (scores.test or {}).items():
        found = score.value(spec.metrics[0])
        log.warning("site %s, %s model: %s %.4g; it stays here", branch.site, point, spec.metrics[0].name, found)
    return Message(report(order.tag, None, spec.metrics), reply_to=message)


def _of(branch: Branch, tag: Tag) -> str:
    return f"round {tag.round + 1}/{branch.workshop.spec.rounds}"


def _keep_personal(branch: Branch, memory: Memory, job: Job) -> None:
    """Leave the client's own network at the site, as the method's paper measures it."""
    method = branch.workshop.method
    client = branch.workshop.client(job.client, job.state, job.round, "evaluate")
    exchange.contact(method, client)
    message = client.spec.pipeline.decode("down", job.message, {})
    own = method.personal(client, message, client.own if method.headline == "trained" else None)
    if isinstance(own, Model):
        network = client.architecture
        facts = {"method": method.name, "point": method.headline, "round": str(job.round + 1), "model": network.name}
        facts |= {"input": ",".join(map(str, network.example.shape[1:])), "outputs": str(network.outputs)}
        memory.keep_personal(own.module.state_dict(), **facts)
