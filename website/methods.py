"""A page for each method: from its class, the docstring of its file, and what was measured."""

import inspect
import json
import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, fields
from functools import cache
from typing import Any

from docs.tables import FAMILIES, crossed, table
from fedgraft.core.evaluation import POINTS
from fedgraft.core.method import Method
from fedgraft.methods import METHODS
from fedgraft.papers import recipes
from fedgraft.papers.tables import ACCURACY
from fedgraft.runs.reproduce import Evidence, Outcome, everything
from website.pages import ROOT

SECTION = re.compile(r"^([A-Z][\w ]*)$")


def pages() -> dict[str, str]:
    """The page of every shipped method, and the page that lists them."""
    shipped = [METHODS[name] for name in METHODS.shipped]
    found = {f"reference/methods/{method.name}.md": page(method) for method in shipped}
    return {"reference/methods/index.md": index(shipped)} | found


def index(shipped: Sequence[type[Method]]) -> str:
    """All methods by family, with the idea of each in a line."""
    lines = [
        "# Methods",
        "",
        "Which methods are there, and what is the idea of each? `fedgraft methods NAME` shows the same in a terminal.",
    ]
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
        "## The method",
        said(inspect.getdoc(sys.modules[method.__module__]) or "").replace(_READINGS, f"{_READINGS}\n\n{_CHOICES}"),
        "## Hyper-parameters",
        _parameters(method),
    ]
    if method.shows:
        parts += ["## What a report shows of it", table(("name", "meaning"), list(method.shows.items()))]
    parts += ["## When to use it", *_use(method), "## What was measured", *_measured(name)]
    return "\n\n".join(parts) + "\n"


_READINGS = "### Readings"
_CHOICES = (
    "How we interpreted the paper where it is ambiguous, incomplete or wrong, and which setting gives the alternative:"
)


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


# ---- when to use it


USES = {
    "one global model, fine-tuning, and training alone": (
        "Where the clients' data are similar, or where one model is wanted. Where they differ, the model after local "
        "training, or a fine-tuned copy of the received one, is the client's own: simple, and what the other families "
        "have to beat. `local` sends nothing, and shows what a client reaches without the others."
    ),
    "split models": (
        "Where clients see similar inputs and differ in their labels, or in how often each label occurs: one part of "
        "the network (mostly the layers that compute features) is learned together, and the other stays at the client. "
        "Less is sent than with a whole model."
    ),
    "a global model and a personal model": (
        "Where some clients are similar to the others and some are not: each keeps a whole model of its own near the "
        "global one, and how near is a setting to tune or is learned. It costs more computation in each round."
    ),
    "mixed on the server for each client": (
        "Where there are groups of similar clients that are not known beforehand. The server has to see each client's "
        "reply, and its work grows with the number of clients."
    ),
    "many models to each client": (
        "Where there are few clients, and each chooses from which models to learn. What a client downloads grows with "
        "the number of models, and clients may see each other's models."
    ),
    "prototypes and features": (
        "Where clients have the same classes and their features differ, and, for the methods that send only class "
        "means, where networks differ or little may be sent. Class means can reveal more about a client's data than "
        "weights do."
    ),
    "clients with different architectures": (
        "Where clients cannot have the same network: only layers in common are averaged."
    ),
}
"""What each family is for, as its papers argue; what was measured follows on the page."""
JOINS = {
    "adapt": "trains its private part with what it receives, and sends nothing",
    "train": "trains as any client does, and sends nothing",
    "rounds": "takes part in rounds of its own, in which the other clients are frozen",
}


def _use(method: type[Method]) -> list[str]:
    """What the family is for, and what the method can be combined with."""
    made = METHODS.make(method.name)
    refused = ", ".join(f"`{each}`" for each in made.discloses())
    joins = f"no: {method.refuses_newcomers}" if method.refuses_newcomers else f"it {JOINS[method.newcomers]}"
    rows = [
        ("tasks without classes", "refused" if method.needs_classes else "yes"),
        ("differential privacy (`--epsilon`)", f"refused, because of {refused}" if refused else "yes"),
        ("secure aggregation (`--stage secure`)", "yes" if made.sums() else "no: the server needs each reply"),
        ("robust means (`--stage median`)", f"of {method.averages}" if method.averages else "no: nothing is averaged"),
        ("a client that joins later", joins),
    ]
    if method.sends == "nothing":
        rows = [rows[0], rows[-1]]
    asks = "`fedgraft recommend` tries it with the other methods on your own data ([how](../../recommend.md))."
    return [USES.get(method.family, ""), table(("can be combined with", ""), rows), asks]


# ---- what was measured


@cache
def _evidence() -> Mapping[str, Evidence]:
    return everything(ROOT / "docs" / "results")


def _measured(name: str) -> list[str]:
    """Ours beside the papers', and the check on digits that every method has."""
    ours, waiting = [], dict[str, None]()
    for paper in _evidence().values():
        for item, cell in paper.paper.cells:
            drawn = item.name.startswith("figure")
            if cell.method.partition(":")[0] == name and cell.quantity == ACCURACY and not drawn:
                outcome = paper.outcome(item, cell)
                label = f"[{paper.paper.name}, {item.name}](../../results/{paper.paper.name}.md)"
                if outcome.runs:
                    ours.append((label, *_row(outcome)))
                elif cell.published is not None:
                    waiting[label] = None
    parts = [_BESIDE, table(_HEAD, ours)] if ours else []
    if waiting:
        parts.append(f"Published and not run here yet: cells of {', '.join(waiting)}.")
    return [*parts, _digits(name)]


_BESIDE = (
    "In the settings of the papers, accuracy in percent as each paper measures it (*ours* next to *published*), and at "
    "both points in the last round, pooled over all test samples. *Draws* is the number of seeds; a single one says "
    "little."
)
_HEAD = ("table", "cell", "method", "draws", "received", "trained", "ours", "published", "scale")


def _row(outcome: Outcome) -> tuple[str, ...]:
    """A cell as the pages of docs/results have it."""
    points = [[run.curve(point).pooled[-1] for run in outcome.runs] for point in POINTS]
    return (
        outcome.cell.name, f"`{outcome.cell.method}`", str(len(outcome.runs)), *(_mean(each) for each in points),
        "" if outcome.mean is None else f"{outcome.mean:.2f}",
        "" if outcome.cell.published is None else f"{outcome.cell.published:.2f}", outcome.scale,
    )  # fmt: skip


def _digits(name: str) -> str:
    """One run on digits, of a check that every method learns."""
    found = json.loads((ROOT / "docs" / "results" / "all-digits.json").read_text("utf-8"))
    rows = {row["method"]: row for row in found["rows"]}
    if name not in rows:
        return "It was not measured on digits yet."
    told = [f"{who} {_both(rows[who]['mean'])}" for who in dict.fromkeys((name, "local", "fedavg-ft")) if who in rows]
    return (
        f"On digits (a check that it learns, not a ranking), mean over ten clients in percent: {'; '.join(told)} "
        f"(`{found['command']}`; [all methods](../../results/index.md))."
    )


def _both(figures: Mapping[str, Any]) -> str:
    return " and ".join(f"{100 * figures[point]['mean']:.1f} ({point})" for point in POINTS)


def _mean(values: Sequence[float | None]) -> str:
    known = [value for value in values if value is not None]
    return f"{100 * sum(known) / len(known):.2f}" if known else ""
