"""Run a method on a federation: from Python, and from the command line through the same door."""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from rich.console import RenderableType
from rich.text import Text
from torch import nn

from fedgraft.base import characters, disk
from fedgraft.base.errors import UserError
from fedgraft.core import privacy
from fedgraft.core.client import Predictor
from fedgraft.core.engine import Engine
from fedgraft.core.evaluation import POINTS, Point
from fedgraft.core.growth import insist_on_room
from fedgraft.core.method import Method, Server, Spec
from fedgraft.core.state import State
from fedgraft.data.federation import Federation
from fedgraft.engines import devices
from fedgraft.engines.workshop import single_thread
from fedgraft.methods import METHODS
from fedgraft.runs import (
    archive,
    checkpoint,
    directory,
    hosting,
    identity,
    names,
    personal,
    population,
    results,
    unseen,
)
from fedgraft.runs.conducting import Watcher, conduct, everybodys_states, taking_part
from fedgraft.runs.config import MACHINE, RunConfig, configure, participation_range
from fedgraft.runs.config import read as read_settings
from fedgraft.runs.frame import Frame
from fedgraft.runs.hosting import Seats
from fedgraft.runs.identity import Identity
from fedgraft.runs.metric import MetricInfo
from fedgraft.runs.personal import PersonalModels
from fedgraft.runs.population import Model, Population
from fedgraft.runs.resultfile import Result
from fedgraft.runs.warmstart import Beginning, Start
from fedgraft.runs.warmstart import read as read_start

if TYPE_CHECKING:
    from fedgraft.runs.comparison import Comparison


@dataclass
class Run:
    """A run and, when it is over, its result."""

    method: Method
    federation: Population
    config: RunConfig
    spec: Spec
    directory: Path | None = None
    records: Sequence[dict[str, Any]] = field(default_factory=list)
    result: dict[str, Any] = field(default_factory=dict)
    server: Server | None = None
    notes: list[str] = field(default_factory=list)
    observed: dict[str, torch.Tensor] = field(default_factory=dict)
    start: Start | None = None
    """What an earlier run left for this one to begin with, if it does."""
    places: tuple[str, ...] = ()
    """The device of each of its workers, where its clients are on this machine."""
    damage: str = ""
    """What is wrong with the checkpoint of its last round, if it is there and cannot be read."""
    _states: Mapping[int, State] = field(default_factory=dict)

    @property
    def label(self) -> str:
        """The method, with the hyper-parameters that are not its defaults, unless tuning chose them."""
        return names.label(self.method, self.config.tuned)

    @property
    def metrics(self) -> tuple[MetricInfo, ...]:
        """Its metrics; the first is the leading one."""
        return tuple(MetricInfo.of(metric) for metric in self.spec.metrics)

    @cached_property
    def identity(self) -> Identity:
        """What makes it this run: its settings and its data."""
        start = None if self.start is None else self.start.digest
        return Identity.of(self.config, self.federation, self.metrics, start)

    def __repr__(self) -> str:
        config = self.config
        what = f"{self.method.name} on {config.dataset}, {self.spec.clients} clients, {config.partition}"
        if not self.result:
            return f"Run({what}, seed {config.seed}: not finished)"
        facts = self.facts
        metric = facts.leading
        last = {point: facts.last.figures(point, metric.name) for point in POINTS}
        means = [
            f"{point} {metric.shown(found.mean)}{metric.unit}"
            for point, found in last.items()
            if found is not None and found.mean is not None
        ]
        told = f"client mean of {metric.title} {', '.join(means) or 'unknown'}"
        return f"Run({what}, {config.rounds} rounds, seed {config.seed}: {told})"

    def __str__(self) -> str:
        return characters.as_text(self._picture()) if self.result else repr(self)

    def _repr_html_(self) -> str:
        return characters.as_html(self._picture() if self.result else Text(repr(self)))

    def _picture(self) -> RenderableType:
        from fedgraft.terminal import run_table

        return run_table(self)

    def module(self, client: int | str, point: Point = "trained") -> nn.Module:
        """A client's own model, by its number or its site's name, ready for use: prepared inputs in, outputs out.

        ``trained`` is as its last training left it, ``received`` as the server's last message makes it. Where a
        method's personal model is more than a network (a nearest prototype, a shifted feature), the module wraps it.
        """
        return self._models.module(personal.numbered(self.spec, client), point)

    def predictor(self, client: int | str, point: Point = "trained") -> Predictor:
        """The same model as a callable, which computes as the run's own tests did."""
        return self._models.predictor(personal.numbered(self.spec, client), point)

    @property
    def _models(self) -> PersonalModels:
        if not isinstance(self.federation, Federation):
            raise UserError("the models of a federation's sites stay with them: see `fedgraft deploy model`")
        if self.server is None or not self._states:
            raise UserError(
                self.without_models
                if self.result
                else f"the run of {self.method.name} is not finished: it has no models yet"
            )
        return PersonalModels(self.method, self.spec, self.server, self._states, self.federation.clients)

    @property
    def without_models(self) -> str:
        """Why a finished run has no models, where it has none, and what can be done."""
        if self.damage:
            again = f"without its {results.RESULT}, `fedgraft resume {self.directory}` makes them again"
            return f"{self.damage}, so its models are lost: {again}"
        return (
            f"the run in {self.directory} kept no checkpoint of its last round (checkpoint_every = "
            f"{self.config.checkpoint_every}), so its models are gone: run it again with --checkpoint-every auto"
        )

    @property
    def facts(self) -> Result:
        """The result with types; ``result`` is the same as result.json has it."""
        if not self.result:
            raise UserError(f"the run of {self.method.name} is not finished: there is no result yet")
        return Result.model_validate(self.result)

    def report(self, path: str | Path, metric: str | None = None) -> Path:
        """Write the run's report, one HTML file that opens from disk."""
        return self._alone.report(path, metric=metric)

    def frame(self) -> Frame:
        """Every figure of the run, one in a row: a DataFrame where pandas is installed, else a list of dicts.

        The columns are those of :meth:`fedgraft.Comparison.frame`.
        """
        return self._alone.frame()

    @property
    def _alone(self) -> "Comparison[Run]":
        from fedgraft.runs.comparison import Comparison  # statistics come with it, and a site needs none

        return Comparison(self.config, {self.label: [self]})

    @property
    def value(self) -> float:
        """The method's headline: the leading metric, pooled, of the last round, at the point where its paper measures.

        NaN, if no client's model could ever be tested, or if the metric cannot be pooled where the clients are.
        """
        facts = self.facts
        last = facts.last.figures(facts.headline, facts.leading.name)
        return math.nan if last is None or last.pooled is None else last.pooled


def run(
    method: Method | str,
    federation: Federation | None = None,
    *,
    model: Model | str | None = None,
    out: str | Path | None = None,
    watchers: Iterable[Watcher] = (),
    config: RunConfig | None = None,
    recipe: str | None = None,
    progress: bool | None = None,
    **settings: Any,
) -> Run:
    """Run a method on a federation.

    Args:
        method: an object, a name, or a text with settings (``"fedapa:mu=0.3"``).
        federation: the clients and their data. Without one it is made as the settings say; with one, settings of the
            data have to be those that it was made with.
        model: a name, a module (its weights are the initial weights of all clients) or a function that builds one.
        out: the directory that the run writes, with settings, results and checkpoints.
        watchers: objects that are called after every round, such as trackers.
        config: settings as an object, which ``settings`` override.
        recipe: a paper's settings by name, which everything else overrides.
        progress: whether to show progress and, at the end, its table (default: in a terminal and in a notebook).
        **settings: those of a configuration file, such as ``rounds=50, lr=0.01, participation="0.6..1", workers=2``.

    Returns:
        The finished run, with its result and every client's own model.
    """
    from fedgraft.terminal import run_table, watched

    if isinstance(model, str):
        settings["model"], model = model, None
    named: dict[str, Any] = {}
    if isinstance(method, str):
        named["method"], params = METHODS.read(method)
        named |= {"params": params} if params else {}
    elif "params" in settings:
        raise UserError(f"params are for a method given by its name; {method.name} is an object and has its own")
    config = configure(config or {}, named, settings, recipe_name=recipe)
    if isinstance(method, str):
        method = METHODS.make(config.method, **config.params)
    if federation is not None:
        population.insist_on_agreement(config, federation)
    given = federation is not None
    planned = plan(method, federation or population.federation(config), config, model, given=given)
    place = None if out is None else Path(out)
    done = watched(lambda display: start(planned, place, [*watchers, *display]), run_table, progress=progress)
    return insist_on_replies(done)


def start(run: Run, out: Path | None, watchers: Iterable[Watcher]) -> Run:
    """Carry a planned run out, in a fresh directory if one is wanted."""
    _follow(run)
    if out is None:
        return conduct(run, list(watchers), _here)
    directory.as_toml(run.config.model_dump())  # what cannot be written is refused before anything is
    run.directory = directory.fresh(out)
    with disk.locked(run.directory):
        directory.sweep(run.directory)
        run.identity.write(run.directory)
        if run.federation.fitted is not None:
            directory.write_preparation(run.directory, run.federation.fitted)
        if run.start is not None:
            run.start.write(run.directory)
        directory.write_config(run.directory, run.config)
        return _noted(conduct(run, list(watchers), _here))


def resume(
    place: str | Path,
    federation: Federation | None = None,
    *,
    method: Method | None = None,
    model: Model | None = None,
    watchers: Iterable[Watcher] = (),
    **changes: Any,
) -> Run:
    """Continue an interrupted run from its newest complete checkpoint, with bit-identical results.

    Args:
        place: the run's directory.
        federation: as it was given to the run, if no configuration can name it.
        method: likewise.
        model: likewise.
        watchers: objects that are called after every round.
        **changes: settings of the machine, not of the run: ``workers``, ``device``, ``checkpoint_every``, ...

    Returns:
        The finished run.
    """
    place = Path(place)
    if surplus := set(changes) - MACHINE:
        raise UserError(f"resuming cannot change {', '.join(sorted(surplus))}: it would be another run")
    if (place / results.RESULT).exists():
        written = read_settings(place / "config.toml")
        identity.result_of(place, written, configure(written))
        raise UserError(f"the run in {place} is complete; there is nothing to resume")
    run = _planned_again(place, federation, method, model, changes)
    return insist_on_replies(go_on(run, place, watchers))


def load(
    place: str | Path,
    federation: Federation | None = None,
    *,
    method: Method | None = None,
    model: Model | None = None,
) -> Run:
    """Open a finished run, alone or in a comparison, with every client's own model.

    Args:
        place: the run's directory. Its data have to be where they were: some methods adapt a model on them.
        federation: as it was given to the run, if no configuration can name it.
        method: likewise.
        model: likewise.

    Returns:
        The run, as :func:`run` returned it.
    """
    place = Path(place)
    if (place / "config.toml").exists() and not (place / results.RESULT).exists():
        raise UserError(f"the run in {place} has not finished: `fedgraft resume` continues it")
    return finished(_planned_again(place, federation, method, model, {}), place)


def _planned_again(
    place: Path,
    federation: Federation | None,
    method: Method | None,
    model: Model | None,
    changes: Mapping[str, Any],
) -> Run:
    """Plan the run of a directory as it was planned before, with the same settings on the same data."""
    if not (place / "config.toml").exists():
        if (place / directory.RACE).exists():
            final = place / directory.FINAL
            raise UserError(f"{place} is that of a recommendation: the finalists' runs are below {final}")
        if runs := sorted(each.parent.name for each in place.glob("*/config.toml")):
            raise UserError(
                f"{place} holds several runs: name one of them, such as {place / runs[0]}; `fedgraft resume`, or "
                "fedgraft.compare as before, goes on with an interrupted comparison"
            )
        raise UserError(f"{place} holds no run: there is no config.toml in it")
    if (place / "federation.json").exists():
        raise UserError(
            f"the run in {place} is that of a federation: it goes on when its Flower app is started again, and its "
            "models are at its sites"
        )
    written = read_settings(place / "config.toml")
    identity.insist_on_settings(place, written)
    config = configure(written, changes)
    if federation is not None:
        population.insist_on_agreement(config, federation)
    if model is None and config.model == "custom":
        raise UserError(f"the run in {place} had a model of your own, given from Python: give it again as model=")
    made = _found_again(config, place) if method is None else method
    begun = (lambda _: read_start(place)) if (place / directory.START).exists() else None
    run = plan(made, federation or population.federation(config, place), config, model, start=begun)
    if method is not None and config.method.endswith(f":{type(method).__qualname__}"):  # its file may have moved
        run.config = run.config.model_copy(update={"method": config.method})
    return run


def insist_on_replies(run: Run) -> Run:
    """Refuse to pass off as a success, when all is written, that the server took no reply in any round."""
    if not results.unheard([record["accepted"] for record in run.records]):
        return run
    reasons = [refusal["reason"] for record in run.records for refusal in record["refused"]]
    first = f" (the first: {reasons[0]})" if reasons else ""
    where = "" if run.directory is None else f"; the result is in {run.directory}"
    raise UserError(f"the server took no reply in any round{first}, so nobody learned anything from others{where}")


def _found_again(config: RunConfig, place: Path) -> Method:
    """Make the method that the configuration of an interrupted run names."""
    try:
        METHODS.insist(config.method)
    except UserError:
        raise UserError(
            f"the run in {place} had a method of your own, {config.method!r}, that cannot be found again from here; "
            "give it as method="
        ) from None
    return METHODS.make(config.method, **config.params)


def go_on(run: Run, place: Path, watchers: Iterable[Watcher]) -> Run:
    """Carry a planned run on from the newest whole checkpoint in ``place``."""
    _follow(run)
    run.directory = place
    run.notes += run.identity.insist(place, _everybody(run))
    with disk.locked(place):
        return _noted(conduct(run, list(watchers), _here, begun=True))


def _noted(run: Run) -> Run:
    """Let a run that has ended be found again."""
    assert run.directory is not None
    archive.note(run.directory, run.config, run.identity, run.federation.names, run.result["refused"])
    return run


def found_again(run: Run, place: Path) -> Run | None:
    """Fill a planned run with what a finished one with the same bits left elsewhere, copied to ``place``."""
    found = archive.find(place, run.config, run.identity, run.federation.names)
    if found is None:
        return None
    archive.copy(found, place, run.config, run.federation.fitted)
    return finished(run, place)


def _everybody(run: Run) -> tuple[str, ...]:
    fed = run.federation
    return (*fed.names, *(name for name, _ in fed.unseen)) if isinstance(fed, Federation) else fed.names


def finished(run: Run, place: Path) -> Run:
    """Fill a planned run with what it left in ``place`` when it was complete."""
    run.identity.insist(place, _everybody(run))
    run.directory, run.result = place, results.read_result(place, run.config).model_dump(exclude_unset=True)
    run.records = run.result["rounds"]
    if run.result.get("digest") != run.identity.digest:
        raise UserError(f"{place / 'result.json'} is not that of the run in {place}: it has another digest")
    run.observed = results.read_observations(place / "observed.safetensors", run.spec.rounds)
    last, run.damage = checkpoint.read_last(place / "checkpoints", run.spec.rounds)
    if last is not None:
        run.server = Server(run.spec, **last.server)
        run.server.round = last.round
        run._states = everybodys_states(run, last.clients)
    return run


def plan(
    method: Method,
    federation: Population,
    config: RunConfig,
    model: Model | None,
    *,
    given: bool = False,
    start: Callable[[Beginning], Start] | None = None,
) -> Run:
    """Check that everything fits before anything is written or trained; ``given``: the federation is the caller's.

    ``start`` gives what the run begins with, if that is not to be taken from where the configuration says.
    """
    devices.there(config.device)
    federation = population.held_out(config, federation)
    if isinstance(federation, Federation):
        hosting.insist_on_engine(config)
    architectures, assignment, name = population.architectures(config, federation, model)
    spec = Spec(
        samples=federation.samples, architectures=architectures, assignment=assignment,
        task=federation.task, rounds=config.rounds, seed=config.seed,
        settings=config.training,
        share=sum(participation_range(config.participation)) / 2,
        names=federation.names,
        metrics=federation.task.judges(config.metrics),
    )  # fmt: skip
    if method.needs_classes and not spec.task.has_classes:
        raise UserError(f"{method.name} works with classes (prototypes, label counts), which {spec.task.name} has not")
    for architecture in architectures:
        architecture.insist_on_batches(config.training.batch_size)
        spec.task.insist_on(architecture.outputs)
    insist_on_room(method, spec)
    begun = _begun(config, federation, Beginning(method, spec, name), start)
    if begun is not None:
        spec = replace(spec, begun=begun.initial)
    if config.training.private:
        spec = replace(spec, budget=privacy.planned(method, spec, taking_part(config)))
    if config.training.client_private:
        spec = replace(spec, client_privacy=privacy.planned_for_clients(method, spec, taking_part(config)))
    if isinstance(federation, Federation):
        unseen.insist(method, federation, spec)
        hosting.insist_on_together(config, method, spec, federation)
    server = method.setup(spec)  # and let it go: a method that cannot work here says so now
    population.insist_on_stages(method, server)
    known = {"method": METHODS.named(method), "params": method.parameters(), "model": name}
    told = population.settled(config, federation, given=given).model_copy(update=known)
    notes = [*(begun.notes if begun else ()), *federation.notes]
    if kept := sorted({name for architecture in architectures for name in architecture.state}):
        notes.append(
            f"the model keeps state of its own in Python ({', '.join(kept)}): every client's training and every test "
            "begins with a fresh module, and that state is lost at its end"
        )
    seats = hosting.seated(config, method, spec, federation) if isinstance(federation, Federation) else Seats(())
    notes += seats.notes
    return Run(method, federation, told, spec, notes=notes, start=begun, places=seats.places)


def _begun(
    config: RunConfig, federation: Population, who: Beginning, start: Callable[[Beginning], Start] | None
) -> Start | None:
    """Find what a run begins with that an earlier one left."""
    if config.start_from is None:
        return None
    if config.training.private or config.training.client_private:
        raise UserError(
            "start_from is not for runs with differential privacy: what the earlier run gave away of the same data "
            "would add to this run's epsilon, and is not counted"
        )
    if start is not None:
        return start(who)
    return who.of(Path(config.start_from).expanduser()) if isinstance(federation, Federation) else None


def _here(run: Run) -> Engine:
    """Have all clients on this machine, or wherever the run's engine takes them from here."""
    assert isinstance(run.federation, Federation)
    return hosting.engine(run.config, run.method, run.spec, run.federation, run.places)


def _follow(run: Run) -> None:
    """Serve the process that leads the run, if this is not the one."""
    assert isinstance(run.federation, Federation)
    with single_thread():
        hosting.follow(run.config, run.method, run.spec, run.federation, run.places)
