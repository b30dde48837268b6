"""The protocol as data: what every method gets alike, and in which settings.

`protocol.toml` is the one that the committed results have; anybody may write another (docs/board.md).
"""

import tomllib
from collections.abc import Iterable, Mapping
from importlib.resources import files
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from fedgraft.base import toml
from fedgraft.base.errors import UserError, unknown
from fedgraft.runs import names
from fedgraft.runs.config import RunConfig, configure
from fedgraft.runs.resultfile import complained

DECIDED = {"method", "params", "seed", "data_seed", "validation", "hold_out", "evaluate_every"}
"""What the protocol itself decides."""
RARELY = 1_000_000
"""Rounds between two evaluations: only the last round is tested."""
Name = Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9-]*$", max_length=60)]


class _Part(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


class Setting(_Part):
    """One federation that all methods are tried on."""

    title: str
    kind: Literal["synthetic", "natural"]
    """Whether clients are drawn anew for every draw, or are the same sites in all of them."""
    size: str
    """How large it is, in words."""
    settings: dict[str, Any]
    """As a configuration file has them."""


class Protocol(_Part):
    """What every method gets: trials to tune with, draws to be measured on, and nothing else."""

    trials: Annotated[int, Field(ge=1)] = 8
    draws: Annotated[int, Field(ge=1)] = 5
    """They have the seeds 0, 1, ..."""
    tuning_seed: Annotated[int, Field(ge=0)] = 1000
    """The draw that is tuned on, which is none of the others."""
    validation: Annotated[float, Field(gt=0, lt=1)] = 0.2
    """The share of every client's training samples that is put aside, in tuning and in the draws alike."""
    hold_out: Annotated[float, Field(gt=0, lt=1)] = 0.2
    """The share of clients that join when training is over; in tuning nobody is held out."""
    methods: tuple[str, ...] = ()
    """By name; all that are shipped, if none is named."""
    settings: dict[Name, Setting]

    @property
    def seeds(self) -> range:
        return range(self.draws)

    def chosen(self, names: Iterable[str]) -> dict[str, Setting]:
        """The settings of these names, in the protocol's order; all of them without any."""
        wanted = list(names)
        for name in wanted:
            if name not in self.settings:
                raise unknown("setting of the board", name, self.settings)
        return {name: each for name, each in self.settings.items() if not wanted or name in wanted}

    def measured(self, setting: Setting, seed: int) -> RunConfig:
        """The settings of a draw, but for the method and what was chosen for it."""
        return self._configured(setting, {"seed": seed, "hold_out": self.hold_out})

    def tuned(self, setting: Setting) -> RunConfig:
        """The settings of the draw that methods are tuned on."""
        return self._configured(setting, {"seed": self.tuning_seed})

    def _configured(self, setting: Setting, more: Mapping[str, Any]) -> RunConfig:
        own = {"validation": self.validation, "evaluate_every": RARELY, "workers": 1, "checkpoint_every": 0}
        return configure(setting.settings, own, more)

    def terms(self, name: str) -> dict[str, Any]:
        """All that two results of one setting have to agree in to be compared."""
        told = self.model_dump(exclude={"settings", "methods"})
        return {**told, "settings": self.settings[name].settings}


def read(path: Path | None = None) -> Protocol:
    """Read a protocol, or the one that is shipped; refuse what is none in a sentence."""
    if path is None:
        found = _told(tomllib.loads((files("fedgraft.board") / "protocol.toml").read_text("utf-8")), "protocol.toml")
    else:
        found = written(path)
    if not found.settings:
        raise UserError(f"{path} is no protocol of a board: it has no settings")
    if found.tuning_seed in found.seeds:
        raise UserError(f"tuning_seed {found.tuning_seed} is one of the {found.draws} draws; tuning needs another")
    for name, setting in found.settings.items():
        if surplus := setting.settings.keys() & DECIDED:
            raise UserError(f"{name}: {min(surplus)} is decided for all settings of a board alike: leave it out there")
        names.insist(found.tuned(setting), [])  # what stands for nothing is refused now
    return found


def written(path: Path) -> Protocol:
    """What stands in a file, whether it can be run or not."""
    return _told(toml.read(path, "protocol of a board"), path)


def _told(told: Mapping[str, Any], where: object) -> Protocol:
    methods = told.get("methods", ())
    try:
        return Protocol.model_validate({**told, "methods": tuple(methods) if isinstance(methods, list) else methods})
    except ValidationError as error:
        raise UserError(f"{where} is no protocol of a board: {complained(error)}") from None
