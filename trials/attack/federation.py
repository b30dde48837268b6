"""Attacks on a federation on Flower: on its server from outside, and by a site that takes part."""

import contextlib
import http.client
import io
import json
import logging
import shutil
import ssl
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
from flwr.app import Context, Error, Message, MetricRecord

from fedgraft.base.errors import UserError
from fedgraft.deploy import certificates
from fedgraft.deploy.application import write_kit
from fedgraft.deploy.charter import charter
from fedgraft.deploy.deployment import Deployment
from fedgraft.deploy.processes import HOST, Process, free_port
from fedgraft.deploy.serving import largest_reply
from fedgraft.runs.run import Run
from trials.attack import BreachError, attack
from trials.federated import Federated, Handler
from trials.fuzz.federation import small_federation

PUSH = "/v1/fleet/push-object"
MEGABYTE = 10**6
ROOM = 64 * MEGABYTE
"""Bytes that a SuperLink may grow by while others knock: caches and threads of its own."""


def nginx() -> str | None:
    """Find nginx; on many systems it lies where only root looks."""
    return shutil.which("nginx") or shutil.which("nginx", path="/usr/sbin:/usr/local/sbin")


@dataclass
class Gated:
    """A SuperLink that only nodes with keys may use, behind the gate that `fedgraft deploy init` writes."""

    flower: Deployment
    superlink: Process
    gate: Process
    kit: Path
    port: int
    body: int

    @property
    def address(self) -> str:
        return f"{HOST}:{self.port}"

    @property
    def memory(self) -> int:
        """Bytes that the SuperLink holds."""
        status = Path(f"/proc/{self.superlink.pid}/status").read_text("ascii")
        return 1024 * int(status.partition("VmRSS:")[2].split()[0])

    def post(self, size: int, *, announced: bool = True, path: str = PUSH, seconds: float = 60.0) -> int:
        """Send an unsigned request of so many bytes, which may hide how many they are; return the answer's code."""
        context = ssl.create_default_context(cafile=str(self.kit / "certificates" / "ca.crt"))
        connection = http.client.HTTPSConnection(HOST, self.port, timeout=seconds, context=context)
        block = bytes(MEGABYTE)
        body = (block[: min(MEGABYTE, size - start)] for start in range(0, size, MEGABYTE))
        length = {"Content-Length": str(size)} if announced else {}
        headers = {"Content-Type": "application/protobuf", **length}
        try:
            with suppress(BrokenPipeError, ConnectionResetError, ssl.SSLError):  # it may hang up while we still talk
                connection.request("POST", path, body, headers)
            return connection.getresponse().status
        except (http.client.HTTPException, OSError):
            return 0
        finally:
            connection.close()

    def posts(self, sizes: Sequence[int], *, announced: bool = True) -> tuple[list[int], int]:
        """Send unsigned requests all at once; return the answers' codes and the most that the SuperLink held."""
        codes: list[int] = []
        threads = [
            threading.Thread(target=lambda size=size: codes.append(self.post(size, announced=announced)))
            for size in sizes
        ]
        for thread in threads:
            thread.start()
        most = self.memory
        while any(thread.is_alive() for thread in threads):
            most = max(most, self.memory)
            threads[0].join(0.02)
        for thread in threads:
            thread.join()
        return sorted(codes), max(most, self.memory)


@contextmanager
def gated(folder: Path, sites: Sequence[str] = ("a", "b"), *, model: str = "linear") -> Iterator[Gated]:
    """Start a SuperLink and its gate on 127.0.0.1; everything ends with the block."""
    program = nginx()
    if program is None:
        raise UserError("the gate needs nginx, which is not installed")
    port = free_port()
    agreed = charter({
        "directory": str(folder / "run"), "sites": sites, "rules": {"quorum": len(sites), "deadline": 120},
        "data": {"kind": "pixels", "shape": [8, 8], "task": "classification:10"},
        "run": {"method": "fedavg", "rounds": 1, "model": model},
    })  # fmt: skip
    kit = folder / "kit"
    write_kit(kit, agreed, f"{HOST}:{port}", largest_reply(agreed))
    certificates.make(kit / "certificates", server=[HOST], sites=list(sites))
    (kit / "flower").mkdir()
    text = (kit / "gate.conf").read_text("utf-8")
    body = int(text.partition("client_max_body_size ")[2].partition(";")[0])
    with Deployment(folder / "flower", kit / "certificates") as flower:
        text = text.replace(f"127.0.0.1:{port + 1}", flower.address).replace(f"listen {port}", f"listen {HOST}:{port}")
        (kit / "gate.conf").write_text(text, "utf-8")
        superlink = flower.superlink()
        gate = flower.start("gate", program, "-p", str(kit), "-c", "gate.conf")
        made = Gated(flower, superlink, gate, kit, port, body)
        flower.wait_until(lambda: made.post(0, path="/") == 403, "the gate answers")
        yield made


@attack("unsigned requests of 300 MB", "413, and the SuperLink's memory does not move", processes=True)
def huge_requests(folder: Path, _: Random) -> str:
    with gated(folder) as place:
        before = place.memory
        announced, most = place.posts([300 * MEGABYTE] * 4)
        hidden, later = place.posts([300 * MEGABYTE] * 4, announced=False)
        grown = max(most, later) - before
        if {*announced, *hidden} - {413, 0} or 413 not in announced:
            raise BreachError(f"the gate answered {announced} and {hidden}")
        if grown > ROOM:
            raise BreachError(f"the SuperLink grew by {grown / MEGABYTE:.0f} MB")
    return "413"


@attack("many unsigned requests that the gate lets through", "401 or 503, and memory has an end", processes=True)
def many_requests(folder: Path, _: Random) -> str:
    with gated(folder) as place:
        before = place.memory
        codes, most = place.posts([place.body - 1] * 200)
        if set(codes) - {400, 401, 413, 415, 422, 500, 502, 503, 0}:
            raise BreachError(f"the gate answered {sorted(set(codes))}")
        if most - before > 4 * ROOM:
            raise BreachError(f"the SuperLink grew by {(most - before) / MEGABYTE:.0f} MB")
    return "refused"


# ---- by a site that takes part, in this process over Flower's own wire format


def _served(federated: Federated) -> tuple[Run, str]:
    """Do the run; return it with what the server said. What the sites write into their own logs is left out."""
    said = io.StringIO()
    logging.disable(logging.CRITICAL)
    try:
        with contextlib.redirect_stdout(said):
            done: Run = federated.serve()
        return done, said.getvalue()
    finally:
        logging.disable(logging.NOTSET)


def _meddled(
    folder: Path, change: Callable[[Message], None], kind: str, number: int | None
) -> tuple[dict[str, Any], str]:
    """Let site b change its answers of a kind, of one round or of every round; return the result and what was said."""
    federated = Federated(folder, small_federation(), {"method": "scaffold", "model": "mlp:5", "rounds": 3})

    def meddle(message: Message, app: Handler, context: Context) -> list[Message]:
        reply = app(message, context)
        if message.metadata.message_type == kind and number in (None, message.content["tag"]["round"]):
            change(reply)
        return [reply]

    federated.node("b").meddle = meddle
    _, said = _served(federated)
    return json.loads((folder / "run" / "result.json").read_text("utf-8")), said


@attack("test figures that were not agreed", "refused, named and counted; the result is written")
def strange_figures(folder: Path, rng: Random) -> str:
    surplus, total = rng.choice(["validation", "everyone", "", "test/received"]), rng.choice([0, -1, 7, 10**12, 2**62])

    def change(reply: Message) -> None:
        figures: dict[str, Any] = dict(reply.content["figures"])
        if surplus:
            figures |= {name.replace("test", surplus, 1): value for name, value in figures.items()}
        else:
            figures |= {name: total for name in figures if name.endswith("total")}
        reply.content["figures"] = MetricRecord(figures)

    number = rng.choice([0, 1, 2, None])
    result, said = _meddled(folder, change, "evaluate", number)
    hit = [(record["round"], each["client"]) for record in result["rounds"] for each in record["refused"]]
    expected = [(each + 1, 1) for each in range(3) if number in (each, None)]
    if hit != expected:
        raise BreachError(f"refused were {hit}, expected {expected}")
    if "site b was not tested" not in said:
        raise BreachError("the operator was not told")
    return "refused, and the run has its result"


@attack("50 MB of forged lines as an error", "one short line; the result stays small")
def forged_lines(folder: Path, rng: Random) -> str:
    end = rng.choice(["\n", "\r", "\u2028", "\x85", "\x1b[2J\n"])
    text = f"no{end}fedgraft: done: 0 refusals; the result is in /srv" + "x" * 50_000_000

    federated = Federated(folder, small_federation(), {"method": "fedavg", "model": "mlp:5", "rounds": 2})

    def meddle(message: Message, app: Handler, context: Context) -> list[Message]:
        if message.metadata.message_type != "train":
            return [app(message, context)]
        return [Message(Error(1, text), reply_to=message)]

    federated.node("b").meddle = meddle
    _, said = _served(federated)
    if any(not line.isprintable() or line.startswith("fedgraft: done: 0") for line in said.splitlines()):
        raise BreachError("a line was forged")
    size = sum(file.stat().st_size for file in (folder / "run").glob("*.json*"))
    if size > 100_000:
        raise BreachError(f"the records have {size:,} bytes")
    return "cut and escaped"


@attack("data that shrink in the middle of a run", "noticed in the next round, and named")
def shrinking_data(folder: Path, rng: Random) -> str:
    kept, number = rng.choice([1, 2, 4]), rng.choice([1, 2])
    federated = Federated(folder, small_federation(), {"method": "fedavg", "model": "mlp:5", "rounds": 3})
    path = folder / "sites" / "b.npz"

    def meddle(message: Message, app: Handler, context: Context) -> list[Message]:
        if message.metadata.message_type == "train" and message.content["tag"]["round"] == number:
            held = dict(np.load(path))
            np.savez(path, **{name: each[:kept] if "train" in name else each for name, each in held.items()})
        return [app(message, context)]

    federated.node("b").meddle = meddle
    done, _ = _served(federated)
    reasons = [each["reason"] for record in done.records[number:] for each in record["refused"]]
    named = [reason for reason in reasons if f"site b had 5 training samples and has {kept}" in reason]
    untested = [reason for reason in reasons if "could not be tested" in reason]
    if len(named) != 3 - number or len(named) + len(untested) != len(reasons):
        raise BreachError(f"refused was {reasons}")
    return "refused from then on"
