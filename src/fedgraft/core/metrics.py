"""Metrics: how good answers are, as tallies that add up over batches, clients and engines.

A metric counts and sums what a batch gave (``tally``), joins what was counted in two places (``add``), and reads the
whole (``value``). Averages are taken of nothing but whole clients: the mean over clients is that of their values, the
pooled figure is the value of their joined tallies. A ranking metric needs every score, so its tally is the scores
themselves; such a tally tells of single samples and does not leave a site, which sends the value alone.

A metric of one's own is a class of this kind in any file: ``--metrics ./mine.py:Mine``.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Metric:
    """One figure about a model's answers.

    ``higher`` says whether more is better, ``percent`` that people read it times a hundred. ``bounded``: it lies
    between 0 and 1, and a wrong answer costs only so much, so that a sample whose outputs are not finite can count as a
    wrong answer; elsewhere such a sample is left out, and its client named. ``single``: the tally holds single samples.
    ``tasks`` are those that it can judge; without any, all.
    """

    name: ClassVar[str]
    title: ClassVar[str] = ""
    about: ClassVar[str] = ""
    tasks: ClassVar[tuple[str, ...]] = ()
    higher: ClassVar[bool] = True
    percent: ClassVar[bool] = False
    bounded: ClassVar[bool] = False
    single: ClassVar[bool] = False
    counted: ClassVar[bool] = False
    """Whether it is the share of samples that were predicted correctly, so that their number says how sure it is."""

    def shape(self, outputs: int) -> tuple[int, ...]:
        """Return the shape of a tally for a network of so many outputs; a ``single`` metric is not asked."""
        return (2,)

    def tally(self, outputs: Tensor, targets: Tensor) -> Array:
        """Count the results of a batch."""
        raise NotImplementedError

    def add(self, one: Array, other: Array) -> Array:
        """Join two tallies."""
        return np.concatenate([one, other]) if self.single else one + other

    def value(self, tally: Array) -> float:
        """Read the figure; NaN where it means nothing (no samples, a single class). A pair is a sum and a count."""
        amount, count = tally
        return float(amount / count) if count else math.nan

    def possible(self, tally: Array, total: int, broken: int) -> bool:
        """Whether a test can have given this tally, on ``total`` samples of which ``broken`` have no finite answer.

        A server asks that of what a client sends. A sum of losses may be infinite, and then counts nowhere.
        """
        return self.single or not self.bounded or (float(tally.min()) >= 0 and not self.value(tally) > 1)


# ---- one class of several: outputs are logits (samples, classes), targets are classes


@dataclass(frozen=True)
class Accuracy(Metric):
    """The share of right answers."""

    name = "accuracy"
    title = "accuracy"
    about = "share of right answers"
    tasks = ("classification",)
    percent, bounded, counted = True, True, True

    def tally(self, outputs: Tensor, targets: Tensor) -> Array:
        return _pair((outputs.argmax(dim=1) == targets).sum(), targets.numel())

    def possible(self, tally: Array, total: int, broken: int) -> bool:
        right, counted = tally.tolist()
        return bool(counted == total and right.is_integer() and 0 <= right <= total - broken)


@dataclass(frozen=True)
class BalancedAccuracy(Metric):
    """The share of right answers in each class that occurs, averaged over those classes."""

    name = "balanced_accuracy"
    title = "balanced accuracy"
    about = "share of right answers in each class that occurs, averaged over classes"
    tasks = ("classification",)
    percent, bounded = True, True

    def shape(self, outputs: int) -> tuple[int, ...]:
        return (3, outputs)

    def tally(self, outputs: Tensor, targets: Tensor) -> Array:
        return _confusion(outputs.argmax(dim=1), targets, outputs.shape[1])

    def value(self, tally: Array) -> float:
        right, _, there = tally
        return _mean(right[there > 0] / there[there > 0])


@dataclass(frozen=True)
class MacroF1(Metric):
    """The harmonic mean of precision and recall of each class that occurs or is answered, averaged over them."""

    name = "macro_f1"
    title = "macro F1"
    about = "F1 of each class that occurs or is answered, averaged over classes"
    tasks = ("classification",)
    percent, bounded = True, True

    def shape(self, outputs: int) -> tuple[int, ...]:
        return (3, outputs)

    def tally(self, outputs: Tensor, targets: Tensor) -> Array:
        return _confusion(outputs.argmax(dim=1), targets, outputs.shape[1])

    def value(self, tally: Array) -> float:
        return _f1(tally)


@dataclass(frozen=True)
class LogLoss(Metric):
    """The mean of minus the logarithm of the probability that the right class was given."""

    name = "log_loss"
    title = "log loss"
    about = "mean of minus the logarithm of the probability given to the right class"
    tasks = ("classification",)
    higher = False

    def tally(self, outputs: Tensor, targets: Tensor) -> Array:
        return _pair(functional.cross_entropy(outputs.double(), targets, reduction="sum"), targets.numel())


@dataclass(frozen=True)
class CalibrationError(Metric):
    """How far confidence is from accuracy: their distance in bins of confidence, weighed by samples."""

    name = "calibration_error"
    title = "calibration error"
    about = "distance of confidence and accuracy in bins of confidence, weighed by samples"
    tasks = ("classification",)
    higher, percent, bounded = False, True, True
    bins: int = 15

    def shape(self, outputs: int) -> tuple[int, ...]:
        return (3, self.bins)

    def tally(self, outputs: Tensor, targets: Tensor) -> Array:
        confidence, answer = outputs.double().softmax(dim=1).max(dim=1)
        place = (confidence * self.bins).ceil().long().clamp(1, self.bins) - 1
        counted = torch.stack([torch.ones_like(confidence), confidence, (answer == targets).double()])
        return torch.zeros(3, self.bins, dtype=torch.float64).index_add_(1, place.cpu(), counted.cpu()).numpy()

    def value(self, tally: Array) -> float:
        count, confidence, right = tally
        return _ratio(float(np.abs(confidence - right).sum()), float(count.sum()))


@dataclass(frozen=True)
class AUC(Metric):
    """The area under the ROC curve; of more than two classes each against the rest, averaged over those that occur."""

    name = "auc"
    title = "AUC"
    about = "area under the ROC curve; of several classes each against the rest, averaged"
    tasks = ("classification",)
    percent, bounded, single = True, True, True

    def tally(self, outputs: Tensor, targets: Tensor) -> Array:
        return _scores(outputs, targets)

    def value(self, tally: Array) -> float:
        return _mean_over_classes(tally, area_under_roc)


@dataclass(frozen=True)
class AveragePrecision(Metric):
    """The mean precision over the ranks of the positives; of several classes as for AUC."""

    name = "average_precision"
    title = "average precision"
    about = "mean precision over the ranks of the positives; of several classes averaged"
    tasks = ("classification",)
    percent, bounded, single = True, True, True

    def tally(self, outputs: Tensor, targets: Tensor) -> Array:
        return _scores(outputs, targets)

    def value(self, tally: Array) -> float:
        return _mean_over_classes(tally, average_precision)


# ---- several labels at once: outputs are logits (samples, labels), targets are zeros and ones


@dataclass(frozen=True)
class LabelAccuracy(Metric):
    """The share of labels that were predicted correctly."""

    name = "label_accuracy"
    title = "label accuracy"
    about = "share of labels that were predicted correctly"
    tasks = ("multi-label",)
    percent, bounded = True, True

    def tally(self, outputs: Tensor, targets: Tensor) -> Array:
        return _pair(((outputs > 0) == (targets > 0.5)).sum(), targets.numel())


@dataclass(frozen=True)
class LabelF1(Metric):
    """The harmonic mean of precision and recall of each label, averaged over labels that occur or are answered."""

    name = "label_f1"
    title = "label F1"
    about = "F1 of each label that occurs or is answered, averaged over labels"
    tasks = ("multi-label",)
    percent, bounded = True, True

    def shape(self, outputs: int) -> tuple[int, ...]:
        return (3, outputs)

    def tally(self, outputs: Tensor, targets: Tensor) -> Array:
        answered, there = outputs > 0, targets > 0.5
        return torch.stack([(answered & there).sum(0), answered.sum(0), there.sum(0)]).double().cpu().numpy()

    def value(self, tally: Array) -> float:
        return _f1(tally)


@dataclass(frozen=True)
class LabelAUC(Metric):
    """The area under the ROC curve of each label that some samples have and some have not, averaged over them."""

    name = "label_auc"
    title = "label AUC"
    about = "area under the ROC curve of each label, averaged over labels"
    tasks = ("multi-label",)
    percent, bounded, single = True, True, True

    def tally(self, outputs: Tensor, targets: Tensor) -> Array:
        return torch.cat([outputs.double(), targets.double()], dim=1).cpu().numpy()

    def value(self, tally: Array) -> float:
        scores, there = np.split(tally, 2, axis=1)
        each = [area_under_roc(s, t > 0.5) for s, t in zip(scores.T, there.T, strict=True)]
        return _mean(np.array([area for area in each if not math.isnan(area)]))


@dataclass(frozen=True)
class LabelLoss(Metric):
    """The mean over samples and labels of minus the logarithm of the probability that the truth was given."""

    name = "label_loss"
    title = "log loss"
    about = "mean over samples and labels of minus the logarithm of the probability given to the truth"
    tasks = ("multi-label",)
    higher = False

    def tally(self, outputs: Tensor, targets: Tensor) -> Array:
        loss = functional.binary_cross_entropy_with_logits(outputs.double(), targets.double(), reduction="sum")
        return _pair(loss, targets.numel())


# ---- values: outputs and targets are (samples, values)


@dataclass(frozen=True)
class R2(Metric):
    """The share of the variance of the targets that the answers explain, averaged over values."""

    name = "r2"
    title = "R2"
    about = "share of the targets' variance that the answers explain"
    tasks = ("regression",)

    def shape(self, outputs: int) -> tuple[int, ...]:
        return (4, outputs)

    def tally(self, outputs: Tensor, targets: Tensor) -> Array:
        y, residual = targets.double(), targets.double() - outputs.double()
        sums = (torch.ones_like(y).sum(0), y.sum(0), y.square().sum(0), residual.square().sum(0))
        return torch.stack(sums).cpu().numpy()

    def value(self, tally: Array) -> float:
        count, total, squares, residual = tally[:, tally[0] > 0]
        variance = squares - np.square(total) / count
        varies = variance > 1e-12 * np.maximum(squares, 1e-300)
        return _mean(1 - residual[varies] / variance[varies])


@dataclass(frozen=True)
class MeanAbsoluteError(Metric):
    """The mean distance between answer and target."""

    name = "mae"
    title = "MAE"
    about = "mean distance of answer and target, in the target's unit"
    tasks = ("regression",)
    higher = False

    def tally(self, outputs: Tensor, targets: Tensor) -> Array:
        return _pair((outputs.double() - targets.double()).abs().sum(), targets.numel())


@dataclass(frozen=True)
class RootMeanSquaredError(Metric):
    """The root of the mean squared distance between answer and target."""

    name = "rmse"
    title = "RMSE"
    about = "root of the mean squared distance of answer and target, in the target's unit"
    tasks = ("regression",)
    higher = False

    def tally(self, outputs: Tensor, targets: Tensor) -> Array:
        return _pair((outputs.double() - targets.double()).square().sum(), targets.numel())

    def value(self, tally: Array) -> float:
        return math.sqrt(mean) if (mean := super().value(tally)) >= 0 else math.nan


# ---- tokens: outputs are logits (tokens, vocabulary), targets are tokens


@dataclass(frozen=True)
class Perplexity(Metric):
    """The exponential of the mean log loss of a token: among how many tokens the model is at a loss."""

    name = "perplexity"
    title = "perplexity"
    about = "exponential of a token's mean log loss"
    tasks = ("next-token",)
    higher = False

    def tally(self, outputs: Tensor, targets: Tensor) -> Array:
        return LogLoss().tally(outputs, targets)

    def value(self, tally: Array) -> float:
        loss = super().value(tally)
        return math.exp(loss) if loss < 700 else math.inf if loss == loss else math.nan


@dataclass(frozen=True)
class TokenAccuracy(Metric):
    """The share of tokens that were predicted correctly."""

    name = "token_accuracy"
    title = "token accuracy"
    about = "share of tokens that were predicted correctly"
    tasks = ("next-token",)
    percent, bounded = True, True

    def tally(self, outputs: Tensor, targets: Tensor) -> Array:
        return Accuracy().tally(outputs, targets)


# ---- formulas


def area_under_roc(scores: Array, positive: Array) -> float:
    """Return the share of pairs of a positive and a negative that the scores put in order; a tie is half a pair."""
    positives, negatives = int(positive.sum()), int((~positive).sum())
    if not positives or not negatives:
        return math.nan
    _, place, count = np.unique(scores, return_inverse=True, return_counts=True)
    rank = (count.cumsum() - (count - 1) / 2)[place.reshape(-1)]
    return float((rank[positive].sum() - positives * (positives + 1) / 2) / (positives * negatives))


def average_precision(scores: Array, positive: Array) -> float:
    """Return the sum over thresholds of precision times the recall that was won there."""
    if not positive.any():
        return math.nan
    _, place = np.unique(scores, return_inverse=True)
    there, counted = (np.bincount(place.reshape(-1), weights=w)[::-1] for w in (positive.astype(float), None))
    precision = there.cumsum() / counted.cumsum()
    return float((precision * there).sum() / positive.sum())


def _scores(outputs: Tensor, targets: Tensor) -> Array:
    """The score of every class and the class: of two classes, the margin of the second."""
    scores = (outputs[:, 1:] - outputs[:, :1]).double() if outputs.shape[1] == 2 else outputs.double().softmax(dim=1)
    return torch.cat([scores, targets.double()[:, None]], dim=1).cpu().numpy()


def _mean_over_classes(tally: Array, figure: Callable[[Array, Array], float]) -> float:
    scores, targets = tally[:, :-1], tally[:, -1].astype(int)
    held = np.unique(targets)
    if len(held) < 2:
        return math.nan
    if scores.shape[1] == 1:
        return figure(scores[:, 0], targets == 1)
    return _mean(np.array([figure(scores[:, c], targets == c) for c in held]))


def _confusion(answers: Tensor, targets: Tensor, classes: int) -> Array:
    """Of each class: how many answers were right, how often it was answered, how many samples it has."""
    right = targets[answers == targets]
    counts = [torch.bincount(each, minlength=classes) for each in (right, answers, targets)]
    return torch.stack(counts).double().cpu().numpy()


def _f1(tally: Array) -> float:
    right, answered, there = tally
    seen = (answered + there) > 0
    return _mean(2 * right[seen] / (answered + there)[seen])


def _pair(amount: Tensor, count: int) -> Array:
    return np.array([float(amount), float(count)])


def _ratio(amount: float, count: float) -> float:
    return amount / count if count else math.nan


def _mean(values: Array) -> float:
    return float(values.mean()) if values.size else math.nan
