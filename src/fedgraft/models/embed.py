"""A network for tokens: each is embedded, and the window is read by fully connected layers (Bengio et al., 2003)."""

from dataclasses import dataclass

from torch import Tensor, nn

from fedgraft.base.errors import UserError
from fedgraft.models.mlp import LARGEST, sizes
from fedgraft.models.net import Blueprint, Net, Shape, dense


class Tokens(nn.Embedding):
    """A vector for each token; what is beyond the vocabulary counts as its last token, which stands for any other."""

    def forward(self, tokens: Tensor) -> Tensor:
        return super().forward(tokens.clamp(0, self.num_embeddings - 1))


@dataclass(frozen=True)
class Embed(Blueprint):
    """Embed every token of a window, flatten, then one ReLU layer for each size in `hidden`."""

    hidden: int | str = "128"
    width: int = 16
    vocabulary: int = 0

    name = "embed"
    syntax = "embed[:hidden=SIZE-SIZE-...,width=SIZE,vocabulary=COUNT]"
    about = "tokens as vectors (16), then fully connected ReLU layers (128); by default as many tokens as outputs"
    inputs = "tokens (whole numbers)"
    tokens = True

    def __post_init__(self) -> None:
        object.__setattr__(self, "hidden", "-".join(str(size) for size in sizes(str(self.hidden))))
        for what, value, least in (("width", self.width, 1), ("vocabulary", self.vocabulary, 0)):
            if not isinstance(value, int) or not least <= value <= LARGEST:
                raise UserError(f"the {what} of embed is a whole number from {least} to {LARGEST}, not {value!r}")

    @property
    def argument(self) -> str:
        told = {"hidden": self.hidden, "width": self.width, "vocabulary": self.vocabulary}
        usual = {"hidden": "128", "width": 16, "vocabulary": 0}
        return ",".join(f"{name}={value}" for name, value in told.items() if value != usual[name])

    def build(self, shape: Shape, classes: int) -> Net:
        length, hidden = shape[0], sizes(str(self.hidden))
        layers = [Tokens(self.vocabulary or classes, self.width), *dense(length * self.width, hidden, nn.ReLU)]
        return Net(layers, hidden[-1], classes)

    def fits(self, shape: Shape) -> bool:
        return len(shape) == 1
