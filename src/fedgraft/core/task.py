"""The task: what is learned from a batch, and how answers are judged.

A task says what targets and outputs look like, what training minimises, and which metrics judge the answers, the first
of them leading. Nothing outside it knows what a right answer is. A task of one's own is a class of this kind in any
file: ``--task ./mine.py:Mine``.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, Self

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from fedgraft.base.errors import UserError
from fedgraft.core.metrics import Metric
from fedgraft.core.settings import METRICS, TASKS

Array = np.ndarray[Any, Any]
MOST_OUTPUTS = 100_000
"""A head with a row for each of more outputs than these would be larger than any network here."""


@dataclass(frozen=True)
class Task:
    """What is learned and by which metrics; ``outputs`` is how many numbers a network gives for a sample."""

    outputs: int
    name: ClassVar[str]
    about: ClassVar[str] = ""
    metrics: ClassVar[tuple[str, ...]] = ()
    """The metrics that judge it unless others are named; the first leads."""

    # ---- targets
    @classmethod
    def clean(cls, raw: Array, where: str) -> Array:
        """Return the targets of one split as training needs them, or say in a sentence what is wrong with them."""
        raise NotImplementedError

    @classmethod
    def of(cls, targets: Mapping[str, Array], outputs: int | None = None) -> Self:
        """Make the task of what several places hold, with as many ``outputs`` as announced or as the targets need."""
        raise NotImplementedError

    def fits(self, targets: Array, where: str) -> None:
        """Refuse targets that do not fit this task."""

    def strata(self, targets: Array) -> Array:
        """Return a whole number for each sample, by which partition schemes tell samples apart: here all are alike."""
        return np.zeros(len(targets), dtype=np.int64)

    @property
    def classes(self) -> int:
        """How many classes there are, for methods that cannot do without."""
        raise UserError(f"{self.name} has no classes")

    @property
    def has_classes(self) -> bool:
        return False

    # ---- training
    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Return what training minimises: the mean over a batch."""
        raise NotImplementedError

    def insist_on(self, outputs: int) -> None:
        """Refuse a network with another number of outputs."""
        if outputs != self.outputs:
            raise UserError(f"the model has {outputs} outputs, and the task {self.name} needs {self.outputs}")

    # ---- use
    answered: ClassVar[Literal["probabilities", "values"]] = "values"

    def answers(self, outputs: Tensor) -> Tensor:
        """Return what a user wants to know: a probability for each class or label, or values in their own unit."""
        return outputs

    # ---- judgement
    def rows(self, outputs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        """Return answers and truth, one row for each thing that is judged."""
        return outputs, targets

    def wrong(self, truth: Tensor) -> Tensor:
        """Return answers that are certainly wrong, for samples on which a model has none that are finite."""
        raise NotImplementedError

    def judge(self, outputs: Tensor, targets: Tensor, metrics: Sequence[Metric]) -> tuple[dict[str, Array], int]:
        """Return the tally of each metric, and how many samples have outputs that are not finite.

        These count as wrong answers where a wrong answer costs only so much, and are left out elsewhere.
        """
        finite = torch.isfinite(outputs)
        if bool(finite.all()):
            rows = self.rows(outputs, targets)
            return {metric.name: metric.tally(*rows) for metric in metrics}, 0
        sound = finite.flatten(1).all(dim=1)
        good = self.rows(outputs[sound], targets[sound])
        answers, truth = self.rows(outputs[~sound], targets[~sound])
        mended = torch.cat([good[0], self.wrong(truth).to(answers)]), torch.cat([good[1], truth])
        tallies = {m.name: m.tally(*(mended if m.bounded else good)) for m in metrics}
        return tallies, len(outputs) - int(sound.sum())

    def judges(self, names: Sequence[str] = ()) -> tuple[Metric, ...]:
        """Make the metrics of these names, or the usual ones; the first leads."""
        made: dict[str, Metric] = {}
        for text in names or self.metrics:
            metric: Metric = METRICS.make(text)
            if metric.tasks and self.name not in metric.tasks:
                fitting = [n for n in METRICS if self.name in METRICS[n].tasks]
                raise UserError(f"{metric.name} cannot judge {self.name}; there are {', '.join(fitting) or 'none'}")
            if metric.name in made:
                raise UserError(f"the metric {metric.name} is there twice")
            made[metric.name] = metric
        return tuple(made.values())


@dataclass(frozen=True)
class Classification(Task):
    """One class of several: targets are whole numbers from 0, outputs a logit for each class."""

    name = "classification"
    about = "one class of several"
    metrics = ("accuracy", "log_loss")

    @classmethod
    def clean(cls, raw: Array, where: str) -> Array:
        if raw.ndim == 2 and raw.shape[1] == 1:
            raw = raw[:, 0]
        if raw.ndim != 1:
            raise UserError(f"{where} has shape {raw.shape}; labels must be one number a sample")
        if raw.dtype.kind == "f" and bool((raw == np.floor(raw)).all()):
            raw = raw.astype(np.int64)
        if raw.dtype.kind not in "iub":
            raise UserError(f"{where} is {raw.dtype}; labels must be integers")
        if raw.min() < 0:
            raise UserError(f"{where} holds the negative label {raw.min()}; labels must be numbered 0, 1, 2, ...")
        if raw.max() > np.iinfo(np.int64).max:
            raise UserError(f"{where} holds the label {raw.max()}; labels must be numbered 0, 1, 2, ...")
        return np.ascontiguousarray(raw, dtype=np.int64)

    @classmethod
    def of(cls, targets: Mapping[str, Array], outputs: int | None = None) -> Self:
        tops = {where: int(labels.max()) for where, labels in targets.items()}
        top = max(tops, key=tops.__getitem__)
        # A class nobody has ever seen would waste a row of the head; labels beyond the samples are surely a mistake.
        if tops[top] >= (outputs or sum(map(len, targets.values()))):
            expected = f"0..{outputs - 1}" if outputs else "numbered 0, 1, 2, ..."
            raise UserError(f"{top} holds the label {tops[top]}; labels must be {expected}")
        return cls(_affordable(outputs or tops[top] + 1, "classes"))

    def fits(self, targets: Array, where: str) -> None:
        if int(targets.max()) >= self.outputs:
            raise UserError(f"{where} has labels beyond the federation's {self.outputs} classes")

    def strata(self, targets: Array) -> Array:
        return targets

    @property
    def classes(self) -> int:
        return self.outputs

    @property
    def has_classes(self) -> bool:
        return True

    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        return functional.cross_entropy(outputs, targets)

    answered = "probabilities"

    def answers(self, outputs: Tensor) -> Tensor:
        return outputs.softmax(dim=-1)

    def insist_on(self, outputs: int) -> None:
        if outputs < self.outputs:
            raise UserError(f"the model has {outputs} outputs for {self.outputs} classes")

    def wrong(self, truth: Tensor) -> Tensor:
        return 50.0 * functional.one_hot((truth + 1) % self.outputs, self.outputs)


@dataclass(frozen=True)
class MultiLabel(Task):
    """Several labels that may all hold at once: targets are zeros and ones, outputs a logit for each label."""

    name = "multi-label"
    about = "several labels that may all hold at once, as zeros and ones"
    metrics = ("label_f1", "label_accuracy", "label_loss")

    @classmethod
    def clean(cls, raw: Array, where: str) -> Array:
        if raw.ndim != 2 or not np.isin(raw, (0, 1)).all():
            raise UserError(f"{where}: the labels of a sample are zeros and ones, one for each label there is")
        return np.ascontiguousarray(raw, dtype=np.float32)

    @classmethod
    def of(cls, targets: Mapping[str, Array], outputs: int | None = None) -> Self:
        return cls(_width(targets, outputs, "labels"))

    def fits(self, targets: Array, where: str) -> None:
        _width({where: targets}, self.outputs, "labels")

    def strata(self, targets: Array) -> Array:
        """The first label that a sample has; those without any are a group of their own."""
        none = targets.max(axis=1) < 0.5
        return np.where(none, self.outputs, targets.argmax(axis=1)).astype(np.int64)

    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        return functional.binary_cross_entropy_with_logits(outputs, targets)

    answered = "probabilities"

    def answers(self, outputs: Tensor) -> Tensor:
        return outputs.sigmoid()

    def wrong(self, truth: Tensor) -> Tensor:
        return 50.0 * (1 - 2 * truth)


@dataclass(frozen=True)
class Regression(Task):
    """Values: targets are numbers, outputs an answer for each of them; training minimises the squared distance.

    The network answers in units in which targets have mean 0 and deviation 1: ``shift`` and ``scale``, which follow
    from sums over all training targets. Metrics are in the targets' own unit.
    """

    outputs: int = 1
    shift: float = 0.0
    scale: float = 1.0
    name = "regression"
    about = "numbers"
    metrics = ("rmse", "mae", "r2")
    bins: ClassVar[int] = 10

    def __post_init__(self) -> None:
        if not self.scale > 0:
            raise UserError(f"the scale of regression has to be positive, not {self.scale}")

    @classmethod
    def clean(cls, raw: Array, where: str) -> Array:
        if raw.ndim == 1:
            raw = raw[:, None]
        if raw.ndim != 2 or raw.dtype.kind not in "fiu":
            raise UserError(f"{where} is {raw.dtype} of shape {raw.shape}; a sample's target is a number or several")
        with np.errstate(over="ignore"):  # infinite then, and refused as that
            values = np.ascontiguousarray(raw, dtype=np.float32)
        if not np.isfinite(values).all():
            raise UserError(f"{where} holds NaN or infinite values, or such that float32 cannot hold")
        return values

    @classmethod
    def of(cls, targets: Mapping[str, Array], outputs: int | None = None) -> Self:
        """Scale by the targets that are trained on, of which a site would have to tell a count and two sums."""
        width = _width(targets, outputs, "values")
        training = [t.astype(np.float64) for where, t in targets.items() if where.startswith("y_train")]
        values = training or [t.astype(np.float64) for t in targets.values()]
        count = sum(t.size for t in values)
        mean = float(sum(t.sum() for t in values) / count)
        variance = float(sum(np.square(t - mean).sum() for t in values) / count)
        return cls(width, float(f"{mean:.6g}"), float(f"{variance**0.5:.6g}") or 1.0)

    def fits(self, targets: Array, where: str) -> None:
        _width({where: targets}, self.outputs, "values")

    def strata(self, targets: Array) -> Array:
        """The tenth of all (first) targets in which a sample's lies."""
        values = targets[:, 0].astype(np.float64)
        edges = np.quantile(values, np.arange(1, self.bins) / self.bins)
        return np.searchsorted(edges, values, side="right").astype(np.int64)

    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        return functional.mse_loss(outputs, (targets - self.shift) / self.scale)

    def answers(self, outputs: Tensor) -> Tensor:
        return outputs * self.scale + self.shift

    def rows(self, outputs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        return self.answers(outputs), targets

    def wrong(self, truth: Tensor) -> Tensor:
        return torch.zeros_like(truth)  # no metric of values is bounded: nobody asks


@dataclass(frozen=True)
class NextToken(Task):
    """The next token: targets are tokens, one for each position, outputs a logit for each token of the vocabulary.

    Outputs are (samples, positions, vocabulary), or (samples, vocabulary) where a sample has one target. A target of
    -100 is not asked for (padding).
    """

    name = "next-token"
    about = "the next token, at one or at every position"
    metrics = ("perplexity", "token_accuracy")
    ignored: ClassVar[int] = -100

    @classmethod
    def clean(cls, raw: Array, where: str) -> Array:
        if raw.ndim not in (1, 2) or raw.dtype.kind not in "iu":
            raise UserError(f"{where}: the targets are tokens, one for each sample or for each position")
        if bool(((raw < 0) & (raw != cls.ignored)).any()):
            raise UserError(f"{where} holds a negative token; only {cls.ignored} has a meaning: it is not asked for")
        return np.ascontiguousarray(raw, dtype=np.int64)

    @classmethod
    def of(cls, targets: Mapping[str, Array], outputs: int | None = None) -> Self:
        made = cls(_affordable(outputs or 1 + max(int(t.max()) for t in targets.values()), "tokens"))
        for where, each in targets.items():
            made.fits(each, where)
        return made

    def fits(self, targets: Array, where: str) -> None:
        if int(targets.max()) >= self.outputs:
            raise UserError(f"{where} holds the token {int(targets.max())}, beyond a vocabulary of {self.outputs}")

    def strata(self, targets: Array) -> Array:
        """The token that is asked for; samples with many are all alike."""
        return targets if targets.ndim == 1 else super().strata(targets)

    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        return functional.cross_entropy(outputs.flatten(0, -2), targets.flatten())

    answered = "probabilities"

    def answers(self, outputs: Tensor) -> Tensor:
        return outputs.softmax(dim=-1)

    def insist_on(self, outputs: int) -> None:
        if outputs < self.outputs:
            raise UserError(f"the model has {outputs} outputs for a vocabulary of {self.outputs}")

    def rows(self, outputs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        rows, tokens = outputs.flatten(0, -2), targets.flatten()
        asked = tokens != self.ignored
        return rows[asked], tokens[asked]

    def wrong(self, truth: Tensor) -> Tensor:
        return 50.0 * functional.one_hot((truth + 1) % self.outputs, self.outputs)


def kind_of(targets: Array, where: str) -> type[Task]:
    """Tell by the targets of one place what is learned, where nobody said."""
    several = targets.ndim == 2 and targets.shape[1] > 1
    if targets.dtype.kind == "f":
        if not several and len(np.unique(targets)) <= 20 and bool((targets == np.floor(targets)).all()):
            raise UserError(
                f"{where} holds few different whole numbers, written as floats: say whether they are classes "
                "(task = classification) or amounts (task = regression)"
            )
        return Regression
    if several:
        return MultiLabel if np.isin(targets, (0, 1)).all() else NextToken
    return Classification


def kind_named(text: str) -> tuple[type[Task], int | None]:
    """Read ``name`` or ``name:outputs``: what kind of task, and with how many outputs, if that is said."""
    name, rest = TASKS.split(text)
    kind = TASKS.find(name)
    outputs = rest.strip().removeprefix("outputs=")
    if rest.strip() and not (outputs.isdecimal() and int(outputs) > 0):
        raise UserError(
            f"a task is named by itself, or with its number of outputs, which is a whole number from 1 on ({name}:3), "
            f"not as {text!r}"
        )
    return kind, int(outputs) if outputs else None


def _affordable(outputs: int, what: str) -> int:
    if not 1 <= outputs <= MOST_OUTPUTS:
        raise UserError(f"there may be up to {MOST_OUTPUTS:,} {what}, not {outputs:,}")
    return outputs


def _width(targets: Mapping[str, Array], announced: int | None, what: str) -> int:
    """How many numbers the target of a sample has: everywhere as many."""
    widths = {where: each.shape[1] for where, each in targets.items()}
    expected = announced or next(iter(widths.values()))
    for where, width in widths.items():
        if width != expected:
            raise UserError(f"{where} has {width} {what} for each sample, where {expected} are expected")
    return _affordable(expected, what)
