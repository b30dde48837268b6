"""The local engine: workers that come, work and go."""

import multiprocessing
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from conftest import blobs, simulate, specification
from torch import Tensor

from fedgraft.base.errors import UserError
from fedgraft.core.client import Client
from fedgraft.core.message import Message
from fedgraft.core.rounds import Participation, rounds
from fedgraft.data.federation import Federation
from fedgraft.engines import local
from fedgraft.engines.local import ClientError, Faults, LocalEngine
from fedgraft.engines.workshop import Job
from fedgraft.methods.fedavg import FedAvg


@dataclass(frozen=True)
class Faulty(FedAvg):
    """Client 2 raises, or takes its worker down with it."""

    deadly: bool = False

    def fit(self, client: Client, received: Tensor) -> Tensor:
        if client.id == 2:
            if self.deadly:
                os.kill(os.getpid(), signal.SIGKILL)
            raise ZeroDivisionError("the client's data is odd")
        return super().fit(client, received)


@pytest.mark.parametrize("workers", [1, 2])
def test_a_client_that_raises_is_named(fed: Federation, workers: int) -> None:
    with pytest.raises(ClientError, match=r"fedavg, round 1, client 2: .*the client's data is odd"):
        simulate(Faulty(), fed, specification(fed), workers=workers)
    assert not multiprocessing.active_children()


def test_a_worker_that_dies_is_reported(fed: Federation) -> None:
    with pytest.raises(ClientError, match=r"client 2: .*worker process died"):
        simulate(Faulty(deadly=True), fed, specification(fed), workers=2)
    assert not multiprocessing.active_children()


@dataclass(frozen=True)
class Shaky(FedAvg):
    """Client 2 fails the first time it is tried in a round; the file says whether it has been."""

    trace: str = ""
    how: str = "raise"

    def fit(self, client: Client, received: Tensor) -> Tensor:
        mark = Path(f"{self.trace}-{client.round}")
        if client.id == 2 and not mark.exists():
            mark.touch()
            if self.how == "die":
                os.kill(os.getpid(), signal.SIGKILL)
            if self.how == "hang":
                time.sleep(60)
            raise ZeroDivisionError
        return super().fit(client, received)


@pytest.mark.parametrize(("how", "workers"), [("raise", 1), ("raise", 2), ("die", 2), ("hang", 2)])
def test_a_client_that_failed_once_is_tried_again_in_a_fresh_worker(
    fed: Federation, tmp_path: Path, how: str, workers: int
) -> None:
    spec = specification(fed, rounds=1 if how == "hang" else 3)
    _, whole, _ = simulate(FedAvg(), fed, spec)
    faults = Faults(retries=1, deadline=5.0 if how == "hang" else None)
    done, server, _ = simulate(Shaky(trace=str(tmp_path / "tried"), how=how), fed, spec, workers=workers, faults=faults)
    assert torch.equal(server["weights/0"], whole["weights/0"])
    assert not any(this.refused for this in done)
    assert not multiprocessing.active_children()


@pytest.mark.parametrize(("deadly", "workers"), [(False, 1), (False, 2), (True, 2)])
def test_a_client_that_fails_for_good_may_be_absent(fed: Federation, deadly: bool, workers: int) -> None:
    done, server, engine = simulate(
        Faulty(deadly=deadly), fed, specification(fed), workers=workers, faults=Faults(then="absent")
    )
    for number, this in enumerate(done, start=1):
        assert [r.client for r in this.refused] == [2]
        assert f"fedavg, round {number}: the client failed" in this.refused[0].reason
    assert torch.equal(engine.states[2]["own"], specification(fed).initial(2))
    assert bool(torch.isfinite(server["weights/0"]).all())


def test_a_worker_that_dies_between_rounds_is_replaced(fed: Federation) -> None:
    _, whole, _ = simulate(FedAvg(), fed, specification(fed, rounds=2))
    method, spec = FedAvg(), specification(fed, rounds=2)
    server = method.setup(spec)
    with LocalEngine(method, spec, fed.clients, workers=2) as engine:
        for _ in rounds(method, server, engine, Participation(), evaluate_every=10):
            for child in multiprocessing.active_children():
                child.kill()
                child.join()
    assert torch.equal(server["weights/0"], whole["weights/0"])


ENDLESS = """
import sys, time
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, {tests!r})
from conftest import blobs, simulate, specification
from fedgraft.methods.fedavg import FedAvg


@dataclass(frozen=True)
class Endless(FedAvg):
    def fit(self, client, received):
        if client.id:
            Path({trace!r}, str(__import__("os").getpid())).touch()
            while True:
                time.sleep(0.1)
        return super().fit(client, received)


fed = blobs((20, 9, 9))
simulate(Endless(), fed, specification(fed), workers=3)
"""


def alive(pid: int) -> bool:
    """Whether a process is there and is no zombie that waits for somebody to collect it."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="processes are counted by way of /proc")
def test_workers_do_not_outlive_a_parent_that_was_killed(tmp_path: Path) -> None:
    script = ENDLESS.format(tests=str(Path(__file__).parents[1]), trace=str(tmp_path))
    parent = subprocess.Popen([sys.executable, "-c", script])
    deadline = time.monotonic() + 60
    while len(busy := [int(file.name) for file in tmp_path.iterdir()]) < 2:
        assert parent.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.05)
    everybody = [int(pid) for pid in Path(f"/proc/{parent.pid}/task/{parent.pid}/children").read_text().split()]
    assert set(busy) < set(everybody), "two are in a job without end, one waits for the next"
    for pid in (parent.pid, *everybody):
        assert "/dev/shm" not in Path(f"/proc/{pid}/maps").read_text(), "memory that nobody would give back"
    parent.kill()
    parent.wait()
    deadline = time.monotonic() + 20
    while (left := [pid for pid in everybody if alive(pid)]) and time.monotonic() < deadline:
        time.sleep(0.05)
    for pid in left:
        os.kill(pid, signal.SIGKILL)
    assert not left, "a worker lived on"


def test_more_workers_than_clients_or_cores(fed: Federation) -> None:
    _, few, _ = simulate(FedAvg(), fed, specification(fed), workers=1)
    _, many, _ = simulate(FedAvg(), fed, specification(fed), workers=6)
    assert torch.equal(few["weights/0"], many["weights/0"])
    assert not multiprocessing.active_children()


def test_large_clients_begin_first(fed: Federation) -> None:
    begun: list[int] = []

    @dataclass(frozen=True)
    class Noting(FedAvg):
        def fit(self, client: Client, received: Tensor) -> Tensor:
            begun.append(client.id)
            return received

    simulate(Noting(), fed, specification(fed, rounds=1))
    assert begun == [2, 0, 1, 3], "31, 20, 13 and 8 samples"


def test_a_method_and_a_model_defined_on_the_spot_reach_the_workers() -> None:
    fed = blobs((9, 9))

    @dataclass(frozen=True)
    class Local(FedAvg):
        def reply(self, client: Client, received: Tensor, trained: Tensor) -> Message:
            return Message(weights=torch.full_like(trained, 0.5))

    _, server, _ = simulate(Local(), fed, specification(fed, rounds=1), workers=2)
    assert set(server["weights/0"].tolist()) == {0.5}


def test_private_figures_of_clients_that_never_joined_are_nan(fed: Federation) -> None:
    @dataclass(frozen=True)
    class Numbered(FedAvg):
        def join(self, client: Client) -> None:
            client["number"] = torch.tensor(float(client.id))

        def observe_client(self, client: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
            return {"number": client["number"]} if "number" in client else {}

    done, _, _ = simulate(Numbered(), fed, specification(fed, rounds=1), share=0.5)
    picked = done[0].participants
    for client, number in enumerate(done[0].observed["number"].tolist()):
        assert number == client if client in picked else number != number


def test_everyone_is_tested_on_all_test_samples(fed: Federation) -> None:
    spec = specification(fed, rounds=1)
    method = FedAvg()
    with LocalEngine(method, spec, fed.clients, everyone=fed.everyone()) as engine:
        server = method.setup(spec)
        scores = engine.evaluate(0, {c: method.send(server, c) for c in range(4)})
    assert {s.everyone["received"].total for s in scores.values() if s.everyone} == {40}
    assert len({tuple(s.everyone["received"].tallies["accuracy"]) for s in scores.values() if s.everyone}) == 1, (
        "one global model"
    )


@pytest.mark.slow
def test_a_deadline_holds_with_one_worker_too(fed: Federation, tmp_path: Path) -> None:
    spec = specification(fed, rounds=1)
    _, whole, _ = simulate(FedAvg(), fed, spec)
    method = Shaky(trace=str(tmp_path / "tried"), how="hang")
    done, server, _ = simulate(method, fed, spec, workers=1, faults=Faults(deadline=5.0))
    assert torch.equal(server["weights/0"], whole["weights/0"])
    assert not any(this.refused for this in done)
    assert not multiprocessing.active_children()


def test_a_deadline_that_is_missed_ends_the_run_in_a_sentence(fed: Federation, tmp_path: Path) -> None:
    method, faults = Shaky(trace=str(tmp_path / "tried"), how="hang"), Faults(retries=0, deadline=1.0)
    with pytest.raises(UserError, match=r"round 1, client 2: it took more than the 1 s of the deadline; --failed-cl"):
        simulate(method, fed, specification(fed, rounds=1), workers=2, faults=faults)
    assert not multiprocessing.active_children()


def test_a_deadline_needs_a_process_that_can_be_ended(fed: Federation) -> None:
    with pytest.raises(UserError, match="a deadline needs a worker process, and clients on mps train in this one"):
        LocalEngine(FedAvg(), specification(fed), fed.clients, device="mps", faults=Faults(deadline=5.0))


@dataclass(frozen=True)
class Suspended(FedAvg):
    """Client 2's worker is stopped from outside, the first time it is tried."""

    trace: str = ""

    def fit(self, client: Client, received: Tensor) -> Tensor:
        if client.id == 2 and client.round == 0 and not Path(self.trace).exists():
            Path(self.trace).touch()
            os.kill(os.getpid(), signal.SIGSTOP)
        return super().fit(client, received)


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="what a process computes is read from /proc")
def test_a_worker_that_was_suspended_is_replaced_without_a_deadline(fed: Federation, tmp_path: Path) -> None:
    _, whole, _ = simulate(FedAvg(), fed, specification(fed))
    method = Suspended(trace=str(tmp_path / "stopped"))
    done, server, _ = simulate(method, fed, specification(fed), workers=2, faults=Faults(idle=3.0))
    assert torch.equal(server["weights/0"], whole["weights/0"])
    assert not any(this.refused for this in done)
    for_good = Suspended(trace=str(tmp_path / "again"))
    done, _, _ = simulate(
        for_good, fed, specification(fed, rounds=1), workers=2, faults=Faults(retries=0, then="absent", idle=3.0)
    )
    assert "its worker process did nothing for 3 s: it hangs, or was suspended" in done[0].refused[0].reason
    assert not multiprocessing.active_children()


@dataclass(frozen=True)
class Slow(FedAvg):
    """Client 2 computes for longer than an idle worker would be given."""

    def fit(self, client: Client, received: Tensor) -> Tensor:
        end = time.process_time() + (1.5 if client.id == 2 else 0)
        while time.process_time() < end:
            pass
        return super().fit(client, received)


@pytest.mark.slow
def test_a_worker_that_computes_for_long_is_left_alone(fed: Federation) -> None:
    done, _, _ = simulate(Slow(), fed, specification(fed, rounds=1), workers=2, faults=Faults(retries=0, idle=0.5))
    assert not done[0].refused


@dataclass(frozen=True)
class Deadly(FedAvg):
    """Client 5 takes its worker down, whoever else was in the same batch."""

    def fit(self, client: Client, received: Tensor) -> Tensor:
        if client.id == 5:
            os.kill(os.getpid(), signal.SIGKILL)
        return super().fit(client, received)


def test_short_jobs_go_to_a_worker_together_and_fail_alone() -> None:
    many = blobs((4,) * 40)
    spec = specification(many, rounds=1)
    with LocalEngine(FedAvg(), spec, many.clients, workers=2) as engine:
        jobs = [Job("train", client, 0, Message(weights=torch.zeros(3)), {}) for client in range(40)]
        sizes = [len(batch) for batch in engine._batches(jobs)]
    assert sum(sizes) == 40
    assert max(sizes) > 1
    assert len(sizes) > 8, "enough that no worker waits long for another"

    done, _, engine = simulate(Deadly(), many, spec, workers=2, faults=Faults(retries=0, then="absent"))
    assert [refusal.client for refusal in done[0].refused] == [5]
    assert done[0].accepted == 39
    _, alone, honest = simulate(FedAvg(), many, spec)
    _, together, both = simulate(FedAvg(), many, spec, workers=2)
    assert torch.equal(alone["weights/0"], together["weights/0"])
    assert all(torch.equal(honest.states[c]["own"], both.states[c]["own"]) for c in range(40))


@pytest.mark.parametrize(("shared", "together"), [(True, 3), (False, 2)])
def test_a_batch_is_full_by_the_bytes_that_travel(monkeypatch: pytest.MonkeyPatch, shared: bool, together: int) -> None:
    monkeypatch.setattr(local, "HEAVY", 2000)
    monkeypatch.setattr(local, "BATCHES", 0.5)  # their samples would make one batch of all jobs
    many = blobs((4,) * 12)
    same = Message(weights=torch.zeros(250))  # 1,000 bytes, and 400 of each state
    jobs = [Job("train", client, 0, same if shared else same.copy(), {"own": torch.zeros(100)}) for client in range(6)]
    with LocalEngine(FedAvg(), specification(many), many.clients, workers=2) as engine:
        assert [len(batch) for batch in engine._batches(jobs)] == [together] * (6 // together)


def test_of_a_state_only_what_was_looked_at_comes_back(fed: Federation) -> None:
    """FedAvg never looks at what another name holds: it stays in the parent, and is the very tensor that it was."""
    spec = specification(fed, rounds=1)
    for workers in (1, 2):
        with LocalEngine(FedAvg(), spec, fed.clients, workers=workers) as engine:
            kept = torch.arange(5.0)
            engine.states[0] = {**engine.states[0], "diary": kept}
            list(rounds(FedAvg(), FedAvg().setup(spec), engine, Participation()))
            assert engine.states[0]["diary"] is kept
            assert "joined" in engine.states[0]
