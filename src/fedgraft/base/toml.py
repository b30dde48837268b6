"""TOML files that people write."""

import tomllib
from pathlib import Path
from typing import Any

from fedgraft.base.errors import UserError


def read(path: Path, what: str) -> dict[str, Any]:
    """Read a file that is a ``what``, or say in one sentence why that cannot be."""
    try:
        return tomllib.loads(path.read_text("utf-8"))
    except FileNotFoundError:
        raise UserError(f"there is no {what} {path}") from None
    except (OSError, ValueError, RecursionError) as error:  # bad UTF-8, bad TOML, endless figures or brackets
        raise UserError(f"{path} is not a readable {what}: {error}") from None
