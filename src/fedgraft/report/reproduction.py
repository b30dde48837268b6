"""Ours beside the published figures, for a terminal and for programs."""

from collections.abc import Iterable, Sequence
from typing import Any

from rich.table import Table
from rich.text import Text

from fedgraft.papers.tables import ACCURACY, Cell, Item, Paper
from fedgraft.runs.reproduce import ALONE, Draw, Outcome, absent
from fedgraft.runs.statistics import Interval, line

FEWEST = 3
"""Draws of which a line can be told."""


def contents(papers: Iterable[Paper]) -> Table:
    """Every table and figure: what it is, how many cells it has, and what is missing."""
    table = Table(box=None, pad_edge=False)
    for name in ("paper", "item", "cells", "what"):
        table.add_column(name, justify="right" if name == "cells" else "left", no_wrap=name != "what")
    for paper in papers:
        for item in paper.items.values():
            cells = str(len(item.cells)) if item.cells else ""
            table.add_row(paper.name, item.name, cells, Text(" ".join((item.title + ".", remark(paper, item))).strip()))
    return table


def remark(paper: Paper, item: Item) -> str:
    """What keeps an item from being run, or has to be fetched for it."""
    if item.not_run:
        return f"Not run: {item.not_run}."
    gone = absent(paper, item.columns)
    return f"Not on this machine yet, and fetched for a run: {', '.join(gone)}." if gone else ""


def view(outcomes: Sequence[Outcome]) -> Table:
    """A line for each cell: ours over the draws, with the interval of the mean, and the published figure."""
    table = Table(box=None, pad_edge=False, collapse_padding=True)
    for name in ("row", "column"):
        table.add_column(name, overflow="fold")
    for name, width in (("draws", 5), ("ours", 7), ("95 % interval", 14), ("published", 9), ("apart", 6)):
        table.add_column(name, justify="right", no_wrap=True, min_width=width)
    table.add_column("scale", overflow="fold")
    for each in outcomes:
        table.add_row(each.cell.row, _column(each.cell), *figures(each))
    return table


def figures(each: Outcome) -> tuple[str, ...]:
    """A cell's draws, figure, interval, published figure, difference and scale, as people read them."""
    digits = 2 if each.cell.quantity in (ACCURACY, "global") else 1
    shown = f"{each.mean:.{digits}f}" if each.mean is not None else "not run"
    apart = f"{each.apart:+.{digits}f}" if each.apart is not None else ""
    published = f"{each.cell.published:g}" if each.cell.published is not None else ""
    return str(len(each.values)), shown, told(each.interval, each.values, digits), published, apart, each.scale


def told(interval: Interval | None, values: Sequence[float], digits: int = 2) -> str:
    """An interval in words; one draw is one draw."""
    if interval is None:
        return "one draw" if values else ""
    return f"{interval.low:.{digits}f} to {interval.high:.{digits}f}"


def _column(cell: Cell) -> str:
    return cell.column + ("" if cell.quantity == ACCURACY else f", {cell.quantity}")


def difficulty(draws: Sequence[Draw]) -> Table:
    """How hard each draw is: what its labels say, its sizes, and what clients reach alone."""
    table = Table(box=None, pad_edge=False)
    for name in ("column", "draw", "most frequent class", "samples of a client", "Local"):
        table.add_column(name, justify="left" if name == "column" else "right", no_wrap=True)
    for draw in draws:
        share = "" if draw.top_share is None else f"{100 * draw.top_share:.1f} %"
        sizes = f"{min(draw.samples)} to {max(draw.samples)}" if draw.samples else ""
        alone = "not run" if draw.alone is None else f"{draw.alone:.2f}"
        table.add_row(draw.column, str(draw.seed), share, sizes, alone)
    return table


EASE = (("alone", "Local"), ("top_share", "most frequent class"))
"""What tells how easy a draw is, and what it is called."""


def predictions(outcomes: Sequence[Outcome], draws: Sequence[Draw]) -> Table | None:
    """What a draw's difficulty says of a method's figure on it, where there are draws enough to say anything."""
    table = Table(box=None, pad_edge=False, collapse_padding=True)
    table.add_column("cell", overflow="fold")
    for name in ("a point of", "adds", "95 % interval", "explains", "draws"):
        table.add_column(name, justify="left" if name == "a point of" else "right", no_wrap=True)
    for each in outcomes:
        for read, name in EASE:
            ease = {draw.seed: getattr(draw, read) for draw in draws if draw.column == each.cell.column}
            known = [(ease[seed], value) for seed, value in zip(each.seeds, each.values, strict=True)]
            there = [(100 * x if read == "top_share" else x, value) for x, value in known if x is not None]
            fit = line(*zip(*there, strict=True)) if len(there) >= FEWEST else None
            if fit is not None and (each.cell.method, read) != (ALONE, "alone"):
                interval = f"{fit.interval.low:+.2f} to {fit.interval.high:+.2f}"
                explained = f"{100 * fit.explained:.0f} %"
                table.add_row(each.cell.name, name, f"{fit.slope:+.2f}", interval, explained, str(len(there)))
    return table if table.row_count else None


def as_json(paper: Paper, outcomes: Sequence[Outcome], draws: Sequence[Draw]) -> dict[str, Any]:
    """The same for programs."""
    cells = [
        {
            "item": each.item.name, "cell": each.cell.name, "method": each.cell.method,
            "published": each.cell.published,
            "ours": each.mean, "interval": each.interval, "values": each.values, "draws": each.seeds,
            "scale": each.scale, "commands": [run.command for run in each.runs],
        }
        for each in outcomes
    ]  # fmt: skip
    return {"paper": paper.name, "cells": cells, "draws": [vars(draw) for draw in draws]}
