"""The attacks that need no process of their own, once each, and that a breach would be noticed."""

from pathlib import Path
from random import Random

import pytest

from trials.attack import Attack, BreachError, attacks, carry_out

IN_PROCESS = [name for name, one in attacks().items() if not one.processes]


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("name", IN_PROCESS)
def test_an_attack_does_no_harm(name: str) -> None:
    outcome = carry_out(attacks()[name], [0])
    assert not outcome.breaches, outcome.breaches[0]


def harm(_: Path, __: Random) -> str:
    raise BreachError("the result is gone")


def test_harm_and_surprises_are_breaches_and_stand_in_the_table() -> None:
    outcome = carry_out(Attack("a break-in", "nothing happens", harm), range(3))
    assert (outcome.tried, len(outcome.breaches)) == (3, 3)
    assert "**3 breaches**" in outcome.row()
    assert "the result is gone" in outcome.breaches[0]
    surprise = carry_out(Attack("another", "nothing", lambda _, rng: str(1 / (rng.random() * 0))), [0])
    assert "ZeroDivisionError" in surprise.breaches[0]
