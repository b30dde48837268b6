"""How well an attack tells members from others, with intervals, and the least epsilon that this is compatible with.

A client whose training is (epsilon, delta)-private lets no attack have TPR > e^epsilon FPR + delta, nor
1 - FPR > e^epsilon (1 - TPR) + delta (Kairouz, Oh, Viswanath, ICML 2015). Whoever measures rates thereby bounds epsilon
from below, with the confidence of intervals by Clopper and Pearson. Samples count as independent in all of them; those
of one model are so only about.
"""

import math
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import scipy  # its parts when they are first used: each takes a moment to import
from numpy.typing import NDArray

from fedgraft.core import streams
from fedgraft.runs.statistics import CONFIDENCE, Interval

Scores = NDArray[np.float64]
FEW_ALARMS = 0.01
"""The false positive rate at which true positives are told."""
THRESHOLDS = 200
"""How many are tried, at most, on the half of the samples that chooses."""


class Rate(NamedTuple):
    """A share of samples, and where it lies at a confidence of 95 %."""

    value: float
    interval: Interval

    @classmethod
    def of(cls, hits: int, total: int) -> "Rate":
        return cls(hits / total if total else math.nan, clopper_pearson(hits, total))


def clopper_pearson(hits: int, total: int, confidence: float = CONFIDENCE) -> Interval:
    """Return where a probability lies that gave so many hits; each end is missed with half of what is left."""
    tail = (1 - confidence) / 2
    low = 0.0 if hits == 0 else float(scipy.stats.beta.ppf(tail, hits, total - hits + 1))
    high = 1.0 if hits == total else float(scipy.stats.beta.ppf(1 - tail, hits + 1, total - hits))
    return Interval(low, high)


def area(members: Scores, others: Scores) -> Rate:
    """The probability that a member scores above another sample, ties being half (AUC); interval by DeLong et al."""
    m, n = len(members), len(others)
    ranks = scipy.stats.rankdata(np.concatenate([members, others]))
    above = (ranks[:m] - scipy.stats.rankdata(members)) / n  # of each member: the share of others below it
    below = 1 - (ranks[m:] - scipy.stats.rankdata(others)) / m
    found = float(above.mean())
    if min(m, n) < 2:
        return Rate(found, Interval(0.0, 1.0))
    spread = math.sqrt(above.var(ddof=1) / m + below.var(ddof=1) / n)
    reach = float(scipy.stats.norm.ppf((1 + CONFIDENCE) / 2)) * spread
    return Rate(found, Interval(max(0.0, found - reach), min(1.0, found + reach)))


def caught(members: Scores, others: Scores, alarms: float = FEW_ALARMS) -> Rate:
    """The share of members above a threshold that at most such a share of others is above."""
    allowed = int(alarms * len(others))
    threshold = np.sort(others)[len(others) - 1 - allowed]
    return Rate.of(int((members > threshold).sum()), len(members))


@dataclass(frozen=True)
class Bound:
    """The least epsilon that the rates of an attack are compatible with, at a confidence of 95 %."""

    epsilon: float
    threshold: float
    positive: bool
    """Whether members are told by scores above the threshold; else, others by scores below it."""
    right: Rate
    """Of those that are told apart: how many are, rightly."""
    wrong: Rate
    """How many of the others are taken for such."""


def implied(right: Interval, wrong: Interval, delta: float) -> float:
    """The epsilon below which no attack has such rates: right from above, wrong from below would be worse for it."""
    if right.low <= delta:
        return 0.0
    return max(0.0, math.log((right.low - delta) / wrong.high))


def least_epsilon(members: Scores, others: Scores, delta: float) -> Bound | None:
    """Bound epsilon by half of the samples, with the threshold that the other half chose; none, if there are few."""
    (choosing, judged), (apart, rest) = (_halves(each, what) for each, what in ((members, "in"), (others, "out")))
    if min(map(len, (choosing, judged, apart, rest))) < 2:
        return None
    tried = np.unique(np.quantile(np.concatenate([choosing, apart]), np.linspace(0, 1, THRESHOLDS)))
    found = [_bound(choosing, apart, float(at), delta, positive=way) for at in tried for way in (True, False)]
    best = max(found, key=lambda each: each.epsilon)
    return _bound(judged, rest, best.threshold, delta, positive=best.positive)


def _bound(members: Scores, others: Scores, threshold: float, delta: float, *, positive: bool) -> Bound:
    sign = 1 if positive else -1
    told, taken = (members, others) if positive else (others, members)
    right, wrong = (Rate.of(int((sign * each > sign * threshold).sum()), len(each)) for each in (told, taken))
    return Bound(implied(right.interval, wrong.interval, delta), threshold, positive, right, wrong)


def _halves(scores: Scores, what: str) -> tuple[Scores, Scores]:
    """Two halves by chance, the same ones each time."""
    order = streams.generator("audit", "halves", what).permutation(len(scores))
    return scores[order[: len(scores) // 2]], scores[order[len(scores) // 2 :]]


@dataclass(frozen=True)
class Verdict:
    """What an attack reaches on some members and others."""

    members: int
    others: int
    area: Rate
    caught: Rate

    @classmethod
    def of(cls, members: Scores, others: Scores) -> "Verdict":
        return cls(len(members), len(others), area(members, others), caught(members, others))

    def facts(self) -> dict[str, Any]:
        return {
            "members": self.members,
            "others": self.others,
            "auc": self.area.value,
            "auc_interval": list(self.area.interval),
            "tpr_at_1_percent_fpr": self.caught.value,
            "tpr_interval": list(self.caught.interval),
        }
