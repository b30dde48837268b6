"""Pictures for people on a server without a browser: Unicode, at most eighty columns wide."""

import textwrap
from collections.abc import Mapping

import numpy as np
from rich.console import Console

from fedgraft.core.evaluation import POINTS
from fedgraft.data.partition.picture import BARS, header, marks
from fedgraft.report.comparison import WIDTH, names_for, view
from fedgraft.report.matrices import Observation, observations
from fedgraft.report.reading import Array, Reading
from fedgraft.report.study import Gain, Study, Verdict, studies
from fedgraft.runs.config import AT, At
from fedgraft.runs.table import percent, points

SHADES = " ░▒▓█"
_HALF = 10
_WIDEST_NAME = 22
_WIDEST_CLIENT = 14
_MOST_CLIENTS = 60


def show(reading: Reading, console: Console, at: At = AT[0]) -> None:
    """Print everything that the page shows, in characters; clients are compared ``at`` that point."""
    for note in reading.notes:
        _say(console, f"left out: {note}")
    for study in studies(reading.runs):
        console.print(view(study, at), width=WIDTH)
        names, legend = names_for(map(study.starred, study.runs), _WIDEST_NAME)
        for picture in (*_benefit(study, names, at), *_convergence(study, names), *legend, *_labels(study)):
            _say(console, picture)
        for observation in observations(study):
            for picture in _matrix(study, observation):
                _say(console, picture)


def _say(console: Console, line: str) -> None:
    console.print(line, markup=False, highlight=False, width=WIDTH, soft_wrap=len(line) <= WIDTH)


def _benefit(study: Study, names: Mapping[str, str], at: At) -> list[str]:
    """Whom the methods help, and every client of the method that helps most."""
    verdicts = study.verdicts(at)
    if not verdicts:
        return ["There is no run of local with the same setting to compare the clients with.", *_alone(study, at)]
    lines = [f"Did federation help? {verdicts[0].answer}", "Clients against training alone, and points on average"]
    wide = max(map(len, names.values()))
    for verdict in verdicts:
        counts = f"{verdict.better:3} gain {verdict.same:3} same {verdict.worse:3} lose {points(verdict.mean):>6}"
        lines.append(f"  {names[study.starred(verdict.label)]:{wide}} {_share(verdict)} {counts}")
    best, seed = verdicts[0].label, study.seeds[0]
    gains = study.gains(best, seed, at) or []
    reach = max([abs(gain.value) for gain in gains if gain is not None] + [0.01])
    clients = _clients(study, seed)
    lines += ["", f"Every client with {best}, seed {seed}: points, 95 % interval, test samples"]
    for client, gain in enumerate(gains[:_MOST_CLIENTS]):
        if gain is None:
            lines.append(f"  {clients[client]} not tested")
            continue
        left, right = (_bar(max(0.0, sign * gain.value) / reach) for sign in (-1, 1))
        figures = f"{points(gain.value):>6}{_doubt(gain)}{_earlier(study, best, seed, at, client)}"
        lines.append(f"  {clients[client]} {left[::-1]:>{_HALF}}│{right:<{_HALF}} {figures}".rstrip())
    return [*lines, *_more(len(gains)), ""]


def _doubt(gain: Gain) -> str:
    """How sure a client's gain is: a client with few test samples moves by whole points."""
    if gain.interval is None or gain.net is None:
        return ""
    low, high = (f"{100 * bound:.0f}" for bound in gain.interval)
    return f" {low:>4} to {high:>3}, {abs(gain.net)} of {gain.samples}"


def _earlier(study: Study, label: str, seed: int, at: At, client: int) -> str:
    """Mark a figure that is older than the others."""
    rounds = [study.stale(each, seed, at).get(client) for each in (label, "local") if seed in study.runs.get(each, {})]
    known = [number for number in rounds if number is not None]
    return f" (round {min(known)})" if known else ""


def _alone(study: Study, at: At) -> list[str]:
    """Every client's own accuracy, where there is nothing to compare it with."""
    label, seed = next(iter(study.runs)), study.seeds[0]
    seed = seed if seed in study.runs[label] else min(study.runs[label])
    accuracies, intervals = study.accuracies(label, seed, at), study.intervals(label, seed, at)
    clients = _clients(study, seed)
    lines = ["", f"Every client with {label}, seed {seed}: accuracy in %, 95 % interval"]
    for client, (accuracy, sure) in enumerate(zip(accuracies[:_MOST_CLIENTS], intervals, strict=False)):
        if accuracy is None:
            lines.append(f"  {clients[client]} not tested")
            continue
        doubt = "" if sure is None else f" {percent(sure.low):>5} to {percent(sure.high):>5}"
        figures = f"{percent(accuracy):>5}{doubt}{_earlier(study, label, seed, at, client)}"
        lines.append(f"  {clients[client]} {_bar(accuracy):<{_HALF}} {figures}".rstrip())
    return [*lines, *_more(len(accuracies)), ""]


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


def _convergence(study: Study, names: Mapping[str, str]) -> list[str]:
    """Sparklines of the client mean, all on one scale."""
    curves = {
        (label, point): [100 * value.spread.mean for value in study.curve(label, point, "mean")]
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
    lines = [f"Convergence: mean accuracy of the clients by round, ▁ {low:.1f} % to █ {high:.1f} %"]
    for (label, point), curve in curves.items():
        picked = np.interp(np.linspace(0, len(curve) - 1, min(room, len(curve))), range(len(curve)), curve)
        line = "".join(BARS[int((value - low) / ((high - low) or 1) * (len(BARS) - 1))] for value in picked)
        name = names[study.starred(label)] if point == POINTS[0] else ""
        lines.append(f"  {name:{wide}} {point:8} {line}  {curve[0]:5.1f} → {curve[-1]:5.1f}")
    return [*lines, ""]


def _labels(study: Study) -> list[str]:
    """Who holds which classes."""
    seed = study.seeds[0]
    held = study.any_run(seed).result["label_counts"]
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
