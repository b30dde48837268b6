"""The sentences of docs/privacy.md say what its measurements say, and no more."""

from typing import Any

from docs.private import Accuracy, attacks
from docs.tables import table


def told(**figures: list[float]) -> dict[str, Any]:
    """One rate was searched; each figure has its three seeds."""
    search, runs = [], []
    for name, values in figures.items():
        method, _, budget = name.partition("_")
        key = {"method": method, "epsilon": float(budget) if budget else None, "lr": 0.1}
        search.append({**key, "seed": 100, "received": 0.5, "trained": 0.5})
        runs += [{**key, "seed": seed, "received": value, "trained": value} for seed, value in enumerate(values)]
    return {"settings": {"rates": [0.1]}, "search": search, "runs": runs}


def test_training_alone_and_fedavg_are_compared_seed_by_seed() -> None:
    page = Accuracy(told(
        local=[0.80, 0.80, 0.80], fedavg_1=[0.50, 0.60, 0.70], fedper_1=[0.81, 0.82, 0.83], ditto_1=[0.70, 0.90, 0.75],
        fedper=[0.84, 0.86, 0.85],
    )).page(table)  # fmt: skip
    assert "| local, trained | as without | as without | as without | as without | 80.0±0.0 (0.1) |" in page
    assert "| fedper, trained | 82.0±1.0 (0.1) | not measured | not measured | not measured | 85.0±1.0 (0.1) |" in page
    assert "fedapa" not in page
    assert "Of 4 private figures 2 are below it on every seed." in page  # FedAvg's, at both points
    assert "Above it on every seed: fedper (trained, epsilon 1)." in page
    assert "fedper +22.0 at epsilon 1 (3 of 3 seeds), ditto +18.3 at epsilon 1 (3 of 3 seeds)" in page
    assert "Epsilon 1 costs fedper (trained) 3.0 points against training without noise." in page


def test_a_figure_without_all_its_seeds_is_not_told() -> None:
    page = Accuracy(told(local=[0.8, 0.8, 0.8], fedavg_2=[0.5, 0.6])).page(table)
    assert "fedavg" not in page


def test_an_attack_that_goes_past_epsilon_is_named() -> None:
    def audit(method: str, epsilon: float, least: float) -> dict[str, Any]:
        found = {"auc": 0.6, "auc_interval": [0.5, 0.7], "tpr_at_1_percent_fpr": 0.1, "tpr_interval": [0.0, 0.2]}
        both = {name: {**found, "at_least": {"epsilon": least}} for name in ("loss", "LiRA")}
        return {
            "method": method, "budget": epsilon, "epsilon": epsilon, "accuracy": 0.5, "membership": both,
            "labels": {"error": 0.25, "prior": 0.5},
        }  # fmt: skip

    area = "0.60 (0.50 to 0.70)"
    row = f"| fedavg, epsilon 1 | 50.0 | {area} | {area} | 0.10 (0.00 to 0.20) | 0.40 | 0.25 | 0.50 |"
    page = attacks({"audits": [audit("fedavg", 1.0, 0.4)]}, table)
    assert row in page
    assert "Bounds of the 1 private runs: none exceeds its epsilon." in page
    assert "exceed their epsilon: fedper, epsilon 1" in attacks({"audits": [audit("fedper", 1.0, 1.4)]}, table)
