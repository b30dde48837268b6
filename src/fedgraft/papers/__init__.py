"""The papers' experiments: their training settings, by the name of the paper's method."""

import tomllib
from importlib.resources import files
from typing import Any

from fedgraft.base.errors import unknown


def recipes() -> dict[str, dict[str, Any]]:
    """Every recipe: settings of a run as the paper has them."""
    return tomllib.loads((files(__package__) / "recipes.toml").read_text("utf-8"))


def recipe(name: str, dataset: str | None = None) -> dict[str, Any]:
    """Return one recipe's settings, without its title, as they are for ``dataset`` (its own one unless told)."""
    from fedgraft.data.datasets import DATASETS  # numpy is heavy, and the command line reads this file first

    known = recipes()
    if name not in known:
        raise unknown("recipe", name, known)
    settings = {key: value for key, value in known[name].items() if key not in ("title", "grey")}
    entry = DATASETS.get(dataset or settings["dataset"])
    grey = len(getattr(entry, "shape", ())) == 2
    return settings | (known[name].get("grey", {}) if grey else {})
