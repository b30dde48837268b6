"""The fuzzers in a small dose, and that they would notice."""

import time
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from hypothesis import strategies as st

from fedgraft.base.errors import UserError
from trials.fuzz import Reader, Target, campaign
from trials.fuzz.targets import TARGETS

pytestmark = pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="memory is read from /proc")


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("name", TARGETS)
def test_a_hundred_cases_find_nothing(name: str) -> None:
    findings = campaign(TARGETS[name], cases=100, seed=20)
    assert not findings.found, "\n".join(findings.found)
    assert findings.taken + findings.refused.total() == findings.cases >= 100


def crash(case: int, _: Path) -> None:
    raise KeyError("what a stranger wrote")


def run_code(case: int, _: Path) -> None:
    exec("1 + 1")


def ask_for_much(case: int, _: Path) -> None:
    torch.zeros(2**33)


def hang(case: int, _: Path) -> None:
    while True:
        time.sleep(0.01)


def prattle(case: int, _: Path) -> None:
    raise UserError("first\nsecond")


@pytest.mark.parametrize(
    ("attempt", "words"),
    [
        (crash, "KeyError"), (run_code, "led to exec"), (ask_for_much, "memory"), (prattle, "not one sentence"),
        (hang, "HangError"),
    ],
)  # fmt: skip
def test_what_ought_to_be_found_is_found(
    attempt: Callable[[int, Path], None], words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("trials.fuzz.SECONDS", 0.1)
    [report] = campaign(planted(attempt), cases=5, kept=tmp_path).found
    assert words in report
    assert "case=0" in report, "the least case"


def test_what_was_found_is_the_least_that_shows_it_and_is_tried_again(tmp_path: Path) -> None:
    def dislike(case: int, _: Path) -> None:
        assert case < 1000, "too large"
        if case % 2:
            raise UserError("odd")

    first = campaign(planted(dislike), cases=300, kept=tmp_path)
    assert "case=1000" in first.found[0]
    assert first.taken
    assert first.refused["odd"]
    again = campaign(planted(dislike), cases=1, seed=1, kept=tmp_path)
    assert "case=1000" in again.found[0]
    assert not campaign(planted(dislike), cases=1, seed=1, kept=tmp_path / "elsewhere").found


def test_several_faults_are_told_apart(tmp_path: Path) -> None:
    def two_faults(case: int, _: Path) -> None:
        if case > 3000:
            raise KeyError("large")
        if case > 10:
            raise IndexError("not so large")

    reports = campaign(planted(two_faults), cases=300, kept=tmp_path).found
    assert len(reports) == 2
    assert {"KeyError" in report and "case=3001" in report for report in reports} == {True, False}
    assert {"IndexError" in report and "case=11" in report for report in reports} == {True, False}


def test_a_seed_decides_the_cases(tmp_path: Path) -> None:
    def cases(seed: int) -> list[int]:
        drawn: list[int] = []
        campaign(planted(lambda case, _: drawn.append(case)), cases=5, seed=seed, kept=tmp_path)
        return drawn

    assert cases(3) == cases(3) != cases(4)


def planted(attempt: Callable[[int, Path], object]) -> Target:
    return Target("planted", "a fault to be found", lambda: Reader(st.integers(0, 4000), attempt))
