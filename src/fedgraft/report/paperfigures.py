"""The papers' figures in their own form, from what was measured here: a panel for each column of the item."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import cycle
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from fedgraft.base.errors import UserError
from fedgraft.papers.tables import ACCURACY, Cell, Item
from fedgraft.report.figures import CLIENT, COLOURS, DASHES, GAIN, ROUND, save
from fedgraft.runs.reading import Finished
from fedgraft.runs.reproduce import Evidence, label_counts, lacking, setting

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Drawing:
    """What a figure is drawn from: measurements, and the run directories of those that are here."""

    evidence: Evidence
    item: Item
    finished: Mapping[tuple[str, str], Finished]
    """A finished run by method and column, for what only its directory has."""
    scale: str | None = None
    rounds: Sequence[int] = ()
    """After which rounds weights are shown; without, after those that the paper shows."""

    @property
    def columns(self) -> list[str]:
        """The columns whose data are here."""
        return [name for name in self.item.columns if not lacking(setting(self.evidence.paper, name).dataset)]

    @property
    def measured(self) -> list[str]:
        """The columns of which anything was measured, wherever their data are."""
        return [name for name in self.item.columns
                if any(self.evidence.of(cell, self.scale) for cell in self.cells(name))]  # fmt: skip

    def cells(self, column: str) -> list[Cell]:
        return [cell for cell in self.item.cells if cell.column == column]

    def seeds(self, column: str) -> list[int] | None:
        """The draws that all rows of a column have; if there are none, each row has its own.

        A draw moves a figure more than a method does (docs/results/draws.md).
        """
        return self.evidence.shared(self.cells(column), self.scale) or None

    def counts(self, column: str) -> Array:
        """Clients x classes of the first draw."""
        return label_counts(setting(self.evidence.paper, column))


def draw(drawing: Drawing, folder: Path) -> list[Path]:
    """Draw an item into a folder, as SVG and PNG; return the files."""
    item = drawing.item
    if not item.plots:
        raise UserError(
            f"{item.name} is not a figure that can be drawn" + (f": {item.not_run}" if item.not_run else "")
        )
    return save(folder, ((f"{item.name}-{kind}", PLOTS[kind](drawing)) for kind in item.plots))


def _panels(names: Sequence[str], height: float = 2.6, rows: int = 1) -> tuple["Figure", list["Axes"]]:
    """A row of panels with titles."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(3.0 * max(1, len(names)) + 1.2, height * rows), layout="constrained")
    axes = list(np.atleast_1d(figure.subplots(rows, max(1, len(names)))).ravel())
    for axis, name in zip(axes, names, strict=False):
        axis.set_title(name, fontsize=9)
    return figure, axes


def _looks() -> Any:
    return cycle([(colour, dash) for dash in DASHES for colour in COLOURS])


def _legend(figure: "Figure", axes: Sequence["Axes"]) -> "Figure":
    lines = {label: handle for axis in axes for handle, label in zip(*axis.get_legend_handles_labels(), strict=True)}
    if not lines:
        raise UserError("nothing was measured yet of what this figure shows: run it without --plot first")
    figure.legend(lines.values(), lines.keys(), loc="outside right upper", frameon=False, fontsize=7)
    return figure


def _lines(drawing: Drawing, read: Callable[[Cell], tuple[Sequence[float], Sequence[float]]], heading: str) -> "Figure":
    """A line for each method, in every column."""
    figure, axes = _panels(drawing.measured)
    for axis, column in zip(axes, drawing.measured, strict=False):
        for cell, (colour, dash) in zip(drawing.cells(column), _looks(), strict=False):
            x, y = read(cell)
            if len(x):
                axis.plot(x, y, color=colour, linestyle=dash, lw=1.2, label=cell.row)
        axis.set(xlabel=ROUND, ylabel=heading)
    return _legend(figure, axes)


def _curves(drawing: Drawing) -> "Figure":
    """Test accuracy in every round, as the paper averages it: the mean over the draws that all rows have."""

    def read(cell: Cell) -> tuple[Sequence[float], Sequence[float]]:
        course = drawing.evidence.course(cell, drawing.scale, drawing.seeds(cell.column))
        return [*course], [*course.values()]

    return _lines(drawing, read, _accuracy(drawing))


def _accuracy(drawing: Drawing) -> str:
    return f"Test accuracy ({drawing.evidence.paper.score.figure}, %)"


def _traffic(drawing: Drawing) -> "Figure":
    """What a client has sent and received when a method first is as good: means over the draws that all rows have."""
    from matplotlib.ticker import LogLocator, NullLocator, StrMethodFormatter

    figure, axes = _panels(drawing.measured)
    for axis, column in zip(axes, drawing.measured, strict=False):
        cells = [cell for cell in drawing.cells(column) if cell.quantity == ACCURACY]
        for cell, (colour, dash) in zip(cells, _looks(), strict=False):
            costs = drawing.evidence.traffic(cell, drawing.scale, drawing.seeds(column))
            look: dict[str, Any] = {"color": colour, "linestyle": dash, "lw": 1.2, "label": cell.row}
            if any(costs.values()):
                axis.step([*costs], [cost / 2**20 for cost in costs.values()], marker=".", markersize=3, **look)
            elif costs:
                axis.axvline(max(costs), **look)
        axis.set(xlabel=_accuracy(drawing), ylabel="Sent and received by a client (MiB)", yscale="log")
        axis.yaxis.set(major_locator=LogLocator(subs=(1, 2, 5)), major_formatter=StrMethodFormatter("{x:g}"))
        axis.yaxis.set(minor_locator=NullLocator())
    return _legend(figure, axes)


def _loss(drawing: Drawing) -> "Figure":
    def read(cell: Cell) -> tuple[Sequence[float], Sequence[float]]:
        run = drawing.finished.get((cell.method, cell.column))
        told = [] if run is None else [(r.round, r.loss) for r in run.facts.rounds if r.loss is not None]
        return [number for number, _ in told], [loss for _, loss in told]

    return _lines(drawing, read, "Training loss")


def _clients(drawing: Drawing) -> "Figure":
    """The last accuracy of every client, a mark for each method."""
    figure, axes = _panels(drawing.measured)
    for axis, column in zip(axes, drawing.measured, strict=False):
        for cell, (colour, _) in zip(drawing.cells(column), _looks(), strict=False):
            for run in drawing.evidence.of(cell, drawing.scale)[:1]:
                each = run.per_client.get(run.headline, [])
                values = [np.nan if value is None else 100 * value for value in each]
                axis.plot(range(1, len(values) + 1), values, "o", color=colour, markersize=3, label=cell.row)
        axis.set(xlabel=CLIENT, ylabel="Test accuracy (%)")
    return _legend(figure, axes)


def _sweep(drawing: Drawing) -> "Figure":
    """Accuracy along what is varied: rows of one column, or columns of one row."""
    (name, values), item = next(iter(drawing.item.drawing["along"].items())), drawing.item
    over_rows = len(values) == len(item.rows) != len(item.columns)
    figure, axes = _panels([""])
    lines = item.columns if over_rows else item.rows
    for line, (colour, dash) in zip(lines, _looks(), strict=False):
        cells = [cell for cell in item.cells if (cell.column if over_rows else cell.row) == line]
        seeds = drawing.evidence.shared(cells, drawing.scale) or None
        means = [drawing.evidence.outcome(item, cell, drawing.scale, seeds).mean for cell in cells]
        there = [(x, mean) for x, mean in zip(values, means, strict=True) if mean is not None]
        if there:
            axes[0].plot(*zip(*there, strict=True), "o", color=colour, linestyle=dash, markersize=3, label=line)
    axes[0].set(xlabel=name, ylabel="Test accuracy (%)")
    return _legend(figure, axes)


def _weights(drawing: Drawing) -> "Figure":
    """What clients give each other, matrix by matrix, after the rounds that were chosen or that the paper shows."""
    runs = [(column, cell, run) for column in drawing.measured for cell in drawing.cells(column)
            if (run := drawing.finished.get((cell.method, column)))]  # fmt: skip
    pictures = []
    for column, _, run in runs:
        for name, array in run.observed.items():
            if array.ndim == 3 and array.shape[1] == array.shape[2]:
                for number in drawing.rounds or drawing.item.drawing["rounds"]:
                    at = _within(number, len(array), chosen=bool(drawing.rounds))
                    pictures.append((f"{column}: {name}, round {at}", array[at - 1]))
    if not pictures:
        raise UserError("no directory of a finished run is here that has these weights: run the figure without --plot")
    wide = -(-len(pictures) // max(1, len(runs)))
    figure, axes = _panels([name for name, _ in pictures[:wide]], rows=-(-len(pictures) // wide))
    for axis, (name, matrix) in zip(axes, pictures, strict=False):
        image = axis.imshow(matrix, cmap="Blues", interpolation="nearest")
        axis.set_title(name, fontsize=8)
        axis.set(xlabel="From client", ylabel=CLIENT)
        figure.colorbar(image, ax=axis, shrink=0.8)
    return figure


def _within(number: int, rounds: int, *, chosen: bool) -> int:
    """A round that a run has: the last one in place of the paper's, where the run is shorter."""
    if chosen and number > rounds:
        raise UserError(f"the runs that are here have {rounds} rounds: there is no round {number}")
    return min(number, rounds)


def _relations(drawing: Drawing) -> "Figure":
    """The first client's row of a matrix in every round, and below it everybody's own entry."""
    columns, name = drawing.measured, drawing.item.drawing["matrix"]
    figure, axes = _panels(columns, rows=2)
    found = False
    for place, column in enumerate(columns):
        run = drawing.finished.get((drawing.cells(column)[0].method, column))
        if run is None:
            continue
        array, found = np.asarray(run.observed[name]), True
        rounds = range(1, len(array) + 1)
        for client, (colour, dash) in zip(range(array.shape[1]), _looks(), strict=False):
            look = {"color": colour, "linestyle": dash, "lw": 1}
            axes[place].plot(rounds, array[:, 0, client], label=f"{client + 1}", **look)
            axes[len(columns) + place].plot(rounds, array[:, client, client], **look)
        axes[place].set(ylabel=f"{name} of client 1")
        axes[len(columns) + place].set(xlabel=ROUND, ylabel=f"{name}_ii")
    if not found:
        raise UserError("no directory of a finished run is here that has this matrix: run the figure without --plot")
    return _legend(figure, axes)


def _shares(drawing: Drawing) -> "Figure":
    """Stacked bars: of each class who holds it, and below of each client what it holds."""
    columns = drawing.columns
    figure, axes = _panels(columns, rows=2)
    for place, column in enumerate(columns):
        counts = drawing.counts(column)
        _stack(axes[place], counts, "Class")
        _stack(axes[len(columns) + place], counts.T, CLIENT)
    return figure


def _stack(axis: "Axes", parts: Array, name: str) -> None:
    below = np.zeros(parts.shape[1])
    for part, (colour, dash) in zip(parts, _looks(), strict=False):
        hatch = {"-": None, "--": "//", ":": ".."}[dash]
        axis.bar(range(parts.shape[1]), part, bottom=below, color=colour, hatch=hatch, edgecolor="white", lw=0.3)
        below += part
    axis.set(xlabel=name, ylabel="Training samples")


def _held(drawing: Drawing) -> "Figure":
    """A field for each client and class: how many samples."""
    figure, axes = _panels(drawing.columns)
    for axis, column in zip(axes, drawing.columns, strict=False):
        image = axis.imshow(drawing.counts(column).T, cmap="Blues", aspect="auto", interpolation="nearest")
        axis.set(xlabel=CLIENT, ylabel="Class")
        figure.colorbar(image, ax=axis, shrink=0.8)
    return figure


def _entropy(drawing: Drawing) -> "Figure":
    """The entropy of every client's labels as its share of all, a group of bars for each column."""
    figure, axes = _panels([""])
    columns = drawing.columns
    for place, (column, colour) in enumerate(zip(columns, cycle(COLOURS), strict=False)):
        counts = drawing.counts(column)
        shares = counts / counts.sum(axis=1, keepdims=True)
        entropy = -(shares * np.log(np.where(shares > 0, shares, 1))).sum(axis=1)
        at = np.arange(len(entropy)) + (place - (len(columns) - 1) / 2) * 0.8 / len(columns)
        axes[0].bar(at, entropy / entropy.sum(), 0.8 / len(columns), color=colour, label=column)
    axes[0].set(xlabel=CLIENT, ylabel="Weight by entropy")
    return _legend(figure, axes)


def _schedule(drawing: Drawing) -> "Figure":
    """What is left of the proximal term in every round, with the usual share of rounds after which it is gone."""
    from fedgraft.methods.apple import APPLE

    figure, axes = _panels([""])
    rounds = setting(drawing.evidence.paper, "cifar10").rounds
    for kind, colour in (("cosine", GAIN), ("exponential", COLOURS[1])):
        method = APPLE(schedule=kind)  # type: ignore[arg-type]
        left = [method.fading(number, rounds) for number in range(rounds)]
        axes[0].plot(range(1, rounds + 1), left, color=colour, label=kind)
    axes[0].set(xlabel=ROUND, ylabel="lambda(r)")
    return _legend(figure, axes)


PLOTS: dict[str, Callable[[Drawing], "Figure"]] = {
    "curves": _curves,
    "traffic": _traffic,
    "loss": _loss,
    "clients": _clients,
    "sweep": _sweep,
    "weights": _weights,
    "relations": _relations,
    "shares": _shares,
    "held": _held,
    "entropy": _entropy,
    "schedule": _schedule,
}
