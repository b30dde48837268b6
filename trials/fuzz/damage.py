"""Damage for bytes and values: what disks, networks, editors and strangers do to a file."""

from random import Random
from typing import Any

TOKENS = [
    b"", b"\0", b"\xff" * 8, b"nan", b"inf", b"-1", b"1e999", b"1" * 5000, b"9" * 30, b"null", b"true", b"{}", b"[]",
    b"[" * 20_000, b'{"a":' * 20_000, b'"', b"'''", b"\n", b"\r\n", b"\xed\xa0\x80", b"\xef\xbb\xbf",
    b"../../etc/passwd", b"__import__('os').system('true')", b"cos\nsystem\n(S'true'\ntR.", b"\x80\x04\x95",
]  # fmt: skip


def damaged(rng: Random, data: bytes, hits: int | None = None) -> bytes:
    """Return ``data`` hit once or a few times."""
    out = bytearray(data)
    for _ in range(hits or rng.choice([1, 1, 1, 2, 5])):
        kind, at = rng.randrange(8), rng.randint(0, len(out))
        span = rng.choice([1, 2, 4, 8, 64, rng.randint(0, len(out))])
        if kind == 0 and at < len(out):
            out[at] ^= 1 << rng.randrange(8)
        elif kind == 1:
            del out[at:]
        elif kind == 2:
            del out[at : at + span]
        elif kind == 3:
            out[at : at + span] = rng.randbytes(span)
        elif kind == 4:
            out[at:at] = rng.choice(TOKENS)
        elif kind == 5:
            out[at:at] = out[at : at + span]
        elif kind == 6:
            out[at : at + span] = bytes(span)
        else:
            token = rng.choice(TOKENS)
            out[at : at + len(token)] = token
    return bytes(out)


def value(rng: Random, depth: int = 3) -> Any:
    """Make a value of any kind that JSON, TOML or Python's keyword arguments could bring."""
    kinds = 10 if depth else 8
    kind = rng.randrange(kinds)
    if kind == 0:
        return rng.choice([0, 1, -1, 2, 7, 2**31, 2**63, -(2**63), 10**18, 10**40, 10**400])
    if kind == 1:
        return rng.choice([0.0, -0.0, 0.5, -1.5, 1e-320, 1e308, float("inf"), float("-inf"), float("nan")])
    if kind == 2:
        return rng.choice([True, False])
    if kind in (3, 4):
        return text(rng)
    if kind == 5:
        return None
    if kind == 6:
        return rng.randint(-5, 200)
    if kind == 7:
        return rng.uniform(-2, 2)
    if kind == 8:
        return [value(rng, depth - 1) for _ in range(rng.randint(0, 3))]
    return {text(rng): value(rng, depth - 1) for _ in range(rng.randint(0, 3))}


def text(rng: Random) -> str:
    """Make a text: a word of the domain, a number in words, or noise."""
    words = [
        "", "auto", "fedapa", "digits", "dirichlet:0.1", "0.6..1", "..", "1..", "nan..nan", "iid", "cpu", "cuda",
        "cuda:99", "stop", "kept", "own", "a.b:c", ".:x", "os:system", "1e400", "0x10", "-1", "1_000", " ", "\n", "\0",
        "name", "self", "½", "x" * 300, "dominant:n=1..9..0", "pathological:99", "fleet", "mlp:", "%s%n",
        "/dev/zero", "round-000001",
    ]  # fmt: skip
    if rng.random() < 0.8:
        return rng.choice(words)
    return "".join(chr(rng.choice([rng.randint(1, 127), rng.randint(128, 0xD7FF)])) for _ in range(rng.randint(0, 12)))
