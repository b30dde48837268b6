"""The answer for each client in a sentence: what it has alone, what with the others, and how sure that is."""

import statistics
from collections.abc import Iterator, Sequence
from typing import Any

from fedgraft.data.partition import steady
from fedgraft.runs.comparison import Comparison
from fedgraft.runs.config import AT, At
from fedgraft.runs.metric import MetricInfo
from fedgraft.runs.table import Gain


def by_client(comparison: Comparison[Any], at: At = AT[0], metric: str | None = None) -> list[str]:
    """Say for each client whether joining pays, with the method that is best for the clients on average.

    Seeds are averaged where a client is the same one in all of them, a site; elsewhere it is the first seed's. The
    interval is that of one seed's test samples: another split tests on many of the same.
    """
    verdicts = comparison.verdicts(at, metric)
    if not verdicts:
        return ["There is no run of local to compare the clients with."]
    best, info = verdicts[0], comparison.metric(metric)
    config = comparison.config
    same = steady(config.partition) and (config.hold_out is None or config.data_seed is not None)
    seeds = comparison.seeds if same else comparison.seeds[:1]
    over = f", mean of {len(seeds)} seeds" if len(seeds) > 1 else f", seed {seeds[0]}"
    sure = "; 95 % interval of one seed's test" if info.counted else ""
    head = f"Does joining pay? {best.label} against training alone, {info.title}{over}{sure}"
    return [head, *_sentences(comparison, best.label, seeds, at, info)]


def _sentences(
    comparison: Comparison[Any], label: str, seeds: Sequence[int], at: At, metric: MetricInfo
) -> Iterator[str]:
    ours, alone = ([comparison.values(each, seed, at, metric.name) for seed in seeds] for each in (label, "local"))
    gains = [comparison.gains(label, seed, at, metric.name) or [] for seed in seeds]
    for client, name in enumerate(comparison.names(seeds[0])):
        pairs = [(one[client], two[client]) for one, two in zip(ours, alone, strict=True)]
        known = [(one, two) for one, two in pairs if one is not None and two is not None]
        if not known:
            yield f"{name} was not tested."
            continue
        means = [statistics.fmean(values) for values in zip(*known, strict=True)]
        tested = [gain.samples or 0 for each in gains for gain in each[client : client + 1] if gain is not None]
        gain = Gain.of(metric, means[0], means[1], min(tested, default=0))
        assert gain is not None
        figures = f"{metric.shown(means[0])}{metric.unit}, alone {metric.shown(means[1])}{metric.unit}"
        yield f"{name}: {figures}: {metric.difference(gain.value)}{_sure(metric, gain)}."


def _sure(metric: MetricInfo, gain: Gain) -> str:
    if gain.interval is None:
        return ""
    low, high = gain.interval
    meaning = "joining pays" if low > 0 else "better off alone" if high < 0 else "too close to tell"
    return f" ({metric.difference(low)} to {metric.difference(high)}), {meaning}"
