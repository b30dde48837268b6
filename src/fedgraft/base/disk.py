"""Files that are there whole or not at all, and folders that belong to one process."""

import errno
import hashlib
import json
import os
import secrets
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import torch
from filelock import FileLock, Timeout
from safetensors.torch import save
from torch import Tensor

from fedgraft.base.errors import UserError

LOCK = ".lock"
"""The file that says which process a folder belongs to; it stays behind, and says nothing when nobody holds it."""


def write(path: Path, data: bytes) -> None:
    """Write aside, flush to the disk, rename: after a crash the file is the old one or the new one."""
    temporary = path.with_name(f"{path.name}{secrets.token_hex(4)}.part")
    try:
        with temporary.open("xb") as stream:  # made by us, with the rights that the user's umask leaves
            stream.write(data)
            stream.flush()
            os.fsync(stream.fileno())
        temporary.replace(path)
    except BaseException as error:
        with suppress(OSError):
            temporary.unlink(missing_ok=True)
        if isinstance(error, IsADirectoryError):
            raise UserError(f"{path} is a folder where a file belongs; take it away") from None
        if isinstance(error, FileNotFoundError | NotADirectoryError):
            raise UserError(f"{path} cannot be written: there is no folder {path.parent}") from None
        raise
    flush_folder(path.parent)


def insist_on_place(path: Path) -> None:
    """Refuse a file or folder that could not be made, before the work whose result belongs there."""
    above = next(each for each in path.parents if os.path.lexists(each))
    if not above.is_dir():
        raise UserError(f"{path} cannot be written: {above} is not a folder")
    if not os.access(above, os.W_OK | os.X_OK):
        raise UserError(f"{path} cannot be written: {above} may not be written to")


def flush_folder(folder: Path) -> None:
    """Let the names in a folder reach the disk."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def packed(tensors: Mapping[str, Tensor], **facts: str) -> bytes:
    """Named tensors as safetensors has them, with ``facts`` in the header."""
    # clones: safetensors refuses tensors that share memory, as the clients' common start does
    return save({name: t.detach().cpu().clone().contiguous() for name, t in tensors.items()}, facts or None)


def write_tensors(path: Path, entries: Callable[[], Iterator[tuple[str, Tensor]]]) -> str:
    """Write named tensors as safetensors has them, one after another, and return the checksum of the file.

    They are asked for twice: for their shapes, then for what is in them. So only one has to be in memory at a time.
    """
    header: dict[str, Any] = {}
    start = 0
    for name, tensor in entries():
        stop = start + tensor.numel() * tensor.element_size()
        header[name] = {"dtype": _DTYPES[tensor.dtype], "shape": list(tensor.shape), "data_offsets": [start, stop]}
        start = stop
    told = json.dumps(header, separators=(",", ":")).encode()
    told += b" " * (-len(told) % 8)
    total = hashlib.sha256()
    with path.open("wb") as stream:
        for data in (len(told).to_bytes(8, "little"), told):
            stream.write(data)
            total.update(data)
        for _, tensor in entries():
            content = tensor.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy().data
            stream.write(content)
            total.update(content)
        stream.flush()
        os.fsync(stream.fileno())
    return total.hexdigest()


_DTYPES = {
    torch.float64: "F64", torch.float32: "F32", torch.float16: "F16", torch.bfloat16: "BF16", torch.int64: "I64",
    torch.int32: "I32", torch.int16: "I16", torch.int8: "I8", torch.uint8: "U8", torch.bool: "BOOL",
}  # fmt: skip
_UNWRITABLE = {
    errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS, errno.EACCES, errno.EPERM, errno.EIO,
}  # fmt: skip


@contextmanager
def writing(folder: Path) -> Iterator[None]:
    """Say in a sentence that a disk is full, read-only or broken; every file that was whole still is."""
    try:
        yield
    except OSError as error:
        if error.errno not in _UNWRITABLE:
            raise
        sentence = f"{folder} cannot be written any further: {error.strerror}; what it holds is whole"
        raise UnwritableError(sentence) from error


class HeldError(UserError):
    """A folder that another process is working in."""


class UnwritableError(UserError):
    """A disk that takes nothing more: no fault of the run that met it first."""


@contextmanager
def locked(folder: Path, *, patience: float = 0.0) -> Iterator[None]:
    """Keep a folder to one process, which may write into it; wait so many seconds for whoever has it."""
    # The file is never removed: somebody may have it open already, and would then hold a lock that nobody else sees.
    lock = FileLock(folder / LOCK, timeout=patience)
    with writing(folder):
        try:
            lock.acquire()
        except Timeout:
            raise HeldError(f"another process is working in {folder}") from None
        except OSError as error:
            if error.errno in (errno.ELOOP, errno.EISDIR, errno.ENXIO):
                raise UserError(f"{folder / LOCK} is not a file of ours; take it away") from None
            raise
        try:
            yield
        finally:
            lock.release()
