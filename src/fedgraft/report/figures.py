"""Every figure as SVG and PNG, for a paper: its axis names, colours that colour-blind readers can tell apart."""

import re
from collections.abc import Iterable, Iterator, Sequence
from itertools import cycle
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from fedgraft.base.errors import UserError
from fedgraft.core.evaluation import POINTS, Point
from fedgraft.report.charts import Measure, Study, measures, path, rounds_tested
from fedgraft.report.matrices import Array, Observation, observations
from fedgraft.runs.comparison import Reading
from fedgraft.runs.config import AT, At
from fedgraft.runs.metric import MetricInfo
from fedgraft.runs.resultfile import Result
from fedgraft.runs.statistics import Interval
from fedgraft.runs.table import Gain, last_figures, measured

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.axis import Axis
    from matplotlib.figure import Figure

ROUND, CLIENT = "Communication round", "Client"
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#332288", "#999933")
MARKERS = "os^Dv*"
DASHES = ("-", "--", ":")
GAIN, LOSS = COLOURS[0], COLOURS[1]
STYLE: dict[Any, Any] = {
    "svg.hashsalt": "fedgraft",
    "font.size": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
}
_MOST_PANELS = 20


def write(
    reading: Reading, folder: Path, at: At = AT[0], metric: str | None = None, rounds: Sequence[int] = ()
) -> list[Path]:
    """Draw everything into ``folder``; return the files. Several studies get a folder each.

    Clients are compared ``at`` a point by one metric; convergence is drawn of all. Matrices are shown after these
    ``rounds``, or after the first, the middle and the last one.
    """
    found = reading.comparisons
    shortest = min(study.config.rounds for study in found)
    if rounds and max(rounds) > shortest:
        raise UserError(f"there are runs of {shortest} rounds here: they have no round {max(rounds)}")
    written = []
    for number, study in enumerate(found):
        place = folder if len(found) == 1 else folder / f"{number + 1}-{_slug(study.title)}"
        written += save(place, _figures(study, at, study.metric(metric), rounds))
    return written


def save(folder: Path, drawn: Iterable[tuple[str, "Figure"]]) -> list[Path]:
    """Write figures by name into a folder, as SVG and PNG; they are drawn one after another, in one style."""
    try:
        import matplotlib as mpl
    except ImportError:
        raise UserError("figures need matplotlib: pip install 'fedgraft[plots]'") from None
    written = []
    with mpl.rc_context(STYLE):
        for name, figure in drawn:
            _make(folder)
            for suffix, metadata in (("svg", {"Date": None}), ("png", {})):
                path = folder / f"{_slug(name)}.{suffix}"
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


def _figures(study: Study, at: At, metric: MetricInfo, rounds: Sequence[int] = ()) -> Iterator[tuple[str, "Figure"]]:
    yield from _curves(study)
    yield "communication", _communication(study, at, metric)
    for label, each in study.facts.items():
        for seed, result in each.items():
            gains = study.gains(label, seed, at, metric.name)
            if gains is not None:
                yield f"benefit-{label}-seed{seed}", _benefit(study, seed, gains, metric)
            yield f"{metric.name}-{label}-seed{seed}", _of_clients(study, label, seed, at, metric)
            yield f"clients-{label}-seed{seed}", _paths(result, measured(result, at), metric)
    for seed in study.seeds:
        if (held := study.any_result(seed).label_counts) is not None:
            yield f"labels-seed{seed}", _labels(np.array(held), study.names(seed))
    for seen in observations(study):
        for seed in seen.values:
            name = f"{seen.label}-{seen.name}-seed{seed}"
            if seen.is_matrix:
                yield f"matrix-{name}", _matrix(study, seen, seed, rounds)
            yield f"trajectories-{name}", _trajectories(study, seen, seed)


def _curves(study: Study) -> Iterator[tuple[str, "Figure"]]:
    """Convergence by every metric; the leading one is not named."""
    for metric in study.metrics:
        leading = metric == study.metrics[0]
        for measure in measures(study, metric):
            if not measure.points and leading:
                yield f"{measure.key}-loss", _convergence(study, measure, POINTS[0], metric)
            for point in POINTS if measure.points else ():
                parts = ("convergence", *(() if leading else (metric.name,)))
                parts += (point,) if measure.key == "mean" else (measure.key, point)
                yield "-".join(parts), _convergence(study, measure, point, metric)


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


def _convergence(study: Study, measure: Measure, point: Point, metric: MetricInfo) -> "Figure":
    figure, axes = _axes()
    scale = measure.scale(metric)
    for label, look in _looks(study).items():
        values = measure.curve(study, label, point, metric)
        rounds = [value.round for value in values]
        means = np.array([scale * value.spread.mean for value in values])
        deviations = np.array([scale * (value.spread.deviation or 0) for value in values])
        axes.plot(rounds, means, markevery=max(1, len(rounds) // 10), **look)
        if deviations.any():
            axes.fill_between(rounds, means - deviations, means + deviations, color=look["color"], alpha=0.15, lw=0)
    axes.set(xlabel=ROUND, ylabel=measure.heading(metric))
    _whole(axes.xaxis)
    figure.legend(loc="outside right upper", frameon=False, fontsize=7)
    return figure


def _communication(study: Study, at: At, metric: MetricInfo) -> "Figure":
    figure, axes = _axes()
    for label, look in _looks(study).items():
        point = measured(next(iter(study.facts[label].values())), at)
        values, traffic = study.curve(label, point, "mean", metric.name), study.traffic(label)
        means = [metric.scale * value.spread.mean for value in values]
        if any(traffic.values()):
            axes.plot([traffic[value.round] for value in values], means, markevery=max(1, len(values) // 10), **look)
        elif means:
            axes.axhline(means[-1], **look)
    axes.set(xlabel="Sent and received per client (MiB)", ylabel=f"Test {metric.heading}")
    figure.legend(loc="outside right upper", frameon=False, fontsize=7)
    return figure


def _benefit(study: Study, seed: int, gains: Sequence[Gain | None], metric: MetricInfo) -> "Figure":
    """A bar for each client with its interval; none for one that was not tested."""
    heights = [None if gain is None else gain.value for gain in gains]
    intervals = [None if gain is None else gain.interval for gain in gains]
    colours = [LOSS if height is not None and height < 0 else GAIN for height in heights]
    figure, axes = _bars(heights, intervals, colours, study.names(seed), metric.scale)
    axes.axhline(0, color="black", lw=0.8)
    axes.set(ylabel=f"Gain over Local ({'percentage points' if metric.percent else metric.title})")
    return figure


def _of_clients(study: Study, label: str, seed: int, at: At, metric: MetricInfo) -> "Figure":
    """Every client's own figure."""
    heights = study.values(label, seed, at, metric.name)
    intervals = study.intervals(label, seed, at, metric.name)
    figure, axes = _bars(heights, intervals, [GAIN] * len(heights), study.names(seed), metric.scale)
    axes.set(ylabel=f"Test {metric.heading}")
    if metric.low is not None and metric.high is not None:
        axes.set(ylim=(metric.scale * metric.low, metric.scale * metric.high))
    return figure


def _bars(
    heights: Sequence[float | None],
    intervals: Sequence[Interval | None],
    colours: Sequence[str],
    names: Sequence[str],
    scale: float,
) -> tuple["Figure", "Axes"]:
    figure, axes = _axes(max(4.2, 0.22 * len(heights)))
    for client, (height, interval) in enumerate(zip(heights, intervals, strict=True)):
        if height is None:
            axes.text(client, 0, "not tested", rotation=90, ha="center", va="bottom", fontsize=6, color="dimgrey")
            continue
        axes.bar(client, scale * height, color=colours[client])
        if interval is not None:
            reach = [[scale * max(0.0, height - interval.low)], [scale * max(0.0, interval.high - height)]]
            axes.errorbar(client, scale * height, yerr=reach, color="black", lw=0.8, capsize=2)
    _name_clients(axes, names)
    return figure, axes


def _name_clients(axes: "Axes", names: Sequence[str]) -> None:
    """Clients along the axis below: numbers, or their sites' names."""
    axes.set(xlabel=CLIENT, xlim=(-0.7, len(names) - 0.3))
    if list(names) == [f"client {number}" for number in range(len(names))]:
        _whole(axes.xaxis)
    else:
        axes.set_xticks(range(len(names)), names, rotation=40, ha="right", fontsize=7)


def _paths(result: Result, point: Point, metric: MetricInfo) -> "Figure":
    """Every client's figure by round; the best and the worst in the end stand out."""
    figure, axes = _axes()
    values, rounds = path(result, point, metric), rounds_tested(result, point)
    last = {client: value for client, value in enumerate(last_figures(result, metric, point)) if value is not None}
    ranked = sorted(last, key=lambda client: metric.worth(last[client]))
    looks = {ranked[0]: LOSS, ranked[-1]: GAIN} if ranked else {}
    for client in ranked:
        look: dict[str, Any] = {"color": "grey", "lw": 0.7, "alpha": 0.6}
        if client in looks:
            look = {"color": looks[client], "lw": 1.8, "label": result.called[client], "zorder": 3}
        axes.plot(rounds, values[:, client], **look)
    axes.set(xlabel=ROUND, ylabel=f"Test {metric.heading}")
    _whole(axes.xaxis)
    if looks:
        axes.legend(frameon=False, fontsize=7)
    return figure


def _labels(counts: "np.ndarray[Any, Any]", names: Sequence[str]) -> "Figure":
    clients, classes = counts.shape
    figure, axes = _axes(max(3.2, 0.26 * clients), max(2.4, 0.22 * classes))
    client, kind = np.nonzero(counts)
    axes.scatter(client, kind, s=200 * counts[client, kind] / counts.max(), color=GAIN, alpha=0.85, lw=0)
    axes.set(ylabel="Class", ylim=(-0.7, classes - 0.3))
    _name_clients(axes, names)
    _whole(axes.yaxis)
    axes.grid(alpha=0.25)
    axes.set_axisbelow(True)
    return figure


def _matrix(study: Study, seen: Observation, seed: int, rounds: Sequence[int]) -> "Figure":
    """The matrix after these rounds, or the first, middle and last, on one scale; of several slices the first."""
    from matplotlib.figure import Figure

    array = seen.values[seed][:, :, 0, :]
    steps = sorted({number - 1 for number in rounds} or {0, len(array) // 2, len(array) - 1})
    mixing = seen.shape[0] == seen.shape[2] == study.clients
    scale, extend = _scale(array, mixing=mixing)
    figure = Figure(figsize=(2.6 * len(steps) + 0.6, 3.0), layout="constrained")
    panels = np.atleast_1d(figure.subplots(1, len(steps), sharey=True))
    for axes, step in zip(panels, steps, strict=True):
        image = axes.imshow(array[step], aspect="equal" if mixing else "auto", interpolation="nearest", **scale)
        axes.set(title=f"Round {step + 1}", xlabel="From client" if mixing else "Column")
        _whole(axes.xaxis, axes.yaxis)
    panels[0].set(ylabel=CLIENT)
    figure.colorbar(image, ax=panels.tolist(), shrink=0.8, label=seen.name, extend=extend)
    return figure


def _scale(array: Array, *, mixing: bool) -> tuple[dict[str, Any], str]:
    """Colours from the smallest to the largest value; what clients give themselves is left out where it outshines."""
    others = array[:, ~np.eye(array.shape[1], dtype=bool)] if mixing and array.shape[1] > 1 else array
    outshone = np.nanmax(others) < 0.5 * np.nanmax(array)
    low, high = (float(bound(others if outshone else array)) for bound in (np.nanmin, np.nanmax))
    if low < 0 < high:  # none is no colour
        return {"cmap": "RdBu", "vmin": -max(-low, high), "vmax": max(-low, high)}, "neither"
    return {"cmap": "Blues", "vmin": low, "vmax": high}, "max" if outshone else "neither"


def _trajectories(study: Study, seen: Observation, seed: int) -> "Figure":
    """One panel for each client and its weights, or all clients' figures in one panel."""
    from matplotlib.figure import Figure

    array = seen.values[seed]
    rounds = range(1, len(array) + 1)
    if not seen.is_matrix:
        figure, axes = _axes()
        for row, look in zip(range(array.shape[1]), cycle(COLOURS), strict=False):
            axes.plot(rounds, array[:, row], color=look, lw=1, label=_short(study, seed, row))
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
            axes.set_title(study.names(seed)[row] if seen.shape[0] == study.clients else f"row {row}", fontsize=8)
            axes.tick_params(labelbottom=row + columns >= panels)  # the lowest of its column
            _whole(axes.xaxis)
    figure.supxlabel(ROUND, fontsize=9)
    figure.supylabel(seen.name, fontsize=9)
    return figure


def _short(study: Study, seed: int, client: int) -> str:
    """A client in a legend that says "Client" already."""
    name = study.names(seed)[client] if client < study.clients else str(client)
    return str(client) if name == f"client {client}" else name
