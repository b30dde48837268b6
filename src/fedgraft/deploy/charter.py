"""The charter of a federation on several machines: its sites, what their data look like, its rules, and the run.

It is one file, `charter.toml`, the same for the server and all sites; it names no path of any site.
"""

import hashlib
import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import tomli_w
from pydantic import BaseModel, ConfigDict, Field, PrivateAttr, ValidationError, field_validator, model_validator

from fedgraft.base import toml
from fedgraft.base.errors import UserError
from fedgraft.core.settings import TASKS
from fedgraft.data.sources.fitted import Fitted
from fedgraft.deploy import code
from fedgraft.deploy.elsewhere import ELSEWHERE
from fedgraft.runs.config import DEPLOYED, RunConfig, configure


class Data(BaseModel):
    """What the samples of all sites look like."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: str = Field("own data", min_length=1, description="what reports call it")
    kind: Literal["pixels", "features", "tokens"] = Field(description="bytes of images, floats, or numbers of words")
    shape: tuple[int, ...] = Field(description="shape of one sample: height, width[, channels] for pixels")
    task: str = Field(description="what is learned, and with how many outputs: classification:10")
    mean: tuple[float, ...] | None = Field(None, description="of each channel, for normalise = standard")
    std: tuple[float, ...] | None = Field(None, description="of each channel, for normalise = standard")
    preparation: Fitted | None = Field(None, description="how rows, folders or characters become samples")

    @field_validator("task")
    @classmethod
    def _whole_task(cls, value: str) -> str:
        TASKS.insist(value)
        if TASKS.split(value)[0] in TASKS:  # a file of one's own is looked at when it is known to be the right one
            TASKS.make(value)
        return value

    @model_validator(mode="after")
    def _whole(self) -> "Data":
        if not self.shape or min(self.shape) < 1 or (self.kind == "pixels" and len(self.shape) not in (2, 3)):
            raise ValueError("shape is that of one sample: [height, width] or [height, width, channels] for pixels")
        channels = self.shape[2] if len(self.shape) == 3 else 1
        for constants in (self.mean, self.std):
            if constants is not None and (len(constants) not in (1, channels) or self.kind != "pixels"):
                raise ValueError(f"mean and std have one value for each of the {channels} channels")
        if self.std is not None and min(self.std) <= 0:
            raise ValueError("std has to be positive")
        return self


class Rules(BaseModel):
    """Whom a round waits for, and how long."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    quorum: int | None = Field(None, ge=1, description="answers that a round needs (default: of more than half)")
    deadline: float = Field(600, gt=0, description="seconds that the sites have to answer a message")
    patience: float = Field(3600, ge=0, description="seconds that a start, or a round below quorum, waits for sites")
    max_samples: int = Field(
        1_000_000, ge=1, description="training samples that a site may say it has: they are its weight in a mean"
    )


class Charter(BaseModel):
    """Everything that the server and the sites have to agree on."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    directory: str = Field(min_length=1, description="the run's directory on the server")
    sites: tuple[str, ...] = Field(min_length=1, description="names of the sites; their order numbers the clients")
    data: Data
    rules: Rules = Rules()
    code: dict[str, str] = Field(
        default_factory=dict, description="files that travel with the app and are not fedgraft's, with their SHA-256"
    )
    run: RunConfig
    _files: dict[str, Path] = PrivateAttr(default_factory=dict)

    @field_validator("run", mode="before")
    @classmethod
    def _run(cls, value: Any) -> Any:
        """Refuse what is decided elsewhere."""
        if isinstance(value, RunConfig):
            return value
        if not isinstance(value, dict):
            raise ValueError("is a table of settings")
        for key in value.keys() & ELSEWHERE.keys():
            raise ValueError(f"has {key!r}, which is not a setting of a federation: {ELSEWHERE[key]}")
        return configure(value)

    @model_validator(mode="after")
    def _agree(self) -> "Charter":
        for name in self.sites:
            if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}", name):
                raise ValueError(f"a site's name is made of letters, digits, '.', '_' and '-', not {name!r}")
        if twice := sorted({name for name in self.sites if self.sites.count(name) > 1}):
            raise ValueError(f"two sites are called {twice[0]!r}")
        if self.rules.quorum is not None and self.rules.quorum > len(self.sites):
            raise ValueError(f"the quorum is {self.rules.quorum}, and there are {len(self.sites)} sites")
        given = [constants is not None for constants in (self.data.mean, self.data.std)]
        if self.run.normalise == "standard" and not all(given) and self.data.kind == "pixels":
            raise ValueError("normalise = 'standard' needs the mean and std of the pixels under [data]")
        if self.run.normalise != "standard" and any(given):
            raise ValueError("mean and std under [data] need normalise = 'standard' under [run]")
        for name, known in self.code.items():
            if not re.fullmatch(rf"{code.FOLDER}/[\w-]+\.py", name) or not re.fullmatch("sha256:[0-9a-f]{64}", known):
                raise ValueError(f"code is named as '{code.FOLDER}/mine.py' = 'sha256:...', not {name!r} = {known!r}")
        return self

    @property
    def quorum(self) -> int:
        """Answers that a round needs: as told, or of more than half of the sites."""
        return self.rules.quorum or len(self.sites) // 2 + 1

    @property
    def config(self) -> RunConfig:
        """The run's configuration, as its directory will hold it."""
        known = {
            "dataset": self.data.name, "partition": "own", "clients": len(self.sites),
            "engine": DEPLOYED, "checkpoint_every": 1, "failed_client": "absent", "deadline": self.rules.deadline,
        }  # fmt: skip
        return self.run.model_copy(update=known)

    @property
    def fingerprint(self) -> str:
        """What a result depends on: everything but rules and directory."""
        facts = self.model_dump(mode="json", exclude={"rules", "directory"} | (set() if self.code else {"code"}))
        return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()

    def text(self) -> str:
        """Write it as TOML; what is as it would be anyway is left out."""
        run = self.run.model_dump(mode="json", exclude_defaults=True, exclude=set(ELSEWHERE))
        facts = self.model_dump(mode="json", exclude_none=True, exclude={"run"} | (set() if self.code else {"code"}))
        return tomli_w.dumps({**facts, "run": {"method": self.run.method, **run}})

    def write(self, path: Path) -> None:
        path.write_text(self.text(), "utf-8")

    # ---- code that is not fedgraft's
    def at(self, files: Mapping[str, Path]) -> "Charter":
        """Say where the files of [code] lie on this machine."""
        self._files.update(files)
        return self

    @property
    def files(self) -> dict[str, Path]:
        """Where the files of [code] lie; each is what was agreed on, or nothing runs."""
        for name, known in self.code.items():
            if code.digest(self._files[name]) != known:
                raise UserError(f"{name} is not the file that the federation agreed on: its digest is another")
        return {name: self._files[name] for name in self.code}

    def located(self, text: str) -> str:
        """Return a text that names files of [code] with the places where they lie."""
        files = self.files

        def found(place: str) -> str:
            if code.name(place) not in files:
                raise UserError(f"{place} is not under [code]: `fedgraft deploy init` puts files of one's own there")
            return str(files[code.name(place)])

        return code.in_text(text, found)

    @property
    def local(self) -> RunConfig:
        """The run's configuration with the places of its files on this machine."""
        return code.renamed(self.config, lambda place: self.located(f"{place}:")[:-1])

    def shared(self, config: RunConfig) -> RunConfig:
        """Undo ``local``: on all machines a file has one name."""
        names = {str(path.resolve()): f"./{name}" for name, path in self._files.items()}
        return code.renamed(config, lambda place: names.get(place, place))


def read(path: Path) -> Charter:
    """Read a charter, or say in one sentence what is wrong with it."""
    made = charter(toml.read(path, "description of a federation"), path.name)
    return made.at({name: path.parent / name for name in made.code})


def charter(settings: dict[str, Any], where: str = "the federation") -> Charter:
    """Make a charter of its tables."""
    try:
        return Charter(**settings)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        place = ".".join(str(part) for part in first["loc"])
        text = first["msg"].removeprefix("Value error, ")
        raise UserError(f"{where}: {place + ': ' if place else ''}{text[0].lower()}{text[1:]}") from None
