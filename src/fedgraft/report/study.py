"""Group runs that may be compared, and work out what the pictures show."""

import statistics
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from itertools import chain
from typing import Any, NamedTuple

from fedgraft.core.evaluation import Point
from fedgraft.report.reading import Finished
from fedgraft.runs.compare import REFERENCES
from fedgraft.runs.config import AT, MACHINE, At, RunConfig
from fedgraft.runs.statistics import Difference, Interval, between_shares, net_samples, wilson
from fedgraft.runs.table import (
    Pair,
    Row,
    Spread,
    benefits,
    differences,
    last_accuracies,
    measured,
    names,
    pairs,
    rows,
    stale,
)

MIB = 1024 * 1024
_NOT_THE_SETTING = MACHINE | {"method", "params", "seed", "evaluate_every", "global_test"}


class Value(NamedTuple):
    """A figure after a round, over seeds."""

    round: int
    spread: Spread


class Gain(NamedTuple):
    """What a client gains over training alone, how sure that is, and how many of its test samples make it up."""

    value: float
    interval: Interval | None
    net: int | None
    samples: int | None

    @classmethod
    def of(cls, accuracy: float | None, alone: float | None, samples: int | None) -> "Gain | None":
        if accuracy is None or alone is None:
            return None
        value = accuracy - alone
        if not samples:
            return cls(value, None, None, None)
        return cls(value, between_shares(accuracy, alone, samples), net_samples(value, samples), samples)


@dataclass(frozen=True)
class Verdict:
    """What a method does to the clients, against training alone; over all seeds, in fractions."""

    label: str
    point: Point
    gains: tuple[float, ...]
    """A client that has the same data in all seeds counts once."""
    difference: Difference

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
        return self.difference.mean

    @property
    def answer(self) -> str:
        """Whether federation helped, in a few words."""
        if self.difference.too_few:
            return "Too few clients to tell."
        if not self.difference.more_than_noise:
            return "Not more than chance."
        if self.difference.mean < 0:
            return "No, clients lose."
        return "Yes, most clients." if self.difference.most_gain else "Yes, some clients."


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

    @property
    def results(self) -> dict[str, list[Mapping[str, Any]]]:
        """The results of each method, seed by seed."""
        return {label: [each[seed].result for seed in sorted(each)] for label, each in self.runs.items()}

    def names(self, seed: int) -> list[str]:
        """The clients by name."""
        return names(self.any_run(seed).result)

    def rows(self, at: At = AT[0]) -> list[Row]:
        """The table of methods, as a comparison has it."""
        return rows(self.results, at)

    def pairs(self, at: At = AT[0], *, with_best: bool = False) -> list[Pair]:
        """Every two methods against each other, client by client."""
        return pairs(self.results, at, with_best=with_best)

    def accuracies(self, label: str, seed: int, at: At = AT[0]) -> list[float | None]:
        """Every client's last accuracy; none of one that never was tested."""
        result = self.runs[label][seed].result
        return last_accuracies(result, measured(result, at))

    def intervals(self, label: str, seed: int, at: At = AT[0]) -> list[Interval | None]:
        """How sure every client's accuracy is, where it is known of how many test samples it is."""
        counts = self._test_samples(label, seed)
        return [
            None if accuracy is None or count is None else wilson(accuracy, count)
            for accuracy, count in zip(self.accuracies(label, seed, at), counts, strict=True)
        ]

    def stale(self, label: str, seed: int, at: At = AT[0]) -> dict[int, int]:
        """Clients whose last accuracy is that of an earlier round than the others', and which."""
        result = self.runs[label][seed].result
        return stale(result, measured(result, at))

    def benefit(self, label: str, seed: int, at: At = AT[0]) -> list[float | None] | None:
        """What each client gains over training alone, where there is a run of Local to compare with."""
        alone = self.runs.get("local", {}).get(seed)
        return None if alone is None or label == "local" else benefits(self.runs[label][seed].result, alone.result, at)

    def gains(self, label: str, seed: int, at: At = AT[0]) -> list[Gain | None] | None:
        """The same with what is known of how sure each gain is."""
        if self.benefit(label, seed, at) is None:
            return None
        ours, alone = self.accuracies(label, seed, at), self.accuracies("local", seed, at)
        counts = self._test_samples(label, seed)
        return [Gain.of(*each) for each in zip(ours, alone, counts, strict=True)]

    def verdicts(self, at: At = AT[0]) -> list[Verdict]:
        """Whom each method helps; the method that helps most first."""
        results, found = self.results, []
        for row in self.rows(at):
            if row.difference is not None:
                gains = tuple(chain(*differences(results[row.method], results["local"], at)))
                found.append(Verdict(row.method, row.point, gains, row.difference))
        return sorted(found, key=lambda verdict: -verdict.mean)

    def _test_samples(self, label: str, seed: int) -> list[int | None]:
        """How many test samples each client has; runs of an older version do not say."""
        return list(self.runs[label][seed].result.get("test_samples") or [None] * self.clients)

    def curve(self, label: str, part: str, figure: str) -> list[Value]:
        """A figure after each round in which all seeds have it; ``part`` is a point, or one on other samples."""
        return self._over_seeds(label, lambda record: (record.get(part) or {}).get(figure))

    def training_loss(self, label: str) -> list[Value]:
        """What was left of the loss in each round's training."""
        return self._over_seeds(label, lambda record: record.get("loss"))

    def _over_seeds(self, label: str, read: Callable[[Mapping[str, Any]], float | None]) -> list[Value]:
        each = [
            {record["round"]: value for record in run.result["rounds"] if (value := read(record)) is not None}
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
