"""Read run directories, comparison directories and folders of them."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from fedgraft import methods
from fedgraft.core.errors import UserError
from fedgraft.runs.compare import folder_name
from fedgraft.runs.config import RunConfig, configure, read
from fedgraft.runs.identity import settings_digest
from fedgraft.runs.results import read_json, read_observations
from fedgraft.runs.run import Run

Array = np.ndarray[Any, Any]

_NEEDED = {
    "clients", "seed", "headline", "reconstruction", "seconds", "bytes_up_per_client", "bytes_down_per_client",
    "label_counts", "versions", "rounds", "last",
}  # fmt: skip


class OtherSettingsError(UserError):
    """A result that belongs to another configuration."""


@dataclass(frozen=True, eq=False)
class Finished:
    """A finished run, from its directory or from memory."""

    label: str
    config: RunConfig
    result: Mapping[str, Any]
    observed: Mapping[str, Array]


@dataclass(frozen=True, eq=False)
class Reading:
    """What was found, and sentences about what was left out."""

    runs: list[Finished]
    notes: list[str]


def from_memory(run: Run) -> Finished:
    """Take a run that was made in this process."""
    observed = {name: tensor.numpy() for name, tensor in run.observed.items()}
    return Finished(methods.label(run.method), run.config, run.result, observed)


def read_all(places: Sequence[Path]) -> Reading:
    """Read every run in ``places``; one that is named itself has to be finished, one found in a folder may be open."""
    runs: dict[Path, Finished] = {}
    notes = []
    for place in places:
        for directory in find_runs(place):
            if (directory / "result.json").exists():
                try:
                    runs.setdefault(directory.resolve(), read_run(directory))
                except OtherSettingsError as error:
                    if directory == place:
                        raise
                    notes.append(f"{error}; it is left out")
                continue
            note = (
                f"the run in {directory} has not finished: `fedgraft watch` follows it, `fedgraft resume` continues it"
            )
            if directory == place:
                raise UserError(note)
            notes.append(note)
    if not runs:
        raise UserError(notes[0] if notes else "name at least one directory")
    return Reading(list(runs.values()), notes)


def find_runs(place: Path) -> list[Path]:
    """The run directories in ``place``: itself, or one or two levels below it."""
    if not place.exists():
        raise UserError(f"there is no directory {place}")
    if not place.is_dir():
        raise UserError(f"{place} is a file; name the directory of a run or of a comparison")
    if (place / "config.toml").exists():
        return [place]
    found = [run for folder in (place, *sorted(filter(Path.is_dir, place.iterdir()))) for run in _children(folder)]
    if not found:
        raise UserError(f"{place} holds no run: a run's directory has a config.toml and, when finished, a result.json")
    return found


def _children(folder: Path) -> Iterator[Path]:
    """Yield the runs right below a folder, in the order of its comparison where it is one."""
    order: list[str] = []
    if (folder / "comparison.json").exists():
        order = [str(row.get("method")) for row in read_json(folder / "comparison.json").get("rows", [])]
    runs = sorted(config.parent for config in folder.glob("*/config.toml"))
    ranks = {run: _rank(run, order) for run in runs}
    yield from sorted(runs, key=lambda run: ranks[run])


def _rank(run: Path, order: Sequence[str]) -> int:
    folders = [folder_name(label, order) for label in order]
    name = run.name.rpartition("-seed")[0]
    return folders.index(name) if name in folders else len(order)


def read_run(directory: Path) -> Finished:
    """Read a finished run, or say in a sentence what is wrong with it."""
    result = read_json(directory / "result.json")
    if missing := sorted(_NEEDED - result.keys()):
        raise UserError(f"{directory / 'result.json'} is not the result of a run: it lacks {', '.join(missing)}")
    try:
        settings = read(directory / "config.toml")
        config = configure(settings)
    except UserError as error:
        raise UserError(f"the run in {directory} cannot be read: {error}") from None
    digest = result.get("digest")
    if isinstance(digest, Mapping) and digest.get("settings") != settings_digest(settings):
        raise OtherSettingsError(f"the result in {directory} was made with other settings than its config.toml has")
    observed = {name: tensor.numpy() for name, tensor in read_observations(directory / "observed.safetensors").items()}
    return Finished(result.get("label") or _label(config.method, config.params), config, result, observed)


def _label(name: str, params: Mapping[str, Any]) -> str:
    """The label of a registered method. Code of somebody's own is not imported only to read what it left."""
    try:
        return methods.label(methods.make(name, **params)) if name in methods.METHODS else name
    except UserError:
        return name
