"""Who is let in: real processes, TLS and node keys, as `fedgraft deploy certificates` makes them."""

import json
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

pytest.importorskip("flwr", reason="the extra fedgraft[flower] is not installed")

from fedgraft.base.errors import UserError
from fedgraft.deploy import certificates
from fedgraft.deploy.deployment import CONNECTION, Deployment
from fedgraft.deploy.processes import Process

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("authentication")]  # one set of processes, in one worker
SECONDS = 60.0
LET_IN = "SuperNode ID:"


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("certificates")
    certificates.make(folder / "ours", server=["127.0.0.1"], sites=["registered", "stranger"])
    certificates.make(folder / "theirs", server=["127.0.0.1"])
    return folder


@pytest.fixture(scope="module")
def flower(keys: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Deployment]:
    with Deployment(tmp_path_factory.mktemp("flower"), keys / "ours") as deployment:
        deployment.superlink()
        deployment.register("registered")
        yield deployment


@pytest.fixture(scope="module")
def nodes(flower: Deployment, keys: Path) -> dict[str, Process]:
    """One node that may come in, and four that may not, all at once: each takes seconds to start."""

    def node(name: str, security: Sequence[str]) -> Process:
        return flower.supernode(name, {"site": "none"}, security=security, may_end=True)

    trusted = ["--root-certificates", str(keys / "ours" / "ca.crt")]
    known = ["--auth-supernode-private-key", str(keys / "ours" / "sites" / "registered" / "node.key")]
    stranger = ["--auth-supernode-private-key", str(keys / "ours" / "sites" / "stranger" / "node.key")]
    impatient = ["--max-wait-time", "3"]  # by itself, a node that finds nobody to talk to tries for ever
    return {
        "registered": flower.supernode("registered", {"site": "none"}),
        "unregistered key": node("stranger", [*trusted, *stranger]),
        "no key": node("keyless", trusted),
        "wrong CA": node("misled", ["--root-certificates", str(keys / "theirs" / "ca.crt"), *known, *impatient]),
        "plain text": node("open", ["--insecure", *impatient]),
    }


def wait(flower: Deployment, nodes: dict[str, Process], name: str) -> Process:
    flower.wait_until(lambda: nodes[name].code is not None, f"the node with {name} has given up", SECONDS)
    return nodes[name]


def test_the_registered_node_is_let_in(flower: Deployment, nodes: dict[str, Process]) -> None:
    node = nodes["registered"]
    flower.wait_until(lambda: LET_IN in node.said, "the registered node is let in", SECONDS)
    listed = json.loads(flower.flwr("supernode", "list", CONNECTION, "--format", "json"))["nodes"]
    assert [each["status"] for each in listed] == ["online"]
    assert listed[0]["node-id"] in node.said


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("unregistered key", "Failed to activate SuperNode"),
        ("no key", "All SuperNodes must be registered"),
        ("wrong CA", "CERTIFICATE_VERIFY_FAILED"),
        ("plain text", "Server disconnected without sending a response"),
    ],
)
def test_any_other_is_refused_and_is_told_why(
    flower: Deployment, nodes: dict[str, Process], name: str, reason: str
) -> None:
    node = wait(flower, nodes, name)
    assert node.code == 1
    assert "Exit Code: 305" in node.said
    assert reason in node.last_words()
    assert LET_IN not in node.said


def test_the_server_shows_whom_it_refused(flower: Deployment, nodes: dict[str, Process]) -> None:
    wait(flower, nodes, "unregistered key")
    wait(flower, nodes, "no key")
    said = flower.processes[0].said
    assert "No SuperNode found with the given public key" in said
    assert "/v1/fleet/register-node" in next(line for line in said.splitlines() if "ApiError:2001" in line)


def test_a_key_is_good_for_one_node_at_a_time(flower: Deployment, nodes: dict[str, Process], keys: Path) -> None:
    flower.wait_until(lambda: LET_IN in nodes["registered"].said, "the registered node is let in", SECONDS)
    own = keys / "ours" / "sites" / "registered"
    security = ["--root-certificates", str(own / "ca.crt"), "--auth-supernode-private-key", str(own / "node.key")]
    twin = flower.supernode("twin", {"site": "none"}, security=security)
    with pytest.raises(UserError, match=r"(?s)supernode-twin ended with exit code 1.*Failed to activate SuperNode"):
        flower.wait_until(lambda: LET_IN in twin.said, "the twin is let in", SECONDS)
    assert nodes["registered"].code is None
