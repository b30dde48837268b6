"""The board for people: a table in the terminal, and one HTML page that holds its data and asks nobody."""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from jinja2 import Environment, StrictUndefined
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from fedgraft.base.errors import UserError
from fedgraft.base.version import __version__
from fedgraft.board.record import STATES
from fedgraft.board.standing import AGAINST, Row, Standing, overall
from fedgraft.report.page import asset, chance, digest, figure, key, seconds, size
from fedgraft.runs.metric import MetricInfo
from fedgraft.runs.statistics import Difference

_SCRIPTS = ("theme.js", "tables.js", "board.js")
_CAPTION = (
    "worst: the mean over the worst tenth of the clients; unseen: clients that were held out and joined afterwards; "
    "the last two columns: paired differences (*: more than noise). Intervals and tests: --report, --json"
)
LEFT, RIGHT, STEP = 130, 680, 16
"""Where a chart of intervals begins and ends, and how far its lines are apart."""


# ---- in the terminal


def view(standing: Standing, mine: str = "") -> RenderableType:
    """A setting's table and what is said of it; ``mine`` is the method that somebody put on the board."""
    record, metric = standing.record, standing.metric
    parts: list[RenderableType] = [Text(f"{record.title}: {record.size}"), Text(told(standing))]
    if metric is not None and standing.rows:
        parts.append(_table(standing, metric, mine))
        parts += [Text(placed(standing, row, metric)) for row in standing.rows if row.method == mine]
    others = [each for each in standing.without if each.state != "waiting"]
    parts += [Text(f"{each.method}: {each.state}{': ' + each.reason if each.reason else ''}") for each in others]
    return Group(*parts, Text())


def _table(standing: Standing, metric: MetricInfo, mine: str) -> Table:
    found = Table("method", box=None, pad_edge=False, caption=_CAPTION, caption_justify="left")
    for heading in (f"mean {metric.title}", "pooled", "worst", "unseen", "harmed", "rank", *AGAINST):
        found.add_column(heading, justify="right")
    for row in standing.rows:
        found.add_row(
            row.label + ("" if row.draws == standing.record.terms["draws"] else f" ({row.draws} draws)"),
            metric.shown(*row.mean),
            *(metric.shown(spread.mean) for spread in (row.pooled, row.worst_tenth, row.unseen)),
            "" if row.harmed is None else f"{100 * row.harmed:.0f} %",
            "" if row.rank is None else f"{row.rank:.1f}",
            *(against(row.against.get(label), metric) for label in AGAINST),
            style="bold" if row.method == mine else "",
        )
    return found


def against(difference: Difference | None, metric: MetricInfo) -> str:
    """A difference; a star where it is more than noise."""
    return "" if difference is None else metric.difference(difference.mean) + "*" * difference.more_than_noise


# ---- in words


def told(standing: Standing) -> str:
    """What is done of a setting, and how far its ranks can tell."""
    counted, total = standing.counted, len(standing.record.entries)
    others = [f"{counted[state]} {state}" for state in STATES[1:] if state in counted]
    said = f"{counted.get('done', 0)} of {total} methods are done" + (f" ({', '.join(others)})." if others else ".")
    if standing.ranks is None:
        return said
    found = standing.ranks
    return (
        f"{said} Mean ranks over {found.blocks} draws that are less than {found.critical:.1f} apart do not differ "
        f"at 5 % (Nemenyi); that all are alike has p {chance(found.p)} (Friedman)."
    )


def placed(standing: Standing, row: Row, metric: MetricInfo) -> str:
    """Where a method stands, in a sentence."""
    place = 1 + standing.rows.index(row)
    found = [
        f"{metric.difference(each.mean)} against {label} ({' to '.join(map(metric.difference, each.interval))}; "
        f"{_verdict(each)})"
        for label, each in row.against.items()
    ]
    where = f"{row.label}: {metric.shown(row.mean.mean)}, place {place} of {len(standing.rows)} by client mean"
    tuned = f", tuned to {chosen(row.entry.chosen)}" if row.entry.chosen else ""
    return "; ".join([where + tuned, *found]) + "."


def _verdict(difference: Difference) -> str:
    if difference.too_few:
        return "too few clients to test"
    return f"{'' if difference.more_than_noise else 'not '}more than noise, p {chance(difference.corrected)}"


def summary(standings: Mapping[str, Standing]) -> str:
    """What is done over all settings, in a sentence."""
    runs = sum(len(row.entry.done) for each in standings.values() for row in each.rows)
    done = {name: each.counted.get("done", 0) for name, each in standings.items()}
    each = ", ".join(f"{count} of {len(standings[name].record.entries)} in {name}" for name, count in done.items())
    return f"Methods that are done: {each}; {runs} measured runs."


def chosen(values: Mapping[str, float]) -> str:
    """What tuning chose, as it is typed."""
    return ", ".join(f"{name}={value:.3g}" for name, value in values.items())


# ---- as a page


def write(standings: Mapping[str, Standing], path: Path) -> Path:
    """Write the page of these settings."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(render(standings), "utf-8")
    except OSError as error:
        raise UserError(f"the page {path} cannot be written: {error.strerror}") from None
    return path


def render(standings: Mapping[str, Standing], waiting: Sequence[str] = ()) -> str:
    """Return the page; ``waiting`` are titles of settings of which nothing is known. What users named is escaped."""
    scripts = [asset(name) for name in _SCRIPTS]
    words = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    words.filters.update(figure=figure, size=size, seconds=seconds, chance=chance, key=key, told=told, chosen=chosen)
    words.filters.update(forest=forest)
    text = words.from_string(asset("board.html")).render(
        version=__version__,
        policy=f"default-src 'none'; style-src 'unsafe-inline'; script-src {' '.join(map(digest, scripts))}",
        style=asset("page.css"),
        theme=scripts[0],
        scripts=scripts[1:],
        summary=summary(standings),
        states=STATES,
        waiting=waiting,
        terms=next(iter(standings.values())).record.terms,
        against=AGAINST,
        better=lambda metric: "high" if metric.higher else "low",
        overall=overall(standings),
        standings=list(standings.values()),
    )
    return text.rstrip() + "\n"


def forest(standing: Standing, label: str) -> dict[str, Any] | None:
    """A chart of differences with their intervals, as marks at places; none without differences."""
    metric = standing.metric
    found = [(row, row.against[label]) for row in standing.rows if label in row.against]
    if metric is None or not found:
        return None
    found.sort(key=lambda each: -each[1].mean)
    ends = [metric.scale * value for _, each in found for value in each.interval] + [0.0]
    low, high = min(ends), max(ends)
    step = _step(high - low)
    low, high = math.floor(low / step) * step, math.ceil(high / step) * step
    high = max(high, low + step)  # also where nobody differs

    def at(value: float) -> float:
        return round(LEFT + (value - low) / (high - low) * (RIGHT - LEFT), 1)

    marks = [
        {"method": row.method, "label": row.label, "y": STEP * (place + 1), "x": at(metric.scale * each.mean),
         "low": at(metric.scale * each.interval.low), "high": at(metric.scale * each.interval.high),
         "side": _side(each)}
        for place, (row, each) in enumerate(found)
    ]  # fmt: skip
    ticks = [{"x": at(low + step * number), "text": f"{low + step * number:g}"}
             for number in range(round((high - low) / step) + 1)]  # fmt: skip
    height = STEP * (len(found) + 1) + 24
    return {"width": RIGHT + 20, "height": height, "zero": at(0.0), "marks": marks, "ticks": ticks}


def _side(difference: Difference) -> str:
    return "same" if not difference.more_than_noise else "gain" if difference.mean > 0 else "loss"


def _step(span: float) -> float:
    """A round figure between two ticks, so that there are about six."""
    rough = (span or 1.0) / 6
    size_ = 10.0 ** math.floor(math.log10(rough))
    return next(times * size_ for times in (1, 2, 5, 10) if times * size_ >= rough)
