"""Models by name: a word, with an argument where it takes one (`lenet5`, `mlp:200-100`, `vgg16:0.25`).

`auto` picks what fits the data. Several names joined by commas, or a family such as `vgg-family`, describe a federation
whose clients have different architectures: `fleet` says who gets which. A model of one's own is a function that builds
a module, or a `Blueprint`. Nothing here imports torch before a model is asked for.
"""

import re
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from fedgraft.base.errors import UserError, unknown
from fedgraft.base.reference import absolute, is_reference
from fedgraft.base.registry import Registry

if TYPE_CHECKING:
    from torch import nn

    from fedgraft.models.net import Blueprint, Shape

MODELS: Registry[Any] = Registry("model", __name__, group="fedgraft.models")
FAMILIES = {"vgg-family": ("vgg11", "vgg13", "vgg16", "vgg19")}
_CHOICES = ("embed", "lenet5", "cnn-digits", "mlp")
"""What `auto` tries, in this order."""


class Entry(NamedTuple):
    """One line of the catalogue."""

    name: str
    syntax: str
    description: str
    inputs: str


def build(name: str, input_shape: "Shape", classes: int) -> "nn.Module":
    """Build one model with fresh random weights from torch's global generator."""
    if len(_members(name)) > 1:
        raise UserError(f"{name} names several models, and one was asked for; a fleet gives each client one of them")
    return builder(resolve(name, input_shape, classes), input_shape, classes)()


def builder(name: str, input_shape: "Shape", classes: int) -> "Callable[[], nn.Module]":
    """Find what builds one model, whose name was resolved."""
    from torch import nn

    kind: Any
    kind, given = MODELS.prepared(name)
    if (made := _blueprint(kind, given)) is not None:
        return partial(made.build, tuple(input_shape), classes)
    if isinstance(kind, nn.Module):
        raise UserError(f"{name!r} is not a function that builds a module")
    return partial(kind, **given)


def resolve(name: str, input_shape: "Shape", classes: int, *, tokens: bool | None = None) -> str:
    """Check that a name, a comma list or a family fits the data, and give its canonical spelling.

    ``tokens`` says whether samples are whole numbers that name something, where that is known.
    """
    shape = tuple(input_shape)
    if not shape or min(shape) < 1 or classes < 1:
        raise UserError(
            f"a model needs samples of at least one value and at least one class; "
            f"this data has samples of shape {shape} and {classes} classes"
        )
    return ",".join(_resolve(part, shape, tokens) for part in _parts(name))


def fleet(name: str, clients: int) -> list[str]:
    """Give every client a model: lists and families are dealt out in equal consecutive blocks."""
    members = _members(name)
    if clients < len(members):
        raise UserError(
            f"{name} names {len(members)} models, so it needs at least {len(members)} clients; there are {clients}"
        )
    return [members[client * len(members) // clients] for client in range(clients)]


def insist(name: str) -> None:
    """Refuse a name that stands for nothing, before torch is imported."""
    for part in _parts(name):
        if not is_shipped(part) and not is_reference(word := MODELS.split(part)[0]) and word not in MODELS:
            raise unknown("model", word, [*MODELS, *FAMILIES, "auto"])


def is_shipped(name: str) -> bool:
    """Whether a text begins with the name of a model of ours: everything else may be one of somebody's own."""
    return name.partition(":")[0].partition(",")[0].strip().lower() in {*MODELS.shipped, *FAMILIES, "auto"}


def catalogue() -> list[Entry]:
    """All models, then the families."""
    models = [
        Entry(name, *(getattr(kind, fact, usual) for fact, usual in (("syntax", name), ("about", ""), ("inputs", ""))))
        for name, kind in MODELS.items()
    ]
    families = [
        Entry(
            name,
            MODELS[members[0]].syntax.replace(members[0], name),
            f"{', '.join(members)}: the clients in equal blocks",
            MODELS[members[0]].inputs,
        )
        for name, members in FAMILIES.items()
    ]
    return models + families


def _parts(name: str) -> list[str]:
    parts = [part.strip() for part in re.split(r",(?!\s*\w+\s*=)", name)]
    if not all(parts):
        raise UserError(f"{name!r} is no list of models; write names with one comma between them, such as vgg11,vgg13")
    return [part.lower() if is_shipped(part) else part for part in parts]


def _members(name: str) -> list[str]:
    members: list[str] = []
    for part in _parts(name):
        word, colon, argument = part.partition(":")
        members += [member + colon + argument for member in FAMILIES[word]] if word in FAMILIES else [part]
    return members


def _resolve(part: str, shape: "Shape", tokens: bool | None) -> str:
    if part == "auto":
        fitting = [name for name in _CHOICES if _takes(MODELS[name](), shape, bool(tokens))]
        if not fitting:
            raise UserError("no model of ours takes several rows of tokens: bring one of your own (./mynet.py:build)")
        return _resolve(fitting[0], shape, tokens)
    insist(part)
    word, colon, argument = part.partition(":")
    member = f"{FAMILIES[word][0]}{colon}{argument}" if word in FAMILIES else part
    made = _blueprint(*MODELS.prepared(member))
    if made is None:
        return absolute(part)
    if not is_shipped(part) and made.fits(shape):
        return absolute(part)
    if not _takes(made, shape, tokens):
        fitting = [name for name in MODELS.shipped if _takes(MODELS[name](), shape, bool(tokens))]
        raise UserError(
            f"{word} takes {made.inputs}, and this data has samples of "
            f"{'x'.join(map(str, shape))}{' tokens' if tokens else ''}; "
            f"what fits it: {', '.join(fitting) or 'a model of your own (./mynet.py:build)'}"
        )
    return f"{word}:{made.argument}" if made.argument else word


def _takes(made: "Blueprint", shape: "Shape", tokens: bool | None) -> bool:
    return tokens in (None, made.tokens) and made.fits(shape)


def _blueprint(kind: Any, given: dict[str, Any]) -> "Blueprint | None":
    """Make what suits itself to the data; nothing, if it is a function that builds a module."""
    from fedgraft.models.net import Blueprint

    return kind(**given) if isinstance(kind, type) and issubclass(kind, Blueprint) else None
