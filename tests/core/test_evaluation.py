"""What a test of a client's model counts: also when the model has diverged and its outputs are no numbers."""

import json
import math
from pathlib import Path

import numpy as np
import pytest
import torch
from conftest import classified, specification, visit
from torch import Tensor

import fedgraft
from fedgraft.core.evaluation import Summary, score
from fedgraft.core.samples import Samples
from fedgraft.core.task import Classification
from fedgraft.data.federation import Federation, Site, own_data


def outputs(*rows: list[float]) -> Tensor:
    return torch.tensor(rows)


def test_outputs_that_are_not_finite_are_wrong_answers_without_a_loss(fed: Federation) -> None:
    client = visit(fed, specification(fed))
    told = outputs([5.0, 0.0, 0.0], [math.nan] * 3, [0.0, math.inf, 0.0], [0.0, 0.0, 5.0], [0.0, 5.0, math.nan])
    found = score(client, lambda _: told, Samples(torch.zeros(5, 6), torch.tensor([0, 0, 1, 0, 1])))
    assert (found.tallies["accuracy"].tolist(), found.total, found.broken) == ([1, 5], 5, 3)
    right, wrong = -math.log(math.exp(5) / (math.exp(5) + 2)), -math.log(1 / (math.exp(5) + 2))
    assert found.tallies["log_loss"].tolist() == pytest.approx([right + wrong, 2])
    assert found.possible(client.spec.metrics)


def test_a_model_that_gives_no_numbers_at_all_has_no_right_answer(fed: Federation) -> None:
    client = visit(fed, specification(fed))
    weights = torch.full_like(client.own, math.nan)
    found = score(client, client.predictor(weights), Samples(torch.zeros(7, 6), torch.zeros(7, dtype=torch.int64)))
    assert (found.total, found.broken) == (7, 7)
    assert found.tallies["accuracy"].tolist() == [0, 7], "argmax would have called every sample class 0"
    assert found.tallies["log_loss"].tolist() == [0, 0]


def test_a_summary_names_who_diverged_and_whose_loss_counts() -> None:
    scores = {0: classified(3, 4, 2.0), 1: classified(1, 4, 4.0, broken=2), 3: classified(0, 6, 0.0, broken=6)}
    summary = Summary.of(scores, 4, Classification(3).judges())
    assert summary.diverged == (1, 3)
    assert summary.tested == (4, 4, 0, 6)
    assert summary.figures["log_loss"].pooled == 6.0 / 6, "a mean over the samples that have a loss"
    assert summary.pooled == 4 / 14
    assert summary.per_client[3] == 0.0


def skewed(sites: int = 4) -> Federation:
    """Nine of ten samples are of class 0: a model that always says so is right nine times of ten."""
    rng = np.random.default_rng(0)

    def draw(count: int) -> tuple[np.ndarray, np.ndarray]:
        return rng.standard_normal((count, 6)).astype(np.float32), (np.arange(count) % 10 == 0).astype(np.int64)

    return own_data([Site(*draw(40), *draw(20)) for _ in range(sites)], task="classification:2", name="skewed")


@pytest.mark.parametrize("workers", [1, 2])
def test_networks_that_diverged_in_local_training_score_nothing_and_are_named(tmp_path: Path, workers: int) -> None:
    run = fedgraft.run("local", skewed(), lr=1e6, rounds=6, out=tmp_path / "run", workers=workers)
    last = run.result["rounds"][-1]
    assert last["trained"]["metrics"]["accuracy"]["pooled"] == 0.0
    assert last["trained"]["diverged"] == [0, 1, 2, 3]
    assert last["trained"]["metrics"]["log_loss"]["pooled"] is None
    written = json.loads((tmp_path / "run" / "result.json").read_text())
    assert written["diverged"] == {"received": [0, 1, 2, 3], "trained": [0, 1, 2, 3]}
    assert written["test_samples"] == [20] * 4


def test_a_run_that_goes_well_names_nobody() -> None:
    run = fedgraft.run("fedavg", skewed(), rounds=2, workers=1, evaluate_every=2)
    assert run.result["diverged"] == {"received": [], "trained": []}
    assert run.result["test_samples"] == [20] * 4
    assert run.result["last"]["trained"]["accuracy"]["pooled"] > 0.5
