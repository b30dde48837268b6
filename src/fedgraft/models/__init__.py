"""The shipped models by name.

A name is a word with an optional argument (`lenet5`, `mlp:200-100`, `vgg16:0.25`). `auto` picks what fits the
data. Several names joined by commas, or a family such as `vgg-family`, describe a federation whose clients
have different architectures: `fleet` says who gets which.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

from torch import nn

from fedgraft.base.errors import UserError, unknown
from fedgraft.models import cnn, lenet, mlp, vgg
from fedgraft.models.net import Net, Shape, is_image, survives

__all__ = ["Entry", "Net", "Shape", "build", "catalogue", "fleet", "is_shipped", "resolve"]


class Entry(NamedTuple):
    """One line of the catalogue."""

    name: str
    syntax: str
    description: str
    inputs: str


@dataclass(frozen=True)
class Blueprint:
    """What the registry knows of a model; `canonical` checks the text behind the colon and tidies it."""

    description: str
    inputs: str
    fits: Callable[[Shape], bool]
    make: Callable[[str, Shape, int], Net]
    canonical: Callable[[str], str] | None = None
    argument: str = ""


def _plain(make: Callable[[Shape, int], Net]) -> Callable[[str, Shape, int], Net]:
    return lambda _, shape, classes: make(shape, classes)


def _mlp(argument: str, shape: Shape, classes: int) -> Net:
    return mlp.mlp(mlp.sizes(argument), shape, classes)


def _mlp_argument(text: str) -> str:
    return "-".join(str(size) for size in mlp.sizes(text or "200"))


def _vgg(name: str, argument: str, shape: Shape, classes: int) -> Net:
    return vgg.vgg(name, vgg.width_factor(argument or "1"), shape, classes)


def _vgg_argument(text: str) -> str:
    width = vgg.width_factor(text or "1")
    return "" if width == 1 else str(width).removesuffix(".0")


def _anything(shape: Shape) -> bool:
    return len(shape) > 0


BLUEPRINTS = {
    "linear": Blueprint("softmax regression", "anything, flattened", _anything, _plain(mlp.linear)),
    "mlp": Blueprint(
        "fully connected ReLU layers of the sizes given; one of 200 unless told",
        "anything, flattened",
        _anything,
        _mlp,
        _mlp_argument,
        ":SIZE-SIZE-...",
    ),
    "cnn-digits": Blueprint(
        "two 3x3 stages of 16 and 32 channels, 64 features; made for 8x8 digits",
        "images of at least 4x4 pixels",
        partial(survives, cnn.DIGITS),
        _plain(cnn.digits),
    ),
    "lenet5": Blueprint(
        "LeNet-5 with ReLU and max-pooling, 84 features (FedAPA)",
        "images of at least 16x16 pixels",
        partial(survives, lenet.STAGES),
        _plain(lenet.lenet5),
    ),
    "cnn-apple": Blueprint(
        "two 5x5 stages of 20 and 50 channels, 500 features (APPLE, on 28x28 images)",
        "images of at least 16x16 pixels",
        partial(survives, cnn.APPLE),
        _plain(cnn.apple),
    ),
    "cnn-fedgpa": Blueprint(
        "two stages for one channel, three for more, leaky ReLU, 128 features (FedGPA)",
        "images of at least 12x12 pixels with one channel, 16x16 with more",
        lambda shape: survives(cnn.fedgpa_stages(shape), shape),
        _plain(cnn.fedgpa),
    ),
    **{
        name: Blueprint(
            f"VGG-{name.removeprefix('vgg')} with batch normalisation and a 4096-4096 classifier (FlexiFed)",
            "images of any size, with a zero border up to 32x32 pixels",
            is_image,
            partial(_vgg, name),
            _vgg_argument,
            ":WIDTH",
        )
        for name in vgg.BLOCKS
    },
}
FAMILIES = {"vgg-family": tuple(vgg.BLOCKS)}


def build(name: str, input_shape: Shape, classes: int) -> nn.Module:
    """Build one model with fresh random weights from torch's global generator."""
    if len(_members(name)) > 1:
        raise UserError(f"{name} names several models, and one was asked for; a fleet gives each client one of them")
    word, _, argument = resolve(name, input_shape, classes).partition(":")
    return BLUEPRINTS[word].make(argument, tuple(input_shape), classes)


def resolve(name: str, input_shape: Shape, classes: int) -> str:
    """Check that a name, a comma list or a family fits the data, and give its canonical spelling."""
    shape = tuple(input_shape)
    if not shape or min(shape) < 1 or classes < 1:
        raise UserError(
            f"a model needs samples of at least one value and at least one class; "
            f"this data has samples of shape {shape} and {classes} classes"
        )
    return ",".join(_resolve(part, shape) for part in _parts(name))


def fleet(name: str, clients: int) -> list[str]:
    """Give every client a model: lists and families are dealt out in equal consecutive blocks."""
    members = _members(name)
    if clients < len(members):
        raise UserError(
            f"{name} names {len(members)} models, so it needs at least {len(members)} clients; there are {clients}"
        )
    return [members[client * len(members) // clients] for client in range(clients)]


def is_shipped(name: str) -> bool:
    """Whether a text begins with the name of a model of ours: everything else may be one of somebody's own."""
    return name.partition(":")[0].partition(",")[0].strip().lower() in {*BLUEPRINTS, *FAMILIES, "auto"}


def catalogue() -> list[Entry]:
    """All models, then the families."""
    models = [
        Entry(name, name + (f"[{a.argument}]" if a.argument else ""), a.description, a.inputs)
        for name, a in BLUEPRINTS.items()
    ]
    families = [
        Entry(
            name,
            f"{name}[{BLUEPRINTS[members[0]].argument}]",
            f"{', '.join(members)}: the clients in equal blocks",
            BLUEPRINTS[members[0]].inputs,
        )
        for name, members in FAMILIES.items()
    ]
    return models + families


def _parts(name: str) -> list[str]:
    parts = [part.strip().lower() for part in name.split(",")]
    if not all(parts):
        raise UserError(f"{name!r} is no list of models; write names with one comma between them, such as vgg11,vgg13")
    return parts


def _members(name: str) -> list[str]:
    members: list[str] = []
    for part in _parts(name):
        word, colon, argument = part.partition(":")
        members += [member + colon + argument for member in FAMILIES.get(word, (word,))]
    return members


def _resolve(part: str, shape: Shape) -> str:
    word, _, argument = part.partition(":")
    if part == "auto":
        return _auto(shape)
    if word not in BLUEPRINTS and word not in FAMILIES:
        raise unknown("model", word, [*BLUEPRINTS, *FAMILIES, "auto"])
    architecture = BLUEPRINTS[FAMILIES.get(word, (word,))[0]]
    if not architecture.fits(shape):
        fitting = [name for name, other in BLUEPRINTS.items() if other.fits(shape)]
        raise UserError(
            f"{word} takes {architecture.inputs}, and this data has samples of "
            f"{'x'.join(map(str, shape))}; what fits it: {', '.join(fitting)}"
        )
    if architecture.canonical is None:
        if argument:
            raise UserError(f"the model {word} takes no argument; write {word} instead of {part}")
        return word
    tidy = architecture.canonical(argument)
    return f"{word}:{tidy}" if tidy else word


def _auto(shape: Shape) -> str:
    """LeNet-5 for images it fits, the digits' CNN for smaller ones, an mlp for all the rest."""
    choice = next((name for name in ("lenet5", "cnn-digits") if BLUEPRINTS[name].fits(shape)), "mlp")
    return _resolve(choice, shape)
