"""The Partition itself: what it refuses, counts, saves and reads back."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedgraft.base.errors import UserError
from fedgraft.data.partition import IID, Partition


def lists(*rows: Sequence[float]) -> tuple[np.ndarray, ...]:
    return tuple(np.array(row) for row in rows)


@pytest.fixture
def partition() -> Partition:
    return Partition("by hand", 3, lists([0, 1, 4], [2, 3]), lists([5], [6, 7]))


def test_counts_are_clients_by_classes(partition: Partition) -> None:
    train, test = partition.counts([0, 0, 1, 2, 2, 0, 1, 2])
    assert train.tolist() == [[2, 0, 1], [0, 1, 1]]
    assert test.tolist() == [[1, 0, 0], [0, 1, 1]]
    assert partition.clients == 2


def test_arrays_are_copies_that_nobody_can_write() -> None:
    mine = np.array([0, 1])
    partition = Partition("by hand", 0, (mine,), lists([2]))
    mine[0] = 9
    assert partition.train[0].tolist() == [0, 1]
    with pytest.raises(ValueError, match="read-only"):
        partition.train[0][0] = 5


@pytest.mark.parametrize(
    ("train", "test", "sentence"),
    [
        (lists([0]), lists([1], [2]), "1 training and 2 test lists"),
        ((), (), "at least one"),
        (lists([0], []), lists([1], [2]), "client 1 has no train sample"),
        (lists([0], [3]), lists([1], []), "client 1 has no test sample"),
        (lists([0.5]), lists([1]), "whole numbers"),
        (lists([-1]), lists([1]), "from 0 up"),
        ((np.array([2**64 - 1], np.uint64),), lists([1]), "from 0 up"),
        (([10**30],), lists([1]), "from 0 up"),
        (lists([0, 1]), lists([1, 2]), "sample 1 is in a training and in a test list"),
    ],
)
def test_refuses(train: Any, test: Any, sentence: str) -> None:
    with pytest.raises(UserError, match=sentence):
        Partition("by hand", 0, train, test)


def test_refuses_a_dataset_that_is_too_small(partition: Partition) -> None:
    partition.check(8)
    with pytest.raises(UserError, match="uses sample 7, but the dataset has only 7"):
        partition.check(7)
    with pytest.raises(UserError, match="another dataset"):
        partition.counts([0, 1, 2])


def test_fingerprint_sees_scheme_seed_and_every_assignment(partition: Partition) -> None:
    others = [
        Partition("other", 3, partition.train, partition.test),
        Partition("by hand", 4, partition.train, partition.test),
        Partition("by hand", 3, lists([0, 1], [4, 2, 3]), partition.test),
        Partition("by hand", 3, lists([0, 1, 2], [4, 3]), partition.test),
        Partition("by hand", 3, partition.train, lists([5, 6], [7])),
    ]
    assert len({p.fingerprint() for p in [partition, *others]}) == 6


def test_saved_and_loaded_it_is_the_same(tmp_path: Path) -> None:
    y = np.arange(100) % 10
    partition = IID().split(y, y, clients=7, seed=1)
    partition.save(tmp_path / "p.json")
    loaded = Partition.load(tmp_path / "p.json")
    assert loaded.fingerprint() == partition.fingerprint()
    assert (loaded.scheme, loaded.seed) == ("iid", 1)
    assert all(np.array_equal(a, b) for a, b in zip(loaded.train, partition.train, strict=True))


def test_a_file_cut_short_is_refused_wherever_the_cut_is(partition: Partition, tmp_path: Path) -> None:
    path = tmp_path / "p.json"
    partition.save(path)
    whole = path.read_text()
    for length in range(0, len(whole.rstrip()), 7):
        path.write_text(whole[:length])
        with pytest.raises(UserError, match="damaged or cut short"):
            Partition.load(path)


def test_a_changed_file_is_refused_unless_the_fingerprint_is_taken_out(partition: Partition, tmp_path: Path) -> None:
    path = tmp_path / "p.json"
    partition.save(path)
    content = json.loads(path.read_text())
    content["train"][0][0] = 8
    path.write_text(json.dumps(content))
    with pytest.raises(UserError, match="was changed after it was saved"):
        Partition.load(path)
    del content["fingerprint"]
    path.write_text(json.dumps(content))
    assert Partition.load(path).train[0].tolist() == [8, 1, 4]


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"format": "something"}, "is not a partition file"),
        ({"version": 2}, "has version 2"),
        ({"seed": "1"}, '"seed" must be a whole number'),
        ({"train": None}, '"train" must be a list of lists'),
        ({"train": [[0, "a"], [1]]}, "train list of client 0"),
        ({"train": [[0, [1]], [1]]}, "train list of client 0"),
        ({"train": [[0, 1], []]}, "client 1 has no train sample"),
        ({"test": [[0], [5]]}, "sample 0 is in a training and in a test list"),
        ({"test": [[6]]}, "2 training and 1 test lists"),
    ],
)
def test_a_wrong_file_is_refused_with_its_reason(
    partition: Partition, tmp_path: Path, change: dict[str, object], sentence: str
) -> None:
    path = tmp_path / "p.json"
    partition.save(path)
    path.write_text(json.dumps(json.loads(path.read_text()) | change))
    with pytest.raises(UserError, match=sentence) as refusal:
        Partition.load(path)
    assert "p.json" in str(refusal.value)


def test_files_that_are_no_partition_at_all(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="cannot read"):
        Partition.load(tmp_path / "missing.json")
    with pytest.raises(UserError, match="cannot read"):
        Partition.load(tmp_path)
    (tmp_path / "image.json").write_bytes(b"\x89PNG\xff\xfe")
    with pytest.raises(UserError, match="damaged"):
        Partition.load(tmp_path / "image.json")
    (tmp_path / "deep.json").write_text("[" * 100_000)
    with pytest.raises(UserError, match="damaged"):
        Partition.load(tmp_path / "deep.json")
    (tmp_path / "list.json").write_text("[1, 2]")
    with pytest.raises(UserError, match="not a partition file"):
        Partition.load(tmp_path / "list.json")
