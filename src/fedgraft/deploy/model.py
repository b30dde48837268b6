"""A site's own model, at the site: where training left it, and as a network that is ready for use."""

from collections.abc import Callable
from functools import partial
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from torch import nn

from fedgraft import models
from fedgraft.base import disk
from fedgraft.base.errors import UserError
from fedgraft.engines.flower.site import describe, personal_model


def fetch(site: Path, out: Path) -> dict[str, str]:
    """Copy the site's newest model to ``out`` and return what is known of it."""
    source = personal_model(describe(site))
    if out.exists():
        raise UserError(f"{out} is there already; name another file with --out")
    facts = _facts(source)
    try:
        disk.write(out, source.read_bytes())
    except OSError as error:
        raise UserError(f"{out} cannot be written: {error.strerror}") from None
    return facts


def load_model(path: str | Path) -> nn.Module:
    """Load a site's own model, ready for use.

    Args:
        path: the file that `fedgraft deploy model` wrote.

    Returns:
        A network that maps prepared inputs to a score for each class.
    """
    facts = _facts(Path(path))
    try:
        if not models.is_shipped(facts["model"]):  # a file says which network it holds, not which code is run
            raise ValueError
        shape = tuple(int(size) for size in facts["input"].split(","))
        described = partial(models.build, facts["model"], shape, int(facts["outputs"]))
        told = _shapes(described)
    except (KeyError, ValueError):
        raise UserError(
            f"{path} was trained with a network of your own: build it and use load_state_dict(load_file({str(path)!r}))"
        ) from None
    with safe_open(path, "pt") as held:
        if not told or told != {name: held.get_slice(name).get_shape() for name in held.keys()}:  # noqa: SIM118 - not a mapping
            raise UserError(f"{path} is damaged: it describes another network than it holds")
        network = described()
        network.load_state_dict({name: held.get_tensor(name) for name in held.keys()})  # noqa: SIM118 - not a mapping
    return network.eval()


def _shapes(described: Callable[[], nn.Module]) -> dict[str, list[int]]:
    """The shapes of a network's tensors, for which no memory is taken."""
    try:
        with torch.device("meta"):
            return {name: list(tensor.shape) for name, tensor in described().state_dict().items()}
    except (RuntimeError, OverflowError, TypeError):  # sizes that no network has
        return {}


def _facts(path: Path) -> dict[str, str]:
    try:
        with safe_open(path, "pt") as held:
            return dict(held.metadata() or {})
    except FileNotFoundError:
        raise UserError(f"there is no file {path}") from None
    except (OSError, SafetensorError) as error:
        raise UserError(f"{path} holds no model: {error}") from None
