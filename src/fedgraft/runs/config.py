"""The configuration of a run: one definition for flags, files and Python.

This module is imported by the command line before anything is asked for, so it imports nothing heavy.
"""

import difflib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, ValidationInfo, field_validator

from fedgraft.core import averaging, toml
from fedgraft.core.errors import UserError
from fedgraft.papers import recipe


class Settings(BaseModel):
    """Settings: none but those that there are, none changed, no number that is none."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    @field_validator("*", mode="before")
    @classmethod
    def _no_truth_for_a_number(cls, value: Any, info: ValidationInfo) -> Any:
        if isinstance(value, bool) and cls.model_fields[str(info.field_name)].annotation is not bool:
            raise ValueError(f"is not a thing to switch on or off, so not {str(value).lower()}")
        return value


class TrainingConfig(Settings):
    """Training, and what the server takes of it; the same for every method of a comparison."""

    lr: float = Field(0.02, gt=0, le=1e6, description="learning rate")
    momentum: float = Field(0.9, ge=0, lt=1, description="momentum of SGD")
    weight_decay: float = Field(0.0, ge=0, le=1e6, description="weight decay of SGD")
    epochs: int = Field(2, ge=0, description="local epochs in each round")
    batch_size: int = Field(32, ge=1, description="samples in a batch")
    drop_last: bool = Field(False, description="leave out the ragged last batch")
    lr_decay: float = Field(1.0, gt=0, le=1, description="factor on the learning rate after each round")
    clip_norm: float | None = Field(None, gt=0, description="clip gradients to this norm")
    momentum_buffers: Literal["fresh", "kept"] = Field(
        "fresh", description="momentum starts anew each round, or is kept"
    )
    buffers: Literal["average", "local", "keep"] = Field(
        "average", description="BatchNorm statistics: averaged, local to each client, or kept as they began"
    )
    max_norm: float = Field(1e9, gt=0, description="refuse a reply of which an entry has a larger norm")
    outlier_factor: float = Field(
        10.0, ge=0, description="refuse a reply so many times out of proportion to the model and the others (0: none)"
    )
    averaging: str = Field(
        "mean", description="how the server averages: mean, or against hostile clients median, trimmed:SHARE, clip:NORM"
    )

    @field_validator("averaging")
    @classmethod
    def _averaging_text(cls, value: str) -> str:
        kind, amount = averaging.parse(value)
        return f"{kind}:{amount:g}" if ":" in value else kind


class RunConfig(Settings):
    """Everything that decides a run's result, and where it goes."""

    method: str = Field("fedavg", description="name of the method")
    params: dict[str, Any] = Field(default_factory=dict, description="hyper-parameters of the method")
    dataset: str = Field(
        "digits", min_length=1, description="name of a dataset, an .npz file, or a folder with one .npz per site"
    )
    data_dir: str | None = Field(None, description="folder with <name>.npz files")
    clients: int = Field(10, ge=1, description="number of clients")
    partition: str = Field(
        "dirichlet:0.1", description="how samples are split over clients (fedgraft partition --list)"
    )
    validation: float = Field(0.0, ge=0, lt=1, description="share of each client's training samples put aside")
    normalise: Literal["half", "standard"] = Field(
        "half", description="pixels to [-1, 1], or by the dataset's statistics"
    )
    augment: bool = Field(False, description="random crops and mirror images in training")
    resize: int | None = Field(None, ge=4, le=1024, description="scale images to this many pixels a side")
    model: str = Field("auto", description="name of a model, or package.module:function that builds one")
    head: str | None = Field(
        None, description="which submodule of your own model is its head (default: the last layer)"
    )
    rounds: int = Field(30, ge=1, description="communication rounds")
    seed: int = Field(0, ge=0, description="seed of everything random")
    participation: str = Field("1", description="share of clients in a round, or a range such as 0.6..1")
    evaluate_every: int = Field(1, ge=1, description="evaluate after every so many rounds, and after the last")
    global_test: bool = Field(False, description="also test each client's model on the test samples of all clients")
    checkpoint_every: int | Literal["auto"] = Field(
        "auto", description="rounds between checkpoints (0: none; auto: at most one every 20 seconds, and at the end)"
    )
    workers: int | Literal["auto"] = Field("auto", description="worker processes (auto: one per core)")
    retries: int = Field(1, ge=0, description="how often a client that failed is tried again in a fresh worker")
    failed_client: Literal["stop", "absent"] = Field(
        "stop", description="a client that fails for good ends the run, or is absent"
    )
    deadline: float | None = Field(
        None,
        gt=0,
        description="seconds that a client may take in a round (without: a worker may be idle for ten minutes)",
    )
    kernels: Literal["auto", "native", "torch"] = Field(
        "auto", description="convolutions by our own kernels where they are faster, wherever they can, or never"
    )
    device: str = Field("cpu", description="where clients train: cpu or cuda")
    training: TrainingConfig = TrainingConfig()

    @field_validator("participation", mode="before")
    @classmethod
    def _participation_text(cls, value: Any) -> str:
        low, high = participation_range(str(value))
        return f"{low:g}" if low == high else f"{low:g}..{high:g}"

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


MACHINE = frozenset({"workers", "device", "data_dir", "checkpoint_every", "retries", "failed_client", "deadline"})
"""Settings of the machine, not of the experiment: a run may go on, and be compared, under others."""


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


def configure(*layers: Mapping[str, Any], recipe_name: str | None = None) -> RunConfig:
    """Join layers of settings, later ones winning, over a paper's recipe if one is named."""
    merged: dict[str, Any] = {}
    for layer in (recipe(recipe_name) if recipe_name else {}, *layers):
        for key, value in _nested(layer).items():
            if isinstance(value, Mapping) and isinstance(merged.get(key), dict):
                merged[key] = {**merged[key], **value}
            else:
                merged[key] = value
    try:
        return RunConfig(**merged)
    except ValidationError as error:
        raise UserError(_sentence(error)) from None


def read(path: Path) -> dict[str, Any]:
    """Read a configuration file."""
    return toml.read(path, "configuration file")


def _nested(layer: Mapping[str, Any]) -> dict[str, Any]:
    """Let training settings be given at the top level, as flags and keyword arguments are."""
    flat = {key: value for key, value in layer.items() if key not in TrainingConfig.model_fields}
    training = {key: value for key, value in layer.items() if key in TrainingConfig.model_fields}
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
        known = [*RunConfig.model_fields, *TrainingConfig.model_fields]
        near = difflib.get_close_matches(place[-1], known, n=1, cutoff=0.5)
        hint = f"; did you mean {near[0]!r}?" if near else ""
        return f"there is no setting {place[-1]!r}{hint}"
    text = first["msg"].removeprefix("Value error, ").removeprefix("Input ").removeprefix("String ")
    text = text[0].lower() + text[1:]
    got = first.get("input")
    shown = "" if first["type"] == "value_error" and "not " in text else f", not {got!r}"
    return f"{name} {text}{shown}"
