"""Pictures for people on a server without a browser: Unicode, at most eighty columns wide."""

import numpy as np
from rich.console import Console
from rich.markup import escape

from fedgraft.core.evaluation import POINTS
from fedgraft.data.partition.picture import BARS, header, marks
from fedgraft.report.matrices import Observation, observations
from fedgraft.report.page import points
from fedgraft.report.reading import Array, Reading
from fedgraft.report.study import Study, Verdict, studies
from fedgraft.terminal import comparison_table

WIDTH = 80
SHADES = " ░▒▓█"
_HALF = 14
_MOST_CLIENTS = 60


def show(reading: Reading, console: Console) -> None:
    """Print everything that the page shows, in characters."""
    for note in reading.notes:
        _say(console, f"left out: {note}")
    for study in studies(reading.runs):
        console.print(comparison_table(study), width=WIDTH)
        for picture in (*_benefit(study), *_convergence(study), *_labels(study)):
            _say(console, picture)
        for observation in observations(study):
            for picture in _matrix(study, observation):
                _say(console, picture)


def _say(console: Console, line: str) -> None:
    console.print(escape(line), highlight=False, width=WIDTH, soft_wrap=len(line) <= WIDTH)


def _benefit(study: Study) -> list[str]:
    """Whom the methods help, and every client of the method that helps most."""
    verdicts = study.verdicts()
    if not verdicts:
        return ["There is no run of local with the same setting to compare the clients with.", ""]
    lines = ["Did federation help? Clients against training alone, and points on average"]
    wide = _name_width(study)
    for verdict in verdicts:
        counts = f"{verdict.better:3} gain {verdict.same:3} same {verdict.worse:3} lose {points(verdict.mean):>6}"
        lines.append(f"  {study.starred(verdict.label):{wide}.{wide}} {_share(verdict)} {counts}")
    best, seed = verdicts[0].label, study.seeds[0]
    gains = study.benefit(best, seed) or []
    reach = max([abs(gain) for gain in gains] + [0.01])
    lines += ["", f"Every client with {best}, seed {seed}"]
    for client, gain in enumerate(gains[:_MOST_CLIENTS]):
        left, right = (_bar(max(0.0, sign * gain) / reach) for sign in (-1, 1))
        lines.append(f"  client {client:3} {left[::-1]:>{_HALF}}│{right:<{_HALF}} {points(gain):>6}")
    return [*lines, *_more(len(gains)), ""]


def _name_width(study: Study) -> int:
    return min(22, max(len(study.starred(label)) for label in study.runs))


def _share(verdict: Verdict) -> str:
    """Gain, same and lose as a bar of twenty characters."""
    better, worse = (round(20 * count / len(verdict.gains)) for count in (verdict.better, verdict.worse))
    return "█" * better + "░" * (20 - better - worse) + "▒" * worse


def _bar(share: float) -> str:
    """A bar of whole blocks; the smallest difference still has one."""
    return "█" * (max(1, round(share * _HALF)) if share > 0 else 0)


def _more(clients: int) -> list[str]:
    return [f"  … and {clients - _MOST_CLIENTS} more"] if clients > _MOST_CLIENTS else []


def _convergence(study: Study) -> list[str]:
    """Sparklines of the client mean, all on one scale."""
    curves = {
        (label, point): [100 * value.spread.mean for value in study.curve(label, point, "mean")]
        for label in study.runs
        for point in POINTS
    }
    everything = [value for curve in curves.values() for value in curve]
    low, high = min(everything), max(everything)
    wide = _name_width(study)
    room = WIDTH - wide - 31
    lines = [f"Convergence: mean accuracy of the clients by round, ▁ {low:.1f} % to █ {high:.1f} %"]
    for (label, point), curve in curves.items():
        picked = np.interp(np.linspace(0, len(curve) - 1, min(room, len(curve))), range(len(curve)), curve)
        line = "".join(BARS[int((value - low) / ((high - low) or 1) * (len(BARS) - 1))] for value in picked)
        name = study.starred(label) if point == POINTS[0] else ""
        lines.append(f"  {name:{wide}.{wide}} {point:8} {line}  {curve[0]:5.1f} → {curve[-1]:5.1f}")
    return [*lines, ""]


def _labels(study: Study) -> list[str]:
    """Who holds which classes."""
    seed = study.seeds[0]
    held = study.any_run(seed).result["label_counts"]
    if held is None:  # the data lie at their sites, and so does who holds what
        return []
    counts = np.array(held)
    room = WIDTH - 22
    share = -(-counts.shape[1] // room)
    bars = np.add.reduceat(counts, np.arange(0, counts.shape[1], share), axis=1)
    cell = min(3, room // bars.shape[1])
    shared = f"; {share} classes share a bar" if share > 1 else ""
    lines = [f"Who holds what: training samples by class, seed {seed}{shared}"]
    lines.append(f"  {'':10} {header(counts.shape[1], cell)}")
    for client, row in enumerate(bars[:_MOST_CLIENTS]):
        lines.append(f"  client {client:3} {marks(row, int(bars.max()), cell)} {counts[client].sum():7}")
    return [*lines, *_more(len(counts)), ""]


def _matrix(study: Study, seen: Observation) -> list[str]:
    """The last round: a shaded matrix, or a bar for each figure."""
    seed = min(seen.values)
    last = seen.values[seed][-1]
    title = f"{study.starred(seen.label)}: {seen.name} after the last round, seed {seed}"
    if not seen.is_matrix:
        low, high = float(last.min()), float(last.max())
        heights = ((last - low) / ((high - low) or 1) * (len(BARS) - 1)).astype(int)
        return [title, "  " + "".join(BARS[h] for h in heights[: WIDTH - 2]), f"  ▁ {low:.3g} to █ {high:.3g}", ""]
    if last.shape[1] > 1:
        title += f", slice 0 of {last.shape[1]}"
    return [title, *_shaded(last[:, 0, :], square=seen.shape[0] == seen.shape[2] == study.clients), ""]


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
