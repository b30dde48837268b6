"""What differential privacy costs: accuracy by epsilon, and the time of a step.

python -m benchmarks.privacy accuracy docs/results/privacy.json     # goes on where it was interrupted
python -m benchmarks.privacy steps
"""

import json
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

import fedgraft as fg
from fedgraft import kernels, models
from fedgraft.core.gradients import Separate
from fedgraft.core.model import Architecture, Model
from fedgraft.core.noise import Noising
from fedgraft.data.datasets import load
from fedgraft.engines.workshop import single_thread

METHODS = ("local", "fedavg", "fedper", "ditto", "fedapa")
EPSILONS = (1.0, 2.0, 4.0, 8.0, None)
SEEDS = (0, 1, 2)
SCALE: dict[str, Any] = {
    "clients": 20, "partition": "dirichlet:0.1", "model": "mlp:32", "rounds": 6,
    "epochs": 1.0, "batch_size": 100, "lr": 0.3, "momentum": 0.0, "evaluate_every": 6, "workers": 1,
}  # fmt: skip
UNNOISED = 0.05
"""The rate of training without noise, which is unsteady at 0.3; clipping keeps private training steady there."""
SAMPLES = 10_000
"""Training images of Fashion-MNIST that are used, a sixth of them."""


def smaller(folder: Path) -> Path:
    """Fashion-MNIST with the first of its training images."""
    whole = load("fashion-mnist")
    train: dict[str, Any] = {"x_train": whole.x_train[:SAMPLES], "y_train": whole.y_train[:SAMPLES]}
    np.savez(path := folder / "fashion-mnist-part.npz", **train, x_test=whole.x_test, y_test=whole.y_test)
    return path


def accuracy(out: Path) -> None:
    """Every method at every epsilon and seed; what is in the file already is not done again."""
    done: dict[str, Any] = json.loads(out.read_text()) if out.exists() else {"settings": SCALE, "runs": []}
    known = {(each["method"], each["epsilon"], each["seed"]) for each in done["runs"]}
    with tempfile.TemporaryDirectory() as folder:
        dataset = str(smaller(Path(folder)))
        for seed in SEEDS:
            for epsilon in EPSILONS:
                for method in METHODS:
                    if (method, epsilon, seed) in known or (method == "local" and epsilon is not None):
                        continue  # nothing leaves with local, so nothing is noised
                    private = {"lr": UNNOISED} if epsilon is None else {"epsilon": epsilon, "delta": 1e-5}
                    called = f"ditto:personal_lr={UNNOISED}" if method == "ditto" else method
                    run = fg.run(called, dataset=dataset, seed=seed, progress=False, **{**SCALE, **private})
                    facts = run.facts
                    figures = {point: facts.last.figures(point, "accuracy") for point in ("received", "trained")}
                    budget = run.spec.budget
                    done["runs"].append({
                        "method": method, "epsilon": epsilon, "seed": seed, "headline": facts.headline,
                        **{point: None if found is None else found.mean for point, found in figures.items()},
                        "noise": None if budget is None else statistics.median(budget.noises),
                        "spent": None if budget is None else max(map(budget.spent, range(run.spec.clients))),
                        "seconds": facts.seconds,
                    })  # fmt: skip
                    out.write_text(json.dumps(done, indent=1) + "\n")
                    print(done["runs"][-1], flush=True)


# ---- the time of a step


def ours(model: Model, x: Tensor, y: Tensor) -> Callable[[], object]:
    rng = np.random.default_rng(0)
    noising = Noising(1.0, 1.0, 0.1, len(y), 10**9, rng, rng)
    separate = Separate(model, model.layout.span("all"), _loss)
    return lambda: noising.gradient(separate, x, y)


def by_copies(model: Model, x: Tensor, y: Tensor) -> Callable[[], object]:
    """torch.func alone: a copy of the parameters for each sample."""
    separate = Separate(model, model.layout.span("all"), _loss)
    return lambda: separate._by_copies(x, y, 1.0)


def by_opacus(build: Callable[[], nn.Module], x: Tensor, y: Tensor) -> Callable[[], object]:
    from opacus.grad_sample import GradSampleModule

    module = GradSampleModule(build(), loss_reduction="mean")
    parameters = list(module.parameters())

    def step() -> Tensor:
        for parameter in parameters:
            parameter.grad_sample = None
        functional.cross_entropy(module(x), y).backward()
        rows = [parameter.grad_sample.flatten(1) for parameter in parameters]
        norms = torch.stack([row.norm(dim=1) for row in rows]).norm(dim=0)
        scale = (1 / norms).clamp(max=1.0)
        total = torch.cat([scale @ row for row in rows])
        return total + torch.randn_like(total)

    return step


def _loss(model: Model, x: Tensor, y: Tensor) -> Tensor:
    return functional.cross_entropy(model(x), y)


def _gradient(model: Model, x: Tensor, y: Tensor) -> object:
    return model.differentiate(_loss(model, x, y))


def _native(build: Callable[[], nn.Module]) -> nn.Module:
    return kernels.accelerate(build()).module


def steps(batch: int = 64) -> dict[str, dict[str, float]]:
    """Milliseconds of the processor for one gradient, in turns; other people's load does not count."""
    found: dict[str, dict[str, float]] = {}
    for name, shape in (("lenet5", (1, 28, 28)), ("mlp:200-200", (784,))):
        build = models.builder(name, shape, 10)
        x, y = torch.randn(batch, *shape), torch.randint(0, 10, (batch,))
        network = Architecture(partial(_native, build), x[:2], "head", name)
        plain, torchs = network.model().train_on(batch), Architecture(build, x[:2], "head", name).model()
        contest: dict[str, Callable[[], object]] = {
            "plain": partial(_gradient, plain, x, y),
            "plain, PyTorch's kernels": partial(_gradient, torchs, x, y),
            "private": ours(network.model().train_on(batch), x, y),
            "private, torch.func alone": by_copies(network.model().train_on(batch), x, y),
            "private, Opacus": by_opacus(build, x, y),
        }
        for step in contest.values():
            step()
        times: dict[str, list[float]] = {label: [] for label in contest}
        for _ in range(30):
            for label, step in contest.items():
                started = time.process_time()
                step()
                times[label].append(1e3 * (time.process_time() - started))
        found[name] = {label: round(statistics.median(each), 2) for label, each in times.items()}
    return found


if __name__ == "__main__":
    if sys.argv[1:2] == ["accuracy"]:
        accuracy(Path(sys.argv[2]))
    else:
        with single_thread():
            print(json.dumps(steps(), indent=1))
