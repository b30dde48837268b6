"""The small CNNs of APPLE and FedGPA, and one for 8x8 digits."""

from dataclasses import dataclass

from torch import nn

from fedgraft.models.net import Blueprint, Net, Shape, Stage, convolutional, is_image, survives

APPLE = (Stage(20, kernel=5), Stage(50, kernel=5))
FEDGPA_GREY = (Stage(16, kernel=5), Stage(32, kernel=5, padding=1))
FEDGPA_COLOUR = (*FEDGPA_GREY, Stage(64, kernel=3, padding=1))
DIGITS = (Stage(16, kernel=3, padding=1), Stage(32, kernel=3, padding=1))


@dataclass(frozen=True)
class CNNDigits(Blueprint):
    """Two padded 3x3 stages: 8x8 pixels become 2x2 and 13,706 parameters learn the digits in seconds."""

    name = "cnn-digits"
    syntax = "cnn-digits"
    about = "two 3x3 stages of 16 and 32 channels, 64 features; made for 8x8 digits"
    inputs = "images of at least 4x4 pixels"

    def fits(self, shape: Shape) -> bool:
        return survives(DIGITS, shape)

    def build(self, shape: Shape, classes: int) -> Net:
        return convolutional(DIGITS, (64,), nn.ReLU, shape, classes)


@dataclass(frozen=True)
class CNNApple(Blueprint):
    """APPLE's CNN. The paper feeds it 28x28 images, resized where needed; here it takes them as they come."""

    name = "cnn-apple"
    syntax = "cnn-apple"
    about = "two 5x5 stages of 20 and 50 channels, 500 features (APPLE, on 28x28 images)"
    inputs = "images of at least 16x16 pixels"

    def fits(self, shape: Shape) -> bool:
        return survives(APPLE, shape)

    def build(self, shape: Shape, classes: int) -> Net:
        return convolutional(APPLE, (500,), nn.ReLU, shape, classes)


@dataclass(frozen=True)
class CNNFedGPA(Blueprint):
    """FedGPA's CNN with leaky ReLU; the 128 features are what its prototypes live in."""

    name = "cnn-fedgpa"
    syntax = "cnn-fedgpa"
    about = "two stages for one channel, three for more, leaky ReLU, 128 features (FedGPA)"
    inputs = "images of at least 12x12 pixels with one channel, 16x16 with more"

    def fits(self, shape: Shape) -> bool:
        return is_image(shape) and survives(_fedgpa_stages(shape), shape)

    def build(self, shape: Shape, classes: int) -> Net:
        return convolutional(_fedgpa_stages(shape), (128,), nn.LeakyReLU, shape, classes)


def _fedgpa_stages(shape: Shape) -> tuple[Stage, ...]:
    """FedGPA's two stages for grey images, three for colour."""
    return FEDGPA_GREY if shape[0] == 1 else FEDGPA_COLOUR
