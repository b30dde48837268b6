"""A smaller dataset out of a known one, for comparisons of very many runs.

--dataset fedgraft.data.datasets.part:first:name=cifar10,train=10000,test=5000
"""

from dataclasses import replace
from functools import lru_cache

from fedgraft.base.errors import UserError
from fedgraft.data.datasets import Dataset, load


@lru_cache(maxsize=2)
def first(name: str, train: int, test: int) -> Dataset:
    """Load a dataset and keep the first samples of its training and of its test file, which are in no special order."""
    whole = load(name)
    for kind, count, there in (("train", train, len(whole.x_train)), ("test", test, len(whole.x_test))):
        if not isinstance(count, int) or not 1 <= count <= there:
            raise UserError(f"{kind} is a number of samples from 1 to {there}, which {name} has, not {count!r}")
    return replace(
        whole, x_train=whole.x_train[:train], y_train=whole.y_train[:train],
        x_test=whole.x_test[:test], y_test=whole.y_test[:test],
    )  # fmt: skip
