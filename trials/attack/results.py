"""What lies in the directory of a finished run, after somebody laid hands on it: a sentence, never a traceback."""

import io
import json
import math
import resource
import shutil
import struct
from collections.abc import Callable, Mapping
from pathlib import Path
from random import Random
from typing import Any

import torch
from rich.console import Console
from safetensors.torch import save_file

import fedgraft
from fedgraft.base.errors import UserError
from fedgraft.report.page import render
from fedgraft.report.text import show
from fedgraft.report.watch import watch
from fedgraft.runs.reading import read_all
from trials.attack import BreachError, attack

FORGERIES = 12
DEEP = "a place for brackets"
VALUES: tuple[Any, ...] = (
    None, True, -1, 0, 3, 1.5, 10**30, 1e300, math.inf, math.nan, "", "text", [], {}, [[]], [None] * 9, {"a": {}}, DEEP,
)  # fmt: skip


def _run(folder: Path) -> Path:
    """A small run that has everything: matrices, validation figures, everybody's data."""
    settings = {"clients": 3, "rounds": 2, "workers": 1, "validation": 0.2, "global_test": True, "checkpoint_every": 1}
    fedgraft.run("fedapa", out=folder / "run", **settings)
    return folder / "run"


def _sentence(work: Callable[[], object]) -> str | None:
    """What the program says against it, in one line; nothing, if it takes it."""
    try:
        work()
    except UserError as error:
        if "\n" in str(error) or len(str(error)) > 1000:
            raise BreachError(f"not a sentence: {str(error)[:200]}") from error
        return str(error)
    return None


def _report(place: Path) -> None:
    reading = read_all([place])
    render(reading)
    show(reading, Console(file=io.StringIO(), width=80))


def _forged(result: dict[str, Any], rng: Random) -> str:
    """The text of a result in which one thing is another, or gone, or there twice."""
    place: Any = result
    while True:
        key = rng.choice(sorted(place) if isinstance(place, dict) else range(len(place)))
        inner = place[key]
        if not isinstance(inner, dict | list) or not inner or rng.random() < 0.3:
            break
        place = inner
    match rng.choice(["value", "value", "value", "gone", "twice"]):
        case "value":
            place[key] = rng.choice(VALUES)
        case "gone":
            del place[key]
        case "twice" if isinstance(place, list):
            place.append(inner)
    return json.dumps(result).replace(f'"{DEEP}"', "[" * (depth := rng.choice([100, 900, 10**5])) + "]" * depth)


@attack("results: a forged result.json", "a page or a sentence; resume and report agree whether the run is complete")
def forged_result(folder: Path, rng: Random) -> str:
    place = _run(folder)
    honest = (place / "result.json").read_text()
    refused = 0
    for _ in range(FORGERIES):
        text = _forged(json.loads(honest), rng)
        (place / "result.json").write_text(text)
        report, resumed = _sentence(lambda: _report(place)), _sentence(lambda: fedgraft.resume(place))
        if resumed is None or (report is None) != ("is complete" in resumed):
            raise BreachError(f"report: {report}, resume: {resumed}")
        refused += report is not None
    if not refused:
        raise BreachError("every forgery passed")
    return "a page or a sentence"


def _tensors(rng: Random) -> Mapping[str, torch.Tensor]:
    shape = tuple(rng.choice([0, 1, 2, 3, 7]) for _ in range(rng.randrange(5)))
    dtype = rng.choice([torch.float32, torch.float32, torch.bfloat16, torch.float64, torch.int64, torch.bool])
    value = rng.choice([0.0, 1.0, math.nan, math.inf, -3e38]) if dtype.is_floating_point else 1
    return {rng.choice(["A", "", "<b>x</b>", "[red]"]): torch.full(shape, value, dtype=dtype)}


def _header(rng: Random) -> bytes:
    """A file whose header promises what the file does not hold, or is none."""
    end = rng.choice([4, 17 * 10**9, 2**63, -1])
    told = {"A": {"dtype": "F32", "shape": [2, rng.choice([1, 2**31, 2**62])], "data_offsets": [0, end]}}
    text = rng.choice([json.dumps(told).encode(), b"[" * 5000, b"{}", b""])
    return struct.pack("<Q", rng.choice([len(text), 2**40, 0])) + text


@attack("results: a forged observed.safetensors", "a page or a sentence")
def forged_observations(folder: Path, rng: Random) -> str:
    place = _run(folder)
    for _ in range(FORGERIES):
        if rng.random() < 0.5:
            save_file(dict(_tensors(rng)), place / "observed.safetensors")
        else:
            (place / "observed.safetensors").write_bytes(_header(rng))
        _sentence(lambda: _report(place))
    return "a page or a sentence"


@attack("results: folders where files belong", "resume, report and watch say so in a sentence")
def folders(folder: Path, rng: Random) -> str:
    place = _run(folder)
    (place / "result.json").unlink()
    name = rng.choice(["metrics.jsonl", "result.json", "observed.safetensors"])
    shutil.rmtree(place / name, ignore_errors=True)
    (place / name).unlink(missing_ok=True)
    (place / name / "within").mkdir(parents=True)
    looks = {"resume": lambda: fedgraft.resume(place, workers=1), "report": lambda: _report(place)}
    if name == "metrics.jsonl":
        looks["watch"] = lambda: watch(place, Console(file=io.StringIO()))
    for look, work in looks.items():
        if _sentence(work) is None:
            raise BreachError(f"{look} takes a folder for {name}")
    return "a sentence each"


@attack("results: a model file of few bytes that asks for gigabytes", "refused in a sentence, and no memory is taken")
def greedy_model(folder: Path, rng: Random) -> str:
    first = rng.choice([10, 1000, 20_000])
    numbers = rng.choice([17 * 10**9 // 4, 10**12, 2**62, 2**70])
    facts = {"model": f"mlp:{first}", "input": str(numbers // first), "outputs": "10"}
    text = json.dumps({"__metadata__": facts}).encode()
    (folder / "model").write_bytes(struct.pack("<Q", len(text)) + text)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    if _sentence(lambda: fedgraft.load_model(folder / "model")) is None:
        raise BreachError(f"a network was made of {(folder / 'model').stat().st_size} bytes")
    taken = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024
    if taken > 200:
        raise BreachError(f"{taken:.0f} MB were taken for {facts}")
    return "a sentence"
