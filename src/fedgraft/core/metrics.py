"""Metrics: how good answers are, as tallies that add up over batches, clients and engines.

A metric counts and sums what a batch gave (``tally``), joins what was counted in two places (``add``), and reads the
whole (``value``). Averages are taken of nothing but whole clients: the mean over clients is that of their values, the
pooled figure is the value of their joined tallies. A ranking metric needs every score, so its tally is the scores
themselves; such a tally tells of single samples and does not leave a site.
"""

import math
from collections.abc import Callable
from typing import ClassVar

import torch
from torch import Tensor
from torch.nn import functional


class Metric:
    """One figure about a model's answers.

    ``higher`` says whether more is better, ``percent`` that people read it times a hundred. ``bounded``: a wrong answer
    costs only so much, so that a sample whose outputs are not finite can count as a wrong answer; elsewhere such a
    sample is left out, and its client named. ``single``: the tally holds single samples.
    """

    name: ClassVar[str]
    higher: ClassVar[bool] = True
    percent: ClassVar[bool] = True
    bounded: ClassVar[bool] = True
    single: ClassVar[bool] = False

    def tally(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Count what a batch gave."""
        raise NotImplementedError

    def add(self, one: Tensor, other: Tensor) -> Tensor:
        """Join two tallies."""
        return torch.cat([one, other]) if self.single else one + other

    def value(self, tally: Tensor) -> float:
        """Read the figure; NaN where it means nothing (no samples, a single class)."""
        raise NotImplementedError


# ---- one class of several: outputs are logits (samples, classes), targets are classes


class Accuracy(Metric):
    """The share of right answers."""

    name = "accuracy"

    def tally(self, outputs: Tensor, targets: Tensor) -> Tensor:
        return _pair((outputs.argmax(dim=1) == targets).sum(), targets.numel())

    def value(self, tally: Tensor) -> float:
        return _ratio(*tally.tolist())


class BalancedAccuracy(Metric):
    """The share of right answers in each class that occurs, averaged over those classes."""

    name = "balanced_accuracy"

    def tally(self, outputs: Tensor, targets: Tensor) -> Tensor:
        return _confusion(outputs.argmax(dim=1), targets, outputs.shape[1])

    def value(self, tally: Tensor) -> float:
        right, _, there = tally
        return _mean((right / there)[there > 0])


class MacroF1(Metric):
    """The harmonic mean of precision and recall of each class that occurs or is answered, averaged over them."""

    name = "macro_f1"

    def tally(self, outputs: Tensor, targets: Tensor) -> Tensor:
        return _confusion(outputs.argmax(dim=1), targets, outputs.shape[1])

    def value(self, tally: Tensor) -> float:
        return _f1(tally)


class LogLoss(Metric):
    """The mean of minus the logarithm of the probability that the right class was given."""

    name = "log_loss"
    higher, percent, bounded = False, False, False

    def tally(self, outputs: Tensor, targets: Tensor) -> Tensor:
        return _pair(functional.cross_entropy(outputs.double(), targets, reduction="sum"), targets.numel())

    def value(self, tally: Tensor) -> float:
        return _ratio(*tally.tolist())


class CalibrationError(Metric):
    """How far confidence is from accuracy: their distance in fifteen bins of confidence, weighed by samples."""

    name = "calibration_error"
    higher = False
    bins: ClassVar[int] = 15

    def tally(self, outputs: Tensor, targets: Tensor) -> Tensor:
        confidence, answer = outputs.double().softmax(dim=1).max(dim=1)
        place = (confidence * self.bins).ceil().long().clamp(1, self.bins) - 1
        counted = torch.stack([torch.ones_like(confidence), confidence, (answer == targets).double()])
        return torch.zeros(3, self.bins, dtype=torch.float64).index_add_(1, place.cpu(), counted.cpu())

    def value(self, tally: Tensor) -> float:
        count, confidence, right = tally
        return _ratio(float((confidence - right).abs().sum()), float(count.sum()))


class AUC(Metric):
    """The area under the ROC curve; of more than two classes each against the rest, averaged over those that occur."""

    name = "auc"
    single = True

    def tally(self, outputs: Tensor, targets: Tensor) -> Tensor:
        return _scores(outputs, targets)

    def value(self, tally: Tensor) -> float:
        return _mean_over_classes(tally, area_under_roc)


class AveragePrecision(Metric):
    """The mean precision over the ranks of the positives; of several classes as for AUC."""

    name = "average_precision"
    single = True

    def tally(self, outputs: Tensor, targets: Tensor) -> Tensor:
        return _scores(outputs, targets)

    def value(self, tally: Tensor) -> float:
        return _mean_over_classes(tally, average_precision)


# ---- several labels at once: outputs are logits (samples, labels), targets are zeros and ones


class LabelAccuracy(Metric):
    """The share of labels that were answered rightly."""

    name = "label_accuracy"

    def tally(self, outputs: Tensor, targets: Tensor) -> Tensor:
        return _pair(((outputs > 0) == (targets > 0.5)).sum(), targets.numel())

    def value(self, tally: Tensor) -> float:
        return _ratio(*tally.tolist())


class LabelF1(Metric):
    """The harmonic mean of precision and recall of each label, averaged over labels that occur or are answered."""

    name = "label_f1"

    def tally(self, outputs: Tensor, targets: Tensor) -> Tensor:
        answered, there = outputs > 0, targets > 0.5
        return torch.stack([(answered & there).sum(0), answered.sum(0), there.sum(0)]).double().cpu()

    def value(self, tally: Tensor) -> float:
        return _f1(tally)


class LabelAUC(Metric):
    """The area under the ROC curve of each label that some samples have and some have not, averaged over them."""

    name = "label_auc"
    single = True

    def tally(self, outputs: Tensor, targets: Tensor) -> Tensor:
        return torch.cat([outputs.double(), targets.double()], dim=1).cpu()

    def value(self, tally: Tensor) -> float:
        scores, there = tally.chunk(2, dim=1)
        each = [area_under_roc(s, t > 0.5) for s, t in zip(scores.T, there.T, strict=True)]
        return _mean(torch.tensor([area for area in each if not math.isnan(area)], dtype=torch.float64))


class LabelLoss(Metric):
    """The mean over samples and labels of minus the logarithm of the probability that the truth was given."""

    name = "label_loss"
    higher, percent, bounded = False, False, False

    def tally(self, outputs: Tensor, targets: Tensor) -> Tensor:
        loss = functional.binary_cross_entropy_with_logits(outputs.double(), targets.double(), reduction="sum")
        return _pair(loss, targets.numel())

    def value(self, tally: Tensor) -> float:
        return _ratio(*tally.tolist())


# ---- values: outputs and targets are (samples, values)


class R2(Metric):
    """The share of the variance of the targets that the answers explain, averaged over values."""

    name = "r2"
    bounded = False
    percent = False

    def tally(self, outputs: Tensor, targets: Tensor) -> Tensor:
        y, residual = targets.double(), (targets - outputs).double()
        return torch.stack([torch.ones_like(y).sum(0), y.sum(0), y.square().sum(0), residual.square().sum(0)]).cpu()

    def value(self, tally: Tensor) -> float:
        count, total, squares, residual = tally
        variance = squares - total.square() / count
        varies = variance > 1e-12 * squares.clamp(min=1e-300)
        return _mean((1 - residual / variance)[varies])


class MeanAbsoluteError(Metric):
    """The mean distance between answer and target."""

    name = "mae"
    higher, percent, bounded = False, False, False

    def tally(self, outputs: Tensor, targets: Tensor) -> Tensor:
        return _pair((outputs - targets).double().abs().sum(), targets.numel())

    def value(self, tally: Tensor) -> float:
        return _ratio(*tally.tolist())


class RootMeanSquaredError(Metric):
    """The root of the mean squared distance between answer and target."""

    name = "rmse"
    higher, percent, bounded = False, False, False

    def tally(self, outputs: Tensor, targets: Tensor) -> Tensor:
        return _pair((outputs - targets).double().square().sum(), targets.numel())

    def value(self, tally: Tensor) -> float:
        return math.sqrt(mean) if (mean := _ratio(*tally.tolist())) >= 0 else math.nan


# ---- tokens: outputs are logits (tokens, vocabulary), targets are tokens


class Perplexity(Metric):
    """The exponential of the mean log loss of a token: among how many tokens the model is at a loss."""

    name = "perplexity"
    higher, percent, bounded = False, False, False

    def tally(self, outputs: Tensor, targets: Tensor) -> Tensor:
        return LogLoss().tally(outputs, targets)

    def value(self, tally: Tensor) -> float:
        loss = _ratio(*tally.tolist())
        return math.exp(loss) if loss < 700 else math.inf if loss == loss else math.nan


class TokenAccuracy(Accuracy):
    """The share of tokens that were foretold rightly."""

    name = "token_accuracy"


# ---- formulas


def area_under_roc(scores: Tensor, positive: Tensor) -> float:
    """The share of pairs of a positive and a negative that the scores put in order; a tie is half a pair."""
    positives, negatives = int(positive.sum()), int((~positive).sum())
    if not positives or not negatives:
        return math.nan
    _, place, count = torch.unique(scores, return_inverse=True, return_counts=True)
    last = count.cumsum(0).double()
    rank = (last - (count.double() - 1) / 2)[place]
    return float((rank[positive].sum() - positives * (positives + 1) / 2) / (positives * negatives))


def average_precision(scores: Tensor, positive: Tensor) -> float:
    """The sum over thresholds of precision times the recall that was won there."""
    if not bool(positive.any()):
        return math.nan
    values, place = torch.unique(scores, return_inverse=True)
    there = torch.zeros(len(values), dtype=torch.float64).index_add_(0, place, positive.double()).flip(0)
    counted = torch.zeros(len(values), dtype=torch.float64).index_add_(0, place, torch.ones_like(scores)).flip(0)
    precision = there.cumsum(0) / counted.cumsum(0)
    return float((precision * there).sum() / positive.sum())


def _scores(outputs: Tensor, targets: Tensor) -> Tensor:
    """The score of every class and the class: of two classes, the margin of the second."""
    scores = (outputs[:, 1:] - outputs[:, :1]).double() if outputs.shape[1] == 2 else outputs.double().softmax(dim=1)
    return torch.cat([scores, targets.double()[:, None]], dim=1).cpu()


def _mean_over_classes(tally: Tensor, figure: Callable[[Tensor, Tensor], float]) -> float:
    scores, targets = tally[:, :-1], tally[:, -1].long()
    if scores.shape[1] == 1:
        return figure(scores[:, 0], targets == 1) if len(torch.unique(targets)) > 1 else math.nan
    held = torch.unique(targets).tolist()
    if len(held) < 2:
        return math.nan
    return _mean(torch.tensor([figure(scores[:, c], targets == c) for c in held], dtype=torch.float64))


def _confusion(answers: Tensor, targets: Tensor, classes: int) -> Tensor:
    """Of each class: how many answers were right, how often it was answered, how many samples it has."""
    right = targets[answers == targets]
    return torch.stack([torch.bincount(each, minlength=classes) for each in (right, answers, targets)]).double().cpu()


def _f1(tally: Tensor) -> float:
    right, answered, there = tally
    seen = (answered + there) > 0
    return _mean((2 * right / (answered + there))[seen])


def _pair(amount: Tensor, count: int) -> Tensor:
    return torch.tensor([float(amount), float(count)], dtype=torch.float64)


def _ratio(amount: float, count: float) -> float:
    return amount / count if count else math.nan


def _mean(values: Tensor) -> float:
    return float(values.mean()) if values.numel() else math.nan
