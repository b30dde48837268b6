"""VGG with batch normalisation, the family of FlexiFed (doi 10.1145/3543507.3583347) and FedPPA.

Simonyan and Zisserman's 3x3 convolutions with the classifier 512-4096-4096-classes of FlexiFed's code. Layers
are numbered in forward order in one flat container, pooling included, so the members of the family agree on a
prefix: VGG-11 with any other on 1 convolution, VGG-13 with VGG-16 and VGG-19 on 6, VGG-16 with VGG-19 on 7.
"""

from dataclasses import dataclass
from itertools import pairwise
from math import sqrt
from typing import ClassVar

from torch import nn

from fedgraft.base.errors import UserError
from fedgraft.models.net import Blueprint, Net, Shape, is_image

CHANNELS = (64, 128, 256, 512, 512)
CLASSIFIER = 4096
SMALLEST = 32  # five poolings leave one pixel of it
WIDEST = 4.0


def width_factor(text: str) -> float:
    """Read the width as it is written in `vgg16:0.25`."""
    try:
        width = float(text)
    except ValueError:
        width = 0.0
    if not 0 < width <= WIDEST:
        raise UserError(
            f"the width of a VGG is a factor above 0 and up to {WIDEST:g}, such as vgg16:0.25; {text!r} is not"
        )
    return width


@dataclass(frozen=True)
class VGG(Blueprint):
    """A member of the family; `width` scales the channels and the classifier."""

    width: float | str = 1.0

    inputs = "images of any size, with a zero border up to 32x32 pixels"
    blocks: ClassVar[tuple[int, ...]]
    """Convolutions in each of the five blocks; a 2x2 max-pooling ends a block."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "width", width_factor(str(self.width)))

    @property
    def argument(self) -> str:
        return "" if self.width == 1 else str(self.width).removesuffix(".0")

    def fits(self, shape: Shape) -> bool:
        return is_image(shape)

    def build(self, shape: Shape, classes: int) -> Net:
        channels, rows, columns = shape
        width = float(self.width)
        layers: list[nn.Module] = []
        for convolutions, full in zip(self.blocks, CHANNELS, strict=True):
            for index in range(convolutions):
                # Smaller images get their zero border from the first convolution: the same numbers as padding the
                # image, and layer names that do not depend on its size.
                padding = 1 if layers else (1 + border(rows), 1 + border(columns))
                scaled = scale(full, width)
                layers += [flexifed_init(nn.Conv2d(channels, scaled, 3, padding=padding)), nn.BatchNorm2d(scaled)]
                # Before ReLU, with which max-pooling commutes; after the normalisation, with which it does not.
                layers += [nn.MaxPool2d(2)] if index == convolutions - 1 else []
                layers += [nn.ReLU()]
                channels = scaled
        layers += [nn.Flatten()]
        flat = channels * max(rows // SMALLEST, 1) * max(columns // SMALLEST, 1)
        hidden = scale(CLASSIFIER, width)
        for before, after in pairwise((flat, hidden, hidden)):
            layers += [nn.Dropout(), nn.Linear(before, after), nn.ReLU()]
        return Net(layers, hidden, classes)


@dataclass(frozen=True)
class VGG11(VGG):
    """VGG-11."""

    name = "vgg11"
    syntax = "vgg11[:WIDTH]"
    about = "VGG-11 with batch normalisation and a 4096-4096 classifier (FlexiFed)"
    blocks = (1, 1, 2, 2, 2)


@dataclass(frozen=True)
class VGG13(VGG):
    """VGG-13."""

    name = "vgg13"
    syntax = "vgg13[:WIDTH]"
    about = "VGG-13 with batch normalisation and a 4096-4096 classifier (FlexiFed)"
    blocks = (2, 2, 2, 2, 2)


@dataclass(frozen=True)
class VGG16(VGG):
    """VGG-16."""

    name = "vgg16"
    syntax = "vgg16[:WIDTH]"
    about = "VGG-16 with batch normalisation and a 4096-4096 classifier (FlexiFed)"
    blocks = (2, 2, 3, 3, 3)


@dataclass(frozen=True)
class VGG19(VGG):
    """VGG-19."""

    name = "vgg19"
    syntax = "vgg19[:WIDTH]"
    about = "VGG-19 with batch normalisation and a 4096-4096 classifier (FlexiFed)"
    blocks = (2, 2, 4, 4, 4)


def border(side: int) -> int:
    """Zeros on either side that bring an edge to 32 pixels (33 for an odd one, which pools to the same)."""
    return max(SMALLEST - side + 1, 0) // 2


def scale(size: int, width: float) -> int:
    """At least one channel is left, however narrow the network."""
    return max(round(size * width), 1)


def flexifed_init(convolution: nn.Conv2d) -> nn.Conv2d:
    """Draw the weights from N(0, 2 / (kernel area x output channels)) and set the bias to zero."""
    area = convolution.kernel_size[0] * convolution.kernel_size[1]
    nn.init.normal_(convolution.weight, std=sqrt(2 / (area * convolution.out_channels)))
    assert convolution.bias is not None
    nn.init.zeros_(convolution.bias)
    return convolution
