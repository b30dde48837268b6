"""LeNet-5 as the federated papers use it: ReLU, max-pooling, no padding (FedAPA, section 5.1)."""

from torch import nn

from fedgraft.models.net import Net, Shape, Stage, convolutional

STAGES = (Stage(6, kernel=5), Stage(16, kernel=5))


def lenet5(shape: Shape, classes: int) -> Net:
    """Flattens to 256 values for 28x28 images, to 400 for 32x32."""
    return convolutional(STAGES, (120, 84), nn.ReLU, shape, classes)
