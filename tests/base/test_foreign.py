"""What others wrote is shown in one line, short, and without effect on a terminal."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedgraft.base.foreign import LIMIT, one_line, plain
from fedgraft.core.rounds import Refusal


def test_ordinary_text_is_as_before() -> None:
    for text in ("", "its samples are features of [7], 3 % of µ", "größer als 日本 'x' \\n"):
        assert plain(text) == one_line(text) == text


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("late\nfedgraft: done: 0 refusals", "late\\nfedgraft: done: 0 refusals"),
        ("a\r\x1b[2Kb", "a\\r\\x1b[2Kb"),
        ("a\u2028b\u202ec\x85", "a\\u2028b\\u202ec\\x85"),
        ("\ud800", "\\ud800"),
    ],
)
def test_what_a_terminal_or_a_reader_of_lines_would_act_on_is_escaped(text: str, shown: str) -> None:
    assert plain(text) == shown


def test_a_long_text_is_cut_and_says_so() -> None:
    assert plain("x" * 50_000_000) == "x" * LIMIT + "... (cut: 50,000,000 characters)"
    assert plain("x" * LIMIT) == "x" * LIMIT


@given(st.text(max_size=2000), st.integers(0, 600))
def test_whatever_it_is_it_is_short_printable_and_one_line(text: str, limit: int) -> None:
    shown = plain(text, limit)
    assert shown.isprintable()
    assert len(shown) <= limit + 40
    assert len(shown.encode()) < 4 * (limit + 40)
    assert len(shown.splitlines()) <= 1


def test_the_reason_of_a_refusal_is_plain_whoever_gave_it() -> None:
    kept = Refusal(3, "fedavg, round 2: " + "evil\nrefused: client 0: " * 10**5)
    assert "\n" not in kept.reason
    assert len(kept.reason) < LIMIT + 40
