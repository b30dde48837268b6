"""What differential privacy costs, and what it hides: accuracy by epsilon, attacks by epsilon, the time of a step.

python -m benchmarks.privacy accuracy docs/results/privacy.json              # goes on where it was interrupted
python -m benchmarks.privacy accuracy docs/results/privacy.json fedavg-ft    # these methods only
python -m benchmarks.privacy attacks docs/results/attacks.json               # what an audit finds; goes on, too
python -m benchmarks.privacy steps
"""

import json
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

import fedgraft as fg
from benchmarks.machine import facts as machine
from fedgraft import kernels, models
from fedgraft.audit.auditing import audit
from fedgraft.core.gradients import Separate
from fedgraft.core.model import Architecture, Model
from fedgraft.core.noise import Noising
from fedgraft.data.datasets import load
from fedgraft.engines.workshop import single_thread
from fedgraft.runs.resultfile import Set

# ---- accuracy by epsilon

POINTS = ("received", "trained")
ROWS = {
    "local": ("trained",), "fedavg": POINTS, "fedper": ("trained",), "ditto": ("trained",), "fedapa": ("trained",),
    "fedavg-ft": ("received",),
}  # fmt: skip
"""The models that are judged: as received, or as the last training left them (fedavg-ft tunes what it received)."""
BESIDE = {"ditto": "personal_lr", "fedavg-ft": "fine_tune_lr"}
"""Trainings whose result never leaves, and is not noised: they have the rate that is best for training alone."""
EPSILONS = (None, 1.0, 8.0, 2.0, 4.0)
RATES = (0.05, 0.1, 0.3, 1.0)
SEARCHED = 100
"""The draw on which rates are chosen, by validation data; none of those that are reported."""
VALIDATION = 0.2
SEEDS = (0, 1, 2)
PRIVATE = {"delta": 1e-5, "sample_clip": 1.0}
SCALE: dict[str, Any] = {
    "model": "mlp:32", "rounds": 6, "epochs": 1.0, "batch_size": 100, "momentum": 0.0, "evaluate_every": 6,
    "workers": 1,
}  # fmt: skip
SPLIT: dict[str, Any] = {"clients": 20, "partition": "dirichlet:0.1"}
SAMPLES = 10_000
"""Training images of Fashion-MNIST that are used, a sixth of them."""


def smaller(folder: Path, train: int = SAMPLES, test: int | None = None) -> Path:
    """Fashion-MNIST with the first of its training images, and with the first of its test images."""
    whole = load("fashion-mnist")
    part: dict[str, Any] = {"x_train": whole.x_train[:train], "y_train": whole.y_train[:train]}
    part |= {"x_test": whole.x_test[:test], "y_test": whole.y_test[:test]}
    np.savez(path := folder / "fashion-mnist-part.npz", **part)
    return path


@dataclass
class Table:
    """Accuracy by method and epsilon: what was searched and measured so far, kept in a file after every run."""

    out: Path
    dataset: str
    told: dict[str, Any] = field(init=False)

    def __post_init__(self) -> None:
        settings = {**SPLIT, **SCALE, "samples": SAMPLES, **PRIVATE, "rates": RATES, "validation": VALIDATION}
        begun = {"settings": settings, "machine": machine(), "search": [], "runs": []}
        self.told = json.loads(self.out.read_text("utf-8")) if self.out.exists() else begun

    def fill(self, methods: Sequence[str]) -> None:
        """Column by column: choose the rates first, then measure."""
        for epsilon in EPSILONS:
            there = [method for method in methods if epsilon in columns(method)]
            for method in there:
                for rate in RATES:
                    self.once("search", method, epsilon, rate, SEARCHED)
            for seed in SEEDS:
                for method in there:
                    for rate in sorted({chosen(self.told, method, epsilon, point) for point in ROWS[method]}):
                        self.once("runs", method, epsilon, rate, seed)

    def once(self, part: str, method: str, epsilon: float | None, rate: float, seed: int) -> None:
        """Do a run, unless it is in the file."""
        key: dict[str, Any] = {"method": method, "epsilon": epsilon, "lr": rate, "seed": seed}
        if any(key.items() <= each.items() for each in self.told[part]):
            return
        started = time.process_time()
        figures = self.figures(**key, blind=part == "search")
        self.told[part].append({**key, **figures, "seconds": round(time.process_time() - started, 1)})
        self.out.write_text(json.dumps(self.told, indent=1) + "\n", "utf-8")
        print(part, self.told[part][-1], flush=True)

    def figures(self, method: str, epsilon: float | None, lr: float, seed: int, *, blind: bool) -> dict[str, Any]:
        """The mean over clients at each point, on test data, or on validation data where test data are not there."""
        fed = fg.federate(self.dataset, seed=seed, validation=VALIDATION if blind else 0.0, **SPLIT)
        which: Set = "_validation" if blind else ""
        if beside := BESIDE.get(method):
            method = f"{method}:{beside}={chosen(self.told, 'local', None, 'trained')}"
        private = {} if epsilon is None else {"epsilon": epsilon, **PRIVATE}
        there = fed.without_test() if blind else fed
        run = fg.run(method, there, seed=seed, lr=lr, progress=False, **SCALE, **private)
        found = {point: run.facts.rounds[-1].figures(point, "accuracy", which) for point in POINTS}
        budget = run.spec.budget
        spent = None if budget is None else max(map(budget.spent, range(run.spec.clients)))
        return {**{point: None if each is None else each.mean for point, each in found.items()}, "spent": spent}


def columns(method: str) -> Sequence[float | None]:
    """The budgets that make a difference: with local nothing leaves, so nothing is noised."""
    return (None,) if method == "local" else EPSILONS


def chosen(told: dict[str, Any], method: str, epsilon: float | None, point: str) -> float:
    """The rate that is best on the validation data of the searched draw; the smaller one, if two are."""
    there = [run for run in told["search"] if (run["method"], run["epsilon"]) == (method, epsilon)]
    known = [(run[point], -run["lr"]) for run in there if run[point] is not None]
    if len(there) < len(told["settings"]["rates"]) or not known:
        raise SystemExit(f"the rate of {method} is not searched yet: name it too, before the others")
    return -max(known)[1]


def accuracy(out: Path, methods: Sequence[str]) -> None:
    """Every method at every epsilon and seed; what is in the file already is not done again."""
    with tempfile.TemporaryDirectory() as folder, single_thread():
        Table(out, str(smaller(Path(folder)))).fill(methods or list(ROWS))


# ---- what attacks find

ATTACKED = ("fedavg", "fedper", "fedapa")
BUDGETS = (None, 8.0, 1.0)
SHADOWS = 8
LEARNED: dict[str, Any] = {
    "clients": 10, "partition": "dirichlet:1", "model": "mlp:32", "rounds": 3, "epochs": 10.0, "batch_size": 50,
    "lr": 0.1, "momentum": 0.9, "evaluate_every": 3, "workers": 1,
}  # fmt: skip
"""Few samples, seen often: what is learned by heart can be found."""
FEW = 1000


def attacks(out: Path) -> None:
    """Audit methods with and without privacy; what is in the file already is not done again."""
    settings = {**LEARNED, **PRIVATE, "samples": FEW, "shadows": SHADOWS}
    begun: dict[str, Any] = {"settings": settings, "machine": machine(), "audits": []}
    told: dict[str, Any] = json.loads(out.read_text("utf-8")) if out.exists() else begun
    for epsilon in BUDGETS:
        for method in ATTACKED:
            if any((each["method"], each["budget"]) == (method, epsilon) for each in told["audits"]):
                continue
            told["audits"].append({"budget": epsilon, **_attacked(method, epsilon)})
            out.write_text(json.dumps(told, indent=1) + "\n", "utf-8")
            print(told["audits"][-1], flush=True)


def _attacked(method: str, epsilon: float | None) -> dict[str, Any]:
    private = {} if epsilon is None else {"epsilon": epsilon, **PRIVATE}
    with tempfile.TemporaryDirectory() as folder, single_thread():
        place, dataset = Path(folder) / "run", str(smaller(Path(folder), FEW, FEW))
        run = fg.run(method, dataset=dataset, out=place, seed=0, progress=False, **LEARNED, **private)
        figures = run.facts.last.figures("trained", "accuracy")
        found = audit(place, shadows=SHADOWS).facts()
        return {"accuracy": None if figures is None else figures.mean, **found}


# ---- the time of a step


def ours(model: Model, x: Tensor, y: Tensor) -> Callable[[], object]:
    rng = np.random.default_rng(0)
    noising = Noising(1.0, 1.0, 0.1, len(y), 10**9, rng, rng)
    separate = Separate(model, model.layout.span("all"), _loss)
    return lambda: noising.gradient(separate, x, y)


def parts(model: Model, x: Tensor, y: Tensor) -> dict[str, Callable[[], object]]:
    """What a private step spends its time on: the rest of it is clipping and adding up."""
    rng, separate = np.random.default_rng(0), Separate(model, model.layout.span("all"), _loss)
    separate.clipped(x, y, 1.0)
    return {
        "of it both passes": lambda: separate._passes(x, y),
        "of it noise": lambda: rng.standard_normal(model.layout.trained, dtype=np.float32),
    }


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
            **parts(network.model().train_on(batch), x, y),
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
        accuracy(Path(sys.argv[2]), sys.argv[3:])
    elif sys.argv[1:2] == ["attacks"]:
        attacks(Path(sys.argv[2]))
    else:
        with single_thread():
            print(json.dumps(steps(), indent=1))
