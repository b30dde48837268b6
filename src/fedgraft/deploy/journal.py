"""What a program says, in a file: line by line, with the time, without colours, and never larger than it may be."""

import re
import threading
from datetime import datetime
from pathlib import Path

LIMIT = 4 * 2**20
"""Bytes of a log; a full one is kept as NAME.1, in the place of the one before."""
_COLOURS = re.compile(r"\x1b\[[0-9;?]*[ -/]*[@-~]")
_CONTROLS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f]")


class Journal:
    """A log with a bounded size; several readers of programs may write to it."""

    def __init__(self, path: Path, limit: int = LIMIT) -> None:
        self.path, self.limit = path, limit
        self._lock = threading.Lock()
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()

    def write(self, line: str) -> None:
        """Add a line, with the time."""
        stamped = f"{datetime.now().astimezone().isoformat(' ', 'seconds')} {line}\n".encode()
        with self._lock:
            if self.path.stat().st_size + len(stamped) > self.limit:
                self.path.replace(self.path.with_name(f"{self.path.name}.1"))
            with self.path.open("ab") as file:
                file.write(stamped)


def plain(raw: bytes) -> str:
    """Return a line as it is to be read: no colours, no control characters."""
    return _CONTROLS.sub("", _COLOURS.sub("", raw.decode("utf-8", "replace"))).rstrip()
