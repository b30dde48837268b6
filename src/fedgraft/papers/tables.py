"""The papers' tables and figures as data: each cell with its settings and the published figure.

One TOML file for each paper. A table is a row for each method and a column for each setting, and so are the runs behind
a figure; what nobody can run (a drawing, a list of symbols) is named too, with the reason.
"""

import tomllib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from functools import cached_property
from importlib.resources import files
from typing import Any, Literal

from fedgraft.base.errors import UserError, unknown
from fedgraft.papers import recipes

Scale = Literal["quick", "half", "full"]
SCALES: tuple[Scale, ...] = ("quick", "half", "full")
ACCURACY = "accuracy"
QUANTITIES = (ACCURACY, "minutes", "seconds", "kilobytes", "global", "global-round")
"""What a column shows: accuracy; the whole run's minutes; a round's seconds; KB of a client in a round, up and down
together; accuracy on the test samples of all clients in the best round, and that round."""


@dataclass(frozen=True)
class Score:
    """Which figure of a run a paper prints: over clients, of which round, at which point of training."""

    figure: Literal["mean", "pooled"]
    round: Literal["best", "last"]
    point: Literal["trained", "received", "own"]
    points: Mapping[str, Literal["trained", "received"]] = field(default_factory=dict)
    """Methods that are measured elsewhere."""

    def at(self, method: str) -> Literal["trained", "received", "own"]:
        return self.points.get(method.partition(":")[0], self.point)


@dataclass(frozen=True)
class Cell:
    """One figure of a table: a method in a setting, and what the paper prints."""

    row: str
    column: str
    quantity: str
    method: str
    settings: Mapping[str, Any]
    published: float | None = None

    @property
    def name(self) -> str:
        told = "" if self.quantity == ACCURACY else f"@{self.quantity}"
        return f"{self.row}/{self.column}{told}"


@dataclass(frozen=True)
class Item:
    """A table or a figure of a paper."""

    name: str
    title: str
    cells: tuple[Cell, ...] = ()
    columns: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """The settings of each column, also of those without a run: who holds which classes."""
    about: str = ""
    not_run: str = ""
    """Why there is nothing to run."""
    plots: tuple[str, ...] = ()
    drawing: Mapping[str, Any] = field(default_factory=dict)
    """What a plot has to know: rounds, the name of a matrix, the values along an axis."""

    @property
    def rows(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(cell.row for cell in self.cells))

    def chosen(self, patterns: Iterable[str]) -> tuple[Cell, ...]:
        """The cells whose names (ROW/COLUMN) fit one of the patterns; all without any."""
        wanted = list(patterns)
        for pattern in wanted:
            if not any(fnmatchcase(cell.name, pattern) for cell in self.cells):
                raise unknown("cell", pattern, [cell.name for cell in self.cells])
        return tuple(cell for cell in self.cells if not wanted or any(fnmatchcase(cell.name, each) for each in wanted))


@dataclass(frozen=True)
class TestedIn:
    """Where a model is tested that another method's run makes on its way."""

    method: str
    point: Literal["trained", "received"]


@dataclass(frozen=True)
class Paper:
    """A paper: its settings, its tables and its figures."""

    name: str
    title: str
    about: str
    draws: int
    score: Score
    scales: Mapping[Scale, Mapping[str, Any]]
    """What a shorter run changes; the full one nothing."""
    columns: Mapping[str, Mapping[str, Any]]
    items: Mapping[str, Item]
    tested_in: Mapping[str, TestedIn] = field(default_factory=dict)
    """Methods whose models are tested in another method's run too, which then is a run of both."""

    def item(self, name: str) -> Item:
        """One of its tables or figures."""
        if name not in self.items:
            raise unknown("table or figure", name, self.items)
        return self.items[name]

    @cached_property
    def cells(self) -> tuple[tuple[Item, Cell], ...]:
        """All cells, table by table."""
        return tuple((item, cell) for item in self.items.values() for cell in item.cells)


def papers() -> dict[str, Paper]:
    """Every paper with its tables, in the order of the recipes."""
    return {name: paper(name) for name in recipes()}


def paper(name: str) -> Paper:
    """One paper, by the name of its method."""
    if name not in recipes():
        raise unknown("paper", name, recipes())
    told = tomllib.loads((files(__package__) / f"{name}.toml").read_text("utf-8"))
    return Paper(
        name=name, title=told["title"], about=told["about"], draws=told["draws"], score=Score(**told["score"]),
        scales={"full": {}, **told["scales"]}, columns=told["columns"],
        items={item: _item(item, facts, told) for item, facts in told["items"].items()},
        tested_in={method: TestedIn(**facts) for method, facts in told.get("tested_in", {}).items()},
    )  # fmt: skip


def _item(name: str, facts: Mapping[str, Any], told: Mapping[str, Any]) -> Item:
    methods = {**told.get("methods", {}), **facts.get("methods", {})}
    cells = tuple(
        Cell(row, column, quantity, _method(row, column, methods), told["columns"][column], published)
        for row, column, quantity, published in _figures(name, facts)
    )
    used = dict.fromkeys([*(cell.column for cell in cells), *facts.get("columns", ())])
    known = {"title", "about", "not_run", "plots", "published", "methods", "also", "rows", "columns"}
    return Item(
        name, facts["title"], cells, {column: told["columns"][column] for column in used}, facts.get("about", ""),
        facts.get("not_run", ""), tuple(facts.get("plots", ())),
        {key: value for key, value in facts.items() if key not in known},
    )  # fmt: skip


def _method(row: str, column: str, methods: Mapping[str, str]) -> str:
    """The method that a row stands for: by itself, or as the paper's file says for the row or for this cell."""
    return methods.get(f"{row}/{column}", methods.get(row, row))


def _figures(item: str, facts: Mapping[str, Any]) -> Iterator[tuple[str, str, str, float | None]]:
    """Every cell's row, column, quantity and published figure."""
    for block in facts.get("published", "").strip("\n").split("\n\n"):
        head, *lines = [line.split() for line in block.splitlines()] or [[]]
        columns = [tuple(word.partition("@")[::2]) for word in head]
        for row in facts.get("also", ()) if head else ():
            yield from ((row, column, quantity or ACCURACY, None) for column, quantity in columns)
        for row, *values in lines:
            if len(values) != len(columns):
                raise UserError(f"{item} has {len(values)} figures for {row} and {len(columns)} columns")
            for (column, quantity), value in zip(columns, values, strict=True):
                yield row, column, quantity or ACCURACY, None if value == "-" else float(value)
    yield from ((row, column, ACCURACY, None) for column in facts.get("columns", ()) for row in facts.get("rows", ()))
