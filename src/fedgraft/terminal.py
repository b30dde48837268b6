"""What people see in a terminal: progress while a run goes on, tables when it is over."""

import re
import sys
import textwrap
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from rich import box
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeRemainingColumn
from rich.table import Table

from fedgraft.core.rounds import Round
from fedgraft.runs.config import RunConfig
from fedgraft.runs.run import Run
from fedgraft.runs.table import Row, Spread


@dataclass
class Display:
    """Progress of one run or of many: a live bar in a terminal, plain lines elsewhere."""

    console: Console
    total_runs: int = 1
    _progress: Progress | None = None
    _bar: TaskID | None = None
    _done: int = 0
    _label: str = ""
    _spoken: float = field(default_factory=time.monotonic)

    def __enter__(self) -> "Display":
        if self.console.is_terminal:
            columns = (
                TextColumn("{task.description}"),
                BarColumn(bar_width=10),
                TextColumn("{task.fields[figures]}"),
                TimeRemainingColumn(),
                TextColumn("left"),
            )
            self._progress = Progress(*columns, console=self.console, transient=True)
            self._progress.start()
            self._bar = self._progress.add_task("preparing", total=None, figures="")
        return self

    def __exit__(self, *_: object) -> None:
        if self._progress is not None:
            self._progress.stop()

    def begin(self, run: Run) -> None:
        self._label = f"{run.method.name} seed {run.config.seed}" if self.total_runs > 1 else run.method.name
        for sentence in (*run.notes, *run.method.caveats()):
            self.console.print(f"[yellow]note:[/] {sentence}", highlight=False)
        if self._progress is not None and self._bar is not None:
            self._progress.update(self._bar, total=self.total_runs * run.config.rounds, description=self._label)

    def round(self, run: Run, this: Round) -> None:
        figures = f"loss {this.loss:.3f}"
        for point, summary in this.test.items():
            figures += f" {point} {100 * summary.pooled:.1f}%"
        for refusal in this.refused:
            name = escape(run.spec.called(refusal.client))
            self.console.print(f"[yellow]refused:[/] {name}: {refusal.reason}", highlight=False)
        rounds = run.config.rounds
        if self._progress is not None and self._bar is not None:
            self._progress.update(
                self._bar, completed=self._done * rounds + this.number + 1,
                description=f"{self._label} {this.number + 1}/{rounds}", figures=figures,
            )  # fmt: skip
        elif self._worth_a_line(this.number + 1, rounds):
            print(f"{self._label} round {this.number + 1}/{rounds} {figures}", file=sys.stderr, flush=True)

    def end(self, run: Run) -> None:
        self._done += 1

    def _worth_a_line(self, number: int, rounds: int) -> bool:
        """Plain output stays readable: the last round of a run, and otherwise a line every few seconds."""
        due = time.monotonic() - self._spoken > 10 or (self.total_runs == 1 and rounds <= 50)
        if due or number == rounds:
            self._spoken = time.monotonic()
            return True
        return False


class Tabular(Protocol):
    """What has methods to compare: a comparison, or runs that were read from their directories."""

    @property
    def config(self) -> RunConfig: ...

    @property
    def seeds(self) -> tuple[int, ...]: ...

    @property
    def clients(self) -> int: ...

    def rows(self) -> list[Row]: ...


def comparison_table(comparison: Tabular) -> Table:
    """Methods against each other, at both points, in percent; fits 80 columns."""
    config, rows = comparison.config, comparison.rows()
    seeds = f"{len(comparison.seeds)} seed{'s' if len(comparison.seeds) > 1 else ''}"
    table = Table(
        title=f"{config.dataset}, {comparison.clients} clients, {config.partition}, {config.rounds} rounds, {seeds}",
        caption="accuracy in %: mean over clients and pooled over samples, last round"
        + (", ± deviation over seeds" if len(comparison.seeds) > 1 else "")
        + "\ngain: clients better off than alone, at the method's own point (bold)"
        + ("\n* our reading of the method" if any(row.reconstruction for row in rows) else "")
        + (f"\nreplies refused: {_refused(rows)}" if any(row.refused for row in rows) else ""),
        box=box.SIMPLE,
        padding=(0, 0, 0, 1),
    )
    table.add_column("\nmethod", no_wrap=True)
    for heading in ("received\nmean", "\npooled", "trained\nmean", "\npooled", "\ngain", "KiB\nup/down", "\nsec"):
        table.add_column(heading, justify="right", no_wrap=True)
    for row in rows:
        table.add_row(
            row.method + ("*" if row.reconstruction else ""),
            *(
                _percent(spreads[point], bold=point == row.headline)
                for point in ("received", "trained")
                for spreads in (row.mean, row.pooled)
            ),
            "" if row.gaining is None else f"{row.gaining}/{row.clients}",
            _kib(row),
            f"{row.seconds:.0f}" if row.seconds >= 10 else f"{row.seconds:.1f}",
        )
    return table


def _refused(rows: Sequence[Row]) -> str:
    return ", ".join(f"{row.refused} of {row.method}" for row in rows if row.refused)


def run_table(run: Run) -> Table:
    """Both points of one run, last and best."""
    result = run.result
    table = Table(
        title=f"{run.method.name} on {run.config.dataset}, {run.spec.clients} clients, {run.config.partition}, "
        f"{run.config.model}, {run.config.rounds} rounds, seed {run.config.seed}",
        caption=f"accuracy in %; best is chosen on {result['best']['chosen_on']} data, each column for itself\n"
        f"{result['bytes_up_per_client']:,.0f} bytes up, {result['bytes_down_per_client']:,.0f} down "
        f"per client and round; {result['seconds']:.1f} s"
        + (f"; {result['refused']} replies refused" if result["refused"] else ""),
        box=box.SIMPLE,
        pad_edge=False,
    )
    for column in ("model", "client mean", "pooled", "best mean", "best pooled"):
        table.add_column(column, justify="left" if column == "model" else "right")
    for point in ("received", "trained"):
        best, last = result["best"][point], result["last"][point]
        style = "bold" if point == run.method.headline else ""
        table.add_row(
            point, f"{100 * last['mean']:.2f}", f"{100 * last['pooled']:.2f}",
            *(f"{100 * best[figure]['accuracy']:.2f} (round {best[figure]['round']})" for figure in ("mean", "pooled")),
            style=style,
        )  # fmt: skip
    return table


def facts_table(rows: Sequence[Mapping[str, Any]], columns: Mapping[str, str]) -> Table:
    """Print a listing: ``columns`` maps keys to headings."""
    table = Table(box=box.SIMPLE, pad_edge=False)
    for number, heading in enumerate(columns.values()):
        table.add_column(heading, no_wrap=number == 0, overflow="fold")
    for row in rows:
        table.add_row(*(str(row[key]) for key in columns))
    return table


def bullets(text: str, width: int) -> str:
    """Fill a list of points, written for another width, to this one."""
    points = (" ".join(point.split()) for point in re.split(r"\n(?=- )", text))
    return "\n".join(textwrap.fill(point, width, subsequent_indent="  ", break_on_hyphens=False) for point in points)


def _percent(spread: Spread, *, bold: bool) -> str:
    text = f"{100 * spread.mean:.1f}" + ("" if spread.deviation is None else f"±{100 * spread.deviation:.1f}")
    return f"[bold]{text}[/]" if bold else text


def _kib(row: Row) -> str:
    up, down = row.bytes_up / 1024, row.bytes_down / 1024
    return f"{up:.0f}/{down:.0f}" if max(up, down) >= 100 else f"{up:.1f}/{down:.1f}"
