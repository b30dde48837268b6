"""Interrupted runs go on to the same bits; damaged checkpoints are noticed."""

import hashlib
import json
import os
import shutil
import signal
from pathlib import Path

import pytest
import torch
from conftest import Interrupt, same, small_network
from program import Program, fedgraft, wait_for
from safetensors.torch import load, save

import fedgraft as fg
from fedgraft.base.errors import ContractError, UserError
from fedgraft.core.rounds import Round
from fedgraft.data.federation import Federation
from fedgraft.runs import checkpoint
from fedgraft.runs.history import History
from fedgraft.runs.run import Run

SETTINGS = {"rounds": 5, "lr": 0.1, "batch_size": 8, "participation": 0.75, "optimizer_state": "kept"}


def interrupted(fed: Federation, place: Path, method: str = "fedapa", after: int = 3) -> Path:
    with pytest.raises(KeyboardInterrupt):
        fg.run(
            method, fed, model=small_network(), out=place, watchers=[Interrupt(after)], workers=1, checkpoint_every=1,
            **SETTINGS,
        )  # fmt: skip
    return place


@pytest.mark.parametrize("method", ["fedapa", "fedper", "local"])
@pytest.mark.parametrize("workers", [1, 2])
def test_a_resumed_run_ends_in_the_same_bits(fed: Federation, tmp_path: Path, method: str, workers: int) -> None:
    whole = fg.run(method, fed, model=small_network(), workers=1, out=tmp_path / "whole", **SETTINGS)
    place = interrupted(fed, tmp_path / "torn", method)
    resumed = fg.resume(place, fed, model=small_network(), workers=workers)
    same(whole, resumed)
    observed = [(tmp_path / d / "observed.safetensors") for d in ("whole", "torn")]
    if method == "fedapa":
        assert observed[0].read_bytes() == observed[1].read_bytes()
    written = json.loads((place / "result.json").read_text())
    assert [r["round"] for r in written["rounds"]] == [1, 2, 3, 4, 5]


def test_the_seconds_of_all_sessions_add_up(fed: Federation, tmp_path: Path) -> None:
    place = interrupted(fed, tmp_path / "torn", "fedapa")
    before = [json.loads(line) for line in (place / "metrics.jsonl").read_text().splitlines()]
    resumed = fg.resume(place, fed, model=small_network(), workers=1)
    spent = [record["seconds"] + record["evaluation_seconds"] for record in resumed.records]
    assert [record["seconds"] for record in resumed.records[: len(before)]] == [each["seconds"] for each in before]
    assert resumed.result["seconds"] == pytest.approx(sum(spent), abs=1e-3)
    assert resumed.result["seconds_per_round"] == pytest.approx(sum(spent) / 5, abs=1e-3)
    assert f"{resumed.result['seconds_per_round']:.3g} s per round" in " ".join(str(resumed).split())


def test_the_last_two_are_kept(fed: Federation, tmp_path: Path) -> None:
    place = interrupted(fed, tmp_path / "run", after=4)
    assert sorted(p.name for p in (place / "checkpoints").iterdir()) == ["round-000003", "round-000004", "rounds.log"]


@pytest.mark.parametrize("damage", ["truncate", "flip", "manifest", "missing"])
def test_a_damaged_checkpoint_is_noticed_and_the_one_before_is_used(
    fed: Federation, tmp_path: Path, damage: str
) -> None:
    whole = fg.run("fedapa", fed, model=small_network(), workers=1, **SETTINGS)
    place = interrupted(fed, tmp_path / "run")
    newest = place / "checkpoints" / "round-000003"
    file = newest / "clients.safetensors"
    if damage == "truncate":
        file.write_bytes(file.read_bytes()[:-10])
    elif damage == "flip":
        data = bytearray(file.read_bytes())
        data[-5] ^= 1
        file.write_bytes(bytes(data))
    elif damage == "manifest":
        (newest / "manifest.json").write_text("{")
    else:
        file.unlink()
    resumed = fg.resume(place, fed, model=small_network(), workers=1)
    assert len(resumed.notes) == 1
    assert "round-000003" in resumed.notes[0]
    assert "an older one is used" in resumed.notes[0]
    same(whole, resumed)


def forge(place: Path, name: str, data: bytes, **facts: object) -> None:
    """Put a file into a checkpoint and let the manifest vouch for it."""
    manifest = json.loads((place / "manifest.json").read_text())
    (place / name).write_bytes(data)
    manifest["sha256"][name] = hashlib.sha256(data).hexdigest()
    (place / "manifest.json").write_text(json.dumps({**manifest, **facts}))


def frames(*rounds: tuple[bytes, bytes]) -> bytes:
    """A history as it lies on the disk."""
    return b"".join(len(a).to_bytes(8, "little") + len(b).to_bytes(8, "little") + a + b for a, b in rounds)


@pytest.mark.parametrize("what", ["server", "clients", "names", "number", "count", "deep", "format"])
def test_a_checkpoint_of_another_run_is_noticed_although_its_checksums_are_right(
    fed: Federation, tmp_path: Path, what: str
) -> None:
    whole = fg.run("fedapa", fed, model=small_network(), workers=1, **SETTINGS)
    newest = interrupted(fed, tmp_path / "run") / "checkpoints" / "round-000003"
    states = load((newest / "clients.safetensors").read_bytes())
    if what == "server":
        forge(newest, "server.safetensors", save({"weights/0": torch.zeros(3)}))
    elif what == "clients":
        forge(newest, "clients.safetensors", save({**states, "0/own": torch.zeros(3)}))
    elif what == "names":
        forge(newest, "clients.safetensors", save({**states, "9" * 5000 + "/own": torch.zeros(3)}))
    elif what == "number":
        forge(newest, "clients.safetensors", save({**states, "4/own": states["0/own"].clone()}), clients=5)
    elif what == "count":
        forge(newest, "clients.safetensors", save(states), clients=10**15)
    elif what == "deep":
        (newest / "manifest.json").write_text("[" * 100_000)
    else:
        forge(newest, "clients.safetensors", save(states), round="3")
    resumed = fg.resume(tmp_path / "run", fed, model=small_network(), workers=1)
    assert "round-000003" in resumed.notes[0]
    same(whole, resumed)


ROUND = [(b'{"round": %d}' % number, b"") for number in (1, 2, 3)]


@pytest.mark.parametrize(
    ("past", "sentence"),
    [
        (None, "lacks rounds.log"),
        (b"", "rounds.log is not long enough"),
        (frames(ROUND[0]), "rounds.log is not what it was"),
        (frames(*ROUND, ROUND[2]), "does not hold the record of every round"),
        (frames(*ROUND[:2], (b"[]", b"")), "holds a round that is none"),
        (frames(*ROUND[:2], (b"[" * 100_000, b"")), "holds a round that cannot be read"),
        (frames(*ROUND[:2], (ROUND[2][0], b"noise")), "holds a round that cannot be read"),
        (frames(*ROUND)[:-1], "was cut short: not every round is there"),
        (frames(*ROUND[:2]) + (2**62).to_bytes(8, "little") * 2, "was cut short: not every round is there"),
        (frames((ROUND[0][0], save({"A": torch.ones(2)})), (ROUND[1][0], save({"A": torch.ones(3)}))), "in two shapes"),
    ],
    ids=["missing", "empty", "short", "long", "list", "deep", "noise", "torn", "huge", "shapes"],
)
def test_a_history_that_is_none_is_noticed_although_its_checksum_is_right(
    fed: Federation, tmp_path: Path, past: bytes | None, sentence: str
) -> None:
    place = interrupted(fed, tmp_path / "run")
    log = place / "checkpoints" / "rounds.log"
    if past is None:
        log.unlink()
    else:
        log.write_bytes(past)
        for number in (2, 3):
            manifest = place / "checkpoints" / f"round-00000{number}" / "manifest.json"
            told = json.loads(manifest.read_text())
            length = len(past) or 100
            told["history"] |= {"length": length, "sha256": hashlib.sha256(past).hexdigest()}
            manifest.write_text(json.dumps(told))
    resumed = fg.resume(place, fed, model=small_network(), workers=1)
    assert sentence in resumed.notes[0]
    assert "round-000003" in resumed.notes[0]
    assert resumed.notes[-1].endswith("; the run begins again")
    same(fg.run("fedapa", fed, model=small_network(), workers=1, **SETTINGS), resumed)


@pytest.mark.parametrize("tail", [b"\0" * 3, b"x" * 5000])
def test_a_torn_end_of_the_history_is_cut_off(fed: Federation, tmp_path: Path, tail: bytes) -> None:
    whole = fg.run("fedapa", fed, model=small_network(), workers=1, out=tmp_path / "whole", **SETTINGS)
    place = interrupted(fed, tmp_path / "run")
    with (place / "checkpoints" / "rounds.log").open("ab") as stream:
        stream.write(tail)
    resumed = fg.resume(place, fed, model=small_network(), workers=1)
    assert not resumed.notes
    same(whole, resumed)
    files = [tmp_path / run / "observed.safetensors" for run in ("whole", "run")]
    assert files[0].read_bytes() == files[1].read_bytes()


def test_a_checkpoint_costs_the_same_after_many_rounds(fed: Federation, tmp_path: Path) -> None:
    """What was written stays as it is: of the history, only the new rounds are written."""
    sizes, logs = {}, {}

    class Weigh(Interrupt):
        def round(self, run: Run, this: Round) -> None:
            folder = tmp_path / "run" / "checkpoints"
            newest = folder / f"round-{this.number + 1:06d}"
            sizes[this.number] = sum(file.stat().st_size for file in newest.iterdir())
            logs[this.number] = (folder / "rounds.log").read_bytes()

    fg.run(
        "fedapa", fed, model=small_network(), out=tmp_path / "run", watchers=[Weigh(0)], workers=1, checkpoint_every=1,
        **{**SETTINGS, "rounds": 40},
    )  # fmt: skip
    assert abs(sizes[39] - sizes[10]) < 20, "but for figures that grow longer, once everybody has joined"
    for number in range(1, 40):
        assert logs[number].startswith(logs[number - 1])
        assert len(logs[number]) - len(logs[number - 1]) < 1.2 * len(logs[0])


def test_what_was_saved_does_not_stay_in_memory(tmp_path: Path) -> None:
    past = History(tmp_path / "rounds.log")
    for number in (1, 2, 3):
        past.add({"round": number}, {"A": torch.full((2,), number)} if number != 2 else {})
        past.save()
        assert not past._waiting
    past.add({"round": 4}, {"A": torch.full((2,), 4)})
    found = past.observed()["A"]
    assert found.dtype == torch.float32
    assert found[[0, 2, 3]].tolist() == [[1, 1], [3, 3], [4, 4]]
    assert torch.isnan(found[1]).all()
    with pytest.raises(ContractError, match=r"in round 5 holds 'A' in two shapes"):
        past.add({"round": 5}, {"A": torch.zeros(3)})
    (tmp_path / "rounds.log").write_bytes(b"")
    with pytest.raises(UserError, match="was cut short while the run went on"):
        past.save()
    with pytest.raises(UserError, match="was damaged while the run went on"):
        past.observed()


def test_checkpoints_that_were_ahead_of_the_one_in_use_are_dropped(fed: Federation, tmp_path: Path) -> None:
    place = interrupted(fed, tmp_path / "run")
    (place / "checkpoints" / "round-000003" / "server.safetensors").unlink()
    with pytest.raises(KeyboardInterrupt):
        fg.resume(place, fed, model=small_network(), workers=1, watchers=[Interrupt(3)])
    found, complaints = checkpoint.read(place / "checkpoints")
    assert found is not None
    assert (found.round, complaints) == (3, [])


def test_a_resumed_run_does_not_need_its_metrics(fed: Federation, tmp_path: Path) -> None:
    """They are in the checkpoint too: a power failure may have torn the file."""
    whole = fg.run("fedapa", fed, model=small_network(), workers=1, out=tmp_path / "whole", **SETTINGS)
    place = interrupted(fed, tmp_path / "run")
    (place / "metrics.jsonl").write_bytes(b"\0" * 50)
    same(whole, fg.resume(place, fed, model=small_network(), workers=1))
    rounds = [json.loads(line)["round"] for line in (place / "metrics.jsonl").read_text().splitlines()]
    assert rounds == [1, 2, 3, 4, 5]


def test_checkpoints_are_ordered_by_number(tmp_path: Path) -> None:
    for number in (999_998, 999_999, 1_000_000):
        (tmp_path / f"round-{number:06d}").mkdir()
    assert [path.name for path in checkpoint._places(tmp_path)] == ["round-999998", "round-999999", "round-1000000"]


def test_with_every_checkpoint_gone_it_begins_again(fed: Federation, tmp_path: Path) -> None:
    whole = fg.run("fedapa", fed, model=small_network(), workers=1, **SETTINGS)
    place = interrupted(fed, tmp_path / "run")
    shutil.rmtree(place / "checkpoints")
    same(whole, fg.resume(place, fed, model=small_network(), workers=1))


def test_what_cannot_be_resumed_is_said(fed: Federation, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="holds no run"):
        fg.resume(tmp_path)
    place = interrupted(fed, tmp_path / "run")
    with pytest.raises(UserError, match="cannot change lr"):
        fg.resume(place, fed, model=small_network(), lr=1.0)
    manifest = place / "checkpoints" / "round-000003" / "manifest.json"
    manifest.write_text(manifest.read_text().replace('"format": 3', '"format": 99'))
    with pytest.raises(UserError, match="format 99"):
        fg.resume(place, fed, model=small_network())
    manifest.write_text(manifest.read_text().replace('"format": 99', '"format": 3'))
    fg.resume(place, fed, model=small_network(), workers=1)
    with pytest.raises(UserError, match="complete"):
        fg.resume(place, fed, model=small_network())


def test_a_directory_belongs_to_one_process(fed: Federation, tmp_path: Path) -> None:
    from fedgraft.base.disk import locked

    place = interrupted(fed, tmp_path / "run")
    with locked(place), pytest.raises(UserError, match="another process is working in"):
        fg.resume(place, fed, model=small_network())


def test_a_checkpoint_is_there_whole_or_not_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    good = checkpoint.Checkpoint(1, {"w": torch.ones(3)}, {0: {"own": torch.zeros(2)}}, checkpoint.begin(tmp_path))
    good.history.add({"round": 1}, {})
    checkpoint.write(tmp_path, good)

    def full_disk(_: int) -> None:
        raise OSError(28, "No space left on device")

    good.history.add({"round": 2}, {})
    monkeypatch.setattr(os, "fsync", full_disk)
    with pytest.raises(OSError, match="No space"):
        checkpoint.write(tmp_path, checkpoint.Checkpoint(2, good.server, good.clients, good.history))
    monkeypatch.undo()
    found, complaints = checkpoint.read(tmp_path)
    assert found is not None
    assert (found.round, complaints) == (1, [])


def digest(run: Path) -> str:
    place = max((run / "checkpoints").glob("round-*"))
    return hashlib.sha256((place / "clients.safetensors").read_bytes()).hexdigest()


COMMAND = [
    "run", "fedapa", "--clients", "4", "--partition", "iid", "--rounds", "12",
    "--checkpoint-every", "1", "--evaluate-every", "100", "--workers", "2",
]  # fmt: skip


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that nobody stopped."""
    folder = tmp_path_factory.mktemp("whole")
    assert fedgraft(*COMMAND, "--out", "whole", cwd=folder).returncode == 0
    return folder / "whole"


STOPS = [
    (signal.SIGKILL, -9),
    pytest.param(signal.SIGINT, 130, marks=pytest.mark.slow),
    pytest.param(signal.SIGTERM, 143, marks=pytest.mark.slow),
]


@pytest.mark.parametrize(("number", "code"), STOPS)
def test_a_stopped_program_goes_on_where_it_was(whole: Path, tmp_path: Path, number: int, code: int) -> None:
    running = Program(*COMMAND, "--out", "torn", cwd=tmp_path)
    wait_for(tmp_path / "torn" / "checkpoints" / "round-000002", running)
    running.send_signal(number)
    stopped = running.wait()
    assert stopped.returncode == code
    assert "Traceback" not in stopped.stderr
    assert not (tmp_path / "torn" / "result.json").exists()
    done = fedgraft("resume", "torn", "--workers", "1", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "pooled" in done.stdout
    assert digest(tmp_path / "torn") == digest(whole)
