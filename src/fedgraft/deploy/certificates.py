"""Certificates and keys of a deployment: the server proves who it is, and so does each site.

One folder for each destination, so that nobody gets a key that is not theirs:

    ca.key              signs server certificates; stays where it was made
    ca.crt              the authority that everybody trusts
    server/             ca.crt, server.crt, server.key, superexec.secret, and each site's NAME.pub
    sites/NAME/         ca.crt, node.key, node.pub
"""

import datetime
import ipaddress
import os
import re
import secrets
from collections.abc import Mapping, Sequence
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from fedgraft.base.errors import UserError

CA_DAYS = 3650
LOOPBACK = ("localhost", "127.0.0.1", "::1")
"""The server's own processes reach it by these, so its certificate is always valid for them too."""
_PRIVATE = frozenset({".key", ".secret"})
_PKCS8, _OPENSSH = serialization.PrivateFormat.PKCS8, serialization.PrivateFormat.OpenSSH


def make(
    folder: Path, *, server: Sequence[str] = (), sites: Sequence[str] = (), days: int = 825, force: bool = False
) -> list[Path]:
    """Write what is asked for into ``folder`` and return the files; keys that are there are never lost by accident.

    ``server`` are the names and addresses by which sites reach the server. The authority is made at the first call and
    kept from then on, so that a later call adds a site or renews the server's certificate and nobody else notices.
    """
    names = [_name(text) for text in dict.fromkeys((*server, *LOOPBACK))] if server else []
    new = {f"sites/{site}/node.key" for site in sites} | ({"server/server.key"} if server else set())
    if not new:
        raise UserError("name the server (--server), sites (--sites) or both: there is nothing to make")
    if not server and not (folder / "ca.crt").exists():
        raise UserError(f"{folder} holds no ca.crt; name the server with --server to begin")
    if (there := sorted(path for path in new if (folder / path).exists())) and not force:
        raise UserError(f"{folder / there[0]} is there already; --force replaces it, and whoever uses it is locked out")
    files = {} if any((folder / name).exists() for name in ("ca.key", "ca.crt")) else _authority_files()
    authority = files.get("ca.crt") or _read(folder / "ca.crt")
    if server:
        key = files.get("ca.key") or _read(folder / "ca.key")
        files |= _server_files(*_signer(folder, key, authority), names, days)
    for site in sites:
        files |= _site_files(authority, site)
    return _written(folder, files)


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise UserError(f"{path} cannot be read: {error.strerror}; ca.key and ca.crt are the authority") from None


def _authority_files() -> dict[str, bytes]:
    key = ec.generate_private_key(ec.SECP256R1())
    subject = _subject("fedgraft deployment")
    builder = _builder(subject, subject, key.public_key(), CA_DAYS)
    builder = builder.add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
    builder = builder.add_extension(_usage(key_cert_sign=True, crl_sign=True), critical=True)
    return {"ca.key": _private(key, _PKCS8), "ca.crt": _pem(builder.sign(key, hashes.SHA256()))}


def _signer(folder: Path, key: bytes, certificate: bytes) -> tuple[ec.EllipticCurvePrivateKey, x509.Certificate]:
    try:
        found = serialization.load_pem_private_key(key, None)
        authority = x509.load_pem_x509_certificate(certificate)
    except (ValueError, TypeError) as error:
        raise UserError(f"the authority in {folder} is damaged: {error}") from None
    if not isinstance(found, ec.EllipticCurvePrivateKey) or found.public_key() != authority.public_key():
        raise UserError(f"ca.key and ca.crt in {folder} do not belong together")
    return found, authority


def _server_files(
    key: ec.EllipticCurvePrivateKey, authority: x509.Certificate, names: Sequence[x509.GeneralName], days: int
) -> Mapping[str, bytes]:
    own = ec.generate_private_key(ec.SECP256R1())
    issuer = x509.AuthorityKeyIdentifier.from_issuer_public_key(key.public_key())
    certificate = (
        _builder(_subject("fedgraft server"), authority.subject, own.public_key(), days)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_usage(digital_signature=True), critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(issuer, critical=False)
        .add_extension(x509.SubjectAlternativeName(names), critical=False)
        .sign(key, hashes.SHA256())
    )
    return {
        "server/ca.crt": _pem(authority),
        "server/server.crt": _pem(certificate),
        "server/server.key": _private(own, _PKCS8),
        "server/superexec.secret": secrets.token_hex(32).encode(),
    }


def _site_files(authority: bytes, site: str) -> Mapping[str, bytes]:
    key = ec.generate_private_key(ec.SECP384R1())
    public = key.public_key().public_bytes(serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH)
    public += f" {site}\n".encode()
    return {
        f"sites/{site}/ca.crt": authority,
        f"sites/{site}/node.key": _private(key, _OPENSSH),
        f"sites/{site}/node.pub": public,
        f"server/{site}.pub": public,
    }


def _name(text: str) -> x509.GeneralName:
    """Read a name or an address of the server."""
    try:
        return x509.IPAddress(ipaddress.ip_address(text))
    except ValueError:
        pass
    label = r"[A-Za-z0-9]([A-Za-z0-9-]{0,61}[A-Za-z0-9])?"
    if not re.fullmatch(rf"{label}(\.{label})*", text) or text.replace(".", "").isdigit():
        raise UserError(
            f"{text!r} is neither a host's name nor an address; write it without https:// and without a port"
        )
    return x509.DNSName(text)


def _builder(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePublicKey, days: int
) -> x509.CertificateBuilder:
    now = datetime.datetime.now(datetime.UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(hours=1))  # clocks of other machines are a little late
        .not_valid_after(now + datetime.timedelta(days=days))
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key), critical=False)
    )


def _usage(*, digital_signature: bool = False, key_cert_sign: bool = False, crl_sign: bool = False) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=digital_signature, key_cert_sign=key_cert_sign, crl_sign=crl_sign,
        content_commitment=False, key_encipherment=False, data_encipherment=False, key_agreement=False,
        encipher_only=False, decipher_only=False,
    )  # fmt: skip


def _subject(name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])


def _pem(certificate: x509.Certificate) -> bytes:
    return certificate.public_bytes(serialization.Encoding.PEM)


def _private(key: ec.EllipticCurvePrivateKey, form: serialization.PrivateFormat) -> bytes:
    return key.private_bytes(serialization.Encoding.PEM, form, serialization.NoEncryption())


def _written(folder: Path, files: Mapping[str, bytes]) -> list[Path]:
    """Write the files; private ones are nobody else's to read from their first moment on."""
    paths = []
    try:
        for name, content in sorted(files.items()):
            path = folder / name
            path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            private = path.suffix in _PRIVATE
            path.unlink(missing_ok=True)
            handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600 if private else 0o644)
            with os.fdopen(handle, "wb") as stream:
                stream.write(content)
            paths.append(path)
    except OSError as error:
        raise UserError(f"{error.filename} cannot be written: {error.strerror}") from None
    return paths
