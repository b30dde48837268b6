"""Reference pages from the code: commands, settings, files of a run, and Python names."""

import inspect
import re
from collections.abc import Iterator, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

import click
import typer
from pydantic import BaseModel
from pydantic_core import PydanticUndefined

import fedgraft
from docs.tables import table
from fedgraft.core.settings import Training
from fedgraft.deploy.charter import Charter, Data, Rules
from fedgraft.runs import resultfile
from fedgraft.runs.config import RunConfig


def pages() -> dict[str, str]:
    """Every generated page that is not a method's."""
    return {
        "reference/cli.md": commands(),
        "reference/configuration.md": settings(),
        "reference/files.md": files(),
        "reference/python.md": names(),
    }


# ---- the command line


def commands() -> str:
    """All commands with their arguments and options, as help lists them."""
    from fedgraft.cli import app

    parts = [
        "# Command line",
        "All commands and their options. `fedgraft COMMAND --help` shows the same. A mistake is answered with one "
        "sentence and exit code 2.",
    ]
    root = typer.main.get_command(app)
    for path, command in _walk(root, ()):
        parts += [f"## fedgraft {' '.join(path)}", *_command(path, command)]
    return "\n\n".join(parts) + "\n"


def _walk(command: Any, path: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], Any]]:
    for name, each in getattr(command, "commands", {}).items():
        if each.hidden:
            continue
        if getattr(each, "commands", None):
            yield from _walk(each, (*path, name))
        else:
            yield (*path, name), each


def _command(path: Sequence[str], command: Any) -> list[str]:
    arguments = [each for each in command.params if each.param_type_name == "argument"]
    options = [each for each in command.params if each.param_type_name == "option" and not each.hidden]
    line = " ".join(["fedgraft", *path, *(each.make_metavar(_context(command)) for each in arguments), "[OPTIONS]"])
    parts = [inspect.cleandoc(command.help or "").replace("``", "`"), f"    {line}"]
    if arguments:
        parts.append(table(("argument", "meaning"), [(f"`{_shout(each)}`", _help(each)) for each in arguments]))
    if options:
        parts.append(table(("option", "meaning"), [_option(each) for each in options]))
    return parts


def _context(command: Any) -> click.Context:
    return click.Context(command)


def _shout(each: Any) -> str:
    return str(each.human_readable_name).upper()


def _help(each: Any) -> str:
    return plain(" ".join((getattr(each, "help", "") or "").split()))


def _option(each: Any) -> tuple[str, str]:
    flags = ", ".join(f"`{flag}`" for flag in (*each.opts, *each.secondary_opts))
    told, usual = _help(each), each.default
    shown = isinstance(usual, str | int | float | Path) and not isinstance(usual, bool) and usual != ""
    return flags, f"{told} (default {plain(str(usual))})" if shown and "(default" not in told else told


def plain(text: str) -> str:
    """Text in which nothing is taken for HTML or emphasis."""
    return text.replace("<", "&lt;").replace("*", "\\*").replace("_", "\\_")


# ---- settings


def settings() -> str:
    """The settings of a run, of its training, and of a charter, from the models that check them."""
    parts = [
        "# Configuration",
        "A run is described by these settings, as flags (`--batch-size`), in a TOML file (`--config`), or as keywords "
        "in Python. Flags override a file, a file overrides a recipe. An unknown setting, or one that would have no "
        "effect, is refused.",
        "## A run",
        fields_of(RunConfig, leave={"training"}),
        "## Training",
        "In a file these are under `[training]`.",
        fields_of(Training),
        "## A charter",
        "`charter.toml` describes a federation on several machines ([deployment](../deployment.md)).",
        fields_of(Charter),
        "### Its data",
        fields_of(Data),
        "### Its rules",
        fields_of(Rules),
    ]
    return "\n\n".join(parts) + "\n"


def fields_of(model: type[BaseModel], leave: frozenset[str] | set[str] = frozenset()) -> str:
    """A table of a model's fields."""
    rows = []
    for name, field in model.model_fields.items():
        if name not in leave:
            rows.append((f"`{name}`", f"`{_type(field.annotation)}`", _default(field), _meaning(name, field)))
    return table(("name", "type", "default", "meaning"), rows)


def _meaning(name: str, field: Any) -> str:
    return plain(field.description or "") or MEANINGS.get(name, "")


def _type(annotation: Any) -> str:
    text = (
        annotation.__name__ if isinstance(annotation, type) and not hasattr(annotation, "__args__") else str(annotation)
    )
    text = re.sub(r"\b(?:typing|collections\.abc|fedgraft)\.(?:\w+\.)*", "", text)
    while (simpler := re.sub(r"Annotated\[([\w ]+), (?:[^\[\]]|\[[^\[\]]*\])*\]", r"\1", text)) != text:
        text = simpler
    return text


def _default(field: Any) -> str:
    if field.is_required():
        return "has to be given"
    value = field.default
    if value is PydanticUndefined or value is None or value in ((), {}, []):
        return ""
    return f"`{value}`" if not isinstance(value, BaseModel) else ""


# ---- files


MEANINGS = {
    "format": "version of this format",
    "fedgraft": "version that wrote it",
    "method": "name of the method",
    "label": "the method with those of its settings that differ",
    "params": "all hyper-parameters",
    "tuned": "what tuning chose, if there was any: the learning rate and hyper-parameters",
    "reconstruction": "whether the paper leaves parts of the method open",
    "headline": "the point at which the method's paper measures",
    "rounds": "a record for each round",
    "round": "number of the round, from 1",
    "seconds": "how long it took",
    "server_seconds": "of these, the server's work",
    "evaluation_seconds": "of these, testing",
    "participants": "who took part, by number",
    "accepted": "how many replies the server accepted",
    "refused": "replies that were not accepted, and why",
    "bytes_up": "bytes from all clients to the server",
    "bytes_down": "bytes from the server to all clients",
    "messages_up": "how many messages that were",
    "messages_down": "how many messages that were",
    "loss": "mean loss of local training",
    "test_samples": "how many samples each client was tested on",
    "received": "the model as it came from the server",
    "trained": "the model after local training",
    "received_validation": "the same on validation samples",
    "trained_validation": "the same on validation samples",
    "received_global": "the same on all clients' test samples",
    "trained_global": "the same on all clients' test samples",
    "metrics": "figures by metric",
    "diverged": "clients whose model gave numbers that are not finite",
    "mean": "mean over clients",
    "pooled": "over all samples together",
    "per_client": "the figure of each client",
    "client": "number of the client",
    "reason": "a sentence",
    "last": "figures of the last round that was tested",
    "best": "the best tested round, by point and kind of mean",
    "seed": "the seed",
    "config": "all settings",
    "clients": "number of clients",
    "names": "names of the clients, where they have some",
    "samples": "training samples of each client",
    "dataset": "name of the data",
    "partition": "how it was split",
    "model": "the network",
    "task": "what was learned",
    "unseen": "clients that took no part in training, after they joined",
    "privacy": "what differential privacy the run has, and what each client has spent of it",
    "shows": "what the observed matrices and figures mean",
    "label_counts": "training samples of each client by class",
    "seconds_per_round": "mean over rounds",
    "bytes_up_per_client": "mean of a client and a round",
    "bytes_down_per_client": "mean of a client and a round",
    "versions": "of Python, torch and others",
    "digest": "digests by name",
    "chosen_on": "on which samples the round was chosen",
    "kernels": "what ran the convolutions",
    "run": "settings of the run, as above",
    "data": "what the sites' data look like",
    "rules": "what the server waits for and accepts",
    "sites": "names of the sites",
    "code": "files that are not fedgraft's, with their SHA-256",
}
"""What fields mean that say nothing themselves."""
PARTS = ("Result", "Record", "Test", "ClientFigures", "Figures", "Last", "Best", "Refused")
LEFT = (
    ("config.toml", "every setting; `fedgraft run --config` repeats the run"),
    ("run.json", "what identifies the run: settings, fingerprints of the clients' data, versions, instruction sets"),
    ("metrics.jsonl", "a line for each round as soon as it is over; a record as below"),
    ("result.json", "the whole result, written at the end: format 2, below"),
    (
        "start.safetensors",
        "what this run started from, if it was started from an earlier one",
    ),
    ("observed.safetensors", "matrices and figures that the method learned, for every round"),
    ("checkpoints/", "the last two checkpoints: server, clients, and a manifest of checksums"),
    ("preparation.json", "how tables were turned into numbers, where the data were tables"),
    ("report.html", "the report, where one was asked for"),
)


def files() -> str:
    """What a run leaves on disk, and what is in result.json."""
    parts = [
        "# Files of a run",
        "What is in the directory of a run? A run writes `runs/METHOD-DATASET-seedSEED` unless `--out` names another; "
        "a comparison writes a directory with a run for each method and seed, the list of runs (`agenda.toml`) and "
        "`comparison.json`.",
        table(("file", "contents"), [(f"`{name}`", about) for name, about in LEFT]),
        "`fedgraft.load(DIR)` opens a run, `fedgraft.read(DIR)` reads any number of them, `fedgraft table DIR --format "
        "csv` writes figures for other programs. A file that was truncated or edited is refused with an explanation.",
        "## result.json",
    ]
    for name in PARTS:
        if model := getattr(resultfile, name, None):
            parts += [f"### {name}", inspect.getdoc(model) or "", fields_of(model)]
    return "\n\n".join(parts) + "\n"


# ---- Python


KINDS = {
    "Run and compare": ("run", "compare", "recommend", "resume", "load", "read", "Run", "Comparison", "Recommendation"),
    "Data": ("federate", "own_data", "torch_site", "Site", "Federation", "Dataset", "Partition", "Source"),
    "Write a method": ("Method", "hyper", "Server", "Client", "Message", "Field", "Spec", "Phase"),
    "Extend": ("Scheme", "Task", "Metric", "Optimizer", "Schedule", "Stage", "Averaging", "Engine", "Simulation"),
}


def names() -> str:
    """Every public name of the package by what it is for; methods have pages of their own."""
    homes: dict[str, str] = dict(fedgraft._HOME)
    kinds = {kind: tuple(name for name in members if name in homes) for kind, members in KINDS.items()}
    listed = {name for members in kinds.values() for name in members}
    kinds["Others"] = tuple(name for name in homes if name not in listed)
    parts = [
        "# Python",
        "All of these are names of the package: `import fedgraft as fg`, then `fg.run`. Methods are there by the names "
        "of their classes, such as `fg.FedAPA` ([methods](methods/index.md)), partition schemes likewise "
        "([partitions](../partitions.md)).",
    ]
    for kind, members in kinds.items():
        parts.append(f"## {kind}")
        parts += [f"::: {_home(homes[name], name)}\n    options:\n      heading_level: 3" for name in members]
    return "\n\n".join(parts) + "\n"


def _home(module: str, name: str) -> str:
    """Where a name is defined, which may be another module than the one that offers it."""
    found = getattr(import_module(module), name)
    return f"{getattr(found, '__module__', module)}.{name}"
