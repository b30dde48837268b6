"""Partitions that must stay as they are."""

import numpy as np
import pytest

from fedgraft.data.partition import SCHEMES

PINNED = [
    ("dirichlet:0.5", 6, "bb61a820148ccbc7"),
    ("dirichlet:0.01", 40, "0b34ff7c9e96b4d9"),
    ("pathological:2", 6, "33cb85c8bd011509"),
    ("pathological-random:2", 6, "910bf48fe698fbf2"),
    ("practical", 6, "ec63b8b7fe999ebc"),
    ("practical:shares_seed=42", 6, "67db8e8d0f44042f"),
    ("dirichlet-balanced:0.5", 6, "e5d51bd10349a81f"),
    ("dominant:n=20/40,k=2..5,s=20,test_size=12", 6, "5d271b282bfe4e26"),
    ("dirichlet-client:0.5", 6, "3d382b566b24ab33"),
    ("iid", 6, "ebd6dd772f222be5"),
    ("blocks:train=9", 6, "59719e6bf53e9c46"),
]


@pytest.mark.parametrize(("text", "clients", "fingerprint"), PINNED)
def test_partitions_never_change(text: str, clients: int, fingerprint: str) -> None:
    # People share seeds, not files: where one of these changes, so does every result that was published with it.
    # The second one is never accepted and comes out of the repair.
    y = np.arange(400) % 5, np.arange(200) % 5
    assert SCHEMES.make(text).split(*y, clients=clients, seed=7).fingerprint()[:16] == fingerprint
