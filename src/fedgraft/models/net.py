"""What every shipped model has in common, and the small convolutional networks as rows of a table."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import ClassVar, NamedTuple

from torch import Tensor, nn

Shape = tuple[int, ...]
"""What one sample looks like: (channels, height, width) for images, (features,) for tables, (length,) for tokens."""


class Net(nn.Module):
    """An extractor and a head: `head` is the last fully connected layer, and what enters it are the features.

    The extractor is flat and in forward order, so that parameter names compare layer by layer.
    """

    def __init__(self, extractor: Sequence[nn.Module], features: int, classes: int) -> None:
        super().__init__()
        self.extractor = nn.Sequential(*extractor)
        self.head = nn.Linear(features, classes)

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.head(self.extractor(x))
        return logits


@dataclass(frozen=True)
class Blueprint(ABC):
    """A network that suits itself to the data: a frozen dataclass of its parameters, which has a name.

    The only parameter is written bare on the command line (``mlp:200-100``); ``argument`` is its canonical spelling.
    """

    name: ClassVar[str]
    syntax: ClassVar[str]
    about: ClassVar[str]
    inputs: ClassVar[str] = "other samples"
    tokens: ClassVar[bool] = False
    """Whether it takes whole numbers that name something, and nothing else."""

    @property
    def argument(self) -> str:
        return ""

    def fits(self, shape: Shape) -> bool:
        """Whether it can take samples of this shape."""
        return True

    @abstractmethod
    def build(self, shape: Shape, classes: int) -> nn.Module:
        """Build it with fresh random weights from torch's global generator."""


class Stage(NamedTuple):
    """One convolution followed by 2x2 max-pooling and the activation."""

    channels: int
    kernel: int
    padding: int = 0

    def side(self, side: int) -> int:
        """Pixels that are left of an edge of `side` pixels."""
        return max(side + 2 * self.padding - self.kernel + 1, 0) // 2


def is_image(shape: Shape) -> bool:
    """Tell images (channels, height, width) from everything else."""
    return len(shape) == 3


def sides_after(stages: Sequence[Stage], shape: Shape) -> tuple[int, int]:
    """Height and width of an image behind the stages; 0 where nothing is left."""
    _, height, width = shape
    for stage in stages:
        height, width = stage.side(height), stage.side(width)
    return height, width


def survives(stages: Sequence[Stage], shape: Shape) -> bool:
    """Whether an input is an image large enough for all the stages."""
    return is_image(shape) and min(sides_after(stages, shape)) > 0


def convolutional(
    stages: Sequence[Stage],
    hidden: Sequence[int],
    activation: Callable[[], nn.Module],
    shape: Shape,
    classes: int,
) -> Net:
    """Build stages, flatten, hidden fully connected layers and the head.

    Max-pooling commutes with a function that never falls: pooling before ReLU or leaky ReLU gives the same
    values as the textbook order and leaves the activation a quarter of the work.
    """
    layers: list[nn.Module] = []
    channels = shape[0]
    for stage in stages:
        convolution = nn.Conv2d(channels, stage.channels, stage.kernel, padding=stage.padding)
        layers += [convolution, nn.MaxPool2d(2), activation()]
        channels = stage.channels
    height, width = sides_after(stages, shape)
    flat = channels * height * width
    return Net([*layers, *dense(flat, hidden, activation)], (flat, *hidden)[-1], classes)


def dense(inputs: int, hidden: Sequence[int], activation: Callable[[], nn.Module]) -> list[nn.Module]:
    """Flatten, then a fully connected layer with its activation for each size in `hidden`."""
    layers: list[nn.Module] = [nn.Flatten()]
    for before, after in pairwise((inputs, *hidden)):
        layers += [nn.Linear(before, after), activation()]
    return layers
