"""Has anything been learned? What the training loss says, and what to try; and which rates a race begins with."""

import math
import statistics
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from fedgraft.data.federation import Federation
from fedgraft.runs.config import RunConfig
from fedgraft.runs.resultfile import Result

HARDLY = 0.95
"""Of the first round's training loss: whoever ends above it has hardly learned."""
ASTRAY = 100
"""Times the first round's training loss: whoever was above it took steps that are too long."""
FACTORS = (1.0, 5.0, 0.2)
"""By which the usual rate is multiplied, where a race looks for one."""
FEW_STEPS, SMALL = 10, 8
"""Steps in a round below which smaller batches are tried, and how small these are."""


def doubts(results: Mapping[str, Sequence[Result]]) -> Iterator[str]:
    """Say which methods have hardly learned, and which went astray, with what to try."""
    curves = {label: [[r.loss for r in each.rounds] for each in several] for label, several in results.items()}
    known = {label: [_known(curve) for curve in each] for label, each in curves.items()}
    if idle := [label for label, each in known.items() if each and all(map(_hardly, each))]:
        first, *_, last = known[idle[0]][0]
        yield (
            f"Hardly anything was learned by {', '.join(idle)}: the training loss went from {first:.3g} to {last:.3g}. "
            "Try a larger --lr, a smaller --batch-size, or more --epochs or --rounds."
        )
    if wild := [label for label, each in known.items() if any(map(_astray, each))]:
        curve = next(filter(_astray, known[wild[0]]))
        yield (
            f"Steps were too long for some clients of {', '.join(wild)}: the training loss went from {curve[0]:.3g} "
            f"up to {max(curve):.3g}. Try a smaller --lr, or --clip-norm 1."
        )


def _known(curve: Sequence[float | None]) -> list[float]:
    return [value for value in curve if value is not None and math.isfinite(value)]


def _hardly(curve: Sequence[float]) -> bool:
    return len(curve) > 1 and 0 < HARDLY * curve[0] < curve[-1]


def _astray(curve: Sequence[float]) -> bool:
    return len(curve) > 1 and max(curve) > ASTRAY * abs(curve[0])


def rates(config: RunConfig, fed: Federation) -> list[dict[str, Any]]:
    """Name the settings of local training that a race begins with, the usual ones first; none if somebody chose.

    Where the sites' batches are few, the number of steps is what is missing, and smaller batches are tried too.
    """
    usual = config.training
    if usual.model_fields_set & {"lr", "optimizer", "epsilon", "noise"}:
        return []
    samples = statistics.median(len(client.train) for client in fed.clients)
    steps = usual.steps or usual.epochs * math.ceil(samples / usual.batch_size)
    lrs = [float(f"{usual.lr * factor:.3g}") for factor in FACTORS]
    if usual.model_fields_set & {"batch_size", "steps"} or steps >= FEW_STEPS or usual.batch_size <= SMALL:
        return [{"lr": lr} for lr in lrs]
    return [
        *({"lr": lr, "batch_size": size} for size in (usual.batch_size, SMALL) for lr in lrs[:2]),
        {"lr": lrs[2], "batch_size": SMALL},
    ]


def flags(settings: Mapping[str, Any]) -> str:
    """Settings as they are typed."""
    return " ".join(f"--{name.replace('_', '-')} {value:g}" for name, value in settings.items())
