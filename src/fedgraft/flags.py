"""Flags that several commands share, most of them made from the settings of a run, and what stands for one left out."""

import inspect
import os
import re
from collections.abc import Callable, Collection
from dataclasses import fields
from pathlib import Path
from types import NoneType
from typing import Annotated, Any, Literal, get_args, get_origin

import click
import typer
from pydantic.fields import FieldInfo
from typer.core import TyperCommand, TyperGroup

from fedgraft.base.errors import UserError
from fedgraft.core.settings import Training
from fedgraft.runs.config import AT, GONE, At, RunConfig, gone, runs_folder
from fedgraft.runs.config import flag as typed_as

PANELS = {
    "dataset data_dir clients partition validation normalise augment resize target site_column split test_share window "
    "ignore categories task": "Data",
    "model head kernels together": "Model",
    "rounds seed data_seed participation hold_out start_from evaluate_every global_test checkpoint_every": "Rounds",
    "epsilon delta noise sample_clip feature_clip client_epsilon client_noise client_clip client_quantile": "Privacy",
    "stages": "Messages and server",
    "engine workers retries failed_client deadline device": "Machine",
}


class Commands(TyperGroup):
    """A group of commands. It says once what an unknown one may have meant: Click and Typer each say it."""

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        try:
            return super().resolve_command(ctx, args)
        except click.UsageError as error:
            said, *meant = error.format_message().split(" Did you mean")
            if len(meant) < 2:
                raise
            raise click.UsageError(f"{said} Did you mean{meant[-1]}", ctx) from None


def _option(name: str, info: FieldInfo) -> inspect.Parameter:
    """Make a flag of a setting."""
    kind: Any = info.annotation
    choices = get_args(kind)
    if get_origin(kind) is Literal or any(get_origin(choice) is Literal for choice in choices) or kind is dict:
        kind = str
    elif get_origin(kind) is tuple:
        kind = list[str]
    elif choices:
        kind = next(choice for choice in choices if choice is not NoneType)
    default = info.get_default(call_default_factory=True)
    words = get_args(info.annotation) if get_origin(info.annotation) is Literal else ()
    text = (info.description or "") + (f" ({', '.join(words)})" if words else "")
    text += " (may be given several times)" if kind == list[str] else ""
    default = ", ".join(default) if kind == list[str] else str(default).lower() if kind is bool else default
    text += "" if default in (None, "") else f" (default {default})"
    flag = typed_as(name)
    panel = next((title for names, title in PANELS.items() if name in names.split()), "Local training")
    declaration = f"{flag}/--no-{flag[2:]}" if kind is bool else flag
    return inspect.Parameter(
        name,
        inspect.Parameter.KEYWORD_ONLY,
        default=None,
        annotation=Annotated[
            kind | None, typer.Option(declaration, help=text, show_default=False, rich_help_panel=panel)
        ],
    )


EVERY = {**RunConfig.model_fields, **Training.model_fields}


def with_settings(command: Callable[..., None], *, without: Collection[str] = ()) -> Callable[..., None]:
    """Give a command one flag for each setting of a run; the command gets those that were typed as ``settings``."""
    skipped = {"method", "params", "training", *without}
    flags = [_option(name, info) for name, info in EVERY.items() if name not in skipped]
    own = inspect.signature(command).parameters

    def typed(**values: Any) -> None:
        given = {flag.name: values.pop(flag.name) for flag in flags}
        command(**values, settings={name: value for name, value in given.items() if value not in (None, [])})

    parameters = [p.replace(kind=inspect.Parameter.KEYWORD_ONLY) for n, p in own.items() if n != "settings"]
    typed.__signature__ = inspect.Signature([*parameters, *flags])  # type: ignore[attr-defined]
    typed.__name__, typed.__doc__ = command.__name__, command.__doc__
    return typed


LONGEST_PART = 255
"""Bytes of a name that file systems take."""


def nameable(value: Path | list[Path] | None) -> Path | list[Path] | None:
    """Refuse a path that no file system takes, before anything is looked for there."""
    for path in value if isinstance(value, list) else [value] if value else []:
        for part in path.parts:
            if len(os.fsencode(part)) > LONGEST_PART:
                raise UserError(f"nothing can be called {part[:20]}...: a name has at most {LONGEST_PART} bytes")
    return value


Json = Annotated[bool, typer.Option("--json", help="Print JSON, for programs.")]
Set = Annotated[
    list[str] | None,
    typer.Option("--set", help="A hyper-parameter of the method, as name=value.", metavar="NAME=VALUE"),
]
Recipe = Annotated[str | None, typer.Option("--recipe", help="Settings of a paper: fedapa, apple, fedppa, fedgpa.")]
ConfigFile = Annotated[
    Path | None, typer.Option("--config", help="A TOML file with settings; flags override it.", callback=nameable)
]
Point = Annotated[
    At,
    typer.Option(
        "--point",
        click_type=click.Choice(AT),
        help="Which models are compared: trained, received from the server, or own, as in each method's paper.",
    ),
]
Metric = Annotated[
    str | None,
    typer.Option(
        "--metric", help="The metric for the comparison, such as auc (default: the leading metric of the run)."
    ),
]
Report = Annotated[bool, typer.Option("--report", help="Also write report.html into the directory.")]
Track = Annotated[
    list[str] | None, typer.Option("--track", help="Also log to tensorboard or mlflow.", metavar="TRACKER")
]


Workers = Annotated[
    str | None, typer.Option("--workers", help="Worker processes of a run; the result does not depend on them.")
]
Parallel = Annotated[
    str,
    typer.Option(
        "--parallel", help="Runs at the same time on this machine; auto: as many as are fastest, which is measured.",
        metavar="N|auto",
    ),
]  # fmt: skip
Fresh = Annotated[
    bool, typer.Option("--fresh", help="Compute all runs, also those that were computed before (docs/clusters.md).")
]
Slurm = Annotated[
    str | None,
    typer.Option(
        "--slurm", help="Submit the runs as an array of Slurm jobs, such as partition=gpu,time=4:00:00,cpus=8.",
        metavar="OPTIONS",
    ),
]  # fmt: skip
DryRun = Annotated[bool, typer.Option("--dry-run", help="With --slurm: print what would be submitted, write nothing.")]


class MethodCommand(TyperCommand):
    """A command about methods: somebody who types a hyper-parameter as an option is told how it is set."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        words = list(args)  # click takes away what it understands
        try:
            return super().parse_args(ctx, args)
        except click.NoSuchOption as error:
            _point_to_stage(error.option_name, words)
            _point_to_set(error.option_name, words, "--set" in {flag for each in self.params for flag in each.opts})
            raise


def _point_to_stage(option: str, words: list[str]) -> None:
    """Refuse an option that became a stage."""
    name = option.lstrip("-").replace("-", "_")
    if name in GONE:
        raise UserError(gone(name, _typed(option, words)))


def _typed(option: str, words: list[str]) -> str:
    """The value that was typed for an option, or a word for one."""
    at = next((number for number, word in enumerate(words) if word.partition("=")[0] == option), len(words))
    return "".join(words[at : at + 1]).partition("=")[2] or "".join(words[at + 1 : at + 2]) or "VALUE"


def _point_to_set(option: str, words: list[str], settable: bool) -> None:
    """Refuse an option that is a hyper-parameter of a method on the same line."""
    from fedgraft.methods import METHODS

    parameter = option.lstrip("-").replace("-", "_")
    value = _typed(option, words)
    for name in (word.partition(":")[0] for word in words):
        if name in METHODS and parameter in {field.name for field in fields(METHODS[name])}:
            how = f"--set {parameter}={value}" if settable else f"{name}:{parameter}={value}"
            raise UserError(f"there is no option {option}, but {name} has a hyper-parameter {parameter}: write {how}")


def default_directory(*parts: str) -> Path:
    """Return runs/<parts>, with a number behind it where that is taken."""
    return free(runs_folder() / "-".join(re.sub(r"[^\w.+=-]+", "-", part) for part in parts))


def free(path: Path, ending: str = "") -> Path:
    """Return a path, with a number behind its name, before its ``ending``, where that is taken."""
    candidate, number = path, 2
    while candidate.exists():
        candidate, number = path.with_name(f"{path.name.removesuffix(ending)}-{number}{ending}"), number + 1
    return candidate
