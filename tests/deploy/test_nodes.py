"""One key for each site: a real SuperLink, whose operator registers, lists, replaces and removes keys."""

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("flwr", reason="the extra fedgraft[flower] is not installed")

from typer.testing import CliRunner

from fedgraft.base.errors import UserError
from fedgraft.cli import app
from fedgraft.deploy import certificates
from fedgraft.deploy.deployment import Deployment

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("nodes")]
SECONDS = 120.0


@pytest.fixture(scope="module")
def flower(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Deployment]:
    folder = tmp_path_factory.mktemp("nodes")
    certificates.make(folder / "certificates", server=["127.0.0.1"], sites=["a", "b"])
    with Deployment(folder, folder / "certificates") as deployment:
        deployment.superlink(in_memory=True)
        yield deployment


@pytest.fixture(autouse=True)
def operator(flower: Deployment, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FLWR_HOME", str(flower.directory / "flower" / "operator"))
    monkeypatch.setenv("COLUMNS", "200")


def deploy(*words: str | Path) -> str:
    result = CliRunner().invoke(app, ["deploy", *map(str, words)], catch_exceptions=False)
    return result.stdout


def ssh_fingerprint(file: Path) -> str:
    from fedgraft.deploy.nodes import _public, fingerprint

    return fingerprint(_public(file))


def test_a_site_has_one_key_and_a_new_one_replaces_it(flower: Deployment) -> None:
    """From the first key to the second, as the page on deployment tells it; the node with the old key has to go."""
    assert flower.certificates is not None
    server = flower.certificates / "server"
    first = ssh_fingerprint(server / "a.pub")
    with pytest.raises(UserError, match="no site is registered"):
        deploy("nodes")
    said = deploy("register", server / "a.pub", server / "b.pub")
    assert f"site a: {first} is registered, as node " in said
    number = said.split("site a: ")[1].splitlines()[0].split()[-1]
    assert deploy("register", server / "a.pub") in said, "once more does no harm"
    listed = deploy("nodes")
    for word in ("a", "registered", first, number):
        assert word in next(line for line in listed.splitlines() if first in line).split()

    old = flower.supernode("a", {"site": "none"}, may_end=True)
    flower.wait_until(lambda: "SuperNode ID:" in old.said, "the first key is let in", SECONDS)
    certificates.make(flower.certificates, sites=["a"], force=True)
    second = ssh_fingerprint(server / "a.pub")
    with pytest.raises(
        UserError, match=f"site a has a key already, {first} of node {number}; --replace".replace("+", r"\+")
    ):
        deploy("register", server / "a.pub")
    assert second not in deploy("nodes")
    with pytest.raises(UserError, match="is registered for site b"):
        deploy("register", server / "b.pub", "--name", "a", "--replace")

    said = deploy("register", server / "a.pub", "--replace")
    assert f"site a: {second} is registered" in said
    assert f"site a: {first} is shut out, node {number}" in said
    listed = deploy("nodes")
    assert first not in listed
    assert second in listed
    flower.wait_until(lambda: old.code is not None, "the node with the old key has ended", SECONDS)

    assert f"site a: {second} is shut out" in deploy("remove", "a")
    with pytest.raises(UserError, match="no site and no node is called 'a'; registered are: b"):
        deploy("remove", "a")


def test_a_fingerprint_is_that_of_openssh(tmp_path: Path) -> None:
    (tmp_path / "key.pub").write_text(
        "ecdsa-sha2-nistp384 AAAAE2VjZHNhLXNoYTItbmlzdHAzODQAAAAIbmlzdHAzODQAAABhBKAT3WQBmBZRv1Vqp1pTRQ1y2vGrf0\n"
    )
    with pytest.raises(UserError, match="holds no public key"):
        ssh_fingerprint(tmp_path / "key.pub")
    certificates.make(tmp_path, server=["localhost"], sites=["a"])
    try:
        done = subprocess.run(
            ["ssh-keygen", "-lf", tmp_path / "server" / "a.pub"], capture_output=True, text=True, check=True
        )
    except FileNotFoundError:
        pytest.skip("there is no ssh-keygen to ask")
    assert done.stdout.split()[1] == ssh_fingerprint(tmp_path / "server" / "a.pub")


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (["register", "none.pub"], "none.pub cannot be read"),
        (["register", "x.pub", "y.pub", "--name", "a"], "--name is for one key"),
        (["register", "none.pub", "--name", "../a"], "a site's name is made of"),
    ],
)
def test_mistakes_are_sentences(words: list[str], complaint: str) -> None:
    with pytest.raises(UserError, match=complaint):
        deploy(*words)


def test_a_superlink_that_does_not_answer_is_a_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FLWR_HOME", str(tmp_path))
    with pytest.raises(UserError, match="the SuperLink cannot be asked"):
        deploy("nodes")
    (tmp_path / "config.toml").write_text('[superlink.fedgraft]\naddress = "127.0.0.1:9"\ninsecure = true\n')
    with pytest.raises(UserError, match="the SuperLink cannot be asked"):
        deploy("nodes")
