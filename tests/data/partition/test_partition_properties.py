"""What must hold for every scheme, whatever the data."""

from collections.abc import Iterator

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedgraft.base.errors import UserError
from fedgraft.data.partition import SCHEMES, Dirichlet, Partition, shares

Labels = tuple[np.ndarray, np.ndarray]
"""Of the training and of the test file."""

ALWAYS_POSSIBLE = [
    "dirichlet:0.001",
    "dirichlet:0.1",
    "dirichlet:100",
    "practical",
    "dirichlet-balanced:0.1",
    "iid",
    "blocks:train=1",
]
MAY_REFUSE = ["pathological:1", "pathological:2", "pathological-random:2", "dirichlet-balanced:0.001", "blocks:train=3"]
SHARING = [
    "dominant:n=6,k=1/2,s=20", "dominant-1:80,n=12,remainder=last", "dominant-1*:80,n=12", "dominant-2:80,n=12",
    "dominant-3:80,n=12", "dirichlet-client:0.3",
]  # fmt: skip


@pytest.fixture(scope="module", autouse=True)
def few_redraws() -> Iterator[None]:
    """Reach the repair soon: it is what these tests are after."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(shares, "MAX_DRAWN_SHARES", 2_000)
        yield


@st.composite
def label_files(draw: st.DrawFn) -> Labels:
    classes = draw(st.integers(2, 6))
    rng = np.random.RandomState(draw(st.integers(0, 10_000)))
    # Every class in both files, beyond that as unbalanced as chance has it.
    train = np.concatenate([np.arange(classes), rng.randint(classes, size=draw(st.integers(20, 200)))])
    test = np.concatenate([np.arange(classes), rng.randint(classes, size=draw(st.integers(12, 80)))])
    return rng.permutation(train), rng.permutation(test)


def test_every_scheme_is_tried() -> None:
    assert {SCHEMES.make(text).name for text in (*ALWAYS_POSSIBLE, *MAY_REFUSE, *SHARING)} == set(SCHEMES)


@settings(max_examples=40, deadline=None)
@given(
    label_files(), st.sampled_from([*ALWAYS_POSSIBLE, *MAY_REFUSE, *SHARING]), st.integers(1, 12), st.integers(0, 99)
)
def test_counts_are_those_of_the_samples_and_the_seed_decides_everything(
    y: Labels, text: str, clients: int, seed: int
) -> None:
    one, two = (split_or_refuse(text, y, clients, seed) for _ in range(2))
    assert (one is None) == (two is None)
    if one is not None and two is not None:
        assert one.fingerprint() == two.fingerprint()
        labels = np.concatenate(y)
        for lists, table in zip((one.train, one.test), one.counts(labels), strict=True):
            for client, samples in enumerate(lists):
                for c in range(table.shape[1]):
                    assert table[client, c] == sum(1 for s in samples if labels[s] == c)


def split_or_refuse(text: str, y: Labels, clients: int, seed: int) -> Partition | None:
    try:
        return SCHEMES.make(text).split(*y, clients=clients, seed=seed)
    except UserError:
        return None


@settings(max_examples=60, deadline=None)
@given(label_files(), st.sampled_from(ALWAYS_POSSIBLE), st.integers(3, 12), st.integers(0, 2**63))
def test_always_a_partition(y: Labels, text: str, clients: int, seed: int) -> None:
    check(SCHEMES.make(text).split(*y, clients=clients, seed=seed), y, clients)


@settings(max_examples=60, deadline=None)
@given(label_files(), st.sampled_from(MAY_REFUSE), st.integers(1, 12), st.integers(0, 2**63))
def test_a_partition_or_a_reason(y: Labels, text: str, clients: int, seed: int) -> None:
    partition = split_or_refuse(text, y, clients, seed)
    if partition is not None:
        check(partition, y, clients)


@settings(max_examples=40, deadline=None)
@given(label_files(), st.sampled_from(SHARING), st.integers(1, 12), st.integers(0, 2**63))
def test_schemes_that_share_samples_still_keep_training_and_test_apart(
    y: Labels, text: str, clients: int, seed: int
) -> None:
    partition = split_or_refuse(text, y, clients, seed)
    if partition is not None:
        check_range(partition, y, clients)
        assert all((samples < len(y[0])).all() for samples in partition.train)
        assert all((samples >= len(y[0])).all() for samples in partition.test)


def check(partition: Partition, y: Labels, clients: int) -> None:
    check_range(partition, y, clients)
    used = np.concatenate([*partition.train, *partition.test])
    assert len(np.unique(used)) == len(used)


def check_range(partition: Partition, y: Labels, clients: int) -> None:
    assert partition.clients == clients
    for samples in partition.train + partition.test:
        assert samples.dtype == np.int64
        assert len(samples) >= 1
        assert samples.min() >= 0
        assert samples.max() < len(y[0]) + len(y[1])


@pytest.mark.parametrize("text", [*ALWAYS_POSSIBLE, *MAY_REFUSE, *SHARING])
def test_same_seed_same_bits_and_another_seed_another_partition(text: str) -> None:
    rng = np.random.RandomState(0)
    y = rng.randint(5, size=400), rng.randint(5, size=200)
    fingerprints = [SCHEMES.make(text).split(*y, clients=8, seed=seed).fingerprint() for seed in (0, 0, 1)]
    assert fingerprints[0] == fingerprints[1]
    same = [SCHEMES.make(text).split(*y, clients=8, seed=seed).train for seed in (0, 1)]
    assert any(not np.array_equal(a, b) for a, b in zip(*same, strict=True))


def test_the_global_random_state_neither_matters_nor_changes() -> None:
    y = np.arange(300) % 3, np.arange(60) % 3
    np.random.seed(1)  # noqa: NPY002
    first = SCHEMES.make("dominant:n=9,k=1..3,s=20").split(*y, clients=4, seed=0).fingerprint()
    after = np.random.random()  # noqa: NPY002
    np.random.seed(1)  # noqa: NPY002
    assert np.random.random() == after  # noqa: NPY002
    assert SCHEMES.make("dominant:n=9,k=1..3,s=20").split(*y, clients=4, seed=0).fingerprint() == first


@settings(max_examples=25, deadline=None)
@given(st.floats(1e-6, 0.01), st.integers(100, 300), st.integers(0, 1000))
def test_hard_dirichlet_ends_meets_its_bounds_and_stays_one_sided(alpha: float, clients: int, seed: int) -> None:
    y = np.arange(6000) % 10, np.arange(3000) % 10
    partition = Dirichlet(alpha).split(*y, clients=clients, seed=seed)
    check(partition, y, clients)
    train, test = partition.counts(np.concatenate(y))
    assert train.sum(axis=1).min() >= 6000 // clients // 4
    assert test.sum(axis=1).min() >= min(3, 3000 // clients // 4)
    # Clients are tested on the classes they saw (a giver may part with its last training sample of one, which is
    # rare), and the poor ones were not filled up with all classes.
    assert ((train == 0) & (test > 0)).sum() <= clients / 50
    assert np.median((train > 0).sum(axis=1)) <= 2


@settings(max_examples=30, deadline=None)
@given(
    st.sampled_from(["dirichlet:0.1", "dirichlet:10", "pathological:2", "pathological-random:2", "practical"]),
    st.integers(5, 20),
    st.integers(0, 1000),
)
def test_training_and_test_file_are_cut_by_the_same_shares(text: str, clients: int, seed: int) -> None:
    y = np.arange(10_000) % 10, np.arange(5_000) % 10
    train, test = SCHEMES.make(text).split(*y, clients=clients, seed=seed).counts(np.concatenate(y))
    # A count is within one sample of its share; a repaired client may be a few gifts away from it.
    apart = np.abs(train / 1000 - test / 500)
    assert np.quantile(apart, 0.95) <= 1 / 1000 + 1 / 500
    assert apart.max() <= 0.02
