"""Files that are there whole or not at all, and folders that belong to one process."""

import errno
import os
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from safetensors.torch import save
from torch import Tensor

from fedgraft.core.errors import UserError


def write(path: Path, data: bytes) -> None:
    """Write aside, flush to the disk, rename: after a crash the file is the old one or the new one."""
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=path.name, suffix=".part")
    try:
        with os.fdopen(handle, "wb") as stream:
            stream.write(data)
            stream.flush()
            os.fsync(stream.fileno())
        Path(temporary).chmod(0o644)
        Path(temporary).replace(path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise
    flush_folder(path.parent)


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
        raise UserError(f"{folder} cannot be written any further: {error.strerror}; what it holds is whole") from error


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Keep a folder to one process, which may write into it."""
    import fcntl  # not on every system, and only those who write a directory need it

    with writing(folder), (folder / "lock").open("w") as handle:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise UserError(f"another process is working in {folder}") from None
        try:
            yield
        finally:
            (folder / "lock").unlink(missing_ok=True)
