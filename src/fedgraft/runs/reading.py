"""Read run directories, comparison directories and folders of them."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from fedgraft.base.errors import UserError
from fedgraft.methods import METHODS
from fedgraft.runs.comparison import Comparison, Reading, comparisons
from fedgraft.runs.config import MACHINE, RunConfig, configure
from fedgraft.runs.config import read as read_settings
from fedgraft.runs.directory import COMPARISON, folder_name
from fedgraft.runs.frame import Frame
from fedgraft.runs.identity import result_of
from fedgraft.runs.resultfile import Result
from fedgraft.runs.results import RESULT, OtherSettingsError, read_json, read_observations

Array = np.ndarray[Any, Any]

_NOT_THE_RUN = {*MACHINE, "method", "params", "evaluate_every", "global_test", "metrics"}


@dataclass(frozen=True, eq=False)
class Finished:
    """A finished run as its directory tells of it; what only the process that made it had (its networks) is gone."""

    label: str
    config: RunConfig
    facts: Result
    observed: Mapping[str, Array]
    """What the method showed in each round, by name."""
    directory: Path | None = None

    def __repr__(self) -> str:
        return f"Finished({self.label}, seed {self.config.seed}: {self.directory})"

    def frame(self) -> Frame:
        """Every figure of the run, as :meth:`Comparison.frame` has it."""
        return Comparison(self.config, {self.label: [self]}).frame()


def read(*places: str | Path) -> Comparison[Finished]:
    """Read finished runs back.

    Args:
        *places: the directory of a comparison, of a run, or several of them. They have to be of one setting, so that
            they may be compared: nothing but methods and seeds differ.

    Returns:
        The runs side by side.
    """
    return alone(read_all([Path(place) for place in places]))


def alone(reading: Reading) -> Comparison[Finished]:
    """The one comparison that was read, if there are no others."""
    found = reading.comparisons
    if len(found) > 1:
        settings = "; ".join(each.title for each in found)
        raise UserError(f"these are runs of {len(found)} settings ({settings}), which cannot be compared: name fewer")
    return found[0]


def read_all(places: Sequence[Path]) -> Reading:
    """Read every run in ``places``; one that is named itself has to be finished, one found in a folder may be open."""
    runs: dict[Path, Finished] = {}
    notes = []
    for place in places:
        for directory in find_runs(place):
            if (directory / RESULT).exists():
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
    return gather(runs.values(), notes)


def gather(runs: Iterable[Finished], notes: Sequence[str] = ()) -> Reading:
    """Put runs together so that each keeps its place: variants of a method get labels of their own, copies a note."""
    kept: dict[str, Finished] = {}
    said = list(notes)
    for run in _labelled_apart(list(runs)):
        identity = run.label + run.config.model_dump_json(exclude=_NOT_THE_RUN)
        if identity in kept:
            said.append(f"the run in {run.directory} has the settings of the one in {kept[identity].directory}")
        kept.setdefault(identity, run)
    return Reading(comparisons(kept.values()), said)


def _labelled_apart(runs: Sequence[Finished]) -> list[Finished]:
    """Add to labels that several variants of a method share what differs between their hyper-parameters."""
    variants: dict[str, list[Mapping[str, Any]]] = {}
    for run in runs:
        variants.setdefault(run.label, []).append(run.facts.params)
    return [replace(run, label=_told_apart(run, variants[run.label])) for run in runs]


def _told_apart(run: Finished, variants: Sequence[Mapping[str, Any]]) -> str:
    names = sorted(set().union(*variants))
    differing = [name for name in names if any(each.get(name) != variants[0].get(name) for each in variants)]
    said = [f"{name}={run.facts.params.get(name)}" for name in differing]
    return run.label + (":" + ",".join(said) if said else "")


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
    if (folder / COMPARISON).exists():
        rows = read_json(folder / COMPARISON).get("rows")
        order = [str(row.get("method")) for row in rows if isinstance(row, dict)] if isinstance(rows, list) else []
    runs = sorted(config.parent for config in folder.glob("*/config.toml"))
    ranks = {run: _rank(run, order) for run in runs}
    yield from sorted(runs, key=lambda run: ranks[run])


def _rank(run: Path, order: Sequence[str]) -> int:
    folders = [folder_name(label) for label in order]
    name = run.name.rpartition("-seed")[0]
    return folders.index(name) if name in folders else len(order)


def read_run(directory: Path) -> Finished:
    """Read a finished run, or say in a sentence what is wrong with it."""
    try:
        settings = read_settings(directory / "config.toml")
        config = configure(settings)
    except UserError as error:
        raise UserError(f"the run in {directory} cannot be read: {error}") from None
    facts = result_of(directory, settings, config)
    shown = read_observations(directory / "observed.safetensors", config.rounds)
    observed = {name: tensor.numpy() for name, tensor in shown.items()}
    return Finished(facts.label or _label(config.method, config.params), config, facts, observed, directory)


def _label(name: str, params: Mapping[str, Any]) -> str:
    """The label of a registered method. Code of somebody's own is not imported only to read what it left."""
    try:
        return METHODS.label(METHODS.make(name, **params)) if name in METHODS else name
    except UserError:
        return name
