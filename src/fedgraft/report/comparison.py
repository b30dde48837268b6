"""A comparison as tables for a terminal: figures, differences and what has to be known of them, in eighty columns."""

import textwrap
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from rich import box
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from fedgraft.core.evaluation import POINTS
from fedgraft.runs import learning
from fedgraft.runs.comparison import Comparison
from fedgraft.runs.config import AT, At
from fedgraft.runs.metric import MetricInfo
from fedgraft.runs.table import Pair, Row, Spread, orders

WIDTH = 80
MEANING: dict[At, str] = {
    "trained": "as trained: what a client has in hand when the run is over",
    "received": "as received: the newest model from the server, without further training",
    "own": "at each method's own point: where its paper measures",
}
_MANY_PAIRS = 10
_MOST_NAMED = 6
_LEAST_NAME = 9


def view(comparison: Comparison[Any], at: At = AT[0], metric: str | None = None) -> Group:
    """Everything: the figures, the differences, figures that not every comparison has, and remarks."""
    rows = comparison.rows(at, metric)
    parts: list[RenderableType] = [figures(comparison, rows, at)]
    if comparison.tuned:
        parts.append(tuned(comparison))
    others = sum(row.method != "local" for row in rows)
    many = others * (others - 1) // 2 > _MANY_PAIRS
    if shown := comparison.pairs(at, metric, with_best=many):
        parts.append(differences(shown, at, rows[0].metric))
    if any(row.best or row.everyone for row in rows):
        parts.append(further(rows))
    if any(row.unseen for row in rows):
        parts.append(unseen(comparison, rows))
    said = (*remarks(rows, at), *learning.doubts(comparison.results))
    parts += [Text(textwrap.fill(remark, WIDTH, break_on_hyphens=False)) for remark in said]
    return Group(*parts)


def figures(comparison: Comparison[Any], rows: Sequence[Row], at: At) -> Group:
    """The methods at both points."""
    config, several, metric = comparison.config, len(comparison.seeds) > 1, rows[0].metric
    title = f"{config.dataset}, {comparison.clients} clients, {config.partition}, {config.rounds} rounds, "
    caption = f"{unit(metric)} after the last round: mean over clients, pooled over samples"
    caption += "" if metric.higher else "\nless is better"
    caption += "\n± deviation over seeds" if several else ""
    caption += f"\ncompared {MEANING[at]} (bold)"
    caption += "\ngain: clients better (+) and worse (-) off than alone" if any(row.difference for row in rows) else ""
    caption += (
        "\n* a reconstruction: the paper leaves parts of the method open"
        if any(row.reconstruction for row in rows)
        else ""
    )
    headings = ("received\nmean", "\npooled", "trained\nmean", "\npooled", "\ngain", "bytes\nup/down", "\nsec")
    cells = {
        row.method + "*" * row.reconstruction: [
            *(
                _spread(metric, f[p], bold=p == row.point)
                for p in ("received", "trained") for f in (row.mean, row.pooled)
            ),
            Text("" if row.difference is None else f"+{row.difference.better} -{row.difference.worse}"),
            Text(f"{_size(row.bytes_up)}/{_size(row.bytes_down)}"),
            Text(f"{row.seconds:.0f}" if row.seconds >= 10 else f"{row.seconds:.1f}"),
        ]
        for row in rows
    }  # fmt: skip
    return _table(title + _counted(len(comparison.seeds), "seed"), caption, ("\nmethod", *headings), cells)


def tuned(comparison: Comparison[Any]) -> Group:
    """What tuning chose for each method."""
    caption = f"{comparison.config.tuned} trials for each, on validation data of a draw of their own"
    cells = {
        comparison.starred(label): [Text(", ".join(f"{name} {value:.4g}" for name, value in chosen.items()))]
        for label, chosen in comparison.tuned.items()
    }
    return _table("Tuned", caption, ("method", "chosen"), cells)


def unit(metric: MetricInfo) -> str:
    """The metric and what it is counted in."""
    return f"{metric.title} in %" if metric.percent else metric.title


def differences(pairs: Sequence[Pair], at: At, metric: MetricInfo) -> Group:
    """Methods against each other, client by client, and whether that is more than noise."""
    spread_over = "seeds and clients" if any(pair.difference.seeds > 1 for pair in pairs) else "clients"
    counted_in = "points" if metric.percent else f"{metric.title}, + is better"
    caption = f"{counted_in}, same clients; interval: bootstrap over {spread_over}\n"
    caption += "p: Wilcoxon's signed ranks, Holm's correction in each half\n"
    caption += "more than noise: p < 0.05, and 0 is not in the interval"
    cells = {
        f"{pair.one} - {pair.other}": [
            Text(metric.difference(pair.difference.mean)),
            Text(" to ".join(metric.difference(bound) for bound in pair.difference.interval)),
            Text(chance(pair.difference.corrected)),
            Text(_verdict(pair), style="bold" if pair.difference.more_than_noise else ""),
        ]
        for pair in pairs
    }
    with_local = sum(pair.other == "local" for pair in pairs)
    headings = ("pair", "difference", "95 % interval", "p", "more than noise")
    return _table(f"Differences {MEANING[at].partition(':')[0]}", caption, headings, cells, rule=with_local)


def further(rows: Sequence[Row]) -> Group:
    """Figures that only some comparisons have: best rounds chosen on validation data, and everyone's test samples."""
    kinds = {"best round\n": "best", "all data\n": "everyone", "all data,\nbest round ": "everyone_best"}
    each = {heading: {row.method: getattr(row, name) for row in rows} for heading, name in kinds.items()}
    columns = {heading: found for heading, found in each.items() if any(found.values())}
    caption = f"mean over clients, {unit(rows[0].metric)}"
    caption += "\nbest round: chosen on validation data" if "best round\n" in columns else ""
    caption += "\nall data: the test samples of all clients together" if "all data\n" in columns else ""
    cells = {
        row.method + "*" * row.reconstruction: [
            _spread(row.metric, found[row.method][point]) if found[row.method] else Text("")
            for found in columns.values()
            for point in POINTS
        ]
        for row in rows
    }
    headings = [f"{heading}{point}" for heading in columns for point in POINTS]
    return _table("Further figures", caption, ("\nmethod", *headings), cells)


def unseen(comparison: Comparison[Any], rows: Sequence[Row]) -> Group:
    """The clients that were not there in training."""
    counts = [r.unseen for each in comparison.results.values() for r in each if r.unseen is not None]
    caption = f"{unit(rows[0].metric)}: mean over these clients, pooled over their samples"
    caption += "" if rows[0].metric.higher else "\nless is better"
    caption += f"\nheld out of training, then {counts[0].rounds} rounds with the others at rest"
    caption += "\nlocal: alone, from the initial weights, for as many rounds"
    cells = {
        row.method + "*" * row.reconstruction: [
            _spread(row.metric, found[point], bold=point == row.point) if found else Text("")
            for point in POINTS
            for found in (row.unseen, row.unseen_pooled)
        ]
        for row in rows
    }
    headings = ("\nmethod", "received\nmean", "\npooled", "trained\nmean", "\npooled")
    return _table(f"Unseen: {_counted(len(counts[0].names), 'client')} in each seed", caption, headings, cells)


def remarks(rows: Sequence[Row], at: At) -> Iterator[str]:
    """What has to be known of the figures: another order at another point, and clients that are not in them."""
    found = orders(rows)
    for other in AT:
        if found[other] != found[at]:
            first = ", ".join(found[other][:_MOST_NAMED]) + (", ..." if len(rows) > _MOST_NAMED else "")
            yield f"Another order {MEANING[other].partition(':')[0]}: {first}."
    for row in rows:
        yield from (f"{row.method}: {remark}." for remark in about_clients(row))
    yield from privacy(rows)
    if any(row.refused for row in rows):
        yield "Replies refused: " + ", ".join(f"{row.refused} of {row.method}" for row in rows if row.refused) + "."
    if any(row.unheard for row in rows):
        found_in = ", ".join(f"{row.method} ({_counted(row.unheard, 'run')})" for row in rows if row.unheard)
        yield f"The server took no reply in any round, so nobody learned anything from others: {found_in}."


def privacy(rows: Sequence[Row]) -> Iterator[str]:
    """What the methods' runs guarantee, those alike together."""
    said: dict[str, list[str]] = {}
    for row in rows:
        for guarantee in row.privacy:
            said.setdefault(guarantee.sentence, []).append(row.method)
    for sentence, methods in said.items():
        yield f"Differential privacy, {sentence}: {', '.join(methods)}."


def about_clients(row: Row) -> Iterator[str]:
    """Clients that diverged, or that are in no figure or in one of an earlier round."""
    for point in POINTS:
        if row.diverged[point]:
            yield f"{_counted(len(row.diverged[point]), 'client')} diverged, {point}: {listed(row.diverged[point])}"
    if row.untested:
        title = row.metric.title
        why = "not tested" if row.metric.counted else f"not tested, or {title} means nothing on its samples"
        yield f"{why}, and in no figure: {listed(row.untested)}"
    if row.stale:
        yield f"not tested in the last round, figure of an earlier one: {listed(row.stale)}"


def listed(names: Sequence[str]) -> str:
    """A few names, and how many more there are."""
    more = len(names) - _MOST_NAMED
    return ", ".join(names[:_MOST_NAMED]) + (f" and {more} more" if more > 0 else "")


def chance(p: float) -> str:
    """A p value for people."""
    return "<0.001" if p < 0.001 else f"{p:.3f}" if p < 0.1 else f"{p:.2f}"


def _table(
    title: str, caption: str, headings: Sequence[str], cells: Mapping[str, Sequence[Text]], *, rule: int = 0
) -> Group:
    """A table whose names fold and whose numbers are whole; nothing in it is markup. ``rule``: a line after so many."""
    table = Table(title=Text(title), box=box.SIMPLE, padding=(0, 0, 0, 1))
    widths = [
        max(len(line) for text in (heading, *map(str, column)) for line in text.split("\n"))
        for heading, column in zip(headings[1:], zip(*cells.values(), strict=True), strict=True)
    ]
    roomy = sum(widths) + len(widths) + _LEAST_NAME + 3 <= WIDTH
    table.add_column(Text(headings[0]), overflow="fold")
    for heading in headings[1:]:
        table.add_column(Text(heading), justify="right", no_wrap=roomy, overflow="fold")
    for number, (name, row) in enumerate(cells.items(), 1):
        table.add_row(Text(name), *row, end_section=number == rule)
    return Group(table, Text(textwrap.indent(caption, "  ")), Text())


def _verdict(pair: Pair) -> str:
    if pair.difference.too_few:
        return "too few to tell"
    return "yes" if pair.difference.more_than_noise else "no"


def _spread(metric: MetricInfo, spread: Spread, *, bold: bool = False) -> Text:
    return Text(metric.shown(*spread), style="bold" if bold else "")


def _size(count: float) -> str:
    """A number of bytes in at most five characters."""
    for unit in ("", "K", "M"):
        if count < 1000:
            return f"{count:.0f}{unit}" if not unit or count >= 100 else f"{count:.1f}{unit}"
        count /= 1024
    return f"{count:.0f}G"


def _counted(count: int, noun: str) -> str:
    return f"{count} {noun}{'s' if count != 1 else ''}"


def names_for(labels: Iterable[str], width: int) -> tuple[dict[str, str], list[str]]:
    """Names of at most ``width`` characters that can be told apart, and a legend for those that were cut."""
    shown: dict[str, str] = {}
    legend: list[str] = []
    for label in labels:
        shown[label] = label
        if len(label) > width:
            mark = f"~{len(legend) + 1}"
            shown[label] = label[: width - len(mark)] + mark
            legend.append(f"{shown[label]} is {label}")
    return shown, legend
