"""Attacks on what people see: text from outside that looks like markup, escapes or code."""

import io
import json
from pathlib import Path
from random import Random

import numpy as np
from rich.console import Console

import fedgraft as fg
from fedgraft.data.federation import Site, own_data
from fedgraft.report.text import show
from fedgraft.runs.reading import read_all
from trials.attack import BreachError, attack

TEXTS = ("[/bold]", "[red]x[/]", "[link=file:///etc/passwd]y[/link]", "[/]", "[[x]]", "\\[bold]", "{task.description}")


def _victim(folder: Path, random: Random, name: str) -> Path:
    """A comparison of two rounds on data that are called ``name``."""
    rng = np.random.default_rng(random.randrange(2**32))

    def draw(count: int) -> tuple[np.ndarray, np.ndarray]:
        labels = np.arange(count) % 2
        return (labels[:, None] + rng.standard_normal((count, 3))).astype(np.float32), labels

    fed = own_data([Site(*draw(12), *draw(6)) for _ in range(3)], name=name)
    place = folder / "all"
    quick = {"model": "mlp:3", "rounds": 2, "workers": 1, "batch_size": 6}
    fg.compare([], seeds=1, federation=lambda seed: fed, out=place, **quick)
    return place


@attack("names that look like markup", "every table and picture shows them as they are, and none ends in an error")
def names_as_markup(folder: Path, random: Random) -> str:
    text = random.choice(TEXTS)
    place = _victim(folder, random, f"data {text}")
    for run in place.glob("*/result.json"):
        result = json.loads(run.read_text())
        result["names"] = [f"{number} {text}" for number in range(3)]
        result["diverged"] = {"received": [0], "trained": [1, 2]}
        run.write_text(json.dumps(result))
    console = Console(file=io.StringIO(), width=80, force_terminal=True)
    reading = read_all([place])
    reading.notes.append(f"the run in {text} has not finished")
    show(reading, console)
    shown = console.file.getvalue()  # type: ignore[attr-defined]
    if f"data {text}" not in shown or f"1 {text}" not in shown or f"the run in {text}" not in shown:
        raise BreachError(f"{text!r} was taken for markup")
    if "\x1b]8;" in shown:
        raise BreachError("a link was made of a name")
    return "shown as it is"
