"""Trackers: watchers of a run that tell TensorBoard or MLflow what happens in it.

    with tracker("tensorboard") as watcher:
        fedgraft.run("fedapa", out="runs/mine", watchers=[watcher])

A tracker of one's own is any class with ``begin``, ``round`` and ``end``; if it is a context manager, it is closed too.
Each gets the metrics of every round, the hyper-parameters, the matrices as images, and the report.
"""

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from fedgraft.base.errors import UserError
from fedgraft.base.registry import Registry

if TYPE_CHECKING:  # a misspelt tracker does not wait for torch
    from fedgraft.runs.run import Run

TRACKERS: Registry[Any] = Registry("tracker", __name__, group="fedgraft.trackers")


def tracker(text: str) -> Any:
    """Make a tracker by name (``mlflow``, ``mlflow:experiment=mine``), or one of your own by reference."""
    name, _ = TRACKERS.split(text)
    try:
        made = TRACKERS.make(text)
    except ImportError as error:
        raise UserError(f"{name} is not installed ({error}): pip install 'fedgraft[{name}]'") from None
    for hook in ("begin", "round", "end"):
        if not callable(getattr(made, hook, None)):
            raise UserError(f"{name!r} is not a tracker: it has no {hook}()")
    return made


def metrics(record: Mapping[str, Any]) -> dict[str, float]:
    """The numbers of a round, with names that every tracker takes: ``trained/accuracy/mean`` and the like."""
    found = {name: record[name] for name in ("loss", "bytes_up", "bytes_down", "seconds")}
    found["refused"] = len(record["refused"])
    for point, test in record.items():
        if isinstance(test, Mapping) and "metrics" in test:
            for metric, figures in test["metrics"].items():
                name = re.sub(r"[^\w. -]", "_", metric, flags=re.ASCII)  # one's own may be called anything
                found |= {f"{point}/{name}/{figure}": figures[figure] for figure in ("mean", "pooled")}
            found[f"{point}/diverged"] = len(test.get("diverged", ()))
    return {name: float(value) for name, value in found.items() if value is not None}


def parameters(run: "Run") -> dict[str, Any]:
    """The settings and hyper-parameters of a run by name."""
    config = run.config.model_dump(exclude={"params", "training"}) | run.config.training.model_dump()
    return {**config, **{f"param/{name}": value for name, value in run.config.params.items()}}
