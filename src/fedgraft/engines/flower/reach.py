"""What a site can find out before its node starts: whether the server answers, its time, and if it knows the key."""

import http.client
import re
import ssl
import time
from email.utils import parsedate_to_datetime
from pathlib import Path

import httpx
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec
from flwr.proto.fleet_pb2 import ActivateNodeRequest
from flwr.supercore.error import ApiErrorCode, FlowerError
from flwr.supercore.interceptors.http.runtime_version import RuntimeVersionHttpInterceptor
from flwr.supercore.protobuf.client import ProtobufClientInterceptor
from flwr.supernode.fleet_http_client import FleetHttpClient
from flwr.supernode.node_auth_http_interceptor import NodeAuthHttpInterceptor

from fedgraft.base.errors import UserError
from fedgraft.base.foreign import plain

SECONDS = 15.0
NO_INTERVAL = -1.0
"""Between signs of life: Flower looks for the key first, then refuses this, and so nothing is activated."""


class NotYetError(UserError):
    """What may be in order later: the server is not there, or has not been told of the key."""


def clock(host: str, port: int, authority: Path) -> float:
    """Ask the server for its time, over TLS; return by how many seconds the clock here is ahead, to a second or so."""
    try:
        context = ssl.create_default_context(cafile=str(authority))
    except (OSError, ssl.SSLError) as error:
        raise UserError(f"{authority} is not the certificate of an authority: {error.strerror or error}") from None
    connection = http.client.HTTPSConnection(host, port, timeout=SECONDS, context=context)
    try:
        asked = time.time()
        connection.request("GET", "/")
        date = connection.getresponse().headers["Date"]
        here = (asked + time.time()) / 2
        return here - parsedate_to_datetime(date).timestamp() - 0.5
    except ssl.SSLCertVerificationError as error:
        raise UserError(
            f"{host}:{port} does not prove to be the server: {error.verify_message}; either {authority} is of another "
            "authority, or the certificate was not made for this name"
        ) from None
    except ssl.SSLError:
        raise UserError(f"{host}:{port} does not speak TLS") from None
    except OSError as error:
        raise NotYetError(f"{host}:{port} cannot be reached: {error.strerror or error}") from None
    except (http.client.HTTPException, TypeError, ValueError):
        raise UserError(f"{host}:{port} does not answer as a server of a federation does") from None
    finally:
        connection.close()


def insist_on_key(host: str, port: int, authority: Path, key: Path) -> None:
    """Say so if the server would not let a node with this key in; nothing is activated."""
    private = _private(key)
    public = private.public_key().public_bytes(
        serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
    )
    signing: list[ProtobufClientInterceptor] = [
        RuntimeVersionHttpInterceptor(component_name="SuperNode"),
        NodeAuthHttpInterceptor(private, private.public_key()),
    ]
    try:
        certificates = authority.read_bytes()
        with FleetHttpClient.from_server_address(f"{host}:{port}", False, certificates, interceptors=signing) as fleet:
            fleet.ActivateNode(ActivateNodeRequest(public_key=public, heartbeat_interval=NO_INTERVAL))
    except httpx.HTTPStatusError as error:
        said = FlowerError.from_json(error.response.text)
        if said is not None and said.code == ApiErrorCode.FLEET_INVALID_HEARTBEAT_INTERVAL:
            return
        if said is not None and said.code == ApiErrorCode.FLEET_NODE_ACTIVATION_FAILED:
            raise NotYetError(
                f"the key in {key} is not registered; the operator does that with `fedgraft deploy register`"
            ) from None
        reason = said.message if said is not None else f"it answers {error.response.status_code}"
        raise UserError(f"the server does not take the key in {key}: {plain(reason)}") from None
    except (httpx.HTTPError, OSError) as error:
        reason = re.sub(r"^\[Errno -?\d+\] ", "", plain(str(error)))
        raise NotYetError(f"{host}:{port} cannot be reached: {reason}") from None


def _private(file: Path) -> ec.EllipticCurvePrivateKey:
    try:
        key = serialization.load_ssh_private_key(file.read_bytes(), None)
    except OSError as error:
        raise UserError(f"{file} cannot be read: {error.strerror}") from None
    except (ValueError, TypeError):
        raise UserError(f"{file} holds no private key; it is the site's node.key") from None
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise UserError(f"the key in {file} is not of an elliptic curve; `fedgraft deploy certificates` makes keys")
    return key
