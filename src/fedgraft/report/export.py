"""The table of a comparison for a paper or a program: Markdown, LaTeX, CSV, JSON or text."""

import csv
import io
import json
import math
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

from fedgraft.base import characters
from fedgraft.report.comparison import MEANING, chance, privacy, unit, view
from fedgraft.runs.comparison import Comparison
from fedgraft.runs.config import AT, At
from fedgraft.runs.metric import MINUS, MetricInfo
from fedgraft.runs.table import Row, Spread

Format = Literal["md", "csv", "latex", "json", "text"]
FORMATS: tuple[Format, ...] = get_args(Format)

_ESCAPES = {
    "\\": r"\textbackslash{}", "&": r"\&", "%": r"\%", "$": r"\$", "#": r"\#", "_": r"\_", "{": r"\{", "}": r"\}",
    "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "±": r" $\pm$ ", MINUS: "$-$", "–": "--", "<": "$<$",
}  # fmt: skip


@dataclass(frozen=True)
class Column:
    """A column of figures, and what is best in it."""

    heading: str
    cells: tuple[str, ...]
    best: tuple[bool, ...]


def table(comparison: Comparison[Any], form: Format, at: At = AT[0], metric: str | None = None) -> str:
    """The comparison as ``form`` wants it, methods compared ``at`` a point by one metric."""
    made: dict[Format, Callable[[Comparison[Any], At, str | None], str]] = {
        "md": _markdown, "csv": _csv, "latex": _latex, "json": _json, "text": _text,
    }  # fmt: skip
    return made[form](comparison, at, metric)


def _json(comparison: Comparison[Any], at: At, metric: str | None) -> str:
    return json.dumps(comparison.to_json(at, metric), indent=2, allow_nan=False)


def _text(comparison: Comparison[Any], at: At, metric: str | None) -> str:
    return characters.as_text(view(comparison, at, metric))


def _csv(comparison: Comparison[Any], at: At, metric: str | None) -> str:
    """Every row of the table in full precision; empty where nothing is known."""
    written = io.StringIO()
    rows = [_facts(row, len(comparison.facts[row.method])) for row in comparison.rows(at, metric)]
    columns = max((list(row) for row in rows), key=len)  # a row may lack those of clients that joined
    writer = csv.DictWriter(written, columns, restval="", lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return written.getvalue().rstrip("\n")


def _facts(row: Row, seeds: int) -> dict[str, Any]:
    known: dict[str, Any] = {"method": row.method, "metric": row.metric.name, "point": row.point, "seeds": seeds}
    for name in ("mean", "pooled", "worst_tenth", "unevenness"):
        spread: Spread = getattr(row, name)[row.point]
        known |= {name: spread.mean, f"{name}_deviation": spread.deviation}
    for name in ("unseen", "unseen_pooled") if row.unseen else ():
        spread = getattr(row, name)[row.point]
        known |= {name: spread.mean, f"{name}_deviation": spread.deviation}
    found = row.difference
    known |= {
        "gain": found and found.mean,
        "gain_low": found and found.interval.low, "gain_high": found and found.interval.high,
        "p": found and found.corrected, "better": found and found.better, "worse": found and found.worse,
        "bytes_up": row.bytes_up, "bytes_down": row.bytes_down, "seconds": row.seconds,
    }  # fmt: skip
    for guarantee in row.privacy:
        known |= {f"epsilon_{guarantee.unit}": guarantee.epsilon, f"delta_{guarantee.unit}": guarantee.delta}
    return {name: "" if value is None or value != value else value for name, value in known.items()}


def _markdown(comparison: Comparison[Any], at: At, metric: str | None) -> str:
    rows = comparison.rows(at, metric)
    columns = _columns(rows)
    lines = [
        f"| method | {' | '.join(column.heading for column in columns)} |",
        "|---|" + "--:|" * len(columns),
    ]
    for place, row in enumerate(rows):
        cells = [f"**{c.cells[place]}**" if c.best[place] else c.cells[place] for c in columns]
        lines.append(f"| {_escaped_for_markdown(comparison.starred(row.method))} | {' | '.join(cells)} |")
    return "\n".join(
        [*lines, "", *(f"{_escaped_for_markdown(sentence)}  " for sentence in _about(comparison, rows, at))]
    )


def _escaped_for_markdown(text: str) -> str:
    return re.sub(r"([\\`*_{}\[\]<>|#])", r"\\\1", text)


def _latex(comparison: Comparison[Any], at: At, metric: str | None) -> str:
    """A tabular with the rules of the package booktabs."""
    rows = comparison.rows(at, metric)
    columns = _columns(rows)
    lines = [f"% {_one_line(sentence)}" for sentence in ("needs \\usepackage{booktabs}", *_about(comparison, rows, at))]
    lines += [rf"\begin{{tabular}}{{l{'r' * len(columns)}}}", r"\toprule"]
    lines += [" & ".join(["Method", *(_escaped_for_latex(column.heading) for column in columns)]) + r" \\", r"\midrule"]
    for place, row in enumerate(rows):
        cells = [_escaped_for_latex(column.cells[place]) for column in columns]
        bold = [rf"\textbf{{{cell}}}" if c.best[place] else cell for cell, c in zip(cells, columns, strict=True)]
        lines.append(" & ".join([_escaped_for_latex(comparison.starred(row.method)), *bold]) + r" \\")
    return "\n".join([*lines, r"\bottomrule", r"\end{tabular}"])


def _escaped_for_latex(text: str) -> str:
    return "".join(_ESCAPES.get(letter, letter) for letter in _one_line(text))


def _one_line(text: str) -> str:
    """A name with a line's end in it would leave its comment or its row."""
    return " ".join(text.split())


def _columns(rows: Sequence[Row]) -> list[Column]:
    """The figures at the point of comparison; and what is gained over Local, if that is known."""
    metric = rows[0].metric
    columns = [
        _figures(rows, "client mean", lambda row: row.mean, metric.higher),
        _figures(rows, "pooled", lambda row: row.pooled, metric.higher),
        _figures(rows, "worst tenth", lambda row: row.worst_tenth, metric.higher),
        _figures(rows, "spread of clients", lambda row: row.unevenness, False),
    ]
    if all(row.unseen for row in rows):
        columns.append(_figures(rows, "unseen", lambda row: row.unseen, metric.higher))
        columns.append(_figures(rows, "unseen, pooled", lambda row: row.unseen_pooled, metric.higher))
    if any(row.difference for row in rows):
        known = [row.difference for row in rows]
        most = max(found.mean for found in known if found is not None)
        gains = tuple("–" if found is None else metric.difference(found.mean) for found in known)
        best = tuple(found is not None and found.mean == most for found in known)
        columns.append(Column("gain over local", gains, best))
        columns.append(
            Column("p", tuple("–" if d is None else chance(d.corrected) for d in known), (False,) * len(rows))
        )  # fmt: skip
    return columns


def _figures(rows: Sequence[Row], heading: str, read: Callable[[Row], Any], higher: bool) -> Column:
    spreads: list[Spread] = [read(row)[row.point] for row in rows]
    known = [spread.mean for spread in spreads if not math.isnan(spread.mean)]
    best = (max if higher else min)(known, default=math.nan)
    several = len(set(known)) > 1
    metric: MetricInfo = rows[0].metric
    return Column(
        heading,
        tuple(metric.shown(*spread) for spread in spreads),
        tuple(several and spread.mean == best for spread in spreads),
    )


def _about(comparison: Comparison[Any], rows: Sequence[Row], at: At) -> Iterator[str]:
    """What has to be known of the figures."""
    metric, seeds = rows[0].metric, len(comparison.seeds)
    less = "" if metric.higher else " (less is better)"
    deviation = f", ± deviation over {seeds} seeds" if seeds > 1 else ""
    yield f"{comparison.title}: {unit(metric)}{less}, {MEANING[at].partition(':')[0]}{deviation}."
    if any(row.difference for row in rows):
        counted_in = "points" if metric.percent else metric.title
        yield f"Gain over local in {counted_in}, + is better; p: Wilcoxon's signed ranks, Holm's correction."
    if all(row.unseen for row in rows):
        yield "Unseen: clients that were held out of training and joined afterwards."
    yield from privacy(rows)
    if any(row.reconstruction for row in rows):
        yield "* a reconstruction: the paper leaves parts of the method open."
