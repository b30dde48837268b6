"""Flags that several commands share, most of them made from the settings of a run, and what stands for one left out."""

import inspect
from collections.abc import Callable, Collection
from pathlib import Path
from types import NoneType
from typing import Annotated, Any, Literal, get_args, get_origin

import typer
from pydantic.fields import FieldInfo

from fedgraft.runs.config import RunConfig, TrainingConfig

PANELS = {
    "dataset data_dir clients partition validation normalise augment resize": "Data",
    "model head kernels": "Model",
    "rounds seed participation evaluate_every global_test checkpoint_every": "Rounds",
    "max_norm outlier_factor averaging": "Server",
    "workers retries failed_client deadline device": "Machine",
}


def _option(name: str, info: FieldInfo) -> inspect.Parameter:
    """Make a flag of a setting."""
    kind: Any = info.annotation
    choices = get_args(kind)
    if get_origin(kind) is Literal or any(get_origin(choice) is Literal for choice in choices) or kind is dict:
        kind = str
    elif choices:
        kind = next(choice for choice in choices if choice is not NoneType)
    default = info.get_default(call_default_factory=True)
    words = get_args(info.annotation) if get_origin(info.annotation) is Literal else ()
    text = (info.description or "") + (f" ({', '.join(words)})" if words else "")
    text += "" if default is None else f" (default {str(default).lower() if kind is bool else default})"
    flag = "--" + name.replace("_", "-")
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


def with_settings(command: Callable[..., None], *, without: Collection[str] = ()) -> Callable[..., None]:
    """Give a command one flag for each setting of a run; the command gets those that were typed as ``settings``."""
    skipped = {"method", "params", "training", *without}
    flags = [_option(n, info) for n, info in RunConfig.model_fields.items() if n not in skipped]
    flags += [_option(n, info) for n, info in TrainingConfig.model_fields.items()]
    own = inspect.signature(command).parameters

    def typed(**values: Any) -> None:
        given = {flag.name: values.pop(flag.name) for flag in flags}
        command(**values, settings={name: value for name, value in given.items() if value is not None})

    parameters = [p.replace(kind=inspect.Parameter.KEYWORD_ONLY) for n, p in own.items() if n != "settings"]
    typed.__signature__ = inspect.Signature([*parameters, *flags])  # type: ignore[attr-defined]
    typed.__name__, typed.__doc__ = command.__name__, command.__doc__
    return typed


Json = Annotated[bool, typer.Option("--json", help="Print the facts for programs.")]
Set = Annotated[
    list[str] | None,
    typer.Option("--set", help="A hyper-parameter of the method, as name=value.", metavar="NAME=VALUE"),
]
Recipe = Annotated[str | None, typer.Option("--recipe", help="Settings of a paper: fedapa, apple, fedppa, fedgpa.")]
ConfigFile = Annotated[Path | None, typer.Option("--config", help="A TOML file with settings; flags override it.")]
Report = Annotated[bool, typer.Option("--report", help="Also write report.html into the directory.")]
Track = Annotated[
    list[str] | None, typer.Option("--track", help="Also tell tensorboard or mlflow how it goes.", metavar="TRACKER")
]


def default_directory(name: str) -> Path:
    """Return runs/<name>, with a number behind it where that is taken."""
    candidate, number = Path("runs") / name, 2
    while candidate.exists():
        candidate, number = Path("runs") / f"{name}-{number}", number + 1
    return candidate
