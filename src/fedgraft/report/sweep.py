"""A sweep as tables for a terminal: each method under all settings, then every comparison by itself."""

import math
import statistics
from collections.abc import Iterator
from typing import Any, NamedTuple

from rich import box
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from fedgraft.report.comparison import unit
from fedgraft.report.comparison import view as one_view
from fedgraft.runs import table
from fedgraft.runs.config import AT, At
from fedgraft.runs.metric import MetricInfo
from fedgraft.runs.sweep import Sweep


class Tried(NamedTuple):
    """One method under one setting."""

    method: str
    setting: str
    """The swept settings of the run, and the hyper-parameters in which variants of the method differ."""
    test: table.Spread
    validation: float
    """NaN without validation data."""


def view(sweep: Sweep, at: At = AT[0], metric: str | None = None) -> RenderableType:
    """Everything: what each method did under which setting, and the tables of every setting."""
    parts: list[RenderableType] = []
    if len(sweep.comparisons) > 1:
        parts.append(overview(sweep, at, metric))
    for name, comparison in sweep.comparisons.items():
        parts += [Text(f"\n{name}", style="bold")] if name else []
        parts.append(one_view(comparison, at, metric))
    return Group(*parts)


def overview(sweep: Sweep, at: At = AT[0], metric: str | None = None) -> Group:
    """Each method under all settings; validation data, where there are some, say which is its best."""
    judged = next(iter(sweep.comparisons.values())).metric(metric)
    found = list(tried(sweep, at, metric))
    validated = any(not math.isnan(each.validation) for each in found)
    shown = Table(title="Settings", box=box.SIMPLE, padding=(0, 0, 0, 1))
    for heading in ("method", "setting"):
        shown.add_column(heading, overflow="fold")
    for heading in ("validation", "test") if validated else ("test",):
        shown.add_column(heading, justify="right", no_wrap=True)
    rows = sorted(found, key=lambda each: [one.method for one in found].index(each.method))
    for number, each in enumerate(rows, 1):
        ends = number == len(rows) or rows[number].method != each.method
        best = validated and each == _best([one for one in rows if one.method == each.method], judged)
        cells = [judged.shown(each.validation)] if validated else []
        cells.append(judged.shown(*each.test))
        style = "bold" if best else ""
        shown.add_row(Text(each.method), Text(each.setting), *map(Text, cells), style=style, end_section=ends)
    caption = f"  {unit(judged)} after the last round, mean over clients\n"
    caption += "  bold: the best of a method on validation data\n" if validated else (
        "  no validation data (--validation 0.2): none is named best, for a choice by test data flatters it\n"
    )  # fmt: skip
    return Group(shown, Text(caption))


def tried(sweep: Sweep, at: At, metric: str | None) -> Iterator[Tried]:
    """What was tried, in the order of the settings."""
    every = [result for each in sweep.comparisons.values() for several in each.results.values() for result in several]
    for name, comparison in sweep.comparisons.items():
        judged = comparison.metric(metric)
        for row in comparison.rows(at, metric):
            found = comparison.results[row.method]
            variants = [result.params for result in every if result.method == found[0].method]
            own = [
                f"{key}={value}"
                for key, value in found[0].params.items()
                if any(other.get(key) != value for other in variants)
            ]
            validation = statistics.fmean(table.on_validation(result, judged, at) for result in found)
            setting = " ".join(filter(None, (name.replace(",", " "), *own)))
            yield Tried(found[0].method, setting, row.mean[row.point], validation)


def _best(several: list[Tried], metric: MetricInfo) -> Any:
    known = [each for each in several if not math.isnan(each.validation)]
    return max(known, key=lambda each: metric.worth(each.validation), default=None)
