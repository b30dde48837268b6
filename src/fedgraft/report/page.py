"""The report: one HTML file that holds its data, its style, its scripts and the charting library, and asks nobody."""

import base64
import hashlib
import json
import math
from collections.abc import Iterable, Mapping, Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any

from jinja2 import Environment, StrictUndefined

from fedgraft.base.errors import UserError
from fedgraft.base.version import __version__
from fedgraft.report import commands
from fedgraft.report.charts import Study, drawn
from fedgraft.report.comparison import privacy
from fedgraft.report.matrices import Observation, fair_share, observations
from fedgraft.runs.comparison import REFERENCES, Reading
from fedgraft.runs.config import AT, At
from fedgraft.runs.metric import MetricInfo
from fedgraft.runs.resultfile import Result
from fedgraft.runs.table import Row, Spread, Verdict, orders

MATRIX_BUDGET = 2_500_000
_SAID_ELSEWHERE = {"method", "params", "seed", "training", "data_dir"}
_MANY_METHODS = 12
_SCRIPTS = ("theme.js", "echarts.min.js", "charts.js", "tables.js", "page.js")


def write(reading: Reading, path: Path, at: At = AT[0], metric: str | None = None) -> Path:
    """Write the report of what was read; ``at`` and ``metric`` are how it compares the methods at first."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(render(reading, at, metric), "utf-8")
    except OSError as error:
        raise UserError(f"the report {path} cannot be written: {error.strerror}") from None
    return path


def render(reading: Reading, at: At = AT[0], metric: str | None = None) -> str:
    """Return the page. Everything that a user may have named is escaped, in the HTML and in the data."""
    found = [(study, observations(study), study.metric(metric)) for study in reading.comparisons]
    arrays = (array for _, seen, _ in found for each in seen for array in each.values.values())
    budget = fair_share(arrays, MATRIX_BUDGET)
    scripts = [asset(name) for name in _SCRIPTS]
    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    environment.filters.update(figure=figure, size=size, seconds=seconds, plain=plain, chance=chance, key=key)
    return environment.from_string(asset("page.html")).render(
        version=__version__,
        policy=f"default-src 'none'; style-src 'unsafe-inline'; script-src {' '.join(map(digest, scripts))}",
        style=asset("page.css") + _metric_rules(max(len(study.metrics) for study, *_ in found)),
        theme=scripts[0],
        scripts=scripts[1:],
        notes=reading.notes,
        answer=list(reading.answer),
        sites=list(reading.sites),
        studies=[_context(study, seen, at, judged) for study, seen, judged in found],
        data=_embeddable([drawn(study, seen, budget, at, judged) for study, seen, judged in found]),
    )


def _metric_rules(count: int) -> str:
    """Let the page show what is written of the chosen metric, and hide what is written of the others."""
    others = (f'.study[data-metric="{place}"] [data-m]:not([data-m="{place}"])' for place in range(count))
    return ",\n".join(others) + " {\n  display: none;\n}\n"


def asset(name: str) -> str:
    """A file that pages are made of."""
    return (files("fedgraft.report") / "page" / name).read_text("utf-8")


def digest(script: str) -> str:
    """Name a script by its content, so that the browser runs this one and nothing that was smuggled in."""
    return f"'sha256-{base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()}'"


def _embeddable(value: Any) -> str:
    """JSON that cannot end the element it stands in."""
    text = json.dumps(value, separators=(",", ":"), allow_nan=False)
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def _context(study: Study, seen: Sequence[Observation], at: At, metric: MetricInfo) -> dict[str, Any]:
    """What the template writes as text and tables."""
    config = study.config
    everything = [(label, run) for label, each in study.runs.items() for run in each]
    results = [result for each in study.facts.values() for result in each.values()]
    repeatable = all(commands.repeatable(run.config) for _, run in everything)
    settings = {**config.model_dump(), **config.training.model_dump()}
    if study.tuned:
        settings.pop("lr")  # each method has its own
    return {
        "title": study.title,
        "seeds": study.seeds,
        "rounds": config.rounds,
        "seen": seen,
        "labels": all(result.label_counts is not None for result in results),
        "params": {
            label: {**found.params, **found.tuned}
            for label, found in ((label, next(iter(each.values()))) for label, each in study.facts.items())
        },
        "settings": {name: value for name, value in settings.items() if name not in _SAID_ELSEWHERE},
        "versions": sorted({_versions(result) for result in results}),
        "privacy": list(privacy(study.rows(at, metric.name))),
        "refused": {label: refused for label, each in study.facts.items() if (refused := _refused(each.values()))},
        "compare_command": commands.compare_command(study) if repeatable else None,
        "run_commands": [commands.run_command(label, run.config) for label, run in everything] if repeatable else [],
        "local_command": commands.run_command("local", config) if repeatable else None,
        **_compared(study, at, metric),
    }


def _compared(study: Study, at: At, metric: MetricInfo) -> dict[str, Any]:
    """The tables of methods, for each choice of where they are compared and by what."""
    views = [_view(study, choice, place) for choice in AT for place in range(len(study.metrics))]
    first = next(view for view in views if view["at"] == at and view["metric"] == metric)
    ranking = [orders(study.rows(at, each.name)) for each in study.metrics]
    rows = [row for view in views for row in view["rows"].values()]
    return {
        "at": at,
        "m": study.metrics.index(metric),
        "metrics": study.metrics,
        "views": views,
        "labels_in_order": orders(list(first["rows"].values()))[at],
        "row_of": [{row.method: row for row in study.rows(at, each.name)} for each in study.metrics],
        "starred": {label: study.starred(label) for label in study.runs},
        "references": [label for label in REFERENCES if label in study.runs],
        "alone": any(view["verdicts"] for view in views),
        "all_pairs": len(study.runs) <= _MANY_METHODS,
        "orders": [{choice: _leading(study, labels) for choice, labels in each.items()} for each in ranking],
        "reordered": [len({tuple(labels) for labels in each.values()}) > 1 for each in ranking],
        "has_best": any(row.best for row in rows),
        "has_everyone": any(row.everyone for row in rows),
        "has_unseen": any(row.unseen for row in rows),
        "has_reconstructions": any(row.reconstruction for row in rows),
    }


def _view(study: Study, at: At, place: int) -> dict[str, Any]:
    """What is written where methods are compared at one point by one metric."""
    metric = study.metrics[place]
    rows = {row.method: row for row in study.rows(at, metric.name)}
    verdicts = study.verdicts(at, metric.name)
    return {
        "at": at,
        "m": place,
        "metric": metric,
        "rows": rows,
        "against": _against(rows),
        "verdicts": verdicts,
        "helping": sum(_helps(verdict) for verdict in verdicts),
        "pairs": study.pairs(at, metric.name, with_best=len(rows) > _MANY_METHODS),
        "remarks": _remarks(rows),
    }


def _leading(study: Study, labels: Sequence[str]) -> str:
    """The first methods of an order; the table has all of them."""
    more = [f"{len(labels) - 6} more"] if len(labels) > 7 else []
    return ", ".join([*map(study.starred, labels[:6] if more else labels), *more])


def _against(table: Mapping[str, Row]) -> dict[str, dict[str, float]]:
    """By how much every method's client mean is better than the references'."""
    means = {label: row.mean[row.point].mean for label, row in table.items()}
    references = [label for label in REFERENCES if label in means]
    return {
        label: {other: row.metric.gain(means[label], means[other]) for other in references if other != label}
        for label, row in table.items()
    }


def _helps(verdict: Verdict) -> bool:
    return verdict.mean > 0 and verdict.difference.more_than_noise


def _remarks(table: Mapping[str, Row]) -> dict[str, dict[str, tuple[str, ...]]]:
    """Clients whose figures are none, or not what they seem: what is said of them, and who they are."""
    said: dict[str, dict[str, tuple[str, ...]]] = {
        "Diverged clients, whose outputs are not finite and count as wrong": {
            label: row.diverged[row.point] for label, row in table.items()
        },
        "Never tested, and in no figure": {label: row.untested for label, row in table.items()},
        "Last tested before the last round": {label: row.stale for label, row in table.items()},
        "The server took no reply in any round, so nobody learned anything from others": {
            label: (f"{row.unheard} run{'s' if row.unheard > 1 else ''}",) if row.unheard else ()
            for label, row in table.items()
        },
    }
    known = {title: {label: who for label, who in each.items() if who} for title, each in said.items()}
    return {title: each for title, each in known.items() if each}


def _refused(results: Iterable[Result]) -> str:
    """How many replies the server of a method's runs refused, whose, and why the first."""
    found = list(results)
    refused = [each for result in found for record in result.rounds for each in record.refused]
    if not refused:
        return ""
    called = dict(enumerate(found[0].called))
    clients = sorted({each.client for each in refused})  # also such as are none
    told = ", ".join(called.get(client, f"client {client}") for client in clients)
    return f"{len(refused)}, of {told}; {refused[0].reason}"


def _versions(result: Result) -> str:
    named = {"fedgraft": result.fedgraft or "unknown", **result.versions}
    return ", ".join(f"{name} {version}" for name, version in named.items())


def plain(value: Any) -> str:
    """A setting as it is typed."""
    return str(value).lower() if value is None or isinstance(value, bool) else str(value)


def figure(spread: Spread, metric: MetricInfo) -> str:
    """A figure over seeds, with its deviation."""
    return metric.shown(*spread).replace("±", " ± ")


def key(value: float | None) -> str:
    """What a cell of a table is sorted by; nothing, where there is no figure."""
    return "" if value is None or math.isnan(value) else repr(value)


def chance(p: float) -> str:
    """A p value for people."""
    return "< 0.001" if p < 0.001 else f"{p:.3f}"


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
