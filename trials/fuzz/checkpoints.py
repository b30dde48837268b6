"""The checkpoint reader: two checkpoints of a real run and its history, damaged or forged, and read again.

Whatever happened to the files, the reader gives one of the checkpoints that were written, bit for bit, or a sentence.
Only a forger who also mends the checksums may get other tensors through, and they have to fit the run.
"""

import hashlib
import json
import shutil
import struct
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from typing import Any

import torch

from fedgraft.base import disk
from fedgraft.base.errors import UserError
from fedgraft.runs import checkpoint, history
from fedgraft.runs.checkpoint import Checkpoint
from trials.fuzz import Attempt, damage
from trials.fuzz.federation import small_run

FILES = ("manifest.json", "server.safetensors", "clients.safetensors")
NAMES = ("round-000001", "round-000002")
Folder = dict[str, bytes]


def prepare() -> Attempt:
    """Run a method for two rounds and keep the bytes of both checkpoints."""
    with TemporaryDirectory() as room:
        run = small_run("fedapa", rounds=2, out=Path(room) / "run", checkpoint_every=1, optimizer_state="kept")
        folder = Path(room) / "run" / "checkpoints"
        written, past = {name: _folder(folder / name) for name in NAMES}, (folder / history.FILE).read_bytes()
        genuine = [_facts(checkpoint._load(folder / name)) for name in NAMES]
    like = Checkpoint(0, run.method.setup(run.spec), {c: {"own": run.spec.initial(c)} for c in range(4)})

    def attempt(rng: Random, room: Path) -> None:
        shutil.rmtree(room / "checkpoints", ignore_errors=True)
        places = {name: dict(files) for name, files in written.items()}
        hit = rng.choice([NAMES[1:], NAMES])
        forged = False
        rounds = past
        for name in hit if rng.random() < 0.7 else ():
            forged |= _spoil(rng, places, name)
        if rng.random() < 0.4:
            rounds, mended = _other_past(rng, past, places)
            forged |= mended
        if rng.random() < 0.1:  # a folder under another's name
            places[rng.choice(["round-000003", "round-1000000", "round-000000", NAMES[0]])] = places.pop(NAMES[1])
        for name, files in places.items():
            (room / "checkpoints" / name).mkdir(parents=True)
            for file, data in files.items():
                (room / "checkpoints" / name / file).write_bytes(data)
        (room / "checkpoints" / history.FILE).write_bytes(rounds)
        found, complaints = checkpoint.read(room / "checkpoints", like)
        assert all("\n" not in complaint for complaint in complaints), complaints
        if found is not None:
            _fits(found, like)
            assert forged or any(_same(_facts(found), original) for original in genuine), "other bits came through"
        if complaints:
            raise UserError(complaints[-1])

    return attempt


def _folder(place: Path) -> Folder:
    return {file: (place / file).read_bytes() for file in FILES}


def _spoil(rng: Random, places: dict[str, Folder], name: str) -> bool:
    """Do something to a checkpoint; say whether it was a forgery that the checksums do not show."""
    files, kind = places[name], rng.randrange(10)
    if kind < 4:
        file = rng.choice(FILES)
        files[file] = damage.damaged(rng, files[file])
        return file == "manifest.json"
    if kind == 4:
        del files[rng.choice(FILES)]
        return False
    if kind == 5:
        one, two = rng.sample(FILES, 2)
        files[one], files[two] = files[two], files[one]
        return False
    if kind == 6:  # a manifest of the right form with odd contents
        manifest = json.loads(files["manifest.json"])
        key = rng.choice([*manifest, *manifest["history"], "server.safetensors"])
        where = next((m for m in (manifest["sha256"], manifest["history"]) if key in m), manifest)
        where[key] = damage.value(rng)
        files["manifest.json"] = json.dumps(manifest).encode()
        return True
    file = rng.choice(FILES[1:])
    files[file] = _forged(rng, files[file])
    manifest = json.loads(files["manifest.json"])
    manifest["sha256"][file] = hashlib.sha256(files[file]).hexdigest()
    if rng.random() < 0.2:
        manifest["clients"] = rng.choice([0, 3, 5, -1, 10**12, True, 4.0, "4"])
    files["manifest.json"] = json.dumps(manifest).encode()
    return True


def _other_past(rng: Random, past: bytes, places: dict[str, Folder]) -> tuple[bytes, bool]:
    """Damage the history that both checkpoints share; a forger lets a manifest vouch for it."""
    kind = rng.randrange(4)
    if kind == 0:
        return past + rng.choice([b"\0" * 7, past, rng.randbytes(40)]), False  # a torn end
    rounds = damage.damaged(rng, past)
    if kind == 1:  # one frame of which the observations are something else
        record, observed = b"{}", rng.choice([_forged(rng, disk.packed({"A": torch.zeros(2, 2)})), rng.randbytes(9)])
        sizes = rng.choice([(len(record), len(observed)), (2**60, 0), (2**64 - 1, 2**64 - 1), (0, 0)])
        rounds = history._LENGTHS.pack(*sizes) + record + observed
    if rng.random() < 0.4 or "manifest.json" not in places[NAMES[1]]:
        return rounds, False
    try:
        manifest = json.loads(places[NAMES[1]]["manifest.json"])
        manifest["history"] |= {"length": len(rounds), "sha256": hashlib.sha256(rounds).hexdigest()}
    except (ValueError, LookupError, TypeError, RecursionError):  # damaged already
        return rounds, True
    places[NAMES[1]]["manifest.json"] = json.dumps(manifest).encode()
    return rounds, True


def _forged(rng: Random, data: bytes) -> bytes:
    """Change a safetensors file in its header, its names or its bytes."""
    length = struct.unpack("<Q", data[:8])[0]
    header: dict[str, Any] = json.loads(data[8 : 8 + length])
    body, kind = data[8 + length :], rng.randrange(7)
    if kind == 0:
        return damage.damaged(rng, data)
    if kind == 1:
        return struct.pack("<Q", rng.choice([0, 1, length + 1, 2**32, 2**62, 2**64 - 1])) + data[8:]
    if kind == 2:
        return data[:8] + data[8 : 8 + length] + damage.damaged(rng, body)
    key = rng.choice(list(header)) if header else "x"
    entry = header.get(key) or {"dtype": "F32", "shape": [0], "data_offsets": [0, 0]}
    if kind == 3:
        foreign = ["foreign", "0/", "/own", "99999/own", "9" * 5000 + "/own", "½/own", "-1/own", "٣/own"]
        header[rng.choice(foreign)] = header.pop(key, entry)
    elif kind == 4 and isinstance(entry, dict):
        part = rng.choice(["dtype", "shape", "data_offsets"])
        entry[part] = rng.choice([
            damage.value(rng), "F64", "I64", "BF16", "BOOL", "F8_E4M3",
            [2**40], [2**63, 2], [-1], [], [0, 2**50], [1, 1, 59],
        ])  # fmt: skip
        header[key] = entry
    elif kind == 5:
        header.pop(key, None)
    else:
        header[key] = damage.value(rng)
    text = json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + body


def _fits(found: Checkpoint, like: Checkpoint) -> None:
    for name, tensor in like.server.items():
        assert (found.server[name].shape, found.server[name].dtype) == (tensor.shape, tensor.dtype)
    assert found.clients.keys() == like.clients.keys()
    for client, state in like.clients.items():
        assert found.clients[client]["own"].shape == state["own"].shape
    assert len(found.history.records) == found.round
    assert all(len(rounds) == found.round for rounds in found.history.observed().values())


def _facts(found: Checkpoint) -> dict[str, Any]:
    """Everything that a checkpoint holds."""
    clients = {f"{c}/{name}": tensor for c, state in found.clients.items() for name, tensor in state.items()}
    past = {"round": found.round, "records": found.history.records}
    return {**past, "server": dict(found.server), "clients": clients, "observed": found.history.observed()}


def _same(one: dict[str, Any], two: dict[str, Any]) -> bool:
    def equal(a: Any, b: Any) -> bool:
        return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)

    return all(one[key] == two[key] for key in ("round", "records")) and all(
        equal(one[key], two[key]) for key in ("server", "clients", "observed")
    )
