"""Which sample goes to which client, as a value that can be saved, shared and compared."""

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fedgraft.base.errors import UserError

Ints = NDArray[np.int64]

_FORMAT = "fedgraft partition"
_VERSION = 1


@dataclass(frozen=True, eq=False)
class Partition:
    """The training and test samples of every client.

    Indices count through the official training file and then on through the official test file, so that a scheme
    which merges both files needs no special case. Every client has at least one training and one test sample, and
    no sample is used for training by one client and for testing by any.
    """

    scheme: str
    seed: int
    train: tuple[Ints, ...]
    test: tuple[Ints, ...]

    def __post_init__(self) -> None:
        if len(self.train) != len(self.test) or not self.train:
            raise UserError(
                f"a partition needs a training and a test list for each of its clients, at least one; "
                f"this one has {len(self.train)} training and {len(self.test)} test lists"
            )
        for part in ("train", "test"):
            lists = getattr(self, part)
            frozen = _at_once(lists) or tuple(_indices(values, part, client) for client, values in enumerate(lists))
            object.__setattr__(self, part, frozen)
        leaked = np.intersect1d(np.concatenate(self.train), np.concatenate(self.test))
        if leaked.size:
            raise UserError(
                f"sample {leaked[0]} is in a training and in a test list of the partition "
                f"({leaked.size} such samples): a test on it would flatter the model"
            )

    @property
    def clients(self) -> int:
        """How many clients share the data."""
        return len(self.train)

    def counts(self, labels: ArrayLike) -> tuple[Ints, Ints]:
        """Count samples per client and class, for training and for testing.

        ``labels`` are those of the training file followed by those of the test file.
        """
        y = np.asarray(labels)
        self.check(len(y))
        classes = int(y.max()) + 1

        def table(lists: tuple[Ints, ...]) -> Ints:
            return np.stack([np.bincount(y[indices], minlength=classes) for indices in lists])

        return table(self.train), table(self.test)

    def check(self, samples: int) -> None:
        """Refuse to be used with a dataset of ``samples`` samples that is too small for these indices."""
        highest = max(int(indices.max()) for indices in (*self.train, *self.test))
        if highest >= samples:
            raise UserError(
                f"the partition uses sample {highest}, but the dataset has only {samples} (training and test "
                f"file together): it was made for another dataset"
            )

    def fingerprint(self) -> str:
        """Return a SHA-256 that any change of scheme, seed or assignment changes, equal on every machine."""
        sizes = [[len(indices) for indices in part] for part in (self.train, self.test)]
        digest = hashlib.sha256(json.dumps([self.scheme, self.seed, sizes]).encode())
        for indices in (*self.train, *self.test):
            digest.update(indices.astype("<i8").tobytes())
        return digest.hexdigest()

    def save(self, path: str | Path) -> None:
        """Write a JSON file with one line per client."""
        head = {
            "format": _FORMAT,
            "version": _VERSION,
            "scheme": self.scheme,
            "seed": self.seed,
            "fingerprint": self.fingerprint(),
        }
        members = [f"{json.dumps(key)}: {json.dumps(value)}" for key, value in head.items()]
        for key, part in (("train", self.train), ("test", self.test)):
            rows = ",\n".join(json.dumps(indices.tolist(), separators=(",", ":")) for indices in part)
            members.append(f'"{key}": [\n{rows}\n]')
        try:
            Path(path).write_text("{\n" + ",\n".join(members) + "\n}\n", encoding="utf-8")
        except OSError as error:
            raise UserError(f"cannot write the partition file {path}: {error.strerror}") from error

    @classmethod
    def load(cls, path: str | Path) -> Self:
        """Read a file that ``save`` wrote, or one written by hand (then without ``fingerprint``)."""
        try:
            content = json.loads(Path(path).read_text(encoding="utf-8"))
        except OSError as error:
            raise UserError(f"cannot read the partition file {path}: {error.strerror}") from error
        except (ValueError, RecursionError) as error:
            raise UserError(f"the partition file {path} is damaged or cut short: {error}") from error
        if not isinstance(content, dict) or content.get("format") != _FORMAT:
            raise UserError(f'{path} is not a partition file: it has no "format": "{_FORMAT}"')
        if content.get("version") != _VERSION:
            raise UserError(
                f"the partition file {path} has version {content.get('version')!r}, "
                f"but this fedgraft reads version {_VERSION}"
            )
        try:
            partition = cls(
                _member(content, "scheme", str),
                _member(content, "seed", int),
                tuple(_member(content, "train", list)),
                tuple(_member(content, "test", list)),
            )
        except UserError as error:
            raise UserError(f"the partition file {path} is not valid: {error}") from error
        if content.get("fingerprint", partition.fingerprint()) != partition.fingerprint():
            raise UserError(
                f"the partition file {path} was changed after it was saved; "
                f'take its "fingerprint" line out if that was on purpose'
            )
        return partition


def _member(content: dict[str, Any], key: str, kind: type) -> Any:
    if type(content.get(key)) is not kind:
        name = {str: "a text", int: "a whole number", list: "a list of lists"}[kind]
        raise UserError(f'"{key}" must be {name}')
    return content[key]


def cut(samples: Ints, sizes: ArrayLike) -> tuple[Ints, ...]:
    """Cut samples into stretches of these sizes: views, a million of which are made in a moment."""
    ends = np.cumsum(sizes).tolist()
    return tuple(samples[start:stop] for start, stop in zip([0, *ends], ends, strict=False))


def plain(lists: Sequence[ArrayLike]) -> bool:
    """Whether every list is an array of indices already."""
    return all(isinstance(each, np.ndarray) and each.dtype == np.int64 and each.ndim == 1 for each in lists)


def _at_once(lists: Sequence[ArrayLike]) -> tuple[Ints, ...] | None:
    """Freeze the lists of all clients as one array, if each is as it should be; else somebody has to look at each."""
    if not plain(lists):
        return None
    arrays = [np.asarray(each) for each in lists]
    sizes, whole = [len(each) for each in arrays], np.concatenate(arrays)
    if not all(sizes) or whole.min() < 0:
        return None
    whole.setflags(write=False)
    return cut(whole, sizes)


def _indices(values: ArrayLike, part: str, client: int) -> Ints:
    try:
        found = np.array(values)
    except ValueError as error:
        raise UserError(f"the {part} list of client {client} is not a plain list of indices") from error
    if not found.size:
        raise UserError(f"client {client} has no {part} sample: every client needs at least one")
    whole = found.ndim == 1 and found.dtype.kind in "iu"
    if not whole or found.min() < 0 or found.max() > np.iinfo(np.int64).max:
        raise UserError(f"the {part} list of client {client} must hold whole numbers from 0 up, and only those")
    # astype copies: the caller's array stays writable, the partition's never is.
    indices = found.astype(np.int64)
    indices.setflags(write=False)
    return indices
