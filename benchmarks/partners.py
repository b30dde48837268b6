"""Who learned from whom in the papers' settings: do clients with similar labels get more weight?

    python benchmarks/partners.py DIR          # of `papers.py run DIR`; writes docs/results/partners.json

What DIR does not have stays there as it was.

For each matrix of weights that a method learned, and for each client: Spearman's rank correlation between the weights
that it gives to the others and how similar their labels are to its own (the cosine of the label counts); 1 means that
weights and similarities have the same order. A client that weighs all others alike has no order and is left out.
"""

import argparse
import json
import statistics
from pathlib import Path
from typing import Any

import numpy as np
from papers import RESULTS, measurements
from safetensors.numpy import load_file
from scipy.stats import spearmanr

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


def examine(place: Path) -> list[dict[str, Any]]:
    """The matrices of one finished run at its first, middle and last round."""
    result = json.loads((place / "result.json").read_text("utf-8"))
    alike = similarity(np.asarray(result["label_counts"], np.float64))
    observed = load_file(place / "observed.safetensors")
    return [
        {"matrix": name, "round": number + 1, **figures(observed[name][number].astype(np.float64), alike)}
        for name in MATRICES[result["method"]]
        for number in sorted({0, len(observed[name]) // 2 - 1, len(observed[name]) - 1})
    ]


def gather(root: Path) -> list[dict[str, Any]]:
    """Every matrix of the papers' settings: from the runs in ``root``, or as docs/results has it already."""
    path, kept = RESULTS / "partners.json", []
    earlier = json.loads(path.read_text("utf-8"))["matrices"] if path.exists() else []
    for one in measurements():
        place = root / one.place
        if one.arguments.split()[0] not in MATRICES:
            continue
        if (place / "result.json").exists():
            known = {"group": one.group, "label": one.label, "seed": one.seed, "command": one.command}
            kept += [known | row for row in examine(place)]
        else:
            kept += [row for row in earlier if row["command"] == one.command]
    return kept


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("dir", type=Path)
    kept = gather(parser.parse_args().dir)
    print("| run | matrix | round | own | other | most similar | order | others above zero |\n" + "|---" * 8 + "|")
    for row in kept:
        order = "" if row["order"] is None else f"{row['order']:.2f}"
        which = f"{row['label']}, seed {row['seed']} | {row['matrix']} | {row['round']}"
        weights = f"{row['own']:.3f} | {row['other']:.4f} | {row['most_similar']:.4f}"
        print(f"| {which} | {weights} | {order} | {row['nonzero_others']:.2f} |")
    (RESULTS / "partners.json").write_text(json.dumps({"matrices": kept}, indent=1) + "\n", "utf-8")


if __name__ == "__main__":
    main()
