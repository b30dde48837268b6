"""A directory belongs to one process: whoever comes and goes, never to two, and the lock harms no other file."""

import multiprocessing
import os
from pathlib import Path

import pytest

from fedgraft.base import disk
from fedgraft.base.errors import UserError
from fedgraft.runs import directory
from trials.attack.directories import overlaps


@pytest.mark.skipif(not hasattr(os, "fork"), reason="the processes are forks")
def test_no_two_processes_are_ever_in_one_directory(tmp_path: Path) -> None:
    assert overlaps(tmp_path, processes=4, times=1000) == 0


@pytest.mark.skipif(not hasattr(os, "fork"), reason="a worker is a fork")
def test_a_worker_that_ends_does_not_give_the_directory_away(tmp_path: Path) -> None:
    with disk.locked(tmp_path):
        for leave in (os._exit, lambda _: None):
            process = multiprocessing.get_context("fork").Process(target=leave, args=(0,))
            process.start()
            process.join()
            with pytest.raises(UserError, match="another process is working in"), disk.locked(tmp_path):
                pass
    with disk.locked(tmp_path):
        pass


@pytest.mark.parametrize("kind", ["link", "dangling", "folder"])
def test_the_lock_follows_no_link_and_empties_no_file(tmp_path: Path, kind: str) -> None:
    precious, place = tmp_path / "precious.txt", tmp_path / "run"
    precious.write_text("mine")
    place.mkdir()
    lock = place / disk.LOCK
    if kind == "folder":
        lock.mkdir()
    else:
        lock.symlink_to(precious if kind == "link" else tmp_path / "nowhere")
    with pytest.raises(UserError, match=r"\.lock is not a file of ours; take it away$"), disk.locked(place):
        pass
    assert precious.read_text() == "mine"
    assert not (tmp_path / "nowhere").exists()


def test_a_lock_that_stayed_behind_makes_no_directory_full(tmp_path: Path) -> None:
    with disk.locked(directory.fresh(tmp_path / "run")):
        pass
    assert (tmp_path / "run" / disk.LOCK).exists()
    with disk.locked(directory.fresh(tmp_path / "run")):
        directory.sweep(tmp_path / "run")
    assert (tmp_path / "run" / disk.LOCK).exists(), "it may be another's by now"


def test_files_have_the_rights_that_the_umask_leaves(tmp_path: Path) -> None:
    for mask, rights in ((0o077, 0o600), (0o022, 0o644), (0o027, 0o640)):
        before = os.umask(mask)
        try:
            disk.write(tmp_path / "file", b"new")
        finally:
            os.umask(before)
        assert (tmp_path / "file").stat().st_mode & 0o777 == rights
