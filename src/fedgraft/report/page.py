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
from fedgraft.report.charts import drawn, measures
from fedgraft.report.matrices import Observation, fair_share, observations
from fedgraft.report.reading import Finished, Reading, from_memory, gather
from fedgraft.report.study import Study, Verdict, studies
from fedgraft.runs.compare import REFERENCES
from fedgraft.runs.config import AT, At
from fedgraft.runs.run import Run
from fedgraft.runs.table import Row, Spread, names, orders, points

MATRIX_BUDGET = 2_500_000
_SAID_ELSEWHERE = {"method", "params", "seed", "training", "data_dir"}
_MANY_METHODS = 12
_SCRIPTS = ("theme.js", "echarts.min.js", "charts.js", "page.js")


def report_runs(runs: Iterable[Run], path: Path, at: At = AT[0]) -> Path:
    """Write the report of runs that were made in this process."""
    return write(gather(map(from_memory, runs)), path, at)


def write(reading: Reading, path: Path, at: At = AT[0]) -> Path:
    """Write the report of what was read; ``at`` is where it compares the methods at first."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(render(reading, at), "utf-8")
    except OSError as error:
        raise UserError(f"the report {path} cannot be written: {error.strerror}") from None
    return path


def render(reading: Reading, at: At = AT[0]) -> str:
    """Return the page. Everything that a user may have named is escaped, in the HTML and in the data."""
    found = studies(reading.runs)
    seen = [observations(study) for study in found]
    budget = fair_share((array for group in seen for each in group for array in each.values.values()), MATRIX_BUDGET)
    scripts = [_asset(name) for name in _SCRIPTS]
    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    environment.filters.update(
        percent=percent, points=points, size=size, seconds=seconds, plain=plain, chance=chance, key=key
    )  # fmt: skip
    return environment.from_string(_asset("page.html")).render(
        version=__version__,
        policy=f"default-src 'none'; style-src 'unsafe-inline'; script-src {' '.join(map(_digest, scripts))}",
        style=_asset("page.css"),
        theme=scripts[0],
        scripts=scripts[1:],
        notes=reading.notes,
        studies=[_context(study, group, at) for study, group in zip(found, seen, strict=True)],
        data=_embeddable([drawn(study, group, budget, at) for study, group in zip(found, seen, strict=True)]),
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


def _context(study: Study, seen: Sequence[Observation], at: At) -> dict[str, Any]:
    """What the template writes as text and tables."""
    config, everything = study.config, [(label, run) for label, each in study.runs.items() for run in each.values()]
    repeatable = all(commands.repeatable(run.config) for _, run in everything)
    settings = {**config.model_dump(), **config.training.model_dump()}
    return {
        "title": study.title,
        "seeds": study.seeds,
        "rounds": config.rounds,
        "seen": seen,
        "figures": measures(study),
        "labels": all(run.result["label_counts"] is not None for _, run in everything),
        "params": {label: run.result.get("params", {}) for label, run in everything},
        "settings": {name: value for name, value in settings.items() if name not in _SAID_ELSEWHERE},
        "versions": sorted({_versions(run.result) for _, run in everything}),
        "refused": {label: refused for label, each in study.runs.items() if (refused := _refused(each.values()))},
        "compare_command": commands.compare_command(study) if repeatable else None,
        "run_commands": [commands.run_command(label, run.config) for label, run in everything] if repeatable else [],
        "local_command": commands.run_command("local", config) if repeatable else None,
        **_compared(study, at),
    }


def _compared(study: Study, at: At) -> dict[str, Any]:
    """The tables of methods, for each choice of where they are compared."""
    tables = {choice: {row.method: row for row in study.rows(choice)} for choice in AT}
    ranking = orders(list(tables[at].values()))
    rows = {label: tables[at][label] for label in ranking[at]}
    verdicts = {choice: study.verdicts(choice) for choice in AT}
    return {
        "at": at,
        "tables": tables,
        "rows": rows,
        "starred": {label: study.starred(label) for label in rows},
        "references": [label for label in REFERENCES if label in rows],
        "against": {choice: _against(table) for choice, table in tables.items()},
        "verdicts": verdicts,
        "helping": {choice: sum(_helps(verdict) for verdict in found) for choice, found in verdicts.items()},
        "alone": any(verdicts.values()),
        "pairs": {choice: study.pairs(choice, with_best=len(rows) > _MANY_METHODS) for choice in AT},
        "all_pairs": len(rows) <= _MANY_METHODS,
        "orders": {choice: _leading(study, labels) for choice, labels in ranking.items()},
        "reordered": len({tuple(labels) for labels in ranking.values()}) > 1,
        "has_best": any(row.best for row in rows.values()),
        "has_everyone": any(row.everyone for row in rows.values()),
        "remarks": {choice: _remarks(table) for choice, table in tables.items()},
    }


def _leading(study: Study, labels: Sequence[str]) -> str:
    """The first methods of an order; the table has all of them."""
    more = [f"{len(labels) - 6} more"] if len(labels) > 7 else []
    return ", ".join([*map(study.starred, labels[:6] if more else labels), *more])


def _against(table: Mapping[str, Row]) -> dict[str, dict[str, float]]:
    """The difference of every method's client mean to the references'."""
    means = {label: row.mean[row.point].mean for label, row in table.items()}
    references = [label for label in REFERENCES if label in means]
    return {label: {other: means[label] - means[other] for other in references if other != label} for label in means}


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


def _refused(runs: Iterable[Finished]) -> str:
    """How many replies the server of a method's runs refused, whose, and why the first."""
    found = list(runs)
    refused = [each for run in found for record in run.result["rounds"] for each in record.get("refused", ())]
    if not refused:
        return ""
    called = dict(enumerate(names(found[0].result)))
    clients = sorted({int(each["client"]) for each in refused})  # also such as are none
    told = ", ".join(called.get(client, f"client {client}") for client in clients)
    return f"{len(refused)}, of {told}; {refused[0]['reason']}"


def _versions(result: Any) -> str:
    named = {"fedgraft": result.get("fedgraft", "unknown"), **result["versions"]}
    return ", ".join(f"{name} {version}" for name, version in named.items())


def plain(value: Any) -> str:
    """A setting as it is typed."""
    return str(value).lower() if value is None or isinstance(value, bool) else str(value)


def percent(spread: Spread) -> str:
    """A fraction over seeds, in percent; a dash for what was never measured."""
    if math.isnan(spread.mean):
        return "–"
    return f"{100 * spread.mean:.1f}" + ("" if spread.deviation is None else f" ± {100 * spread.deviation:.1f}")


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
