"""The configuration of a run: one definition for flags, files and Python.

This module is imported by the command line before anything is asked for, so it imports nothing heavy.
"""

import difflib
import os
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Literal

from pydantic import Field, ValidationError, field_validator

from fedgraft.base import toml
from fedgraft.base.errors import UserError
from fedgraft.base.registry import Registry
from fedgraft.core.settings import METRICS, TASKS, Settings, Training, known
from fedgraft.papers import recipe

At = Literal["trained", "received", "own"]
AT: tuple[At, ...] = ("trained", "received", "own")
"""Where methods are compared: all at one point, or each at its own, where its paper measures. The first is the usual
one: what a client has in hand when a run is over is the model that its last training left."""
ENGINES: Registry[Any] = Registry(
    "engine", "fedgraft.engines.local", "fedgraft.engines.distributed", "fedgraft.engines.flower.server",
    group="fedgraft.engines",
)  # fmt: skip
DEPLOYED = "flower"
"""The engine of a federation on several machines, which is described by a charter and not by flags."""
CLIENTS, SCHEME = 10, "dirichlet:0.1"
"""Over how many clients a dataset is split, and how, unless told."""
LARGEST_SEED = 10**18
"""Files that hold a seed have 64 bits for it."""


class RunConfig(Settings):
    """Everything that decides a run's result, and where it goes."""

    method: str = Field("fedavg", description="name of the method")
    params: dict[str, Any] = Field(default_factory=dict, description="hyper-parameters of the method")
    dataset: str = Field(
        "digits",
        min_length=1,
        description="name of a dataset, an .npz file, or a folder or table of sites (docs/data.md)",
    )
    data_dir: str | None = Field(None, description="folder with <name>.npz files")
    clients: int = Field(CLIENTS, ge=1, description="number of clients")
    partition: str = Field(SCHEME, description="how samples are split over clients (fedgraft partition --list)")
    validation: float = Field(
        0.0,
        ge=0,
        lt=1,
        description="share of training samples set aside for validation, at clients without validation samples",
    )
    normalise: Literal["half", "standard"] = Field(
        "half", description="scale pixels to [-1, 1], or by the mean and standard deviation of the dataset"
    )
    augment: bool = Field(False, description="random crops and mirror images in training")
    resize: int | None = Field(None, ge=4, le=1024, description="scale images to this many pixels a side")
    target: str | None = Field(
        None, min_length=1, description="column of the sites' tables that is predicted (default: label)"
    )
    site_column: str | None = Field(None, min_length=1, description="column that names the site, in one table for all")
    split: str | None = Field(
        None,
        description="how a site's rows are split: stratified, random, group:COLUMN, time:COLUMN (default: by a column "
        "set, if there is one, else stratified)",
    )
    test_share: float = Field(
        0.25, gt=0, lt=1, description="share of a site's rows to test on, where they are not split already"
    )
    window: int | None = Field(None, ge=2, le=100_000, description="consecutive rows or characters in a sample")
    ignore: tuple[str, ...] = Field((), description="columns that are not used as inputs")
    categories: tuple[str, ...] = Field((), description="columns of numbers that are codes of categories")
    task: str | None = Field(
        None,
        description="what is learned: classification, regression, multi-label, next-token (default: by the targets)",
    )
    metrics: tuple[str, ...] = Field((), description="metrics, the leading one first (default: the task's usual ones)")
    model: str = Field("auto", description="name of a model, or module:function or ./file.py:function that builds one")
    head: str | None = Field(
        None, description="which submodule of your own model is its head (default: the last layer)"
    )
    rounds: int = Field(30, ge=1, description="communication rounds")
    seed: int = Field(0, ge=0, le=LARGEST_SEED, description="seed of everything random")
    tuned: int | None = Field(
        None,
        ge=1,
        description="with how many trials the learning rate and the method's numbers were chosen, if they were: such "
        "runs are compared whatever they are",
    )
    data_seed: int | None = Field(
        None,
        ge=0,
        le=LARGEST_SEED,
        description="seed of how data are split and set aside, to keep them while seed changes (default: seed)",
    )
    participation: str = Field("1", description="share of clients in a round, or a range such as 0.6..1")
    hold_out: float | None = Field(
        None,
        gt=0,
        lt=1,
        description="share of the clients that are kept out of training, and join afterwards (docs/joining.md)",
    )
    start_from: str | None = Field(
        None,
        min_length=1,
        description="directory of an earlier run whose models this one starts from (docs/warm-start.md)",
    )
    evaluate_every: int = Field(1, ge=1, description="rounds between evaluations; the last round is always evaluated")
    evaluate_clients: int | None = Field(
        None, ge=1, description="how many clients' models are tested, chosen by the seed (default: all)"
    )
    global_test: bool = Field(False, description="also test each client's model on the test samples of all clients")
    checkpoint_every: int | Literal["auto"] = Field(
        "auto", description="rounds between checkpoints (0: none; auto: at most one every 20 seconds, and at the end)"
    )
    engine: str = Field(
        "local",
        description="what trains clients: local (workers), distributed (docs/clusters.md), or your own (./my.py:Mine)",
    )
    workers: int | Literal["auto"] = Field("auto", description="worker processes (auto: one per core)")
    retries: int = Field(1, ge=0, description="how often a client that failed is tried again in a fresh worker")
    failed_client: Literal["stop", "absent"] = Field(
        "stop",
        description="a client that fails in all its tries ends the run (stop), or is left out of the round (absent)",
    )
    deadline: float | None = Field(
        None,
        gt=0,
        description="seconds that a client may take in a round (default: any; a worker may be idle for ten minutes)",
    )
    storage: Literal["memory", "disk"] = Field(
        "memory", description="where clients' states and samples are kept while they are not in use (disk: in $TMPDIR)"
    )
    kernels: Literal["auto", "native", "torch"] = Field(
        "auto",
        description="convolutions by our own kernels where they are faster, wherever possible, or never",
    )
    together: int | None = Field(
        None,
        ge=2,
        le=100_000,
        description="clients that train at once as one batch of networks (default: each by itself; docs/devices.md)",
    )
    device: str = Field(
        "cpu", description="where clients train: cpu, cuda (all devices), or some devices as cuda:0,cuda:1"
    )
    training: Training = Training()

    @property
    def drawn_by(self) -> int:
        """The seed of how data are split and put aside."""
        return self.seed if self.data_seed is None else self.data_seed

    @field_validator("participation", mode="before")
    @classmethod
    def _participation_text(cls, value: Any) -> str:
        low, high = participation_range(str(value))
        return f"{low:g}" if low == high else f"{low:g}..{high:g}"

    @field_validator("engine")
    @classmethod
    def _known_engine(cls, value: str) -> str:
        return known(ENGINES, value)

    @field_validator("task")
    @classmethod
    def _known_task(cls, value: str | None) -> str | None:
        return None if value is None else known(TASKS, value)

    @field_validator("metrics", mode="before")
    @classmethod
    def _known_metrics(cls, value: Any) -> Any:
        texts = [value] if isinstance(value, str) else value
        if not isinstance(texts, list | tuple) or not all(isinstance(text, str) for text in texts):
            raise ValueError("are names such as accuracy or auc")
        return tuple(known(METRICS, text) for text in single_metrics(texts))

    @field_validator("split")
    @classmethod
    def _known_split(cls, value: str | None) -> str | None:
        return None if value is None else split_text(value)

    @field_validator("ignore", "categories", mode="before")
    @classmethod
    def _column_names(cls, value: Any) -> Any:
        """A comma is between two columns: --ignore id,name."""
        texts = [value] if isinstance(value, str) else value
        if not isinstance(texts, list | tuple) or not all(isinstance(text, str) for text in texts):
            raise ValueError("are names of columns")
        return tuple(part.strip() for text in texts for part in text.split(",") if part.strip())

    @field_validator("checkpoint_every")
    @classmethod
    def _not_negative(cls, value: int | str) -> int | str:
        if isinstance(value, int) and value < 0:
            raise ValueError("has to be at least 0, or auto")
        return value

    @field_validator("workers")
    @classmethod
    def _at_least_one_worker(cls, value: int | str) -> int | str:
        if isinstance(value, int) and value < 1:
            raise ValueError("has to be at least 1, or auto")
        return value


def seeds_from(first: int, count: int) -> range:
    """The seeds of several runs, of which the first is known, if all of them can be written down."""
    if first + count - 1 > LARGEST_SEED:
        raise UserError(f"seeds go up to {LARGEST_SEED}, and {count} from {first} on are more")
    return range(first, first + count)


def single_metrics(texts: Iterable[str]) -> list[str]:
    """A comma is between two metrics, unless a parameter follows it: auc,calibration_error:bins=10."""
    return [part for text in texts for part in re.split(r",(?![^,:]*=)", text)]


READING = ("target", "site_column", "split", "test_share", "window", "ignore", "categories")
"""Settings that say how data at sites are read."""
MACHINE = frozenset(
    {"engine", "workers", "device", "data_dir", "checkpoint_every", "retries", "failed_client", "deadline", "storage"}
)
"""Settings of the machine, not of the experiment: a run may go on, and be compared, under others."""


GONE = {
    "max_norm": "bound:norm={}",
    "outlier_factor": "bound:factor={}",
    "averaging": "{}",
}
"""Settings that became stages, and how they are written now."""


def gone(name: str, value: Any) -> str:
    """Say how a setting that became a stage is written now."""
    if name == "averaging" and value == "mean":
        return "averaging is a stage now, and the mean needs none: leave it out"
    text = GONE[name].format(value)
    return f'{name} is a stage now: write stages = ["{text}"], or --stage {text} on the command line'


def runs_folder() -> Path:
    """The folder that all runs lie in unless told otherwise."""
    return Path(os.environ.get("FEDGRAFT_RUNS") or "runs")


def flag(name: str) -> str:
    """How a setting is typed on the command line."""
    return "--stage" if name == "stages" else "--" + name.replace("_", "-")


SPLITS = ("stratified", "random", "group", "time")


def split_text(text: str) -> str:
    """Read ``stratified``, ``random``, ``group:COLUMN`` or ``time:COLUMN``."""
    name, colon, column = text.partition(":")
    if name not in SPLITS:
        raise ValueError(f"is stratified, random, group:COLUMN or time:COLUMN, not {text!r}")
    if (name in ("group", "time")) != bool(column) or (colon and not column):
        raise ValueError(f"is written {name}{':COLUMN' if name in ('group', 'time') else ''}, not {text!r}")
    return text


def participation_range(text: str) -> tuple[float, float]:
    """Read ``0.5`` or ``0.6..1``."""
    low, dots, high = text.partition("..")
    try:
        bounds = float(low), float(high if dots else low)
    except ValueError:
        raise ValueError(f"is a share such as 0.5 or a range such as 0.6..1, not {text!r}") from None
    if not 0 < bounds[0] <= bounds[1] <= 1:
        raise ValueError(f"has to lie above 0 and up to 1, not {text!r}")
    return bounds


def configure(*layers: "Mapping[str, Any] | RunConfig", recipe_name: str | None = None) -> RunConfig:
    """Join layers of settings, later ones winning, over a paper's recipe if one is named.

    Hyper-parameters belong to their method: a layer that names another method leaves those of the layers below out.
    The fields that count as set are those that somebody named: a recipe's give way to what the data are.
    """
    merged: dict[str, Any] = {}
    told: set[str] = set()
    given_layers = [_changed(layer) if isinstance(layer, RunConfig) else _nested(layer) for layer in layers]
    dataset = next((str(given["dataset"]) for given in reversed(given_layers) if given.get("dataset")), None)
    for given in (_nested(recipe(recipe_name, dataset)) if recipe_name else {}, *given_layers):
        if "method" in given and given["method"] != merged.get("method", given["method"]):
            merged.pop("params", None)
        for key, value in given.items():
            if isinstance(value, Mapping) and isinstance(merged.get(key), dict):
                merged[key] = {**merged[key], **value}
            else:
                merged[key] = value
    for layer in layers:
        told |= layer.model_fields_set if isinstance(layer, RunConfig) else set(_nested(layer))
    try:
        config = RunConfig(**merged)
    except ValidationError as error:
        raise UserError(_sentence(error)) from None
    config.model_fields_set.intersection_update(told)
    return config


def _changed(config: RunConfig) -> dict[str, Any]:
    """The settings that were named, or that are not as they would be anyway."""
    values = config.model_dump(exclude={"training"})
    kept = {name: value for name, value in values.items() if name in config.model_fields_set} | {
        name: value
        for name, value in values.items()
        if value != RunConfig.model_fields[name].get_default(call_default_factory=True)
    }
    return {**kept, "training": config.training.model_dump(exclude_unset=True)}


def read(path: Path) -> dict[str, Any]:
    """Read a configuration file."""
    return toml.read(path, "configuration file")


def _nested(layer: Mapping[str, Any]) -> dict[str, Any]:
    """Let training settings be given at the top level, as flags and keyword arguments are."""
    flat = {key: value for key, value in layer.items() if key not in Training.model_fields}
    training = {key: value for key, value in layer.items() if key in Training.model_fields}
    if training:
        inner = flat.get("training")
        flat["training"] = {**(inner if isinstance(inner, Mapping) else {}), **training}
    return flat


def _sentence(error: ValidationError) -> str:
    """Turn the first thing that pydantic found into one sentence."""
    first = error.errors(include_url=False)[0]
    place = [str(part) for part in first["loc"] if not str(part).startswith(("function-", "literal["))]
    name = ".".join(place[:2] if place[0] == "training" else place[:1])
    if first["type"] == "extra_forbidden":
        if place[-1] in GONE:
            return gone(place[-1], first.get("input"))
        known = [*RunConfig.model_fields, *Training.model_fields]
        near = difflib.get_close_matches(place[-1], known, n=1, cutoff=0.5)
        hint = f"; did you mean {near[0]!r}?" if near else ""
        return f"there is no setting {place[-1]!r}{hint}"
    text = first["msg"].removeprefix("Value error, ").removeprefix("Input ").removeprefix("String ")
    text = text[0].lower() + text[1:]
    got = first.get("input")
    shown = "" if first["type"] == "value_error" and "not " in text else f", not {got!r}"
    return f"{name} {text}{shown}"
