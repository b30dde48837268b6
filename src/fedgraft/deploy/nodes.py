"""Which keys may come in: the nodes that are registered at the SuperLink, by the names of their sites.

Flower lets any number of keys have one name, and lists nodes without their names. Here a name has one key: a new one
replaces the old.
"""

import base64
import hashlib
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec
from flwr.proto.control_pb2 import ListNodesRequest, RegisterNodeRequest, UnregisterNodeRequest
from flwr.supercore.control import ControlHttpClient

from fedgraft.base.errors import UserError
from fedgraft.deploy.control import superlink
from fedgraft.engines.flower.site import NAME


@dataclass(frozen=True)
class Node:
    """A key that may come in: for which site, whether its node is there, and its fingerprint."""

    id: int
    site: str
    status: str
    key: str


def listed() -> list[Node]:
    """Return the registered nodes, by site."""
    with superlink() as control:
        return _admitted(control)


def register(file: Path, site: str, *, replace: bool = False) -> tuple[Node, list[Node]]:
    """Let the node with a public key in as a site; return it, and the nodes that it replaces.

    A second key for a site is refused unless it is to ``replace`` the first, whose node is then shut out.
    """
    if not NAME.fullmatch(site):
        raise UserError(f"a site's name is made of letters, digits, '.', '_' and '-', not {site!r}")
    public = _public(file)
    own = fingerprint(public)
    with superlink() as control:
        before = _admitted(control)
        if any(node.key == own and node not in before for node in _nodes(control)):
            raise UserError(
                f"the key in {file} was shut out, and Flower takes no key twice: make a new one with `fedgraft deploy "
                f"certificates certificates --sites {site} --force`"
            )
        for node in before:
            if node.key == own and node.site != site:
                raise UserError(f"the key in {file} is registered for site {node.site or '(no name)'}, node {node.id}")
        earlier = [node for node in before if node.site == site and node.key != own]
        if earlier and not replace:
            raise UserError(
                f"site {site} has a key already, {earlier[0].key} of node {earlier[0].id}; --replace shuts it out and "
                "lets the new one in"
            )
        if not any(node.key == own for node in before):
            control.RegisterNode(RegisterNodeRequest(public_key=public, name=site))
        for node in earlier:  # last, so that a failure leaves the site with a key
            control.UnregisterNode(UnregisterNodeRequest(node_id=node.id))
        return next(node for node in _admitted(control) if node.key == own), earlier


def remove(which: str) -> list[Node]:
    """Shut out every node of a site, or the one with a node id; return them."""
    with superlink() as control:
        known = _admitted(control)
        found = [node for node in known if which in (node.site, str(node.id))]
        if not found:
            sites = ", ".join(sorted({node.site for node in known if node.site})) or "none"
            raise UserError(f"no site and no node is called {which!r}; registered are: {sites}")
        for node in found:
            control.UnregisterNode(UnregisterNodeRequest(node_id=node.id))
        return found


def fingerprint(public: bytes) -> str:
    """Name a public key as OpenSSH does."""
    key = serialization.load_pem_public_key(public)
    assert isinstance(key, ec.EllipticCurvePublicKey)
    line = key.public_bytes(serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH)
    digest = hashlib.sha256(base64.b64decode(line.split()[1])).digest()
    return f"SHA256:{base64.b64encode(digest).decode().rstrip('=')}"


def _public(file: Path) -> bytes:
    """Read a public key as Flower keeps it."""
    try:
        key = serialization.load_ssh_public_key(file.read_bytes())
    except OSError as error:
        raise UserError(f"{file} cannot be read: {error.strerror}") from None
    except (ValueError, UnsupportedAlgorithm):
        raise UserError(f"{file} holds no public key; it is the site's NAME.pub or node.pub") from None
    if not isinstance(key, ec.EllipticCurvePublicKey):
        raise UserError(f"the key in {file} is not of an elliptic curve; `fedgraft deploy certificates` makes keys")
    return key.public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)


def _admitted(control: ControlHttpClient) -> list[Node]:
    return [node for node in _nodes(control) if node.status != "unregistered"]


def _nodes(control: ControlHttpClient) -> list[Node]:
    """All nodes that the SuperLink remembers, also those that were shut out."""
    found: Iterable[Node] = (
        Node(each.node_id, each.name, each.status, fingerprint(each.public_key))
        for each in control.ListNodes(ListNodesRequest()).nodes_info
    )
    return sorted(found, key=lambda node: (node.site, node.id))
