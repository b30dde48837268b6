"""Disks that are full or may not be written: one sentence, exit code 2, and nothing that was there is lost."""

import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from conftest import small_network
from program import fedgraft

import fedgraft as fg
from fedgraft.base import disk
from fedgraft.base.errors import UserError
from fedgraft.core.rounds import Round
from fedgraft.data.federation import Federation
from fedgraft.runs.run import Run

SETTINGS = {"rounds": 5, "lr": 0.1, "batch_size": 8, "checkpoint_every": 1, "workers": 1}
RUN = ["--clients", "3", "--partition", "iid", "--rounds", "4", "--checkpoint-every", "1", "--workers", "1"]


def files(place: Path) -> dict[Path, bytes]:
    return {file: file.read_bytes() for file in sorted(place.rglob("*")) if file.is_file() and file.name != ".lock"}


class Filling:
    """Fills the disk after a number of rounds."""

    def __init__(self, ballast: Path, after: int) -> None:
        self.ballast, self.after = ballast, after

    def begin(self, run: Run) -> None: ...

    def round(self, run: Run, this: Round) -> None:
        if this.number + 1 == self.after:
            with self.ballast.open("wb", buffering=0) as stream:
                try:
                    while True:
                        stream.write(bytes(4096))
                except OSError:
                    pass

    def end(self, run: Run) -> None: ...


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A disk of half a megabyte, which only root can make."""
    place = tmp_path / "disk"
    place.mkdir()
    words = ["mount", "-t", "tmpfs", "-o", "size=512k", "tmpfs", str(place)]
    if os.geteuid() != 0 or shutil.which("mount") is None or subprocess.run(words, check=False).returncode != 0:
        pytest.skip("only root may mount a small disk; the limit on the size of files is tested without")
    yield place
    subprocess.run(["umount", str(place)], check=True)


@pytest.mark.parametrize("after", [1, 3])
def test_a_run_on_a_disk_that_fills_up_goes_on_when_there_is_room(
    fed: Federation, small_disk: Path, after: int
) -> None:
    whole = fg.run("fedapa", fed, model=small_network(), **SETTINGS)
    ballast = small_disk / "ballast"
    with pytest.raises(UserError, match="No space left on device; what it holds is whole"):
        fg.run(
            "fedapa", fed, model=small_network(), out=small_disk / "run", watchers=[Filling(ballast, after)], **SETTINGS
        )
    with pytest.raises(UserError, match="No space left on device"):
        fg.resume(small_disk / "run", fed, model=small_network(), workers=1)
    ballast.unlink()
    resumed = fg.resume(small_disk / "run", fed, model=small_network(), workers=1)
    assert [record["round"] for record in resumed.records] == [1, 2, 3, 4, 5]
    assert not resumed.notes, "no checkpoint was damaged"
    assert [r["trained"] for r in resumed.records] == [r["trained"] for r in whole.records]


def test_a_disk_that_becomes_read_only(fed: Federation, small_disk: Path) -> None:
    class Interrupt(Filling):
        def round(self, run: Run, this: Round) -> None:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fg.run("fedapa", fed, model=small_network(), out=small_disk / "run", watchers=[Interrupt(small_disk, 1)],
               **SETTINGS)  # fmt: skip
    subprocess.run(["mount", "-o", "remount,ro", str(small_disk)], check=True)
    before = files(small_disk)
    with pytest.raises(UserError, match=r"cannot be written any further: Read-only file system"):
        fg.resume(small_disk / "run", fed, model=small_network(), workers=1)
    with pytest.raises(UserError, match=r"cannot be made: Read-only file system"):
        fg.run("local", fed, model=small_network(), out=small_disk / "new", **SETTINGS)
    assert files(small_disk) == before
    subprocess.run(["mount", "-o", "remount,rw", str(small_disk)], check=True)
    assert len(fg.resume(small_disk / "run", fed, model=small_network(), workers=1).records) == 5


@pytest.mark.slow
def test_the_program_says_it_in_one_sentence_and_the_last_checkpoint_stays(tmp_path: Path) -> None:
    """A file may not grow beyond what the first checkpoint needs: for the program the same as a disk that is full."""
    done = fedgraft("run", "local", *RUN, "--out", "run", cwd=tmp_path, largest=4096)
    assert done.returncode == 2, done.stderr
    assert "fedgraft: run cannot be written any further: File too large; what it holds is whole" in done.stderr
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "run" / "result.json").exists()
    assert not list((tmp_path / "run").rglob("round-*"))
    resumed = fedgraft("resume", "run", cwd=tmp_path)
    assert resumed.returncode == 0, resumed.stderr


def test_a_folder_that_is_not_there_is_a_sentence(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for folder in (tmp_path / "missing", tmp_path / "file"):
        with pytest.raises(UserError, match=f"cannot be written: there is no folder {folder}$"):
            disk.write(folder / "a.csv", b"")
    disk.insist_on_place(tmp_path / "missing" / "deeper")
    with pytest.raises(UserError, match="file is not a folder"):
        disk.insist_on_place(tmp_path / "file" / "deeper")


def test_a_directory_that_may_not_be_written(tmp_path: Path) -> None:
    place = tmp_path / "locked"
    place.mkdir()
    place.chmod(0o500)
    if os.access(place, os.W_OK):
        pytest.skip("permissions do not hold root back; the read-only disk is tested instead")
    done = fedgraft("run", "local", *RUN, "--out", "locked/run", cwd=tmp_path)
    assert (done.returncode, "cannot be made: Permission denied" in done.stderr) == (2, True)
    done = fedgraft("run", "local", *RUN, "--out", "locked", cwd=tmp_path)
    assert (done.returncode, "cannot be written any further: Permission denied" in done.stderr) == (2, True)
    assert not list(place.iterdir())
