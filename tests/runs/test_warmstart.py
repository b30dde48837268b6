"""A run that starts from an earlier one: what goes on, what begins anew, and what is refused."""

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from conftest import Interrupt, same, specification, visit
from program import fedgraft

import fedgraft as fg
from fedgraft.base.errors import UserError
from fedgraft.core.exchange import contact
from fedgraft.data.federation import Federation
from fedgraft.methods import METHODS
from fedgraft.runs.run import Run, plan

SETTINGS: dict[str, Any] = {"model": "mlp:5", "rounds": 2, "lr": 0.1, "batch_size": 4, "workers": 1, "progress": False}


def ended(fed: Federation, place: Path | None, method: str = "fedper", **more: Any) -> Run:
    return fg.run(method, fed, out=place, **{**SETTINGS, **more})


def planned(earlier: Run, method: str, fed: Federation | None = None) -> Run:
    """A run that would start from an earlier one, with another seed."""
    config = earlier.config.model_copy(update={"start_from": str(earlier.directory), "seed": 7})
    made = earlier.federation if fed is None else fed
    return plan(METHODS.make(method), made, config, None, given=True)


def renamed(fed: Federation, *names: str) -> Federation:
    """The first clients of a federation under these names."""
    return replace(fed, clients=fed.clients[: len(names)], names=names)


# ---- the same method goes on


@pytest.mark.parametrize("method", ["fedavg", "fedper", "ditto"])
def test_two_rounds_and_two_more_are_four(method: str, fed: Federation, tmp_path: Path) -> None:
    """Where a round depends on nothing but what was before: a constant rate, everybody, and all samples in a batch."""
    whole = ended(fed, None, method, rounds=4, batch_size=64)
    ended(fed, tmp_path / "half", method, batch_size=64)
    rest = ended(fed, tmp_path / "rest", method, batch_size=64, start_from=str(tmp_path / "half"))
    assert rest.server is not None
    assert whole.server is not None
    for name, tensor in whole.server.items():
        torch.testing.assert_close(rest.server[name], tensor, rtol=0, atol=1e-6)
    for client, state in whole._states.items():
        for name, tensor in state.items():
            torch.testing.assert_close(rest._states[client][name], tensor, rtol=0, atol=1e-6)
    assert rest.result["start"]["rounds"] == 2
    assert [record["round"] for record in rest.records] == [1, 2]


@pytest.mark.parametrize("method", ["fedapa", "apple", "scaffold", "ifca", "fedfomo", "pfedhn", "local"])
def test_server_and_clients_are_what_they_were(method: str, fed: Federation, tmp_path: Path) -> None:
    earlier = ended(fed, tmp_path / "a", method)
    start = planned(earlier, method).start
    assert start is not None
    assert earlier.server is not None
    assert start.server is not None
    assert start.server.keys() == dict(earlier.server).keys()
    assert all(torch.equal(start.server[name], tensor) for name, tensor in earlier.server.items())
    for client in range(4):
        assert all(torch.equal(start.clients[client][name], t) for name, t in earlier._states[client].items())


def test_a_client_that_was_not_there_begins_as_a_newcomer(fed: Federation, tmp_path: Path) -> None:
    """FedPer's extractor is common; its head is the one that everybody began with there."""
    earlier = ended(renamed(fed, "a", "b"), tmp_path / "two")
    assert earlier.server is not None
    run = planned(earlier, "fedper", renamed(fed, "b", "new", "a"))
    assert run.start is not None
    assert sorted(run.start.clients) == [0, 2]
    assert torch.equal(run.start.clients[0]["own"], earlier._states[1]["own"])
    first, layout = earlier.spec.initial(0), earlier.spec.layout(0)
    expected = layout.put(first, earlier.server["weights/0"], "extractor", "average")
    assert torch.equal(run.spec.initial(1), expected)
    assert "2 clients go on from there; new: new" in run.notes[0]
    more = fg.run("fedper", renamed(fed, "b", "new", "a"), start_from=str(tmp_path / "two"), **SETTINGS)
    assert more.result["start"]["clients"] == ["b", "a"]


def test_a_client_that_never_took_part_begins_as_a_newcomer(fed: Federation, tmp_path: Path) -> None:
    earlier = ended(fed, tmp_path / "a", rounds=1, participation=0.5)
    start = planned(earlier, "fedper").start
    assert start is not None
    assert sorted(start.clients) == list(earlier.records[0]["participants"])


def test_a_server_that_knows_its_clients_does_not_go_on_with_others(fed: Federation, tmp_path: Path) -> None:
    """All begin with FedAPA's mean extractor then, and that is said."""
    earlier = ended(renamed(fed, "a", "b"), tmp_path / "two", "fedapa")
    assert earlier.server is not None
    run = planned(earlier, "fedapa", renamed(fed, "a", "c"))
    assert run.start is not None
    assert run.start.server is None
    assert not run.start.clients
    assert "keeps something of each client, and they are not the same (new: c; gone: b)" in run.notes[0]
    extractor = run.spec.layout(0).take(run.spec.initial(0), "extractor", "average")
    torch.testing.assert_close(extractor, earlier.server["bank"].mean(0))


# ---- another method begins with the common model


def test_another_method_begins_with_the_common_model(fed: Federation, tmp_path: Path) -> None:
    earlier = ended(fed, tmp_path / "a", "fedavg")
    assert earlier.server is not None
    run = planned(earlier, "ditto")
    assert run.start is not None
    assert run.start.server is None
    common = earlier.server["weights/0"]
    assert torch.equal(run.spec.initial(0), common)
    assert torch.equal(run.method.setup(run.spec)["weights/0"], common)


@pytest.mark.parametrize("name", [name for name in METHODS if not METHODS[name].refuses_start])
def test_every_client_of_every_method_begins_with_what_is_given(name: str, fed: Federation) -> None:
    method, spec = METHODS.make(name), specification(fed)
    given = torch.linspace(-1, 1, spec.layout(0).size)
    spec = replace(spec, begun=(given,))
    server = method.setup(spec)
    for number in range(spec.clients):
        client = visit(fed, spec, number)
        client.counted = 0  # it only receives
        contact(method, client)
        received = method.assemble(client, method.dispatch(server, [number])[number].copy())
        torch.testing.assert_close(received, given)


def test_one_may_start_from_a_run_that_was_started_so(fed: Federation, tmp_path: Path) -> None:
    """FedPer's common model has the head that was everybody's first, in whichever run that was."""
    first = ended(fed, tmp_path / "a", "fedavg")
    ended(fed, tmp_path / "b", "fedper", start_from=str(tmp_path / "a"))
    last = ended(fed, tmp_path / "c", "ditto", start_from=str(tmp_path / "b"))
    assert first.server is not None
    head = last.spec.layout(0).span("head")
    assert torch.equal(last.spec.initial(0)[head], first.server["weights/0"][head])


# ---- what decides the result


def test_a_warm_started_run_goes_on_without_the_earlier_one(fed: Federation, tmp_path: Path) -> None:
    ended(fed, tmp_path / "a")
    more = {"rounds": 4, "start_from": str(tmp_path / "a"), "checkpoint_every": 1}
    whole = ended(fed, tmp_path / "whole", **more)
    for name, after in (("early", 0), ("late", 3)):
        with pytest.raises(KeyboardInterrupt):
            fg.run("fedper", fed, out=tmp_path / name, watchers=[Interrupt(max(1, after))], **{**SETTINGS, **more})
    shutil.rmtree(tmp_path / "early" / "checkpoints")  # as if it had been killed in its first round
    shutil.rmtree(tmp_path / "a")
    for name in ("early", "late"):
        same(whole, fg.resume(tmp_path / name, fed))
    assert fg.load(tmp_path / "late", fed).start is not None


def test_another_start_is_another_run(fed: Federation, tmp_path: Path) -> None:
    earlier = ended(fed, tmp_path / "a")
    first = planned(earlier, "fedper").identity
    assert planned(earlier, "fedper").identity.digest == first.digest
    shutil.rmtree(tmp_path / "a")
    other = planned(ended(fed, tmp_path / "a", seed=5), "fedper").identity
    assert other.digest["start"] != first.digest["start"]
    assert not other.decides_like(first)
    cold = ended(fed, tmp_path / "cold")
    assert "start" not in cold.identity.digest
    assert "start" not in json.loads((tmp_path / "cold" / "result.json").read_text())


def test_a_damaged_start_is_refused(fed: Federation, tmp_path: Path) -> None:
    ended(fed, tmp_path / "a")
    ended(fed, tmp_path / "b", start_from=str(tmp_path / "a"))
    file = tmp_path / "b" / "start.safetensors"
    data = bytearray(file.read_bytes())
    data[-3] ^= 1
    file.write_bytes(bytes(data))
    with pytest.raises(UserError, match="damaged"):
        fg.load(tmp_path / "b", fed)


# ---- what cannot be


def test_what_cannot_be_started_from(fed: Federation, tmp_path: Path) -> None:
    place = ended(fed, tmp_path / "a", "local").directory
    assert place is not None
    for method, more, said in (
        ("fedavg", {}, "has no common model"),
        ("local", {"model": "mlp:6"}, "same model (--model mlp:5)"),
        ("local", {"epsilon": 3.0, "delta": 1e-3, "sample_clip": 1.0}, "differential privacy"),
    ):
        with pytest.raises(UserError) as error:
            ended(fed, tmp_path / "b", method, start_from=str(place), **more)
        assert said in str(error.value)
    wider = Federation("wide", fg.own_data([fg.Site(*_arrays(8))] * 1).clients, fed.task, "own", 0)
    with pytest.raises(UserError, match="another shape"):
        ended(wider, tmp_path / "b", "local", start_from=str(place))
    ended(fed, tmp_path / "none", checkpoint_every=0)
    with pytest.raises(UserError, match="kept no checkpoint"):
        ended(fed, tmp_path / "b", start_from=str(tmp_path / "none"))
    ended(fed, tmp_path / "cut", checkpoint_every=1)
    older, newest = sorted((tmp_path / "cut" / "checkpoints").glob("round-*/server.safetensors"))
    newest.write_bytes(newest.read_bytes()[:40])
    notes = ended(fed, tmp_path / "c", start_from=str(tmp_path / "cut")).notes
    assert any(f"{newest.parent.name} was altered or cut short" in note for note in notes)
    older.unlink()
    with pytest.raises(
        UserError, match=r"no checkpoint that is whole \(.* lacks server.safetensors; there is no older"
    ):
        ended(fed, tmp_path / "b", start_from=str(tmp_path / "cut"))
    with pytest.raises(UserError, match="holds several runs"):
        ended(fed, tmp_path / "b", start_from=str(tmp_path))
    for method in ("pfedhn", "ifca"):
        with pytest.raises(UserError, match="cannot start from the model"):
            ended(fed, tmp_path / "b", method, start_from=str(ended(fed, tmp_path / method).directory))
    assert not (tmp_path / "b").exists()


def _arrays(dims: int) -> tuple[Any, ...]:
    x, y = np.random.default_rng(0).standard_normal((12, dims)).astype(np.float32), np.arange(12) % 3
    return x, y, x, y


def _table(rows: int, shift: float, words: tuple[str, ...]) -> str:
    lines = [f"{n % 7 + shift},{words[n % len(words)]},{'yes' if n % 3 else 'no'}" for n in range(rows)]
    return "\n".join(["dose,unit,ill", *lines]) + "\n"


def test_tables_are_prepared_as_they_were(tmp_path: Path) -> None:
    """New rows have another mean and a new word; the network sees them as the rows before."""
    pytest.importorskip("pandas")
    old, new = tmp_path / "old", tmp_path / "new"
    for folder, rows, shift, words in ((old, 30, 0.0, ("mg", "ml")), (new, 42, 5.0, ("mg", "ml", "drops"))):
        folder.mkdir()
        for site in "ab":
            (folder / f"{site}.csv").write_text(_table(rows, shift, words))
    told = {**SETTINGS, "target": "ill"}
    first = fg.run("fedper", dataset=str(old), out=tmp_path / "first", **told)
    second = fg.run("fedper", dataset=str(new), out=tmp_path / "second", start_from=str(tmp_path / "first"), **told)
    assert second.federation.fitted == first.federation.fitted
    assert fg.load(tmp_path / "second").federation.fitted == first.federation.fitted
    for site in "ab":
        (new / f"{site}.csv").write_text(_table(42, 5.0, ("mg",)).replace("dose", "amount"))
    with pytest.raises(UserError, match="dose"):
        fg.run("fedper", dataset=str(new), start_from=str(tmp_path / "first"), **told)


@pytest.mark.slow
def test_the_command_line(tmp_path: Path) -> None:
    common = ["--dataset", "digits", "--clients", "3", "--rounds", "1", "--model", "mlp:4", "--workers", "1"]
    first = fedgraft("run", "fedavg", *common, "--out", str(tmp_path / "a"))
    assert first.returncode == 0, first.stderr
    second = fedgraft("run", "ditto", *common, "--start-from", "a", "--out", "b", cwd=tmp_path)
    assert second.returncode == 0, second.stderr
    assert "starts from the common model of a (fedavg, 1 round)" in second.stderr
    wrong = fedgraft("compare", "ditto", *common, "--seeds", "1", "--start-from", "c", "--out", "d", cwd=tmp_path)
    assert wrong.returncode == 2
    assert "c holds no run to start from" in wrong.stderr
    assert not (tmp_path / "d").exists()
