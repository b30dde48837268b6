"""A smaller dataset out of a known one."""

import numpy as np
import pytest

from fedgraft.base.errors import UserError
from fedgraft.data.datasets import load
from fedgraft.data.datasets.part import first
from fedgraft.data.federation import federate

SMALL = "fedgraft.data.datasets.part:first:name=digits,train=200,test=50"


def test_the_first_samples_of_both_files_are_kept() -> None:
    whole, part = load("digits"), load(SMALL)
    assert np.array_equal(part.x_train, whole.x_train[:200])
    assert np.array_equal(part.y_test, whole.y_test[:50])
    assert (part.name, part.classes) == ("digits", 10)


def test_it_is_split_over_clients_like_any_other() -> None:
    fed = federate(SMALL, 4, "iid", 0)
    assert sum(len(client.train) for client in fed.clients) == 200
    assert sum(len(client.test) for client in fed.clients) == 50


@pytest.mark.parametrize(
    ("train", "test", "kind"), [(0, 50, "train"), (200, 10**6, "test"), (1439, 50, "train"), (0.5, 50, "train")]
)
def test_more_than_there_is_cannot_be_had(train: int, test: int, kind: str) -> None:
    with pytest.raises(UserError, match=f"{kind} is a number of samples from 1 to"):
        first("digits", train, test)
