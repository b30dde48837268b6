"""SECURITY.md says who sees what: it is held against what really crosses."""

import re
from collections.abc import Mapping
from pathlib import Path

import pytest
from conftest import specification

from fedgraft.core.client import ClientId
from fedgraft.core.exchange import Failure, Outcome
from fedgraft.core.message import Message
from fedgraft.core.rounds import Participation, rounds
from fedgraft.data.federation import Federation
from fedgraft.engines.local import LocalEngine
from fedgraft.methods import METHODS

PAGE = (Path(__file__).parents[1] / "SECURITY.md").read_text()
ROWS = {
    cells[0]: cells[1:] for line in PAGE.splitlines() if len(cells := [c.strip() for c in line.split("|")][1:-1]) == 3
}


def names(cell: str) -> set[str]:
    return set() if cell == "nothing" else set(re.sub(r" \([^)]*\)", "", cell).split(", "))


class Tap(LocalEngine):
    """Notes the names of everything that crosses."""

    def listen(self) -> None:
        self.up, self.down = set[str](), set[str]()

    def train(self, round: int, messages: Mapping[ClientId, Message]) -> Mapping[ClientId, Outcome | Failure]:
        outcomes = super().train(round, messages)
        self.down.update(*messages.values())
        self.up.update(*(outcome.reply for outcome in outcomes.values() if isinstance(outcome, Outcome)))
        return outcomes


@pytest.mark.parametrize("name", METHODS)
def test_the_table_lists_what_crosses(fed: Federation, name: str) -> None:
    method, spec = METHODS[name](), specification(fed, rounds=2, epochs=1)
    engine = Tap(method, spec, fed.clients)
    engine.listen()
    list(rounds(method, method.setup(spec), engine, Participation(), evaluate_every=9))
    up, down = ROWS[name]
    assert names(up) == engine.up
    assert names(down) == engine.down
    if method.shared() == "extractor":
        assert "(extractor)" in up


def test_the_table_has_no_method_that_is_gone() -> None:
    first = PAGE.index("| local |")
    listed = [line.split("|")[1].strip() for line in PAGE[first:].partition("\n\n")[0].splitlines()]
    assert listed == list(METHODS)


def test_every_entry_is_explained() -> None:
    explained = {word for entry in ROWS for word in entry.split(", ")}
    used = {name for method in METHODS for cell in ROWS[method] for name in names(cell)}
    assert used <= explained
