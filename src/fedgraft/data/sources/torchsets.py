"""Any torch Dataset: a site's samples are taken from it once, as arrays."""

from typing import Any

import numpy as np

from fedgraft.base.errors import UserError
from fedgraft.data.datasets.formats import Array
from fedgraft.data.site import Site


def torch_site(train: Any, test: Any, validation: Any = None, *, name: str | None = None) -> Site:
    """Make a site of torch Datasets that give (sample, target): tensors, arrays, images of PIL, numbers.

    Args:
        train: samples to train on. Each is read once, in order, so that random transforms are frozen.
        test: samples to test on.
        validation: samples for choosing rounds and methods.
        name: the name of the site.

    Returns:
        The site, for :func:`fedgraft.own_data`.
    """
    arrays: dict[str, Array] = {}
    for part, given in (("train", train), ("test", test), ("val", validation)):
        if given is not None:
            arrays[f"x_{part}"], arrays[f"y_{part}"] = _taken(given, f"the {part} dataset of {name or 'a site'}")
    return Site(**arrays, name=name)


def _taken(given: Any, what: str) -> tuple[Array, Array]:
    items = [given[at] for at in range(len(given))] if hasattr(given, "__getitem__") else list(given)
    if not items:
        raise UserError(f"{what} is empty")
    if not all(isinstance(item, tuple | list) and len(item) == 2 for item in items):
        raise UserError(f"{what} has to give pairs of sample and target")
    try:
        x, y = (np.stack([np.asarray(item[side]) for item in items]) for side in (0, 1))
    except (ValueError, TypeError) as error:
        raise UserError(f"{what} has samples that cannot be joined: {str(error).partition(chr(10))[0]}") from None
    return x, y
