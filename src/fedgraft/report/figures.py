"""Every figure as SVG and PNG, for a paper: its axis names, colours that colour-blind readers can tell apart."""

import re
from collections.abc import Iterator
from itertools import cycle
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from fedgraft.core.errors import UserError
from fedgraft.core.evaluation import POINTS, Point
from fedgraft.report.matrices import Observation, observations
from fedgraft.report.reading import Reading
from fedgraft.report.study import Study, studies

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.axis import Axis
    from matplotlib.figure import Figure

ROUND, ACCURACY, CLIENT = "Communication round", "Test accuracy (%)", "Client"
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#332288", "#999933")
MARKERS = "os^Dv*"
DASHES = ("-", "--", ":")
GAIN, LOSS = COLOURS[0], COLOURS[1]
_STYLE: dict[Any, Any] = {
    "svg.hashsalt": "fedgraft",
    "font.size": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
}
_MOST_PANELS = 20


def write(reading: Reading, folder: Path) -> list[Path]:
    """Draw everything into ``folder``; return the files. Several studies get a folder each."""
    try:
        import matplotlib as mpl
    except ImportError:
        raise UserError("figures need matplotlib: pip install '.[plots]' in a checkout of fedgraft") from None
    found = studies(reading.runs)
    written = []
    with mpl.rc_context(_STYLE):
        for number, study in enumerate(found):
            place = folder if len(found) == 1 else folder / f"{number + 1}-{_slug(study.title)}"
            _make(place)
            for name, figure in _figures(study):
                for suffix, metadata in (("svg", {"Date": None}), ("png", {})):
                    path = place / f"{_slug(name)}.{suffix}"
                    figure.savefig(path, metadata=metadata, dpi=200)
                    written.append(path)
    return written


def _make(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"the folder {folder} cannot be made: {error.strerror}") from None


def _slug(text: str) -> str:
    return re.sub(r"[^\w.+=-]+", "-", text)


def _figures(study: Study) -> Iterator[tuple[str, "Figure"]]:
    for point in POINTS:
        yield f"convergence-{point}", _convergence(study, point)
    yield "communication", _communication(study)
    for label, each in study.runs.items():
        for seed in sorted(each):
            gains = study.benefit(label, seed)
            if gains is not None:
                yield f"benefit-{label}-seed{seed}", _benefit(gains)
    for seed in study.seeds:
        if (held := study.any_run(seed).result["label_counts"]) is not None:
            yield f"labels-seed{seed}", _labels(np.array(held))
    for seen in observations(study):
        for seed in seen.values:
            name = f"{seen.label}-{seen.name}-seed{seed}"
            if seen.is_matrix:
                yield f"matrix-{name}", _matrix(study, seen, seed)
            yield f"trajectories-{name}", _trajectories(study, seen, seed)


def _axes(width: float = 4.6, height: float = 3.0) -> tuple["Figure", "Axes"]:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained")
    return figure, figure.add_subplot()


def _whole(*axes: "Axis") -> None:
    """Ticks at whole numbers, for clients, classes and rounds."""
    from matplotlib.ticker import MaxNLocator

    for axis in axes:
        axis.set_major_locator(MaxNLocator("auto", steps=[1, 2, 5, 10], integer=True))


def _looks(study: Study) -> dict[str, dict[str, Any]]:
    """Line style of every method: the references are grey."""
    looks: dict[str, dict[str, Any]] = {}
    others = [label for label in study.runs if label not in ("local", "fedavg")]
    for place, (label, colour, marker) in enumerate(zip(others, cycle(COLOURS), cycle(MARKERS), strict=False)):
        dash = DASHES[place // len(COLOURS) % len(DASHES)]
        looks[label] = {"color": colour, "marker": marker, "markersize": 4, "linestyle": dash}
    looks["local"] = {"color": "black", "linestyle": "--"}
    looks["fedavg"] = {"color": "dimgrey", "linestyle": ":"}
    return {label: {**looks[label], "label": study.starred(label)} for label in study.runs}


def _convergence(study: Study, point: Point) -> "Figure":
    figure, axes = _axes()
    for label, look in _looks(study).items():
        values = study.curve(label, point, "mean")
        rounds = [value.round for value in values]
        means = np.array([100 * value.spread.mean for value in values])
        deviations = np.array([100 * (value.spread.deviation or 0) for value in values])
        axes.plot(rounds, means, markevery=max(1, len(rounds) // 10), **look)
        if deviations.any():
            axes.fill_between(rounds, means - deviations, means + deviations, color=look["color"], alpha=0.15, lw=0)
    axes.set(xlabel=ROUND, ylabel=ACCURACY)
    _whole(axes.xaxis)
    figure.legend(loc="outside right upper", frameon=False, fontsize=7)
    return figure


def _communication(study: Study) -> "Figure":
    figure, axes = _axes()
    for label, look in _looks(study).items():
        headline = next(iter(study.runs[label].values())).result["headline"]
        values, traffic = study.curve(label, headline, "mean"), study.traffic(label)
        accuracy = [100 * value.spread.mean for value in values]
        if any(traffic.values()):
            axes.plot([traffic[value.round] for value in values], accuracy, markevery=max(1, len(values) // 10), **look)
        else:
            axes.axhline(accuracy[-1], **look)
    axes.set(xlabel="Sent and received per client (MiB)", ylabel=ACCURACY)
    figure.legend(loc="outside right upper", frameon=False, fontsize=7)
    return figure


def _benefit(gains: list[float]) -> "Figure":
    figure, axes = _axes(max(4.2, 0.22 * len(gains)))
    axes.bar(range(len(gains)), [100 * gain for gain in gains], color=[LOSS if gain < 0 else GAIN for gain in gains])
    axes.axhline(0, color="black", lw=0.8)
    axes.set(xlabel=CLIENT, ylabel="Gain over Local (percentage points)")
    _whole(axes.xaxis)
    return figure


def _labels(counts: "np.ndarray[Any, Any]") -> "Figure":
    clients, classes = counts.shape
    figure, axes = _axes(max(3.2, 0.26 * clients), max(2.4, 0.22 * classes))
    client, kind = np.nonzero(counts)
    axes.scatter(client, kind, s=200 * counts[client, kind] / counts.max(), color=GAIN, alpha=0.85, lw=0)
    axes.set(xlabel=CLIENT, ylabel="Class", xlim=(-0.7, clients - 0.3), ylim=(-0.7, classes - 0.3))
    _whole(axes.xaxis, axes.yaxis)
    axes.grid(alpha=0.25)
    axes.set_axisbelow(True)
    return figure


def _matrix(study: Study, seen: Observation, seed: int) -> "Figure":
    """The matrix after the first, the middle and the last round, on one scale; of several slices the first."""
    from matplotlib.figure import Figure

    array = seen.values[seed][:, :, 0, :]
    steps = sorted({0, len(array) // 2, len(array) - 1})
    mixing = seen.shape[0] == seen.shape[2] == study.clients
    low, high = float(np.nanmin(array)), float(np.nanmax(array))
    scale = {"cmap": "RdBu", "vmin": -max(-low, high), "vmax": max(-low, high)} if low < 0 else {
        "cmap": "Blues", "vmin": 0.0, "vmax": high,
    }  # fmt: skip
    figure = Figure(figsize=(2.6 * len(steps) + 0.6, 3.0), layout="constrained")
    panels = np.atleast_1d(figure.subplots(1, len(steps), sharey=True))
    for axes, step in zip(panels, steps, strict=True):
        image = axes.imshow(array[step], aspect="equal" if mixing else "auto", interpolation="nearest", **scale)
        axes.set(title=f"Round {step + 1}", xlabel="From client" if mixing else "Column")
        _whole(axes.xaxis, axes.yaxis)
    panels[0].set(ylabel=CLIENT)
    figure.colorbar(image, ax=panels.tolist(), shrink=0.8, label=seen.name)
    return figure


def _trajectories(study: Study, seen: Observation, seed: int) -> "Figure":
    """One panel for each client and its weights, or all clients' figures in one panel."""
    from matplotlib.figure import Figure

    array = seen.values[seed]
    rounds = range(1, len(array) + 1)
    if not seen.is_matrix:
        figure, axes = _axes()
        for row, look in zip(range(array.shape[1]), cycle(COLOURS), strict=False):
            axes.plot(rounds, array[:, row], color=look, lw=1, label=str(row))
        axes.set(xlabel=ROUND, ylabel=seen.name)
        _whole(axes.xaxis)
        axes.legend(title=CLIENT, frameon=False, fontsize=6, ncols=2)
        return figure
    panels = min(len(array[0]), _MOST_PANELS)
    columns = min(5, panels)
    figure = Figure(figsize=(1.9 * columns, 1.6 * -(-panels // columns)), layout="constrained")
    grid = np.atleast_1d(figure.subplots(-(-panels // columns), columns, sharex=True, sharey=True)).ravel()
    for row, axes in enumerate(grid):
        axes.set_visible(row < panels)
        if row < panels:
            axes.plot(rounds, array[:, row, 0, :], lw=0.8, color="grey", alpha=0.6)
            if seen.shape[0] == seen.shape[2] == study.clients:
                axes.plot(rounds, array[:, row, 0, row], lw=1.6, color=GAIN)
            axes.set_title(f"{CLIENT} {row}", fontsize=8)
            axes.tick_params(labelbottom=row + columns >= panels)  # the lowest of its column
            _whole(axes.xaxis)
    figure.supxlabel(ROUND, fontsize=9)
    figure.supylabel(seen.name, fontsize=9)
    return figure
