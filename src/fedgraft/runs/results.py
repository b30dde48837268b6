"""What a run leaves behind: its rounds, its best and last accuracies, its observations."""

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from fedgraft.core import disk
from fedgraft.core.errors import UserError
from fedgraft.core.evaluation import POINTS, Summary
from fedgraft.core.rounds import Round

FORMAT = 1


def record(this: Round) -> dict[str, Any]:
    """One round as JSON has it; accuracies are fractions."""
    return {
        "round": this.number + 1,
        "seconds": round(this.seconds, 4),
        "server_seconds": round(this.server_seconds, 4),
        "evaluation_seconds": round(this.evaluation_seconds, 4),
        "participants": list(this.participants),
        "refused": [{"client": r.client, "reason": r.reason} for r in this.refused],
        "bytes_up": this.bytes_up,
        "bytes_down": this.bytes_down,
        "messages_up": this.messages_up,
        "messages_down": this.messages_down,
        "loss": _number(this.loss),
        **{point: _summary(this.test[point]) for point in POINTS if point in this.test},
        **{f"{point}_validation": _summary(this.validation[point]) for point in this.validation},
        **{f"{point}_global": _summary(this.everyone[point]) for point in this.everyone},
    }


def best_and_last(records: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The last evaluated round, and the best: chosen on validation data where there is some, else on test data."""
    evaluated = [r for r in records if "received" in r]
    if not evaluated:
        raise UserError("no client's model could be tested in any round, so there is no result")
    chosen_on = "validation" if evaluated and "received_validation" in evaluated[0] else "test"
    result: dict[str, Any] = {"best": {"chosen_on": chosen_on}, "last": {}}
    for point in POINTS:
        key = f"{point}_validation" if chosen_on == "validation" else point
        for figure in ("mean", "pooled"):
            best = max(evaluated, key=lambda r: r[key][figure])
            result["best"].setdefault(point, {})[figure] = {"round": best["round"], "accuracy": best[point][figure]}
            result["last"].setdefault(point, {})[figure] = evaluated[-1][point][figure]
    result["last"]["round"] = evaluated[-1]["round"]
    return result


def per_message(records: Sequence[Mapping[str, Any]]) -> tuple[float, float]:
    """Bytes up and down of one client in one round, on average."""
    ups, downs = (max(1, sum(r[key] for r in records)) for key in ("messages_up", "messages_down"))
    return sum(r["bytes_up"] for r in records) / ups, sum(r["bytes_down"] for r in records) / downs


def read_json(path: Path) -> dict[str, Any]:
    """Read what was written, or say in a sentence that it is damaged."""
    try:
        value = json.loads(path.read_text("utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise UserError(f"{path} is damaged: {error}") from None
    if not isinstance(value, dict):
        raise UserError(f"{path} is damaged: it does not hold a JSON object")
    return value


def write_json(path: Path, value: Any) -> None:
    """Write a file whole or not at all."""
    disk.write(path, (json.dumps(value, indent=2, allow_nan=False) + "\n").encode())


def read_observations(path: Path) -> dict[str, Tensor]:
    """Read what the method showed, if there is anything."""
    if not path.exists():
        return {}
    try:
        return load_file(path)
    except (OSError, SafetensorError) as error:
        raise UserError(f"{path} is damaged: {error}") from None


def write_observations(path: Path, observed: Mapping[str, Tensor]) -> None:
    """Write what the method showed, if it showed anything."""
    if observed:
        disk.write(path, disk.packed(observed))


def _summary(summary: Summary) -> dict[str, Any]:
    return {
        "mean": _number(summary.mean),
        "pooled": _number(summary.pooled),
        "loss": _number(summary.loss),
        "per_client": [_number(accuracy) for accuracy in summary.per_client],
    }


def _number(value: float) -> float | None:
    return value if math.isfinite(value) else None
