"""The checkpoint reader: two checkpoints of a real run and its history, damaged or forged, and read again.

Whatever happened to the files, the reader gives one of the checkpoints that were written, bit for bit, or a sentence.
Only a forger who also mends the checksums may get other tensors through, and they have to fit the run.
"""

import hashlib
import json
import shutil
import struct
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from hypothesis import strategies as st
from hypothesis.strategies import DrawFn

from fedgraft.base import disk
from fedgraft.base.errors import UserError
from fedgraft.runs import checkpoint, history
from fedgraft.runs.checkpoint import Checkpoint
from trials.fuzz import Reader, damage
from trials.fuzz.federation import small_run

FILES = ("manifest.json", "server.safetensors", "clients.safetensors")
NAMES = ("round-000001", "round-000002")
Folder = dict[str, bytes]


@dataclass
class Case:
    """The folders and the history as they are found, and whether a forger mended the checksums."""

    places: dict[str, Folder]
    rounds: bytes
    forged: bool


def prepare() -> Reader:
    """Run a method for two rounds and keep the bytes of both checkpoints."""
    with TemporaryDirectory() as room:
        run = small_run("fedapa", rounds=2, out=Path(room) / "run", checkpoint_every=1, optimizer_state="kept")
        folder = Path(room) / "run" / "checkpoints"
        written, past = {name: _folder(folder / name) for name in NAMES}, (folder / history.FILE).read_bytes()
        loaded = [checkpoint._load(folder / name) for name in NAMES]
        genuine = [_facts(found) for found in loaded]
    clients = {client: {"own": run.spec.initial(client)} for client in range(4)}
    like = Checkpoint(0, run.method.setup(run.spec), clients, digest=loaded[0].digest)

    def attempt(case: Case, room: Path) -> None:
        shutil.rmtree(room / "checkpoints", ignore_errors=True)
        for name, files in case.places.items():
            (room / "checkpoints" / name).mkdir(parents=True)
            for file, data in files.items():
                (room / "checkpoints" / name / file).write_bytes(data)
        (room / "checkpoints" / history.FILE).write_bytes(case.rounds)
        found, complaints = checkpoint.read(room / "checkpoints", like)
        assert all("\n" not in complaint for complaint in complaints), complaints
        if found is not None:
            _fits(found, like)
            genuinely = any(_same(_facts(found), original) for original in genuine)
            assert case.forged or genuinely, "other bits came through"
        if complaints:
            raise UserError(complaints[-1])

    return Reader(_cases(written, past), attempt)


def _folder(place: Path) -> Folder:
    return {file: (place / file).read_bytes() for file in FILES}


@st.composite
def _cases(draw: DrawFn, written: dict[str, Folder], past: bytes) -> Case:
    case = Case({name: dict(files) for name, files in written.items()}, past, forged=False)
    for name in draw(st.sampled_from([(), NAMES[1:], NAMES])):
        draw(_spoiled_folder(case, name))
    if draw(st.booleans()):
        draw(_other_past(case))
    if draw(damage.rarely()):  # a folder under another's name
        names = ["round-000003", "round-1000000", "round-000000", NAMES[0]]
        case.places[draw(st.sampled_from(names))] = case.places.pop(NAMES[1])
    return case


@st.composite
def _spoiled_folder(draw: DrawFn, case: Case, name: str) -> None:
    """Do something to a checkpoint, perhaps a forgery that the checksums do not show."""
    files, kind = case.places[name], draw(st.sampled_from(["damaged", "missing", "swapped", "manifest", "forged"]))
    if kind == "damaged":
        file = draw(st.sampled_from(FILES))
        files[file] = draw(damage.damaged(files[file]))
        case.forged |= file == "manifest.json"
    elif kind == "missing":
        del files[draw(st.sampled_from(FILES))]
    elif kind == "swapped":
        one, two = draw(st.permutations(FILES))[:2]
        files[one], files[two] = files[two], files[one]
    else:
        manifest = json.loads(files["manifest.json"])
        if kind == "manifest":  # of the right form, with odd contents
            key = draw(st.sampled_from([*manifest, *manifest["history"], "server.safetensors"]))
            where = next((m for m in (manifest["sha256"], manifest["history"]) if key in m), manifest)
            where[key] = draw(damage.values())
        else:
            file = draw(st.sampled_from(FILES[1:]))
            files[file] = draw(_forged(files[file]))
            manifest["sha256"][file] = hashlib.sha256(files[file]).hexdigest()
            if draw(damage.rarely()):
                manifest["clients"] = draw(st.sampled_from([0, 3, 5, -1, 10**12, True, 4.0, "4"]))
        files["manifest.json"] = json.dumps(manifest).encode()
        case.forged = True


@st.composite
def _other_past(draw: DrawFn, case: Case) -> None:
    """Damage the history that both checkpoints share; a forger lets a manifest vouch for it."""
    past, kind = case.rounds, draw(st.sampled_from(["torn", "damaged", "frame"]))
    if kind == "torn":
        case.rounds = past + draw(st.sampled_from([b"\0" * 7, past]) | st.binary(max_size=40))
        return
    case.rounds = draw(damage.damaged(past))
    if kind == "frame":  # of which the observations are something else
        record = b"{}"
        observed = draw(_forged(disk.packed({"A": torch.zeros(2, 2)})) | st.binary(max_size=9))
        sizes = draw(st.sampled_from([(len(record), len(observed)), (2**60, 0), (2**64 - 1, 2**64 - 1), (0, 0)]))
        case.rounds = history._LENGTHS.pack(*sizes) + record + observed
    files = case.places[NAMES[1]]
    if draw(st.booleans()) or "manifest.json" not in files:
        return
    case.forged = True
    try:
        manifest = json.loads(files["manifest.json"])
        manifest["history"] |= {"length": len(case.rounds), "sha256": hashlib.sha256(case.rounds).hexdigest()}
    except (ValueError, LookupError, TypeError, RecursionError):  # damaged already
        return
    files["manifest.json"] = json.dumps(manifest).encode()


@st.composite
def _forged(draw: DrawFn, data: bytes) -> bytes:
    """Change a safetensors file in its header, its names or its bytes."""
    length = struct.unpack("<Q", data[:8])[0]
    header: dict[str, Any] = json.loads(data[8 : 8 + length])
    body = data[8 + length :]
    kind = draw(st.sampled_from(["damaged", "length", "body", "renamed", "entry", "missing", "other"]))
    if kind == "damaged":
        return draw(damage.damaged(data))
    if kind == "length":
        return struct.pack("<Q", draw(st.sampled_from([0, 1, length + 1, 2**32, 2**62, 2**64 - 1]))) + data[8:]
    if kind == "body":
        return data[: 8 + length] + draw(damage.damaged(body))
    key = draw(st.sampled_from([*header] or ["x"]))
    entry = header.pop(key, None) or {"dtype": "F32", "shape": [0], "data_offsets": [0, 0]}
    if kind == "renamed":
        foreign = ["foreign", "0/", "/own", "99999/own", "9" * 5000 + "/own", "½/own", "-1/own", "٣/own"]
        header[draw(st.sampled_from(foreign))] = entry
    elif kind == "entry":
        odd = ["F64", "I64", "BF16", "BOOL", "F8_E4M3", [2**40], [2**63, 2], [-1], [], [0, 2**50], [1, 1, 59]]
        part = draw(st.sampled_from(["dtype", "shape", "data_offsets"]))
        header[key] = entry | {part: draw(st.sampled_from(odd) | damage.values())}
    elif kind == "other":
        header[key] = draw(damage.values())
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
    past = {"round": found.round, "records": list(found.history.records)}
    return {**past, "server": dict(found.server), "clients": clients, "observed": found.history.observed()}


def _same(one: dict[str, Any], two: dict[str, Any]) -> bool:
    def equal(a: Any, b: Any) -> bool:
        return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)

    return all(one[key] == two[key] for key in ("round", "records")) and all(
        equal(one[key], two[key]) for key in ("server", "clients", "observed")
    )
