"""The task: what is learned from a batch, and how answers are judged.

A task says what targets and outputs look like, what training minimises, and which metrics judge the answers, the first
of them leading. Nothing outside it knows what a right answer is.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from fedgraft.core.errors import UserError
from fedgraft.core.metrics import (
    AUC,
    R2,
    Accuracy,
    AveragePrecision,
    BalancedAccuracy,
    CalibrationError,
    LabelAccuracy,
    LabelAUC,
    LabelF1,
    LabelLoss,
    LogLoss,
    MacroF1,
    MeanAbsoluteError,
    Metric,
    Perplexity,
    RootMeanSquaredError,
    TokenAccuracy,
)

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Task:
    """What is learned and how it is judged; ``outputs`` is how many numbers a network answers with."""

    outputs: int
    name: ClassVar[str] = "task"
    metrics: ClassVar[tuple[type[Metric], ...]] = ()

    @property
    def classes(self) -> int:
        """How many classes there are, for methods that cannot do without."""
        raise UserError(f"{self.name} has no classes")

    def targets(self, raw: Array, where: str) -> Tensor:
        """Take the targets of one split as they lie there, or say what is wrong with them."""
        raise NotImplementedError

    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Return what training minimises: the mean over a batch."""
        raise NotImplementedError

    def flat(self, outputs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        """Return one row for each thing that is judged."""
        return outputs, targets

    def wrong(self, targets: Tensor) -> Tensor:
        """Return outputs that are certainly wrong, for samples on which a model has none that are finite."""
        raise NotImplementedError

    def judge(self, outputs: Tensor, targets: Tensor, metrics: Sequence[Metric]) -> tuple[Mapping[str, Tensor], int]:
        """Return the tally of each metric, and how many samples have outputs that are not finite.

        These count as wrong answers where a wrong answer costs only so much, and are left out elsewhere.
        """
        finite = torch.isfinite(outputs.flatten(1)).all(dim=1)
        broken = len(outputs) - int(finite.sum())
        if not broken:
            rows = self.flat(outputs, targets)
            return {metric.name: metric.tally(*rows) for metric in metrics}, 0
        sound = self.flat(outputs[finite], targets[finite])
        answers, truth = self.flat(outputs[~finite], targets[~finite])
        mended = torch.cat([sound[0], self.wrong(truth).to(answers)]), torch.cat([sound[1], truth])
        return {m.name: m.tally(*(mended if m.bounded else sound)) for m in metrics}, broken


@dataclass(frozen=True)
class Classification(Task):
    """One class of several: targets are whole numbers from 0, outputs a logit for each class."""

    name = "classification"
    metrics = (Accuracy, LogLoss, BalancedAccuracy, MacroF1, AUC, AveragePrecision, CalibrationError)

    @property
    def classes(self) -> int:
        return self.outputs

    def targets(self, raw: Array, where: str) -> Tensor:
        y = np.asarray(raw)
        if y.ndim != 1 or not np.issubdtype(y.dtype, np.integer):
            raise UserError(f"{where}: labels are whole numbers in one dimension")
        if len(y) and (int(y.min()) < 0 or int(y.max()) >= self.outputs):
            worst = int(y.min()) if int(y.min()) < 0 else int(y.max())
            raise UserError(f"{where}: there is a label {worst}, and there are {self.outputs} classes from 0 on")
        return torch.from_numpy(y.astype(np.int64))

    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        return functional.cross_entropy(outputs, targets)

    def wrong(self, targets: Tensor) -> Tensor:
        return 50.0 * functional.one_hot((targets + 1) % self.outputs, self.outputs)


@dataclass(frozen=True)
class MultiLabel(Task):
    """Several labels that may all hold at once: targets are zeros and ones, outputs a logit for each label."""

    name = "multi-label"
    metrics = (LabelF1, LabelAUC, LabelAccuracy, LabelLoss)

    def targets(self, raw: Array, where: str) -> Tensor:
        y = np.asarray(raw)
        if y.ndim != 2 or y.shape[1] != self.outputs or not np.isin(y, (0, 1)).all():
            raise UserError(f"{where}: the labels of a sample are {self.outputs} zeros and ones")
        return torch.from_numpy(y.astype(np.float32))

    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        return functional.binary_cross_entropy_with_logits(outputs, targets)

    def wrong(self, targets: Tensor) -> Tensor:
        return 50.0 * (1 - 2 * targets)


@dataclass(frozen=True)
class Regression(Task):
    """Values: targets are numbers, outputs an answer for each of them; training minimises the squared distance."""

    outputs: int = 1
    name = "regression"
    metrics = (R2, MeanAbsoluteError, RootMeanSquaredError)

    def targets(self, raw: Array, where: str) -> Tensor:
        y = np.asarray(raw)
        if y.ndim == 1:
            y = y[:, None]
        if y.ndim != 2 or y.shape[1] != self.outputs or not np.issubdtype(y.dtype, np.number):
            raise UserError(f"{where}: the target of a sample is {self.outputs} number{'s' * (self.outputs > 1)}")
        made = y.astype(np.float32)
        if not np.isfinite(made).all():
            raise UserError(f"{where}: there are targets that are not finite")
        return torch.from_numpy(made)

    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        return functional.mse_loss(outputs, targets)

    def wrong(self, targets: Tensor) -> Tensor:
        return torch.zeros_like(targets)  # no metric of values is bounded: nobody asks


@dataclass(frozen=True)
class NextToken(Task):
    """The next token: targets are tokens, as many as positions, outputs a logit for each token of the vocabulary.

    A target of -100 is not asked for (padding). A network may also answer for the last position alone: then a sample
    has one target.
    """

    name = "next-token"
    metrics = (Perplexity, TokenAccuracy)
    ignored: ClassVar[int] = -100

    def targets(self, raw: Array, where: str) -> Tensor:
        y = np.asarray(raw)
        if y.ndim not in (1, 2) or not np.issubdtype(y.dtype, np.integer):
            raise UserError(f"{where}: the targets are tokens, one for each sample or for each position")
        asked = y[y != self.ignored]
        if len(asked) and (int(asked.min()) < 0 or int(asked.max()) >= self.outputs):
            raise UserError(f"{where}: there is a token {int(asked.max())} beyond a vocabulary of {self.outputs}")
        return torch.from_numpy(y.astype(np.int64))

    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        return functional.cross_entropy(outputs.reshape(-1, self.outputs), targets.reshape(-1))

    def flat(self, outputs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        rows, tokens = outputs.reshape(-1, self.outputs), targets.reshape(-1)
        asked = tokens != self.ignored
        return rows[asked], tokens[asked]

    def wrong(self, targets: Tensor) -> Tensor:
        return 50.0 * functional.one_hot((targets + 1) % self.outputs, self.outputs)


TASKS: dict[str, type[Task]] = {task.name: task for task in (Classification, MultiLabel, Regression, NextToken)}
