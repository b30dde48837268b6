"""A round below the engine's quorum is undone, waited for and repeated: as if it had not been."""

from collections.abc import Mapping, Sequence

import pytest
import torch
from conftest import simulate, specification

from fedgraft.base.errors import UserError
from fedgraft.core.client import ClientId
from fedgraft.core.evaluation import Scores
from fedgraft.core.exchange import Failure, Outcome
from fedgraft.core.message import Message
from fedgraft.core.rounds import Participation, Round, rounds
from fedgraft.data.federation import Federation
from fedgraft.engines.local import LocalEngine
from fedgraft.methods import METHODS
from fedgraft.testing import state_of


class Unsteady(LocalEngine):
    """A real engine, some of whose clients are away for a while."""

    quorum = 3
    away: Sequence[set[ClientId]] = ()
    """Who is away from the second round on, try by try."""

    def begin(self) -> "Unsteady":
        self.tries, self.waited, self.tested = 0, list[tuple[int, int, str]](), list[int]()
        return self

    def train(self, round: int, messages: Mapping[ClientId, Message]) -> Mapping[ClientId, Outcome | Failure]:
        outcomes = super().train(round, messages)
        missing = self.away[self.tries] if round == 1 and self.tries < len(self.away) else set()
        return {c: Failure("it is away") if c in missing else outcome for c, outcome in outcomes.items()}

    def evaluate(self, round: int, messages: Mapping[ClientId, Message]) -> Mapping[ClientId, Scores]:
        self.tested.append(round)
        return super().evaluate(round, messages)

    def wait(self, count: int, round: int, reason: str) -> None:
        self.waited.append((count, round, reason))
        self.tries += 1


def unsteady(
    fed: Federation, name: str, *away: set[ClientId], share: float = 1.0
) -> tuple[list[Round], dict[str, torch.Tensor], Unsteady]:
    method, spec = METHODS[name](), specification(fed, rounds=3, epochs=1)
    server = method.setup(spec)
    with Unsteady(method, spec, fed.clients).begin() as engine:
        engine.away = away
        done = list(rounds(method, server, engine, Participation(share, share)))
    return done, state_of(server, engine), engine


@pytest.mark.parametrize("name", ["fedavg", "fedapa", "apple", "scaffold", "dbe", "pfedhn"])
def test_it_ends_in_the_bits_of_a_run_in_which_nobody_was_away(fed: Federation, name: str) -> None:
    done, state, engine = unsteady(fed, name, {0, 2}, {1, 3, 2})
    plain, server, steady = simulate(METHODS[name](), fed, specification(fed, rounds=3, epochs=1))
    expected = state_of(server, steady)
    assert state.keys() == expected.keys()
    assert all(torch.equal(tensor, state[key]) for key, tensor in expected.items())
    assert [this.number for this in done] == [0, 1, 2]
    assert [this.test["trained"].pooled for this in done] == [this.test["trained"].pooled for this in plain]
    assert [(count, number) for count, number, _ in engine.waited] == [(3, 1), (3, 1)]
    assert engine.tested == [0, 1, 2], "a round that is undone is not tested"
    assert engine.waited[0][2].startswith(
        f"round 2 had 2 of the 3 answers that it needs: {METHODS[name].name}, round 2: it is away; "
    )


def test_who_answers_in_one_of_two_waves_was_heard(fed: Federation) -> None:
    done, _, engine = unsteady(fed, "dbe", {0})
    assert not engine.waited, "three of four were heard"
    assert done[1].heard == {1, 2, 3}
    assert done[0].accepted > len(done[0].heard) == 4, "its first round has two waves"


def test_a_small_round_needs_all_of_it(fed: Federation) -> None:
    picked = Participation(0.5, 0.5).pick(specification(fed).seed, 1, 4)
    _, _, engine = unsteady(fed, "fedavg", {picked[0]}, share=0.5)
    assert [reason.partition(" answers")[0] for _, _, reason in engine.waited] == ["round 2 had 1 of the 2"]


def test_where_everybody_is_at_home_nobody_is_waited_for(fed: Federation) -> None:
    with pytest.raises(UserError, match="round 2 had 0 of the 3 answers that it needs"):
        LocalEngine(METHODS["fedavg"](), specification(fed), fed.clients).wait(
            3, 1, "round 2 had 0 of the 3 answers that it needs"
        )
