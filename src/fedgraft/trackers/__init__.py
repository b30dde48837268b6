"""Trackers: watchers of a run that tell TensorBoard or MLflow what happens in it.

    with tracker("tensorboard") as watcher:
        fedgraft.run("fedapa", out="runs/mine", watchers=[watcher])

Each gets the metrics of every round, the hyper-parameters, the matrices as images, and the report.
"""

from collections.abc import Mapping
from typing import Any, Protocol, Self

from fedgraft.base.errors import UserError, unknown
from fedgraft.runs.results import FIGURES
from fedgraft.runs.run import Run, Watcher

KINDS = ("tensorboard", "mlflow")


class Tracker(Watcher, Protocol):
    """A watcher that has something to close; a run that breaks off is closed as failed."""

    def __enter__(self) -> Self: ...

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None: ...


def tracker(kind: str) -> Tracker:
    """Make a tracker by name, with its own defaults."""
    if kind not in KINDS:
        raise unknown("tracker", kind, KINDS)
    try:
        if kind == "tensorboard":
            from fedgraft.trackers.tensorboard import TensorBoard

            return TensorBoard()
        from fedgraft.trackers.mlflow import MLflow

        return MLflow()
    except ImportError as error:
        raise UserError(
            f"{kind} is not installed ({error}): pip install '.[{kind}]' in a checkout of fedgraft"
        ) from None


def metrics(record: Mapping[str, Any]) -> dict[str, float]:
    """The numbers of a round, with names that every tracker takes: ``trained/accuracy/mean`` and the like."""
    found = {name: record[name] for name in ("loss", "bytes_up", "bytes_down", "seconds")}
    found["refused"] = len(record["refused"])
    for point, test in record.items():
        if isinstance(test, Mapping) and "metrics" in test:
            for metric, figures in test["metrics"].items():
                found |= {f"{point}/{metric}/{figure}": figures[figure] for figure in FIGURES}
            found[f"{point}/diverged"] = len(test.get("diverged", ()))
    return {name: float(value) for name, value in found.items() if value is not None}


def parameters(run: Run) -> dict[str, Any]:
    """The settings and hyper-parameters of a run by name."""
    config = run.config.model_dump(exclude={"params", "training"}) | run.config.training.model_dump()
    return {**config, **{f"param/{name}": value for name, value in run.config.params.items()}}
