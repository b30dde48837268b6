"""Group runs that may be compared, and work out what the pictures show."""

import statistics
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, NamedTuple

from fedgraft.core.evaluation import Point
from fedgraft.report.reading import Finished
from fedgraft.runs.compare import REFERENCES
from fedgraft.runs.config import MACHINE, RunConfig
from fedgraft.runs.table import Row, Spread, benefits, last_accuracies, rows

MIB = 1024 * 1024
_NOT_THE_SETTING = MACHINE | {"method", "params", "seed", "evaluate_every", "global_test"}


class Value(NamedTuple):
    """A figure after a round, over seeds."""

    round: int
    spread: Spread


@dataclass(frozen=True)
class Verdict:
    """What a method does to the clients, against training alone; over all seeds, in fractions."""

    label: str
    gains: tuple[float, ...]

    @property
    def better(self) -> int:
        return sum(gain > 0 for gain in self.gains)

    @property
    def worse(self) -> int:
        return sum(gain < 0 for gain in self.gains)

    @property
    def same(self) -> int:
        return len(self.gains) - self.better - self.worse

    @property
    def mean(self) -> float:
        return statistics.fmean(self.gains)


@dataclass(frozen=True, eq=False)
class Study:
    """Runs on the same data with the same model and training: methods and seeds differ, nothing else."""

    config: RunConfig
    runs: dict[str, dict[int, Finished]]

    @property
    def seeds(self) -> tuple[int, ...]:
        return tuple(sorted({seed for each in self.runs.values() for seed in each}))

    @property
    def clients(self) -> int:
        return self.config.clients

    @property
    def title(self) -> str:
        config = self.config
        return f"{config.dataset}, {self.clients} clients, {config.partition}, {config.model}, {config.rounds} rounds"

    def any_run(self, seed: int) -> Finished:
        """Some run with this seed: what does not depend on the method can be read from it."""
        return next(each[seed] for each in self.runs.values() if seed in each)

    def rows(self) -> list[Row]:
        """The table of methods, as a comparison has it."""
        return rows({label: [each[seed].result for seed in sorted(each)] for label, each in self.runs.items()})

    def accuracies(self, label: str, seed: int) -> list[float]:
        """Every client's last accuracy at the method's own point."""
        result = self.runs[label][seed].result
        return last_accuracies(result, result["headline"])

    def benefit(self, label: str, seed: int) -> list[float] | None:
        """What each client gains over training alone, where there is a run of Local to compare with."""
        alone = self.runs.get("local", {}).get(seed)
        return None if alone is None or label == "local" else benefits(self.runs[label][seed].result, alone.result)

    def verdicts(self) -> list[Verdict]:
        """Whom each method helps; the method that helps most first."""
        found = []
        for label, each in self.runs.items():
            known = [gains for seed in sorted(each) if (gains := self.benefit(label, seed)) is not None]
            if known:
                found.append(Verdict(label, tuple(gain for gains in known for gain in gains)))
        return sorted(found, key=lambda verdict: -verdict.mean)

    def curve(self, label: str, point: Point, figure: str) -> list[Value]:
        """Accuracy after each round in which all seeds were evaluated."""
        each = [
            {r["round"]: r[point][figure] for r in run.result["rounds"] if r.get(point, {}).get(figure) is not None}
            for run in self.runs[label].values()
        ]
        common = sorted(set.intersection(*map(set, each)))
        return [Value(number, Spread.of([values[number] for values in each])) for number in common]

    def traffic(self, label: str) -> dict[int, float]:
        """MiB that one client has sent and received up to each round, on average over clients and seeds."""
        totals: dict[int, list[float]] = {}
        for run in self.runs[label].values():
            so_far = 0.0
            for record in run.result["rounds"]:
                so_far += (record["bytes_up"] + record["bytes_down"]) / self.clients / MIB
                totals.setdefault(record["round"], []).append(so_far)
        return {number: statistics.fmean(values) for number, values in totals.items()}

    def starred(self, label: str) -> str:
        """The label, marked if the method is a reconstruction."""
        first = next(iter(self.runs[label].values()))
        return label + ("*" if first.result["reconstruction"] else "")


def studies(finished: Iterable[Finished]) -> list[Study]:
    """Group runs by their setting; the references come first in each study."""
    groups: dict[str, Study] = {}
    for run in finished:
        setting = run.config.model_copy(update={name: _DEFAULTS[name] for name in _NOT_THE_SETTING})
        study = groups.setdefault(setting.model_dump_json(), Study(run.config, {}))
        study.runs.setdefault(run.label, {})[run.config.seed] = run
    for study in groups.values():
        order = sorted(study.runs, key=lambda label: REFERENCES.index(label) if label in REFERENCES else 99)
        moved = {label: study.runs[label] for label in order}
        study.runs.clear()
        study.runs.update(moved)
    return list(groups.values())


_DEFAULTS: dict[str, Any] = {
    name: field.get_default(call_default_factory=True) for name, field in RunConfig.model_fields.items()
}
