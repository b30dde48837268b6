"""Rates and bounds of attacks, against numbers worked out by hand."""

import math

import numpy as np
import pytest

from fedgraft.audit.verdict import Verdict, area, caught, clopper_pearson, implied, least_epsilon
from fedgraft.runs.statistics import Interval


def test_intervals_by_clopper_and_pearson() -> None:
    """No hit in n, or n of n: the other end p has (1 - p)^n = 2.5 %. Ends in between satisfy the binomial tails."""
    assert clopper_pearson(0, 10) == pytest.approx((0.0, 1 - 0.025**0.1))
    assert clopper_pearson(10, 10) == pytest.approx((0.025**0.1, 1.0))
    low, high = clopper_pearson(3, 5)

    def at_least(p: float, hits: int) -> float:
        return sum(math.comb(5, k) * p**k * (1 - p) ** (5 - k) for k in range(hits, 6))

    assert at_least(low, 3) == pytest.approx(0.025)
    assert 1 - at_least(high, 4) == pytest.approx(0.025)


def test_epsilon_that_rates_imply() -> None:
    assert implied(Interval(0.5, 0.7), Interval(0.1, 0.25), 0.0) == pytest.approx(math.log(2))
    assert implied(Interval(0.5, 0.7), Interval(0.1, 0.25), 0.25) == pytest.approx(0)
    assert implied(Interval(0.2, 0.7), Interval(0.1, 0.4), 0.0) == 0
    assert implied(Interval(0.01, 0.7), Interval(0.0, 0.4), 0.05) == 0


def test_the_area_counts_pairs_and_halves_ties() -> None:
    members, others = np.array([3.0, 2.0, 1.0]), np.array([2.0, 0.0])
    assert area(members, others).value == pytest.approx((2 + 1.5 + 1) / 6)
    # DeLong: deviations of the members' shares (1, 3/4, 1/2) and of the others' (1/2, 1)
    reach = 1.959964 * math.sqrt((1 / 16) / 3 + (1 / 8) / 2)
    assert area(members, others).interval == pytest.approx((0.75 - reach, min(1.0, 0.75 + reach)), abs=1e-5)


def test_true_positives_at_few_alarms() -> None:
    others = np.arange(200.0)  # two may be above the threshold: 199 and 198
    assert caught(np.array([197.0, 197.5, 300.0, 10.0]), others).value == 0.5
    assert caught(np.array([5.0, 11.0]), np.arange(10.0)).value == 0.5  # of ten, none may be


def test_scores_that_say_nothing_prove_nothing() -> None:
    rng = np.random.default_rng(0)
    members, others = rng.standard_normal((2, 2000))
    found = Verdict.of(members, others)
    assert found.area.interval.low < 0.5 < found.area.interval.high
    assert found.caught.interval.low < 0.01 < found.caught.interval.high
    bound = least_epsilon(members, others, 1e-5)
    assert bound is not None
    assert bound.epsilon < 0.1


@pytest.mark.parametrize("sign", [1, -1])
def test_the_bound_finds_the_epsilon_of_randomised_response(sign: int) -> None:
    """Members answer yes with p, others with 1 - p: epsilon is log(p / (1 - p)), whichever answer is rarer."""
    rng, p = np.random.default_rng(1), 0.9
    members, others = ((rng.random(4000) < each).astype(np.float64) - 0.5 for each in (p, 1 - p))
    bound = least_epsilon(sign * members, sign * others, 0.0)
    assert bound is not None
    if sign > 0:
        assert 1.9 < bound.epsilon < math.log(9)
    else:
        assert bound.epsilon == 0  # an attack that is wrong about everything is not turned round for it


def test_a_single_separating_score_is_bounded_by_the_number_of_samples() -> None:
    bound = least_epsilon(np.ones(100), np.zeros(100), 0.0)
    assert bound is not None
    assert bound.epsilon == pytest.approx(math.log(0.025 ** (1 / 50) / (1 - 0.025 ** (1 / 50))))
    assert least_epsilon(np.ones(3), np.zeros(3), 0.0) is None
