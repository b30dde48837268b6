"""What a run leaves behind: its rounds, its best and last figures, its observations. Read and written here only."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from pydantic import ValidationError
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from fedgraft.base import disk
from fedgraft.base.errors import UserError
from fedgraft.core.evaluation import POINTS, Summary
from fedgraft.core.rounds import Round
from fedgraft.data.federation import MANY
from fedgraft.runs.config import RunConfig
from fedgraft.runs.metric import MetricInfo
from fedgraft.runs.resultfile import FORMAT, LARGEST, Result, complained
from fedgraft.runs.upgrade import upgraded

FIGURES = ("mean", "pooled")
RESULT = "result.json"


def record(this: Round) -> dict[str, Any]:
    """One round as JSON has it; shares are fractions."""
    return {
        "round": this.number + 1,
        "seconds": round(this.seconds, 4),
        "server_seconds": round(this.server_seconds, 4),
        "evaluation_seconds": round(this.evaluation_seconds, 4),
        "participants": list(this.participants),
        "accepted": this.accepted,
        "refused": [{"client": r.client, "reason": r.reason} for r in this.refused],
        "bytes_up": this.bytes_up,
        "bytes_down": this.bytes_down,
        "messages_up": this.messages_up,
        "messages_down": this.messages_down,
        "loss": _number(this.loss),
        **({"test_samples": list(this.test["trained"].tested)} if this.test else {}),
        **{point: summary_facts(this.test[point]) for point in POINTS if point in this.test},
        **{f"{point}_validation": summary_facts(this.validation[point]) for point in this.validation},
        **{f"{point}_global": summary_facts(this.everyone[point]) for point in this.everyone},
    }


def best_and_last(records: Sequence[Mapping[str, Any]], metrics: Sequence[MetricInfo]) -> dict[str, Any]:
    """The last evaluated round by metric, and the best by the leading one.

    The best is chosen on validation data where there is some, else on test data. A round in which a figure could not
    be measured is left out; of a run without any, nothing is known.
    """
    validated = any(f"{point}_validation" in record for record in records for point in POINTS)
    best: dict[str, Any] = {"chosen_on": "validation" if validated else "test"}
    last: dict[str, Any] = {}
    rounds = []
    for point in POINTS:
        judge = f"{point}_validation" if validated else point
        best[point] = {figure: _best(records, point, judge, metrics[0], figure) for figure in FIGURES}
        last[point] = {metric.name: {} for metric in metrics}
        for metric in metrics:
            for figure in FIGURES:
                tested = [record for record in records if _figure(record, point, metric, figure) is not None]
                last[point][metric.name][figure] = _figure(tested[-1], point, metric, figure) if tested else None
                rounds += [record["round"] for record in tested[-1:]]
    return {"best": best, "last": {**last, "round": max(rounds, default=None)}}


def _best(
    records: Sequence[Mapping[str, Any]], point: str, judge: str, metric: MetricInfo, figure: str
) -> dict[str, Any] | None:
    """The round that is best where it is judged, and the figure at the point then."""
    judged = [
        (metric.worth(by), record["round"], value)
        for record in records
        if (value := _figure(record, point, metric, figure)) is not None
        and (by := _figure(record, judge, metric, figure)) is not None
    ]
    if not judged:
        return None
    _, number, value = max(judged, key=lambda each: each[0])
    return {"round": number, "value": value}


def _figure(record: Mapping[str, Any], part: str, metric: MetricInfo, figure: str) -> float | None:
    found: float | None = record.get(part, {}).get("metrics", {}).get(metric.name, {}).get(figure)
    return found


def unheard(accepted: Sequence[int]) -> bool:
    """Whether the server took not one reply in any round: what such a run shows, nobody has learned from others."""
    return bool(accepted) and not any(accepted)


def tested_and_diverged(records: Sequence[Mapping[str, Any]], clients: int) -> dict[str, Any]:
    """How many test samples each client has, and whose model gave outputs that are not finite when last tested."""
    evaluated = [r for r in records if "received" in r]
    samples = [0] * clients
    for found in evaluated:
        samples = [new or old for new, old in zip(found.get("test_samples", samples), samples, strict=True)]
    return {
        "test_samples": samples,
        "diverged": {point: evaluated[-1][point].get("diverged", []) if evaluated else [] for point in POINTS},
    }


def lasted(records: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """How long the rounds took with their tests, together and on average, in however many sessions."""
    total = sum(record["seconds"] + record["evaluation_seconds"] for record in records)
    return {"seconds": round(total, 3), "seconds_per_round": round(total / max(1, len(records)), 4)}


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


class OtherSettingsError(UserError):
    """A result that belongs to another configuration."""


def read_result(place: Path, config: RunConfig, settings: str | None = None) -> Result:
    """Read the result of a run, if it is whole and of the run that ``config`` tells of; else it is damaged.

    ``settings`` is the checksum of the settings: a result that was made with others is another one's, and not damaged.
    """
    again = "without it, the run can be resumed"
    try:
        found, wrong = upgraded(read_json(place / RESULT)), None
    except UserError as error:
        raise UserError(f"{error}; {again}") from None
    made = found.get("digest")
    if settings is not None and made and isinstance(made, Mapping) and made.get("settings") != settings:
        raise OtherSettingsError(f"the result in {place} was made with other settings than its config.toml has")
    if isinstance(said := found["format"], int) and said != FORMAT:
        raise UserError(f"{place / RESULT} has format {said!r}, but this fedgraft reads formats 1 and {FORMAT}")
    try:
        result = Result.model_validate(found)
    except ValidationError as error:
        wrong = complained(error)
    except RecursionError:
        wrong = "it is nested too deeply"
    if wrong is None and len(result.rounds) != config.rounds:
        wrong = "it does not hold every round"
    if wrong is None:
        told = {"clients": result.clients + (len(result.unseen.names) if result.unseen else 0), "seed": result.seed}
        for name, value in told.items():
            if value != getattr(config, name):
                wrong = f"{name} is {value} there and {getattr(config, name)} in config.toml"
        if (result.unseen is None) != (config.hold_out is None):
            wrong = "it tells of clients that were held out, or config.toml does, and not the other"
    if wrong is not None:
        raise UserError(f"{place / RESULT} is damaged: {wrong}; {again}")
    return result


def write_result(place: Path, result: Mapping[str, Any]) -> None:
    """Write the result of a run: from then on it is complete."""
    write_json(place / RESULT, result, indent=2 if result["clients"] <= MANY else None)


def write_json(path: Path, value: Any, *, indent: int | None = 2) -> None:
    """Write a file whole or not at all; without an indent it is a tenth of the work."""
    disk.write(path, (json.dumps(value, indent=indent, allow_nan=False) + "\n").encode())


def read_observations(path: Path, rounds: int) -> dict[str, Tensor]:
    """Read what the method showed in each of so many rounds, if there is anything."""
    if not path.exists():
        return {}
    try:
        found = load_file(path)
    except (OSError, ValueError, KeyError, RuntimeError, SafetensorError) as error:
        raise UserError(f"{path} is damaged: {error}") from None
    for name, tensor in found.items():
        if tensor.dtype != torch.float32:
            raise UserError(f"{path} is damaged: {name!r} has numbers of type {tensor.dtype}")
        if not tensor.numel() or tensor.shape[:1] != (rounds,):
            raise UserError(f"{path} is damaged: {name!r} does not hold {rounds} rounds")
    return found


def write_observations(path: Path, observed: Mapping[str, Tensor]) -> None:
    """Write what the method showed, if it showed anything."""
    if observed:
        disk.write(path, disk.packed(observed))


def summary_facts(summary: Summary) -> dict[str, Any]:
    """All clients on one set of samples at one point, as JSON has it."""
    return {
        "metrics": {
            name: {
                "mean": _number(figure.mean),
                "pooled": _number(figure.pooled),
                "per_client": [_number(value) for value in figure.per_client],
            }
            for name, figure in summary.figures.items()
        },
        "diverged": list(summary.diverged),
    }


def _number(value: float) -> float | None:
    return value if abs(value) <= LARGEST else None
