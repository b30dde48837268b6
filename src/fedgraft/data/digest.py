"""Fingerprints of data: enough to tell whether the samples of a client are those that they were, and what is not."""

import hashlib
from collections import Counter
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from fedgraft.core.samples import ClientData, Samples

SPLITS = {"train": "training", "validation": "validation", "test": "test"}
Fingerprint = Mapping[str, Mapping[str, int | str]]
"""Of each split: how many samples, and the checksums of inputs and labels; how they are prepared. Of very many clients,
one of all ``together``."""


def fingerprint(client: ClientData) -> Fingerprint:
    """Look at every byte of a client's data, once."""
    return {split: _of(getattr(client, split)) for split in SPLITS}


def _of(samples: Samples) -> dict[str, int | str]:
    return {
        "samples": len(samples),
        "inputs": checksum(samples.inputs),
        "labels": checksum(samples.labels),
        "preparation": repr(samples.preparation),
    }


def checksum(tensor: Tensor) -> str:
    """Return what any change of values, shape or type changes."""
    total = hashlib.sha256(f"{tensor.dtype} {tuple(tensor.shape)}".encode())
    total.update(tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().data)
    return total.hexdigest()[:32]


def difference(there: Sequence[Fingerprint], here: Sequence[Fingerprint], names: Sequence[str]) -> str | None:
    """Say in what the data that were ``there`` and those ``here`` differ, or nothing."""
    if list(there) == list(here):
        return None
    if "together" in (there or [{}])[0] or "together" in (here or [{}])[0]:
        return "the samples, or who has them, are others"
    if len(there) != len(here):
        return f"there were {len(there)} clients, and there are {len(here)}"
    if Counter(map(repr, there)) == Counter(map(repr, here)):
        return "the clients are the same, in another order"
    differing = [number for number in range(len(here)) if there[number] != here[number]]
    more = f" (and those of {len(differing) - 1} more clients)" if len(differing) > 1 else ""
    return _first(there[differing[0]], here[differing[0]], names[differing[0]]) + more


def _first(there: Fingerprint, here: Fingerprint, name: str) -> str:
    for split, word in SPLITS.items():
        was, now = there.get(split, {}), here[split]
        if was.get("samples") != now["samples"]:
            return f"{name} had {was.get('samples')} {word} samples and has {now['samples']}"
        if was.get("labels") != now["labels"]:
            return f"the {word} labels of {name} are others"
        if was.get("inputs") != now["inputs"]:
            return f"the {word} samples of {name} are others"
    return f"the samples of {name} are prepared otherwise"
