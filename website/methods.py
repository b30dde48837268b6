"""A page for each method: from its class, the docstring of its file, and what was measured."""

import inspect
import json
import re
import sys
from collections.abc import Sequence
from dataclasses import MISSING, fields
from typing import Any

from docs.tables import FAMILIES, crossed, table
from fedgraft.core.method import Method
from fedgraft.methods import METHODS
from fedgraft.papers import recipes
from website.pages import ROOT

SECTION = re.compile(r"^([A-Z][\w ]*)$")


def pages() -> dict[str, str]:
    """The page of every shipped method, and the page that lists them."""
    shipped = [METHODS[name] for name in METHODS.shipped]
    found = {f"reference/methods/{method.name}.md": page(method) for method in shipped}
    return {"reference/methods/index.md": index(shipped)} | found


def index(shipped: Sequence[type[Method]]) -> str:
    """All methods by family, with the idea of each in a line."""
    lines = ["# Methods", "", "`fedgraft methods NAME` shows the same in a terminal."]
    for family in dict.fromkeys((*FAMILIES, *(method.family for method in shipped))):
        rows = [(f"[{m.name}]({m.name}.md)", m.idea, m.citation) for m in shipped if m.family == family]
        if rows:
            lines += ["", f"## {family[0].upper()}{family[1:]}", "", table(("method", "idea", "paper"), rows)]
    return "\n".join(lines) + "\n"


def page(method: type[Method]) -> str:
    """All about one method."""
    name = method.name
    parts = [
        f"# {name}",
        f"{method.idea[0].upper()}{method.idea[1:]}.",
        _facts(method),
        f"    fedgraft compare {name}\n    fedgraft run {name}",
        "## What the file says",
        said(inspect.getdoc(sys.modules[method.__module__]) or ""),
        "## Hyper-parameters",
        _parameters(method),
    ]
    if method.shows:
        parts += ["## What a report shows of it", table(("name", "meaning"), list(method.shows.items()))]
    if measured := _measured(name):
        parts += [
            "## What was measured",
            "Accuracy in percent, pooled over all clients' test samples, last round, mean of the seeds. "
            "The page behind each name has the settings, the machine, and the paper's own figures beside ours.",
            table(("runs", "seeds", "received", "trained", "command"), measured),
        ]
    return "\n\n".join(parts) + "\n"


def _facts(method: type[Method]) -> str:
    up, down = crossed(METHODS.make(method.name))
    rows = [
        ("paper", method.citation or "none"),
        ("family", method.family),
        ("what is sent", method.sends),
        ("client to server", ", ".join(f"`{each}`" for each in up) or "nothing"),
        ("server to client", ", ".join(f"`{each}`" for each in down) or "nothing"),
        ("the paper measures", f"the model as `{method.headline}`"),
        ("in Python", f"`fedgraft.{method.__name__}`"),
    ]
    if method.name in recipes():
        rows.append(("settings of its paper", f"`--recipe {method.name}`"))
    if method.needs_classes:
        rows.append(("tasks", "with classes only"))
    if method.reconstruction:
        rows.append(("note", "a reconstruction: the paper leaves parts of it open"))
    return table(("", ""), rows)


def _parameters(method: type[Method]) -> str:
    rows = []
    for field in fields(method):
        rules = field.metadata
        default = "" if field.default is MISSING else f"`{field.default}`"
        rows.append((f"`{field.name}`", default, _range(rules), rules.get("doc", "")))
    if not rows:
        return "None."
    return table(("name", "default", "values", "meaning"), rows)


def _range(rules: Any) -> str:
    if rules.get("choices"):
        return ", ".join(f"`{each}`" for each in rules["choices"])
    bounds = [(rules.get("above"), "above"), (rules.get("low"), "at least"), (rules.get("high"), "at most")]
    return ", ".join(f"{word} {value:g}" for value, word in bounds if value is not None)


def said(docstring: str) -> str:
    """A docstring as Markdown: its sections as headings, its formulas as code."""
    lines: list[str] = []
    for line in docstring.split("\n"):
        plain = line.replace("``", "`")
        begins_code = plain.startswith("    ") and lines and lines[-1].strip() and not lines[-1].startswith("    ")
        begins_list = plain.startswith("- ") and lines and lines[-1].strip() and not lines[-1].startswith(("- ", "  "))
        if (section := SECTION.match(plain)) and len(plain) < 30:
            lines += ["", f"### {section.group(1)}", ""]
            continue
        if begins_code or begins_list:
            lines.append("")
        lines.append(plain)
    return "\n".join(lines).strip()


def _measured(name: str) -> list[tuple[str, ...]]:
    """A row for each group of runs that differ in nothing but the seed."""
    rows = []
    for file in sorted((ROOT / "docs" / "results").glob("*-table*.json")):
        found = json.loads(file.read_text("utf-8"))
        groups: dict[str, list[dict[str, Any]]] = {}
        for run in found["runs"]:
            if run["method"] == name and run.get("trained"):
                groups.setdefault(re.sub(r" --seed \d+", "", run["command"]), []).append(run)
        for command, runs in groups.items():
            figures = [_mean([run[point]["pooled"][-1] for run in runs]) for point in ("received", "trained")]
            label = f"[{found['paper']}, {found['item']}](../../results/{file.stem.partition('-')[0]}.md)"
            rows.append((label, str(len(runs)), *figures, f"`{command}`"))
    return rows


def _mean(values: Sequence[float | None]) -> str:
    known = [value for value in values if value is not None]
    return f"{100 * sum(known) / len(known):.2f}" if known else ""
