"""A client's data, held as whole tensors: a batch is one gather and one conversion, never a Python loop."""

from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor


@dataclass(frozen=True)
class Preparation:
    """How raw inputs become what the network sees.

    Images are kept as bytes in (N, height, width, channels) order and become normalised floats, as a channels_last
    view of (N, channels, height, width), only when a batch is drawn. Everything else passes through as it is.
    """

    mean: tuple[float, ...] = ()
    std: tuple[float, ...] = ()
    crop: int = 0
    flip: bool = False

    @property
    def augments(self) -> bool:
        """Whether training may see anything else than the samples as they are."""
        return bool(self.crop or self.flip) or type(self) is not Preparation

    def apply(self, raw: Tensor, generator: torch.Generator | None = None) -> Tensor:
        """Prepare a batch; with a ``generator``, augmented as training wants it."""
        if raw.dtype != torch.uint8:
            return raw
        if generator is not None and self.crop:
            raw = _random_crop(raw, self.crop, generator)
        if generator is not None and self.flip:
            raw = _random_flip(raw, generator)
        count, height, width, channels = raw.shape
        scale, shift = _affine(self.mean, self.std, width, channels)
        flat = raw.to(torch.float32).view(count, height, width * channels).mul_(scale).add_(shift)
        return flat.view(count, height, width, channels).permute(0, 3, 1, 2)


@dataclass(frozen=True, eq=False)
class Samples:
    """Inputs and labels of one split of one client."""

    inputs: Tensor
    labels: Tensor
    preparation: Preparation = Preparation()

    def __len__(self) -> int:
        return len(self.labels)

    def batch(self, index: Tensor | slice, generator: torch.Generator | None = None) -> tuple[Tensor, Tensor]:
        """The samples at ``index``, ready for the network; augmented if a ``generator`` is given."""
        raw = self.inputs[index] if isinstance(index, slice) else self.inputs.index_select(0, index)
        return self.preparation.apply(raw, generator), self.labels[index]

    def counts(self, classes: int) -> Tensor:
        """How many samples of each class there are."""
        return torch.bincount(self.labels, minlength=classes)

    def subset(self, index: Tensor) -> "Samples":
        return Samples(self.inputs[index], self.labels[index], self.preparation)


@dataclass(frozen=True, eq=False)
class ClientData:
    """What lies at one client: it is read there and nowhere else."""

    train: Samples
    test: Samples
    validation: Samples


@lru_cache(maxsize=64)
def _affine(mean: tuple[float, ...], std: tuple[float, ...], width: int, channels: int) -> tuple[Tensor, Tensor]:
    """Scale and shift of a row of pixels: as long as a row, because torch is slow on a last dimension of three."""
    means = torch.tensor(mean or (0.5,), dtype=torch.float32).expand(channels)
    stds = torch.tensor(std or (0.5,), dtype=torch.float32).expand(channels)
    return (1 / (255 * stds)).repeat(width), (-means / stds).repeat(width)


def _random_crop(images: Tensor, margin: int, generator: torch.Generator) -> Tensor:
    count, height, width, channels = images.shape
    padded = torch.nn.functional.pad(images, (0, 0, margin, margin, margin, margin))
    places = 2 * margin + 1
    top, left = torch.randint(0, places, (2, count), generator=generator)
    image, row, column, _ = padded.stride()
    first = torch.arange(count) * image + top * row + left * column
    # the window that begins at every byte, as a view: those that are picked are copied in whole rows
    starts = padded.numel() - (height - 1) * row - width * channels + 1
    windows = padded.as_strided((starts, height, width * channels), (1, row, 1))
    return windows.index_select(0, first).view(images.shape)


def _random_flip(images: Tensor, generator: torch.Generator) -> Tensor:
    mirrored = (torch.rand(len(images), generator=generator) < 0.5).nonzero().flatten()
    return images.index_copy(0, mirrored, images.index_select(0, mirrored).flip(2))
