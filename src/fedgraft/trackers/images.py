"""Matrices as images, for trackers that show images."""

from typing import Any

import numpy as np
from torch import Tensor

Image = np.ndarray[Any, np.dtype[np.uint8]]

_BLUES = np.array([[247, 249, 251], [147, 196, 222], [23, 100, 171], [8, 48, 107]])
_SIDE = 256


def image(matrix: Tensor) -> Image | None:
    """Return a matrix as height x width x RGB, from pale (its smallest value) to dark; none for anything else."""
    values = matrix.detach().cpu().double().numpy()
    if values.ndim != 2 or not values.size or not np.isfinite(values).all():
        return None
    low, high = values.min(), values.max()
    level = (values - low) / ((high - low) or 1.0) * (len(_BLUES) - 1)
    stops = np.arange(len(_BLUES))
    pixels = np.stack([np.interp(level, stops, _BLUES[:, channel]) for channel in range(3)], axis=-1)
    scale = max(1, _SIDE // max(values.shape))
    return pixels.round().astype(np.uint8).repeat(scale, axis=0).repeat(scale, axis=1)
