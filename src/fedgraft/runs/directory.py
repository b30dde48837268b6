"""A run's directory: made once, kept to one process, with its configuration and the record of every round."""

import hashlib
import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import tomli_w
from pydantic import ValidationError

from fedgraft.base import disk
from fedgraft.base.errors import UserError
from fedgraft.data.sources.fitted import Fitted, facts
from fedgraft.runs import identity
from fedgraft.runs.config import RunConfig
from fedgraft.runs.resultfile import complained

COMPARISON = "comparison.json"
"""What a comparison leaves beside its runs, when it is complete."""
RACE, FINAL, RECOMMENDATION = "race.toml", "final", "recommendation.json"
"""In a recommendation's directory: what it was asked, the comparison that it ends with, and the answer."""
PREPARATION = "preparation.json"
TUNING = "tuning"
"""In a comparison's directory, before its runs: the trials by which its methods were tuned."""
START = "start.safetensors"
"""What an earlier run left for this one to begin with, if it does."""


def fresh(path: Path) -> Path:
    """Make a run's directory, and never write into somebody else's; what a killed process left is nobody's."""
    try:
        if path.exists() and any(not _left_over(each) for each in (path.iterdir() if path.is_dir() else [path])):
            raise UserError(f"{path} is there already and not empty; name another directory")
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"the directory {path} cannot be made: {error.strerror}") from None
    return path


def sweep(directory: Path) -> None:
    """Take away the halves of files that a killed process left."""
    for each in directory.iterdir():
        if _half(each):
            each.unlink(missing_ok=True)


def _left_over(path: Path) -> bool:
    """Whether a file says nothing of a run that has begun: that is done by config.toml, the last of the first files."""
    return path.name in (disk.LOCK, identity.FILE, PREPARATION, START, TUNING) or _half(path)


def _half(path: Path) -> bool:
    return path.suffix == ".part" and path.is_file()


def folder_name(label: str) -> str:
    """What the folders of a method's runs are called, whatever other methods there are: a comparison may grow."""
    name = re.sub(r"[^\w.+=-]+", "-", label)
    if len(name.encode()) <= 150 and re.fullmatch(r"[\w.+=:,-]+", label):
        return name
    return f"{name[:40]}-{hashlib.sha256(label.encode()).hexdigest()[:8]}"


def write_preparation(directory: Path, fitted: Fitted) -> None:
    """Write how samples were made, so that new rows can be prepared alike."""
    disk.write(directory / PREPARATION, json.dumps(facts(fitted), indent=1).encode())


def read_preparation(directory: Path) -> Fitted | None:
    """Read how the samples of a run were made, if they were made of something else."""
    if not (directory / PREPARATION).exists():
        return None
    try:
        return Fitted.model_validate_json((directory / PREPARATION).read_bytes())
    except ValidationError as error:
        raise UserError(f"{directory / PREPARATION} is damaged: {complained(error)}") from None
    except OSError as error:
        raise UserError(f"{directory / PREPARATION} cannot be read: {error.strerror}") from None


def write_config(directory: Path, config: RunConfig) -> None:
    """Write the configuration that repeats the run."""
    disk.write(directory / "config.toml", as_toml(config.model_dump()))


def as_toml(settings: Mapping[str, Any]) -> bytes:
    """Settings as a file has them, if it can."""
    try:
        return tomli_w.dumps(without_none(settings)).encode()
    except TypeError as error:
        raise UserError(
            f"a hyper-parameter cannot be written to a file: {error}; a run without `out` writes none"
        ) from None


def without_none(value: Any) -> Any:
    """Leave out what is not set, for which TOML has no word, and have lists as a file gives them back."""
    if isinstance(value, Mapping):
        return {key: without_none(inner) for key, inner in value.items() if inner is not None}
    return list(value) if isinstance(value, tuple) else value


@contextmanager
def metrics(
    directory: Path | None, records: Sequence[Mapping[str, Any]]
) -> Iterator[Callable[[Mapping[str, Any]], None]]:
    """Lend a writer of metrics.jsonl, which begins with the ``records`` that a resumed run already has."""
    if directory is None:
        yield lambda _: None
        return
    path = directory / "metrics.jsonl"
    disk.write(path, "".join(json.dumps(record) + "\n" for record in records).encode())
    with path.open("a", encoding="utf-8") as stream:

        def write(record: Mapping[str, Any]) -> None:
            stream.write(json.dumps(record) + "\n")
            stream.flush()

        yield write
