"""The papers' experiments: their training settings, by the name of the paper's method."""

import tomllib
from importlib.resources import files
from typing import Any

from fedgraft.core.errors import unknown


def recipes() -> dict[str, dict[str, Any]]:
    """Every recipe: settings of a run as the paper has them."""
    return tomllib.loads((files(__package__) / "recipes.toml").read_text("utf-8"))


def recipe(name: str) -> dict[str, Any]:
    """Return one recipe's settings, without its title."""
    known = recipes()
    if name not in known:
        raise unknown("recipe", name, known)
    return {key: value for key, value in known[name].items() if key != "title"}
