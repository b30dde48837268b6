"""What makes a run this one and no other: its settings and its data, and what it was begun with.

It is written to `run.json` before anything else. Whoever goes on with a run, or takes one for finished, has to bring
the same settings and data; another machine or version is only noted.
"""

import hashlib
import json
import platform
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import cached_property
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from pydantic import BaseModel, ConfigDict, Field

from fedgraft import kernels
from fedgraft.base import disk
from fedgraft.base.errors import UserError
from fedgraft.base.version import ARITHMETIC, __version__
from fedgraft.data import digest
from fedgraft.engines import devices
from fedgraft.kernels.native import library
from fedgraft.runs.config import MACHINE, RunConfig, configure
from fedgraft.runs.metric import MetricInfo
from fedgraft.runs.resultfile import Result
from fedgraft.runs.results import OtherSettingsError, read_json, read_result

FILE = "run.json"
FORMAT = 1
_SHOWN = 4


class Held(Protocol):
    """Data of which fingerprints can be had, or cannot: those at the sites of a federation."""

    @property
    def names(self) -> tuple[str, ...]: ...

    @property
    def fingerprints(self) -> tuple[digest.Fingerprint, ...] | None: ...


def _versions() -> dict[str, str]:
    return {
        "fedgraft": __version__,
        "torch": torch.__version__,
        "numpy": np.__version__,
        "python": platform.python_version(),
    }


def _instructions() -> dict[str, str]:
    own = library().best().isa.decode() if kernels.available() else "none"
    return {"torch": torch.backends.cpu.get_cpu_capability(), "kernels": own}


def _device(text: str) -> dict[str, str]:
    """What clients train on, if it is not the processor."""
    if devices.on_processor(text):
        return {}
    labels = sorted({device.label for device in devices.there(text)} - {""})
    return {"device": " ".join([devices.kind(devices.listed(text)[0]), *labels])}


class Identity(BaseModel):
    """A run's settings (but for the machine's), its data, and the versions and instruction sets that it runs on."""

    model_config = ConfigDict(frozen=True)

    format: int = FORMAT
    settings: dict[str, Any]
    data: list[dict[str, dict[str, int | str]]] | None
    metrics: list[MetricInfo] = []
    """What it is judged by, for those who follow it; the task says so, and nobody has to agree to it."""
    names: list[str] = []
    """What its clients are called; the data say more, and nobody has to agree to it."""
    start: str | None = None
    """A checksum of what an earlier run left for this one to begin with, if it does."""
    versions: dict[str, str] = Field(default_factory=_versions)
    instructions: dict[str, str] = Field(default_factory=_instructions)
    arithmetic: int | None = None
    """The version of the arithmetic; runs of older versions of fedgraft do not say."""

    @classmethod
    def of(
        cls, config: RunConfig, data: Held, metrics: Sequence[MetricInfo] = (), start: str | None = None
    ) -> "Identity":
        """Say who a run is."""
        prints = data.fingerprints
        held = None if prints is None else [{split: dict(part) for split, part in each.items()} for each in prints]
        return cls(
            settings=_settings(config.model_dump()), data=held, metrics=list(metrics), names=list(data.names),
            start=start, arithmetic=ARITHMETIC, instructions=_instructions() | _device(config.device),
        )  # fmt: skip

    @cached_property
    def digest(self) -> dict[str, str]:
        """Checksums of the settings, the data and the start, which stand in every checkpoint and in the result."""
        begun = {} if self.start is None else {"start": self.start}
        return {"settings": settings_digest(self.settings), "data": _digest(self.data), **begun}

    def write(self, place: Path) -> None:
        """Write it into a run's directory."""
        disk.write(place / FILE, self.model_dump_json(indent=1).encode())

    def insist(self, place: Path, names: tuple[str, ...]) -> list[str]:
        """Refuse to be another run than the one in ``place``; return notes on what may change the last bits."""
        there = read(place)
        _refuse(place, configure(there.settings).model_dump(), configure(self.settings).model_dump())
        both = there.data is not None and self.data is not None
        if other := digest.difference(there.data or [], self.data or [], names) if both else None:
            raise UserError(f"the run in {place} had other data: {other}")
        if there.start != self.start:
            raise UserError(f"the run in {place} began with other models than those that it would start from now")
        return [
            f"the run was begun with {what} {before}, and goes on with {now}: its last bits may differ"
            for what, before, now in self._machine(there)
        ]

    def decides_like(self, there: "Identity") -> bool:
        """Whether a run of that identity has this one's bits: same settings, data, arithmetic and instructions."""
        same = (self.settings, self.data, self.start) == (there.settings, there.data, there.start)
        return same and self.arithmetic == there.arithmetic and not self._machine(there)

    def _machine(self, there: "Identity") -> list[tuple[str, str, str]]:
        pairs = [(what, there.versions.get(what, "?"), self.versions[what]) for what in ("torch", "numpy")]
        for user, words in (("torch", "PyTorch's instruction set"), ("kernels", "the kernels' instruction set")):
            pairs.append((words, there.instructions.get(user, "?"), self.instructions[user]))
        before, now = (each.instructions.get("device", devices.CPU) for each in (there, self))
        pairs.append(("the device", before, now))
        if there.arithmetic is not None:
            pairs.append(("version of the arithmetic", str(there.arithmetic), str(self.arithmetic)))
        return [(what, before, now) for what, before, now in pairs if before != now]


def read(place: Path) -> Identity:
    """Read who the run in a directory is."""
    if not (place / FILE).exists():
        raise UserError(f"{place} has no {FILE}, which says what its settings and data were; start the run anew")
    told = read_json(place / FILE)
    if told.get("format") != FORMAT:
        raise UserError(f"{place / FILE} has format {told.get('format')!r}, but this fedgraft reads format {FORMAT}")
    try:
        return Identity.model_validate(told)
    except ValueError as error:
        raise UserError(f"{place / FILE} is damaged: {str(error).splitlines()[0]}") from None


def insist_on_settings(place: Path, settings: Mapping[str, Any]) -> None:
    """Refuse a config.toml that is not what was written: changed, cut short or empty."""
    if shown := _differing(read(place).settings, _settings(settings)):
        raise UserError(f"{place} holds another run than its config.toml says, which was changed ({shown})")


def result_of(place: Path, settings: Mapping[str, Any], config: RunConfig) -> Result:
    """Read the result of a run, if config.toml still has the settings that it was made with."""
    try:
        return read_result(place, config, settings_digest(settings))
    except OtherSettingsError as error:
        shown = ""
        with suppress(UserError):
            shown = _differing(read(place).settings, _settings(settings))
        changed = f", which was changed after the run ({shown}): undo that" if shown else ""
        raise OtherSettingsError(f"{error}{changed}") from None


def _refuse(place: Path, there: Mapping[str, Any], here: Mapping[str, Any]) -> None:
    if shown := _differing(there, here):
        raise UserError(f"{place} holds another run ({shown})")


def _differing(there: Mapping[str, Any], here: Mapping[str, Any]) -> str:
    """Name a few settings that are not the same, or nothing."""
    differing = differences(there, here)
    rest = len(differing) - _SHOWN
    return ", ".join(differing[:_SHOWN]) + (f", and {rest} more" if rest > 0 else "")


def settings_digest(settings: Mapping[str, Any]) -> str:
    """Return the checksum of settings as config.toml has them, whatever the machine's are."""
    return _digest(_settings(settings))


def _settings(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Settings as JSON and TOML have them, without the machine's and without what is not set."""

    def plain(value: Any) -> Any:
        if isinstance(value, Mapping):
            return {str(key): plain(inner) for key, inner in value.items() if inner is not None}
        return [plain(inner) for inner in value] if isinstance(value, list | tuple) else value

    return {key: value for key, value in plain(settings).items() if key not in MACHINE}


def _digest(value: Any) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True, default=str).encode()).hexdigest()


def differences(there: Mapping[str, Any], here: Mapping[str, Any]) -> list[str]:
    """Name the settings that are not the same, but for those of the machine."""
    found: list[str] = []
    for key in sorted((there.keys() | here.keys()) - MACHINE):
        one, two = there.get(key), here.get(key)
        if isinstance(one, Mapping) and isinstance(two, Mapping):
            found += differences(one, two)
        elif one != two:
            found.append(f"{key} is {_told(one)} there and {_told(two)} here")
    return found


def _told(value: Any) -> str:
    """A setting in a few words."""
    if value is None:
        return "missing"
    return "a table" if isinstance(value, Mapping) else repr(value)
