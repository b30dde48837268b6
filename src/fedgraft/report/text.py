"""Pictures for people on a server without a browser: Unicode, at most eighty columns wide."""

import textwrap
from collections.abc import Mapping
from typing import Any

import numpy as np
from rich.console import Console

from fedgraft.core.evaluation import POINTS
from fedgraft.data.partition.picture import BARS, header, marks
from fedgraft.report.comparison import WIDTH, names_for, unit, view
from fedgraft.report.matrices import Array, Observation, observations
from fedgraft.runs.comparison import Comparison, Reading
from fedgraft.runs.config import AT, At
from fedgraft.runs.metric import MetricInfo
from fedgraft.runs.table import Gain, Verdict

Study = Comparison[Any]
SHADES = " ░▒▓█"
_HALF = 10
_WIDEST_NAME = 22
_WIDEST_CLIENT = 14
_MOST_CLIENTS = 60


def show(reading: Reading, console: Console, at: At = AT[0], metric: str | None = None) -> None:
    """Print everything that the page shows, in characters; clients are compared ``at`` that point by that metric."""
    for note in reading.notes:
        _say(console, f"left out: {note}")
    for study in reading.comparisons:
        judged = study.metric(metric)
        console.print(view(study, at, metric), width=WIDTH)
        names, legend = names_for(map(study.starred, study.runs), _WIDEST_NAME)
        pictures = (*_benefit(study, names, at, judged), *_convergence(study, names, judged), *legend, *_labels(study))
        for picture in pictures:
            _say(console, picture)
        for observation in observations(study):
            for picture in _matrix(study, observation):
                _say(console, picture)


def _say(console: Console, line: str) -> None:
    console.print(line, markup=False, highlight=False, width=WIDTH, soft_wrap=len(line) <= WIDTH)


def _benefit(study: Study, names: Mapping[str, str], at: At, metric: MetricInfo) -> list[str]:
    """Whom the methods help, and every client of the method that helps most."""
    verdicts = study.verdicts(at, metric.name)
    if not verdicts:
        missing = "There is no run of local with the same setting to compare the clients with."
        return [missing, *_alone(study, at, metric)]
    lines = [
        f"Did federation help? {verdicts[0].answer}",
        f"Clients against training alone, and {metric.step} on average",
    ]
    wide = max(map(len, names.values()))
    for verdict in verdicts:
        mean = metric.difference(verdict.mean)
        counts = f"{verdict.better:3} gain {verdict.same:3} same {verdict.worse:3} lose {mean:>6}"
        lines.append(f"  {names[study.starred(verdict.label)]:{wide}} {_share(verdict)} {counts}")
    best, seed = verdicts[0].label, study.seeds[0]
    gains = study.gains(best, seed, at, metric.name) or []
    reach = max([abs(gain.value) for gain in gains if gain is not None] + [0.01 if metric.percent else 1e-9])
    clients = _clients(study, seed)
    sure = "points, 95 % interval, test samples" if metric.counted else metric.step
    lines += ["", f"Every client with {best}, seed {seed}: {sure}"]
    for client, gain in enumerate(gains[:_MOST_CLIENTS]):
        if gain is None:
            lines.append(f"  {clients[client]} not tested")
            continue
        left, right = (_bar(max(0.0, sign * gain.value) / reach) for sign in (-1, 1))
        figures = f"{metric.difference(gain.value):>6}{_doubt(gain)}{_earlier(study, best, seed, at, metric, client)}"
        lines.append(f"  {clients[client]} {left[::-1]:>{_HALF}}│{right:<{_HALF}} {figures}".rstrip())
    return [*lines, *_more(len(gains)), ""]


def _doubt(gain: Gain) -> str:
    """How sure a client's gain is: a client with few test samples moves by whole points."""
    if gain.interval is None or gain.net is None:
        return ""
    low, high = (f"{100 * bound:.0f}" for bound in gain.interval)
    return f" {low:>4} to {high:>3}, {abs(gain.net)} of {gain.samples}"


def _earlier(study: Study, label: str, seed: int, at: At, metric: MetricInfo, client: int) -> str:
    """Mark a figure that is older than the others."""
    both = [each for each in (label, "local") if seed in study.facts.get(each, {})]
    rounds = [study.stale(each, seed, at, metric.name).get(client) for each in both]
    known = [number for number in rounds if number is not None]
    return f" (round {min(known)})" if known else ""


def _alone(study: Study, at: At, metric: MetricInfo) -> list[str]:
    """Every client's own figure, where there is nothing to compare it with."""
    label, seed = next(iter(study.runs)), study.seeds[0]
    seed = seed if seed in study.facts[label] else min(study.facts[label])
    values, intervals = study.values(label, seed, at, metric.name), study.intervals(label, seed, at, metric.name)
    reach = metric.high or max([abs(value) for value in values if value is not None] + [1e-9])
    clients = _clients(study, seed)
    interval = ", 95 % interval" if metric.counted else ""
    lines = ["", f"Every client with {label}, seed {seed}: {unit(metric)}{interval}"]
    for client, (value, sure) in enumerate(zip(values[:_MOST_CLIENTS], intervals, strict=False)):
        if value is None:
            lines.append(f"  {clients[client]} not tested")
            continue
        doubt = "" if sure is None else f" {metric.shown(sure.low):>5} to {metric.shown(sure.high):>5}"
        figures = f"{metric.shown(value):>5}{doubt}{_earlier(study, label, seed, at, metric, client)}"
        lines.append(f"  {clients[client]} {_bar(value / reach):<{_HALF}} {figures}".rstrip())
    return [*lines, *_more(len(values)), ""]


def _clients(study: Study, seed: int) -> list[str]:
    """The clients' names, all of one width; long ones are cut, with their number to tell them apart."""
    full = study.names(seed)
    wide = min(_WIDEST_CLIENT, max(map(len, full)))
    numbered = (f"{name[: wide - len(f'~{client}')]}~{client}" for client, name in enumerate(full))
    return [f"{name if len(name) <= wide else short:{wide}}" for name, short in zip(full, numbered, strict=True)]


def _share(verdict: Verdict) -> str:
    """Gain, same and lose as a bar of twenty characters."""
    better, worse = (round(20 * count / len(verdict.gains)) for count in (verdict.better, verdict.worse))
    return "█" * better + "░" * (20 - better - worse) + "▒" * worse


def _bar(share: float) -> str:
    """A bar of whole blocks; the smallest difference still has one."""
    return "█" * (max(1, round(share * _HALF)) if share > 0 else 0)


def _more(clients: int) -> list[str]:
    return [f"  … and {clients - _MOST_CLIENTS} more"] if clients > _MOST_CLIENTS else []


def _convergence(study: Study, names: Mapping[str, str], metric: MetricInfo) -> list[str]:
    """Sparklines of the client mean, all on one scale."""
    curves = {
        (label, point): [value.spread.mean for value in study.curve(label, point, "mean", metric.name)]
        for label in study.runs
        for point in POINTS
    }
    curves = {key: curve for key, curve in curves.items() if curve}
    everything = [value for curve in curves.values() for value in curve]
    if not everything:
        return []
    low, high = min(everything), max(everything)
    wide = max(map(len, names.values()))
    room = WIDTH - wide - 31
    scale = " to ".join(f"{mark} {metric.shown(end)}{metric.unit}" for mark, end in (("▁", low), ("█", high)))
    lines = [f"Convergence: mean {metric.title} of the clients by round, {scale}"]
    for (label, point), curve in curves.items():
        picked = np.interp(np.linspace(0, len(curve) - 1, min(room, len(curve))), range(len(curve)), curve)
        line = "".join(BARS[int((value - low) / ((high - low) or 1) * (len(BARS) - 1))] for value in picked)
        name = names[study.starred(label)] if point == POINTS[0] else ""
        lines.append(
            f"  {name:{wide}} {point:8} {line}  {metric.shown(curve[0]):>5} → {metric.shown(curve[-1]):>5}"
        )  # fmt: skip
    return [*lines, ""]


def _labels(study: Study) -> list[str]:
    """Who holds which classes."""
    seed = study.seeds[0]
    held = study.any_result(seed).label_counts
    if held is None:  # the data lie at their sites, and so does who holds what
        return []
    counts = np.array(held)
    clients = _clients(study, seed)
    room = WIDTH - 12 - len(clients[0])
    share = -(-counts.shape[1] // room)
    bars = np.add.reduceat(counts, np.arange(0, counts.shape[1], share), axis=1)
    cell = min(3, room // bars.shape[1])
    shared = f"; {share} classes share a bar" if share > 1 else ""
    lines = [f"Who holds what: training samples by class, seed {seed}{shared}"]
    lines.append(f"  {'':{len(clients[0])}} {header(counts.shape[1], cell)}")
    for client, row in enumerate(bars[:_MOST_CLIENTS]):
        lines.append(f"  {clients[client]} {marks(row, int(bars.max()), cell)} {counts[client].sum():7}")
    return [*lines, *_more(len(counts)), ""]


def _matrix(study: Study, seen: Observation) -> list[str]:
    """The last round: a shaded matrix, or a bar for each figure."""
    seed = min(seen.values)
    last = seen.values[seed][-1]
    title = f"{study.starred(seen.label)}: {seen.name} after the last round, seed {seed}"
    meaning = textwrap.wrap(f"{seen.name}: {seen.meaning}", WIDTH - 2) if seen.meaning else []
    explained = [f"  {line}" for line in meaning]
    if not seen.is_matrix:
        known = last[np.isfinite(last)]
        if not known.size:
            return [title, *explained, "  nothing was measured", ""]
        low, high = float(known.min()), float(known.max())
        heights = np.nan_to_num((last - low) / ((high - low) or 1) * (len(BARS) - 1), nan=-1).astype(int)
        bars = "  " + "".join(BARS[h] if h >= 0 else " " for h in heights[: WIDTH - 2])
        return [title, *explained, bars, f"  ▁ {low:.3g} to █ {high:.3g}", ""]
    if last.shape[1] > 1:
        title += f", slice 0 of {last.shape[1]}"
    return [title, *explained, *_shaded(last[:, 0, :], square=seen.shape[0] == seen.shape[2] == study.clients), ""]


def _shaded(matrix: Array, *, square: bool) -> list[str]:
    """Two characters for a value where they fit; a weight on itself would outshine the rest."""
    if matrix.shape[1] > WIDTH - 6 or len(matrix) > _MOST_CLIENTS:
        return [f"  {matrix.shape[0]} x {matrix.shape[1]} values, too many for a terminal"]
    cell = 2 if 2 * matrix.shape[1] <= WIDTH - 6 else 1
    sizes = np.nan_to_num(np.abs(matrix.astype(np.float64)))
    others = sizes[~np.eye(len(sizes), dtype=bool)] if square and len(sizes) > 1 else sizes
    low, high = float(others.min()), float(others.max())
    levels = ((sizes.clip(low, high) - low) / ((high - low) or 1) * (len(SHADES) - 1)).round().astype(int)
    lines = []
    for row, each in enumerate(levels):
        shades = [SHADES[level] for level in each]
        if square:
            shades[row] = "·"
        lines.append(f"  {row:3} " + "".join(shade * cell for shade in shades))
    return [*lines, f"      {'rows take from columns; ' if square else ''}blank is {low:.3g}, █ is {high:.3g}"]
