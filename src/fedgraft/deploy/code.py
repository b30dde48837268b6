"""Code of one's own in a federation: files that travel with the app, each known by its digest.

A charter names such a file as it lies beside the charter (`./code/mine.py:Mine`), with its SHA-256 under [code]. Nobody
runs it unless it is that very file, and a site only if the digest stands in the site's own description too.
"""

import hashlib
import re
from collections.abc import Callable, Mapping
from pathlib import Path, PurePosixPath
from typing import Any

from fedgraft.base.errors import UserError
from fedgraft.runs.config import RunConfig

FOLDER = "code"
_FILE = re.compile(r"(?P<before>^|,\s*)(?P<place>[^,:]+\.py)(?=:)")


def pack(tables: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Path]]:
    """Have a charter's tables name the files that they refer to as they lie in the app; say where they lie now."""
    files: dict[str, Path] = {}

    def packed(place: str) -> str:
        path = Path(place).expanduser().resolve()
        name = f"{FOLDER}/{path.name}"
        if not path.is_file():
            raise UserError(f"there is no file {path}")
        if files.setdefault(name, path) != path:
            raise UserError(f"{files[name]} and {path} have one name, and travel in one folder: rename one of them")
        return f"./{name}"

    run, task = renamed(tables["run"], packed), in_text(tables["data"]["task"], packed)
    digests = {name: digest(path) for name, path in files.items()}
    return {**tables, "run": run, "data": {**tables["data"], "task": task}, "code": digests}, files


def renamed(run: RunConfig, change: Callable[[str], str]) -> RunConfig:
    """Return the settings with the names of files changed wherever one may stand."""
    training = run.training.but(
        stages=tuple(in_text(each, change) for each in run.training.stages),
        optimizer=in_text(run.training.optimizer, change),
        schedule=in_text(run.training.schedule, change),
    )
    texts = {name: in_text(getattr(run, name), change) for name in ("method", "model")}
    metrics = tuple(in_text(each, change) for each in run.metrics)
    return run.model_copy(update={**texts, "metrics": metrics, "training": training})


def in_text(text: str, change: Callable[[str], str]) -> str:
    """Return a text with the names of the files in it changed: ``./mine.py:Mine:beta=0.5``."""
    return _FILE.sub(lambda found: found["before"] + change(found["place"]), text)


def digest(path: Path) -> str:
    """Return the SHA-256 of a file, as a charter has it."""
    try:
        return f"sha256:{hashlib.sha256(path.read_bytes()).hexdigest()}"
    except OSError as error:
        raise UserError(f"the file {path.name} cannot be read: {error.strerror}") from None


def name(place: str) -> str:
    """Return the name of a file beside the charter as [code] has it."""
    return str(PurePosixPath(place))


def told(code: Mapping[str, str]) -> str:
    """Say which files there are."""
    return ", ".join(f"{each} ({known})" for each, known in code.items())
