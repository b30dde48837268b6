"""What is kept of a board: one small file for each setting, with a line for each method."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, ValidationError

from fedgraft.base import disk
from fedgraft.base.errors import UserError
from fedgraft.core.evaluation import Point
from fedgraft.runs import table
from fedgraft.runs.metric import MetricInfo
from fedgraft.runs.resultfile import Result, complained
from fedgraft.runs.results import read_json

KIND, FORMAT = "board", 2
DIGITS = 6
State = Literal["done", "not admitted", "failed", "cut short", "waiting"]
STATES: tuple[State, ...] = ("done", "failed", "cut short", "not admitted", "waiting")


class _Part(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


class Clients(_Part):
    """Who takes part in a draw, the same for all methods."""

    seed: int
    names: list[str]
    unseen: list[str]
    """Those that were held out of training."""


class Trial(_Part):
    """What was tried in tuning, and the client mean on validation data in each rung that it reached."""

    values: dict[str, float]
    scores: list[float | None] = []
    failure: str = ""


class Outcome(_Part):
    """A method on one draw, at the point at which it means a client to use its model, in the last round."""

    seed: int
    failure: str = ""
    """Why it has no figures."""
    figures: list[float | None] = []
    pooled: float | None = None
    unseen: list[float | None] = []
    unseen_pooled: float | None = None
    bytes_up: float = 0.0
    """Of a client in a round, on average."""
    bytes_down: float = 0.0
    seconds: float | None = None
    """Of one core, in all rounds; where it was counted."""
    refused: int = 0
    """Replies that the server did not take."""
    diverged: int = 0
    """Clients whose model gives no numbers at the end."""

    @property
    def known(self) -> list[float]:
        return [value for value in self.figures if value is not None]


class Entry(_Part):
    """A method on the board."""

    method: str
    state: State
    reason: str = ""
    """Why it was not admitted, or failed."""
    point: Point = "trained"
    reconstruction: bool = False
    chosen: dict[str, float] = {}
    """The learning rate and the hyper-parameters that tuning chose."""
    trials: list[Trial] = []
    outcomes: list[Outcome] = []
    fedgraft: str = ""
    """The version that it was measured with."""
    machine: str = ""
    """Where: seconds of several machines do not compare."""

    @property
    def done(self) -> dict[int, Outcome]:
        """The draws that it has figures of, by their seeds."""
        return {each.seed: each for each in self.outcomes if not each.failure}


class Record(_Part):
    """All that is known of one setting."""

    setting: str
    title: str
    natural: bool
    size: str
    terms: dict[str, Any]
    """The protocol, and the run's settings."""
    metric: MetricInfo | None = None
    draws: list[Clients] = []
    entries: list[Entry] = []

    def entry(self, method: str) -> Entry | None:
        return next((each for each in self.entries if each.method == method), None)

    def clients(self, seed: int) -> Clients:
        return next(each for each in self.draws if each.seed == seed)


def outcome(result: Result, metric: MetricInfo, seconds: float | None = None) -> Outcome:
    """Keep of a finished run what the board needs."""
    point = result.headline
    last = result.last.figures(point, metric.name)
    joined = None if result.unseen is None else result.unseen.test(point).metrics.get(metric.name)
    return Outcome(
        seed=result.seed,
        figures=[_short(value) for value in table.last_figures(result, metric, point)],
        pooled=_short(last.pooled) if last else None,
        unseen=[] if joined is None else [_short(value) for value in joined.per_client],
        unseen_pooled=None if joined is None else _short(joined.pooled),
        bytes_up=round(result.bytes_up_per_client, 1), bytes_down=round(result.bytes_down_per_client, 1),
        seconds=seconds, refused=result.refused, diverged=len(table.diverged(result, point)),
    )  # fmt: skip


def clients(result: Result) -> Clients:
    """Who took part in the draw of a run."""
    return Clients(seed=result.seed, names=result.called, unseen=result.unseen.names if result.unseen else [])


def _short(value: float | None) -> float | None:
    return None if value is None else round(value, DIGITS)


# ---- as files


def write(path: Path, record: Record) -> None:
    """Write a setting's results: a line for each method, so that changes can be read."""
    lines = [json.dumps(each.model_dump(exclude_defaults=True), allow_nan=False) for each in record.entries]
    told = {"kind": KIND, "format": FORMAT, **record.model_dump(exclude={"entries"}, exclude_none=True)}
    head = json.dumps(told, allow_nan=False)[:-1]
    disk.write(path, (head + ', "entries": [\n' + ",\n".join(lines) + "\n]}\n").encode())


def read(path: Path) -> Record:
    """Read a setting's results, or say in a sentence what is wrong with the file."""
    told = read_json(path)
    if told.get("kind") != KIND or told.get("format") not in (1, FORMAT):
        raise UserError(f"{path} holds no results of a board that this version reads")
    facts = {key: value for key, value in told.items() if key not in ("kind", "format")}
    try:
        return Record.model_validate(_upgraded(facts) if told["format"] == 1 else facts)
    except ValidationError as error:
        raise UserError(f"{path} is damaged: {complained(error)}") from None


def _upgraded(facts: dict[str, Any]) -> dict[str, Any]:
    """Results of format 1, which had one version and one machine for all methods."""
    made = {key: facts.get(key, "") for key in ("fedgraft", "machine")}
    entries = [each if each.get("state") == "waiting" else {**each, **made} for each in facts.get("entries", [])]
    return {**{key: value for key, value in facts.items() if key not in made}, "entries": entries}


def read_all(place: Path) -> dict[str, Record]:
    """The results of every setting in a folder, by their names; files of another kind are left alone."""
    if not place.is_dir():
        raise UserError(f"there is no folder {place}; the board's results of a checkout are in docs/results")
    found = [read(path) for path in sorted(place.glob("*.json")) if read_json(path).get("kind") == KIND]
    return {each.setting: each for each in found}


def joined(mine: Mapping[str, Record], others: Mapping[str, Record]) -> dict[str, Record]:
    """Put methods of others beside mine; they have to have had the same protocol on the same clients."""
    return {name: _beside(record, others[name]) if name in others else record for name, record in mine.items()}


def _beside(mine: Record, other: Record) -> Record:
    if mine.terms != other.terms or any(each not in other.draws for each in mine.draws):
        raise UserError(f"the results of {mine.setting} have another protocol or other clients, and cannot be compared")
    known = {each.method for each in mine.entries if each.state != "waiting"}
    entries = [each for each in other.entries if each.method not in known]
    named = {each.method for each in entries}
    return mine.model_copy(
        update={"entries": [*entries, *(each for each in mine.entries if each.method not in named)],
                "draws": other.draws or mine.draws, "metric": mine.metric or other.metric}
    )  # fmt: skip
