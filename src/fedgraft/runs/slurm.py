"""Workers of an agenda as an array of Slurm jobs: submitit writes the script, hands it in and queues cut jobs again.

    order = Order.typed("partition=gpu,time=4:00:00,cpus=8")
    order.script(agenda)           # what would be handed in
    order.submit(agenda)           # the number of the array
    Queue(agenda.place)            # as a string: "Slurm: 9 pending, 2 running"

Every job is a worker like any other (`runs/agenda.py`): it takes runs until none is free. A job that meets its time
limit or is preempted is queued again and goes on with what it finds; a run that it held goes on from its last
checkpoint, there or in another job.
"""

import re
import shlex
import shutil
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fedgraft.base.errors import UserError
from fedgraft.runs import compare, results
from fedgraft.runs.agenda import Agenda, Worker

FOLDER = "slurm"
"""What submitit keeps of the jobs, their scripts and what they print, in the agenda's directory."""
SUBMITTED = "arrays.json"
MOST_JOBS = 256
"""Jobs that are handed in unless told; runs beyond that wait for a job to be free."""
NOTICE = 30
"""Seconds before the time limit at which a job is told to leave: enough to be queued again."""
AS_OFTEN = 1000
"""How often a job may meet its time limit and be queued again."""
OURS = frozenset({"array", "output", "error", "signal", "open-mode", "nodes", "ntasks", "requeue", "wrap"})
ASK_SECONDS = 20
"""How long its answer is waited for."""
ASK_AGAIN = 15.0
"""Seconds between two questions to Slurm: its controller serves everybody."""


@dataclass(frozen=True)
class Job:
    """What each job does, and does again when it was queued again."""

    place: Path
    workers: int
    fresh: bool = False

    def __call__(self) -> None:
        worker = Worker(self.place, changes={"workers": self.workers}, fresh=self.fresh)
        worker.work(wait=False)
        compare.conclude(worker.agenda)

    def checkpoint(self) -> Any:
        """Tell submitit what to do when the job was queued again: the same, for runs keep their own checkpoints."""
        from submitit.helpers import DelayedSubmission

        return DelayedSubmission(self)


@dataclass(frozen=True)
class Order:
    """What is asked of Slurm for each job."""

    minutes: int
    cpus: int = 1
    jobs: int = MOST_JOBS
    options: Mapping[str, str | bool] = field(default_factory=dict)
    """Other options of sbatch, by their long names."""

    @classmethod
    def typed(cls, text: str) -> "Order":
        """Read what is written as ``partition=gpu,time=4:00:00,cpus=8``."""
        words: dict[str, str | bool] = {}
        for part in re.split(r",(?=[a-z][a-z-]*(?:=|,|$))", text):
            name, equals, value = part.strip().partition("=")
            if not re.fullmatch("[a-z][a-z-]*", name) or (equals and not value):
                raise UserError(f"--slurm is a list such as partition=gpu,time=4:00:00,cpus=8, and has {part!r}")
            words[name] = value if equals else True
        if wrong := sorted(OURS & words.keys()):
            raise UserError(f"--slurm cannot set {wrong[0]}: it is decided by the runs that are left")
        if "time" not in words:
            raise UserError("--slurm has to say how long a job may take, as in time=4:00:00; its runs may take longer")
        numbers = {name: _count(name, words.pop(name)) for name in ("cpus", "jobs") if name in words}
        return cls(minutes(str(words.pop("time"))), options=words, **numbers)

    def script(self, agenda: Agenda) -> str:
        """Write the script that would be handed in."""
        submitit = _submitit()
        folder = agenda.place.absolute() / FOLDER
        words = shlex.join([sys.executable, "-u", "-m", "submitit.core._submit", str(folder)])
        made = submitit.slurm.slurm._make_sbatch_string  # there is no public way to see what `submit` hands in
        return str(made(words, folder, map_count=self._tasks(agenda), **self._parameters))

    def submit(self, agenda: Agenda, *, fresh: bool = False) -> str:
        """Hand in as many jobs as there are runs left, at most ``jobs``; return the number of the array."""
        submitit = _submitit()
        if shutil.which("sbatch") is None:
            raise UserError("there is no Slurm on this machine: sbatch is not found")
        if agenda.objects:
            raise UserError("data, models and methods from Python cannot be sent to Slurm: name them by files")
        job = Job(agenda.place.absolute(), self.cpus, fresh)
        executor = submitit.SlurmExecutor(folder=agenda.place.absolute() / FOLDER, max_num_timeout=AS_OFTEN)
        executor.update_parameters(**self._parameters)
        try:
            with executor.batch():
                handed = [executor.submit(job) for _ in range(self._tasks(agenda))]
        except submitit.core.utils.FailedJobError as error:
            said = str(error).strip().splitlines()
            raise UserError(f"Slurm does not take the jobs: {said[-1] if said else 'sbatch failed'}") from None
        number = str(handed[0].job_id).partition("_")[0]
        _remember(agenda.place, number, len(handed))
        return number

    def _tasks(self, agenda: Agenda) -> int:
        left = len(agenda.left())
        if not left:
            raise UserError(f"no run is left in {agenda.place}: there is nothing to hand in")
        return min(left, self.jobs)

    @property
    def _parameters(self) -> dict[str, Any]:
        return {
            "job_name": "fedgraft", "time": self.minutes, "cpus_per_task": self.cpus, "signal_delay_s": NOTICE,
            "additional_parameters": {**self.options, "requeue": True}, "stderr_to_stdout": True,
        }  # fmt: skip


def minutes(text: str) -> int:
    """Read a time as Slurm does (``30``, ``30:00``, ``4:00:00``, ``2-0``, ``2-12:30``), in whole minutes upwards."""
    found = re.fullmatch(r"(?:(\d+)-)?(\d+)(?::(\d+))?(?::(\d+))?", text)
    if not found:
        raise UserError(f"--slurm time={text} is no time as Slurm writes it, such as 4:00:00 or 2-12")
    days, *parts = (None if part is None else int(part) for part in found.groups())
    first, second, third = parts
    if days is not None:
        seconds = days * 86400 + (first or 0) * 3600 + (second or 0) * 60 + (third or 0)
    elif third is not None:
        seconds = (first or 0) * 3600 + (second or 0) * 60 + third
    else:
        seconds = (first or 0) * 60 + (second or 0)
    if not seconds:
        raise UserError("--slurm time has to be more than nothing")
    return -(-seconds // 60)


@dataclass
class Queue:
    """What Slurm says of the jobs that were handed in for an agenda; it is not asked more often than it should be."""

    place: Path
    _asked: float = 0.0
    _said: str = ""

    def __str__(self) -> str:
        """The states of the jobs in a line; nothing where there is no Slurm."""
        if not (self.place / FOLDER / SUBMITTED).exists() or shutil.which("squeue") is None:
            return ""
        if not self._asked or time.monotonic() - self._asked > ASK_AGAIN:
            states = jobs(self.place)
            told = ", ".join(f"{count} {state.lower()}" for state, count in sorted(states.items()))
            self._asked, self._said = time.monotonic(), f"Slurm: {told or 'no job left'}"
        return self._said


def jobs(place: Path) -> "Counter[str]":
    """Ask Slurm how many jobs of an agenda are in which state, such as RUNNING; those that are over do not count."""
    counted: Counter[str] = Counter()
    for each in results.read_json(place / FOLDER / SUBMITTED)["arrays"]:
        words = ["squeue", "--noheader", "--array", "--format=%T", f"--jobs={each['number']}"]
        with suppress(OSError, subprocess.TimeoutExpired):
            said = subprocess.run(words, capture_output=True, text=True, timeout=ASK_SECONDS, check=False)
            counted.update(said.stdout.split())
    return counted


def _count(name: str, value: str | bool) -> int:
    if not (isinstance(value, str) and value.isdecimal() and int(value) > 0):
        raise UserError(f"--slurm {name} is a whole number of at least 1, not {value}")
    return int(value)


def _remember(place: Path, number: str, jobs: int) -> None:
    """Note an array, so that `fedgraft watch` can ask for it."""
    path = place / FOLDER / SUBMITTED
    before = results.read_json(path)["arrays"] if path.exists() else []
    now = {"number": number, "jobs": jobs, "submitted": time.strftime("%Y-%m-%dT%H:%M:%S%z")}
    results.write_json(path, {"arrays": [*before, now]})


def _submitit() -> Any:
    try:
        import submitit
        import submitit.slurm.slurm
    except ImportError:
        raise UserError("Slurm needs submitit: pip install 'fedgraft[slurm]'") from None
    return submitit
