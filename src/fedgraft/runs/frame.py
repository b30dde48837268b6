"""Tidy tables: one figure in a row."""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from fedgraft.core.evaluation import POINTS
from fedgraft.runs.resultfile import SETS, ClientFigures, Result, Set

Row = dict[str, Any]
Frame = Any
"""A pandas DataFrame, or a list of dictionaries where pandas is not installed."""
COLUMNS = ("method", "seed", "round", "set", "point", "client", "metric", "value")
_SETS: dict[Set, str] = {"": "test", "_validation": "validation", "_global": "everyone"}


def frame(rows: Iterable[Row]) -> Frame:
    """A DataFrame of rows if pandas is there, else the rows."""
    try:
        import pandas as pd
    except ImportError:
        return list(rows)
    return pd.DataFrame(list(rows), columns=list(COLUMNS))


def observations(label: str, result: Result) -> Iterator[Row]:
    """Every figure of a run; what was not measured is left out."""
    seed, names = result.seed, result.called
    for record in result.rounds:
        for kind in SETS:
            for point in POINTS:
                test = record.test(point, kind)
                for metric, figures in test.metrics.items() if test else ():
                    known = (label, seed, record.round, _SETS[kind], point)
                    yield from _rows(known, metric, figures, names)
    if result.unseen is not None:
        for point in POINTS:
            for metric, figures in result.unseen.test(point).metrics.items():
                yield from _rows(
                    (label, seed, len(result.rounds), "unseen", point), metric, figures, result.unseen.names
                )


def _rows(known: tuple[Any, ...], metric: str, figures: ClientFigures, names: Sequence[str]) -> Iterator[Row]:
    for client, value in _figures(figures, names):
        if value is not None:
            yield dict(zip(COLUMNS, (*known, client, metric, value), strict=True))


def _figures(figures: ClientFigures, names: Sequence[str]) -> Iterator[tuple[str, float | None]]:
    yield from (("mean", figures.mean), ("pooled", figures.pooled))
    yield from zip(names, figures.per_client, strict=True)
