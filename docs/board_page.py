"""What the page of the board is written with: docs/results/board.md.jinja, from the board-*.json files beside it."""

from collections import Counter
from collections.abc import Sequence
from functools import cached_property
from itertools import combinations
from pathlib import Path

from docs.tables import table
from fedgraft.board import protocol, record, standing
from fedgraft.board.record import STATES, Entry, Record
from fedgraft.board.standing import AGAINST, ALONE, TUNED, Overall, Row, Standing
from fedgraft.report import board
from fedgraft.report.page import chance, figure, seconds, size
from fedgraft.runs.metric import MetricInfo
from fedgraft.runs.statistics import Difference


class Board:
    """All settings of the shipped protocol, also those of which nothing is known yet."""

    def __init__(self, place: Path) -> None:
        self.place, self.protocol = place, protocol.read()
        self._records = record.read_all(place)

    @cached_property
    def standings(self) -> dict[str, Standing]:
        """What was measured, in the protocol's order."""
        return {
            name: standing.of(self._records[name])
            for name in self.protocol.settings
            if name in self._records and any(each.state != "waiting" for each in self._records[name].entries)
        }

    @property
    def summary(self) -> str:
        return board.summary(self.standings) if self.standings else "Nothing was measured yet."

    @property
    def waiting(self) -> list[str]:
        """Settings of which nothing is known."""
        return [name for name in self.protocol.settings if name not in self.standings]

    @cached_property
    def overall(self) -> Overall | None:
        return standing.overall(self.standings)

    @property
    def told_apart(self) -> str:
        """How many pairs of methods the ranks over all settings tell apart."""
        assert self.overall is not None
        found = self.overall.ranks
        apart = sum(abs(one - other) > found.critical for one, other in combinations(found.mean, 2))
        return f"{apart} pairs are further apart" if apart else "with so few settings no two are further apart"

    def machines(self, name: str) -> str:
        """Where a setting was measured, and how many methods where, if not all at one place."""
        found = Counter(each.machine for each in self._records[name].entries if each.machine)
        if len(found) == 1:
            return next(iter(found))
        return "; ".join(f"{place} ({count} methods)" for place, count in sorted(found.items()))

    def agenda(self) -> str:
        """What is done of every setting, and what waits."""
        rows = []
        for name, setting in self.protocol.settings.items():
            counted = self.standings[name].counted if name in self.standings else {}
            each = [str(counted.get(state, 0)) for state in STATES] if counted else ["", "", "", "", "all"]
            rows.append([setting.title, setting.kind, *each, setting.size])
        return table(["setting", "clients", *STATES, "size"], rows)

    def findings(self) -> str:
        """A line for each setting: who is first, where two baselines are, and what is more than noise against Local."""
        head = ["setting", "highest client mean", ALONE, TUNED, f"above {ALONE}", f"below {ALONE}", "not told apart"]
        return table(head, [_finding(self.protocol.settings[name].title, found.rows, found.metric)
                            for name, found in self.standings.items() if found.rows and found.metric])  # fmt: skip

    def told(self, name: str) -> str:
        return board.told(self.standings[name])

    def rows(self, name: str) -> str:
        """A setting's table."""
        found = self.standings[name]
        metric = found.metric
        assert metric is not None
        head = ["method", "draws", "client mean", "pooled", "worst tenth", "unseen", "harmed", "rank",
                *(f"against {label}" for label in AGAINST), "bytes a round", "seconds"]  # fmt: skip
        return table(head, [_cells(row, metric) for row in found.rows])

    def without(self, name: str) -> list[Entry]:
        """Methods without figures that do not just wait."""
        return [each for each in self.standings[name].without if each.state != "waiting"]

    def order(self) -> str:
        """Mean ranks over settings."""
        assert self.overall is not None
        return table(["method", "mean rank"], [[method, f"{rank:.2f}"] for method, rank in self.overall.order])

    def page(self) -> str:
        """The page with tables that sort."""
        return board.render(self.standings, [self.protocol.settings[name].title for name in self.waiting])


def _finding(title: str, rows: Sequence[Row], metric: MetricInfo) -> list[str]:
    named = {row.method: figure(row.mean, metric) for row in rows}
    against = {row.label: row.against[ALONE] for row in rows if ALONE in row.against}
    line = [title, f"{rows[0].label}, {figure(rows[0].mean, metric)}", named.get(ALONE, ""), named.get(TUNED, "")]
    if any(each.too_few for each in against.values()):
        return [*line, *["too few sites to test"] * 2, str(len(against))]
    above, below = ([label for label, each in against.items() if each.more_than_noise and sign * each.mean > 0]
                    for sign in (1, -1))  # fmt: skip
    return [*line, ", ".join(above) or "none", str(len(below)), str(len(against) - len(above) - len(below))]


def _cells(row: Row, metric: MetricInfo) -> list[str]:
    return [
        row.label, str(row.draws),
        *(figure(spread, metric) for spread in (row.mean, row.pooled, row.worst_tenth, row.unseen)),
        "" if row.harmed is None else f"{100 * row.harmed:.0f} %", "" if row.rank is None else f"{row.rank:.1f}",
        *(_against(row.against.get(label), metric) for label in AGAINST), size(row.traffic),
        "" if row.seconds is None else seconds(row.seconds),
    ]  # fmt: skip


def _against(difference: Difference | None, metric: MetricInfo) -> str:
    if difference is None:
        return ""
    low, high = (metric.difference(value) for value in difference.interval)
    p = "too few sites to test" if difference.too_few else f"p {chance(difference.corrected)}"
    mean = metric.difference(difference.mean)
    return f"{f'**{mean}**' if difference.more_than_noise else mean} ({low} to {high}; {p})"


def keep(board_: Path, place: Path, machine: str) -> None:
    """Take in what a board's directory holds; methods that are not in it stay as they are."""
    mine = {name: _made_on(machine, each) for name, each in record.read_all(board_).items()}
    there = {name: each for name, each in record.read_all(place).items() if name in mine}
    for name, found in record.joined(mine, there).items():
        record.write(place / f"board-{name}.json", _ordered(found))


def _made_on(machine: str, found: Record) -> Record:
    known = [
        each if each.state == "waiting" else each.model_copy(update={"machine": machine}) for each in found.entries
    ]
    return found.model_copy(update={"entries": known})


def _ordered(found: Record) -> Record:
    return found.model_copy(update={"entries": sorted(found.entries, key=lambda each: each.method)})
