"""Follow runs from another terminal: what their directories say, round by round."""

import json
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from rich import box
from rich.console import Console
from rich.live import Live
from rich.table import Table
from rich.text import Text

from fedgraft.base.errors import UserError
from fedgraft.core.evaluation import POINTS, Point
from fedgraft.data.partition.picture import BARS
from fedgraft.runs import identity
from fedgraft.runs.agenda import FILE, Agenda
from fedgraft.runs.config import read
from fedgraft.runs.directory import COMPARISON, RACE, RECOMMENDATION
from fedgraft.runs.metric import FIRST, MetricInfo
from fedgraft.runs.resultfile import Record, complaint
from fedgraft.runs.slurm import Queue
from fedgraft.runs.upgrade import upgraded_record

POLL_SECONDS = 0.5
_SPARK = 18
_ROWS = 24


@dataclass
class Follower:
    """One run's directory, as far as it has been read."""

    directory: Path
    method: str = "?"
    rounds: int = 0
    metrics: dict[str, MetricInfo] = field(default_factory=dict)
    records: list[Record] = field(default_factory=list)
    finished: bool = False
    _read: int = 0

    @classmethod
    def of(cls, directory: Path) -> "Follower":
        settings = read(directory / "config.toml")
        rounds = settings.get("rounds", 0)
        if not isinstance(rounds, int):
            raise UserError(f"{directory / 'config.toml'} was changed: rounds is {rounds!r}, and not a number")
        return cls(directory, str(settings.get("method", "?")), rounds, _metrics(directory))

    def leading(self, record: Record) -> MetricInfo:
        """The metric that judges a round: the first that it tells of."""
        name = next((name for test in record.tests for name in test.metrics), FIRST[0].name)
        return self.metrics.get(name) or MetricInfo(name=name, title=name, higher=True, percent=False)

    def shown(self, record: Record, point: Point) -> str:
        """The clients' mean of the leading metric in a round."""
        mean, metric = self.mean(record, point), self.leading(record)
        return "" if mean is None else f"{metric.shown(mean)}{metric.unit}"

    def mean(self, record: Record, point: Point) -> float | None:
        """The same as a number."""
        figures = record.figures(point, self.leading(record).name)
        return None if figures is None else figures.mean

    def poll(self) -> list[Record]:
        """Return the rounds that are new; a line that is still being written waits for the next time."""
        self.finished = (self.directory / "result.json").exists()
        path = self.directory / "metrics.jsonl"
        if not path.exists():
            return []
        if path.stat().st_size < self._read:
            self._read, self.records = 0, []
        try:
            with path.open("rb") as stream:
                stream.seek(self._read)
                data = stream.read()
        except OSError as error:
            raise UserError(f"{path} cannot be read: {error.strerror}") from None
        whole = data[: data.rfind(b"\n") + 1]
        self._read += len(whole)
        try:
            found = [upgraded_record(json.loads(line)) for line in whole.splitlines()]
        except (ValueError, RecursionError) as error:
            raise UserError(f"{path} is damaged: {error}") from None
        if wrong := next(filter(None, (complaint(Record, each) for each in found)), None):
            raise UserError(f"{path} is damaged: {wrong}")
        new = [Record.model_validate(each) for each in found]
        self.records += new
        return new


def _metrics(directory: Path) -> dict[str, MetricInfo]:
    """What the run says of its metrics; runs of an older version had those of the first format."""
    try:
        told = identity.read(directory).metrics
    except UserError:
        told = []
    return {metric.name: metric for metric in (*FIRST, *told)}


def watch(directory: Path, console: Console, *, poll_seconds: float = POLL_SECONDS) -> None:
    """Show a run or a comparison until it ends or somebody presses Ctrl-C; plain lines where there is no terminal."""
    if not directory.is_dir():
        raise UserError(f"there is no directory {directory}")
    if not (directory / FILE).exists() and not any(_runs(directory)):
        raise UserError(f"{directory} holds no run: a run's directory has a config.toml from its first moment on")
    followers: dict[Path, Follower] = {}
    queue, said = Queue(directory), ""
    if not console.is_terminal:
        for _ in _rounds(directory, followers, poll_seconds, spoken=True):
            if (now := str(queue)) != said:
                print(now, flush=True)
                said = now
        return
    with Live(_table(directory, followers.values(), queue), console=console, refresh_per_second=4) as live:
        for _ in _rounds(directory, followers, poll_seconds, spoken=False):
            live.update(_table(directory, followers.values(), queue))


def _runs(directory: Path) -> Iterator[Path]:
    if (directory / "config.toml").exists():
        yield directory
    else:
        yield from (config.parent for depth in ("*", "*/*") for config in directory.glob(f"{depth}/config.toml"))


def _rounds(directory: Path, followers: dict[Path, Follower], pause: float, *, spoken: bool) -> Iterator[None]:
    """Read what is new, again and again; the last time after the end has been seen."""
    over = False
    while True:
        over = _is_over(directory)
        for place in sorted(set(_runs(directory)) - followers.keys(), key=lambda path: path.stat().st_ctime):
            followers[place] = Follower.of(place)
        for follower in followers.values():
            for record in follower.poll():
                if spoken:
                    print(_line(follower, record), flush=True)
        yield
        if over:
            return
        time.sleep(pause)


def _is_over(directory: Path) -> bool:
    """Whether nothing more is to come; in a folder of runs and comparisons, of any of them."""
    if (directory / FILE).exists():
        return not Agenda.read(directory).left()
    if (directory / "config.toml").exists():
        return (directory / "result.json").exists()
    if (directory / RACE).exists():
        return (directory / RECOMMENDATION).exists()
    below = {directory / run.relative_to(directory).parts[0] for run in _runs(directory)}
    return (directory / COMPARISON).exists() or all(map(_is_over, below))


def _line(follower: Follower, record: Record) -> str:
    parts = [] if record.loss is None else [f"loss {record.loss:.3f}"]
    if tested := [f"{point} {follower.shown(record, point)}" for point in POINTS if record.test(point)]:
        parts += [follower.leading(record).title, *tested]
    return f"{follower.directory.name} round {record.round}/{follower.rounds} {' '.join(parts)}"


def _table(directory: Path, followers: Iterable[Follower], queue: Queue) -> Table:
    caption = "mean over the clients; Ctrl-C ends the view, not the run"
    agenda = Agenda.read(directory) if (directory / FILE).exists() else None
    title = None if agenda is None else _progress(agenda, queue)
    table = Table(box=box.SIMPLE, pad_edge=False, caption=caption, title=title)
    table.add_column("run", overflow="ellipsis", max_width=24, no_wrap=True)
    for heading in ("round", "metric", "received", "trained", "last round"):
        table.add_column(heading, justify="right", no_wrap=True)
    table.add_column("trained so far", no_wrap=True)
    for each in _worth_a_row(list(followers)):
        done = f"{len(each.records)}/{each.rounds}"
        name = str(each.directory.relative_to(directory)) if each.directory != directory else directory.name
        table.add_row(Text(name), done, *map(Text, _latest(each)), _age(each), _spark(each))
    return table


def _progress(agenda: Agenda, queue: Queue) -> Text:
    """How many runs and jobs are in which state, who is at work, and what the first that failed had to say."""
    counted = agenda.states()
    parts = [f"{len(agenda.entries)} runs: " + ", ".join(f"{count} {state}" for state, count in counted.items())]
    hosts = Counter((agenda.holder(each) or "?").partition(" ")[0] for each in agenda.entries
                    if agenda.state(each) == "at work")  # fmt: skip
    parts += [f"at work on {', '.join(f'{host} ({count})' for host, count in hosts.items())}"] if hosts else []
    parts += filter(None, [str(queue)])
    parts += [f"failed: {place}: {why}" for place, why in list(agenda.failures().items())[:1]]
    return Text("\n".join(parts))


def _worth_a_row(followers: list[Follower]) -> list[Follower]:
    """All runs, if they fit on a screen; of many, those that are going on and the last that ended."""
    if len(followers) <= _ROWS:
        return followers
    going = [each for each in followers if not each.finished]
    ended = [each for each in followers if each.finished]
    return [*ended[-max(1, _ROWS - len(going)) :], *going][-_ROWS:]


def _latest(follower: Follower) -> tuple[str, str, str]:
    evaluated = [record for record in follower.records if record.test("received")]
    if not evaluated:
        return "", "", ""
    last = evaluated[-1]
    return follower.leading(last).title, follower.shown(last, "received"), follower.shown(last, "trained")


def _age(follower: Follower) -> str:
    """How long ago the last round ended: a run that hangs or was killed shows here."""
    if follower.finished:
        return "done"
    if not follower.records:
        return "starting"
    return f"{time.time() - (follower.directory / 'metrics.jsonl').stat().st_mtime:.0f} s ago"


def _spark(follower: Follower) -> str:
    """The clients' mean by round: a share from nothing to all, anything else from its lowest to its highest."""
    means = (follower.mean(record, "trained") for record in follower.records)
    curve = [mean for mean in means if mean is not None]
    if not curve:
        return ""
    metric = follower.leading(next(record for record in follower.records if record.test("trained")))
    bounded = metric.low is not None and metric.high is not None
    low, high = (metric.low, metric.high) if bounded else (min(curve), max(curve))
    assert low is not None
    assert high is not None
    step = -(-len(curve) // _SPARK) or 1
    levels = (int((value - low) / ((high - low) or 1) * len(BARS)) for value in curve[::step])
    return "".join(BARS[min(len(BARS) - 1, level)] for level in levels)
