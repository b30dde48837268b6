"""Who may read a key, whom a certificate is for, and that none is lost by accident."""

import ipaddress
import ssl
from pathlib import Path

import pytest

pytest.importorskip("cryptography", reason="the extra fedgraft[flower] is not installed")

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import load_ssh_private_key, load_ssh_public_key

from fedgraft.base.errors import UserError
from fedgraft.deploy import certificates


def test_each_destination_gets_its_own_and_private_files_are_private(tmp_path: Path) -> None:
    written = certificates.make(tmp_path, server=["fed.example.org", "10.0.0.7"], sites=["a", "b"])
    names = {str(path.relative_to(tmp_path)) for path in written}
    assert names == {
        "ca.key", "ca.crt",
        "server/ca.crt", "server/server.crt", "server/server.key", "server/superexec.secret",
        "server/a.pub", "server/b.pub",
        "sites/a/ca.crt", "sites/a/node.key", "sites/a/node.pub",
        "sites/b/ca.crt", "sites/b/node.key", "sites/b/node.pub",
    }  # fmt: skip
    private = {str(path.relative_to(tmp_path)) for path in written if path.stat().st_mode & 0o077 == 0}
    assert private == {"ca.key", "server/server.key", "server/superexec.secret", "sites/a/node.key", "sites/b/node.key"}


def test_the_server_is_certified_for_its_names_and_addresses(tmp_path: Path) -> None:
    certificates.make(tmp_path, server=["fed.example.org", "10.0.0.7"])
    authority = x509.load_pem_x509_certificate((tmp_path / "ca.crt").read_bytes())
    server = x509.load_pem_x509_certificate((tmp_path / "server" / "server.crt").read_bytes())
    server.verify_directly_issued_by(authority)
    valid = server.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert valid.get_values_for_type(x509.DNSName) == ["fed.example.org", "localhost"]
    assert ipaddress.ip_address("10.0.0.7") in valid.get_values_for_type(x509.IPAddress)
    assert authority.extensions.get_extension_for_class(x509.BasicConstraints).value.ca
    assert not server.extensions.get_extension_for_class(x509.BasicConstraints).value.ca
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(tmp_path / "server" / "server.crt", tmp_path / "server" / "server.key")


def test_a_node_key_is_p384_in_openssh_format_and_its_public_half_fits(tmp_path: Path) -> None:
    certificates.make(tmp_path, server=["localhost"], sites=["a"])
    key = load_ssh_private_key((tmp_path / "sites" / "a" / "node.key").read_bytes(), None)
    assert isinstance(key, ec.EllipticCurvePrivateKey)
    assert isinstance(key.curve, ec.SECP384R1)
    for place in ("sites/a/node.pub", "server/a.pub"):
        assert load_ssh_public_key((tmp_path / place).read_bytes()) == key.public_key()


def test_a_site_is_added_and_the_server_renewed_without_touching_anybody_else(tmp_path: Path) -> None:
    certificates.make(tmp_path, server=["localhost"], sites=["a"])
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    (tmp_path / "ca.key").rename(tmp_path / "vault")
    certificates.make(tmp_path, sites=["b"])  # a node's key is not signed: the authority's key may lie elsewhere
    (tmp_path / "vault").rename(tmp_path / "ca.key")
    assert all(path.read_bytes() == content for path, content in before.items())
    assert (tmp_path / "sites" / "b" / "ca.crt").read_bytes() == before[tmp_path / "ca.crt"]

    certificates.make(tmp_path, server=["other.example.org"], force=True)
    changed = {str(path.relative_to(tmp_path)) for path, content in before.items() if path.read_bytes() != content}
    assert changed == {"server/server.crt", "server/server.key", "server/superexec.secret"}
    renewed = x509.load_pem_x509_certificate((tmp_path / "server" / "server.crt").read_bytes())
    renewed.verify_directly_issued_by(x509.load_pem_x509_certificate(before[tmp_path / "ca.crt"]))


def test_keys_that_are_there_are_refused_and_stay(tmp_path: Path) -> None:
    certificates.make(tmp_path, server=["localhost"], sites=["a"])
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    with pytest.raises(UserError, match=r"sites/a/node\.key is there already; --force"):
        certificates.make(tmp_path, sites=["a", "c"])
    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before
    certificates.make(tmp_path, sites=["a"], force=True)
    assert (tmp_path / "sites" / "a" / "node.key").read_bytes() != before[tmp_path / "sites" / "a" / "node.key"]
    assert (tmp_path / "ca.key").read_bytes() == before[tmp_path / "ca.key"]


@pytest.mark.parametrize("name", ["https://fed.example.org", "fed.example.org:8000", "", "300.1.2.3", "a b", "-x"])
def test_a_server_that_is_no_name_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(UserError, match="neither a host's name nor an address"):
        certificates.make(tmp_path / "new", server=[name])
    assert not (tmp_path / "new").exists()


def test_half_an_authority_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"holds no ca\.crt; name the server"):
        certificates.make(tmp_path, sites=["a"])
    certificates.make(tmp_path / "one", server=["localhost"])
    certificates.make(tmp_path / "two", server=["localhost"])
    (tmp_path / "one" / "ca.key").write_bytes((tmp_path / "two" / "ca.key").read_bytes())
    with pytest.raises(UserError, match="do not belong together"):
        certificates.make(tmp_path / "one", server=["localhost"], force=True)
    (tmp_path / "one" / "ca.key").unlink()
    with pytest.raises(UserError, match=r"ca\.key cannot be read"):
        certificates.make(tmp_path / "one", server=["localhost"], force=True)
    with pytest.raises(UserError, match="nothing to make"):
        certificates.make(tmp_path / "two")
