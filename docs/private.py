"""The tables of docs/privacy.md, and what can be said of them: all from the measurements in docs/results."""

import json
import statistics
from collections.abc import Callable, Iterable, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

from benchmarks.privacy import ROWS, SEEDS, chosen

RESULTS = Path(__file__).parent / "results"
BUDGETS = (1.0, 2.0, 4.0, 8.0, None)
NOT_YET = "not measured"

Writer = Callable[[Sequence[str], Iterable[Sequence[str]]], str]


class Accuracy:
    """Accuracy by method and epsilon, as far as it was measured on all seeds."""

    def __init__(self, told: dict[str, Any]) -> None:
        self.told = told

    @cached_property
    def cells(self) -> dict[tuple[str, str, float | None], list[float]]:
        """The figures of the seeds in %, by method, point and epsilon, each at the rate that was chosen for it."""
        found = {}
        for method, points in ROWS.items():
            for epsilon in BUDGETS:
                for point in points:
                    if values := self._values(method, point, epsilon):
                        found[method, point, epsilon] = values
        return found

    def _values(self, method: str, point: str, epsilon: float | None) -> list[float]:
        searched = [each for each in self.told["search"] if (each["method"], each["epsilon"]) == (method, epsilon)]
        if len(searched) < len(self.told["settings"]["rates"]):
            return []
        key = {"method": method, "epsilon": epsilon, "lr": chosen(self.told, method, epsilon, point)}
        there = {each["seed"]: each[point] for each in self.told["runs"] if key.items() <= each.items()}
        return [100 * there[seed] for seed in SEEDS] if all(seed in there for seed in SEEDS) else []

    def page(self, table: Writer) -> str:
        """The table and its sentences."""
        head = ["", *(f"epsilon {epsilon:g}" if epsilon else "none" for epsilon in BUDGETS)]
        rows = [[f"{method}, {point}", *(self._cell(method, point, epsilon) for epsilon in BUDGETS)]
                for method, points in ROWS.items() for point in points]  # fmt: skip
        rows = [row for row in rows if set(row[1:]) != {NOT_YET}]
        return "\n\n".join([table(head, rows), "\n".join(f"- {each}" for each in self.sentences())])

    def _cell(self, method: str, point: str, epsilon: float | None) -> str:
        if method == "local" and epsilon is not None:
            return "as without"
        values = self.cells.get((method, point, epsilon))
        if values is None:
            return NOT_YET
        rate = chosen(self.told, method, epsilon, point)
        return f"{statistics.fmean(values):.1f}±{statistics.stdev(values):.1f} ({rate:g})"

    def sentences(self) -> Iterable[str]:
        """What the figures say, seed by seed."""
        alone = self.cells.get(("local", "trained", None))
        private = {key: values for key, values in self.cells.items() if key[0] != "local" and key[2] is not None}
        if alone and private:
            above = sorted({_named(key) for key, values in private.items() if _above(values, alone) == len(SEEDS)})
            below = sum(_above(values, alone) == 0 for values in private.values())
            best = max(private, key=lambda key: statistics.fmean(private[key]))
            yield f"Training alone, which needs no noise, has {statistics.fmean(alone):.1f}."
            yield f"Of {len(private)} private figures {below} are below it on every seed."
            yield f"Above it on every seed: {', '.join(above) or 'none'}."
            yield f"The best private figure is {_named(best)}, {statistics.fmean(private[best]):.1f}."
        for point in ROWS["fedavg"]:
            yield from self._against_fedavg(point)
        for method, points in ROWS.items():
            none, one = (self.cells.get((method, points[-1], epsilon)) for epsilon in (None, 1.0))
            if none and one:
                cost = statistics.fmean(a - b for a, b in zip(none, one, strict=True))
                yield f"Epsilon 1 costs {method} ({points[-1]}) {cost:.1f} points against training without noise."

        yield from self._ends()

    def _ends(self) -> Iterable[str]:
        """Rates at the ends of the grid: one beyond might be better."""
        rates = self.told["settings"]["rates"]
        for end, how in ((min(rates), "smallest"), (max(rates), "largest")):
            there = [_named(key) for key in self.cells if chosen(self.told, key[0], key[2], key[1]) == end]
            if there and len(rates) > 1:
                yield (
                    f"Chosen at the {how} learning rate of the grid, so that one beyond it might be better: "
                    f"{', '.join(there)}."
                )

    def _against_fedavg(self, point: str) -> Iterable[str]:
        """Personalized methods against FedAvg, under the same budget."""
        told = []
        for epsilon in BUDGETS[:-1]:
            base = self.cells.get(("fedavg", point, epsilon))
            for method in ("fedper", "ditto", "fedapa"):
                values = self.cells.get((method, "trained", epsilon))
                if base and values:
                    gain = statistics.fmean(values) - statistics.fmean(base)
                    told.append(
                        f"{method} {gain:+.1f} at epsilon {epsilon:g} ({_above(values, base)} of {len(SEEDS)} seeds)"
                    )
        if told:
            yield f"Against FedAvg's model as {point}, under the same budget: {', '.join(told)}."


def _above(values: Sequence[float], others: Sequence[float]) -> int:
    return sum(a > b for a, b in zip(values, others, strict=True))


def _named(key: tuple[str, str, float | None]) -> str:
    return f"{key[0]} ({key[1]}, {'none' if key[2] is None else f'epsilon {key[2]:g}'})"


def attacks(told: dict[str, Any], table: Writer) -> str:
    """What audits found, and whether any attack went past its bound."""
    head = [
        "",
        "trained (%)",
        "loss: AUC",
        "LiRA: AUC",
        "LiRA: TPR at 1 % FPR",
        "epsilon at least",
        "labels: error",
        "by prior",
    ]
    rows, past = [], []
    for each in told["audits"]:
        budget = "none" if each["budget"] is None else f"epsilon {each['budget']:g}"
        found = each["membership"]
        least = max(attack["at_least"]["epsilon"] for attack in found.values())
        if each["epsilon"] is not None and least > each["epsilon"]:
            past.append(f"{each['method']}, {budget}")
        rows.append([
            f"{each['method']}, {budget}", f"{100 * each['accuracy']:.1f}", _with(found["loss"], "auc"),
            _with(found["LiRA"], "auc"), _with(found["LiRA"], "tpr"), f"{least:.2f}",
            f"{each['labels']['error']:.2f}", f"{each['labels']['prior']:.2f}",
        ])  # fmt: skip
    private = sum(each["epsilon"] is not None for each in told["audits"])
    verdict = f"exceed their epsilon: {', '.join(past)}" if past else "none exceeds its epsilon"
    return table(head, rows) + f"\n\nBounds of the {private} private runs: {verdict}."


def _with(found: dict[str, Any], what: str) -> str:
    value = found["auc" if what == "auc" else "tpr_at_1_percent_fpr"]
    low, high = found[f"{what}_interval"]
    return f"{value:.2f} ({low:.2f} to {high:.2f})"


def accuracy_page(table: Writer) -> str:
    """Accuracy by epsilon, from the measurements."""
    return Accuracy(json.loads((RESULTS / "privacy.json").read_text("utf-8"))).page(table)


def attacks_page(table: Writer) -> str:
    """What audits found, from the measurements."""
    return attacks(json.loads((RESULTS / "attacks.json").read_text("utf-8")), table)
