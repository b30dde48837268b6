"""Runs as an array of Slurm jobs: what is asked of Slurm, and a real cluster of three nodes on this machine."""

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from conftest import final
from typer.testing import CliRunner

from fedgraft.base.errors import UserError
from fedgraft.cli import app
from fedgraft.runs.agenda import Agenda
from fedgraft.runs.slurm import Order, Queue, jobs, minutes

SMALL = [
    "--dataset", "digits", "--clients", "4", "--model", "mlp:8", "--epochs", "1", "--workers", "1", "--rounds", "200",
    "--checkpoint-every", "10", "--seeds", "3",
]  # fmt: skip
TWO = [*SMALL[:-1], "2"]
"""Of two seeds: more runs than nodes, and no more than it takes to lose one."""
DAEMONS = ("munged", "slurmctld", "slurmd")


@pytest.mark.parametrize(
    ("text", "expected"),
    [("30", 30), ("30:00", 30), ("4:00:00", 240), ("0:00:01", 1), ("2-0", 2880), ("2-12:30", 3630), ("1-0:0:30", 1441)],
)
def test_times_are_read_as_slurm_writes_them(text: str, expected: int) -> None:
    assert minutes(text) == expected


def test_what_is_asked_of_each_job() -> None:
    order = Order.typed("partition=gpu,time=4:00:00,cpus=8,jobs=3,gres=gpu:a100:1,nodelist=n[1-3,7],exclusive")
    assert (order.minutes, order.cpus, order.jobs) == (240, 8, 3)
    assert order.options == {"partition": "gpu", "gres": "gpu:a100:1", "nodelist": "n[1-3,7]", "exclusive": True}


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("partition=gpu", "how long"),
        ("time=soon", "no time"),
        ("time=0", "more than nothing"),
        ("time=1:00:00,cpus=many", "whole number"),
        ("time=1:00:00,array=1-3", "cannot set array"),
        ("time=1:00:00,Partition=gpu", "no time"),
        ("", "list such as"),
    ],
)
def test_what_cannot_be_asked_is_refused_before_anything_is_written(text: str, sentence: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=sentence):
        Order.typed(text)
    out = tmp_path / "comparison"
    done = CliRunner().invoke(app, ["compare", "fedper", *SMALL, "--out", str(out), "--slurm", text])
    assert done.exit_code != 0
    assert not out.exists()


def test_a_dry_run_prints_the_script_and_writes_nothing(tmp_path: Path) -> None:
    pytest.importorskip("submitit")
    out = tmp_path / "comparison"
    words = [
        "compare",
        "fedper",
        *SMALL,
        "--out",
        str(out),
        "--slurm",
        "partition=gpu,time=4:00:00,cpus=8",
        "--dry-run",
    ]
    done = CliRunner().invoke(app, words, catch_exceptions=False)
    assert done.exit_code == 0
    for line in ("--array=0-8%9", "--partition=gpu", "--time=240", "--cpus-per-task=8", "--requeue"):
        assert f"#SBATCH {line}\n" in done.output
    assert not out.exists()


def test_without_slurm_there_is_a_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("submitit")
    out = tmp_path / "comparison"
    assert CliRunner().invoke(app, ["compare", "fedper", *SMALL, "--out", str(out), "--later"]).exit_code == 0
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(UserError, match="no Slurm on this machine"):
        Order.typed("time=10").submit(Agenda.read(out))
    assert str(Queue(out)) == ""


def free_port() -> int:
    with socket.socket() as made:
        made.bind(("127.0.0.1", 0))
        return int(made.getsockname()[1])


def configuration(place: Path, nodes: int) -> str:
    """Three nodes of one core each, by their ports; the partition `urgent` takes nodes from `usual`."""
    named = "\n".join(
        f"NodeName=n{k} NodeHostname=localhost NodeAddr=127.0.0.1 Port={free_port()} CPUs=1 State=UNKNOWN"
        for k in range(1, nodes + 1)
    )
    return f"""
ClusterName=trial
SlurmctldHost=localhost
SlurmctldAddr=127.0.0.1
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={place}/munge.socket
CredType=cred/munge
SlurmctldPort={free_port()}
SlurmctldPidFile={place}/slurmctld.pid
SlurmctldLogFile={place}/slurmctld.log
SlurmdPidFile={place}/slurmd-%n.pid
SlurmdLogFile={place}/slurmd-%n.log
SlurmdSpoolDir={place}/spool-%n
StateSaveLocation={place}/state
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SchedulerParameters=batch_sched_delay=1,sched_interval=2,bf_interval=2
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
ReturnToService=2
MpiDefault=none
KillWait=2
AccountingStorageType=accounting_storage/none
JobAcctGatherType=jobacct_gather/none
{named}
PartitionName=usual Nodes=ALL Default=YES MaxTime=60 State=UP PriorityTier=1 PreemptMode=REQUEUE
PartitionName=urgent Nodes=ALL MaxTime=60 State=UP PriorityTier=10 PreemptMode=OFF
"""


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """A real Slurm: munged, a controller and three nodes, ended by their process ids."""
    if missing := [name for name in DAEMONS if shutil.which(name) is None]:
        pytest.skip(f"no {', '.join(missing)} here: apt-get install slurmctld slurmd slurm-client munge")
    if os.geteuid() != 0:
        pytest.skip("a Slurm of one's own has to be started by root")
    place = tmp_path_factory.mktemp("slurm")
    (place / "state").mkdir()
    (place / "munge.key").write_bytes(os.urandom(1024))
    (place / "munge.key").chmod(0o400)
    (place / "slurm.conf").write_text(configuration(place, nodes=3))
    munge = [f"--{name}={place}/munged.{name}" for name in ("pid-file", "seed-file", "log-file")]
    munge += [f"--key-file={place}/munge.key", f"--socket={place}/munge.socket", "--force"]
    nodes = [["slurmd", "-D", "-N", f"n{k}"] for k in (1, 2, 3)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SLURM_CONF", str(place / "slurm.conf"))
        started = []
        try:
            for words in (["munged", "--foreground", *munge], ["slurmctld", "-D", "-c"], *nodes):
                started.append(subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL))
                time.sleep(1)
            within(30, lambda: said("sinfo", "--noheader", "--format=%T %D") == "idle 3")
            yield
        finally:
            said("scancel", "--user=root")
            for process in reversed(started):
                process.terminate()
            for process in reversed(started):
                with suppress(subprocess.TimeoutExpired):
                    process.wait(5)
                process.kill()
                process.wait()


def within(seconds: float, happened: Callable[[], Any]) -> Any:
    """Wait until something has happened, and return it."""
    end = time.monotonic() + seconds
    while not (what := happened()):
        assert time.monotonic() < end, f"not within {seconds} seconds"
        time.sleep(0.5)
    return what


def said(*words: str) -> str:
    done = subprocess.run(words, capture_output=True, text=True, timeout=60, check=False)
    return done.stdout.strip()


def bits(agenda: Agenda) -> dict[str, Any]:
    return {entry.directory: final(agenda.folder(entry)) for entry in agenda.entries}


def fedgraft(*words: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, "-m", "fedgraft", *words], capture_output=True, text=True, timeout=600, check=False
    )


def at_work(out: Path) -> dict[str, int]:
    """Which runs are going on, and the processes that hold them."""
    agenda = Agenda.read(out)
    found = {
        each.directory: agenda.holder(each)
        for each in agenda.left()
        if (agenda.folder(each) / "metrics.jsonl").exists()
    }
    return {run: int(holder.split()[1]) for run, holder in found.items() if holder}


def kill_one(out: Path) -> str:
    """Kill a process that is at work, and return which run it had; nobody, if the first ended in the meantime."""
    killed, process = next(iter(at_work(out).items()))
    try:
        os.kill(process, signal.SIGKILL)
    except ProcessLookupError:
        return ""
    return killed


@pytest.mark.slow
@pytest.mark.xdist_group("slurm")
@pytest.mark.usefixtures("cluster")
def test_an_array_does_every_run_once_with_the_bits_of_one_machine(tmp_path: Path) -> None:
    pytest.importorskip("submitit")
    words = ["compare", "fedper", *SMALL, "--rounds", "3", "--seeds", "1", "--fresh"]
    out, alone = tmp_path / "comparison", tmp_path / "alone"
    handed = fedgraft(*words, "--out", str(out), "--slurm", "partition=usual,time=10:00")
    assert handed.returncode == 0, handed.stderr
    assert "3 runs in Slurm's array" in handed.stdout
    agenda = Agenda.read(out)
    within(120, lambda: not agenda.left())
    within(60, lambda: (out / "comparison.json").exists())
    for entry in agenda.entries:
        log = (out / "queue" / f"{entry.directory}.log").read_text()
        assert (log.count("began"), log.count("finished")) == (1, 1)
    assert fedgraft(*words, "--out", str(alone)).returncode == 0
    assert bits(agenda) == bits(Agenda.read(alone))
    within(60, lambda: not jobs(out))
    assert str(Queue(out)) == "Slurm: no job left"
    over = fedgraft("work", str(out), "--slurm", "time=10:00")
    assert over.returncode == 2
    assert "no run is left" in over.stderr


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.xdist_group("slurm")
@pytest.mark.usefixtures("cluster")
def test_an_array_of_eight_runs_survives_preemption_and_a_kill(tmp_path: Path) -> None:
    pytest.importorskip("submitit")
    out = tmp_path / "comparison"
    handed = fedgraft(
        "compare", "ditto", "fedper", *TWO, "--out", str(out), "--slurm", "partition=usual,time=10:00", "--fresh"
    )
    assert handed.returncode == 0, handed.stderr
    assert "8 runs in Slurm's array" in handed.stdout
    within(120, lambda: len(at_work(out)) == 3)
    assert jobs(out) == {"RUNNING": 3, "PENDING": 5}
    assert str(Queue(out)) == "Slurm: 5 pending, 3 running"

    urgent = said("sbatch", "--parsable", "--partition=urgent", "--nodes=1", "--output=/dev/null", "--wrap", "sleep 3")
    within(60, lambda: said("squeue", "--noheader", "--format=%T", f"--jobs={urgent}") in ("RUNNING", "COMPLETING", ""))
    within(60, lambda: len(at_work(out)) >= 2)
    killed = within(60, lambda: kill_one(out))

    agenda = Agenda.read(out)
    within(300, lambda: not agenda.left())
    within(60, lambda: (out / "comparison.json").exists())
    logs = {each.directory: (out / "queue" / f"{each.directory}.log").read_text() for each in agenda.entries}
    assert all(log.count("finished") == 1 for log in logs.values()), "a run was lost, or done twice"
    assert sum(log.count("began") - 1 for log in logs.values()) >= 2, "nothing was preempted or killed"
    assert logs[killed].count("began") >= 2

    alone = tmp_path / "alone"
    assert fedgraft("compare", "ditto", "fedper", *TWO, "--out", str(alone), "--fresh").returncode == 0
    assert bits(agenda) == bits(Agenda.read(alone))
    said("scancel", "--user=root")  # what was preempted waits two minutes before it starts, and finds nothing to do
    within(60, lambda: not jobs(out))


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.xdist_group("slurm")
@pytest.mark.usefixtures("cluster")
def test_a_job_that_meets_its_time_limit_is_queued_again(tmp_path: Path) -> None:
    """Slurm counts in minutes and warns 30 seconds before; two minutes are enough to start on a busy machine."""
    pytest.importorskip("submitit")
    out = tmp_path / "comparison"
    words = ["compare", "fedper", *SMALL, "--rounds", "20000", "--seeds", "1", "--out", str(out)]
    assert fedgraft(*words, "--slurm", "time=2,partition=usual").returncode == 0
    within(240, lambda: any("Requeued" in log.read_text() for log in (out / "slurm").glob("*_log.out")))
    number = json.loads((out / "slurm" / "arrays.json").read_text())["arrays"][0]["number"]
    said("scontrol", "update", f"jobid={number}", "StartTime=now")  # Slurm waits two minutes otherwise
    within(120, lambda: any(log.read_text().count("Starting with") >= 2 for log in (out / "slurm").glob("*_log.out")))
    within(120, lambda: any(log.read_text().count("began") >= 2 for log in (out / "queue").glob("*.log")))


@pytest.mark.slow
@pytest.mark.xdist_group("slurm")
@pytest.mark.usefixtures("cluster")
def test_what_slurm_refuses_is_said(tmp_path: Path) -> None:
    pytest.importorskip("submitit")
    words = ["compare", "fedper", *SMALL, "--out", str(tmp_path / "out"), "--slurm", "time=10,partition=nowhere"]
    refused = fedgraft(*words)
    assert refused.returncode == 2
    assert "Slurm does not take the jobs" in refused.stderr
    assert "invalid partition" in refused.stderr.lower()
