"""A run's directory: made once, kept to one process, with its configuration and the record of every round."""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import tomli_w

from fedgraft.core.errors import UserError
from fedgraft.runs import results
from fedgraft.runs.config import RunConfig


def fresh(path: Path) -> Path:
    """Make a run's directory, and never write into somebody else's."""
    if path.exists() and any(path.iterdir() if path.is_dir() else [path]):
        raise UserError(f"{path} is there already and not empty; name another directory with --out")
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"the directory {path} cannot be made: {error.strerror}") from None
    return path


@contextmanager
def locked(directory: Path) -> Iterator[None]:
    """Keep a run's directory to one process."""
    import fcntl  # not on every system, and only those who write a directory need it

    with (directory / "lock").open("w") as handle:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise UserError(f"another process is working in {directory}") from None
        yield
    (directory / "lock").unlink(missing_ok=True)


def write_config(directory: Path, config: RunConfig) -> None:
    """Write the configuration that repeats the run; TOML has no word for what is not set."""

    def without_none(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: without_none(inner) for key, inner in value.items() if inner is not None}
        return value

    results.write_bytes(directory / "config.toml", tomli_w.dumps(without_none(config.model_dump())).encode())


@contextmanager
def metrics(
    directory: Path | None, records: Sequence[Mapping[str, Any]]
) -> Iterator[Callable[[Mapping[str, Any]], None]]:
    """Lend a writer of metrics.jsonl, which begins with the ``records`` that a resumed run already has."""
    if directory is None:
        yield lambda _: None
        return
    path = directory / "metrics.jsonl"
    results.write_bytes(path, "".join(json.dumps(record) + "\n" for record in records).encode())
    with path.open("a", encoding="utf-8") as stream:

        def write(record: Mapping[str, Any]) -> None:
            stream.write(json.dumps(record) + "\n")
            stream.flush()

        yield write


def recorded(directory: Path, rounds_done: int) -> list[dict[str, Any]]:
    """Read the records of the rounds before a checkpoint; a torn last line is of a later round."""
    try:
        lines = (directory / "metrics.jsonl").read_text("utf-8").splitlines()[:rounds_done]
        records = [json.loads(line) for line in lines]
    except (OSError, ValueError) as error:
        raise UserError(f"{directory / 'metrics.jsonl'} is damaged: {error}") from None
    if [record.get("round") for record in records] != list(range(1, rounds_done + 1)):
        raise UserError(f"{directory / 'metrics.jsonl'} lacks rounds that the checkpoint has")
    return records
