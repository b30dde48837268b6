"""Write a client's own model for use without fedgraft: a graph, its weights, what goes in and out, and a card."""

import json
import shutil
import warnings
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor, nn

from fedgraft.base import disk
from fedgraft.base.errors import UserError
from fedgraft.core.evaluation import Point
from fedgraft.core.samples import ClientData, Preparation
from fedgraft.core.settings import TASKS
from fedgraft.core.spec import Spec
from fedgraft.core.task import Task
from fedgraft.data.federation import Federation
from fedgraft.data.sources.fitted import Fitted, facts
from fedgraft.exports import card, standalone
from fedgraft.runs.directory import PREPARATION, write_preparation
from fedgraft.runs.personal import numbered
from fedgraft.runs.run import Run

FORMAT = 1
_BLANKS = {"\n": "newline", " ": "space", "\t": "tab"}
"""What characters are called that cannot be seen."""


class Whole(nn.Module):
    """A network with what is done before it (pixels become floats) and behind it (outputs become answers)."""

    scale: Tensor
    shift: Tensor

    def __init__(self, network: nn.Module, preparation: Preparation, task: Task, *, tokens: bool) -> None:
        super().__init__()
        self.network = network
        self._task, self._tokens = task, tokens
        mean, std = (torch.tensor(each or (0.5,)) for each in (preparation.mean, preparation.std))
        self.register_buffer("scale", 1 / (255 * std), persistent=False)
        self.register_buffer("shift", -mean / std, persistent=False)

    def forward(self, samples: Tensor) -> tuple[Tensor, Tensor]:
        """Return the answers, and the outputs that they are made of."""
        x = samples
        if x.dtype == torch.uint8:
            x = (x.to(torch.float32) * self.scale + self.shift).permute(0, 3, 1, 2)
        elif not self._tokens:
            x = x.to(torch.float32)
        outputs = self.network(x)
        return self._task.answers(outputs), outputs


@dataclass(frozen=True, eq=False)
class Subject:
    """A client's own model, and what is said of it: the run that it comes from, whose it is, how good it was."""

    run: Run
    spec: Spec
    client: int
    data: ClientData
    network: nn.Module
    point: Point
    metrics: Mapping[str, float | None]

    @property
    def fitted(self) -> Fitted | None:
        return self.run.federation.fitted

    @property
    def example(self) -> Tensor:
        """Two samples as they lie at the client."""
        return self.data.train.inputs[:2]


def subject(run: Run, client: int | str, point: Point) -> Subject:
    """Find the model of a client of a finished run, with its figures at the end."""
    number = numbered(run.spec, client)
    network = run.module(number, point)
    assert isinstance(run.federation, Federation)  # others have no modules
    figures = {metric.name: run.facts.rounds[-1].figures(point, metric.name) for metric in run.facts.metrics}
    own = {name: None if each is None else each.per_client[number] for name, each in figures.items()}
    return Subject(run, run.spec, number, run.federation.clients[number], network, point, own)


def whole(of: Subject) -> standalone.Exported:
    """Return a client's own model, with all that an exported one has."""
    tokens = not of.spec.architecture(of.client).example.is_floating_point()
    made = Whole(of.network, of.data.train.preparation, of.spec.task, tokens=tokens).eval()
    return standalone.Exported(_facts(of), None if of.fitted is None else facts(of.fitted), made)


def write(of: Subject, out: Path, *, onnx: bool = False, beside: Mapping[str, bytes] = MappingProxyType({})) -> Path:
    """Write a client's own model into a new folder, with other files ``beside`` it."""
    if out.exists():
        raise UserError(f"{out} is there already; name another folder with --out")
    model, example = whole(of), of.example
    program, batch = _graph(model.network, example)
    told = {**model.facts, "batch": batch}
    aside = out.with_name(f".{out.name}.part")
    shutil.rmtree(aside, ignore_errors=True)
    try:
        aside.mkdir(parents=True)
        _save(program, aside / "model.pt2")
        tensors = model.network.network.state_dict()
        disk.write(aside / "model.safetensors", disk.packed(tensors, method=of.run.method.name, point=of.point))
        disk.write(aside / "model.json", json.dumps(told, indent=1).encode())
        disk.write(aside / "model.py", Path(standalone.__file__).read_bytes())
        if of.fitted is not None:
            write_preparation(aside, of.fitted)
        readme = card.text(told, model.form, PREPARATION if of.fitted else None, onnx=onnx)
        disk.write(aside / "README.md", readme.encode())
        for name, content in beside.items():
            disk.write(aside / name, content)
        if onnx:
            from fedgraft.exports import onnxfile

            onnxfile.write(model.network, example[: batch or 2], aside / "model.onnx", batch)
        aside.rename(out)
    except OSError as error:
        raise UserError(f"{out} cannot be written: {error.strerror}") from None
    finally:
        shutil.rmtree(aside, ignore_errors=True)
    return out


def _graph(model: nn.Module, example: Tensor) -> tuple[Any, int | None]:
    """Trace a model for any number of samples at once, or for one where it is computed otherwise for many."""
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            many = ({0: torch.export.Dim("batch")},)
            return torch.export.export(model, (example,), dynamic_shapes=many, strict=False), None
        except Exception:  # whatever the tracer has against it; one sample may be another matter
            pass
        try:
            return torch.export.export(model, (example[:1],), strict=False), 1
        except Exception as error:
            reason = str(error).strip().partition("\n")[0][:200]
            raise UserError(
                f"this model cannot be traced by torch.export ({reason}); fedgraft.load(DIR).module(CLIENT) gives it"
            ) from None


def _save(program: Any, path: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.export.save(program, path)


def _facts(of: Subject) -> dict[str, Any]:
    run, fed, spec = of.run, of.run.federation, of.spec
    assert isinstance(fed, Federation)
    result, task, example = run.facts, spec.task, of.example
    return {
        "format": FORMAT,
        "client": spec.called(of.client),
        "method": result.label or result.method,
        "params": result.params,
        "point": of.point,
        "rounds": run.spec.rounds,
        "seed": spec.seed,
        "data": fed.name,
        "clients": run.spec.clients,
        "training_samples": spec.samples[of.client],
        "task": TASKS.named(task),
        "task_params": asdict(task),
        "kind": task.answered,
        "answers": _names(task, fed.fitted),
        "input": {"shape": list(example.shape[1:]), "type": str(example.dtype).removeprefix("torch."),
                  "columns": [] if fed.fitted is None else fed.fitted.names},
        "resize": fed.resize,
        "batch": None,
        "metrics": dict(of.metrics),
        "test_samples": len(of.data.test),
        "model": run.config.model,
        "date": datetime.now(UTC).date().isoformat(),
        "versions": dict(result.versions),
    }  # fmt: skip


def _names(task: Task, fitted: Fitted | None) -> list[str]:
    """Name the answers: classes by their labels, values by the target."""
    if task.answered == "values":
        target = "value" if fitted is None or fitted.target is None else fitted.target
        return [target] if task.outputs == 1 else [f"{target} {number}" for number in range(task.outputs)]
    known = () if fitted is None else fitted.labels
    if fitted is not None and fitted.characters:
        known = (*(_BLANKS.get(each, each) for each in fitted.characters), "other")
    return [*known, *(str(number) for number in range(len(known), task.outputs))]
