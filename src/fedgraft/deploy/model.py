"""A site's own model, at the site: where training left it, and as a network that is ready for use."""

from pathlib import Path

from safetensors import SafetensorError, safe_open
from torch import nn

from fedgraft import models
from fedgraft.core import disk
from fedgraft.core.errors import UserError
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
    """Load a site's own model, ready for use: a network that maps prepared inputs to a score for each class."""
    facts = _facts(Path(path))
    try:
        shape = tuple(int(size) for size in facts["input"].split(","))
        network = models.build(facts["model"], shape, int(facts["outputs"]))
    except (KeyError, ValueError):
        raise UserError(
            f"{path} was trained with a network of your own: build it and use load_state_dict(load_file({str(path)!r}))"
        ) from None
    with safe_open(path, "pt") as held:
        network.load_state_dict({name: held.get_tensor(name) for name in held.keys()})  # noqa: SIM118 - not a mapping
    return network.eval()


def _facts(path: Path) -> dict[str, str]:
    try:
        with safe_open(path, "pt") as held:
            return dict(held.metadata() or {})
    except FileNotFoundError:
        raise UserError(f"there is no file {path}") from None
    except (OSError, SafetensorError) as error:
        raise UserError(f"{path} holds no model: {error}") from None
