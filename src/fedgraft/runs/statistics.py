"""Whether a difference is more than noise.

Values come in groups: a group for each seed, in it a value for each client. Two methods are compared by the clients
that they have in common, so what is looked at is differences of pairs. Clients of one seed share a partition, a start
and a server, so that they need not be independent (:func:`clustered_signed_rank`).
"""

import math
from collections.abc import Sequence
from itertools import accumulate
from typing import NamedTuple

import numpy as np
import scipy  # its parts when they are first used: each takes a moment to import
from numpy.typing import NDArray

from fedgraft.core import streams

CONFIDENCE = 0.95
SIGNIFICANT = 0.05
RESAMPLES = 2000
DIGITS = 12
"""Differences that agree in so many are a tie: 0.7 - 0.6 and 0.6 - 0.5."""
EXACT_PAIRS = 100
"""Up to so many pairs that differ, the signed ranks' distribution is worked out; beyond, it is normal."""

Group = Sequence[float] | NDArray[np.float64]
Groups = Sequence[Group]


class Interval(NamedTuple):
    """From where to where, at a confidence of 95 %."""

    low: float
    high: float


class Difference(NamedTuple):
    """Paired differences: their mean, how sure it is, and who is better and worse off."""

    mean: float
    interval: Interval
    p: float
    corrected: float
    """The p value, corrected for the number of differences that were looked at together."""
    better: int
    worse: int
    same: int
    seeds: int
    family: int = 1
    """How many differences were looked at together."""
    leaning: int = 0
    """Which way the ranks of the differences point: 1 up, -1 down. A few large losses pull a mean the other way."""

    @property
    def pairs(self) -> int:
        return self.better + self.worse + self.same

    @property
    def improvement(self) -> float:
        """The probability that a client is better off; a tie is half a chance."""
        return (self.better + self.same / 2) / self.pairs

    @property
    def more_than_noise(self) -> bool:
        """Whether the corrected test and the interval both say so, and of the same direction."""
        apart = self.interval.low > 0 or self.interval.high < 0
        return self.corrected < SIGNIFICANT and apart and self.leaning * self.mean > 0

    @property
    def too_few(self) -> bool:
        """Whether there are so few pairs that the corrected test could not tell even if all of them said the same."""
        return self.family * 2.0 ** (1 - self.pairs) >= SIGNIFICANT and self.corrected >= SIGNIFICANT

    @property
    def most_gain(self) -> bool:
        """Whether more than half are better off, by more than chance."""
        return (
            self.more_than_noise and 2 * self.better > self.pairs and sign_test(self.better, self.worse) < SIGNIFICANT
        )


def paired(groups: Groups) -> Difference | None:
    """Look at the paired differences of each seed; there is nothing to say if there are none."""
    there = [np.asarray(group, dtype=np.float64) for group in groups if len(group)]
    if not there:
        return None
    values = np.concatenate(there).round(DIGITS)
    p = clustered_signed_rank(there)
    return Difference(
        mean=float(np.mean([group.mean() for group in there])),
        interval=bootstrap(there),
        p=p,
        corrected=p,
        better=int((values > 0).sum()),
        worse=int((values < 0).sum()),
        same=int((values == 0).sum()),
        seeds=len(there),
        leaning=int(np.sign(_signed_ranks(values).sum())),
    )


def together(differences: Sequence[Difference]) -> list[Difference]:
    """Correct the p values of differences that are looked at together."""
    return [
        difference._replace(corrected=p, family=len(differences))
        for difference, p in zip(differences, holm([difference.p for difference in differences]), strict=True)
    ]


def bootstrap(groups: Groups) -> Interval:
    """The percentile interval of the mean: seeds are drawn with replacement, and in each of them its clients.

    The mean is that of the seeds' means. The draws are the same every time.
    """
    rng = streams.generator(0, "bootstrap", len(groups), sum(map(len, groups)))
    seeds = rng.integers(len(groups), size=(RESAMPLES, len(groups)))
    means = np.empty(seeds.shape)
    for seed, group in enumerate(groups):
        drawn = seeds == seed
        clients = rng.integers(len(group), size=(int(drawn.sum()), len(group)))
        means[drawn] = np.asarray(group, dtype=np.float64)[clients].mean(axis=1)
    tail = 100 * (1 - CONFIDENCE) / 2
    low, high = np.percentile(means.mean(axis=1), (tail, 100 - tail))
    return Interval(float(low), float(high))


def signed_rank(differences: Group) -> float:
    """The two-sided p value of Wilcoxon's signed-rank test.

    Zeros take part in the ranking and then drop out (Pratt), ties share their ranks. For few pairs the distribution
    over all signs is worked out with these very ranks, so that ties cost no accuracy.
    """
    scores = _signed_ranks(differences)
    ranks, seen = np.abs(scores[scores != 0]), float(abs(scores.sum()))
    if not len(ranks):
        return 1.0
    if len(ranks) > EXACT_PAIRS:
        return float(2 * scipy.stats.norm.sf(seen / math.sqrt(float(ranks @ ranks))))
    doubled = (2 * ranks).round().astype(int)  # shared ranks are halves
    chances = np.zeros(int(doubled.sum()) + 1)
    chances[0] = 1.0
    for rank in doubled:
        moved = chances.copy()
        moved[rank:] += chances[:-rank]
        chances = moved / 2
    distance = np.abs(2 * np.arange(len(chances)) - (len(chances) - 1))  # of the sum of signed ranks, from none
    return float(min(1.0, chances[distance >= 2 * seen].sum()))


def clustered_signed_rank(groups: Groups) -> float:
    """The p value of Wilcoxon's signed-rank test where the members of a group need not be independent.

    How sure the mean signed rank is, an analysis of variance tells: the mean square between groups or, if that is
    larger, the one within them. Both are guesses, with few groups bad ones: the true square is the one that was seen,
    divided by a chi-squared variable over its degrees of freedom. The p value is the chance that a normal variable with
    a variance of which no more is known is as far from zero as the mean was (a fiducial p value). Where groups differ
    much, it is that of Student's test of their mean ranks. It is never below the p value of independent members.
    """
    values = np.concatenate(groups)
    p = signed_rank(values)
    freedom = (len(groups) - 1, len(values) - len(groups))
    if not all(freedom) or p >= 1:  # a single group; a single member in each; or nothing to tell at all
        return p
    ranks = _signed_ranks(values)
    members = np.split(ranks, np.cumsum([len(group) for group in groups])[:-1])
    seen = float(ranks.mean())
    between = sum(len(group) * (group.mean() - seen) ** 2 for group in members) / freedom[0]
    within = sum(len(group) * group.var() for group in members) / freedom[1]
    normal = np.linspace(0, 10, 1001)
    bar = normal**2 / (len(values) * seen**2)  # above which a variance takes the mean as far as was seen
    one, other = (
        scipy.stats.chi2.cdf(bar * square * of, of) for square, of in zip((between, within), freedom, strict=True)
    )
    either = scipy.stats.norm.pdf(normal) * (one + other - one * other)
    return max(p, float(2 * scipy.integrate.trapezoid(either, normal)))


def _signed_ranks(differences: Group) -> NDArray[np.float64]:
    """The rank of each difference by its size, with its sign; of a difference of zero it is zero."""
    values = np.asarray(differences, dtype=np.float64).round(DIGITS)
    return np.asarray(scipy.stats.rankdata(np.abs(values)) * np.sign(values))


def sign_test(better: int, worse: int) -> float:
    """The two-sided p value of so many better and worse, if each were a coin's throw."""
    return float(scipy.stats.binomtest(better, better + worse).pvalue) if better + worse else 1.0


def holm(ps: Sequence[float]) -> list[float]:
    """Holm's correction for looking at several p values."""
    order = sorted(range(len(ps)), key=lambda place: ps[place])
    stepped = accumulate((min(1.0, (len(ps) - step) * ps[place]) for step, place in enumerate(order)), max)
    corrected = dict(zip(order, stepped, strict=True))
    return [corrected[place] for place in range(len(ps))]


def over_seeds(values: Sequence[float]) -> Interval | None:
    """How sure the mean over seeds is: Student's interval; of a single seed nothing is known."""
    if len(values) < 2:
        return None
    mean, error = float(np.mean(values)), float(np.std(values, ddof=1)) / math.sqrt(len(values))
    reach = float(scipy.stats.t.isf((1 - CONFIDENCE) / 2, len(values) - 1)) * error
    return Interval(mean - reach, mean + reach)


def more_than_chance(found: int, among: int) -> bool:
    """Whether so many intervals are above zero that chance alone, a tail of each, would hardly give as many."""
    return float(scipy.stats.binom.sf(found - 1, among, (1 - CONFIDENCE) / 2)) < SIGNIFICANT


def wilson(share: float, samples: int) -> Interval:
    """How sure a share of so many samples is: Wilson's score interval."""
    if not samples:
        return Interval(0.0, 1.0)
    found = scipy.stats.binomtest(round(share * samples), samples).proportion_ci(CONFIDENCE, method="wilson")
    return Interval(float(found.low), float(found.high))


def between_areas(one: float, other: float, positives: int, negatives: int) -> Interval:
    """The interval of the difference of two areas under ROC curves (AUC), by Hanley and McNeil's variance (1982).

    Both are taken for independent, as shares are: that both are of the same samples makes the interval too wide.
    """

    def variance(area: float) -> float:
        first, second = area / (2 - area), 2 * area**2 / (1 + area)
        spread = (positives - 1) * (first - area**2) + (negatives - 1) * (second - area**2)
        return (area * (1 - area) + spread) / (positives * negatives)

    reach = float(scipy.stats.norm.ppf((1 + CONFIDENCE) / 2)) * math.sqrt(variance(one) + variance(other))
    return Interval(one - other - reach, one - other + reach)


def between_shares(one: float, other: float, samples: int) -> Interval:
    """How sure the difference of two shares of the same samples is: Newcombe's interval from Wilson's.

    It takes the shares for independent. On the same samples they agree more than that, so it is rather too wide.
    """
    (low, high), (other_low, other_high) = wilson(one, samples), wilson(other, samples)
    difference = one - other
    return Interval(
        difference - math.hypot(one - low, other_high - other), difference + math.hypot(high - one, other - other_low)
    )


def net_samples(difference: float, samples: int) -> int:
    """How many of the samples make up a difference of two shares: +14.3 points of 14 samples are 2."""
    return round(difference * samples)


# ---- over draws: how much of a figure is the draw, and how many draws a difference takes

POWER = 0.8
MOST_DRAWS = 10_000


class Components(NamedTuple):
    """Variances of a table with a row for each draw and a column for each method."""

    draw: float
    method: float
    rest: float
    """What neither explains: methods that suit one draw more than another, starts, batches, the last bits."""

    @property
    def shares(self) -> tuple[float, float, float]:
        """Of the whole variance, in the order of the components."""
        total = sum(self)
        return (self.draw / total, self.method / total, self.rest / total) if total else (0.0, 0.0, 0.0)

    @property
    def within(self) -> float:
        """Of what one method varies by from draw to draw, the share that all methods have in common."""
        return self.draw / (self.draw + self.rest) if self.draw + self.rest else 0.0


def components(table: Groups) -> Components:
    """Variance components of figures by draw (rows) and method (columns), from the analysis of variance.

    Both are taken for random, with one figure in each cell; an estimate below zero is zero.
    """
    values = np.asarray(table, dtype=np.float64)
    draws, methods = values.shape
    rows, columns, whole = values.mean(axis=1), values.mean(axis=0), values.mean()
    rest = float(((values - rows[:, None] - columns + whole) ** 2).sum() / ((draws - 1) * (methods - 1)))
    by_draw = methods * float(np.var(rows, ddof=1))
    by_method = draws * float(np.var(columns, ddof=1))
    return Components(max(0.0, (by_draw - rest) / methods), max(0.0, (by_method - rest) / draws), rest)


def power(difference: float, deviation: float, draws: int, *, pairs: bool) -> float:
    """The chance that Student's two-sided test at 5 % notices a difference with so many draws.

    With ``pairs``, both methods have the same draws, and ``deviation`` is that of their differences; without, each
    method has as many draws of its own, and it is that of one method's figures.
    """
    freedom = draws - 1 if pairs else 2 * (draws - 1)
    error = deviation * math.sqrt((1 if pairs else 2) / draws)
    if not error:
        return float(difference != 0)
    bar, shift = scipy.stats.t.isf(SIGNIFICANT / 2, freedom), abs(difference) / error
    found = float(scipy.stats.nct.sf(bar, freedom, shift) + scipy.stats.nct.cdf(-bar, freedom, shift))
    return 1.0 if math.isnan(found) else found  # scipy has none for a shift of very many errors


def draws_needed(difference: float, deviation: float, *, pairs: bool) -> int | None:
    """With how many draws (of each method) a difference is noticed four times in five; none, if not with very many."""
    low, high = 2, 2
    while power(difference, deviation, high, pairs=pairs) < POWER:
        if high == MOST_DRAWS:
            return None
        low, high = high + 1, min(2 * high, MOST_DRAWS)
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if power(difference, deviation, middle, pairs=pairs) >= POWER else (middle + 1, high)
    return low


class Line(NamedTuple):
    """A straight line through points, and how well it fits."""

    slope: float
    intercept: float
    explained: float
    """The share of the variance that it explains (R squared)."""
    p: float
    """Of no slope at all."""
    interval: Interval
    """Of the slope."""


def line(x: Group, y: Group) -> Line | None:
    """Least squares; nothing can be said of fewer than three points, or of points above each other."""
    if len(x) < 3 or np.ptp(np.asarray(x, dtype=np.float64)) == 0:
        return None
    fit = scipy.stats.linregress(x, y)
    reach = float(scipy.stats.t.isf((1 - CONFIDENCE) / 2, len(x) - 2)) * float(fit.stderr)
    slope = float(fit.slope)
    explained = float(fit.rvalue) ** 2
    return Line(slope, float(fit.intercept), explained, float(fit.pvalue), Interval(slope - reach, slope + reach))


class Standing(NamedTuple):
    """Where a published mean lies among our draws."""

    deviations: float
    """How far above our mean, in deviations of the difference of two such means."""
    p: float
    """Of its being a mean of draws like ours."""


def standing(value: float, among: Group, of: int = 1) -> Standing:
    """Where a published mean of so many draws lies; ours are a sample too, of which the uncertainty counts in."""
    here = np.asarray(among, dtype=np.float64)
    deviations = float((value - here.mean()) / (here.std(ddof=1) * math.sqrt(1 / of + 1 / len(here))))
    return Standing(deviations, float(2 * scipy.stats.t.sf(abs(deviations), len(here) - 1)))


# ---- many methods at once: ranks


class Ranks(NamedTuple):
    """Mean ranks of methods over blocks (draws, or settings), 1 for the best, and what chance would make of them."""

    mean: tuple[float, ...]
    p: float
    """Of Friedman's test: that all methods are alike."""
    critical: float
    """Mean ranks that are further apart than this differ at 5 % (Nemenyi)."""
    blocks: int


def ranks(table: Groups) -> Ranks | None:
    """Rank methods (columns) within every block (row) of figures of which more is better; ties share their ranks.

    Friedman's test is corrected for ties. Nothing can be said of a single block or method.
    """
    values = np.asarray(table, dtype=np.float64)
    if values.ndim != 2 or min(values.shape) < 2:
        return None
    blocks, methods = values.shape
    each = scipy.stats.rankdata(-values.round(12), axis=1)
    mean = each.mean(axis=0)
    spread = float(((each - (methods + 1) / 2) ** 2).sum()) / (blocks * (methods - 1))
    between = blocks * float(((mean - (methods + 1) / 2) ** 2).sum())
    p = float(scipy.stats.chi2.sf(between / spread, methods - 1)) if spread else 1.0
    return Ranks(tuple(float(rank) for rank in mean), p, critical_difference(methods, blocks), blocks)


def critical_difference(methods: int, blocks: int) -> float:
    """Nemenyi's: how far apart mean ranks of two among so many methods have to be (Demsar, 2006)."""
    quantile = float(scipy.stats.studentized_range.ppf(1 - SIGNIFICANT, methods, np.inf)) / math.sqrt(2)
    return quantile * math.sqrt(methods * (methods + 1) / (6 * blocks))


def crossed(table: Groups) -> Interval:
    """The percentile interval of the mean of draws x clients, where all draws have the same clients; NaN is absent.

    Draws and clients are drawn with replacement, independently of each other; a client counts by the mean of its
    draws, and only where it took part. The draws are the same every time.
    """
    values = np.asarray(table, dtype=np.float64)
    values = values[np.isfinite(values).any(axis=1)]  # a draw without a figure is none
    rng = streams.generator(0, "crossed bootstrap", *values.shape)
    draws, clients = values.shape
    times = (rng.integers(draws, size=(RESAMPLES, draws))[..., None] == np.arange(draws)).sum(axis=1)
    counts = times @ np.isfinite(values).astype(np.int64)
    each = times @ np.nan_to_num(values) / np.maximum(counts, 1)
    present = (counts > 0).sum(axis=1, keepdims=True)
    first = np.argsort(counts == 0, axis=1, kind="stable")  # those that took part, then the others
    chosen = np.take_along_axis(first, (rng.random((RESAMPLES, clients)) * present).astype(np.int64), axis=1)
    counted = np.arange(clients) < present
    means = (np.take_along_axis(each, chosen, axis=1) * counted).sum(axis=1) / present[:, 0]
    tail = 100 * (1 - CONFIDENCE) / 2
    low, high = np.percentile(means, (tail, 100 - tail))
    return Interval(float(low), float(high))
