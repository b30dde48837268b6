"""A site that was not there in training joins a finished run: a model of its own, held against training alone."""

import json
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from fedgraft.base.errors import UserError
from fedgraft.core import streams
from fedgraft.core.client import Predictor
from fedgraft.core.evaluation import POINTS, Point
from fedgraft.core.method import Method
from fedgraft.core.samples import ClientData
from fedgraft.core.settings import TASKS, Training
from fedgraft.data.digest import fingerprint
from fedgraft.data.federation import Federation, Site, site_data
from fedgraft.data.sources import read_own
from fedgraft.data.sources.frames import TABLES, read_frame
from fedgraft.data.sources.tables import insist_on_columns
from fedgraft.engines import newcomer
from fedgraft.engines.newcomer import Joined, Newcomer
from fedgraft.exports import package
from fedgraft.methods.local import Local
from fedgraft.runs.metric import MetricInfo
from fedgraft.runs.personal import PersonalModels
from fedgraft.runs.run import Run, load
from fedgraft.runs.statistics import CONFIDENCE, RESAMPLES, Interval

FILE = "join.json"
FORMAT = 1


@dataclass(frozen=True)
class Figure:
    """One metric on the site's test samples: with the federation, alone, and by how much it is better off."""

    metric: MetricInfo
    joined: float | None
    alone: float | None
    gain: float | None
    interval: Interval | None

    def __str__(self) -> str:
        m = self.metric
        if self.joined is None and self.alone is None:
            return f"{m.title} means nothing on the site's test samples."
        if self.gain is None:
            return f"{m.title}: {m.shown(self.joined)}{m.unit}, alone {m.shown(self.alone)}{m.unit}."
        sure = ""
        if self.interval is not None:
            low, high = self.interval
            meaning = "joining pays" if low > 0 else "better off alone" if high < 0 else "too close to tell"
            sure = f" ({m.difference(low)} to {m.difference(high)}), {meaning}"
        figures = f"{m.shown(self.joined)}{m.unit}, alone {m.shown(self.alone)}{m.unit}"
        return f"{m.title}: {figures}: {m.difference(self.gain)}{sure}."


@dataclass(frozen=True, eq=False)
class Join:
    """A site that joined, and the same site alone."""

    run: Run
    site: Newcomer
    joined: Joined
    alone: Joined
    notes: tuple[str, ...] = ()
    _figures: dict[Point, list[Figure]] = field(default_factory=dict, repr=False)

    def module(self, point: Point = "trained") -> nn.Module:
        """The site's own model, ready for use: prepared inputs in, outputs out."""
        return self._models(self.run.method, self.joined).module(self.joined.client, point)

    def predictor(self, point: Point = "trained") -> Predictor:
        """The same model as a callable, which computes as the test did."""
        return self._models(self.run.method, self.joined).predictor(self.joined.client, point)

    def figures(self, point: Point = "trained") -> list[Figure]:
        """Return every metric on the site's test samples, the leading one first, with intervals of the gain.

        The intervals are percentiles over test samples drawn with replacement, the same ones for both models: how sure
        this one training is of other samples of this site. Another training would end elsewhere.
        """
        if point not in self._figures:
            self._figures[point] = _figures(self, point)
        return self._figures[point]

    def sentences(self, point: Point = "trained") -> list[str]:
        """Say what came of it."""
        run, data, ours, alone = self.run, self.site.data, self.joined, self.alone
        sent = f"{_size(ours.bytes_down)} down, {_size(ours.bytes_up)} up"
        where = f"{run.config.dataset}, {run.spec.clients} clients, seed {run.config.seed}"
        return [
            f"{self.site.name} joins {run.label} ({where}) with {len(data.train)} training and {len(data.test)} test "
            f"samples: {ours.server.spec.rounds} rounds, {ours.steps} steps, {sent}; alone {alone.steps} steps.",
            *(str(figure) for figure in self.figures(point)),
            f"95 % intervals are of these {len(data.test)} test samples, and of one training. Alone, fewer rounds may "
            "have been better: --rounds tries that.",
        ]

    def write(self, out: str | Path, point: Point = "trained", *, onnx: bool = False) -> Path:
        """Write the model as `fedgraft export` does, with what is known of it in join.json."""
        own = {figure.metric.name: figure.joined for figure in self.figures(point)}
        spec, client = self.joined.server.spec, self.joined.client
        subject = package.Subject(self.run, spec, client, self.site.data, self.module(point), point, own)
        return package.write(subject, Path(out), onnx=onnx, beside={FILE: json.dumps(self.facts(), indent=1).encode()})

    def facts(self) -> dict[str, Any]:
        """Return what came of it as JSON has it."""
        run, spec = self.run, self.joined.server.spec
        return {
            "format": FORMAT,
            "site": self.site.name,
            "run": None if run.directory is None else str(run.directory.resolve()),
            "digest": run.identity.digest,
            "method": run.label,
            "seed": spec.seed,
            "rounds": spec.rounds,
            "training": {name: getattr(spec.settings, name) for name in ("epochs", "steps", "lr")},
            "samples": {"train": len(self.site.data.train), "test": len(self.site.data.test)},
            "steps": {"joined": self.joined.steps, "alone": self.alone.steps},
            "bytes": {"down": self.joined.bytes_down, "up": self.joined.bytes_up},
            "refused": [refusal.reason for refusal in self.joined.refused],
            "notes": list(self.notes),
            "figures": {
                point: {
                    figure.metric.name: {
                        "joined": figure.joined,
                        "alone": figure.alone,
                        "gain": figure.gain,
                        "interval": None if figure.interval is None else list(figure.interval),
                    }
                    for figure in self.figures(point)
                }
                for point in POINTS
            },
        }

    def _models(self, method: Method, joined: Joined) -> PersonalModels:
        states, data = {joined.client: joined.state}, {joined.client: self.site.data}
        return PersonalModels(method, joined.server.spec, joined.server, states, data, newcomer=self.site.name)

    def outputs(self, point: Point) -> tuple[torch.Tensor, torch.Tensor]:
        """What the two models answer to the site's test samples: the joined one at a point, the other as trained."""
        x, _ = self.site.data.test.batch(slice(None))
        ours = self._models(self.run.method, self.joined).predictor(self.joined.client, point)
        theirs = self._models(Local(), self.alone).predictor(self.alone.client, "trained")
        with torch.no_grad():
            return ours(x), theirs(x)


def join(
    run: Run | str | Path,
    data: Site | str | Path,
    *,
    name: str | None = None,
    rounds: int | None = None,
    progress: Callable[[str, int, int], None] = lambda _who, _done, _of: None,
    **training: Any,
) -> Join:
    """Let a site that took no part in training join a finished run. Nothing changes for the other clients.

    Args:
        run: the run, or its directory.
        data: the site's own data: arrays, or a file or folder, which is prepared as the run's data were.
        name: the name of the site (default: that of its file).
        rounds: how long it trains with the frozen federation (default: as many as the run had). It also trains
            alone, from the initial weights, for at least as many steps.
        progress: is called with what is trained, rounds done and rounds in all.
        **training: settings other than the run's: ``epochs``, ``steps``, ``lr``.

    Returns:
        The site's own model, and what it reaches joined and alone.
    """
    run = run if isinstance(run, Run) else load(run)
    _insist_on_open(run)
    newcomer.insist_on_newcomers(run.method, run.spec)
    settings = _settings(run.spec.settings, training)
    rounds = run.spec.rounds if rounds is None else rounds
    if rounds < 1:
        raise UserError(f"a site joins for at least one round, not {rounds}")
    site, notes = _site(run, data, name)
    assert run.server is not None

    def watch(who: str, of: int) -> Callable[[int], None]:
        return lambda done: progress(who, done + 1, of)

    joined = newcomer.welcome(
        run.method, run.server, site, rounds, settings=settings, device=run.config.device,
        progress=watch("joining", rounds),
    )  # fmt: skip
    longer = rounds
    if (each := _steps(run, site, settings)) and joined.steps > rounds * each:  # Ditto trains two models, say
        longer = math.ceil(joined.steps / each)
    alone = newcomer.welcome(
        Local(), Local().setup(run.spec), site, longer, settings=settings, device=run.config.device,
        progress=watch("alone", longer),
    )  # fmt: skip
    return Join(run, site, joined, alone, notes)


def _steps(run: Run, site: Newcomer, settings: Training) -> int:
    """How many steps a round of training alone takes."""
    return newcomer.welcome(Local(), Local().setup(run.spec), site, 1, settings=settings).steps


def _insist_on_open(run: Run) -> None:
    if not isinstance(run.federation, Federation):
        raise UserError("a federation of sites on other machines is not joined from here: its charter names its sites")
    if not run.result:
        raise UserError(f"the run of {run.method.name} is not finished: a site joins when training is over")
    if run.server is None:
        raise UserError(run.without_models)


def _settings(settings: Training, changes: Mapping[str, Any]) -> Training:
    """Change what a newcomer may change of how clients train."""
    if surplus := sorted(set(changes) - {"epochs", "steps", "lr"}):
        raise UserError(f"{surplus[0]} is the run's: a site that joins may set epochs, steps and lr")
    if not changes:
        return settings
    from fedgraft.runs.config import configure

    kept = {name: value for name, value in settings.model_dump().items() if name not in ("epochs", "steps")}
    length = changes if {"epochs", "steps"} & set(changes) else settings.model_dump(include={"epochs", "steps"})
    return configure({"training": {**kept, **length, **changes}}).training


def _site(run: Run, data: Site | str | Path, name: str | None) -> tuple[Newcomer, tuple[str, ...]]:
    """Read the site's data as the run's were read, and hold them against these."""
    fed = run.federation
    assert isinstance(fed, Federation)
    task, number = TASKS.named(fed.task), len(fed)
    if isinstance(data, Site):
        held, called = data, name or data.name or f"client {number}"
    else:
        path = Path(data).expanduser()
        called = name or path.stem
        if not path.exists():
            raise UserError(f"there is nothing at {path}")
        if path.suffix.lower() in TABLES and fed.fitted is not None and fed.fitted.inputs:
            insist_on_columns(read_frame(path), fed.fitted, str(path))
        held = read_own(path, fed.reading, task, run.config.drawn_by, fed.fitted, called)
    if called in fed.names:
        raise UserError(f"the federation has a client called {called!r} already: name the newcomer with --name")
    preparation = fed.clients[0].train.preparation
    held = replace(held, name=called)
    for key, labels in held.arrays(number, task).items():
        if key.startswith("y"):
            fed.task.fits(labels, f"{key} of {called}")
    made = site_data(
        held, number, seed=run.config.drawn_by, validation=fed.validation, preparation=preparation, resize=fed.resize,
        task=task,
    )  # fmt: skip
    _insist_on_samples(made, fed, called)
    notes = []
    known = fed.fingerprints[: len(fed)]
    if fingerprint(made) in known:
        other = fed.names[known.index(fingerprint(made))]
        notes.append(f"{called} has the very samples of {other}, who was there in training: it is no newcomer")
    if fed.task.has_classes and int((made.train.counts(fed.task.classes) > 0).sum()) == 1:
        notes.append(
            f"every training sample of {called} is of one class: there is nothing to tell apart, alone or joined"
        )
    return Newcomer(called, made, run.spec.assignment[number % run.spec.clients]), tuple(notes)


def _insist_on_samples(made: ClientData, fed: Federation, called: str) -> None:
    ours, theirs = made.train.inputs, fed.clients[0].train.inputs
    if ours.shape[1:] == theirs.shape[1:] and ours.dtype == theirs.dtype:
        return
    found, wanted = (
        f"{'x'.join(map(str, each.shape[1:]))} ({str(each.dtype).removeprefix('torch.')})" for each in (ours, theirs)
    )
    raise UserError(f"a sample of {called} is {found}, and those of the federation are {wanted}")


def _figures(join: Join, point: Point) -> list[Figure]:
    metrics = join.run.spec.metrics
    tests = join.joined.scores.test, join.alone.scores.test
    if tests[0] is None or tests[1] is None:
        raise UserError("a site that joins needs test samples: without them nobody can say how it fares")
    scores, alone = tests[0][point], tests[1]["trained"]
    intervals = _intervals(join, point)
    found = []
    for metric in metrics:
        info, (ours, theirs) = MetricInfo.of(metric), (scores.value(metric), alone.value(metric))
        known = math.isfinite(ours) and math.isfinite(theirs)
        found.append(
            Figure(
                info,
                ours if math.isfinite(ours) else None,
                theirs if math.isfinite(theirs) else None,
                info.gain(ours, theirs) if known else None,
                intervals.get(metric.name) if known else None,
            )
        )
    return found


def _intervals(join: Join, point: Point) -> dict[str, Interval]:
    """Draw the test samples again and again, the same for both models."""
    task, metrics, labels = join.run.spec.task, join.run.spec.metrics, join.site.data.test.labels
    both = join.outputs(point)
    rng = streams.generator(0, "test samples", len(labels))
    gains: dict[str, list[float]] = {metric.name: [] for metric in metrics}
    for _ in range(RESAMPLES // 2):
        drawn = torch.from_numpy(rng.integers(len(labels), size=len(labels)))
        ours, theirs = (task.judge(outputs[drawn], labels[drawn], metrics)[0] for outputs in both)
        for metric in metrics:
            pair = metric.value(ours[metric.name]), metric.value(theirs[metric.name])
            gains[metric.name].append(MetricInfo.of(metric).gain(*pair))
    tail = 100 * (1 - CONFIDENCE) / 2
    found = {}
    for name, values in gains.items():
        finite = [value for value in values if math.isfinite(value)]  # a draw may lack a class
        if len(finite) >= RESAMPLES // 4:
            low, high = np.percentile(finite, (tail, 100 - tail))
            found[name] = Interval(float(low), float(high))
    return found


def _size(count: int) -> str:
    return f"{count / 1e6:.1f} MB" if count >= 1e6 else f"{count / 1e3:.1f} kB" if count >= 1e3 else f"{count} B"
