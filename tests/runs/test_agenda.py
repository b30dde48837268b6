"""Any number of processes work on one list of runs: none is lost, none is done twice, and the bits are the same."""

import itertools
import json
import os
import random
import re
import signal
import time
from pathlib import Path
from typing import Any

import pytest
from conftest import blobs, final, small_network, timeless
from filelock import SoftFileLease, Timeout
from program import Program
from typer.testing import CliRunner

import fedgraft as fg
from fedgraft.base.errors import UserError
from fedgraft.base.version import ARITHMETIC
from fedgraft.cli import app
from fedgraft.core.rounds import Round
from fedgraft.runs import agenda as agendas
from fedgraft.runs import compare
from fedgraft.runs.agenda import Agenda, Entry, Planner, Worker
from fedgraft.runs.config import configure
from fedgraft.runs.run import Run

SETTINGS: dict[str, Any] = {
    "clients": 3, "partition": "iid", "model": "mlp:8", "rounds": 3, "epochs": 1, "checkpoint_every": 1, "workers": 1,
}  # fmt: skip


def bits(agenda: Agenda) -> dict[str, Any]:
    """What all runs left."""
    return {entry.directory: final(agenda.folder(entry)) for entry in agenda.entries}


def entries(methods: tuple[str, ...] = ("local", "fedavg", "fedper"), seeds: int = 3) -> tuple[Entry, ...]:
    return tuple(
        Entry.of(f"{method}-seed{seed}", configure(SETTINGS, {"method": method, "seed": seed}), method)
        for seed, method in itertools.product(range(seeds), methods)
    )


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What one process makes of the runs, one after another."""
    agenda = Agenda(tmp_path_factory.mktemp("alone") / "agenda", entries())
    agenda.write()
    Worker(agenda.place).work()
    return bits(agenda)


def started(place: Path) -> Program:
    return Program("work", str(place), "--quiet")


def logged(agenda: Agenda, event: str) -> dict[str, int]:
    """How often something happened to each run."""
    return {
        entry.directory: (agenda.place / "queue" / f"{entry.directory}.log").read_text().count(f" {event}\n")
        for entry in agenda.entries
    }


@pytest.mark.parametrize("processes", [2, pytest.param(4, marks=pytest.mark.slow)])
def test_several_processes_do_every_run_once(tmp_path: Path, alone: dict[str, Any], processes: int) -> None:
    agenda = Agenda(tmp_path / "agenda", entries())
    agenda.write()
    crew = [started(agenda.place) for _ in range(processes)]
    assert [process.wait(300).returncode for process in crew] == [0] * processes
    assert agenda.states() == {"done": len(agenda.entries)}
    assert set(logged(agenda, "began").values()) == {1}, "no run was done twice"
    assert set(logged(agenda, "finished").values()) == {1}
    assert bits(agenda) == alone
    assert not list(agenda.place.glob("queue/*.lease"))


@pytest.mark.slow
def test_workers_that_are_killed_lose_nothing(tmp_path: Path, alone: dict[str, Any]) -> None:
    agenda = Agenda(tmp_path / "agenda", entries())
    agenda.write()
    chance, killed = random.Random(0), 0
    crew = [started(agenda.place) for _ in range(2)]
    deadline = time.monotonic() + 300
    while agenda.left():
        assert time.monotonic() < deadline
        busy = [process for process in crew if _at_work(agenda, process.process.pid)]
        if killed < 4 and busy:
            time.sleep(chance.uniform(0, 0.1))
            victim = chance.choice(busy)
            victim.send_signal(signal.SIGKILL)
            victim.wait()
            killed += 1
            crew = [process for process in crew if process is not victim] + [started(agenda.place)]
        time.sleep(0.02)
    assert killed >= 2
    assert [process.wait(120).returncode for process in crew] == [0] * 2
    assert set(logged(agenda, "finished").values()) == {1}, "none is lost, and none is finished twice"
    assert bits(agenda) == alone


def _at_work(agenda: Agenda, pid: int | None) -> bool:
    return any((holder := agenda.holder(entry)) and holder.endswith(f" {pid}") for entry in agenda.entries)


class Stop:
    """Raises in the middle of the first run that it sees."""

    def __init__(self, error: BaseException) -> None:
        self.error: BaseException | None = error

    def begin(self, run: Run) -> None: ...

    def round(self, run: Run, this: Round) -> None:
        if self.error is not None:
            error, self.error = self.error, None
            raise error

    def end(self, run: Run) -> None: ...


def test_what_fails_is_recorded_and_left_until_somebody_asks(tmp_path: Path) -> None:
    agenda = Agenda(tmp_path / "agenda", entries(seeds=1))
    agenda.write()
    worker = Worker(agenda.place, watchers=[Stop(UserError("the roof leaks"))])
    worker.work()
    assert agenda.states() == {"failed": 1, "done": 2}
    assert agenda.failures() == {"local-seed0": "the roof leaks"}
    Worker(agenda.place).work()
    assert agenda.states()["failed"] == 1, "nobody asked"
    with pytest.raises(
        UserError, match=r"local-seed0 failed: the roof leaks; the others are kept, and `fedgraft resume"
    ):
        agenda.insist_on_success()
    agenda.forgive()
    Worker(agenda.place).work()
    assert agenda.states() == {"done": 3}


@pytest.mark.slow
def test_somebody_who_is_stopped_leaves_the_run_to_others(tmp_path: Path, alone: dict[str, Any]) -> None:
    agenda = Agenda(tmp_path / "agenda", entries())
    agenda.write()
    with pytest.raises(KeyboardInterrupt):
        Worker(agenda.place, watchers=[Stop(KeyboardInterrupt())]).work()
    assert agenda.states() == {"waiting": len(agenda.entries)}
    Worker(agenda.place).work()
    assert bits(agenda) == alone


def test_a_run_that_somebody_holds_is_left_alone(tmp_path: Path) -> None:
    agenda = Agenda(tmp_path / "agenda", entries(seeds=1))
    agenda.write()
    first = agenda.entries[0]
    (agenda.place / "queue").mkdir()
    with agenda.lease(first):
        Worker(agenda.place).work(wait=False)
        assert [agenda.state(entry) for entry in agenda.entries] == ["at work", "done", "done"]
        assert (agenda.holder(first) or "").endswith(str(os.getpid()))
    Worker(agenda.place).work()
    assert agenda.states() == {"done": 3}


def test_a_lease_whose_writer_was_killed_before_its_first_word_is_nobodys(tmp_path: Path) -> None:
    agenda = Agenda(tmp_path / "agenda", entries(("local",), seeds=1))
    agenda.write()
    [entry] = agenda.entries
    path = Path(agenda.lease(entry).lock_file)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.touch()
    with pytest.raises(Timeout):
        agendas.seize(agenda.lease(entry))  # its writer may be about to write
    long_ago = time.time() - agendas.LEASE - 1
    os.utime(path, (long_ago, long_ago))
    Worker(agenda.place).work()
    assert agenda.states() == {"done": 1}


@pytest.mark.slow
def test_another_machine_is_given_up_when_it_is_silent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its process cannot be looked for, so only its signs of life count."""
    monkeypatch.setattr(agendas, "LEASE", 1.0)
    agenda = Agenda(tmp_path / "agenda", entries(("local",), seeds=1))
    agenda.write()
    path = agenda.place / "queue" / "local-seed0.lease"
    path.parent.mkdir()
    token = "0" * 32
    path.write_text(f"filelock/2\npid=1\nhost=elsewhere\nmode=lease\ntoken={token}\nduration=1.0\n")
    worker, began = Worker(agenda.place), time.monotonic()
    for _ in range(4):
        worker.work(wait=False)
        os.utime(path)  # a sign of life
        time.sleep(0.4)
    assert agenda.states() == {"at work": 1}
    worker.work()
    assert agenda.states() == {"done": 1}
    assert time.monotonic() - began > 2


def test_a_worker_that_lost_its_run_lets_go_of_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    agenda = Agenda(tmp_path / "agenda", entries(("local",), seeds=1))
    agenda.write()
    rounds: list[int] = []

    class Thief(Stop):
        def round(self, run: Run, this: Round) -> None:
            rounds.append(this.number)
            monkeypatch.setattr(SoftFileLease, "compromise", property(lambda self: "taken"))

    worker = Worker(agenda.place, watchers=[Thief(UserError(""))])
    worker.work(wait=False)
    assert rounds == [0]
    assert "left to another" in (agenda.place / "queue" / "local-seed0.log").read_text()
    assert agenda.states() == {"waiting": 1}


def test_it_reads_as_it_was_written_and_may_grow(tmp_path: Path) -> None:
    few = Agenda(tmp_path / "agenda", entries(seeds=1), "comparison", {"seeds": 1})
    few.write()
    read = Agenda.read(few.place)
    assert [each.config for each in read.entries] == [each.config for each in few.entries]
    assert (read.kind, read.asked, read.objects) == ("comparison", {"seeds": 1}, False)
    more = Agenda(few.place, entries(seeds=2))
    more.write()
    assert len(Agenda.read(few.place).entries) == 6
    with pytest.raises(UserError, match="holds other runs, such as local-seed1"):
        few.write()
    other = Agenda(few.place, tuple(Entry.of(each.directory, each.config.model_copy(update={"rounds": 9})) for each in
                                    more.entries))  # fmt: skip
    with pytest.raises(UserError, match="holds other runs, such as local-seed0"):
        other.write()
    assert more.missing(Agenda.read(few.place)) == []


@pytest.mark.parametrize(
    ("old", "new", "wrong"),
    [
        ('directory = "local-seed0"', "directory = 3", r"runs\.0\.directory: input should be a valid string"),
        ('directory = "local-seed0"', 'folder = "local-seed0"', r"runs\.0\.directory: field required"),
        ('label = "local"', "label = 2024-01-01", r"runs\.0\.label: input should be a valid string"),
        ("objects = false", 'objects = "no"', "objects: input should be a valid boolean"),
        ('kind = "runs"', "", "it lacks kind"),
        ("own = {", "own = { training = 3,", r"runs\.0\.own: training is no table"),
    ],
)
def test_a_file_that_was_changed_is_a_sentence(tmp_path: Path, old: str, new: str, wrong: str) -> None:
    agenda = Agenda(tmp_path / "agenda", entries(seeds=1))
    agenda.write()
    text = (agenda.place / agendas.FILE).read_text()
    assert old in text
    (agenda.place / agendas.FILE).write_text(text.replace(old, new, 1))
    for command in (["work"], ["watch"], ["resume"]):
        refused = CliRunner().invoke(app, [*command, str(agenda.place)])
        assert isinstance(refused.exception, UserError), refused.exception
        assert re.search(f"agenda.toml is not an agenda of runs: {wrong}", str(refused.exception))


def test_what_came_from_python_can_only_go_on_there(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        fg.compare(federation=blobs(), model=small_network(), seeds=1, rounds=2, workers=1, out=tmp_path / "it",
                   watchers=[Stop(KeyboardInterrupt())])  # fmt: skip
    with pytest.raises(UserError, match="from Python"):
        Worker(tmp_path / "it")
    with pytest.raises(UserError, match="processes of their own"):
        fg.compare(federation=blobs(), seeds=1, out=tmp_path / "it", parallel=2)
    with pytest.raises(UserError, match="a number of runs at once, or auto, not 0"):
        fg.compare(seeds=1, out=tmp_path / "it", parallel=0)


def test_a_comparison_that_others_finish_has_its_tables(tmp_path: Path) -> None:
    settings: dict[str, Any] = {"seeds": 2, **SETTINGS}
    fg.compare("fedper", out=tmp_path / "whole", **settings)
    with pytest.raises(KeyboardInterrupt):
        fg.compare("fedper", out=tmp_path / "torn", watchers=[Stop(KeyboardInterrupt())], **settings)
    assert CliRunner().invoke(app, ["work", str(tmp_path / "torn")]).exit_code == 0
    one, two = (json.loads((tmp_path / name / "comparison.json").read_text()) for name in ("whole", "torn"))
    assert timeless(one) == timeless(two)


def test_runs_can_be_written_down_for_others_to_do(tmp_path: Path) -> None:
    place = tmp_path / "later"
    words = ["--clients", "2", "--partition", "iid", "--model", "linear", "--rounds", "1", "--seeds", "1"]
    done = CliRunner().invoke(app, ["compare", *words, "--sweep", "lr=0.1,0.2", "--later", "--out", str(place)])
    assert done.exit_code == 0, done.output
    assert f"4 runs: fedgraft work {place}" in done.output
    assert Agenda.read(place).states() == {"waiting": 4}
    assert CliRunner().invoke(app, ["work", str(place), "--workers", "1"]).exit_code == 0
    assert sorted(file.parent.name for file in place.glob("*/comparison.json")) == ["lr=0.1", "lr=0.2"]


@pytest.mark.slow
def test_several_at_once_end_in_the_same_bits(tmp_path: Path) -> None:
    settings: dict[str, Any] = {"seeds": 2, **SETTINGS}
    one = fg.compare("fedper", out=tmp_path / "one", **settings)
    two = fg.compare("fedper", out=tmp_path / "two", parallel=2, **settings)
    assert [timeless(run.result) for each in one.runs.values() for run in each] == [
        timeless(run.result) for each in two.runs.values() for run in each
    ]
    pids = {
        line.split()[2] for file in (tmp_path / "two").glob("queue/*.log") for line in file.read_text().splitlines()
    }
    assert len(pids) == 2
    assert str(os.getpid()) not in pids


class Archive:
    """Counts the rounds that are computed."""

    def __init__(self) -> None:
        self.rounds: list[str] = []

    def begin(self, run: Run) -> None: ...

    def round(self, run: Run, this: Round) -> None:
        self.rounds.append(run.method.name)

    def end(self, run: Run) -> None: ...


@pytest.fixture
def counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Compares in the folder of all runs, and says which rounds were computed."""
    monkeypatch.setenv("FEDGRAFT_RUNS", str(tmp_path))
    numbers = itertools.count()

    def compared(*methods: str, **changes: Any) -> list[str]:
        watcher = Archive()
        settings = {"seeds": 1, **SETTINGS, "rounds": 2, **changes}
        fg.compare(list(methods), out=tmp_path / f"compare-{next(numbers)}", watchers=[watcher], **settings)
        return watcher.rounds

    return compared


def test_local_and_fedavg_are_not_computed_twice(tmp_path: Path, counted: Any) -> None:
    assert counted("fedper") == ["local"] * 2 + ["fedavg"] * 2 + ["fedper"] * 2
    assert counted("fedrep", workers=2, checkpoint_every=2) == ["fedrep"] * 2
    one, two = (tmp_path / f"compare-{number}" / "fedavg-seed0" for number in (0, 1))
    assert (one / "result.json").read_bytes() == (two / "result.json").read_bytes()
    assert json.loads((two / "origin.json").read_text()) == {"copied_from": str(one)}
    assert "workers = 2" in (two / "config.toml").read_text()
    fg.load(two).module(0)
    assert counted("fedper", fresh=True) == ["local"] * 2 + ["fedavg"] * 2 + ["fedper"] * 2


@pytest.mark.parametrize(
    "change", [{"lr": 0.03}, {"seed": 1}, {"rounds": 1}, {"data_seed": 3}, {"metrics": "auc"}, {"kernels": "torch"}]
)
def test_another_run_is_not_taken_for_one_that_was_computed(counted: Any, change: dict[str, Any]) -> None:
    counted()
    assert set(counted(**change)) == {"local", "fedavg"}


def test_what_was_computed_is_looked_at_before_it_is_believed(
    tmp_path: Path, counted: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    counted()
    told = tmp_path / "compare-0" / "local-seed0" / "run.json"
    said = json.loads(told.read_text())
    told.write_text(json.dumps(said | {"arithmetic": 0}))
    assert counted() == ["local"] * 2
    (tmp_path / "compare-1" / "fedavg-seed0" / "result.json").write_text("{")
    (tmp_path / "compare-0" / "fedavg-seed0" / "result.json").unlink()
    assert counted() == ["fedavg"] * 2
    monkeypatch.setattr("fedgraft.runs.identity.ARITHMETIC", ARITHMETIC + 1)
    assert counted() == ["local"] * 2 + ["fedavg"] * 2


def test_code_of_ones_own_is_never_taken_for_known(tmp_path: Path, counted: Any) -> None:
    (tmp_path / "mine.py").write_text(
        "import fedgraft as fg\nfrom dataclasses import dataclass\n\n\n@dataclass(frozen=True)\n"
        "class Mine(fg.FedPer):\n    name = 'mine'\n"
    )
    counted(f"{tmp_path / 'mine.py'}:Mine")
    assert counted(f"{tmp_path / 'mine.py'}:Mine") == ["mine"] * 2


def test_a_planner_keeps_the_last_federation() -> None:
    planner, (one, two, three, *_) = Planner(), entries()
    assert planner(one).federation is planner(two).federation
    assert planner(three).federation is planner(two, {"workers": 2}).federation
    assert planner(entries()[3]).federation is not planner(one).federation


def test_which_settings_a_resumed_comparison_may_change(tmp_path: Path) -> None:
    Agenda(tmp_path / "runs", entries(seeds=1)).write()
    with pytest.raises(UserError, match="cannot change lr"):
        Worker(tmp_path / "runs", changes={"lr": 1.0})
    with pytest.raises(UserError, match="holds no comparison, but runs"):
        compare.resume(tmp_path / "runs")
