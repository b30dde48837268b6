"""The report: one HTML file that holds its data, its style, its scripts and the charting library, and asks nobody."""

import base64
import hashlib
import json
from collections.abc import Iterable, Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any

from jinja2 import Environment, StrictUndefined

from fedgraft.core.errors import UserError
from fedgraft.core.evaluation import POINTS, Point
from fedgraft.report import commands
from fedgraft.report.matrices import Observation, fair_share, observations, pack
from fedgraft.report.reading import Finished, Reading, from_memory, gather
from fedgraft.report.study import Study, studies
from fedgraft.runs.compare import REFERENCES
from fedgraft.runs.run import Run
from fedgraft.runs.table import Spread, points
from fedgraft.version import __version__

MATRIX_BUDGET = 2_500_000
_SAID_ELSEWHERE = {"method", "params", "seed", "training", "data_dir"}
_SCRIPTS = ("theme.js", "echarts.min.js", "charts.js", "page.js")


def report_runs(runs: Iterable[Run], path: Path) -> Path:
    """Write the report of runs that were made in this process."""
    return write(gather(map(from_memory, runs)), path)


def write(reading: Reading, path: Path) -> Path:
    """Write the report of what was read."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(render(reading), "utf-8")
    except OSError as error:
        raise UserError(f"the report {path} cannot be written: {error.strerror}") from None
    return path


def render(reading: Reading) -> str:
    """Return the page. Everything that a user may have named is escaped, in the HTML and in the data."""
    found = studies(reading.runs)
    seen = [observations(study) for study in found]
    budget = fair_share((array for group in seen for each in group for array in each.values.values()), MATRIX_BUDGET)
    scripts = [_asset(name) for name in _SCRIPTS]
    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    environment.filters.update(percent=percent, points=points, size=size, seconds=seconds, plain=plain)
    return environment.from_string(_asset("page.html")).render(
        version=__version__,
        policy=f"default-src 'none'; style-src 'unsafe-inline'; script-src {' '.join(map(_digest, scripts))}",
        style=_asset("page.css"),
        theme=scripts[0],
        scripts=scripts[1:],
        notes=reading.notes,
        studies=[_context(study, group) for study, group in zip(found, seen, strict=True)],
        data=_embeddable([_data(study, group, budget) for study, group in zip(found, seen, strict=True)]),
    )


def _asset(name: str) -> str:
    return (files("fedgraft.report") / "page" / name).read_text("utf-8")


def _digest(script: str) -> str:
    """Name a script by its content, so that the browser runs this one and nothing that was smuggled in."""
    return f"'sha256-{base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()}'"


def _embeddable(value: Any) -> str:
    """JSON that cannot end the element it stands in."""
    text = json.dumps(value, separators=(",", ":"), allow_nan=False)
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def _context(study: Study, seen: Sequence[Observation]) -> dict[str, Any]:
    """What the template writes as text and tables."""
    config, everything = study.config, [(label, run) for label, each in study.runs.items() for run in each.values()]
    rows = {row.method: row for row in study.rows()}
    references = [label for label in REFERENCES if label in rows]
    own = {label: row.mean[row.headline].mean for label, row in rows.items()}
    repeatable = all(commands.repeatable(run.config) for _, run in everything)
    settings = {**config.model_dump(), **config.training.model_dump()}
    return {
        "title": study.title,
        "seeds": study.seeds,
        "rows": rows,
        "starred": {label: study.starred(label) for label in rows},
        "references": references,
        "against": {label: {other: own[label] - own[other] for other in references if other != label} for label in own},
        "verdicts": study.verdicts(),
        "seen": seen,
        "labels": all(run.result["label_counts"] is not None for _, run in everything),
        "params": {label: run.result.get("params", {}) for label, run in everything},
        "settings": {name: value for name, value in settings.items() if name not in _SAID_ELSEWHERE},
        "versions": sorted({_versions(run.result) for _, run in everything}),
        "refused": {label: refused for label in rows if (refused := _refused(study.runs[label].values()))},
        "compare_command": commands.compare_command(study) if repeatable else None,
        "run_commands": [commands.run_command(label, run.config) for label, run in everything] if repeatable else [],
        "local_command": commands.run_command("local", config) if repeatable else None,
    }


def _refused(runs: Iterable[Finished]) -> str:
    """How many replies the server of a method's runs refused, whose, and why the first."""
    refused = [each for run in runs for record in run.result["rounds"] for each in record.get("refused", ())]
    if not refused:
        return ""
    clients = sorted({int(each["client"]) for each in refused})
    return f"{len(refused)}, of client{'s' * (len(clients) > 1)} {', '.join(map(str, clients))}; {refused[0]['reason']}"


def _versions(result: Any) -> str:
    named = {"fedgraft": result.get("fedgraft", "unknown"), **result["versions"]}
    return ", ".join(f"{name} {version}" for name, version in named.items())


def _data(study: Study, seen: Sequence[Observation], budget: int) -> dict[str, Any]:
    """What the scripts draw; accuracies in percent."""
    return {
        "clients": study.clients,
        "rounds": study.config.rounds,
        "seeds": study.seeds,
        "methods": [_method(study, label) for label in study.runs],
        "best": study.verdicts()[0].label if study.verdicts() else None,
        "labels": [study.any_run(seed).result["label_counts"] for seed in study.seeds],
        "observed": [_observed(study, each, budget) for each in seen],
    }


def _method(study: Study, label: str) -> dict[str, Any]:
    each = study.runs[label]
    headline = next(iter(each.values())).result["headline"]
    benefit = [study.benefit(label, seed) if seed in each else None for seed in study.seeds]
    traffic = study.traffic(label)
    return {
        "label": label,
        "shown": study.starred(label),
        "reference": label in REFERENCES,
        "headline": headline,
        "curves": {point: _curve(study, label, point) for point in POINTS},
        "traffic": [round(traffic[value.round], 5) for value in study.curve(label, headline, "mean")],
        "accuracy": [_percents(study.accuracies(label, seed)) if seed in each else None for seed in study.seeds],
        "benefit": [None if gains is None else _percents(gains) for gains in benefit],
    }


def _curve(study: Study, label: str, point: Point) -> dict[str, Any]:
    means, pooled = (study.curve(label, point, figure) for figure in ("mean", "pooled"))
    return {
        "rounds": [value.round for value in pooled],
        "mean": _percents([value.spread.mean for value in means]),
        "pooled": _percents([value.spread.mean for value in pooled]),
        "meanDeviation": _percents([value.spread.deviation or 0.0 for value in means]),
        "pooledDeviation": _percents([value.spread.deviation or 0.0 for value in pooled]),
    }


def _observed(study: Study, each: Observation, budget: int) -> dict[str, Any]:
    packed = [pack(each.values[seed], budget) if seed in each.values else None for seed in study.seeds]
    return {
        "title": f"{study.starred(each.label)}: {each.name}",
        "name": each.name,
        "matrix": each.is_matrix,
        "shape": each.shape,
        "seeds": packed,
    }


def _percents(values: Iterable[float | None]) -> list[float | None]:
    return [None if value is None else round(100 * value, 6) for value in values]


def plain(value: Any) -> str:
    """A setting as it is typed."""
    return str(value).lower() if value is None or isinstance(value, bool) else str(value)


def percent(spread: Spread) -> str:
    """A fraction over seeds, in percent."""
    return f"{100 * spread.mean:.1f}" + ("" if spread.deviation is None else f" ± {100 * spread.deviation:.1f}")


def size(count: float) -> str:
    """Write a number of bytes for people."""
    for unit in ("B", "KiB", "MiB"):
        if count < 1024:
            return f"{count:.0f} {unit}" if unit == "B" or count >= 100 else f"{count:.1f} {unit}"
        count /= 1024
    return f"{count:.1f} GiB"


def seconds(value: float) -> str:
    """Write a duration for people."""
    if value < 100:
        return f"{value:.1f} s" if value < 10 else f"{value:.0f} s"
    minutes = round(value / 60)
    return f"{minutes} min" if minutes < 120 else f"{minutes // 60} h {minutes % 60:02d} min"
