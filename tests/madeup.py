"""Results written by hand, for tests that work figures out by hand."""

from collections.abc import Sequence
from typing import Any

from fedgraft.runs.comparison import Comparison, Reading
from fedgraft.runs.config import configure
from fedgraft.runs.metric import ACCURACY, MetricInfo
from fedgraft.runs.reading import Finished, gather
from fedgraft.runs.resultfile import Result

MIB = 1024 * 1024
RMSE = MetricInfo(name="rmse", title="RMSE", higher=False, percent=False, low=0.0)
AUC = MetricInfo(name="auc", title="AUC", higher=True, percent=True, low=0.0, high=1.0)

Own = Sequence[float | None]


def figures(values: Own, **more: Any) -> dict[str, Any]:
    """The figures of one metric: the pooled one is the first client's."""
    known = [value for value in values if value is not None]
    mean = sum(known) / len(known) if known else None
    return {"mean": mean, "pooled": known[0] if known else None, "per_client": list(values)} | more


def at_point(values: Own | dict[str, Own], metrics: Sequence[MetricInfo] = (ACCURACY,)) -> dict[str, Any]:
    """What all clients reach at one point: by one metric, or by each of several."""
    by_name = values if isinstance(values, dict) else {metrics[0].name: values}
    return {"metrics": {name: figures(each) for name, each in by_name.items()}}


def record(number: int, received: Any, trained: Any, metrics: Sequence[MetricInfo] = (ACCURACY,), **more: Any) -> Any:
    """A round in which every client sends one MiB and receives two."""
    clients = len(next(iter(at_point(trained, metrics)["metrics"].values()))["per_client"])
    points = {"received": at_point(received, metrics), "trained": at_point(trained, metrics)}
    return {"round": number, "bytes_up": clients * MIB, "bytes_down": 2 * clients * MIB, "accepted": 1} | points | more


def result(
    received: Any,
    trained: Any,
    *,
    seed: int = 0,
    headline: str = "trained",
    metrics: Sequence[MetricInfo] = (ACCURACY,),
    rounds: Sequence[Any] | None = None,
    **more: Any,
) -> Result:
    """The result of a run of one round, or of ``rounds``."""
    written = list(rounds) if rounds is not None else [record(1, received, trained, metrics)]
    last = {"received": at_point(received, metrics)["metrics"], "trained": at_point(trained, metrics)["metrics"]}
    clients = len(last["trained"][metrics[0].name]["per_client"])
    nothing = {"mean": None, "pooled": None}
    return Result.model_validate({
        "format": 2, "method": "made", "params": {}, "reconstruction": False, "headline": headline, "seed": seed,
        "task": "made", "metrics": [metric.model_dump() for metric in metrics], "clients": clients, "seconds": 1.0,
        "versions": {}, "bytes_up_per_client": MIB, "bytes_down_per_client": 2 * MIB, "samples": [7] * clients,
        "label_counts": [[1 + seed]] * clients, "rounds": written, "last": last,
        "best": {"chosen_on": "test", "received": nothing, "trained": nothing},
    } | more)  # fmt: skip


def finished(label: str, facts: Result, observed: dict[str, Any] | None = None, **settings: Any) -> Finished:
    """A run that left this result."""
    told = {"method": label.partition(":")[0], "clients": facts.clients, "rounds": len(facts.rounds)}
    return Finished(label, configure({**told, "seed": facts.seed, **settings}), facts, observed or {})


def reading(*runs: Finished, notes: Sequence[str] = ()) -> Reading:
    """What a report is made of."""
    return gather(runs, notes)


def compared(results: dict[str, list[Result]], **settings: Any) -> Comparison[Finished]:
    """The comparison of these."""
    runs = [finished(label, each, **settings) for label, several in results.items() for each in several]
    return reading(*runs).comparisons[0]
