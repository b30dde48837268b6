"""One client's own samples, as arrays or tensors."""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from fedgraft.base.errors import UserError
from fedgraft.data.datasets.dataset import ARRAYS, sound
from fedgraft.data.datasets.formats import Array, Arrays


@dataclass(frozen=True, eq=False)
class Site:
    """One client's own arrays or tensors.

    Images are bytes (N, H, W) or (N, H, W, C), features are floats, tokens are whole numbers. ``x_val`` and ``y_val``
    are its validation samples, if it has some of its own; ``name`` is what reports call it.
    """

    x_train: Array | Tensor
    y_train: Array | Tensor
    x_test: Array | Tensor
    y_test: Array | Tensor
    x_val: Array | Tensor | None = None
    y_val: Array | Tensor | None = None
    name: str | None = None

    def arrays(self, number: int = 0, task: str | None = None) -> Arrays:
        """Return the arrays by name, if they can be used; ``number`` tells which site it is, if it has no name."""
        where = f"site {number}" if self.name is None else f"site {self.name!r}"
        given = {name: getattr(self, name) for name in ARRAYS}
        return sound({n: _array(v, f"{n} in {where}") for n, v in given.items() if v is not None}, where, task)


def _array(values: Array | Tensor, what: str) -> Array:
    """Take arrays, tensors of any device and lists of numbers alike."""
    try:
        if isinstance(values, Tensor):
            plain = values.detach().cpu()
            return (plain.float() if plain.dtype == torch.bfloat16 else plain).numpy()
        return np.asarray(values)
    except (TypeError, ValueError, RuntimeError) as error:
        raise UserError(f"{what} is not an array of numbers: {str(error).partition(chr(10))[0]}") from None
