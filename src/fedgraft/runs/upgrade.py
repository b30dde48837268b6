"""Results of the first format, which knew accuracy and a loss and nothing else, as results of the second."""

from collections.abc import Mapping
from typing import Any

from fedgraft.core.evaluation import POINTS
from fedgraft.runs.metric import FIRST
from fedgraft.runs.resultfile import FORMAT, SETS


def upgraded(found: Mapping[str, Any]) -> dict[str, Any]:
    """A result of the first format as one of the second; others as they are.

    What is no result of the first format either is left to the checks that follow.
    """
    if found.get("format", 1) != 1:
        return dict(found)
    made = {**found, "format": FORMAT, "task": "classification", "metrics": [each.model_dump() for each in FIRST]}
    if isinstance(rounds := found.get("rounds"), list):
        made["rounds"] = [upgraded_record(record) for record in rounds]
    if isinstance(last := found.get("last"), dict):
        losses = made["rounds"] if isinstance(made.get("rounds"), list) else []
        made["last"] = {
            key: _last(value, key, losses) if key in POINTS and isinstance(value, dict) else value
            for key, value in last.items()
        }
    if isinstance(best := found.get("best"), dict):
        made["best"] = {key: _best(value) if key in POINTS else value for key, value in best.items()}
    return made


def upgraded_record(record: Any) -> Any:
    """A round of the first format as one of the second; one of the second as it is."""
    if not isinstance(record, dict):
        return record
    parts = {f"{point}{kind}" for point in POINTS for kind in SETS}
    return {key: _upgraded_test(value) if key in parts else value for key, value in record.items()}


def _upgraded_test(test: Any) -> Any:
    if not isinstance(test, dict) or "metrics" in test or not test.keys() >= {"mean", "pooled", "per_client"}:
        return test
    first, second = (metric.name for metric in FIRST)
    unknown = [None] * len(test["per_client"]) if isinstance(test["per_client"], list) else test["per_client"]
    rest = {key: value for key, value in test.items() if key not in ("mean", "pooled", "per_client", "loss")}
    return {
        "metrics": {
            first: {key: test[key] for key in ("mean", "pooled", "per_client")},
            second: {"mean": None, "pooled": test.get("loss"), "per_client": unknown},
        },
        **rest,
    }


def _last(figures: Mapping[str, Any], point: str, rounds: list[Any]) -> dict[str, Any]:
    first, second = (metric.name for metric in FIRST)
    losses = [
        loss
        for record in rounds
        if isinstance(record, dict) and isinstance(test := record.get(point), dict) and _is_test(test)
        if (loss := test["metrics"][second].get("pooled")) is not None
    ]
    return {first: dict(figures), second: {"mean": None, "pooled": losses[-1] if losses else None}}


def _is_test(test: Mapping[str, Any]) -> bool:
    metrics = test.get("metrics")
    return isinstance(metrics, dict) and isinstance(metrics.get(FIRST[1].name), dict)


def _best(choice: Any) -> Any:
    if not isinstance(choice, dict):
        return choice
    return {
        figure: {("value" if key == "accuracy" else key): value for key, value in chosen.items()}
        if isinstance(chosen, dict)
        else chosen
        for figure, chosen in choice.items()
    }
