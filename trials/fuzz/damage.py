"""Damage for bytes and values, as Hypothesis strategies: what disks, networks, editors and strangers do to a file."""

from hypothesis import strategies as st
from hypothesis.strategies import DrawFn, SearchStrategy

TOKENS = [
    b"", b"\0", b"\xff" * 8, b"nan", b"inf", b"-1", b"1e999", b"1" * 5000, b"9" * 30, b"null", b"true", b"{}", b"[]",
    b"[" * 20_000, b'{"a":' * 20_000, b'"', b"'''", b"\n", b"\r\n", b"\xed\xa0\x80", b"\xef\xbb\xbf",
    b"../../etc/passwd", b"__import__('os').system('true')", b"cos\nsystem\n(S'true'\ntR.", b"\x80\x04\x95",
]  # fmt: skip
WORDS = [
    "", "auto", "fedapa", "digits", "dirichlet:0.1", "0.6..1", "..", "1..", "nan..nan", "iid", "cpu", "cuda",
    "cuda:99", "stop", "kept", "own", "a.b:c", ".:x", "os:system", "1e400", "0x10", "-1", "1_000", " ", "\n", "\0",
    "name", "self", "½", "x" * 300, "dominant:n=1..9..0", "pathological:99", "fleet", "mlp:", "%s%n",
    "/dev/zero", "round-000001",
]  # fmt: skip
INTEGERS = [0, 1, -1, 2, 7, 2**31, 2**63, -(2**63), 10**18, 10**40, 10**400]
FLOATS = [0.0, -0.0, 0.5, -1.5, 1e-320, 1e308, float("inf"), float("-inf"), float("nan")]


def texts() -> SearchStrategy[str]:
    """A word of the domain, a number in words, or noise."""
    return st.sampled_from(WORDS) | st.text(max_size=12)


def values() -> SearchStrategy[object]:
    """A value of any kind that JSON, TOML or Python's keyword arguments could bring."""
    numbers = st.sampled_from(INTEGERS) | st.sampled_from(FLOATS) | st.integers(-5, 200) | st.floats(-2, 2)
    return st.recursive(
        st.none() | st.booleans() | numbers | texts(),
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts(), inner, max_size=3),
        max_leaves=6,
    )


def rarely() -> SearchStrategy[bool]:
    """True in one case of four."""
    return st.sampled_from([False, False, False, True])


@st.composite
def damaged(draw: DrawFn, data: bytes, most: int = 5) -> bytes:
    """Return ``data`` hit once or a few times."""
    out = bytearray(data)
    for _ in range(draw(st.sampled_from([1, 1, 1, min(2, most), most]))):
        at = draw(st.integers(0, len(out)))
        span = draw(st.sampled_from([1, 2, 4, 8, 64, len(out) - at]))
        kind = draw(st.sampled_from(["flip", "cut", "remove", "noise", "insert", "repeat", "zeros", "overwrite"]))
        if kind == "flip" and at < len(out):
            out[at] ^= 1 << draw(st.integers(0, 7))
        elif kind == "cut":
            del out[at:]
        elif kind == "remove":
            del out[at : at + span]
        elif kind == "noise":
            out[at : at + span] = draw(st.binary(max_size=64))
        elif kind == "insert":
            out[at:at] = draw(st.sampled_from(TOKENS))
        elif kind == "repeat":
            out[at:at] = out[at : at + span]
        elif kind == "zeros":
            out[at : at + span] = bytes(span)
        elif kind == "overwrite":
            token = draw(st.sampled_from(TOKENS))
            out[at : at + len(token)] = token
    return bytes(out)
