"""Programs are watched, and none outlives whoever started it; shown with programs that every system has."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from fedgraft.base.errors import UserError
from fedgraft.deploy.processes import Programs, end, program

SHELL = ["sh", "-c"]


def alive(pid: int) -> bool:
    """Whether a process runs; a zombie that nobody has fetched yet does not."""
    try:
        return "Z" not in Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False


def soon(true: Callable[[], bool], seconds: float = 10.0) -> bool:
    deadline = time.monotonic() + seconds
    while not true() and time.monotonic() < deadline:
        time.sleep(0.02)
    return true()


def number(path: Path) -> int:
    assert soon(lambda: path.exists() and path.read_text().strip().isdigit())
    return int(path.read_text())


pytestmark = pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="looks processes up in /proc")


def test_after_the_block_a_program_and_what_it_started_are_gone(tmp_path: Path) -> None:
    with Programs(tmp_path) as programs:
        parent = programs.start("parent", *SHELL, f"sleep 300 & echo $! > {tmp_path}/child; wait")
        child = number(tmp_path / "child")
        assert alive(parent.pid)
        assert alive(child)
    assert not alive(parent.pid)
    assert soon(lambda: not alive(child))


def test_a_program_that_will_not_listen_is_killed(tmp_path: Path) -> None:
    programs = Programs(tmp_path)
    deaf = programs.start("deaf", *SHELL, f"trap '' TERM; echo $$ > {tmp_path}/ready; while :; do sleep 0.1; done")
    number(tmp_path / "ready")
    end([deaf], seconds=0.5)
    assert deaf.code == -signal.SIGKILL


def test_an_exception_ends_them_too(tmp_path: Path) -> None:
    programs = Programs(tmp_path)

    def interrupted() -> None:
        with programs:
            programs.start("one", "sleep", "300")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert not alive(programs.processes[0].pid)


@pytest.mark.skipif(sys.platform != "linux", reason="the kernel is asked to end children with their parent")
def test_they_end_with_a_parent_that_was_killed(tmp_path: Path) -> None:
    script = (
        "import sys, time; from pathlib import Path; from fedgraft.deploy.processes import Programs\n"
        "pid = Programs(Path(sys.argv[1])).start('one', 'sleep', '300').pid\n"
        "(Path(sys.argv[1]) / 'pid').write_text(str(pid)); time.sleep(300)"
    )
    with subprocess.Popen([sys.executable, "-c", script, str(tmp_path)]) as parent:
        child = number(tmp_path / "pid")
        assert soon(lambda: Path(f"/proc/{child}/comm").read_text() == "sleep\n"), "the leash has become the program"
        os.kill(parent.pid, signal.SIGKILL)
    assert soon(lambda: not alive(child))


def test_a_program_that_ends_by_itself_is_reported_with_its_last_error(tmp_path: Path) -> None:
    said = "echo begin; echo '\033[91mERROR\033[0m: the port is taken'; echo 'ask the one who has it'; exit 3"
    complaint = r"(?s)one ended with exit code 3.*one\.log:\n    ERROR: the port is taken\n    ask"
    with Programs(tmp_path) as programs:
        programs.start("one", *SHELL, said)
        with pytest.raises(UserError, match=complaint):
            programs.wait_until(lambda: False, "the end of days")


def test_waiting_has_an_end(tmp_path: Path) -> None:
    with Programs(tmp_path) as programs:
        programs.start("one", *SHELL, "echo still here; sleep 300")
        with pytest.raises(UserError, match=r"(?s)waited 1 s in vain until pigs fly.*one:\n.*still here"):
            programs.wait_until(lambda: False, "pigs fly", seconds=1)


def test_programs_run_quietly_in_homes_of_their_own(tmp_path: Path) -> None:
    with Programs(tmp_path) as programs:
        one = programs.start("one", *SHELL, "echo $FLWR_TELEMETRY_ENABLED $FLWR_HOME; sleep 300")
        assert soon(lambda: str(tmp_path) in one.said)
        assert one.said.strip() == f"0 {tmp_path}/flower/one"


def test_a_program_that_is_not_installed_is_named(tmp_path: Path) -> None:
    with pytest.raises(
        UserError, match=r"flower-nobody is not there: install Flower with pip install 'fedgraft\[flower\]'"
    ):
        program("flower-nobody")
