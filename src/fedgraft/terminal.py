"""What people see in a terminal: progress while a run goes on, tables when it is over."""

import math
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import TypeVar

from rich import box
from rich.console import Console, RenderableType
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeRemainingColumn
from rich.table import Table
from rich.text import Text

from fedgraft.base.characters import console
from fedgraft.core.evaluation import POINTS
from fedgraft.core.rounds import Round
from fedgraft.report.comparison import about_clients
from fedgraft.runs import learning
from fedgraft.runs.agenda import Agenda
from fedgraft.runs.conducting import Watcher
from fedgraft.runs.metric import MetricInfo
from fedgraft.runs.resultfile import Chosen, Result
from fedgraft.runs.run import Run
from fedgraft.runs.table import Row, rows

Made = TypeVar("Made")


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
    _told: set[str] = field(default_factory=set)

    def __enter__(self) -> "Display":
        if self.console.is_terminal:
            columns = (
                TextColumn("{task.description}", markup=False),
                BarColumn(bar_width=10),
                TextColumn("{task.fields[figures]}", markup=False),
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

    def expect(self, runs: int) -> None:
        """Be told how many runs are to come."""
        self.total_runs = max(1, runs)

    def survey(self, agenda: Agenda) -> None:
        """Show how far the runs of an agenda are, whoever is at work on them."""
        counted = agenda.states()
        told = ", ".join(f"{count} {state}" for state, count in sorted(counted.items()))
        if self._progress is not None and self._bar is not None:
            finished = counted["done"] + counted["failed"]
            total = len(agenda.entries)
            self._progress.update(self._bar, total=total, completed=finished, description=f"{total} runs", figures=told)
        elif told != self._label and time.monotonic() - self._spoken > 2:
            self._label, self._spoken = told, time.monotonic()
            print(f"{len(agenda.entries)} runs: {told}", file=sys.stderr, flush=True)

    def begin(self, run: Run) -> None:
        self._label = f"{run.method.name} seed {run.config.seed}" if self.total_runs > 1 else run.method.name
        for sentence in (*run.notes, *run.method.caveats()):
            if sentence not in self._told:  # the runs of a comparison have the same data, and notes on them
                self._told.add(sentence)
                self._tell("note:", sentence)
        if self._progress is not None and self._bar is not None:
            self._progress.update(self._bar, total=self.total_runs * run.config.rounds, description=self._label)

    def round(self, run: Run, this: Round) -> None:
        figures = "loss not told" if math.isnan(this.loss) and run.spec.private else f"loss {this.loss:.3f}"
        metric = run.metrics[0]
        figures += f" {metric.title}" if this.test else ""
        for point, summary in this.test.items():
            figures += f" {point} {metric.shown(summary.mean)}{metric.unit}"
        for refusal in this.refused:
            self._tell("refused:", f"{run.spec.called(refusal.client)}: {refusal.reason}")
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

    def _tell(self, what: str, sentence: str) -> None:
        """Print a remark; what others wrote is text and no markup."""
        self.console.print(Text.assemble((what, "yellow"), " ", sentence))

    def _worth_a_line(self, number: int, rounds: int) -> bool:
        """Plain output stays readable: the last round of a run, and otherwise a line every few seconds."""
        due = time.monotonic() - self._spoken > 10 or (self.total_runs == 1 and rounds <= 50)
        if due or number == rounds:
            self._spoken = time.monotonic()
            return True
        return False


def watched(
    work: Callable[[list[Watcher]], Made],
    picture: Callable[[Made], RenderableType],
    *,
    progress: bool | None = None,
    runs: int = 1,
) -> Made:
    """Do ``work`` with a display among its watchers, and show a picture of what it made.

    Without a word on ``progress``, only where somebody looks on: in a terminal or a notebook.
    """
    screen = console()
    if not (screen.is_terminal or screen.is_jupyter if progress is None else progress):
        return work([])
    with Display(screen, runs) as display:
        made = work([display])
    screen.print(picture(made))
    return made


def run_table(run: Run) -> Table:
    """Both points of one run, last and best by the leading metric, and the other metrics as they ended."""
    facts = run.facts
    metric, row = facts.leading, rows({run.method.name: [facts]}, facts.leading)[0]
    table = Table(
        title=Text(
            f"{run.method.name} on {run.config.dataset}, {run.spec.clients} clients, {run.config.partition}, "
            f"{run.config.model}, {run.config.rounds} rounds, seed {run.config.seed}"
        ),
        caption=Text("\n".join(_remarks(facts, row))),
        box=box.SIMPLE,
        pad_edge=False,
    )
    for column in ("model", "metric", "client mean", "pooled", "best mean", "best pooled"):
        table.add_column(column, justify="left" if column in ("model", "metric") else "right")
    for point in POINTS:
        best = facts.best.choice(point)
        for each in facts.metrics:
            bests = [_best(metric, found) if each == metric else "" for found in (best.mean, best.pooled)]
            last = facts.last.figures(point, each.name)
            figures = (None, None) if last is None else (last.mean, last.pooled)
            leads = each == metric
            table.add_row(
                point if leads else "", Text(each.heading), *map(each.shown, figures), *bests,
                style="bold" if leads and point == run.method.headline else "",
            )  # fmt: skip
    for point, spread in row.everyone.items():
        best_there = metric.shown(row.everyone_best[point].mean)
        table.add_row(f"{point}, all data", Text(metric.heading), metric.shown(spread.mean), "", best_there, "")
    for point, spread in row.unseen.items():
        pooled = metric.shown(row.unseen_pooled[point].mean)
        table.add_row(f"{point}, unseen", Text(metric.heading), metric.shown(spread.mean), pooled, "", "")
    return table


def _best(metric: MetricInfo, found: Chosen | None) -> str:
    return "–" if found is None else f"{metric.shown(found.value)} (round {found.round})"


def _remarks(facts: Result, row: Row) -> Iterator[str]:
    """What is below the table of a run."""
    if facts.last.round is None:
        yield "no client's model could be tested in any round"
    else:
        yield f"best is chosen by {facts.leading.title} on {facts.best.chosen_on} data, each column for itself"
    traffic = f"{facts.bytes_up_per_client:,.0f} bytes up, {facts.bytes_down_per_client:,.0f} down"
    yield f"{traffic} per client and round; {facts.seconds:.1f} s, {facts.seconds_per_round:.3g} s per round"
    if row.everyone:
        yield "all data: mean over clients on the test samples of all, last and in the best round"
    if facts.unseen is not None:
        who = ", ".join(facts.unseen.names[:5]) + (", ..." if len(facts.unseen.names) > 5 else "")
        yield f"unseen: held out of training, joined afterwards: {who}"
    yield from about_clients(row)
    for guarantee in row.privacy:
        yield f"differential privacy: {guarantee.sentence}"
    yield from learning.doubts({row.method: [facts]})
    if row.refused:
        yield f"{row.refused} replies refused" + (", and none taken in any round" if row.unheard else "")
