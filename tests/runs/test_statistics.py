"""Statistics against numbers worked out by hand, and against scipy where it has the same."""

import math
from itertools import chain

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from fedgraft.runs import statistics
from fedgraft.runs.statistics import (
    Interval,
    between_areas,
    between_shares,
    bootstrap,
    clustered_signed_rank,
    components,
    critical_difference,
    crossed,
    draws_needed,
    holm,
    line,
    net_samples,
    paired,
    power,
    ranks,
    sign_test,
    signed_rank,
    standing,
    together,
    wilson,
)


def drawn(seed: int, count: int, shift: float = 0.0) -> list[float]:
    return (shift + np.random.default_rng(seed).standard_normal(count)).tolist()


def test_all_signs_alike_have_one_chance_in_so_many() -> None:
    assert signed_rank([1, 2, 3]) == 2 / 2**3
    assert signed_rank([1, 1, 1, 1, 1]) == 2 / 2**5, "ties change nothing where all signs are alike"
    # 0.1 twice, whatever floating point makes of it: ranks 1.5, 1.5, 3, and a sum of 0 that all 8 reach
    assert signed_rank([0.7 - 0.6, 0.6 - 0.5, -0.3]) == 1
    assert signed_rank([0, 0, 0]) == 1
    assert signed_rank([]) == 1


def test_zeros_take_ranks_and_drop_out() -> None:
    # Of 0, 0, 1, -2, 3 the ranks of those that differ are 3, 4, 5. Their signed sum is 4; of the 8 sums (12, 6, 4, 2
    # and their negatives) 6 are as far from zero as 4.
    assert signed_rank([0, 0, 1, -2, 3]) == 6 / 8
    # Without the zeros, the ranks are 1, 2, 3, the sum is 2, and the sums are 6, 4, 2, 0 and 0, -2, -4, -6.
    assert signed_rank([1, -2, 3]) == 6 / 8


@pytest.mark.parametrize("count", [4, 9, 30, 50])
def test_signed_ranks_are_scipys_where_nothing_is_tied(count: int) -> None:
    values = drawn(count, count, 0.2)
    assert signed_rank(values) == pytest.approx(stats.wilcoxon(values, method="exact").pvalue)


def test_signed_ranks_with_ties_are_those_of_all_signs() -> None:
    values = np.array([0.1, 0.1, 0.2, -0.1, 0.2, 0.3, -0.2, 0.1, 0.0])
    every = stats.wilcoxon(values, zero_method="pratt", method=stats.PermutationMethod(n_resamples=10_000))
    assert signed_rank(values) == pytest.approx(every.pvalue)


def test_many_pairs_are_normal_as_in_scipy() -> None:
    values = np.round(drawn(0, 400, 0.1), 1)
    assert signed_rank(values) == pytest.approx(
        stats.wilcoxon(values, zero_method="pratt", method="asymptotic").pvalue, rel=1e-6
    )


def test_the_exact_and_the_normal_distribution_agree(monkeypatch: pytest.MonkeyPatch) -> None:
    values = drawn(3, 90, 0.15)
    exact = signed_rank(values)
    monkeypatch.setattr(statistics, "EXACT_PAIRS", 0)
    assert signed_rank(values) == pytest.approx(exact, rel=0.03)


def test_holms_steps() -> None:
    # 0.01 x 3, 0.02 x 2, 0.03 x 1, and none below the one before it
    assert holm([0.03, 0.01, 0.02]) == pytest.approx([0.04, 0.03, 0.04])
    assert holm([0.6, 0.9]) == [1.0, 1.0]
    assert holm([]) == []


@given(st.lists(st.floats(0, 1), max_size=8))
def test_holm_corrects_upwards_and_keeps_the_order(ps: list[float]) -> None:
    corrected = holm(ps)
    assert all(before <= after <= min(1, len(ps) * before) for before, after in zip(ps, corrected, strict=True))
    assert [after for _, after in sorted(zip(ps, corrected, strict=True))] == sorted(corrected)


def test_the_interval_of_one_seed_is_that_of_scipys_bootstrap() -> None:
    values = drawn(1, 40, 0.5)
    theirs = stats.bootstrap(
        (np.array(values),), np.mean, method="percentile", n_resamples=20_000, rng=np.random.default_rng(0)
    ).confidence_interval
    assert bootstrap([values]) == pytest.approx((theirs.low, theirs.high), abs=0.03)
    assert bootstrap([values]) == bootstrap([values]), "the same draws every time"


def test_the_interval_knows_that_seeds_differ() -> None:
    clients = [0.0, 0.1, -0.1, 0.05, -0.05] * 4
    alike, apart = ([[value + shift * far for value in clients] for shift in (-1, 0, 1)] for far in (0.0, 1.0))
    narrow, wide = bootstrap(alike), bootstrap(apart)
    assert narrow.high - narrow.low < 0.08
    assert wide.low < -0.6
    assert wide.high > 0.6, "the mean of three seeds at -1, 0 and 1"


def test_the_interval_holds_the_truth_about_as_often_as_it_says() -> None:
    """Eight seeds of twelve clients with a deviation of one within and a half between: 95 % nominal."""
    rng = np.random.default_rng(7)
    held = 0
    for _ in range(200):
        groups = [(rng.normal(0, 0.5) + rng.standard_normal(12)).tolist() for _ in range(8)]
        low, high = bootstrap(groups)
        held += low <= 0 <= high
    assert 0.88 <= held / 200 <= 0.995


def test_clients_that_always_agree_are_students_test_of_their_seeds() -> None:
    # Ranks 2.5, 6.5 and 10.5 for four clients each: t is 6.5 / (4 / sqrt(3)), and p with two degrees of freedom is
    # 1 - t / sqrt(2 + t^2).
    t = 6.5 * 3**0.5 / 4
    assert clustered_signed_rank([[1] * 4, [2] * 4, [4] * 4]) == pytest.approx(1 - t / (2 + t**2) ** 0.5, abs=1e-6)
    assert signed_rank([1] * 4 + [2] * 4 + [4] * 4) == 2 / 2**12, "as if they were independent"


def test_clients_are_independent_where_nothing_says_otherwise() -> None:
    assert clustered_signed_rank([[1, 2, 3, -4]]) == signed_rank([1, 2, 3, -4]), "one seed"
    assert clustered_signed_rank([[1], [2], [3], [-4]]) == signed_rank([1, 2, 3, -4]), "one client in each seed"
    assert clustered_signed_rank([[0.1] * 5, [0.1] * 6]) == signed_rank([0.1] * 11), "nothing differs"
    assert clustered_signed_rank([[1, -1], [2, -2]]) == 1
    assert clustered_signed_rank([[0, 0], [0, 0]]) == 1


@given(st.lists(st.lists(st.integers(-9, 9), min_size=1, max_size=6), min_size=1, max_size=5))
def test_a_p_value_is_one_and_never_below_that_of_independent_clients(groups: list[list[int]]) -> None:
    assert signed_rank(list(chain(*groups))) <= clustered_signed_rank(groups) <= 1
    assert clustered_signed_rank(groups) == pytest.approx(clustered_signed_rank(groups[::-1])), "seeds have no order"
    assert clustered_signed_rank(groups) == pytest.approx(
        clustered_signed_rank([[-each for each in group] for group in groups])
    )


def test_with_many_seeds_it_is_what_their_means_say() -> None:
    rng = np.random.default_rng(5)
    for apart, shift in [(1.0, 0.0), (1.0, 0.15), (0.5, 0.1)]:
        groups = [shift + rng.normal(0, apart) + rng.standard_normal(16) for _ in range(200)]
        student = stats.ttest_1samp([group.mean() for group in groups], 0).pvalue
        found = clustered_signed_rank(groups)
        assert stats.norm.isf(found / 2) == pytest.approx(stats.norm.isf(student / 2), abs=0.3)


@pytest.mark.parametrize("apart", [0.0, 0.35, 0.65, 1.2])
@pytest.mark.parametrize(("seeds", "clients"), [(2, 12), (3, 16), (5, 16)])
def test_noise_is_rarely_called_more_than_noise(seeds: int, clients: int, apart: float) -> None:
    """No difference between two methods, and seeds that differ as much as they like: how often is p below 0.05?"""
    rng = np.random.default_rng(11)
    called, naive, repeats = 0, 0, 600
    for _ in range(repeats):
        groups = [rng.normal(0, apart) + rng.standard_normal(clients) for _ in range(seeds)]
        called += clustered_signed_rank(groups) < 0.05
        naive += signed_rank(np.concatenate(groups)) < 0.05
    assert called / repeats <= 0.05 + 3 * math.sqrt(0.05 * 0.95 / repeats)
    assert naive / repeats > 0.3 or apart < 0.5, "as if all clients were independent"


@pytest.mark.parametrize("apart", [0.35, 1.2])
@pytest.mark.parametrize(("seeds", "clients", "methods"), [(3, 10, 6), (5, 16, 31)])
def test_of_many_methods_that_are_alike_rarely_one_is_called(
    seeds: int, clients: int, methods: int, apart: float
) -> None:
    rng = np.random.default_rng(11)
    called, families = 0, 30
    for _ in range(families):
        drawn = [[rng.normal(0, apart) + rng.standard_normal(clients) for _ in range(seeds)] for _ in range(methods)]
        found = [told for each in drawn if (told := paired(each)) is not None]
        called += any(each.more_than_noise for each in together(found))
    assert called / families <= 0.05 + 2 * math.sqrt(0.05 * 0.95 / families)


@pytest.mark.parametrize("apart", [0.0, 0.35])
def test_a_difference_is_found_although_seeds_differ(apart: float) -> None:
    """The test is not bought with blindness: with five seeds a difference of one deviation of the clients is seen."""
    rng = np.random.default_rng(3)
    found = [paired([1 + rng.normal(0, apart) + rng.standard_normal(16) for _ in range(5)]) for _ in range(40)]
    assert sum(each is not None and each.more_than_noise for each in found) >= 36


def test_a_difference_by_hand() -> None:
    found = paired([[0.1, 0.3, 0.0], [0.2, -0.1, 0.1]])
    assert found is not None
    assert found.mean == pytest.approx((0.4 / 3 + 0.2 / 3) / 2)
    assert (found.better, found.worse, found.same, found.pairs, found.seeds) == (4, 1, 1, 6, 2)
    assert found.improvement == pytest.approx(4.5 / 6)
    assert not found.more_than_noise
    five, six = paired([[0.1] * 5]), paired([[0.1] * 6])
    assert five is not None
    assert six is not None
    assert (five.p, five.too_few, five.more_than_noise) == (0.0625, True, False)
    assert (six.p, six.too_few, six.more_than_noise) == (0.03125, False, True)
    assert paired([]) is None
    assert paired([[], []]) is None


def test_a_few_large_losses_and_many_small_gains_are_no_verdict() -> None:
    """The mean says worse and the ranks say better, both clearly: neither is told as more than noise."""
    found = paired([[0.01] * 90 + [-1.0] * 10])
    assert found is not None
    assert found.mean < 0
    assert found.interval.high < 0
    assert (found.corrected < 0.001, found.leaning, found.more_than_noise) == (True, 1, False)
    clear = paired([[-0.1 - 0.01 * client for client in range(10)]])
    assert clear is not None
    assert (clear.leaning, clear.more_than_noise) == (-1, True)


def test_what_rounding_leaves_is_no_gain() -> None:
    dust = 0.1 + 0.2 - 0.3
    assert dust > 0
    found = paired([[dust, 0.1, -0.1]])
    assert found is not None
    assert (found.better, found.same, found.worse) == (1, 1, 1)


def test_very_many_pairs_of_three_seeds_are_still_three_seeds() -> None:
    """Their p without the design effect is too small for a float, and must not be taken for a certainty."""
    groups = [np.random.default_rng(seed).normal(mean, 0.001, 1000) for seed, mean in enumerate((0.1, 0.5, 1.5))]
    assert signed_rank(np.concatenate(groups)) == 0
    found = paired(groups)
    assert found is not None
    assert found.p > 0.1
    assert not found.more_than_noise


def test_an_interval_that_is_not_known_tells_nothing() -> None:
    found = paired([[0.1] * 10])
    assert found is not None
    assert not found._replace(interval=Interval(math.nan, math.nan)).more_than_noise


def test_most_gain_only_if_it_is_more_than_chance() -> None:
    clear = paired([[0.1 + 0.01 * client for client in range(10)]])
    assert clear is not None
    assert (clear.more_than_noise, clear.most_gain, clear.too_few) == (True, True, False)
    few_gain_much = paired([[0.5] * 8 + [0.0] * 12])
    assert few_gain_much is not None
    assert (few_gain_much.more_than_noise, few_gain_much.most_gain) == (True, False)
    luck = paired([[0.1, 0.1, 0.1, 0.1, 0.1, 0.1, -0.1, -0.1, -0.1, -0.1]])
    assert luck is not None
    assert (2 * luck.better > luck.pairs, luck.most_gain) == (True, False)
    assert sign_test(8, 0) == 2 / 2**8
    assert sign_test(0, 0) == 1


def test_several_differences_are_corrected_together() -> None:
    one, two = paired([drawn(0, 12, 0.9)]), paired([drawn(1, 12)])
    assert one is not None
    assert two is not None
    assert [each.corrected for each in together([one, two])] == pytest.approx(holm([one.p, two.p]))
    assert together([one])[0].corrected == one.p


def test_pairs_that_are_enough_for_one_test_may_be_too_few_for_several() -> None:
    six = paired([[0.1] * 6])
    assert six is not None
    assert [each.too_few for each in together([six])] == [False], "p is 1/32"
    both = together([six, six])
    assert [(each.corrected, each.too_few) for each in both] == [(1 / 16, True)] * 2
    ten = paired([[0.1] * 10])
    assert ten is not None
    assert not any(each.too_few or not each.more_than_noise for each in together([ten] * 25)), "25/512 is below 1/20"
    assert all(each.too_few and not each.more_than_noise for each in together([ten] * 26))
    twelve = paired([[0.1] * 12])
    assert twelve is not None
    told = together([twelve, six])[1]
    assert (told.corrected, told.more_than_noise, told.too_few) == (1 / 32, True, False), "Holm's last step is no step"


def test_how_sure_a_share_of_few_samples_is() -> None:
    # 2 of 14, z = 1.95996: (2 + z^2 / 2) / (14 + z^2), more or less z sqrt(2 * 12 / 14 + z^2 / 4) / (14 + z^2)
    assert wilson(2 / 14, 14) == pytest.approx((0.0401, 0.3994), abs=1e-4)
    assert wilson(1.0, 10).high == 1
    assert wilson(0.5, 0) == (0, 1)
    assert net_samples(0.1429, 14) == 2
    assert net_samples(-0.1, 10) == -1


def test_how_sure_a_clients_difference_is() -> None:
    # Newcombe (1998), his method 10: 56/70 against 48/80, here with the same number of samples for both
    low, high = between_shares(0.8, 0.6, 70)
    (one_low, one_high), (two_low, two_high) = wilson(0.8, 70), wilson(0.6, 70)
    assert low == pytest.approx(0.2 - ((0.8 - one_low) ** 2 + (two_high - 0.6) ** 2) ** 0.5)
    assert high == pytest.approx(0.2 + ((one_high - 0.8) ** 2 + (0.6 - two_low) ** 2) ** 0.5)
    assert low > 0
    assert between_shares(10 / 14, 8 / 14, 14).low < 0, "2 of 14 images can be chance"


def test_how_sure_a_mean_over_seeds_is() -> None:
    # mean 2, deviation 1, three values: 2 -+ 4.3027 / sqrt(3)
    assert statistics.over_seeds([1.0, 2.0, 3.0]) == pytest.approx((2 - 2.4841, 2 + 2.4841), abs=1e-4)
    assert statistics.over_seeds([1.0]) is None


def test_of_many_intervals_a_few_are_above_zero_by_chance() -> None:
    # one of 40 at 2.5 % each: 1 - 0.975^40 = 0.64; four: 0.018; two of six: 0.0087
    assert not statistics.more_than_chance(1, 40)
    assert statistics.more_than_chance(4, 40)
    assert statistics.more_than_chance(2, 6)
    assert not statistics.more_than_chance(0, 6)


def test_variance_of_a_table_goes_to_draws_to_methods_and_to_the_rest() -> None:
    # Figures that are draw + method exactly: rows 0, 1, 2 have variance 1; columns 0, 2, 4 variance 4; nothing is left.
    exact = [[draw + method for method in (0, 2, 4)] for draw in (0, 1, 2)]
    found = components(exact)
    assert found.rest == pytest.approx(0)
    assert (found.draw, found.method) == pytest.approx((1, 4))
    assert found.shares == pytest.approx((0.2, 0.8, 0))
    assert found.within == pytest.approx(1)
    # [[1, 0], [0, 1]]: all means are alike, so that all is rest: 4 times 0.25 over one degree of freedom.
    assert components([[1, 0], [0, 1]]) == (0, 0, pytest.approx(1))


def test_draws_needed_are_those_of_the_textbook() -> None:
    # A paired difference of one deviation: 10 pairs have a power of 0.80, 9 of 0.75 (Cohen's tables). Two groups that
    # are one deviation apart: 17 in each have 0.80, 16 have 0.78.
    assert power(1, 1, 10, pairs=True) == pytest.approx(0.803, abs=0.002)
    assert draws_needed(1, 1, pairs=True) == 10
    assert power(1, 1, 16, pairs=False) == pytest.approx(0.781, abs=0.002)
    assert draws_needed(1, 1, pairs=False) == 17
    assert draws_needed(-1, 1, pairs=True) == 10, "who is ahead does not matter"
    assert draws_needed(0.001, 1, pairs=True) is None
    assert draws_needed(1, 33, pairs=True) == pytest.approx(8548, abs=5), "between the last doubling and the most"
    assert power(1, 0.01, 5, pairs=True) == 1
    assert draws_needed(1, 0, pairs=True) == 2, "without any noise"
    assert power(0, 1, 10, pairs=True) == pytest.approx(0.05), "the test's own error"


def test_a_line_through_points_on_it_explains_them_all() -> None:
    found = line([0, 1, 2, 3], [1, 3, 5, 7])
    assert found is not None
    assert (found.slope, found.intercept, found.explained) == pytest.approx((2, 1, 1))
    # Through (0, 0), (1, 0), (2, 3) the slope is 1.5 and explains 4.5 of 6.
    rough = line([0, 1, 2], [0, 0, 3])
    assert rough is not None
    assert (rough.slope, rough.intercept, rough.explained) == pytest.approx((1.5, -0.5, 0.75))
    assert rough.interval.low < 0 < rough.interval.high
    assert line([0, 1], [0, 1]) is None
    assert line([1, 1, 1], [0, 1, 2]) is None


def test_where_a_published_mean_stands() -> None:
    # Our draws 1, 2, 3 have mean 2 and deviation 1. A mean of 3 draws has an error of 1 / sqrt(3), ours too.
    # Student's p with 2 degrees of freedom is 1 - t / sqrt(2 + t^2), here with t^2 = 6.
    found = standing(4, [1, 2, 3], of=3)
    assert found.deviations == pytest.approx(2 / (2 / 3) ** 0.5)
    assert found.p == pytest.approx(1 - (6 / 8) ** 0.5)
    assert standing(2, [1, 2, 3]) == (0, 1)


def test_a_difference_over_draws_is_a_pair_for_each_draw() -> None:
    found = paired([[1.0], [2.0], [3.0], [-1.0]])
    assert found is not None
    assert (found.mean, found.better, found.worse, found.seeds) == (1.25, 3, 1, 4)
    assert found.improvement == 0.75, "the probability of improvement"


def test_the_difference_of_two_areas_is_as_sure_as_the_rarer_class_lets_it_be() -> None:
    # one sample of each class: the variance of an area A is A (1 - A) = 0.1875, of the difference twice that
    low, high = between_areas(0.75, 0.75, 1, 1)
    assert high == pytest.approx(1.959964 * 0.375**0.5)
    assert low == -high
    # Hanley and McNeil (1982): an area of 0.893 of 51 and 58 samples has a standard error of 0.032
    low, high = between_areas(0.893, 0.893, 51, 58)
    assert high / 1.96 / 2**0.5 == pytest.approx(0.0325, abs=1e-4)
    assert between_areas(0.9, 0.5, 29, 2).low < 0 < between_areas(0.9, 0.5, 29, 40).low


# ---- ranks of many methods


def test_ranks_by_hand() -> None:
    """Three methods on four draws: the first is always best; the second and the third tie once."""
    found = ranks([[9, 5, 1], [8, 4, 4], [7, 1, 2], [9, 3, 2]])
    assert found is not None
    assert found.mean == (1.0, (2 + 2.5 + 3 + 2) / 4, (3 + 2.5 + 2 + 3) / 4)
    assert found.blocks == 4


def test_friedman_is_scipys_and_knows_ties() -> None:
    rng = np.random.default_rng(3)
    for table in (rng.normal(size=(6, 4)), rng.integers(0, 3, size=(7, 5)).astype(float)):
        found = ranks(table)
        assert found is not None
        assert found.p == pytest.approx(stats.friedmanchisquare(*table.T).pvalue)


def test_nothing_is_said_of_one_draw_or_of_methods_that_are_all_alike() -> None:
    assert ranks([[1.0, 2.0]]) is None
    assert ranks([[1.0], [2.0]]) is None
    alike = ranks([[1.0, 1.0], [2.0, 2.0]])
    assert alike is not None
    assert (alike.p, alike.mean) == (1.0, (1.5, 1.5))


@pytest.mark.parametrize(("methods", "blocks", "distance"), [(4, 14, 1.25), (2, 10, 1.960 * 0.1**0.5)])
def test_critical_differences_of_the_book(methods: int, blocks: int, distance: float) -> None:
    """Demsar's (2006) example, four classifiers on fourteen sets; of two methods it is the normal quantile."""
    assert critical_difference(methods, blocks) == pytest.approx(distance, abs=0.005)


def test_crossed_bootstrap_of_what_never_varies_is_a_point() -> None:
    assert crossed([[2.0, 2.0, math.nan], [2.0, math.nan, 2.0]]) == (2.0, 2.0)
    assert crossed([[2.0, 2.0], [math.nan, math.nan]]) == (2.0, 2.0), "a draw without figures"


def test_crossed_bootstrap_sees_both_draws_and_clients() -> None:
    """Two draws that differ: a quarter of the resamples has one draw only. Two sites: the same, across."""
    assert crossed([[0.0, 0.0], [1.0, 1.0]]) == (0.0, 1.0)
    assert crossed([[0.0, 1.0], [0.0, 1.0]]) == (0.0, 1.0)
    many = [[0.1 * site for site in range(30)] for _ in range(3)]
    low, high = crossed(many)
    expected = bootstrap([many[0]])
    assert (low, high) == pytest.approx(expected, abs=0.08)
