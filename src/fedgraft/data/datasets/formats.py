"""From the bytes of published files to arrays.

Every decoder takes the members of a container (an archive, or files that lie side by side) and returns arrays named
``x_train``, ``y_train``, ``x_test``, ``y_test`` and perhaps ``x_val``, ``y_val``. Nothing is ever extracted to disk, no
member's name is ever used as a path, and no pickle is ever executed.
"""

import errno
import gzip
import io
import json
import math
import pickle
import re
import tarfile
import tokenize
import zipfile
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from fedgraft.base import memory
from fedgraft.base.errors import UserError

Array = NDArray[Any]
Arrays = dict[str, Array]
Members = Iterable[tuple[str, bytes]]

LIMIT = 16 * 2**30
"""Bytes; a file that declares more is refused before any of it is allocated."""
MEMBER_LIMIT = 2 * 2**30
"""Bytes of one member of an archive, or of one IDX file: four times the largest that was ever published."""


@dataclass(frozen=True)
class Format:
    """Which members of a container matter, and what they become."""

    pattern: str
    decode: Callable[[Members], Arrays]
    count: int | None = None

    def read(self, paths: Sequence[Path]) -> Arrays:
        """Decode the container that ``paths`` make up: one archive, or loose files."""
        where = paths[0] if len(paths) == 1 else paths[0].parent
        wanted = re.compile(rf"(?:^|/)(?:{self.pattern})$")
        seen = 0

        def members() -> Iterator[tuple[str, bytes]]:
            nonlocal seen
            for path in paths:
                for member in files_in(path, wanted):
                    seen += 1
                    yield member

        with sentences(where):
            arrays = self.decode(members())
            if self.count is not None and seen != self.count:
                raise ValueError(f"{seen} of its {self.count} parts are there")
        return arrays


@contextmanager
def sentences(where: Path | str) -> Iterator[None]:
    """Turn whatever a damaged file makes a decoder raise into one sentence that names the file."""
    try:
        yield
    except UserError:
        raise
    except FileNotFoundError:
        raise UserError(f"there is no file {where}") from None
    except (PermissionError, IsADirectoryError) as error:
        raise UserError(f"{where} cannot be read: {error.strerror}") from None
    except OSError as error:
        if error.errno == errno.ENAMETOOLONG:
            raise UserError(f"{str(where)[:40]}... cannot be read: {error.strerror}") from None
        raise UserError(f"{where} is damaged or truncated ({_phrase(error)}); fetch it again") from error
    except (tarfile.TarError, zipfile.BadZipFile, zlib.error, EOFError, pickle.UnpicklingError) as error:
        raise UserError(f"{where} is damaged or truncated ({_phrase(error)}); fetch it again") from error
    except (ValueError, LookupError, TypeError, AttributeError, ArithmeticError, RuntimeError, MemoryError) as error:
        raise UserError(f"{where} does not hold what its name promises: {_phrase(error)}") from error


def _phrase(error: BaseException) -> str:
    return str(error).partition("\n")[0].rstrip(".") or type(error).__name__


def files_in(path: Path, wanted: re.Pattern[str]) -> Iterator[tuple[str, bytes]]:
    """Yield the wanted regular files in ``path``, in one pass; a file that is no archive is its own only member."""
    if path.name.endswith((".tar", ".tar.gz", ".tgz")):
        # A stream ("r|") cannot seek back, so a compressed archive is unpacked once and not once a member.
        with tarfile.open(path, "r|" if path.suffix == ".tar" else "r|gz") as tar:
            total = 0
            for info in tar:
                total += info.size
                affordable(total)
                if info.isreg() and wanted.search(info.name):
                    affordable(info.size, MEMBER_LIMIT)
                    content = tar.extractfile(info)
                    assert content is not None
                    yield info.name, content.read()
    elif path.suffix in {".zip", ".whl"}:
        with zipfile.ZipFile(path) as archive:
            chosen = [member for member in archive.infolist() if wanted.search(member.filename)]
            affordable(sum(member.file_size for member in chosen))
            for member in chosen:
                affordable(member.file_size, MEMBER_LIMIT)
                yield member.filename, archive.read(member)
    else:
        affordable(path.stat().st_size, MEMBER_LIMIT)
        yield path.name, path.read_bytes()


def affordable(size: int, limit: int = LIMIT) -> None:
    """Refuse bytes that a file declares and this machine could not hold."""
    if size > limit:
        raise ValueError(f"it declares {size / 2**30:.1f} GiB, more than the limit of {limit / 2**30:.0f} GiB")
    if size > (there := memory.total()):
        raise ValueError(
            f"it declares {size / 2**30:.1f} GiB, more than this machine's {there / 2**30:.1f} GiB of memory"
        )


# -------------------------------------------------------------------------------------------------------- MNIST, EMNIST


def idx(blob: bytes) -> Array:
    """Decode one IDX file of bytes (images or labels), gzipped or not."""
    stream: io.BufferedIOBase = io.BytesIO(blob)
    if blob[:2] == b"\x1f\x8b":
        stream = gzip.GzipFile(fileobj=stream)
    head = stream.read(4)
    if len(head) < 4 or head[:3] != b"\0\0\x08" or head[3] not in (1, 3):
        raise ValueError("not an IDX file of unsigned bytes")
    shape = [int.from_bytes(stream.read(4), "big") for _ in range(head[3])]
    size = math.prod(shape)
    affordable(size, MEMBER_LIMIT)
    body = stream.read(size + 1)
    if len(body) != size:
        raise ValueError(f"its header promises {size} bytes, and {'more' if len(body) > size else len(body)} follow")
    return np.frombuffer(body, np.uint8).reshape(shape).copy()


def _idx_quartet(members: Members, *, transposed: bool) -> Arrays:
    arrays = {}
    for name, blob in members:
        array = idx(blob)
        if array.ndim != (3 if "images" in name else 1):
            raise ValueError(f"{name} has the wrong number of dimensions")
        if transposed and array.ndim == 3:
            array = np.ascontiguousarray(array.swapaxes(1, 2))
        arrays[f"{'x' if 'images' in name else 'y'}_{'train' if 'train-' in name else 'test'}"] = array
    return arrays


_QUARTET = r"-(?:images-idx3|labels-idx1)-ubyte(?:\.gz)?"
IDX = Format(r"(?:train|t10k)" + _QUARTET, partial(_idx_quartet, transposed=False), 4)
EMNIST_BYCLASS = Format(r"emnist-byclass-(?:train|test)" + _QUARTET, partial(_idx_quartet, transposed=True), 4)


# ---------------------------------------------------------------------------------------------------------------- CIFAR


def cifar_records(blob: bytes, label_bytes: int) -> tuple[Array, Array]:
    """Decode a binary CIFAR batch; of several label bytes the last one, the finest, counts."""
    length = label_bytes + 3072
    if not blob or len(blob) % length:
        raise ValueError(f"a batch of {len(blob)} bytes is not made of records of {length}")
    records = np.frombuffer(blob, np.uint8).reshape(-1, length)
    return _planes(records[:, label_bytes:]), records[:, label_bytes - 1]


def _planes(rows: Array) -> Array:
    return rows.reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1)


def _cifar(members: Members, *, decode: Callable[[bytes], tuple[Array, Array]]) -> Arrays:
    parts: dict[str, list[Array]] = {"x_train": [], "y_train": [], "x_test": [], "y_test": []}
    for name, blob in sorted(members):
        part = "test" if "test" in name.rpartition("/")[2] else "train"
        for letter, array in zip("xy", decode(blob), strict=True):
            parts[f"{letter}_{part}"].append(array)
    return {key: np.concatenate(arrays) for key, arrays in parts.items() if arrays}


class _Pickled:
    """Stands in for the array and for its dtype while a batch is unpickled: it takes their state and runs nothing."""

    def __init__(self, *args: object) -> None:
        self.args = args
        self.state: tuple[Any, ...] = ()

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        self.state = state

    def array(self) -> Array:
        _, shape, dtype, fortran, raw = self.state
        if not isinstance(dtype, _Pickled) or dtype.args[0] not in (b"u1", "u1") or not isinstance(raw, bytes):
            raise pickle.UnpicklingError("its pixels are not bytes")
        return np.frombuffer(raw, np.uint8).reshape(shape, order="F" if fortran else "C")


class _ArrayUnpickler(pickle.Unpickler):
    """Admits the three names a pickled array is made of, and gives none of them the real thing."""

    _admitted = frozenset(
        {
            ("numpy.core.multiarray", "_reconstruct"),
            ("numpy._core.multiarray", "_reconstruct"),
            ("numpy", "ndarray"),
            ("numpy", "dtype"),
        }
    )

    def find_class(self, module: str, name: str) -> type[_Pickled]:
        if (module, name) not in self._admitted:
            raise pickle.UnpicklingError(f"it asks for {module}.{name}, which no dataset needs")
        return _Pickled


def cifar_pickle(blob: bytes, label_key: str) -> tuple[Array, Array]:
    """Decode a batch of the Python version of CIFAR without executing anything in it."""
    batch = _ArrayUnpickler(io.BytesIO(blob), encoding="bytes").load()
    fields = {key.decode() if isinstance(key, bytes) else key: value for key, value in batch.items()}
    return _planes(fields["data"].array()), np.array(fields[label_key])


CIFAR10_BINARY = Format(
    r"(?:data_batch_[1-5]|test_batch)\.bin", partial(_cifar, decode=partial(cifar_records, label_bytes=1)), 6
)
CIFAR10_PYTHON = Format(
    r"data_batch_[1-5]|test_batch", partial(_cifar, decode=partial(cifar_pickle, label_key="labels")), 6
)
CIFAR100_BINARY = Format(r"(?:train|test)\.bin", partial(_cifar, decode=partial(cifar_records, label_bytes=2)), 2)
CIFAR100_PYTHON = Format(
    r"cifar-100-python/(?:train|test)", partial(_cifar, decode=partial(cifar_pickle, label_key="fine_labels")), 2
)


# ------------------------------------------------------------------------------------------------------------------ PNG


def png(blob: bytes, width: int, most_rows: int) -> Array:
    """Decode a PNG picture of exactly ``width`` columns to rows x width x 3."""
    from PIL import Image, UnidentifiedImageError

    try:
        with Image.open(io.BytesIO(blob), formats=["PNG"]) as picture:
            if picture.width != width or picture.height > most_rows:
                raise ValueError(f"a picture of {picture.width}x{picture.height} where {width} columns belong")
            return np.asarray(picture.convert("RGB"))
    except (UnidentifiedImageError, Image.DecompressionBombError, SyntaxError) as error:
        raise ValueError(f"a member is not a PNG picture ({_phrase(error)})") from error


def _sprites(members: Members) -> Arrays:
    """Decode CIFAR-10 as one picture a batch, one image a row, with the labels in JSON."""
    blobs = {name.rpartition("/")[2]: blob for name, blob in sorted(members)}
    images: dict[str, list[Array]] = {"train": [], "test": []}
    arrays: Arrays = {}
    for name, blob in blobs.items():
        part = "test" if name.startswith("test") else "train"
        if name.endswith(".png"):
            images[part].append(png(blob, 1024, 10_000).reshape(-1, 32, 32, 3))
        else:
            arrays[f"y_{part}"] = np.array(json.loads(blob))
    return arrays | {f"x_{part}": np.concatenate(batches) for part, batches in images.items() if batches}


CIFAR10_SPRITES = Format(r"(?:data_batch_[1-5]|test_batch)\.png|(?:train|test)_lables\.json", _sprites, 8)

_CINIC_CLASSES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")


def _cinic(members: Members) -> Arrays:
    """Decode folders of PNG pictures, split/class/name.png, in the order of their names."""
    pictures: dict[str, list[tuple[int, str, Array]]] = {"train": [], "test": []}
    for path, blob in members:
        part, label, name = path.split("/")[-3:]
        picture = png(blob, 32, 32)
        if picture.shape != (32, 32, 3):
            raise ValueError(f"{path} is not a picture of 32x32")
        pictures[part].append((_CINIC_CLASSES.index(label), name, picture))
    arrays: Arrays = {}
    for part, found in pictures.items():
        if not found:
            raise ValueError(f"no picture lies in a folder {part}/<class>/")
        found.sort(key=lambda picture: picture[:2])
        arrays[f"x_{part}"] = np.stack([picture for _, _, picture in found])
        arrays[f"y_{part}"] = np.array([label for label, _, _ in found])
    return arrays


CINIC10 = Format(rf"(?:train|test)/(?:{'|'.join(_CINIC_CLASSES)})/[^/]+\.png", _cinic)


# ------------------------------------------------------------------------------------------------------------------ NPZ

_NPZ_NAMES = {
    f"{letter}_{part}": (f"{letter}_{part}", f"{part}_{kind}")
    for part in ("train", "test", "val")
    for letter, kind in (("x", "images"), ("y", "labels"))
}
"""Our name of an array, and the names it may have in a file: ours and MedMNIST's."""


def npz(source: Path | IO[bytes]) -> Arrays:
    """Read the arrays of an npz file, ours or MedMNIST's; a header that lies is refused before it costs memory."""
    arrays = {}
    with zipfile.ZipFile(source) as archive:
        held = {info.filename.removesuffix(".npy"): info for info in archive.infolist()}
        affordable(sum(held[name].file_size for names in _NPZ_NAMES.values() for name in names if name in held))
        for key, names in _NPZ_NAMES.items():
            for name in names:
                if name in held:
                    with archive.open(held[name]) as stream:
                        arrays[key] = _npy(stream, name, held[name].file_size)
                    break
    return arrays


def _npy(stream: IO[bytes], name: str, size: int) -> Array:
    version = np.lib.format.read_magic(stream)
    if version not in ((1, 0), (2, 0)):
        raise ValueError(f"{name} is an array of npy version {version[0]}.{version[1]}, which is not one of numbers")
    read_header = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
    try:
        shape, _, dtype = read_header(stream)
    except tokenize.TokenError as error:  # NumPy lets this one slip from its second try at an odd header
        raise ValueError(f"{name} has no readable header") from error
    if dtype.hasobject:
        raise ValueError(f"{name} is an array of Python objects; save it as numbers")
    declared = math.prod(shape) * dtype.itemsize
    affordable(declared)
    if declared != size - stream.tell():
        raise ValueError(f"{name} declares {declared} bytes, and {size - stream.tell()} are there")
    stream.seek(0)
    array: Array = np.lib.format.read_array(stream, allow_pickle=False)
    return array


def _medmnist(members: Members) -> Arrays:
    return {key: array for _, blob in members for key, array in npz(io.BytesIO(blob)).items()}


def medmnist(name: str) -> Format:
    """Describe a MedMNIST file, on its own or among others in a wheel."""
    return Format(rf"{name}\.npz", _medmnist, 1)
