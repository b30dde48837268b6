"""Every scheme against numbers worked out by hand."""

import numpy as np
import pytest

from fedgraft.base.errors import UserError
from fedgraft.data.partition import (
    IID,
    SCHEMES,
    Blocks,
    Dirichlet,
    DirichletBalanced,
    DirichletClient,
    Dominant,
    Dominant1,
    Dominant1Star,
    Dominant2,
    Dominant3,
    Partition,
    Pathological,
    PathologicalRandom,
    Practical,
)
from fedgraft.data.partition.dirichlet import log_gammas, normalised, paper_minimum
from fedgraft.data.partition.dirichlet_balanced import PAPER_MINIMUM, shares_below_fair_size
from fedgraft.data.partition.dirichlet_client import lowered, whole_counts
from fedgraft.data.partition.scheme import Files, deal
from fedgraft.data.partition.shares import cut_all, cut_each, cut_tiny, draw_until_enough, repair, settle_minimum

Labels = tuple[np.ndarray, np.ndarray]
"""Of the training and of the test file."""


def labels(classes: int, train: int, test: int) -> Labels:
    """Interleaved labels: ``train`` and ``test`` samples of each class."""
    return np.tile(np.arange(classes), train), np.tile(np.arange(classes), test)


def counts(partition: Partition, y: Labels) -> tuple[np.ndarray, np.ndarray]:
    return partition.counts(np.concatenate(y))


def class_sets(partition: Partition, y: Labels) -> list[set[int]]:
    return [set(np.flatnonzero(row)) for row in counts(partition, y)[0]]


# The machinery -------------------------------------------------------------------------------------------------------


def test_files_list_both_files_by_class_and_number_the_test_file_on() -> None:
    files = Files.of([1, 0, 1, 5], [5, 1])
    assert [members.tolist() for members in files.train] == [[1], [0, 2], [3]]
    assert [members.tolist() for members in files.test] == [[], [5], [4]]
    assert files.sizes.tolist() == [[1, 2, 1], [0, 1, 1]]


def test_deal_goes_on_where_the_client_before_stopped_and_round_at_the_end() -> None:
    members = (np.array([10, 11, 12]), np.array([20, 21]))
    dealt = deal(members, np.array([[2, 0], [2, 1], [0, 2]]), start=1)
    # Class 0 from its sample 1: 11, 12 | 10, 11. Class 1 from its sample 1: 21 | 20, 21.
    assert [samples.tolist() for samples in dealt] == [[11, 12], [10, 11, 21], [20, 21]]


def test_cut_each_rounds_down_and_cut_all_loses_nothing() -> None:
    shares = np.array([[0.5], [0.25], [0.25]])
    sizes = np.array([[10], [5]])
    assert cut_each(shares, sizes)[..., 0].tolist() == [[5, 2, 2], [2, 1, 1]]
    # Ends at 5, 7.5 and 10 of ten samples; at 2.5, 3.75 and 5 of five.
    assert cut_all(shares, sizes)[..., 0].tolist() == [[5, 2, 3], [2, 1, 2]]


def test_exact_shares_stay_exact_in_spite_of_floats() -> None:
    shares = np.full((100, 1), 0.01)
    assert (cut_all(shares, np.array([[100], [1000]])) == np.array([1, 10])[:, None, None]).all()


def test_tiny_shares_reach_everybody_and_tests_follow_training() -> None:
    # 100 clients, 50 training and 10 test samples in each of 40 classes: 20 and 4 per client are fair.
    train, test = cut_tiny(np.full((100, 40), 0.01), np.array([[50] * 40, [10] * 40]))
    assert train.sum() == 2000
    assert test.sum() == 400
    assert not ((train == 0) & (test > 0)).any()
    assert train.sum(axis=1).min() >= 15
    assert train.sum(axis=1).max() <= 25


def test_repair_takes_the_same_share_of_both_files_from_the_richest() -> None:
    # Client 1 has nothing and needs 2 of 10 training and 1 of 5 test samples: a fifth of class 0 of either file.
    before = np.array([[[10, 0], [0, 0], [0, 6]], [[5, 0], [0, 0], [0, 3]]])
    after = repair(before, np.array([[10, 6], [5, 3]]), (2, 1), np.ones((3, 2), dtype=bool))
    assert after.tolist() == [[[8, 0], [2, 0], [0, 6]], [[4, 0], [1, 0], [0, 3]]]


def test_repair_prefers_the_class_that_the_poor_client_has() -> None:
    # Client 1 lacks 1 training and 1 test sample. Of its class 1, a third (of 3 test samples) is 2 of 6 and 1 of 3.
    before = np.array([[[10, 0], [0, 1], [0, 5]], [[5, 0], [0, 0], [0, 3]]])
    after = repair(before, np.array([[10, 6], [5, 3]]), (2, 1), np.ones((3, 2), dtype=bool))
    assert after.tolist() == [[[10, 0], [0, 3], [0, 3]], [[5, 0], [0, 1], [0, 2]]]


def test_repair_prefers_a_giver_of_both_files() -> None:
    # Client 0 lacks one of each. Client 1 is richer, but has no test sample to spare; client 2 can give both.
    before = np.array([[[0], [9], [3]], [[0], [1], [3]]])
    after = repair(before, np.array([[12], [4]]), (1, 1), np.ones((3, 1), dtype=bool))
    # A quarter of the class, for the one of 4 test samples, is 3 of 12 training samples: 2 can be spared.
    assert after.tolist() == [[[2], [9], [1]], [[1], [1], [2]]]


def test_draws_are_accepted_at_exactly_the_minimum() -> None:
    def draw_one_of(*draws: list[float]) -> list[list[int]]:
        rest = iter(draws)
        enough = draw_until_enough(
            lambda: np.array(next(rest))[:, None], cut_each, np.array([[100], [20]]), (20, 2), np.ones((2, 1), bool)
        )
        return enough[..., 0].tolist()

    # Of 100 and 20 samples: .19 is one training sample short, .2 is enough, and .5 is not drawn any more.
    assert draw_one_of([0.81, 0.19], [0.8, 0.2], [0.5, 0.5]) == [[80, 20], [16, 4]]


def test_repair_gives_only_what_a_client_may_hold_or_says_why_not() -> None:
    before = np.array([[[4, 0], [0, 0]], [[4, 0], [0, 0]]])
    may_hold = np.array([[True, False], [False, True]])
    with pytest.raises(UserError, match=r"no way to give client 1 enough .* fewer clients"):
        repair(before, np.array([[4, 0], [4, 0]]), (1, 1), may_hold)


# Dirichlet (FedAPA) --------------------------------------------------------------------------------------------------


def test_small_alpha_never_gives_nan() -> None:
    shares = normalised(log_gammas(np.random.RandomState(0), 1e-6, (2, 10_000)))
    assert np.isfinite(shares).all()
    np.testing.assert_allclose(shares.sum(axis=0), 1)


def test_drawn_shares_have_the_mean_and_the_variance_of_a_dirichlet() -> None:
    # Dir(a) over m clients: mean 1/m, variance (m - 1) / (m^2 (m a + 1)).
    alpha, m = 0.3, 4
    shares = normalised(log_gammas(np.random.RandomState(0), alpha, (m, 200_000)))
    np.testing.assert_allclose(shares.mean(axis=1), 1 / m, atol=0.005)
    np.testing.assert_allclose(shares.var(axis=1), (m - 1) / (m**2 * (m * alpha + 1)), rtol=0.02)


def test_minimum_sizes_are_the_papers_where_the_data_allow_it() -> None:
    cifar10 = Files.of(*labels(10, 5000, 1000))
    digits = Files.of(np.arange(1437) % 10, np.arange(360) % 10)
    assert paper_minimum(None, None, cifar10, 20) == (129, 3)
    assert paper_minimum(None, None, cifar10, 50) == (129, 3)
    assert paper_minimum(None, None, digits, 10) == (35, 3)  # 1437 // 10 // 4
    assert paper_minimum(None, None, digits, 300) == (1, 1)
    assert paper_minimum(7, 5, digits, 10) == (7, 5)
    with pytest.raises(UserError, match=r"min_train=144 for 10 clients needs 1440 .* choose 143 or less"):
        paper_minimum(144, None, digits, 10)


def test_dirichlet_passes_the_papers_test_on_data_like_cifar10() -> None:
    y = labels(10, 5000, 1000)
    train, test = counts(Dirichlet(0.1).split(*y, clients=20, seed=0), y)
    assert train.sum(axis=1).min() > 128
    assert test.sum(axis=1).min() > 2


def test_dirichlet_takes_classes_in_file_order_with_the_same_rounded_shares() -> None:
    y = labels(3, 1000, 200)
    partition = Dirichlet(1).split(*y, clients=4, seed=5)
    train, test = counts(partition, y)
    for kind in range(3):
        taken = [samples[np.concatenate(y)[samples] == kind] for samples in partition.train]
        in_file_order = np.concatenate(taken)
        assert in_file_order.tolist() == (np.arange(len(in_file_order)) * 3 + kind).tolist()
    # floor(1000 q) and floor(200 q): the test count is the training count divided by five, rounded down.
    assert (test == train // 5).all()
    # Rounding down loses less than one sample per client and class.
    assert (1000 - train.sum(axis=0) < 4).all()


# Pathological (FedAPA) -----------------------------------------------------------------------------------------------


def test_pathological_gives_groups_of_clients_with_the_same_classes() -> None:
    y = labels(10, 1000, 100)
    sets = class_sets(Pathological(2).split(*y, clients=20, seed=0), y)
    assert sets == [{2 * (client // 4), 2 * (client // 4) + 1} for client in range(20)]


def test_pathological_with_100_classes() -> None:
    y = labels(100, 100, 20)
    sets = class_sets(Pathological(10).split(*y, clients=20, seed=0), y)
    assert sets == [set(range(10 * (client // 2), 10 * (client // 2) + 10)) for client in range(20)]


def test_pathological_leaves_no_client_out_where_classes_do_not_divide() -> None:
    # 24 places for 10 classes: two each, and one more for classes 0 to 3.
    y = labels(10, 1000, 100)
    sets = class_sets(Pathological(2).split(*y, clients=12, seed=0), y)
    assert sets == [{0, 1}] * 3 + [{2, 3}] * 3 + [{4, 5}] * 2 + [{6, 7}] * 2 + [{8, 9}] * 2


def test_pathological_fills_clients_in_order_even_if_the_last_has_fewer_classes() -> None:
    # Two places per class: classes 0 and 1 fill clients 0 and 1, and class 2 is left for client 2 alone.
    y = labels(3, 1000, 100)
    assert class_sets(Pathological(2).split(*y, clients=3, seed=0), y) == [{0, 1}, {0, 1}, {2}]


def test_pathological_shares_lie_between_normalised_three_and_seven_tenths() -> None:
    # Four holders: the least share is .3 / (.3 + 3 * .7) = 1/8, the largest .7 / (.7 + 3 * .3) = 7/16.
    y = labels(10, 8000, 800)
    train, _ = counts(Pathological(2).split(*y, clients=20, seed=1), y)
    held = train[train > 0]
    assert held.min() >= 999
    assert held.max() <= 3500


def test_more_classes_than_there_are() -> None:
    for scheme in (Pathological(11), PathologicalRandom(11)):
        with pytest.raises(UserError, match="classes must be between 1 and 10, the classes of the dataset, not 11"):
            scheme.split(*labels(10, 100, 10), clients=5, seed=0)


# Pathological with random classes (APPLE) ----------------------------------------------------------------------------


def test_pathological_random_deals_whole_orders_of_the_classes() -> None:
    y = labels(10, 1000, 500)
    partition = PathologicalRandom(2).split(*y, clients=12, seed=42)
    sets = class_sets(partition, y)
    # Ten classes make five pairs, so clients 0-4 and 5-9 hold each class once.
    assert all(len(pair) == 2 for pair in sets)
    assert set.union(*sets[:5]) == set.union(*sets[5:10]) == set(range(10))
    train, test = counts(partition, y)
    assert (train.sum(axis=0) == 1000).all()
    assert (test.sum(axis=0) == 500).all()
    assert (np.abs(train / 1000 - test / 500) <= 1 / 500 + 1 / 1000).all()


def test_pathological_random_with_an_odd_number_of_classes_may_meet_a_class_twice() -> None:
    # Three orders of 11 classes; pairs 5 and 16 straddle two orders and may hold the same class twice.
    y = labels(11, 500, 500)
    sizes = [
        [len(held) for held in class_sets(PathologicalRandom(2).split(*y, clients=12, seed=seed), y)]
        for seed in range(40)
    ]
    assert {tuple(row[:5] + row[6:]) for row in sizes} == {(2,) * 11}
    assert {row[5] for row in sizes} == {1, 2}


# Practical (APPLE) ---------------------------------------------------------------------------------------------------


def test_practical_with_12_clients_is_80_10_and_ten_times_1_percent() -> None:
    y = labels(10, 1000, 100)
    train, test = counts(Practical().split(*y, clients=12, seed=0), y)
    for kind in range(10):
        assert sorted(train[:, kind]) == [10] * 10 + [100, 800]
        assert sorted(test[:, kind]) == [1] * 10 + [10, 80]
    assert (train == 10 * test).all()
    assert len({int(np.argmax(train[:, kind])) for kind in range(10)}) > 1


def test_practical_can_have_the_shares_of_the_authors_program() -> None:
    """As the picture in its README shows them: who has 80 percent of each class, and who 10."""
    y = labels(10, 1000, 100)
    one, other = (Practical(shares_seed=42).split(*y, clients=12, seed=seed) for seed in (0, 1))
    train, test = counts(one, y)
    assert train.argmax(axis=0).tolist() == [7, 11, 11, 7, 5, 2, 0, 1, 0, 10]
    assert (train == 100).argmax(axis=0).tolist() == [0, 2, 6, 10, 8, 0, 1, 5, 1, 3]
    assert [sorted(held) for held in train.T] == [[10] * 10 + [100, 800]] * 10
    assert (train == 10 * test).all()
    assert (counts(other, y)[0] == train).all()
    assert any((a != b).any() for a, b in zip(one.train, other.train, strict=True)), "only the samples are drawn anew"


def test_practical_with_other_numbers_of_clients() -> None:
    y = labels(4, 1000, 100)
    train, _ = counts(Practical().split(*y, clients=22, seed=0), y)
    assert sorted(train[:, 0]) == [5] * 20 + [100, 800]
    train, _ = counts(Practical().split(*y, clients=3, seed=0), y)
    assert sorted(train[:, 0]) == [100, 100, 800]
    with pytest.raises(UserError, match="practical needs 3 clients or more"):
        Practical().split(*y, clients=2, seed=0)


# Balanced Dirichlet (FedPPA) -----------------------------------------------------------------------------------------


def test_balanced_gives_nothing_to_a_client_that_has_a_fair_share() -> None:
    # N = 10, M = 2. Client 0 takes all 6 of class 0, more than 5, so class 1 goes to client 1 whatever was drawn.
    log_weights = np.array([[0.0, 0.0], [-np.inf, -100.0]])
    shares = shares_below_fair_size(log_weights, np.array([6, 4]))
    assert shares.tolist() == [[1, 0], [0, 1]]
    # With exactly 5 of 10 it has its share as well; with 4 it goes on.
    assert shares_below_fair_size(log_weights, np.array([5, 5])).tolist() == [[1, 0], [0, 1]]
    np.testing.assert_allclose(shares_below_fair_size(log_weights, np.array([4, 6]))[:, 1], [1, 0], atol=1e-9)


def test_balanced_asks_for_the_papers_40_samples_where_the_data_allow_it() -> None:
    assert settle_minimum("min_size", None, PAPER_MINIMUM, 70_000, 8) == 40
    # 1797 digits among 20 clients are 89 each: a quarter is 22.
    assert settle_minimum("min_size", None, PAPER_MINIMUM, 1797, 20) == 22


def test_balanced_merges_both_files_and_uses_everything_75_to_25() -> None:
    y = labels(10, 600, 100)
    partition = DirichletBalanced(0.5).split(*y, clients=8, seed=0)
    everything = np.sort(np.concatenate([*partition.train, *partition.test]))
    assert everything.tolist() == list(range(7000))
    assert any((samples < 6000).any() and (samples >= 6000).any() for samples in partition.train)
    for train, test in zip(partition.train, partition.test, strict=True):
        size = len(train) + len(test)
        assert len(train) == int(0.75 * size)
        assert size >= 40


@pytest.mark.parametrize("alpha", [0.01, 0.1, 0.5])
def test_balanced_stops_everybody_below_a_fair_share_plus_one_class(alpha: float) -> None:
    y = labels(10, 600, 100)
    train, test = counts(DirichletBalanced(alpha).split(*y, clients=8, seed=3), y)
    assert (train + test).sum(axis=1).max() < 7000 / 8 + 700
    assert (train + test).sum(axis=1).min() >= 40


def test_balanced_needs_no_test_file() -> None:
    partition = DirichletBalanced(0.5).split(np.arange(400) % 4, np.empty(0, dtype=int), clients=4, seed=0)
    assert sum(map(len, partition.train + partition.test)) == 400


# Dominant classes (FedGPA) -------------------------------------------------------------------------------------------


def test_dominant_setting_1_on_10_classes() -> None:
    # 20 % of 600 over 10 classes is 12 each; 480 over 5 classes is 96. Of 300: 6 and 48.
    y = labels(10, 5000, 1000)
    train, test = counts(Dominant(n=600, k=5, s=20).split(*y, clients=20, seed=2023), y)
    assert (np.sort(train, axis=1) == [12] * 5 + [108] * 5).all()
    assert (np.sort(test, axis=1) == [6] * 5 + [54] * 5).all()
    assert ((train == 108) == (test == 54)).all()


DOMINANT_50_OF_100 = np.arange(1, 100, 2)[::-1]


def test_remainder_last_is_the_quirk_of_the_authors_program() -> None:
    scheme = Dominant(n=1200, k=50, s=20, remainder="last")
    order = np.arange(100)
    # Training: 240 = 100 * 2 + 40 and 960 = 50 * 19 + 10. Class 99 is last of all and last of the dominant ones.
    train = scheme.class_counts(1200, DOMINANT_50_OF_100, order)
    assert train[0::2].tolist() == [2] * 50
    assert train[1::2].tolist() == [21] * 49 + [2 + 40 + 19 + 10]
    # Test: 60 = 100 * 0 + 60 and 240 = 50 * 4 + 40.
    test = scheme.class_counts(300, DOMINANT_50_OF_100, order)
    assert test[0::2].tolist() == [0] * 50
    assert test[1::2].tolist() == [4] * 49 + [60 + 44]


def test_remainder_even_spreads_one_sample_each() -> None:
    scheme = Dominant(n=1200, k=50, s=20)
    order = np.arange(100)
    # 60 test samples: one for each of the first 60 classes in order. 240: 5 for the first 40 dominant, 4 for 10 more.
    spread = scheme.class_counts(300, DOMINANT_50_OF_100, order) - (order < 60)
    assert spread[DOMINANT_50_OF_100].tolist() == [5] * 40 + [4] * 10
    assert spread[0::2].tolist() == [0] * 50


def test_remainder_last_may_repeat_a_sample_and_even_may_not() -> None:
    y = labels(100, 500, 100)
    partition = Dominant(n=1200, k=50, s=20, remainder="last").split(*y, clients=20, seed=0)
    _, test = counts(partition, y)
    assert (test[:, 99] >= 60).all()
    assert (test[:, 99] == 104).any()
    partition = Dominant(n=1200, k=50, s=20).split(*y, clients=20, seed=0)
    assert all(len(np.unique(samples)) == len(samples) for samples in partition.train + partition.test)


def test_dominant_pointer_begins_at_the_start_and_goes_round() -> None:
    y = labels(2, 10, 10)
    partition = Dominant(n=6, k=2, s=0, test_size=2, train_start=8).split(*y, clients=3, seed=0)
    # Class 0 has the even samples, three for each client: number 8, 9, 0 | 1, 2, 3 | 4, 5, 6.
    even = [samples[samples % 2 == 0] // 2 for samples in partition.train]
    assert [samples.tolist() for samples in even] == [[0, 8, 9], [1, 2, 3], [4, 5, 6]]


def test_dominant_draws_n_and_k_for_each_client() -> None:
    y = labels(10, 5000, 1000)
    train, _ = counts(SCHEMES.make("dominant:n=300/900/1500,k=3..7,s=20").split(*y, clients=60, seed=0), y)
    sizes = train.sum(axis=1)
    assert set(sizes) == {300, 900, 1500}
    dominant = (train > (sizes // 50)[:, None]).sum(axis=1)
    assert set(dominant) == {3, 4, 5, 6, 7}


@pytest.mark.parametrize(
    ("scheme", "classes", "spelled_out"),
    [
        (Dominant1(20), 10, "dominant:n=600,k=5,s=20"),
        (Dominant1(80), 62, "dominant:n=1200,k=31,s=80"),
        (Dominant1(20), 100, "dominant:n=1200,k=50,s=20"),
        (Dominant1(20, n=1200), 10, "dominant:n=1200,k=5,s=20"),
        (Dominant2(20), 10, "dominant:n=600,k=3..7,s=20"),
        (Dominant2(20), 62, "dominant:n=1200,k=18..42..3,s=20"),
        (Dominant2(20), 100, "dominant:n=1200,k=30..70..5,s=20"),
        (Dominant3(20), 10, "dominant:n=300/900/1500,k=3..7,s=20"),
        (Dominant3(20), 62, "dominant:n=900/1500/2100,k=18..42..3,s=20"),
        (Dominant3(20), 100, "dominant:n=900/1500/2100,k=30..70..5,s=20"),
        (Dominant3(20, n=(900, 1500, 2100)), 10, "dominant:n=900/1500/2100,k=3..7,s=20"),
        (Dominant1Star(20), 10, "dominant:n=2000,k=5,s=20"),
        (Dominant1Star(20, remainder="last"), 100, "dominant:n=4000,k=50,s=20,remainder=last"),
    ],
)
def test_settings_of_the_paper(
    scheme: Dominant1 | Dominant1Star | Dominant2 | Dominant3, classes: int, spelled_out: str
) -> None:
    assert scheme.spelled_out(classes).text == spelled_out


def test_a_setting_deals_the_samples_of_the_spelled_out_scheme_under_its_own_name() -> None:
    y = labels(10, 1000, 200)
    short = Dominant2(20).split(*y, clients=5, seed=1)
    long = SCHEMES.make("dominant:n=600,k=3..7,s=20").split(*y, clients=5, seed=1)
    assert short.scheme == "dominant-2:20"
    assert all(np.array_equal(a, b) for a, b in zip(short.train + short.test, long.train + long.test, strict=True))


def test_dominant_test_sets_shrink_to_what_the_smallest_class_allows() -> None:
    # 36 test samples per class, s = 20, k = 5: 181 give 36 over 10 (4 at most) and 145 over 5 (29): 33 at most ...
    y = labels(10, 144, 36)
    _, test = counts(Dominant1(20).split(*y, clients=10, seed=0), y)
    size = test.sum(axis=1)[0]
    assert (test.sum(axis=1) == size).all()
    assert test.max() <= 36
    # ... and the largest that fits: ceil(.2 t / 10) + ceil(.8 t / 5) <= 36.
    assert size == max(t for t in range(1, 301) if -(-round(0.2 * t) // 10) - (-(t - round(0.2 * t)) // 5) <= 36)


def test_dominant_says_which_size_would_fit() -> None:
    y = labels(10, 100, 100)
    # 600: 12 + 96 = 108 of a class of 100.
    with pytest.raises(UserError, match=r"would need 108 samples of a class that has 100: choose n=(\d+) or less"):
        Dominant(n=600, k=5, s=20).split(*y, clients=4, seed=0)
    with pytest.raises(UserError, match="choose test_size="):
        Dominant(n=100, k=5, s=20, test_size=600).split(*y, clients=4, seed=0)
    with pytest.raises(UserError, match="k must be between 1 and 10, the classes of the dataset, not 11"):
        Dominant(n=100, k=11, s=20).split(*y, clients=4, seed=0)
    with pytest.raises(UserError, match="dominant needs samples of every class"):
        Dominant(n=2, k=1, s=0).split([0, 0, 1], [0, 0, 0], clients=1, seed=0)


# Dirichlet per client (FedGPA A.2) -----------------------------------------------------------------------------------


def test_whole_counts_keep_the_sum() -> None:
    assert whole_counts(np.array([0.5, 0.3, 0.2]), 10).tolist() == [5, 3, 2]
    assert whole_counts(np.array([1, 1, 1]) / 3, 10).tolist() == [4, 3, 3]
    assert whole_counts(np.array([0.25, 0.65, 0.1]), 10).tolist() == [3, 6, 1]


def test_proportions_are_lowered_to_what_there_is() -> None:
    # .4 too much, spread over rooms of 0, .9 and .3 in proportion: 0, .3 and .1.
    np.testing.assert_allclose(lowered(np.array([0.9, 0.1, 0]), np.array([0.5, 1, 0.3])), [0.5, 0.4, 0.1])
    untouched = np.array([0.2, 0.8])
    np.testing.assert_allclose(lowered(untouched, np.array([1.0, 1.0])), untouched)


def test_dirichlet_client_gives_equal_sizes_and_the_same_proportions_in_both_files() -> None:
    y = labels(10, 5000, 1000)
    train, test = counts(DirichletClient(0.3).split(*y, clients=20, seed=0), y)
    assert (train.sum(axis=1) == 600).all()
    assert (test.sum(axis=1) == 300).all()
    assert (np.abs(train / 600 - test / 300) < 1 / 300 + 1 / 600).all()
    assert len({tuple(row) for row in train}) == 20


def test_dirichlet_client_sizes() -> None:
    y = labels(100, 500, 100)
    train, _ = counts(DirichletClient(1).split(*y, clients=20, seed=0), y)
    assert (train.sum(axis=1) == 1200).all()
    y = np.arange(1437) % 10, np.arange(360) % 10
    train, test = counts(DirichletClient(1).split(*y, clients=10, seed=0), y)
    assert (train.sum(axis=1) == 143).all()
    assert (test.sum(axis=1) == 36).all()
    with pytest.raises(UserError, match="choose smaller sizes"):
        DirichletClient(1, n=1500).split(*y, clients=10, seed=0)


# IID -----------------------------------------------------------------------------------------------------------------


def test_iid_cuts_each_file_into_equal_parts() -> None:
    partition = IID().split([0] * 5 + [1] * 5, [0, 1] * 4, clients=3, seed=0)
    assert [len(samples) for samples in partition.train] == [4, 3, 3]
    assert [len(samples) for samples in partition.test] == [3, 3, 2]
    assert sorted(np.concatenate(partition.train)) == list(range(10))
    assert sorted(np.concatenate(partition.test)) == list(range(10, 18))


# Blocks --------------------------------------------------------------------------------------------------------------


def test_blocks_are_stretches_of_the_files_in_their_order() -> None:
    y = np.arange(12) % 3, np.arange(6) % 3
    whole = Blocks().split(*y, clients=3, seed=0)
    assert [samples.tolist() for samples in whole.train] == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9, 10, 11]]
    assert [samples.tolist() for samples in whole.test] == [[12, 13], [14, 15], [16, 17]]
    few = Blocks(train=1).split(*y, clients=3, seed=0)
    for client in range(3):
        assert len(few.train[client]) == 1
        together = np.sort(np.concatenate([few.train[client], few.test[client]]))
        assert together.tolist() == sorted([*whole.train[client], *whole.test[client]])
    assert few.fingerprint() != Blocks(train=1).split(*y, clients=3, seed=1).fingerprint()
    with pytest.raises(UserError, match="has 4 samples for each of 3 clients: choose train=4 or less"):
        Blocks(train=5).split(*y, clients=3, seed=0)
    with pytest.raises(UserError, match="train must be a whole number from 1 up"):
        Blocks(train=0)


# Refusals of all schemes ---------------------------------------------------------------------------------------------


def test_more_clients_than_samples() -> None:
    with pytest.raises(UserError, match=r"11 clients need at least one training sample each, .* choose 10 clients"):
        IID().split([0] * 10, [0] * 20, clients=11, seed=0)
    with pytest.raises(UserError, match="one test sample each, but there are 0"):
        Dirichlet(1).split([0, 1], [], clients=1, seed=0)
    with pytest.raises(UserError, match=r"16 clients need two samples each, .* choose 15 clients or fewer"):
        DirichletBalanced(1).split([0] * 10, [0] * 20, clients=16, seed=0)
    with pytest.raises(UserError, match="clients must be 1 or more, not 0"):
        IID().split([0, 1], [0, 1], clients=0, seed=0)


@pytest.mark.parametrize("y", [[[0, 1], [1, 0]], [0.5, 1.0], [0, -1]])
def test_labels_that_are_no_class_numbers(y: list[int]) -> None:
    with pytest.raises(UserError, match="the training labels must be"):
        IID().split(y, [0, 1], clients=1, seed=0)
