"""Masks that hide what a site sends and cancel in the sum, and what it takes to do without those who are lost.

After Bonawitz et al., "Practical Secure Aggregation for Privacy-Preserving Machine Learning", CCS 2017, for a server
that keeps to the protocol and looks at all that it gets. In every wave of a round each site draws two key pairs and a
seed (``Keys``). Site i sends

    y_i = n_i q_i + PRG(b_i) + sum_{j > i} PRG(s_ij) - sum_{j < i} PRG(s_ij)    (mod 2^64)

s_ij is what the mask keys of i and j agree on, b_i is the seed of i alone. Of its mask key and of its seed every site
gives each other site a share, sealed for that one. When the masked replies are there, the sites hand over shares of the
seeds of those who answered, and of the mask keys of those who did not; never both of one site, so that y_i stays
hidden, however late it may come. Any ``threshold`` of the sites can rebuild a secret, fewer learn nothing of it.

Curves, ciphers and the sharing of secrets are those of ``cryptography`` and of ``pycryptodome``, which Flower brings.
"""

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from Crypto.Protocol.SecretSharing import Shamir
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305
from cryptography.hazmat.primitives.ciphers.algorithms import ChaCha20
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from fedgraft.core.client import ClientId

Numbers = np.ndarray[Any, np.dtype[np.int64]]
SECRET = 32
HALF = 16
"""What is shared at a time: bytes of a secret."""
NONCE = 12


class MaskError(ValueError):
    """Something does not fit together: a share that cannot be opened, a key that is none."""


@dataclass(frozen=True)
class Keys:
    """A site's secrets of one wave."""

    mask: bytes
    seal: bytes
    seed: bytes

    @classmethod
    def drawn(cls) -> "Keys":
        """Draw them from the system's randomness: nothing of them may follow from the run's seed."""
        return cls(os.urandom(SECRET), os.urandom(SECRET), os.urandom(SECRET))

    @property
    def public(self) -> "Public":
        return Public(*(_private(secret).public_key().public_bytes_raw() for secret in (self.mask, self.seal)))


@dataclass(frozen=True)
class Public:
    """What others may know of a site's keys."""

    mask: bytes
    seal: bytes


@dataclass(frozen=True)
class Shares:
    """One site's share of another's secrets."""

    mask: bytes
    seed: bytes


def masked(numbers: Numbers, own: ClientId, keys: Keys, publics: Mapping[ClientId, Public], context: bytes) -> Numbers:
    """Hide a site's numbers; ``publics`` are the keys of all sites that take part, its own among them."""
    hidden = numbers + _stream(keys.seed, len(numbers))
    for other, public in publics.items():
        if other != own:
            hidden += pairwise(own, keys.mask, other, public, len(numbers), context)
    return hidden


def pairwise(own: ClientId, secret: bytes, other: ClientId, public: Public, length: int, context: bytes) -> Numbers:
    """Return what a site adds to its numbers for another; the other adds the opposite."""
    mask = _stream(_agreed(secret, public.mask, b"mask" + context), length)
    return mask if own < other else -mask


def lone(seed: bytes, length: int) -> Numbers:
    """Return the mask that a site's seed makes."""
    return _stream(seed, length)


def split(keys: Keys, sites: Iterable[ClientId], threshold: int) -> dict[ClientId, Shares]:
    """Share a site's mask key and seed among all sites."""
    sites = sorted(sites)
    halves = [secret[part : part + HALF] for secret in (keys.mask, keys.seed) for part in (0, HALF)]
    each = [[share for _, share in Shamir.split(threshold, len(sites), half, False)] for half in halves]
    return {
        site: Shares(each[0][place] + each[1][place], each[2][place] + each[3][place])
        for place, site in enumerate(sites)
    }


def rebuilt(shares: Mapping[ClientId, bytes], sites: Iterable[ClientId], threshold: int) -> bytes:
    """Put a secret together again from shares; ``sites`` are all those that it was shared among."""
    numbers = {site: place for place, site in enumerate(sorted(sites), 1)}
    if len(shares) < threshold or not shares.keys() <= numbers.keys():
        raise MaskError("there are too few shares to rebuild a secret from")
    if any(len(share) != SECRET for share in shares.values()):
        raise MaskError("a share is not as long as a secret")
    chosen = sorted(shares.items())[:threshold]
    return b"".join(
        Shamir.combine([(numbers[site], share[part : part + HALF]) for site, share in chosen], False)
        for part in (0, HALF)
    )


def sealed(shares: Shares, own: ClientId, secret: bytes, other: ClientId, public: Public, context: bytes) -> bytes:
    """Close shares so that nobody but the other site can read them, the server least of all."""
    key, nonce = _agreed(secret, public.seal, b"seal" + context), os.urandom(NONCE)
    return nonce + ChaCha20Poly1305(key).encrypt(nonce, shares.mask + shares.seed, _label(own, other))


def opened(box: bytes, sender: ClientId, public: Public, own: ClientId, secret: bytes, context: bytes) -> Shares:
    """Read the shares that another site sealed for this one."""
    key = _agreed(secret, public.seal, b"seal" + context)
    try:
        text = ChaCha20Poly1305(key).decrypt(box[:NONCE], box[NONCE:], _label(sender, own))
    except (InvalidTag, ValueError):
        raise MaskError(f"the shares of client {sender} cannot be opened") from None
    if len(text) != 2 * SECRET:
        raise MaskError(f"the shares of client {sender} have another length")
    return Shares(text[:SECRET], text[SECRET:])


def _label(sender: ClientId, receiver: ClientId) -> bytes:
    return f"{sender} to {receiver}".encode()


def _private(secret: bytes) -> X25519PrivateKey:
    return X25519PrivateKey.from_private_bytes(secret)


def _agreed(secret: bytes, public: bytes, purpose: bytes) -> bytes:
    """Return what two sites agree on, for one purpose."""
    try:
        common = _private(secret).exchange(X25519PublicKey.from_public_bytes(public))
    except ValueError:
        raise MaskError("a public key is none") from None
    return HKDF(SHA256(), SECRET, salt=None, info=b"fedgraft " + purpose).derive(common)


def _stream(key: bytes, length: int) -> Numbers:
    """Return so many numbers of 64 bits, which follow from the key and look like chance."""
    stream = Cipher(ChaCha20(key, b"\0" * 16), mode=None).encryptor().update(bytes(8 * length))
    return np.frombuffer(stream, np.int64)
