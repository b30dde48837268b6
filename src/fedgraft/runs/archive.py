"""Finished runs, found again by what decides their result, so that none is computed twice.

Every run that ends below the folder of all runs (`FEDGRAFT_RUNS`, or `runs` where the command was started) is noted
there, in `.index`: a small file for each, named by a checksum of all that decides its bits. These are its settings but
for the machine's, every byte of its data, the clients' names, the version of the arithmetic, the versions of torch,
NumPy and SciPy and the instruction sets. An agenda below the same folder looks there before it starts a run. What is
found has to be that run in its own words (`run.json`, `result.json`); then its files are copied. A run is not noted if
something may have had a say that is in no checksum: code of one's own, a model from Python, another device than a CPU,
another engine than ours, a refused reply.
"""

import hashlib
import json
import shutil
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any

from fedgraft import models
from fedgraft.base import disk
from fedgraft.base.errors import UserError
from fedgraft.base.registry import Registry
from fedgraft.core.schedules import SCHEDULES
from fedgraft.core.settings import METRICS, OPTIMIZERS, STAGES, TASKS
from fedgraft.data.sources.fitted import Fitted
from fedgraft.engines import devices
from fedgraft.methods import METHODS
from fedgraft.runs import directory, identity, results
from fedgraft.runs.config import ENGINES, RunConfig, runs_folder
from fedgraft.runs.identity import Identity

INDEX = ".index"
ORIGIN = "origin.json"
"""In a run's directory: where its files were copied from."""
_AS_ITS_OWN = {disk.LOCK, ORIGIN, "config.toml", "report.html", results.RESULT}


def key(who: Identity, names: tuple[str, ...]) -> str:
    """A checksum of all that decides a run's bits, and of what its result says besides."""
    facts = {
        **who.digest,
        "names": names,
        "arithmetic": who.arithmetic,
        "instructions": who.instructions,
        "versions": [*(who.versions[name] for name in ("torch", "numpy")), version("scipy")],
    }
    return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()


def note(place: Path, config: RunConfig, who: Identity, names: tuple[str, ...], refused: int) -> None:
    """Write down where a run that has ended lies, if it can be found again by what is known of it."""
    if refused or who.data is None or not _decided(config) or not _within(place):
        return
    entry = _entry(key(who, names))
    entry.parent.mkdir(parents=True, exist_ok=True)
    disk.write(entry, str(place.resolve().relative_to(runs_folder().resolve())).encode())


def find(place: Path, config: RunConfig, who: Identity, names: tuple[str, ...]) -> Path | None:
    """Where a finished run with the same bits lies, for one that is to lie in ``place``."""
    if who.data is None or not _decided(config) or not _within(place):
        return None
    try:
        found = runs_folder() / _entry(key(who, names)).read_text("utf-8")
        told, result = identity.read(found), results.read_result(found, config)
    except (OSError, UserError):  # nothing is noted, or it is gone, or it is damaged
        return None
    same = who.decides_like(told) and result.digest == who.digest and tuple(result.called) == names
    return found if same and found.resolve() != place.resolve() else None


def copy(found: Path, place: Path, config: RunConfig, fitted: Fitted | None) -> None:
    """Copy a finished run into a fresh directory; it is complete when its result is there, which comes last."""
    directory.fresh(place)
    with disk.locked(place), disk.writing(place):
        for each in sorted(found.iterdir()):
            if each.name in _AS_ITS_OWN or each.suffix == ".part":
                continue
            if each.is_dir():
                shutil.copytree(each, place / each.name, dirs_exist_ok=True)
            else:
                disk.write(place / each.name, each.read_bytes())
        if fitted is not None:
            directory.write_preparation(place, fitted)
        directory.write_config(place, config)
        results.write_json(place / ORIGIN, {"copied_from": str(found.resolve())})
        disk.write(place / results.RESULT, (found / results.RESULT).read_bytes())


def _entry(checksum: str) -> Path:
    return runs_folder() / INDEX / checksum[:2] / checksum[2:]


def _within(place: Path) -> bool:
    return place.resolve().is_relative_to(runs_folder().resolve())


def _decided(config: RunConfig) -> bool:
    """Whether nothing but what is shipped, on a CPU, has a say in the bits; data are known by their checksums."""
    if not devices.on_processor(config.device) or config.model == "custom":
        return False
    named = all(registry.split(text)[0] in registry.shipped for registry, text in _named(config))
    return named and all(models.is_shipped(kind) for kind in models.fleet(config.model, config.clients))


def _named(config: RunConfig) -> Iterator[tuple[Registry[Any], str]]:
    training = config.training
    yield METHODS, config.method
    yield ENGINES, config.engine
    yield OPTIMIZERS, training.optimizer
    yield SCHEDULES, training.schedule
    yield from ((STAGES, text) for text in training.stages)
    yield from ((METRICS, text) for text in config.metrics)
    if config.task is not None:
        yield TASKS, config.task
