"""docs/benchmarks.md, made of the figures and of nothing else; the words are in page.md.jinja."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined

BARS = {
    "efficiency": 0.9, "client": 0.5, "step": 1.2, "server": 0.02, "agenda": 1.7, "crowd": 1.2, "memory": 4096,
}  # fmt: skip
"""What is wanted: at least so much, or at most where it is a cost."""
COSTS = ("client", "server", "crowd", "memory")
PEERS = {"silos": {"fluke": 3, "flower": 10}, "devices": {"fluke": 5, "flower": 10, "pfl": 3}}
"""How many times our round a peer's is wanted to take."""


def render(figures: Mapping[str, Any]) -> str:
    """The whole page, with a section for every part that was measured."""
    place = FileSystemLoader(Path(__file__).parent)
    words = Environment(loader=place, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    words.filters |= {"percent": percent, "comma": lambda number: f"{number:,}", "verdict": verdict}
    return words.get_template("page.md.jinja").render(parts=figures, bars=BARS, peers=PEERS).rstrip() + "\n"


def percent(share: float) -> str:
    return f"{100 * share:.1f} %"


def verdict(value: float, name: str) -> str:
    met = value <= BARS[name] if name in COSTS else value >= BARS[name]
    return "met" if met else "**missed**"
