"""Devices: what names them, who has which, and workers that open theirs; a made-up index stands for graphics cards."""

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import final, simulate, specification
from program import Program
from torch import Tensor
from typer.testing import CliRunner

import fedgraft as fg
from fedgraft.base.errors import UserError
from fedgraft.cli import app
from fedgraft.core.client import Client
from fedgraft.data.federation import Federation
from fedgraft.engines import devices, footprint
from fedgraft.engines.devices import Device
from fedgraft.engines.local import LocalEngine
from fedgraft.engines.workshop import Workshop
from fedgraft.methods.fedavg import FedAvg
from fedgraft.runs import archive
from fedgraft.runs.config import configure
from fedgraft.runs.hosting import seated
from fedgraft.runs.identity import Identity
from fedgraft.runs.run import plan

MILLION = 10**6
CARDS = (Device("cuda:0", "Made-up 1", 900, 1000), Device("cuda:1", "Made-up 1", 350, 1000))
SHORT: dict[str, Any] = {"clients": 4, "rounds": 2, "model": "mlp:4", "epochs": 1}


@pytest.fixture
def cards(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(devices, "graphics", lambda: CARDS)


def test_names() -> None:
    assert devices.listed("cuda:0, cuda:1") == ("cuda:0", "cuda:1")
    assert devices.on_processor("cpu,cpu")
    assert not devices.on_processor("cuda:1")
    with pytest.raises(UserError, match="a device is cpu or cuda, or cuda:1 for the second, not 'tpu'"):
        devices.listed("cpu,tpu")
    with pytest.raises(UserError, match="cpu and cuda, which do not end in the same bits"):
        devices.listed("cpu,cuda:0")


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("cuda", "there is no device 'cuda' here"),
        ("cuda:7", "there is no device 'cuda:7' here"),
        ("cpu,cuda", "device names cpu and cuda"),
        ("tpu", "a device is cpu or cuda"),
        ("", "a device is cpu or cuda"),
    ],
)
def test_what_is_not_here_is_a_sentence(tmp_path: Path, name: str, sentence: str) -> None:
    if name.startswith("cuda") and devices.graphics():
        pytest.skip("there is one")
    done = Program("run", "fedavg", "--device", name, "--out", "out", cwd=tmp_path).wait()
    assert done.returncode == 2
    assert sentence in " ".join(done.stderr.split())
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "out").exists()


def test_one_name_stands_for_all_cards(cards: None) -> None:
    assert devices.there("cuda") == CARDS
    assert devices.there("cuda:1,cuda:1") == CARDS[1:]
    assert devices.there("cpu,cpu") == (Device("cpu"),)
    with pytest.raises(UserError, match="there is no device 'cuda:7' here: there are cuda:0, cuda:1"):
        devices.there("cuda:7")


def test_workers_sit_down_in_turn_while_there_is_room() -> None:
    # 900 // 100 = 9 and 350 // 100 = 3 have room
    def seats(need: int, workers: int, told: bool = False) -> list[int]:
        found = devices.seats(CARDS, need, workers, told=told)
        return [found.count(card.name) for card in CARDS]

    assert devices.seats(CARDS, 100, 3, told=False) == ("cuda:0", "cuda:1", "cuda:0")
    assert seats(100, 8) == [5, 3]
    assert seats(100, 50) == [9, 3]
    assert seats(100, 12, told=True) == [9, 3]
    assert seats(351, 4) == [2, 0], "one device may be too small"
    with pytest.raises(UserError, match=r"13 workers need about 100 bytes each, .* there is room for 12"):
        seats(100, 13, told=True)
    with pytest.raises(UserError, match=r"a worker needs about 1,000,000 bytes .* cuda:0 has 900 free"):
        seats(MILLION, 1)
    assert devices.seats([Device("cpu")], 100, 3, told=True) == ("cpu",) * 3


def test_ranks_share_the_devices_of_their_machine() -> None:
    places = ("cuda:0", "cuda:1", "cuda:0")
    assert [devices.share(places, rank, 2) for rank in range(2)] == [("cuda:0", "cuda:0"), ("cuda:1",)]
    assert [devices.share(places, rank, 4)[0] for rank in range(4)] == ["cuda:0", "cuda:1", "cuda:0", "cuda:0"]


def planned(**settings: Any) -> Any:
    config = configure({**SHORT, **settings})
    fed = fg.federate("digits", clients=config.clients, partition="iid")
    return plan(FedAvg(), fed, config, None, given=True)


def test_a_run_is_planned_by_free_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    need = footprint.footprint(*_parts(planned())).need
    room = [Device("cuda:0", "Made-up 1", 2 * need, 0), Device("cuda:1", "Made-up 2", need + 1, 0)]
    monkeypatch.setattr(devices, "graphics", lambda: tuple(room))
    run = planned(device="cuda", workers=3)
    assert run.places == ("cuda:0", "cuda:1", "cuda:0")
    assert "the devices are not alike (Made-up 1, Made-up 2)" in run.notes[-2]
    assert f"workers by device: cuda:0 2, cuda:1 1; each needs about {need:,} bytes" in run.notes[-1]
    assert planned(device="cuda:1").places == ("cuda:1",)
    with pytest.raises(UserError, match="there is room for 3"):
        planned(device="cuda", workers=4)
    with pytest.raises(UserError, match="device names 2 for 1 worker: the others would idle"):
        planned(device="cuda:0,cuda:1", workers=1)
    room[:] = [Device("cuda:0", "Made-up 1", need - 1, 0)]
    with pytest.raises(UserError, match=f"a worker needs about {need:,} bytes on its device, .* {need - 1:,} free"):
        planned(device="cuda")


def _parts(run: Any) -> tuple[Any, Any, Any]:
    return run.method, run.spec, run.federation.clients


def test_what_cannot_be_rehearsed_has_a_device_for_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    def lost(*_: object) -> None:
        raise RuntimeError("needs the device itself")

    run = planned()
    monkeypatch.setattr(devices, "graphics", lambda: CARDS)
    monkeypatch.setattr("fedgraft.runs.hosting.footprint", lost)
    found = seated(configure({**SHORT, "device": "cuda"}), *_whole(run))
    assert found.places == ("cuda:0", "cuda:1")
    assert "could not be seen beforehand (needs the device itself)" in found.notes[0]


def _whole(run: Any) -> tuple[Any, Any, Any]:
    return run.method, run.spec, run.federation


def test_each_worker_has_its_device(fed: Federation) -> None:
    with LocalEngine(FedAvg(), specification(fed), fed.clients, workers=3, device="cpu:0,cpu:1") as engine:
        places = [str(worker.workshop.device) for worker in engine._workers]
    assert places == ["cpu:0", "cpu:1", "cpu:0"]
    assert Workshop(FedAvg(), specification(fed), fed.clients, torch.device("meta")).workbench.device.type == "meta"


def test_a_list_of_processors_ends_in_the_bits_of_one(tmp_path: Path) -> None:
    for out, words in {"one": ["--workers", "1"], "two": ["--device", "cpu,cpu", "--workers", "2"]}.items():
        given = ["--clients", "4", "--rounds", "2", "--model", "mlp:4", *words]
        done = CliRunner().invoke(app, ["run", "fedapa", *given, "--out", str(tmp_path / out)])
        assert done.exit_code == 0, done.output
    assert final(tmp_path / "one") == final(tmp_path / "two")


def test_cuda_is_opened_in_a_worker_and_never_here(fed: Federation) -> None:
    if devices.graphics():
        pytest.skip("there is one, and it opens")
    method, spec = FedAvg(), specification(fed)
    with LocalEngine(method, spec, fed.clients, device="cuda:0") as engine:
        message = method.send(method.setup(spec), 0)
        with pytest.raises(UserError, match="cuda:0 does not open in a worker process: Torch not compiled with CUDA"):
            engine.train(0, {0: message})
    assert not torch.cuda.is_initialized()


@pytest.mark.slow
def test_workers_that_cannot_be_forked_are_spawned(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = fg.run("fedper", workers=1, **SHORT)
    monkeypatch.setattr(devices, "forks", lambda _: False)
    again = fg.run("fedper", workers=2, **SHORT)
    assert again.server is not None
    assert whole.server is not None
    assert all(torch.equal(again.server[name], tensor) for name, tensor in whole.server.items())


def test_a_process_that_was_not_at_cuda_may_fork() -> None:
    assert devices.forks(torch.device("cpu"))
    assert devices.forks(torch.device("cuda")) or torch.cuda.is_initialized()


@dataclass(frozen=True)
class Greedy(FedAvg):
    """The second client asks for more memory than there is."""

    def fit(self, client: Client, received: Tensor) -> Tensor:
        if client.id == 1:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 GiB. GPU 0 has 8 GiB")
        return super().fit(client, received)


@pytest.mark.parametrize("workers", [1, 2])
def test_too_little_memory_is_a_sentence(fed: Federation, workers: int) -> None:
    with pytest.raises(UserError, match=r"the memory of cpu was too small \(CUDA out of memory\): .* fewer --workers"):
        simulate(Greedy(), fed, specification(fed), workers=workers)


def test_elsewhere_is_another_process() -> None:
    assert devices.elsewhere(os.getpid) != os.getpid()
    with pytest.raises(UserError, match="a sentence"):
        devices.elsewhere(lambda: _fails("a sentence"))
    with pytest.raises(RuntimeError, match=r"died \(exit code 3\)"):
        devices.elsewhere(lambda: os._exit(3))
    assert devices.aside("cuda", os.getpid) != os.getpid()
    assert devices.aside("cpu", os.getpid) == os.getpid()


def _fails(sentence: str) -> None:
    raise UserError(sentence)


def test_a_run_on_another_device_says_so(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(devices, "graphics", lambda: (Device("cuda:0", "Made-up 1", 10**12, 10**12),))
    run = planned()
    run.identity.write(tmp_path)
    assert not run.identity.insist(tmp_path, run.federation.names)
    other = Identity.of(configure({**run.config.model_dump(), "device": "cuda"}), run.federation)
    (note,) = other.insist(tmp_path, run.federation.names)
    assert note == "the run was begun with the device cpu, and goes on with cuda Made-up 1: its last bits may differ"
    assert other.digest == run.identity.digest, "the machine's settings make no other run"
    assert not other.decides_like(run.identity)


def test_only_runs_on_processors_are_found_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FEDGRAFT_RUNS", str(tmp_path))
    assert archive._decided(configure({**SHORT, "device": "cpu,cpu"}))
    assert not archive._decided(configure({**SHORT, "device": "cuda:0"}))
