"""The fuzzers in a small dose, and that they would notice."""

import time
from collections.abc import Callable
from pathlib import Path
from random import Random

import pytest
import torch

from fedgraft.base.errors import UserError
from trials.fuzz import Attempt, Target, campaign
from trials.fuzz.targets import TARGETS

pytestmark = pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="memory is read from /proc")


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("name", TARGETS)
def test_a_few_hundred_cases_find_nothing(name: str) -> None:
    findings = campaign(TARGETS[name], cases=200, seed=20)
    assert not findings.found, "\n".join(findings.distinct().values())
    assert findings.taken + findings.refused.total() == 200


def crash(rng: Random, _: Path) -> None:
    raise KeyError("what a stranger wrote")


def run_code(rng: Random, _: Path) -> None:
    exec("1 + 1")


def ask_for_much(rng: Random, _: Path) -> None:
    torch.zeros(2**33)


def hang(rng: Random, _: Path) -> None:
    while True:
        time.sleep(0.01)


def prattle(rng: Random, _: Path) -> None:
    raise UserError("first\nsecond")


@pytest.mark.parametrize(
    ("attempt", "words"),
    [(crash, "KeyError"), (run_code, "led to exec"), (ask_for_much, "memory"), (prattle, "not one sentence")],
)
def test_what_ought_to_be_found_is_found(attempt: Attempt, words: str) -> None:
    findings = campaign(target(lambda: attempt), cases=2)
    assert list(findings.found) == [0, 1]
    assert words in findings.found[0]
    assert len(findings.distinct()) == 1


def test_a_case_that_hangs_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("trials.fuzz.SECONDS", 0.1)
    assert "HangError" in campaign(target(lambda: hang), cases=1).found[0]


def test_a_case_can_be_repeated() -> None:
    drawn: list[float] = []

    def draw(rng: Random, _: Path) -> None:
        drawn.append(rng.random())

    campaign(target(lambda: draw), cases=5, seed=3)
    campaign(target(lambda: draw), cases=5, seed=3, only=4)
    campaign(target(lambda: draw), cases=5, seed=4, only=4)
    assert len(set(drawn[:5])) == 5
    assert drawn[5] == drawn[4] != drawn[6]


def target(prepare: Callable[[], Attempt]) -> Target:
    return Target("planted", "a fault to be found", prepare)
