"""What lies at sites, printed: everything of few, a summary of many with those named that stand out."""

import statistics
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from fedgraft.data.columns import listed
from fedgraft.data.inspection import Inspection

MANY = 15
"""Sites, or columns, of which all are shown without being asked for."""
_FIGURES = ("rows", "train", "validation", "test", "mean", "deviation")
_HEADS = ("column", "use", "kind", "values", "missing", "range")
Rows = Sequence[Mapping[str, Any]]


def show(found: Inspection, console: Console, *, everything: bool = False) -> None:
    """Print what was found, and what somebody should look at."""
    what = ", ".join(filter(None, (found.source, found.task, _shape(found.sample or ""))))
    console.print(f"{len(found.sites)} sites: {what}", highlight=False, markup=False)
    whole = everything or len(found.sites) <= MANY
    console.print(_listing(found.sites) if whole else _summary(found.sites))
    for sentence in () if whole else _about(found.sites):
        console.print(sentence, highlight=False, markup=False)
    columns = found.columns if everything or len(found.columns) <= MANY else _standing_out(found.columns)
    if columns:
        console.print(_table(columns, _HEADS))
    if left := [each["column"] for each in found.columns if each not in columns]:
        named = f"{len(left)} more columns are inputs of numbers without a missing cell: {listed(left)}"
        console.print(named, highlight=False, markup=False)
    if left or not whole:
        console.print("--all shows every site and column.", highlight=False, markup=False)
    for warning in found.warnings:
        console.print(Text.assemble(("look:", "yellow"), " ", warning))
    if not found.warnings and not found.problem:
        console.print("Nothing looks suspicious.")


def _shape(sample: str) -> str:
    """What one sample is made of, from its type and its shape."""
    kind, _, shape = sample.partition(" ")
    return shape and f"samples of shape {shape} ({kind})"


def _table(rows: Rows, heads: Sequence[str]) -> Table:
    table = Table(box=box.SIMPLE, pad_edge=False)
    for number, head in enumerate(heads):
        table.add_column(head, no_wrap=number == 0, overflow="fold")
    for row in rows:
        table.add_row(*(Text(_short(row.get(head, ""))) for head in heads))
    return table


def _listing(sites: Rows) -> Table:
    heads = [head for head in (*_FIGURES, "classes") if any(site.get(head) is not None for site in sites)]
    rows = [site | {"classes": _spelled(site.get("classes", {}))} for site in map(dict, sites)]
    return _table(rows, ["site", *heads])


def _summary(sites: Rows) -> Table:
    """The least, the median and the most of every figure, with the site that has it."""
    rows = []
    for head in (*_FIGURES, "classes"):
        values = [(_figure(site[head]), site["site"]) for site in sites if head in site]
        if values:
            (least, low), (most, high) = min(values), max(values)
            middle = float(statistics.median(value for value, _ in values))
            rows.append(
                {"of a site": head, "least": f"{_short(least)} ({low})", "median": _short(middle),
                 "most": f"{_short(most)} ({high})"}
            )  # fmt: skip
    return _table(rows, ["of a site", "least", "median", "most"])


def _about(sites: Rows) -> Iterator[str]:
    """Name the classes, and the sites that lack some of them."""
    classes = list(dict.fromkeys(name for site in sites for name in site.get("classes", {})))
    if not classes:
        return
    yield f"{len(classes)} classes: {listed(classes, 20)}"
    if lacking := [f"{site['site']} ({len(site['classes'])})" for site in sites if len(site["classes"]) < len(classes)]:
        yield f"fewer classes at {listed(lacking)}"


def _standing_out(columns: Rows) -> Rows:
    """The columns that are no plain input: targets, words, those with missing cells or a problem."""
    return [
        each
        for each in columns
        if each["use"] != "input" or each["kind"] != "number" or each["missing"] or "problem" in each
    ]


def _spelled(classes: Mapping[str, int]) -> str:
    return listed([f"{name} {count}" for name, count in classes.items()], 12)


def _figure(value: Any) -> float:
    return len(value) if isinstance(value, Mapping) else value


def _short(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)
