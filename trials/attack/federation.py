"""Attacks on a federation on Flower: on its server from outside, and by a site that takes part."""

import http.client
import os
import shutil
import ssl
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from random import Random

from fedgraft.core.errors import UserError
from fedgraft.engines.flower import certificates
from fedgraft.engines.flower.processes import HOST, Deployment, Process, free_port
from fedgraft.runs.application import write_kit
from fedgraft.runs.charter import charter
from fedgraft.runs.deployed import largest_reply
from trials.attack import BreachError, attack

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
        "data": {"kind": "pixels", "shape": [8, 8], "classes": 10},
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
        if os.geteuid() == 0:  # nginx would hand its work to a user who may not look into this folder
            text = f"user root;\n{text}"
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
