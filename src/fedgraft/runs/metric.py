"""A metric as a result describes it, and its figures as people read them: direction, unit, digits.

A result has to be readable without the code that made it, so it says of each metric what a reader needs to know.
"""

import math
from collections.abc import Iterable, Sequence
from typing import Self

from pydantic import BaseModel, ConfigDict, Field

from fedgraft.core.metrics import Accuracy, LogLoss, Metric

MINUS = "\N{MINUS SIGN}"
NONE = "–"
_ROUNDING = 1e-9
"""By how much a mean of figures may be beyond what each of them can be."""


class MetricInfo(BaseModel):
    """What a reader has to know of a metric."""

    model_config = ConfigDict(strict=True, frozen=True, extra="ignore", allow_inf_nan=False)

    name: str = Field(min_length=1, max_length=100)
    title: str = Field(max_length=100)
    """What people call it."""
    higher: bool
    """Whether more is better."""
    percent: bool
    """Whether it is shown times a hundred, and differences of it in percentage points."""
    counted: bool = False
    """Whether it is the share of the test samples that were predicted correctly, so that they say how sure it is."""
    low: float | None = None
    high: float | None = None
    """What no figure can be below or above, where that is known."""

    @classmethod
    def of(cls, metric: Metric) -> Self:
        """Describe a metric."""
        low, high = (0.0, 1.0) if metric.bounded else (None, None)
        return cls(
            name=metric.name, title=metric.title or metric.name, higher=metric.higher, percent=metric.percent,
            counted=metric.counted, low=low, high=high,
        )  # fmt: skip

    @property
    def unit(self) -> str:
        """What stands behind a figure, with the blank before it."""
        return " %" if self.percent else ""

    @property
    def step(self) -> str:
        """What a difference is counted in."""
        return f"points of {self.title}" if self.percent else self.title

    @property
    def heading(self) -> str:
        """The metric with its unit, as it stands at an axis."""
        return f"{self.title} (%)" if self.percent else self.title

    @property
    def scale(self) -> float:
        """By how much a figure is multiplied where it is shown."""
        return 100.0 if self.percent else 1.0

    def gain(self, ours: float, theirs: float) -> float:
        """By how much the first is better, whatever the direction; negative if it is worse."""
        return ours - theirs if self.higher else theirs - ours

    def worth(self, value: float) -> float:
        """What to sort by, the best last."""
        return value if self.higher else -value

    def worst_tenth(self, values: Sequence[float]) -> float:
        """The mean over the worst tenth of the clients (over one client at least)."""
        worst = sorted(values, key=self.worth)[: max(1, len(values) // 10)]
        return math.fsum(worst) / len(worst)

    def possible(self, values: Iterable[float | None]) -> bool:
        """Whether figures can be those of this metric."""
        low = -math.inf if self.low is None else self.low - _ROUNDING
        high = math.inf if self.high is None else self.high + _ROUNDING
        return all(value is None or low <= value <= high for value in values)

    def shown(self, value: float | None, deviation: float | None = None) -> str:
        """A figure, in percent or as it is, with its deviation; a dash for what never was measured."""
        if value is None or math.isnan(value):
            return NONE
        digits = 1 if self.percent else _digits(value)
        if deviation is not None and not self.percent and digits > 0:
            digits -= 1  # beside its deviation a figure needs no more, and a table has to fit a terminal
        spread = "" if deviation is None else f"±{_written(self.scale * deviation, digits)}"
        return _written(self.scale * value, digits) + spread

    def difference(self, value: float) -> str:
        """A difference with its sign: percentage points, or the metric's own unit."""
        digits = 1 if self.percent else _digits(value)
        written = _written(abs(self.scale * value), digits)
        if not float(written):
            return written
        return ("+" if value > 0 else MINUS) + written


def _digits(value: float) -> int:
    """So many places after the point that three or four digits tell something; -1 for what is very small or large."""
    size = abs(value)
    if size and not 1e-4 <= size < 1e6:
        return -1
    return 4 if 0 < size < 1e-3 else 3 if size < 10 else 2 if size < 100 else 1 if size < 1000 else 0


def _written(value: float, digits: int) -> str:
    return f"{value:.1e}" if digits < 0 else f"{value:.{digits}f}"


ACCURACY, LOG_LOSS = MetricInfo.of(Accuracy()), MetricInfo.of(LogLoss())
FIRST = (ACCURACY, LOG_LOSS)
"""What results of the first format have: a share of right answers, and a loss."""
