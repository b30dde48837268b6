"""What crosses as Flower's records: named tensors as arrays of bytes, numbers as numbers, nothing that is executed.

Everything that comes in is read strictly: types on a list, lengths that agree with shapes, no more bytes than the
receiver expects. What does not fit is refused in a sentence.
"""

import io
import math
import tokenize
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any

import numpy as np
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, MetricRecord, RecordDict
from torch import Tensor

from fedgraft.base.foreign import plain
from fedgraft.core.client import ClientId
from fedgraft.core.evaluation import POINTS, Score, Scores
from fedgraft.core.exchange import Outcome
from fedgraft.core.message import DTYPES, Message
from fedgraft.core.metrics import Metric
from fedgraft.core.task import Task
from fedgraft.engines.flower.site import Version

KINDS = {str(dtype).removeprefix("torch."): dtype for dtype in DTYPES}
HEADER = 512
"""Bytes that the header of an array may take."""


class RecordError(ValueError):
    """What came is not what was agreed on; the text says how, with names that the sender chose."""

    def __init__(self, text: str) -> None:
        super().__init__(plain(text))


@dataclass(frozen=True)
class Tag:
    """Which run, client, round and wave a message belongs to; its reply carries the same."""

    run: str
    client: ClientId
    round: int
    wave: int


@dataclass(frozen=True)
class Order:
    """What the server asks of a client: the message, and which of its states it is to start from.

    ``origin`` is the earlier run that the state is of, if not of this one; ``first`` are the weights that a client
    begins with which has no state, if they are not drawn by the seed.
    """

    tag: Tag
    version: Version
    message: Message
    origin: str = ""
    first: Tensor | None = None

    def pack(self) -> RecordDict:
        tag = ConfigRecord({**asdict(self.tag), "version": list(self.version), "origin": self.origin})
        begun = {} if self.first is None else {"first": arrays(Message(weights=self.first))}
        return RecordDict({"tag": tag, "message": arrays(self.message), **begun})

    @classmethod
    def unpack(cls, content: RecordDict) -> "Order":
        version = config(content).get("version")
        numbers = version if isinstance(version, list) else []
        if len(numbers) != 2 or not all(isinstance(number, int) and number >= 0 for number in numbers):
            raise RecordError("the message does not say which state to start from")
        origin = config(content).get("origin", "")
        if not isinstance(origin, str):
            raise RecordError("the message does not say which run the state is of")
        first = message(content, name="first").get("weights") if "first" in content else None
        return cls(tag(content), (numbers[0], numbers[1]), message(content), origin, first)


@dataclass(frozen=True)
class Holdings:
    """How many samples a site has: to train on, put aside for validation, to test on."""

    train: int
    validation: int
    test: int

    def __str__(self) -> str:
        aside = f", {self.validation} for validation" if self.validation else ""
        return f"{self.train} samples to train on{aside} and {self.test} to test on"


@dataclass(frozen=True)
class Hello:
    """How a site introduces itself: its name, how much data it has, and what it runs."""

    site: str
    train: int
    validation: int
    test: int
    fedgraft: str
    settings: str

    @property
    def holdings(self) -> Holdings:
        return Holdings(self.train, self.validation, self.test)

    def pack(self) -> RecordDict:
        return RecordDict({"hello": ConfigRecord(asdict(self))})

    @classmethod
    def unpack(cls, content: RecordDict) -> "Hello":
        held = config(content, "hello")
        if any(type(held.get(each.name)) is not each.type for each in fields(cls)):
            raise RecordError("its greeting is not one of ours")
        return cls(**{each.name: held[each.name] for each in fields(cls)})


def answer(tag: Tag, outcome: Outcome, samples: int) -> RecordDict:
    """Pack what came of a client's training, and on how many samples it was done."""
    figures = MetricRecord({"loss": outcome.loss, "steps": outcome.steps, "seconds": outcome.seconds})
    figures["samples"] = samples
    return RecordDict({"tag": ConfigRecord(asdict(tag)), "figures": figures, "message": arrays(outcome.reply)})


def outcome(content: RecordDict, limit: int, samples: int) -> Outcome:
    """Unpack what came of a client's training on ``samples`` samples, of at most ``limit`` bytes."""
    figures = _metrics(content)
    try:
        loss, steps, seconds = float(figures["loss"]), int(figures["steps"]), float(figures["seconds"])
        trained_on = figures["samples"]
    except (KeyError, TypeError, ValueError, OverflowError):
        raise RecordError("lacks its loss, steps, seconds or samples") from None
    if trained_on != samples:
        raise RecordError(f"was trained on {trained_on} samples; the site had {samples} when the run began")
    return Outcome(message(content, limit), loss, steps, seconds, tag(content).round)


def report(tag: Tag, scores: Scores | None, metrics: Sequence[Metric]) -> RecordDict:
    """Pack test figures, if any may leave: counts and sums, nothing that tells of a single sample."""
    figures = MetricRecord()
    for kind, points in (("test", scores.test), ("validation", scores.validation)) if scores else ():
        for point, score in (points or {}).items():
            leaving, place = score.leaving(metrics), f"{kind}/{point}"
            figures[f"{place}/total"], figures[f"{place}/broken"] = leaving.total, leaving.broken
            for name, tally in leaving.tallies.items():
                figures[f"{place}/{name}"] = [float(number) for number in tally.flatten()]
            for name, value in leaving.values.items():
                figures[f"{place}/{name}"] = float(value)
    return RecordDict({"tag": ConfigRecord(asdict(tag)), "figures": figures})


def scores(content: RecordDict, holdings: Holdings, task: Task, metrics: Sequence[Metric]) -> Scores:
    """Unpack test figures: of the sets that the site said it has, all of them, on as many samples as it said."""
    figures = _metrics(content)
    agreed = {kind: count for kind in ("test", "validation") if (count := getattr(holdings, kind))}
    found = {k: {point: _score(figures, f"{k}/{point}", task, metrics) for point in POINTS} for k in agreed}
    if len(figures) != len(agreed) * len(POINTS) * (2 + len(metrics)):
        surplus = sorted({name.partition("/")[0] for name in figures} - agreed.keys())
        raise RecordError(f"its figures are not as agreed: nobody asked for {', '.join(surplus) or 'more'}")
    for kind, count in agreed.items():
        for score in found[kind].values():
            if score.total != count:
                raise RecordError(f"its {kind} figures are of {score.total} samples; it had {count} when the run began")
    return Scores(**found)


def _score(figures: Mapping[str, Any], place: str, task: Task, metrics: Sequence[Metric]) -> Score:
    """Read one score: whole numbers as whole numbers, and as many numbers for each metric as its tally has."""

    def refuse(name: str) -> RecordError:
        return RecordError(f"its figures are not as agreed: {place}/{name} is missing, or is no number")

    counts = {name: figures.get(f"{place}/{name}") for name in ("total", "broken")}
    for name, count in counts.items():
        if type(count) is not int:
            raise refuse(name)
    tallies, values = {}, {}
    for metric in metrics:
        value = figures.get(f"{place}/{metric.name}")
        if metric.single:
            if type(value) is not float:
                raise refuse(metric.name)
            values[metric.name] = value
            continue
        shape = metric.shape(task.outputs)
        if not isinstance(value, list) or len(value) != math.prod(shape) or {type(each) for each in value} != {float}:
            raise refuse(metric.name)
        tallies[metric.name] = np.array(value).reshape(shape)
    return Score(counts["total"], tallies, counts["broken"], values)  # type: ignore[arg-type]


def arrays(message: Message) -> ArrayRecord:
    """Named tensors as Flower's arrays."""
    return ArrayRecord({name: Array(tensor.cpu().contiguous().numpy()) for name, tensor in message.items()})


def message(content: RecordDict, limit: int | None = None, name: str = "message") -> Message:
    """Read the tensors of this name; more than ``limit`` bytes are refused before anything is made of them."""
    held = content.get(name)
    if not isinstance(held, ArrayRecord):
        raise RecordError("holds no tensors")
    declared = {entry: _declared(entry, array) for entry, array in held.items()}
    if limit is not None and sum(declared.values()) > limit:
        raise RecordError(f"declares {sum(declared.values()):,} bytes, expected at most {limit:,}")
    try:
        return Message(**{entry: _tensor(entry, array, declared[entry]) for entry, array in held.items()})
    except TypeError as error:
        raise RecordError(str(error)) from None


def tag(content: RecordDict) -> Tag:
    """Read which run, client, round and wave this belongs to."""
    held = config(content)
    if any(type(held.get(each.name)) is not each.type for each in fields(Tag)):
        raise RecordError("does not say which run, client and round it belongs to")
    return Tag(**{each.name: held[each.name] for each in fields(Tag)})


def config(content: RecordDict, name: str = "tag") -> Mapping[str, Any]:
    """Return the facts of this name; none, if there are none."""
    held = content.get(name)
    return held if isinstance(held, ConfigRecord) else {}


def numbered(held: Mapping[str, Any], name: str) -> dict[ClientId, bytes]:
    """Read a list of bytes, one for each of the ``clients`` that stand beside it; nothing, if it is not that."""
    clients, values = held.get("clients"), held.get(name)
    if not isinstance(clients, list) or not isinstance(values, list) or len(clients) != len(values):
        return {}
    pairs = list(zip(clients, values, strict=True))
    return {c: v for c, v in pairs if isinstance(c, int) and isinstance(v, bytes)}


def _metrics(content: RecordDict) -> Mapping[str, Any]:
    held = content.get("figures")
    if not isinstance(held, MetricRecord):
        raise RecordError("holds no figures")
    return held


def _declared(name: str, array: Array) -> int:
    """How many bytes of values an array declares; its own bytes have to bear it out."""
    if array.stype != "numpy.ndarray" or array.dtype not in KINDS:
        raise RecordError(f"{name!r} is of a type that does not travel: {array.stype} {array.dtype}")
    if not all(isinstance(side, int) and side >= 0 for side in array.shape):
        raise RecordError(f"{name!r} has an impossible shape")
    values = math.prod(array.shape) * KINDS[array.dtype].itemsize
    if not values < len(array.data) <= values + HEADER:
        raise RecordError(f"{name!r} declares {values:,} bytes of values and has {len(array.data):,} bytes")
    return values


def _tensor(name: str, array: Array, values: int) -> torch.Tensor:
    stream = io.BytesIO(array.data[: len(array.data) - values])
    try:
        if np.lib.format.read_magic(stream) != (1, 0):
            raise RecordError(f"{name!r} is not an array of numbers")
        shape, fortran, dtype = np.lib.format.read_array_header_1_0(stream)
    except (ValueError, tokenize.TokenError):
        raise RecordError(f"{name!r} has no readable header") from None
    agreed = (tuple(array.shape), False, np.dtype(array.dtype), len(array.data) - values)
    if (shape, fortran and len(shape) > 1, dtype, stream.tell()) != agreed or dtype.hasobject:
        raise RecordError(f"{name!r} is not what it declares")
    flat = np.frombuffer(array.data, dtype, offset=len(array.data) - values)
    return torch.from_numpy(flat.reshape(shape).copy())
