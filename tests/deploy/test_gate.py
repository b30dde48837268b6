"""The gate that `fedgraft deploy init` writes, with a real nginx in front of a real SuperLink.

Nobody without a key can fill the SuperLink's memory, honest sites pass with arrays of any size, and a node whose clock
is wrong finds the reason in its own log.
"""

import json
import shutil
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("flwr", reason="the extra fedgraft[flower] is not installed")

from fedgraft.base.errors import UserError
from fedgraft.data.datasets import load
from fedgraft.deploy import certificates
from fedgraft.deploy.processes import HOST, Process, free_port
from fedgraft.engines.flower import limits
from trials.attack.federation import MEGABYTE, ROOM, Gated, gated, nginx

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("gate")]
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
    CliRunner().invoke(app, [*init, "--task", "classification:10", "--model", model], catch_exceptions=False)
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


# ---- what a site sees before it starts


def check(*words: str | Path) -> str:
    from typer.testing import CliRunner

    from fedgraft.cli import app

    return CliRunner().invoke(app, ["deploy", "check", *map(str, words)], catch_exceptions=False).stdout


@pytest.fixture
def site(place: Gated, tmp_path: Path) -> Path:
    """Site a's folder, as the operator handed it over, with data and with what was agreed."""
    shutil.copytree(place.kit / "certificates" / "sites" / "a", tmp_path / "a")
    shutil.copy2(place.kit / "sites" / "a.toml", tmp_path / "a")
    shutil.copy2(place.kit / "charter.toml", tmp_path / "a")
    digits = load("digits")
    x, y = digits.x_train[:50], digits.y_train[:50]
    np.savez(tmp_path / "a" / "a.npz", x_train=x, y_train=y, x_test=x[:20], y_test=y[:20])
    return tmp_path / "a" / "a.toml"


@needs_nginx
def test_a_site_in_order_is_told_so_and_can_start_at_once(place: Gated, site: Path) -> None:
    said = check(site, "--server", place.address)
    assert "data: 50 samples to train on and 20 to test on, as agreed" in said
    assert f"server: {place.address} answers, with a certificate of our authority; the clocks agree" in said
    assert "key: node.key is registered" in said
    (site.parent / "charter.toml").unlink()
    assert "whether they fit is not known" in check(site, "--server", place.address)
    node = place.flower.start("checked", "flower-supernode", *words(place, "a"), may_end=True)
    try:
        place.flower.wait_until(lambda: "SuperNode ID:" in node.said or node.code is not None, "it is judged", SECONDS)
        assert "SuperNode ID:" in node.said, "looking does not take the node's place"
    finally:
        ended(place, node)


@needs_nginx
@pytest.mark.parametrize(("seconds", "told"), [(8.0, "8 s ahead of"), (-400.0, "400 s behind")])
def test_a_wrong_clock_is_found_before_the_node_starts(
    place: Gated, site: Path, seconds: float, told: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    right = time.time
    monkeypatch.setattr(time, "time", lambda: right() + seconds)
    with pytest.raises(UserError, match=f"the clock is {told} the server's; .* set the clock, best by NTP"):
        check(site, "--server", place.address)


@needs_nginx
def test_every_problem_of_a_site_is_named(place: Gated, site: Path, tmp_path: Path) -> None:
    certificates.make(tmp_path / "other", server=[HOST], sites=["a"])
    other = tmp_path / "other" / "sites" / "a"
    server = ["--server", place.address]
    with pytest.raises(UserError, match=r"node\.key is not registered; the operator does that with"):
        check(site, *server, "--key", other / "node.key")
    with pytest.raises(UserError, match="does not prove to be the server"):
        check(site, *server, "--authority", other / "ca.crt")
    with pytest.raises(UserError, match="is not the certificate of an authority"):
        check(site, *server, "--authority", other / "node.key")
    with pytest.raises(UserError, match="cannot be reached: Connection refused"):
        check(site, "--server", f"{HOST}:{free_port()}")
    with pytest.raises(UserError, match="holds no private key"):
        check(site, *server, "--key", other / "node.pub")
    agreed = (site.parent / "charter.toml").read_text("utf-8")
    (site.parent / "charter.toml").write_text(agreed.replace("shape = [8, 8]", "shape = [9, 9]"), "utf-8")
    with pytest.raises(
        UserError, match=r"its samples are pixels of \[8, 8\], the federation's pixels of \[9, 9\]; .*key"
    ):
        check(site, *server, "--key", other / "node.key")
    (site.parent / "a.npz").write_bytes(b"no")
    with pytest.raises(UserError, match=r"a\.npz"):
        check(site, *server)


def ended(place: Gated, *nodes: Process) -> None:
    """End nodes before the others do; a node that goes in peace may come back at once."""
    from fedgraft.deploy.processes import end

    end(nodes)
    for node in nodes:
        place.flower.processes.remove(node)
