"""The small CNNs of APPLE and FedGPA, and one for 8x8 digits."""

from torch import nn

from fedgraft.models.net import Net, Shape, Stage, convolutional

APPLE = (Stage(20, kernel=5), Stage(50, kernel=5))
FEDGPA_GREY = (Stage(16, kernel=5), Stage(32, kernel=5, padding=1))
FEDGPA_COLOUR = (*FEDGPA_GREY, Stage(64, kernel=3, padding=1))
DIGITS = (Stage(16, kernel=3, padding=1), Stage(32, kernel=3, padding=1))


def apple(shape: Shape, classes: int) -> Net:
    """APPLE's CNN. The paper feeds it 28x28 images, resized where needed; here it takes them as they come."""
    return convolutional(APPLE, (500,), nn.ReLU, shape, classes)


def fedgpa_stages(shape: Shape) -> tuple[Stage, ...]:
    """FedGPA's two stages for grey images, three for colour."""
    return FEDGPA_GREY if shape[0] == 1 else FEDGPA_COLOUR


def fedgpa(shape: Shape, classes: int) -> Net:
    """FedGPA's CNN with leaky ReLU; the 128 features are what its prototypes live in."""
    return convolutional(fedgpa_stages(shape), (128,), nn.LeakyReLU, shape, classes)


def digits(shape: Shape, classes: int) -> Net:
    """Two padded 3x3 stages: 8x8 pixels become 2x2 and 13,706 parameters learn the digits in seconds."""
    return convolutional(DIGITS, (64,), nn.ReLU, shape, classes)
