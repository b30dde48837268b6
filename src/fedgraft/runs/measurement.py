"""A finished run in brief: a few kilobytes that can be committed, and that say how to repeat it.

A measurement belongs to a cell of a paper's table by what decides its result: method and settings, and nothing else.
"""

import hashlib
import json
import shlex
from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, Self

import numpy as np
from pydantic import BaseModel, ConfigDict, ValidationError

from fedgraft.base import disk
from fedgraft.base.errors import UserError
from fedgraft.core.evaluation import POINTS, Point
from fedgraft.core.settings import Training
from fedgraft.methods import METHODS
from fedgraft.papers.tables import ACCURACY, Cell, Paper, Score
from fedgraft.runs.comparison import FinishedRun
from fedgraft.runs.config import MACHINE, RunConfig, configure, flag
from fedgraft.runs.resultfile import Record, Result
from fedgraft.runs.results import read_json

LENGTH = ("rounds", "epochs", "model")
"""What a scale may change: how long a run is, and how wide its network."""
_NOT_DECIDING = MACHINE | {"method", "params", "seed", "evaluate_every", "global_test", "metrics", "task", "kernels"}
"""What does not make it another cell: it moves the last bits, or measures more."""
DIGITS = 6


class Curve(BaseModel):
    """A figure of the leading metric in every round that was tested, as the mean over clients and pooled."""

    mean: list[float | None]
    pooled: list[float | None]


class Measurement(BaseModel):
    """One run. What an older version did not write down is empty."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    recipe: str
    method: str
    """The method with the hyper-parameters that are not its defaults."""
    settings: dict[str, Any]
    """What differs from the recipe, as ``fedgraft run`` takes it."""
    seed: int
    scale: str
    headline: Point
    command: str
    fedgraft: str
    arithmetic: int = 1
    """The version of fedgraft's arithmetic; the first was not written down."""
    torch: str = ""
    kernels: str
    machine: str = ""
    seconds: float | None = None
    """Of all rounds with their tests."""
    clients: int
    samples: list[int] = []
    top_share: float | None = None
    """The share of the training samples that are of their client's most frequent class."""
    bytes_up: float
    bytes_down: float
    refused: int
    rounds: list[int]
    """Those that were tested."""
    received: Curve
    trained: Curve
    everyone: dict[Point, list[float | None]] = {}
    """The clients' mean on the test samples of all clients."""
    per_client: dict[Point, list[float | None]] = {}
    """Each client's figure in the last round."""
    bits: str = ""
    """A checksum of every round's loss and of every client's figures: equal only if all the bits are."""

    @property
    def computed(self) -> str:
        """By which kernels, on which instruction sets: runs that differ in it differ in the last bits."""
        chosen = self.settings.get("kernels", "auto")
        return f"{chosen} ({self.kernels}{f', arithmetic {self.arithmetic}' if self.arithmetic > 1 else ''})"

    @cached_property
    def config(self) -> RunConfig:
        """All its settings."""
        name, params = METHODS.read(self.method)
        told: dict[str, Any] = {"method": name, "params": params, "seed": self.seed}
        return configure(self.settings, told, recipe_name=self.recipe)

    def curve(self, point: Point) -> Curve:
        """What was measured at one point."""
        found: Curve = getattr(self, point)
        return found

    def of_another(self, method: str, point: Point) -> Self:
        """The measurement of another method, whose model is the one that this run tested at a point.

        The command stays that of the run; how long the other would have taken is not known.
        """
        facts = self.model_dump(exclude={"seconds", "bits", "everyone"})
        curve, clients = facts[point], facts["per_client"].get(point)
        facts |= {"method": method, "headline": point, **dict.fromkeys(POINTS, curve)}
        facts["per_client"] = {} if clients is None else dict.fromkeys(POINTS, clients)
        return self.model_validate(facts)

    def value(self, score: Score, quantity: str = ACCURACY, within: Collection[int] | None = None) -> float | None:
        """What a paper's table would print: percent, or in the quantity's own unit; none if it was not measured.

        An accuracy can be that ``within`` some of the rounds: the best of fifty is above the best of ten.
        """
        if quantity == ACCURACY:
            found = self._accuracy(score, within)
        elif quantity in ("global", "global-round"):
            found = self._global(quantity)
        elif quantity == "kilobytes":
            found = (self.bytes_up + self.bytes_down) / 1024
        else:
            whole = None if self.seconds is None else self.seconds / 60
            last = self.config.rounds
            found = whole if quantity == "minutes" or whole is None else 60 * whole / last
        return found

    def course(self, score: Score) -> dict[int, float | None]:
        """Percent in every round that was tested, at the point and over the clients as a paper has it."""
        at = score.at(self.method)
        each = getattr(self.curve(self.headline if at == "own" else at), score.figure)
        return dict(zip(self.rounds, map(_percent, each), strict=True))

    def _accuracy(self, score: Score, within: Collection[int] | None) -> float | None:
        each = [value for number, value in self.course(score).items() if within is None or number in within]
        return best(each[-1:] if score.round == "last" else each)

    def _global(self, quantity: str) -> float | None:
        each = self.everyone.get("received", [])
        highest = best(each)
        if highest is None:
            return None
        return self.rounds[each.index(highest)] if quantity == "global-round" else _percent(highest)


def best(values: Iterable[float | None]) -> float | None:
    """The highest figure that was measured."""
    return max((value for value in values if value is not None), default=None)


def _percent(value: float | None) -> float | None:
    return None if value is None else 100 * value


def measured(run: FinishedRun, recipe: str, scale: str, machine: str = "") -> Measurement:
    """Keep of a finished run what a table, a curve and a check need."""
    facts, name = run.facts, run.facts.leading.name
    tested = [record for record in facts.rounds if record.test("trained") is not None]
    settings = differing(run.config, recipe)
    method = METHODS.label(METHODS.make(run.config.method, **run.config.params))

    def curve(point: Point) -> Curve:
        each = [record.figures(point, name) for record in tested]
        return Curve(**{f: [_short(getattr(one, f)) for one in each if one is not None] for f in ("mean", "pooled")})

    return Measurement(
        recipe=recipe, method=method, settings=settings, seed=run.config.seed, scale=scale, headline=facts.headline,
        command=command(method, recipe, settings, run.config.seed), fedgraft=facts.fedgraft,
        arithmetic=getattr(facts, "arithmetic", None) or 1, torch=facts.versions.get("torch", "").partition("+")[0],
        kernels=_kernels(facts), machine=machine,
        seconds=round(facts.seconds, 1), clients=facts.clients, samples=facts.samples,
        top_share=None if facts.label_counts is None else round(top_share(facts.label_counts), DIGITS),
        bytes_up=facts.bytes_up_per_client, bytes_down=facts.bytes_down_per_client, refused=facts.refused,
        rounds=[record.round for record in tested], received=curve("received"), trained=curve("trained"),
        everyone=_everyone(tested, name), bits=fingerprint(facts.rounds),
        per_client={point: _clients(tested[-1], point, name) for point in POINTS},
    )  # fmt: skip


def _kernels(facts: Result) -> str:
    told: Mapping[str, str] = getattr(facts, "instructions", None) or {}
    return ", ".join(f"{user} {isa}" for user, isa in sorted(told.items()))


def _everyone(tested: Sequence[Record], name: str) -> dict[Point, list[float | None]]:
    found: dict[Point, list[float | None]] = {}
    for point in POINTS:
        each = [record.figures(point, name, "_global") for record in tested]
        if any(one is not None for one in each):
            found[point] = [None if one is None else _short(one.mean) for one in each]
    return found


def _clients(record: Record, point: Point, name: str) -> list[float | None]:
    found = record.figures(point, name)
    return [] if found is None else [_short(value) for value in found.per_client]


def _short(value: float | None) -> float | None:
    return None if value is None else round(value, DIGITS)


def fingerprint(rounds: Iterable[Record]) -> str:
    """A checksum of what every round gave, to the last bit; how long it took is left out."""
    told = [
        [record.round, record.loss, *([test.model_dump()["metrics"] for test in record.tests])] for record in rounds
    ]
    return hashlib.sha256(json.dumps(told, sort_keys=True).encode()).hexdigest()[:16]


def top_share(counts: Any) -> float:
    """How much a client could get right by always naming its most frequent class, over all training samples."""
    held = np.asarray(counts)
    return float(held.max(axis=1).sum() / held.sum())


def differing(config: RunConfig, recipe: str) -> dict[str, Any]:
    """The settings that are not the recipe's for that dataset, flat, as flags are."""
    usual = configure({"dataset": config.dataset}, recipe_name=recipe)
    outer = [name for name in RunConfig.model_fields if name not in MACHINE | {"method", "params", "seed", "training"}]
    changed = {name: getattr(config, name) for name in outer if getattr(config, name) != getattr(usual, name)}
    own = configure({}, recipe_name=recipe).dataset
    changed |= {"dataset": config.dataset} if config.dataset != own else {}
    inner = {
        name: getattr(config.training, name)
        for name in Training.model_fields
        if getattr(config.training, name) != getattr(usual.training, name)
    }
    plain: dict[str, Any] = json.loads(json.dumps(changed | inner))
    return plain


def command(method: str, recipe: str, settings: Mapping[str, Any], seed: int) -> str:
    """The command that repeats a run."""
    words = ["fedgraft", "run", method, "--recipe", recipe]
    for name, value in settings.items():
        if isinstance(value, bool):
            words.append(flag(name) if value else f"--no-{flag(name)[2:]}")
        else:
            for each in value if isinstance(value, list) else [value]:
                words += [flag(name), str(each)]
    return shlex.join([*words, "--seed", str(seed)])


# ---- which cell a run measures


def cell_config(paper: Paper, cell: Cell, seed: int, scale: str = "full") -> RunConfig:
    """The settings of a cell's run; a scale changes how long it is."""
    name, params = METHODS.read(cell.method)
    changes = paper.scales[scale]  # type: ignore[index]
    return configure(
        cell.settings, changes, {"method": name, "params": params, "seed": seed}, recipe_name=paper.name
    )  # fmt: skip


def deciding(config: RunConfig) -> str:
    """What makes a run the measurement of one cell and of no other, whatever its seed, its length and the machine."""
    method = METHODS.label(METHODS.make(config.method, **config.params))
    settings = config.model_dump(exclude={*_NOT_DECIDING, *LENGTH, "training"})
    training = config.training.model_dump(exclude={*LENGTH})
    settings["model"] = config.model.partition(":")[0]
    return json.dumps([method, settings, training], sort_keys=True, default=str)


def scale_of(paper: Paper, config: RunConfig) -> str:
    """How long a run is beside the paper's: the name of a scale, or what is shorter."""
    full = configure({"dataset": config.dataset}, recipe_name=paper.name)
    for name, changes in paper.scales.items():
        if _length(config) == _length(configure({"dataset": config.dataset}, changes, recipe_name=paper.name)):
            return name
    pairs = zip(LENGTH, _length(config), _length(full), strict=True)
    return ", ".join(f"{here} of {there} {name}" if name != "model" else str(here) for name, here, there in pairs
                     if here != there)  # fmt: skip


def _length(config: RunConfig) -> tuple[int, float, str]:
    return config.rounds, config.training.epochs, config.model


# ---- as files

FORMAT = 1


def read(place: Path) -> dict[str, list[Measurement]]:
    """Every measurement in a folder, by the file that holds it; files of another kind are left alone."""
    if not place.is_dir():
        raise UserError(f"there is no folder {place}; the measurements of a checkout are in docs/results")
    found = {}
    for path in sorted(place.glob("*.json")):
        told = read_json(path)
        if told.get("kind") == "measurements":
            try:
                found[path.stem] = [Measurement.model_validate(each) for each in told["runs"]]
            except (ValidationError, KeyError, TypeError) as error:
                raise UserError(f"{path} is damaged: {str(error).splitlines()[0]}") from None
    return found


def write(path: Path, paper: str, item: str, runs: Sequence[Measurement]) -> None:
    """Write the measurements of one table: a line for each run, so that changes can be read."""
    told = [json.dumps(run.model_dump(exclude_defaults=True), allow_nan=False) for run in _ordered(runs)]
    head = json.dumps({"kind": "measurements", "format": FORMAT, "paper": paper, "item": item})[:-1]
    disk.write(path, (head + ', "runs": [\n' + ",\n".join(told) + "\n]}\n").encode())


def _ordered(runs: Sequence[Measurement]) -> list[Measurement]:
    return sorted(runs, key=lambda run: (json.dumps(run.settings, sort_keys=True), run.method, run.seed, run.command))


# ---- two measurements of one thing

Verdict = Literal["the same bits", "within noise", "different"]
NOISE = 1.5
"""Points by which the last bits alone may move the pooled accuracy of one run (docs/results/draws.md)."""


def compared(one: Measurement, other: Measurement) -> tuple[Verdict, float]:
    """Whether two runs of one command agree, and by how many points their last pooled accuracies differ."""
    lasts = [run.curve(run.headline).pooled[-1] for run in (one, other)]
    apart = 100 * abs((lasts[0] or 0.0) - (lasts[1] or 0.0))
    if (one.bits and one.bits == other.bits) or (one.received, one.trained) == (other.received, other.trained):
        return "the same bits", apart
    return ("within noise" if apart <= NOISE else "different"), apart
