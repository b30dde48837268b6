"""A run on Flower: the server half and the client half start from the same charter.

The server has no data: how many samples a site trains on it knows from the site's greeting. Everything else is as on
one machine: the loop, the checkpoints, the results.
"""

import json
import logging
import re
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path

import numpy as np
import torch

from fedgraft.base import disk
from fedgraft.base.errors import UserError
from fedgraft.base.foreign import one_line
from fedgraft.core.method import Method, Server
from fedgraft.core.release import leaves
from fedgraft.core.rounds import Round
from fedgraft.core.samples import ClientData
from fedgraft.core.settings import TASKS
from fedgraft.core.task import Task
from fedgraft.data.datasets.formats import Array
from fedgraft.data.federation import OWN, Site, prepare, site_data
from fedgraft.data.sources import read_own
from fedgraft.data.sources.fitted import Fitted
from fedgraft.deploy import code
from fedgraft.deploy.charter import Charter, read
from fedgraft.engines.flower import client, server
from fedgraft.engines.flower.client import Branch, ClientApp
from fedgraft.engines.flower.ledger import ServerSecrets
from fedgraft.engines.flower.records import Holdings
from fedgraft.engines.flower.server import FlowerEngine, Grid, Rules, ServerApp, Sites, StoppedError
from fedgraft.engines.flower.site import Description, SiteError, describe
from fedgraft.engines.workshop import Workshop
from fedgraft.methods import METHODS
from fedgraft.runs import directory, results, warmstart
from fedgraft.runs.conducting import conduct
from fedgraft.runs.config import RunConfig
from fedgraft.runs.population import reading
from fedgraft.runs.run import Run, plan
from fedgraft.runs.warmstart import Beginning, Start

log = logging.getLogger("fedgraft.federation")
FILE = "charter.toml"


def server_app(beside: str | Path) -> ServerApp:
    """Make the ServerApp of the federation that is described beside the given file."""
    charter = read(Path(beside).with_name(FILE))
    return server.make(lambda grid: _serve(grid, charter))


def client_app(beside: str | Path) -> ClientApp:
    """Make the ClientApp of the federation that is described beside the given file."""
    charter = read(Path(beside).with_name(FILE))
    return client.make(lambda place: branch(charter, place))


# ---- the client half


def branch(charter: Charter, place: Path) -> Branch:
    """Read a site's description and data, and set its client up."""
    described = describe(place)
    if described.name not in charter.sites:
        raise SiteError(f"this federation has no site {described.name!r}; it has {', '.join(charter.sites)}")
    _insist_on_code(charter, described)
    number = charter.sites.index(described.name)
    learned = TASKS.split(charter.located(charter.data.task))[0]
    with in_charters_words():
        held = read_own(
            described.data, reading(charter.run), learned, charter.run.drawn_by, charter.data.preparation,
            described.name,
        )  # fmt: skip
    data = _data(charter, held, number)
    samples = tuple(len(data.train) if each == number else 0 for each in range(len(charter.sites)))
    run = planned(charter, samples)
    device = torch.device(described.device)
    workshop = Workshop(run.method, run.spec, {number: data}, device)
    return Branch(described.name, number, workshop, described.state, charter.fingerprint)


@contextmanager
def in_charters_words() -> Iterator[None]:
    """Let sentences about data name a setting as a charter has it, and not as a flag that nobody here types."""
    try:
        yield
    except UserError as error:
        kind = SiteError if isinstance(error, SiteError) else UserError
        raise kind(re.sub(r"--([a-z][a-z-]+)", _in_charter, str(error))) from None


def _in_charter(flag: re.Match[str]) -> str:
    name = flag[1].replace("-", "_")
    if name not in RunConfig.model_fields:
        return flag[0]
    return f"`{name}` under [{'data' if name == 'task' else 'run'}] in {FILE}"


def _insist_on_code(charter: Charter, site: Description) -> None:
    """Refuse to run code that is not fedgraft's, unless it is what was agreed on and the site's own file says so."""
    try:
        files = charter.files
    except UserError as error:
        raise SiteError(str(error)) from None
    if refused := {name: charter.code[name] for name in files if site.code.get(name) != charter.code[name]}:
        lines = ", ".join(f'"{name}" = "{known}"' for name, known in refused.items())
        raise SiteError(
            f"site {site.name} has not agreed to run code that is not fedgraft's: whoever answers for the site reads "
            f"{', '.join(refused)}, and puts under [code] in the site's description: {lines}"
        )
    if files:
        log.info("this federation runs code that is not fedgraft's, as agreed: %s", code.told(charter.code))


def _data(charter: Charter, site: Site, number: int) -> ClientData:
    """Prepare a site's samples, if they are what the charter says."""
    told = charter.located(charter.data.task)
    learned = TASKS.split(told)[0]
    held = site.arrays(number, learned)
    kind = {"u": "pixels", "f": "features"}.get(held["x_train"].dtype.kind, "tokens")
    shape = held["x_train"].shape[1:]
    if kind == "pixels" and len(shape) == 2 < len(charter.data.shape):
        shape = (*shape, 1)
    agreed = charter.data.shape if len(charter.data.shape) == len(shape) else (*charter.data.shape, 1)
    if kind != charter.data.kind or shape != agreed:
        found = f"{kind} of {list(shape)}"
        raise SiteError(f"its samples are {found}, the federation's {charter.data.kind} of {list(charter.data.shape)}")
    task: Task = TASKS.make(told)
    for key in (key for key in held if key.startswith("y")):
        try:
            task.fits(held[key], key)
        except UserError as error:
            raise SiteError(str(error)) from None
    if site.x_val is not None and charter.run.validation == 0:
        log.info("validation = 0: this federation has no validation samples, and x_val is not used")
        site = replace(site, x_val=None, y_val=None)
    run = charter.run
    preparation = prepare(charter.data.mean, charter.data.std, augment=run.augment)
    return site_data(
        site, number, seed=run.drawn_by, validation=run.validation, preparation=preparation, resize=run.resize,
        task=learned,
    )  # fmt: skip


# ---- what both halves know


@dataclass(frozen=True, eq=False)
class Described:
    """A federation of which only the charter is known, and how many samples each site has."""

    charter: Charter
    samples: tuple[int, ...]
    partition: str = OWN
    notes: tuple[str, ...] = ()
    fingerprints: None = None
    """The data lie at the sites, and so do their fingerprints."""

    @property
    def name(self) -> str:
        return self.charter.data.name

    @property
    def names(self) -> tuple[str, ...]:
        return self.charter.sites

    @property
    def fitted(self) -> Fitted | None:
        return self.charter.data.preparation

    @property
    def task(self) -> Task:
        return TASKS.make(self.charter.located(self.charter.data.task))  # type: ignore[no-any-return]

    @property
    def example(self) -> torch.Tensor:
        """Two prepared samples of noise: enough to see what a network is fed, the same everywhere."""
        shape, noise = (2, *self.charter.data.shape), np.random.default_rng(0)
        match self.charter.data.kind:
            case "pixels":
                x: Array = noise.integers(0, 256, shape, np.uint8)
            case "features":
                x = noise.standard_normal(shape, np.float32)
            case "tokens":
                x = np.zeros(shape, np.int64)
        y = np.zeros(2, np.int64)
        made = prepare(self.charter.data.mean, self.charter.data.std)
        return site_data(Site(x, y, x, y), 0, preparation=made, resize=self.charter.run.resize).train.batch(slice(2))[0]

    @property
    def input_shape(self) -> tuple[int, ...]:
        return tuple(self.example.shape[1:])

    def __len__(self) -> int:
        return len(self.samples)

    def counts(self) -> None:
        """Who holds which classes is nobody's business but the site's."""
        return


def planned(charter: Charter, samples: tuple[int, ...], start: Callable[[Beginning], Start] | None = None) -> Run:
    """Plan the run as both halves do, and say what does not fit; ``samples`` are the training samples of each site.

    What it begins with that an earlier run left, the server alone knows: it gives ``start``.
    """
    config = charter.local
    made, described = METHODS.make(config.method, **config.params), Described(charter, samples)
    run = plan(made, described, config, None, given=True, start=start)
    run.config = charter.shared(run.config)
    return run


# ---- the server half


def beginning(charter: Charter, home: Path = Path()) -> Callable[[Beginning], Start] | None:
    """Say how to find what the federation begins with, if an earlier run left it; ``home`` is the server's folder."""
    if (earlier := charter.run.start_from) is None:
        return None
    begun = home / Path(charter.directory).expanduser()
    if (begun / directory.START).exists():
        return lambda _: warmstart.read(begun)
    return lambda who: replace(who, at_sites=True).of(home / Path(earlier).expanduser())


def say(sentence: str) -> None:
    """Tell the operator: Flower keeps what the server half prints, and shows it with `flwr log`, a line at a time."""
    sentence = one_line(sentence)
    print(f"fedgraft: {sentence}", flush=True)
    log.info("%s", sentence)


def _serve(grid: Grid, charter: Charter) -> None:
    try:
        serve(grid, charter)
    except StoppedError as error:
        say(f"paused: {error}")
        raise
    except UserError as error:
        say(f"stopped: {error}")
        raise


def serve(grid: Grid, charter: Charter, rules: Rules | None = None) -> Run:
    """Do the federation's run, or go on with it, in its directory."""
    told = charter.rules
    rules = rules or Rules(charter.quorum, told.deadline, told.patience, max_samples=told.max_samples)
    place = Path(charter.directory).expanduser()
    begun = (place / "federation.json").exists()
    if (place / "result.json").exists():
        raise UserError(f"the run in {place} is complete; name another directory in {FILE}")
    if not begun:
        directory.fresh(place)
    with disk.locked(place):
        identity, held = _recorded(place, charter) if begun else (uuid.uuid4().hex, [])
        validating = charter.run.validation > 0
        sites = Sites(grid, charter.sites, charter.fingerprint, rules, say, held, validating=validating)
        wanted = charter.quorum if begun else len(charter.sites)
        sites.gather(wanted, "going on with the run" if begun else "the start")
        held = [sites.holdings[each] for each in range(len(charter.sites))]
        run = planned(charter, tuple(each.train for each in held), beginning(charter))
        run.directory = place
        if not begun:
            _begin(run, place, identity, charter, held)
        else:
            run.notes += run.identity.insist(place, tuple(charter.sites))
        if charter.code:
            run.notes.append(f"this federation runs code that is not fedgraft's: {code.told(charter.code)}")
        return conduct(run, [Lines(sites, begun)], partial(_hosted, sites, identity), begun=begun)


def _hosted(sites: Sites, identity: str, run: Run) -> FlowerEngine:
    assert run.server is not None
    privacy = run.spec.client_privacy
    if privacy is not None and not privacy.sharing:
        assert run.directory is not None
        run.server.secrets = ServerSecrets(run.directory, identity, run.spec.rounds)
    return FlowerEngine(sites, run.method, run.server, identity, say, validation=run.config.validation > 0)


def _begin(run: Run, place: Path, identity: str, charter: Charter, held: Sequence[Holdings]) -> None:
    """Write down what the run is, before its first round."""
    if run.start is not None:
        run.start.write(place)
    run.identity.write(place)
    disk.write(place / FILE, charter.text().encode())
    directory.write_config(place, run.config)
    facts = {"run": identity, "sites": charter.sites, "samples": [asdict(each) for each in held]}
    results.write_json(place / "federation.json", {**facts, "settings": charter.fingerprint})


def _recorded(place: Path, charter: Charter) -> tuple[str, list[Holdings]]:
    """Read who the run is and how many samples each site had, if it is the charter's run."""
    try:
        facts = json.loads((place / "federation.json").read_bytes())
        identity, settings = str(facts["run"]), facts["settings"]
        held = [Holdings(**{name: int(count) for name, count in each.items()}) for each in facts["samples"]]
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        raise UserError(
            f"{place / 'federation.json'} is damaged, or of another version; name another directory in {FILE}"
        ) from None
    if settings != charter.fingerprint or len(held) != len(charter.sites):
        raise UserError(f"the run in {place} was begun with other settings or sites; name another directory in {FILE}")
    return identity, held


def largest_reply(charter: Charter) -> int:
    """How many bytes a site's reply may have; a method may send a part of the network now and all of it later."""
    run = planned(charter, (1,) * len(charter.sites))
    state = run.method.setup(run.spec)
    replies = (run.spec.pipeline.size(leaves(run.method, state, each)) for each in range(run.spec.clients))
    networks = (run.spec.layout(each).size * run.spec.layout(each).dtype.itemsize for each in range(run.spec.clients))
    return max(*replies, *networks)


def privacy_of(server: Server) -> str:
    """Say what is done to what leaves a site."""
    privacy = server.spec.client_privacy
    if server.spec.budget is not None or (privacy is not None and privacy.sharing):
        return "noised at the site"
    return "clipped at the site and noised at the server, which is trusted with it"


def leaving(method: Method, server: Server) -> str:
    """Say what leaves a site with this method."""
    expected = [leaves(method, server, each) for each in range(server.spec.clients)]
    sizes = sorted({server.spec.pipeline.size(fields) for fields in expected})
    fields = {f"{name} {list(field.shape)}" for each in expected for name, field in each.items()}
    span = f"{sizes[0]:,}" if len(sizes) == 1 else f"{sizes[0]:,} to {sizes[-1]:,}"
    if server.spec.private:
        noised = privacy_of(server)
        return (
            f"what is sent with {method.name}, {noised}: {method.sends}. In a round {span} bytes leave "
            f"a site ({', '.join(sorted(fields)) or 'nothing'}), with its steps and seconds, no loss and no test "
            "figures; once, its name and how many samples it has"
        )
    return (
        f"what is sent with {method.name}: {method.sends}. In a round {span} bytes leave a site "
        f"({', '.join(sorted(fields)) or 'nothing'}), with its loss, steps and seconds; after a round, how many test "
        "samples its model got right, of how many, for how many it gave no number, and the loss; once, its name and "
        "how many samples it has"
    )


@dataclass(frozen=True)
class Lines:
    """Tells the operator how the run goes, a line a round."""

    sites: Sites
    begun: bool = False
    """Whether the run goes on after earlier rounds."""

    def begin(self, run: Run) -> None:
        after = [f"the run goes on after round {len(run.records)}"] if self.begun else []
        crosses = leaving(run.method, run.method.setup(run.spec))
        for sentence in (*run.notes, *after, *run.method.caveats(), crosses):
            say(sentence)
        many = f"{_count(run.config.rounds, 'round')}, {_count(run.spec.clients, 'site')}"
        say(f"{run.method.name}, {many}, in {run.directory}")

    def round(self, run: Run, this: Round) -> None:
        for refusal in this.refused:
            name = self.sites.names[refusal.client] if refusal.client < len(self.sites.names) else "?"
            say(f"refused: site {name}: {refusal.reason}")
        metric = run.metrics[0]
        figures = f", {metric.title}" if this.test else ""
        for point, summary in this.test.items():
            figures += f" {point} {metric.shown(summary.mean)}{metric.unit}"
        say(f"round {this.number + 1}/{run.config.rounds}: loss {this.loss:.3f}{figures}, {this.seconds:.1f} s")

    def end(self, run: Run) -> None:
        late = f"; late, or from nobody known: {_count(self.sites.strays, 'answer')}" if self.sites.strays else ""
        say(f"done: {_count(run.result['refused'], 'refusal')}{late}; the result is in {run.directory}")


def _count(number: int, word: str) -> str:
    return f"{number} {word}{'' if number == 1 else 's'}"
