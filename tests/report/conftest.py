"""One small real comparison, made once, and read by all tests of the report."""

from pathlib import Path

import pytest
from conftest import blobs, small_network

import fedgraft as fg
from fedgraft.runs.comparison import Comparison
from fedgraft.runs.run import Run


@pytest.fixture(scope="session")
def comparison(tmp_path_factory: pytest.TempPathFactory) -> Comparison[Run]:
    """FedAPA leaves a matrix, APFL a figure for each client, pFedAMF is a reconstruction."""
    return fg.compare(
        ["fedapa:mu=0.3", "apfl", "pfedamf"], seeds=2, federation=lambda seed: blobs(seed=seed), model=small_network(),
        rounds=3, lr=0.1, batch_size=8, workers=1, out=tmp_path_factory.mktemp("runs") / "blobs",
    )  # fmt: skip


@pytest.fixture(scope="session")
def folder(comparison: Comparison[Run]) -> Path:
    directory = comparison.runs["local"][0].directory
    assert directory is not None
    return directory.parent
