"""The gate that `fedgraft deploy init` writes, with a real nginx in front of a real SuperLink.

Nobody without a key can fill the SuperLink's memory, honest sites pass with arrays of any size, and a node whose clock
is wrong finds the reason in its own log.
"""

import json
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("flwr", reason="the extra fedgraft[flower] is not installed")

from fedgraft.data.datasets import load
from fedgraft.engines.flower import limits
from fedgraft.engines.flower.processes import HOST, Process, free_port
from trials.attack.federation import MEGABYTE, ROOM, Gated, gated, nginx

pytestmark = pytest.mark.xdist_group("flower")
needs_nginx = pytest.mark.skipif(nginx() is None, reason="the server's gate needs nginx")
SECONDS = 120.0
LARGE = "mlp:2000-800"
"""A network of 6.9 MB: Flower sends it in two pieces."""
SKEWED = """
import datetime, sys
from flwr.supernode import node_auth_http_interceptor as signing
right = signing.now
wrong = datetime.timedelta(seconds=float(sys.argv.pop(1)))
signing.now = lambda: right() + wrong
from flwr.supernode.cli.flower_supernode import flower_supernode
flower_supernode()
"""
"""A real SuperNode whose clock is wrong by its first argument."""


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gated]:
    with gated(tmp_path_factory.mktemp("gated"), model=LARGE) as made:
        for site in ("a", "b"):
            made.flower.register(site)
        yield made


def words(place: Gated, site: str) -> list[str]:
    """How a site's node is started, as its README says, through the gate."""
    own = place.kit / "certificates" / "sites" / site
    trust = ["--root-certificates", str(own / "ca.crt"), "--auth-supernode-private-key", str(own / "node.key")]
    config = f"site={json.dumps(str(place.kit / 'sites' / f'{site}.toml'))}"
    return ["--superlink", place.address, *trust, "--host", HOST, "--port", str(free_port()), "--node-config", config]


def configured(folder: Path, model: str) -> Mapping[str, str]:
    """The directives of a gate, as `deploy init` would write it for a model."""
    from typer.testing import CliRunner

    from fedgraft.cli import app

    init = ["deploy", "init", str(folder), "--sites", "a,b,c", "--method", "scaffold", "--pixels", "8x8"]
    CliRunner().invoke(app, [*init, "--classes", "10", "--model", model], catch_exceptions=False)
    lines = (folder / "gate.conf").read_text("utf-8").splitlines()
    return {key: rest for key, _, rest in (line.strip().rpartition(" ") for line in lines) if rest.endswith(";")}


def test_flower_is_as_we_say() -> None:
    from flwr.common import constant

    assert constant.SYSTEM_TIME_TOLERANCE == limits.AHEAD
    assert constant.TIMESTAMP_TOLERANCE + constant.SYSTEM_TIME_TOLERANCE == limits.BEHIND
    assert constant.FLWR_PRIVATE_MAX_ARRAY_CHUNK_SIZE == limits.PIECE


def test_a_request_may_be_as_large_as_the_method_needs(tmp_path: Path) -> None:
    """SCAFFOLD sends two vectors of the linear network's 650 numbers, or of more than a piece has room for."""
    small, large = configured(tmp_path / "small", "linear"), configured(tmp_path / "large", LARGE)
    assert small["client_max_body_size"] == f"{2 * 4 * 650 + 2**20};"
    assert large["client_max_body_size"] == f"{limits.PIECE + 2**20};"
    assert small["limit_conn connections"] == "16;", "four for each site, and four"
    assert small["server 127.0.0.1:8001"] == "max_conns=64;"


@needs_nginx
@pytest.mark.parametrize("announced", [True, False])
def test_300_mb_without_a_key_are_refused_and_the_superlink_does_not_grow(place: Gated, announced: bool) -> None:
    before = place.memory
    codes, most = place.posts([300 * MEGABYTE] * 4, announced=announced)
    assert codes == [413] * 4
    assert most - before < ROOM


@needs_nginx
def test_only_the_fleet_api_is_behind_the_gate(place: Gated) -> None:
    for path in ("/", "/health", "/v1/control/list-nodes", "/v1/runtime/pull-messages"):
        assert place.post(10, path=path) == 403
    assert place.post(10, path="/v1/fleet/../control/list-nodes") == 403


@needs_nginx
@pytest.mark.parametrize(("seconds", "let_in"), [(8.0, False), (-400.0, False), (2.0, True), (-200.0, True)])
def test_a_node_whose_clock_is_wrong_is_told_so(place: Gated, seconds: float, let_in: bool) -> None:
    """The site's own log names both clocks; the SuperLink alone says `401 Unauthorized`."""
    name = f"skewed-{seconds:g}"
    node = place.flower.start(name, sys.executable, "-c", SKEWED, str(seconds), *words(place, "a"), may_end=True)
    try:
        place.flower.wait_until(lambda: node.code is not None or "SuperNode ID:" in node.said, "it is judged", SECONDS)
        assert ("SuperNode ID:" in node.said) == let_in
        if not let_in:
            said = " ".join(node.said.split())
            assert "the server does not accept the signature of this node. It was signed at 20" in said
            assert "more than 5 s ahead or 305 s behind is too much" in said
    finally:
        ended(place, node)


@needs_nginx
def test_an_honest_federation_passes_with_arrays_of_several_pieces(place: Gated) -> None:
    digits = load("digits")
    for number, site in enumerate(("a", "b")):
        part = slice(100 * number, 100 * number + 100)
        x, y = digits.x_train[part], digits.y_train[part]
        np.savez(place.kit / "sites" / f"{site}.npz", x_train=x, y_train=y, x_test=x[:20], y_test=y[:20])
        description = place.kit / "sites" / f"{site}.toml"
        description.write_text(description.read_text().replace('state = "state"', f'state = "state-{site}"'))
    place.flower.superexec()
    nodes = [place.flower.start(f"site-{site}", "flower-supernode", *words(place, site)) for site in ("a", "b")]
    try:
        place.flower.submit(place.kit)
        result = place.kit.parent / "run" / "result.json"
        place.flower.wait_until(result.exists, "there is a result", 4 * SECONDS)
        found = json.loads(result.read_text("utf-8"))
        assert found["refused"] == 0
        assert found["rounds"][0]["bytes_up"] > 2 * limits.PIECE
    finally:
        ended(place, *nodes)


def ended(place: Gated, *nodes: Process) -> None:
    """End nodes before the others do; a node that goes in peace may come back at once."""
    from fedgraft.engines.flower.processes import end

    end(nodes)
    for node in nodes:
        place.flower.processes.remove(node)
