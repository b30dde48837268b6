"""What can go wrong between machines: every fault is named, counted, and leaves everybody's state valid."""

import json
import shutil
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from conftest import blobs
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Error, Message, MetricRecord
from torch import Tensor

from fedgraft.base.errors import UserError
from fedgraft.core.client import Client
from fedgraft.core.evaluation import POINTS
from fedgraft.core.message import Message as Reply
from fedgraft.data.federation import Federation
from fedgraft.deploy.check import Check
from fedgraft.engines.flower.server import StoppedError
from fedgraft.methods import METHODS
from fedgraft.methods.scaffold import SCAFFOLD
from fedgraft.runs.run import Run, resume, run
from trials.federated import FAST, Federated, Handler, InProcessGrid

ROUNDS = 4
SETTINGS: dict[str, Any] = {
    "model": "mlp:5", "rounds": ROUNDS, "training": {"lr": 0.1, "epochs": 1, "batch_size": 4},
}  # fmt: skip
RARELY: dict[str, Any] = {**SETTINGS, "evaluate_every": 2}
"""For faults in training: round 2 is theirs, and it and the last are tested."""
SECRET = "patient 4711"


@dataclass(frozen=True)
class Odd(SCAFFOLD):
    """Client 2 spoils its second round; SCAFFOLD, so that a private state that went on alone would show."""

    name = "odd"
    how: str = ""

    def reply(self, client: Client, received: Tensor, trained: Tensor) -> Reply:
        good = super().reply(client, received, trained)
        if (client.id, client.round) != (2, 1) or not self.how:
            return good
        if self.how == "raise":
            raise ZeroDivisionError(SECRET)
        weights = good["delta_y"]
        spoiled = {
            "nan": torch.full_like(weights, torch.nan),
            "shape": weights[:-1],
            "type": weights.to(torch.float64),
            "size": torch.zeros(50_000_000),
        }[self.how]
        return Reply(**{**good, "delta_y": spoiled})


@pytest.fixture(autouse=True)
def odd(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(METHODS._added, "odd", Odd)


def begin(
    tmp_path: Path, fed: Federation, how: str = "", *, settings: dict[str, Any] = RARELY, **rules: float
) -> Federated:
    return Federated(tmp_path, fed, {"method": "odd", "params": {"how": how}, **settings}, replace(FAST, **rules))


@cache
def undisturbed() -> Run:
    """What one machine makes of the federation when nothing goes wrong."""
    return run(Odd(), blobs(), workers=1, **SETTINGS)


def assert_same_bits(federated: Federated, done: Run, other: Run) -> None:
    assert done.server is not None
    assert other.server is not None
    for name, tensor in other.server.items():
        assert torch.equal(done.server[name], tensor), name
    for client, site in enumerate(federated.names):
        for name, tensor in other._states[client].items():
            assert torch.equal(federated.state(site)[name], tensor), (site, name)


REASONS = {
    "raise": "it raised ZeroDivisionError; the site's own log says more",
    "nan": "'delta_y' holds values that are not finite",
    "shape": "'delta_y' has shape [52], expected [53]",
    "type": "bytes, expected at most",
    "size": "declares 200,000,212 bytes, expected at most",
}


@pytest.mark.parametrize(("how", "reason"), REASONS.items())
def test_a_client_that_fails_is_absent_for_a_round_as_on_one_machine(
    how: str, reason: str, fed: Federation, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    federated = begin(tmp_path, fed, how)
    done = federated.serve()
    refused = [(r["round"], each["client"], each["reason"]) for r in done.records for each in r["refused"]]
    assert [each[:2] for each in refused] == [(2, 2)]
    assert reason in refused[0][2]
    assert done.result["refused"] == 1
    said = capsys.readouterr().out
    assert f"refused: site c: odd, round 2: {refused[0][2].partition(': ')[2]}" in said
    alone = run(Odd(how=how), fed, workers=1, retries=0, failed_client="absent", **SETTINGS)
    assert_same_bits(federated, done, alone)
    everything = said + "".join(file.read_text() for file in (tmp_path / "run").glob("*.json*"))
    assert SECRET not in everything


# ---- somebody stands between a node and the grid


Meddle = Callable[[Message, Handler, Context], list[Message]]


def in_round(number: int, meddle: Meddle) -> Meddle:
    def only_then(message: Message, app: Handler, context: Context) -> list[Message]:
        if message.metadata.message_type == "train" and message.content["tag"]["round"] == number:
            return meddle(message, app, context)
        return [app(message, context)]

    return only_then


def test_an_answer_that_comes_twice(fed: Federation, tmp_path: Path) -> None:
    federated = begin(tmp_path, fed)
    federated.node("b").meddle = in_round(1, lambda message, app, context: [app(message, context)] * 2)
    done = federated.serve()
    assert [each["reason"] for each in done.records[1]["refused"]] == ["odd, round 2: site b answered twice"]
    assert_rolled_back(federated, done)


def test_an_answer_of_an_older_round(fed: Federation, tmp_path: Path) -> None:
    """Node b answers round 2 with what it answered in round 1."""
    federated, kept = begin(tmp_path, fed), []

    def remember(message: Message, app: Handler, context: Context) -> list[Message]:
        kept.append(app(message, context))
        return kept[-1:]

    def repeat(message: Message, app: Handler, context: Context) -> list[Message]:
        app(message, context)
        return [Message(kept[0].content, reply_to=message)]

    first, second = in_round(0, remember), in_round(1, repeat)
    federated.node("b").meddle = lambda message, app, context: (
        first if not kept else second
    )(message, app, context)  # fmt: skip
    done = federated.serve()
    assert [each["reason"] for each in done.records[1]["refused"]] == [
        "odd, round 2: the reply belongs to round 1, wave 1"
    ]
    assert_rolled_back(federated, done)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"client": 0}, "the reply is of client 0 of this run"),
        ({"run": "f" * 32}, "the reply is of client 1 of another run"),
        ({"round": "two"}, "the reply does not say which run, client and round it belongs to"),
    ],
)
def test_an_answer_in_somebody_elses_name(change: dict[str, Any], reason: str, fed: Federation, tmp_path: Path) -> None:
    def forge(message: Message, app: Handler, context: Context) -> list[Message]:
        reply = app(message, context)
        reply.content["tag"] = ConfigRecord({**reply.content.config_records["tag"], **change})
        return [reply]

    federated = begin(tmp_path, fed)
    federated.node("b").meddle = in_round(1, forge)
    done = federated.serve()
    assert [each["reason"] for each in done.records[1]["refused"]] == [f"odd, round 2: {reason}"]
    assert_rolled_back(federated, done)


def test_a_late_answer_is_named_and_not_used(
    fed: Federation, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    federated, held = begin(tmp_path, fed), []

    def delay(message: Message, app: Handler, context: Context) -> list[Message]:
        if message.metadata.message_type == "train" and message.content["tag"]["round"] == 1:
            held.append(app(message, context))
            return []
        if message.metadata.message_type == "train":
            return [*[held.pop() for _ in list(held)], app(message, context)]
        return [app(message, context)]

    federated.node("b").meddle = delay
    done = federated.serve()
    assert [each["reason"] for each in done.records[1]["refused"]] == ["odd, round 2: site b gave no answer in 0.2 s"]
    assert not done.records[2]["refused"]
    said = capsys.readouterr().out
    assert "refused: site b answered round 2 after the deadline" in said
    assert "late, or from nobody known: 1 answer;" in said
    assert_rolled_back(federated, done)


def test_an_answer_that_nobody_asked_for(fed: Federation, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    federated = begin(tmp_path, fed)

    def shout(message: Message, app: Handler, context: Context) -> list[Message]:
        stranger = app(message, context)
        stranger.metadata.__dict__["_reply_to_message_id"] = "0" * 64
        return [stranger, app(message, context)]

    federated.node("b").meddle = in_round(1, shout)
    done = federated.serve()
    assert done.result["refused"] == 0
    assert "refused: a reply came that nobody asked for" in capsys.readouterr().out
    assert_same_bits(federated, done, undisturbed())


@pytest.mark.parametrize("kind", ["lies", "header", "object", "stype", "config"])
def test_bytes_that_are_no_array(kind: str, fed: Federation, tmp_path: Path) -> None:
    def spoil(message: Message, app: Handler, context: Context) -> list[Message]:
        reply = app(message, context)
        good = reply.content["message"]["delta_y"]
        data = good.data
        spoiled = {
            "lies": Array("float32", (10**9,), "numpy.ndarray", data),
            "header": Array("float32", good.shape, "numpy.ndarray", b"\0" * len(data)),
            "object": Array("float32", good.shape, "numpy.ndarray", data.replace(b"<f4", b"|O8")),
            "stype": Array("float32", good.shape, "pickle", data),
        }
        if kind == "config":
            reply.content["message"] = ConfigRecord({"delta_y": 1.0})
        else:
            reply.content["message"] = ArrayRecord({**reply.content["message"], "delta_y": spoiled[kind]})
        return [reply]

    federated = begin(tmp_path, fed)
    federated.node("b").meddle = in_round(1, spoil)
    done = federated.serve()
    assert [each["client"] for each in done.records[1]["refused"]] == [1]
    assert "the reply of site b " in done.records[1]["refused"][0]["reason"]
    assert_rolled_back(federated, done)


FORGED = "no\nfedgraft: done: 0 refusals; the result is in /srv\x1b[2J\r" + "x" * 1_000_000


@pytest.mark.parametrize("kind", ["error", "name of a tensor", "type of a tensor"])
def test_text_from_a_site_is_cut_and_stays_in_its_line(
    kind: str, fed: Federation, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A megabyte with line ends in every round: neither lines of ours nor a result that nobody can open come of it."""

    def shout(message: Message, app: Handler, context: Context) -> list[Message]:
        reply = app(message, context)
        if kind == "error":
            return [Message(Error(1, FORGED), reply_to=message)]
        good = reply.content["message"]["delta_y"]
        if kind == "name of a tensor":
            reply.content["message"] = ArrayRecord({**reply.content["message"], FORGED: Array(np.zeros(0, np.float32))})
        else:
            strange = Array(FORGED, good.shape, "numpy.ndarray", good.data)
            reply.content["message"] = ArrayRecord({"delta_y": strange})
        return [reply]

    federated = begin(tmp_path, fed)
    federated.node("b").meddle = in_round(1, shout)
    done = federated.serve()
    said = capsys.readouterr().out
    assert [each["client"] for each in done.records[1]["refused"]] == [1]
    assert "\nfedgraft: done: 0 refusals" not in said
    assert all(line.isprintable() for line in said.splitlines())
    assert len(said) < 20_000
    for file in ("result.json", "metrics.jsonl"):
        assert (tmp_path / "run" / file).stat().st_size < 50_000
    assert_rolled_back(federated, done)


@pytest.mark.parametrize("field", ["site", "fedgraft"])
def test_a_greeting_is_cut_and_stays_in_its_line(
    field: str, fed: Federation, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def shout(message: Message, app: Handler, context: Context) -> list[Message]:
        reply = app(message, context)
        if "hello" in reply.content:
            reply.content["hello"] = ConfigRecord({**reply.content.config_records["hello"], field: FORGED})
        return [reply]

    federated = begin(tmp_path, fed, settings=SETTINGS, patience=0.05)
    federated.node("b").meddle = shout
    with pytest.raises(StoppedError, match="b is not there; a node was not let in: ") as stop:
        federated.serve()
    said = capsys.readouterr().out + str(stop.value)
    assert all(line.isprintable() for line in said.splitlines())
    assert "\nfedgraft: done" not in said
    assert len(said) < 5_000


def assert_rolled_back(federated: Federated, done: Run) -> None:
    """Site b trained in round 2, in vain: everything is as if it had been absent."""
    assert_same_bits(federated, done, without_b_in_round_2())


@cache
def without_b_in_round_2() -> Run:
    @dataclass(frozen=True)
    class Absent(Odd):
        def reply(self, client: Client, received: Tensor, trained: Tensor) -> Reply:
            if (client.id, client.round) == (1, 1):
                raise ZeroDivisionError
            return super().reply(client, received, trained)

    return run(Absent(), blobs(), workers=1, retries=0, failed_client="absent", **RARELY)


# ---- figures that no honest test has given


def reported(change: Callable[[dict[str, Any]], None], number: int | None = None) -> Meddle:
    """Change the figures of a site's test report, of one round or of every round."""

    def meddle(message: Message, app: Handler, context: Context) -> list[Message]:
        reply = app(message, context)
        if message.metadata.message_type == "evaluate" and number in (None, message.content["tag"]["round"]):
            figures = dict(reply.content["figures"])
            change(figures)
            reply.content["figures"] = MetricRecord(figures)
        return [reply]

    return meddle


def with_validation(figures: dict[str, Any]) -> None:
    figures |= {name.replace("test", "validation"): value for name, value in figures.items()}


def with_everyone(figures: dict[str, Any]) -> None:
    figures |= {name.replace("test", "everyone"): value for name, value in figures.items()}


def without_samples(figures: dict[str, Any]) -> None:
    figures |= {name: 0 for name in figures if name.endswith(("correct", "total"))}


def of_many_samples(figures: dict[str, Any]) -> None:
    figures |= {name: 10**12 for name in figures if name.endswith(("correct", "total"))}


LIES = {
    with_validation: "its figures are not as agreed: nobody asked for validation",
    with_everyone: "its figures are not as agreed: nobody asked for everyone",
    without_samples: "its test figures are of 0 samples; it had 10 when the run began",
    of_many_samples: "its test figures are of 1000000000000 samples; it had 10 when the run began",
}


@pytest.mark.parametrize(("lie", "reason"), LIES.items())
@pytest.mark.parametrize("number", [0, pytest.param(ROUNDS - 1, marks=pytest.mark.slow)])
def test_figures_that_were_not_agreed_are_refused_and_the_result_is_written(
    lie: Callable[[dict[str, Any]], None],
    reason: str,
    number: int,
    fed: Federation,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    federated = begin(tmp_path, fed, settings=SETTINGS)
    federated.node("b").meddle = reported(lie, number)
    done = federated.serve()
    assert [(r["round"], each["client"]) for r in done.records for each in r["refused"]] == [(number + 1, 1)]
    assert f"round {number + 1}: site b was not tested: {reason}" in capsys.readouterr().out
    result = json.loads((tmp_path / "run" / "result.json").read_text())
    honest = undisturbed().records
    for record, other in zip(result["rounds"], honest, strict=True):
        accuracies = list(other["trained"]["metrics"]["accuracy"]["per_client"])
        accuracies[1] = None if record["round"] == number + 1 else accuracies[1]
        assert record["trained"]["metrics"]["accuracy"]["per_client"] == accuracies
        assert "trained_validation" not in record


@pytest.mark.parametrize("lie", LIES)
def test_a_round_in_which_every_report_is_refused_has_no_figures_and_the_run_goes_on(
    lie: Callable[[dict[str, Any]], None], fed: Federation, tmp_path: Path
) -> None:
    federated = begin(tmp_path, fed, settings=SETTINGS)
    for node in federated.grid.nodes.values():
        node.meddle = reported(lie, 1)
    done = federated.serve()
    assert ["trained" in record for record in done.records] == [True, False, True, True]
    assert [each["client"] for each in done.records[1]["refused"]] == [0, 1, 2, 3]
    assert json.loads((tmp_path / "run" / "result.json").read_text())["last"]["round"] == ROUNDS


def test_a_site_that_was_never_tested_has_no_figure(fed: Federation, tmp_path: Path) -> None:
    federated = begin(tmp_path, fed, settings=SETTINGS)
    federated.node("d").meddle = reported(without_samples)
    federated.serve()
    for record in json.loads((tmp_path / "run" / "result.json").read_text())["rounds"]:
        for point in POINTS:
            figures = record[point]["metrics"]["accuracy"]
            own = figures["per_client"]
            assert own[3] is None
            assert figures["mean"] == pytest.approx(sum(own[:3]) / 3)


def test_a_site_too_small_to_put_samples_aside_is_no_liar(fed: Federation, tmp_path: Path) -> None:
    """Of 8 samples a tenth is none: site d has no validation figures, and the others have."""
    federated = Federated(tmp_path, fed, {"method": "odd", "validation": 0.1, **SETTINGS})
    done = federated.serve()
    assert done.result["refused"] == 0
    own = done.records[0]["trained_validation"]["metrics"]["accuracy"]["per_client"]
    assert [each is None for each in own] == [False, False, False, True]


# ---- data that change


def shrink(federated: Federated, train: int, test: int) -> Callable[[], None]:
    """Leave site b so many samples."""

    def cut() -> None:
        path = federated.folder / "sites" / "b.npz"
        held = dict(np.load(path))
        np.savez(path, **{name: each[: train if "train" in name else test] for name, each in held.items()})
        for record in federated.folder.glob("sites/state-b/*/data.json"):  # the site itself would notice: let it not
            record.unlink()

    return cut


def test_a_site_keeps_to_the_data_that_the_run_began_with(fed: Federation, tmp_path: Path) -> None:
    """One sample is another, and their number is what it was: the site says so, and is absent until it is back."""
    federated = begin(tmp_path, fed)
    path = federated.folder / "sites" / "b.npz"
    before = path.read_bytes()
    held = dict(np.load(path))
    held["x_train"][0] += 1
    on_message(federated.grid, "train", 1, lambda: np.savez(path, **held))
    on_message(federated.grid, "train", 3, lambda: path.write_bytes(before))
    done = federated.serve()
    refused = [(r["round"], each["client"], each["reason"]) for r in done.records for each in r["refused"]]
    others = "the training samples of site b are others, since the run began; put the data back, or begin a new run"
    assert {each[:2] for each in refused} == {(2, 1), (3, 1)}
    assert others in refused[0][2]
    assert str(tmp_path) not in refused[0][2]


def test_new_data_are_for_a_new_run_and_the_site_is_told_so(fed: Federation, tmp_path: Path) -> None:
    federated = begin(tmp_path, fed)
    federated.serve()
    place, agreed = federated.folder / "sites" / "b.toml", federated.folder / "agreed.toml"
    federated.charter.write(agreed)
    assert "new data" not in Check(place, federation=agreed).data()
    path = federated.folder / "sites" / "b.npz"
    held = dict(np.load(path))
    np.savez(path, **{name: np.concatenate([each, each]) if "train" in name else each for name, each in held.items()})
    told = "new data: site b had 13 training samples and has 26, since its last run; a new run takes them"
    assert told in Check(place, federation=agreed).data()
    federated.charter = federated.charter.model_copy(update={"directory": str(tmp_path / "later")})
    done = federated.serve()
    assert done.spec.samples[1] == 26
    assert done.result["refused"] == 0


def test_a_site_that_loses_samples_within_a_run_is_noticed(fed: Federation, tmp_path: Path) -> None:
    federated = begin(tmp_path, fed)
    on_message(federated.grid, "train", 2, shrink(federated, 2, 10))
    done = federated.serve()
    refused = [(r["round"], each["client"], each["reason"]) for r in done.records for each in r["refused"]]
    assert [each[:2] for each in refused] == [(3, 1), (4, 1)]
    assert refused[0][2] == (
        "odd, round 3: the reply of site b was trained on 2 samples; the site had 13 when the run began"
    )


def test_a_site_that_loses_test_samples_is_noticed(
    fed: Federation, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    federated = begin(tmp_path, fed, settings=SETTINGS)
    on_message(federated.grid, "evaluate", 2, shrink(federated, 13, 3))
    done = federated.serve()
    assert [(r["round"], each["client"]) for r in done.records for each in r["refused"]] == [(3, 1), (4, 1)]
    assert "its test figures are of 3 samples; it had 10 when the run began" in capsys.readouterr().out


@pytest.mark.parametrize(("train", "test"), [(2, 10), (13, 3)])
def test_a_site_with_other_data_than_when_the_run_began_is_not_let_in_again(
    train: int, test: int, fed: Federation, tmp_path: Path
) -> None:
    federated = begin(tmp_path, fed, quorum=4, patience=0.05)
    on_message(federated.grid, "train", 1, Stop())
    with pytest.raises(KeyboardInterrupt):
        federated.serve()
    shrink(federated, train, test)()
    federated.grid = InProcessGrid(federated.grid.nodes)
    has = f"site b has {train} samples to train on and {test} to test on"
    with pytest.raises(StoppedError, match=f"{has}, and had 13 samples to train on and 10 to test on when the run"):
        federated.serve()


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"train": 0}, "site b has nothing to train on"),
        ({"test": 0}, "site b has nothing to test its model on"),
        ({"validation": 3}, "site b puts samples aside for validation, which was not agreed"),
        ({"validation": -1}, "site b puts samples aside for validation, which was not agreed"),
    ],
)
def test_a_greeting_with_impossible_counts(
    change: dict[str, int], reason: str, fed: Federation, tmp_path: Path
) -> None:
    def boast(message: Message, app: Handler, context: Context) -> list[Message]:
        reply = app(message, context)
        reply.content["hello"] = ConfigRecord({**reply.content.config_records["hello"], **change})
        return [reply]

    federated = begin(tmp_path, fed, patience=0.05)
    federated.node("b").meddle = boast
    with pytest.raises(StoppedError, match=reason):
        federated.serve()


def test_a_record_of_the_federation_that_was_damaged_is_one_sentence(fed: Federation, tmp_path: Path) -> None:
    federated = begin(tmp_path, fed)
    on_message(federated.grid, "train", 1, Stop())
    with pytest.raises(KeyboardInterrupt):
        federated.serve()
    place = tmp_path / "run" / "federation.json"
    whole = json.loads(place.read_text())
    for samples in ([13, 2], None, [{"train": "x"}], [{"train": 1, "validation": 0, "test": 1, "more": 1}]):
        place.write_text(json.dumps({**whole, "samples": samples}))
        with pytest.raises(UserError, match="is damaged, or of another version"):
            federated.serve()


# ---- machines come and go


def on_message(grid: InProcessGrid, kind: str, number: int, act: Callable[[], None]) -> None:
    """Do something once, right before the first message of a kind in a round is delivered."""
    push, over = grid.push_messages, list[Any]()

    def pushed(messages: Any) -> Any:
        hit = [m for m in messages if m.metadata.message_type == kind and m.content["tag"]["round"] == number]
        if hit and not over:
            over.append(True)
            act()
        return push(messages)

    grid.push_messages = pushed  # type: ignore[method-assign]


def test_a_node_that_comes_back_under_another_id_goes_on_where_it_was(fed: Federation, tmp_path: Path) -> None:
    federated = begin(tmp_path, fed, settings=SETTINGS)

    def restart() -> None:
        del federated.grid.nodes[101]
        federated.join("b", node=900)

    on_message(federated.grid, "evaluate", 1, restart)
    done = federated.serve()
    reasons = [each["reason"] for record in done.records for each in record["refused"]]
    assert reasons == ["odd, round 2: the client's model could not be tested"]
    assert_same_bits(federated, done, undisturbed())


def test_a_reinstalled_site_goes_on_from_its_state_directory(fed: Federation, tmp_path: Path) -> None:
    federated = begin(tmp_path, fed)

    def reinstall() -> None:
        sites, new = tmp_path / "sites", tmp_path / "new machine"
        new.mkdir()
        shutil.move(sites / "b.npz", new / "b.npz")
        shutil.move(sites / "state-b", new / "state-b")
        shutil.move(sites / "b.toml", new / "b.toml")
        federated.node("b").config["site"] = str(new / "b.toml")

    on_message(federated.grid, "train", 2, reinstall)
    done = federated.serve()
    assert done.result["refused"] == 0
    shutil.move(tmp_path / "new machine" / "state-b", tmp_path / "sites" / "state-b")
    assert_same_bits(federated, done, undisturbed())


@pytest.mark.parametrize("how", ["lost", "damaged", "altered"])
def test_a_site_without_its_state_is_absent_and_told_why(how: str, fed: Federation, tmp_path: Path) -> None:
    federated = begin(tmp_path, fed)

    def harm() -> None:
        for file in (tmp_path / "sites" / "state-b").glob("*/state-*"):
            data = file.read_bytes()
            if how == "lost":
                file.unlink()
            else:
                file.write_bytes(data[: len(data) // 2] if how == "damaged" else data[:-1] + bytes([data[-1] ^ 1]))

    on_message(federated.grid, "train", 2, harm)
    done = federated.serve()
    reasons = [each["reason"] for each in done.records[2]["refused"]]
    expected = {
        "lost": "site b lacks its state of round 2 (it has those of: none); put its state directory back from a copy",
        "damaged": "the state of site b of round 2 is damaged",
        "altered": "the state of site b of round 2 was altered, or is another's",
    }
    assert reasons[0] == f"odd, round 3: the client failed: {expected[how]}"
    assert all(str(tmp_path) not in reason for reason in reasons)


@dataclass
class Stop:
    """The server is killed."""

    def __call__(self) -> None:
        raise KeyboardInterrupt


@pytest.mark.parametrize(("kind", "number"), [("evaluate", 0), ("train", 2), ("evaluate", 2), ("evaluate", 3)])
def test_a_server_that_was_killed_goes_on_and_the_clients_step_back(
    kind: str, number: int, fed: Federation, tmp_path: Path
) -> None:
    """Killed before an evaluation, the server has forgotten a round that its clients have already trained."""
    federated = begin(tmp_path, fed, settings=SETTINGS)
    on_message(federated.grid, kind, number, Stop())
    with pytest.raises(KeyboardInterrupt):
        federated.serve()
    federated.grid = InProcessGrid(federated.grid.nodes)
    done = federated.serve()
    assert done.result["refused"] == 0
    assert_same_bits(federated, done, undisturbed())


def test_a_server_whose_newest_checkpoint_is_damaged_goes_back_two_rounds(
    fed: Federation, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    federated = begin(tmp_path, fed, settings=SETTINGS)
    on_message(federated.grid, "evaluate", 3, Stop())
    with pytest.raises(KeyboardInterrupt):
        federated.serve()
    (tmp_path / "run" / "checkpoints" / "round-000003" / "server.safetensors").unlink()
    federated.grid = InProcessGrid(federated.grid.nodes)
    done = federated.serve()
    assert "lacks server.safetensors; an older one is used" in capsys.readouterr().out
    assert_same_bits(federated, done, undisturbed())


def test_a_round_below_the_quorum_is_repeated_when_sites_are_back(
    fed: Federation, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    federated = begin(tmp_path, fed, settings=SETTINGS, quorum=3, patience=5.0)
    gone: dict[int, Any] = {}

    def leave() -> None:
        gone.update({node: federated.grid.nodes.pop(node) for node in (101, 102)})

    on_message(federated.grid, "evaluate", 0, leave)

    def come_back(look: Callable[[], Any] = federated.grid.get_nodes) -> Any:
        """They are back when the server looks out for them after the round."""
        if any(m.metadata.message_type == "train" and m.content["tag"]["round"] == 1 for m in federated.grid.sent):
            federated.grid.nodes.update(gone)
        return look()

    federated.grid.get_nodes = come_back  # type: ignore[method-assign]
    done = federated.serve()
    said = capsys.readouterr().out
    assert "round 2 had 2 of the 3 answers that it needs: odd, round 2: site b is not connected" in said
    assert [record["round"] for record in done.records] == [1, 2, 3, 4]
    assert all(not record["refused"] for record in done.records[1:])
    assert_same_bits(federated, done, undisturbed())


def test_a_run_without_a_quorum_stops_and_can_be_resumed(fed: Federation, tmp_path: Path) -> None:
    federated = begin(tmp_path, fed, quorum=3, patience=0.1)
    gone: dict[int, Any] = {}

    def leave() -> None:
        gone.update({node: federated.grid.nodes.pop(node) for node in (101, 102)})

    on_message(federated.grid, "train", 1, leave)
    with pytest.raises(StoppedError, match=r"round 2 needs 3 sites, and after 0.1 s b, c are not there"):
        federated.serve()
    federated.grid = InProcessGrid({**federated.grid.nodes, **gone})
    assert_same_bits(federated, federated.serve(), undisturbed())


def test_sites_that_all_fail_stop_the_run_with_their_reasons(fed: Federation, tmp_path: Path) -> None:
    federated = begin(tmp_path, fed, patience=0.1)
    for node in federated.grid.nodes.values():
        node.meddle = in_round(1, lambda message, app, context: [])
    with pytest.raises(StoppedError, match=r"round 2 had 0 of the 1 answers that it needs: odd, round 2: site a gave"):
        federated.serve()


# ---- the start


def test_a_start_waits_for_everybody_and_leaves_nothing_behind(fed: Federation, tmp_path: Path) -> None:
    federated = begin(tmp_path, fed, patience=0.05)
    del federated.grid.nodes[103]
    with pytest.raises(StoppedError, match=r"the start needs 4 sites, and after 0.05 s d is not there"):
        federated.serve()
    assert [path.name for path in (tmp_path / "run").iterdir()] == [".lock"]


def test_two_nodes_that_say_they_are_the_same_site(
    fed: Federation, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    federated = begin(tmp_path, fed, patience=0.3)
    federated.grid.nodes[103] = federated.join("a", called="impostor", node=999)
    del federated.grid.nodes[999]
    with pytest.raises(StoppedError, match="d is not there; two nodes say that they are site a; only the first"):
        federated.serve()
    assert capsys.readouterr().out.count("two nodes say that they are site a; only the first is heard") == 1


def test_a_key_is_good_for_the_site_that_it_was_registered_for(fed: Federation, tmp_path: Path) -> None:
    federated = begin(tmp_path, fed, patience=0.05)
    federated.grid.registered = {100: "a", 101: "b", 103: "a"}
    reason = "d is not there; a node was not let in: it says that it is site d, and its key is registered for a"
    with pytest.raises(StoppedError, match=reason):
        federated.serve()
    federated.grid.registered[103] = "d"
    federated.serve()


def test_a_second_node_takes_over_once_the_first_is_gone(fed: Federation, tmp_path: Path) -> None:
    federated = begin(tmp_path, fed, settings=SETTINGS)
    federated.join("b", called="b-again", node=900)
    on_message(federated.grid, "evaluate", 0, lambda: federated.grid.nodes.pop(101))
    done = federated.serve()
    assert [record["refused"] for record in done.records[1:]] == [[]] * (ROUNDS - 1)
    assert_same_bits(federated, done, undisturbed())


def unknown_site(folder: Path) -> None:
    (folder / "d.toml").write_text('name = "z"\ndata = "d.npz"\nstate = "state-d"\n', "utf-8")


def no_data(folder: Path) -> None:
    (folder / "d.npz").unlink()


def other_shape(folder: Path) -> None:
    x, y = np.zeros((3, 7), np.float32), np.arange(3)
    np.savez(folder / "d.npz", x_train=x, y_train=y, x_test=x, y_test=y)


def more_classes(folder: Path) -> None:
    x, y = np.zeros((5, 6), np.float32), np.arange(5)
    np.savez(folder / "d.npz", x_train=x, y_train=y, x_test=x, y_test=y)


BEGINNINGS = {
    unknown_site: "this federation has no site 'z'; it has a, b, c, d",
    no_data: "it raised UserError; the site's own log says more",
    other_shape: r"its samples are features of \[7\], the federation's features of \[6\]",
    more_classes: "y_train has labels beyond the federation's 3 classes",
}


@pytest.mark.parametrize(("harm", "reason"), BEGINNINGS.items())
def test_a_site_that_does_not_fit_is_not_let_in_and_told_why(
    harm: Callable[[Path], None], reason: str, fed: Federation, tmp_path: Path
) -> None:
    federated = begin(tmp_path, fed, patience=0.05)
    harm(tmp_path / "sites")
    with pytest.raises(
        StoppedError, match=f"d is not there; a node was not let in: the client failed: {reason}"
    ) as stop:
        federated.serve()
    assert str(tmp_path) not in str(stop.value)


def test_a_site_that_claims_more_samples_than_the_rules_allow_is_not_let_in(fed: Federation, tmp_path: Path) -> None:
    federated = begin(tmp_path, fed, patience=0.05, max_samples=30)
    reason = (
        "c is not there; a node was not let in: site c says that it has 31 training samples, above max_samples = 30"
    )
    with pytest.raises(StoppedError, match=reason):
        federated.serve()


def test_other_settings_do_not_go_on_with_a_run(fed: Federation, tmp_path: Path) -> None:
    federated = begin(tmp_path, fed)
    on_message(federated.grid, "train", 1, Stop())
    with pytest.raises(KeyboardInterrupt):
        federated.serve()
    other = Federated(tmp_path, fed, {"method": "odd", **SETTINGS, "seed": 5}, FAST)
    with pytest.raises(UserError, match="was begun with other settings or sites"):
        other.serve()
    federated.grid = InProcessGrid(federated.grid.nodes)
    federated.serve()
    with pytest.raises(UserError, match="is complete"):
        federated.serve()


# ---- what stays at home


def test_only_what_was_agreed_leaves_a_site(fed: Federation, tmp_path: Path) -> None:
    federated, left = begin(tmp_path, fed, settings=SETTINGS), []

    def listen(message: Message, app: Handler, context: Context) -> list[Message]:
        reply = app(message, context)
        left.append((message.metadata.message_type, reply.content))
        return [reply]

    federated.node("b").meddle = listen
    done = federated.serve()
    kinds = {"query.hello": {"hello"}, "train": {"tag", "figures", "message"}, "evaluate": {"tag", "figures"}}
    for kind, content in left:
        assert set(content) == kinds[kind]
    assert [kind for kind, _ in left] == ["query.hello", *["train", "evaluate"] * ROUNDS]
    hello = dict(left[0][1]["hello"])
    assert hello.keys() == {"site", "train", "validation", "test", "fedgraft", "settings"}
    assert (hello["site"], hello["train"], hello["validation"], hello["test"]) == ("b", 13, 0, 10)
    assert set(left[1][1]["message"]) == set(done.method.expects(done.server, 1))  # type: ignore[arg-type]
    assert set(left[1][1]["figures"]) == {"loss", "steps", "seconds", "samples"}
    counts = ["total", "broken", "accuracy", "log_loss"]
    assert set(left[2][1]["figures"]) == {f"test/{point}/{count}" for point in POINTS for count in counts}
    assert done.result["label_counts"] is None
    assert json.loads((tmp_path / "run" / "result.json").read_text())["label_counts"] is None
    for file in (tmp_path / "run").rglob("*"):
        if file.is_file():
            assert str(tmp_path / "sites").encode() not in file.read_bytes()


def test_the_server_keeps_nothing_of_a_clients_state(fed: Federation, tmp_path: Path) -> None:
    from safetensors.torch import load_file

    begin(tmp_path, fed).serve()
    held = load_file(tmp_path / "run" / "checkpoints" / f"round-{ROUNDS:06d}" / "clients.safetensors")
    assert {name: tensor.tolist() for name, tensor in held.items()} == {
        f"{client}/version": [ROUNDS, 0] for client in range(4)
    }


def test_what_leaves_is_said_before_the_first_round(
    fed: Federation, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    begin(tmp_path, fed).serve()
    said = capsys.readouterr().out
    assert f"what is sent with odd: {Odd.sends}. In a round 424 bytes leave a site" in said
    assert said.index("what is sent") < said.index("round 1/4")


def test_a_site_keeps_its_own_network(fed: Federation, tmp_path: Path) -> None:
    from safetensors.torch import load_file

    from fedgraft import models
    from fedgraft.engines.flower.site import describe, personal_model

    federated = Federated(tmp_path, fed, {"method": "fedper", **SETTINGS})
    done = federated.serve()
    for client, name in enumerate(federated.names):
        module = models.build("mlp:5", (6,), 3)
        module.load_state_dict(load_file(personal_model(describe(tmp_path / "sites" / f"{name}.toml"))))
        x, y = fed.clients[client].test.batch(slice(None))
        accuracy = float((module(x).argmax(1) == y).float().mean())
        assert accuracy == pytest.approx(done.records[-1]["received"]["metrics"]["accuracy"]["per_client"][client])


def test_a_federations_run_is_reported_without_what_nobody_may_know(fed: Federation, tmp_path: Path) -> None:
    from rich.console import Console

    from fedgraft.report import page, text
    from fedgraft.runs.reading import read_all

    begin(tmp_path, fed).serve()
    reading = read_all([tmp_path / "run"])
    written = page.write(reading, tmp_path / "report.html").read_text("utf-8")
    assert "Who holds what" not in written
    console = Console(record=True, width=80)
    text.show(reading, console)
    assert "Who holds what" not in console.export_text()


def test_a_federations_run_is_not_resumed_on_one_machine(fed: Federation, tmp_path: Path) -> None:
    federated = begin(tmp_path, fed)
    on_message(federated.grid, "train", 1, Stop())
    with pytest.raises(KeyboardInterrupt):
        federated.serve()
    with pytest.raises(UserError, match="it goes on when its Flower app is started again"):
        resume(tmp_path / "run")
