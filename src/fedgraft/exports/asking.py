"""Ask a client's own model about new samples, and judge it where the right answers are known."""

import csv
import io
import logging
import math
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Literal, NamedTuple, cast

import numpy as np
import torch
from torch import Tensor

from fedgraft.base.errors import UserError
from fedgraft.core.settings import METRICS, TASKS
from fedgraft.core.task import Task
from fedgraft.data.datasets.formats import Array, affordable, sentences
from fedgraft.data.federation import as_inputs
from fedgraft.data.sources import images, texts, windows
from fedgraft.data.sources.fitted import Fitted
from fedgraft.data.sources.frames import TABLES, read_frame
from fedgraft.data.sources.tables import insist_on_columns, samples_of, targets_of
from fedgraft.exports import package, standalone
from fedgraft.exports.standalone import Exported
from fedgraft.runs.config import single_metrics
from fedgraft.runs.personal import numbered
from fedgraft.runs.run import Run, load

Point = Literal["received", "trained"]


def opened(directory: Path, client: str | None) -> tuple[Run, int]:
    """Open a finished run and find the client whose model is wanted."""
    run = load(directory)
    if client is None:
        names = ", ".join(run.spec.called(number) for number in range(min(run.spec.clients, 10)))
        raise UserError(f"say with --client whose model: {names}{', ...' if run.spec.clients > 10 else ''}")
    return run, numbered(run.spec, client)


def model_of(source: Path, client: str | None, point: str | None) -> Exported:
    """Load an exported model, or take a client's own out of a run."""
    if not (source / "model.json").exists():
        run, number = opened(source, client)
        return package.whole(package.subject(run, number, cast("Point", point or "trained")))
    with sentences(source), _quiet_torch():
        model = standalone.load(source)
        facts = model.facts
        if facts["format"] != package.FORMAT:
            raise UserError(f"{source} has format {facts['format']!r}, but this fedgraft reads {package.FORMAT}")
        for told, wished in (("client", client), ("point", point)):
            if wished is not None and wished != facts[told]:
                raise UserError(f"{source} holds the model of {told} {facts[told]!r}, not {wished!r}")
    return model


@contextmanager
def _quiet_torch() -> Iterator[None]:
    """Keep what torch logs of a damaged file, a whole traceback, from those who are told in a sentence."""
    logger = logging.getLogger("torch.export")
    before, logger.disabled = logger.disabled, True
    try:
        yield
    finally:
        logger.disabled = before


def copied(source: Path, client: str | None, point: str | None, out: Path, *, onnx: bool) -> tuple[Path, str]:
    """Copy the folder of an exported model, that of a site which joined; return it and whose model it is."""
    facts = model_of(source, client, point).facts
    if onnx and not (source / "model.onnx").exists():
        raise UserError(
            f"{source} holds no model.onnx: write it where the model is made, with --onnx of `fedgraft join`"
        )
    if out.exists():
        raise UserError(f"{out} is there already; name another folder with --out")
    try:
        shutil.copytree(source, out)
    except OSError as error:
        raise UserError(f"{out} cannot be written: {error}") from None
    return out, facts["client"]


def predict(model: Exported, data: Path) -> str:
    """Answer for every sample of a file, as CSV."""
    given = _read(model, data, targets=False)
    columns, rows = standalone.table(model.facts, model.answers(given.samples), given.names)
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows([columns, *rows])
    return text.getvalue()


def evaluate(model: Exported, data: Path, metrics: Sequence[str] = ()) -> dict[str, float | None]:
    """Return the metrics of a model on the samples of a file; None where one means nothing."""
    task = _task(model)
    shown = [name for name in model.facts["metrics"] if name in METRICS]  # a folder names no code to run
    judges = task.judges(single_metrics(metrics) or shown)
    given = _read(model, data, targets=True)
    assert given.targets is not None
    targets = task.clean(given.targets, f"the target in {data}")
    task.fits(targets, str(data))
    tallies, _ = task.judge(model.both(given.samples)[1], torch.from_numpy(targets), judges)
    values = {metric.name: metric.value(tallies[metric.name]) for metric in judges}
    return {"samples": len(given.samples)} | {name: v if math.isfinite(v) else None for name, v in values.items()}


def _task(model: Exported) -> Task:
    name = model.facts["task"]
    if name not in TASKS:
        raise UserError(f"the model's task {name!r} is not one of ours: judge it with code of your own")
    made: Task = TASKS[name](**model.facts["task_params"])
    return made


class Given(NamedTuple):
    """What is asked about: samples, their targets where these are asked for, and the files that they are."""

    samples: Tensor
    targets: Array | None = None
    names: Sequence[str] = ()


TAKEN = {
    "rows": "rows of a .csv, .tsv or .parquet file",
    "images": "image files, or a folder of them",
    "texts": "texts (.txt), or a folder of them",
    "arrays": "arrays",
}


def _read(model: Exported, data: Path, *, targets: bool) -> Given:
    """Read samples, and their targets where these are asked for."""
    fitted = None if model.preparation is None else Fitted.model_validate(model.preparation)
    suffix, form = data.suffix.lower(), model.form
    if not data.exists():
        raise UserError(f"there is nothing at {data}")
    if form in ("rows", "arrays") and data.is_dir():
        raise UserError(f"{data} is a folder, and one file is wanted: {TAKEN[form]}, or an .npz file with x")
    if form == "rows" and suffix in TABLES and fitted is not None:
        x, y = _rows(data, fitted, targets=targets)
    elif suffix == ".npz":
        x, y = _arrays(data, targets=targets)
    elif data.is_dir() or suffix in standalone.ENDINGS[form] - TABLES:
        with sentences(data):
            try:
                return _files(model, data, fitted, targets=targets)
            except ValueError as error:
                raise UserError(str(error)) from None
    else:
        raise UserError(f"{data} cannot be read: this model takes {TAKEN[form]}, or an .npz file with x")
    return Given(_sound(model, x, data), y)


def _sound(model: Exported, x: Array, data: Path) -> Tensor:
    """Refuse samples of another shape, or with values that no network can take."""
    samples = as_inputs(x, model.facts["resize"] if x.dtype == np.uint8 else None)
    wanted = model.facts["input"]
    kind = str(samples.dtype).removeprefix("torch.")
    if list(samples.shape[1:]) != wanted["shape"] or kind != wanted["type"]:
        shapes = ["x".join(map(str, each)) for each in (samples.shape[1:], wanted["shape"])]
        raise UserError(
            f"a sample in {data} is {shapes[0]} ({kind}), and the model takes {shapes[1]} ({wanted['type']})"
        )
    if samples.is_floating_point() and not bool(torch.isfinite(samples).all()):
        raise UserError(f"{data} holds NaN or infinite values, or such that float32 cannot hold")
    return samples


def _files(model: Exported, data: Path, fitted: Fitted | None, *, targets: bool) -> Given:
    """Read images, whose folders are their classes, or texts, of which each next character is a target."""
    files = standalone.found(data, model.form)
    if model.form == "texts" and targets and fitted is not None:
        parts = [texts.samples_of(standalone.text_of(file), fitted, file.stem) for file in files]
        x, y = (np.concatenate(each) for each in zip(*parts, strict=True))
        return Given(_sound(model, x, data), y)
    if model.form == "images":
        images.one_kind(files)
    samples = torch.stack([model.pixels(file) if model.form == "images" else _end(model, file) for file in files])
    labels = images.classes([(file.parent.name, file) for file in files], fitted) if targets else None
    return Given(samples, labels, list(map(str, files)))


def _end(model: Exported, file: Path) -> Tensor:
    return model.tokens(standalone.text_of(file), file)


def _rows(data: Path, fitted: Fitted, *, targets: bool) -> tuple[Array, Array | None]:
    table = read_frame(data)
    insist_on_columns(table, fitted, str(data))
    x = samples_of(table, fitted, str(data))
    y = targets_of(table, fitted, str(data)) if targets else None
    if fitted.window is None:
        return x, y
    begins = windows.starts(len(x), fitted.window)
    if not len(begins):
        raise UserError(f"{data} has {len(x)} rows, and a sample is made of {fitted.window}")
    last = [at + fitted.window - 1 for at in begins]
    return np.stack([x[at : at + fitted.window] for at in begins]), None if y is None else y[last]


def _arrays(data: Path, *, targets: bool) -> tuple[Array, Array | None]:
    with sentences(data):
        affordable(data.stat().st_size)
        with np.load(data, allow_pickle=False) as held:
            for name in ("x", "y") if targets else ("x",):
                if name not in held.files:
                    raise UserError(f"{data} has no array {name!r}; it has {', '.join(held.files) or 'none'}")
            x, y = held["x"], held["y"] if targets else None
    if x.ndim < 2 or not len(x) or x.dtype.kind not in "fiu":
        raise UserError(f"x in {data} is {x.dtype} of shape {x.shape}; it has to be numbers, a row for each sample")
    if y is not None and len(y) != len(x):
        raise UserError(f"{data} has {len(x)} samples and {len(y)} targets")
    return x, y
