"""Who learned from whom in the papers' settings: do clients with similar labels get more weight?

    python benchmarks/partners.py DIR          # any folder of finished runs; writes docs/results/partners.json

A run is known by the cell of a paper's table that it measures; what DIR does not have stays there as it was.

For each matrix of weights that a method learned, and for each client: Spearman's rank correlation between the weights
that it gives to the others and how similar their labels are to its own (the cosine of the label counts); 1 means that
weights and similarities have the same order. A client that weighs all others alike has no order and is left out.
"""

import argparse
import json
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from scipy.stats import spearmanr

from fedgraft.runs.measurement import measured, scale_of
from fedgraft.runs.reading import Finished
from fedgraft.runs.reproduce import finished_in, recognised

RESULTS = Path(__file__).parents[1] / "docs" / "results"
MATRICES = {"fedapa": ("A",), "fedgpa": ("alpha", "beta"), "apple": ("p",)}
SMALL = 1e-6
"""Weights below this are none."""


def similarity(counts: np.ndarray) -> np.ndarray:
    """Cosines between the clients' label counts."""
    rows = counts / np.linalg.norm(counts, axis=1, keepdims=True)
    return np.asarray(rows @ rows.T)


def figures(weights: np.ndarray, alike: np.ndarray) -> dict[str, Any]:
    """One matrix: row i are the weights that client i gives, ``alike`` the similarities."""
    clients = [i for i, row in enumerate(weights) if np.isfinite(row).all()]  # a client that was never asked has none
    others = {i: [j for j in range(len(weights)) if j != i] for i in clients}
    ordered = [i for i in clients if np.ptp(weights[i, others[i]]) > SMALL]
    orders = [float(spearmanr(weights[i, others[i]], alike[i, others[i]]).statistic) for i in ordered]
    nearest = {i: max(others[i], key=lambda j: alike[i, j]) for i in clients}
    return {
        "own": float(np.mean([weights[i, i] for i in clients])),
        "other": float(np.mean([weights[i, others[i]].mean() for i in clients])),
        "most_similar": float(np.mean([weights[i, nearest[i]] for i in clients])),
        "order": statistics.fmean(orders) if orders else None,
        "orders": [round(order, 3) for order in orders],
        "nonzero_others": float(np.mean([(np.abs(weights[i, others[i]]) > SMALL).mean() for i in clients])),
    }


def examine(run: Finished) -> list[dict[str, Any]]:
    """The matrices of one finished run at its first, middle and last round."""
    alike = similarity(np.asarray(run.facts.label_counts, np.float64))
    return [
        {"matrix": name, "round": number + 1, **figures(run.observed[name][number].astype(np.float64), alike)}
        for name in MATRICES[run.config.method]
        for number in sorted({0, len(run.observed[name]) // 2 - 1, len(run.observed[name]) - 1})
    ]


def gather(root: Path, earlier: Sequence[Mapping[str, Any]] = ()) -> list[dict[str, Any]]:
    """Every matrix of the papers' cells: from the runs in ``root``, or as it was known before."""
    kept: dict[str, list[dict[str, Any]]] = {}
    for row in earlier:
        kept.setdefault(row["command"], []).append(dict(row))
    for run in finished_in(root):
        paper = recognised(run.config) if run.config.method in MATRICES else None
        if paper is not None:
            told = measured(run, paper.name, scale_of(paper, run.config))
            known = {"paper": paper.name, "method": told.method, "seed": told.seed, "command": told.command}
            kept[told.command] = [known | row for row in examine(run)]
    return [row for rows in kept.values() for row in rows]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("dir", type=Path)
    path = RESULTS / "partners.json"
    kept = gather(parser.parse_args().dir, json.loads(path.read_text("utf-8"))["matrices"])
    print("| run | matrix | round | own | other | most similar | order | others above zero |\n" + "|---" * 8 + "|")
    for row in kept:
        order = "" if row["order"] is None else f"{row['order']:.2f}"
        which = f"{row['paper']}: {row['method']}, seed {row['seed']} | {row['matrix']} | {row['round']}"
        weights = f"{row['own']:.3f} | {row['other']:.4f} | {row['most_similar']:.4f}"
        print(f"| {which} | {weights} | {order} | {row['nonzero_others']:.2f} |")
    path.write_text(json.dumps({"matrices": kept}, indent=1) + "\n", "utf-8")


if __name__ == "__main__":
    main()
