"""States in memory and on disk: only those who were met take room, and nothing is lost."""

import gc
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from conftest import simulate, specification
from safetensors.torch import load

from fedgraft import run
from fedgraft.base import disk
from fedgraft.core.rounds import Participation, rounds
from fedgraft.core.state import State
from fedgraft.data import digest, federation
from fedgraft.data.federation import Federation, federate
from fedgraft.data.members import Members
from fedgraft.engines.local import LocalEngine
from fedgraft.engines.states import First, Shelf, States
from fedgraft.methods.ditto import Ditto
from fedgraft.methods.fedavg import FedAvg
from fedgraft.methods.local import Local

STATE: State = {
    "own": torch.arange(5.0), "joined": torch.ones(()), "many": torch.arange(6).view(2, 3),
    "flags": torch.tensor([True, False]), "empty": torch.zeros(0), "half": torch.tensor([1.5], dtype=torch.float16),
}  # fmt: skip


def same(one: State, two: State) -> bool:
    return list(one) == list(two) and all(
        torch.equal(one[name], two[name]) and one[name].dtype == two[name].dtype for name in one
    )


def test_what_is_put_on_the_shelf_is_found_on_it(tmp_path: Path) -> None:
    shelf = Shelf(str(tmp_path))
    shelf[3] = STATE
    shelf[1] = {"own": torch.zeros(2)}
    shelf[1] = {"own": torch.ones(3), "v": torch.ones(1)}
    assert sorted(shelf) == [1, 3]
    assert same(shelf[3], STATE)
    assert same(shelf[1], {"own": torch.ones(3), "v": torch.ones(1)})
    shelf[3]["own"].zero_()
    assert same(shelf[3], STATE), "what is read is a copy"
    del shelf[3]
    with pytest.raises(KeyError):
        shelf[3]
    assert not list(tmp_path.iterdir()), "the files have no names, and cannot be left behind"


def test_a_shelf_that_is_copied_keeps_what_it_had_and_old_states_make_room(tmp_path: Path) -> None:
    """Files of 1,000 bytes, states of 400: what nobody can reach any more is given back to the disk."""
    shelf = Shelf(str(tmp_path), shard=1000)
    shelf[0] = {"own": torch.zeros(100)}
    before = shelf.copy()
    opened = Path("/proc/self/fd")
    open_files = len(list(opened.iterdir())) if opened.exists() else None
    for number in range(50):
        shelf[number % 3] = {"own": torch.full((100,), float(number))}
    assert [shelf[client]["own"][0].item() for client in range(3)] == [48, 49, 47]
    assert before[0]["own"].tolist() == [0.0] * 100
    assert shelf.live == 1200
    gc.collect()
    if open_files is not None:
        assert len(list(opened.iterdir())) - open_files < 8


def test_states_of_clients_that_were_never_met_are_as_they_began(fed: Federation) -> None:
    spec = specification(fed)
    states = States(First(FedAvg(), spec))
    assert not states.met
    assert list(states) == [0, 1, 2, 3]
    assert states[0]["own"] is states[3]["own"], "all have the same start"
    apart = First(Local(), spec)
    assert Local.independent_start == (not torch.equal(apart[0]["own"], apart[1]["own"]))
    with pytest.raises(KeyError):
        apart[4]


@pytest.mark.parametrize("method", [FedAvg(), Ditto()])
def test_bits_do_not_depend_on_where_states_lie(fed: Federation, method: FedAvg | Ditto) -> None:
    spec, found = specification(fed, rounds=3), []
    for storage in ("memory", "disk"):
        with LocalEngine(method, spec, fed.clients, storage=storage) as engine:  # type: ignore[arg-type]
            server = method.setup(spec)
            done = list(rounds(method, server, engine, Participation(0.5, 0.5)))
        found.append((server, engine.states, done))
    (one, memory, _), (two, shelf, _) = found
    assert sorted(memory.met) == sorted(shelf.met)
    assert 2 <= len(memory.met) <= 4
    assert isinstance(shelf.met, Shelf)
    assert same(dict(one), dict(two))
    assert all(same(memory[client], shelf[client]) for client in range(4))


def test_a_run_on_disk_is_the_run_in_memory_and_leaves_the_same_checkpoint(tmp_path: Path) -> None:
    settings = {"clients": 6, "rounds": 2, "participation": "0.5", "workers": 1, "progress": False}
    one = run("ditto", out=tmp_path / "memory", **settings)
    two = run("ditto", out=tmp_path / "disk", storage="disk", **settings)
    assert isinstance(two.federation.clients, Members)  # type: ignore[union-attr]
    assert all(same(one._states[client], two._states[client]) for client in range(6))
    places = [tmp_path / name / "checkpoints" / "round-000002" / "clients.safetensors" for name in ("memory", "disk")]
    first, second = (load(place.read_bytes()) for place in places)
    assert sorted(first) == sorted(second)
    assert {int(name.partition("/")[0]) for name in first} == {
        client for record in one.records for client in record["participants"]
    }
    assert one.records[-1]["trained"] == two.records[-1]["trained"]


def test_tensors_are_written_one_by_one_as_safetensors_reads_them(tmp_path: Path) -> None:
    def entries() -> Iterator[tuple[str, torch.Tensor]]:
        return iter(STATE.items())

    disk.write_tensors(tmp_path / "some.safetensors", entries)
    found = load((tmp_path / "some.safetensors").read_bytes())
    assert same({name: found[name] for name in STATE}, STATE)


def test_the_data_of_members_are_those_of_a_tuple_of_clients() -> None:
    plain, lazy = (federate("digits", 7, "dirichlet:0.3", 3, validation=0.2, on_disk=disk) for disk in (False, True))
    assert isinstance(lazy.clients, Members)
    assert plain.samples == lazy.samples
    assert plain.fingerprints == lazy.fingerprints
    assert [len(each.test) for each in lazy.clients[2:4]] == [len(each.test) for each in plain.clients[2:4]]
    with pytest.raises(IndexError):
        lazy.clients[7]


def test_of_many_clients_a_few_are_tested_the_same_in_every_round(fed: Federation) -> None:
    spec = specification(fed, rounds=3)
    with LocalEngine(FedAvg(), spec, fed.clients) as engine:
        server = FedAvg().setup(spec)
        done = list(rounds(FedAvg(), server, engine, Participation(), evaluate_clients=2))
    tested = [[c for c, count in enumerate(this.test["trained"].tested) if count] for this in done]
    assert tested[0] == tested[1] == tested[2]
    assert len(tested[0]) == 2
    assert not any(this.refused for this in done)
    every, whole, _ = simulate(FedAvg(), fed, spec)
    assert torch.equal(server["weights/0"], whole["weights/0"]), "whom we look at changes nothing"
    for client in tested[0]:
        assert done[-1].test["trained"].per_client[client] == every[-1].test["trained"].per_client[client]


def test_very_many_clients_have_one_fingerprint_and_the_same_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    """With the limit at three, four clients are many: what tells them from others is the same in memory and on disk."""
    few = federate("digits", 4, "dirichlet:0.5", seed=1)
    monkeypatch.setattr(federation, "MANY", 3)
    many, mapped, other = (
        federate("digits", 4, "dirichlet:0.5", seed=seed, on_disk=on_disk)
        for seed, on_disk in ((1, False), (1, True), (2, False))
    )
    counted, known = many.counts(), few.counts()
    assert counted is not None
    assert known is not None
    assert counted.tolist() == known.tolist()
    assert len(few.fingerprints) == 4
    assert many.fingerprints == mapped.fingerprints
    assert len(many.fingerprints) == 1
    assert digest.difference(many.fingerprints, mapped.fingerprints, many.names) is None
    told = digest.difference(many.fingerprints, other.fingerprints, many.names)
    assert told == "the samples, or who has them, are others"
    assert all(
        torch.equal(one.train.inputs, two.train.inputs) and torch.equal(one.test.labels, two.test.labels)
        for one, two in zip(few.clients, mapped.clients, strict=True)
    )
