"""LeNet-5 as the federated papers use it: ReLU, max-pooling, no padding (FedAPA, section 5.1)."""

from dataclasses import dataclass

from torch import nn

from fedgraft.models.net import Blueprint, Net, Shape, Stage, convolutional, survives

STAGES = (Stage(6, kernel=5), Stage(16, kernel=5))


@dataclass(frozen=True)
class LeNet5(Blueprint):
    """Flattens to 256 values for 28x28 images, to 400 for 32x32."""

    name = "lenet5"
    syntax = "lenet5"
    about = "LeNet-5 with ReLU and max-pooling, 84 features (FedAPA)"
    inputs = "images of at least 16x16 pixels"

    def fits(self, shape: Shape) -> bool:
        return survives(STAGES, shape)

    def build(self, shape: Shape, classes: int) -> Net:
        return convolutional(STAGES, (120, 84), nn.ReLU, shape, classes)
