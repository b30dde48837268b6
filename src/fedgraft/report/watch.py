"""Follow runs from another terminal: what their directories say, round by round."""

import json
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rich import box
from rich.console import Console
from rich.live import Live
from rich.table import Table
from rich.text import Text

from fedgraft.base.errors import UserError
from fedgraft.core.evaluation import POINTS, Point
from fedgraft.data.partition.picture import BARS
from fedgraft.runs.config import read
from fedgraft.runs.resultfile import Record, complaint
from fedgraft.runs.table import percent

POLL_SECONDS = 0.5
_SPARK = 18


@dataclass
class Follower:
    """One run's directory, as far as it has been read."""

    directory: Path
    method: str = "?"
    rounds: int = 0
    records: list[dict[str, Any]] = field(default_factory=list)
    finished: bool = False
    _read: int = 0

    @classmethod
    def of(cls, directory: Path) -> "Follower":
        settings = read(directory / "config.toml")
        return cls(directory, str(settings.get("method", "?")), int(settings.get("rounds", 0)))

    def poll(self) -> list[dict[str, Any]]:
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
            new = [json.loads(line) for line in whole.splitlines()]
        except (ValueError, RecursionError) as error:
            raise UserError(f"{path} is damaged: {error}") from None
        if wrong := next(filter(None, (complaint(Record, each) for each in new)), None):
            raise UserError(f"{path} is damaged: {wrong}")
        self.records += new
        return new


def watch(directory: Path, console: Console, *, poll_seconds: float = POLL_SECONDS) -> None:
    """Show a run or a comparison until it ends or somebody presses Ctrl-C; plain lines where there is no terminal."""
    if not directory.is_dir():
        raise UserError(f"there is no directory {directory}")
    if not any(_runs(directory)):
        raise UserError(f"{directory} holds no run: a run's directory has a config.toml from its first moment on")
    followers: dict[Path, Follower] = {}
    if not console.is_terminal:
        for _ in _rounds(directory, followers, poll_seconds, spoken=True):
            pass
        return
    with Live(_table(followers.values()), console=console, refresh_per_second=4) as live:
        for _ in _rounds(directory, followers, poll_seconds, spoken=False):
            live.update(_table(followers.values()))


def _runs(directory: Path) -> Iterator[Path]:
    if (directory / "config.toml").exists():
        yield directory
    else:
        yield from (config.parent for config in directory.glob("*/config.toml"))


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
    if (directory / "config.toml").exists():
        return (directory / "result.json").exists()
    return (directory / "comparison.json").exists()


def _line(follower: Follower, record: Mapping[str, Any]) -> str:
    return f"{follower.directory.name} round {record['round']}/{follower.rounds} {_figures(record)}"


def _figures(record: Mapping[str, Any]) -> str:
    loss = record.get("loss")
    parts = [] if loss is None else [f"loss {loss:.3f}"]
    parts += [f"{point} {_mean(record, point)}" for point in POINTS if point in record]
    return " ".join(parts)


def _mean(record: Mapping[str, Any], point: Point) -> str:
    mean = record[point]["mean"]
    return "" if mean is None else f"{percent(mean)}%"


def _table(followers: Iterable[Follower]) -> Table:
    caption = "mean accuracy of the clients; Ctrl-C ends the view, not the run"
    table = Table(box=box.SIMPLE, pad_edge=False, caption=caption)
    table.add_column("run", overflow="ellipsis", max_width=24, no_wrap=True)
    for heading in ("round", "received", "trained", "last round"):
        table.add_column(heading, justify="right", no_wrap=True)
    table.add_column("trained so far", no_wrap=True)
    for each in followers:
        done = f"{len(each.records)}/{each.rounds}"
        table.add_row(Text(each.directory.name), done, *_latest(each), _age(each), _spark(each))
    return table


def _latest(follower: Follower) -> tuple[str, str]:
    evaluated = [record for record in follower.records if "received" in record]
    if not evaluated:
        return "", ""
    return _mean(evaluated[-1], "received"), _mean(evaluated[-1], "trained")


def _age(follower: Follower) -> str:
    """How long ago the last round ended: a run that hangs or was killed shows here."""
    if follower.finished:
        return "done"
    if not follower.records:
        return "starting"
    return f"{time.time() - (follower.directory / 'metrics.jsonl').stat().st_mtime:.0f} s ago"


def _spark(follower: Follower) -> str:
    means = (record["trained"]["mean"] for record in follower.records if "trained" in record)
    curve = [mean for mean in means if mean is not None]
    step = -(-len(curve) // _SPARK) or 1
    return "".join(BARS[min(len(BARS) - 1, int(value * len(BARS)))] for value in curve[::step])
