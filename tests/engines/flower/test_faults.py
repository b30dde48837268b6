"""What can go wrong between machines: every fault is named, counted, and leaves everybody's state valid."""

import json
import shutil
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message
from torch import Tensor

from fedgraft.core.client import Client
from fedgraft.core.errors import UserError
from fedgraft.core.evaluation import POINTS
from fedgraft.core.message import Message as Reply
from fedgraft.data.federation import Federation
from fedgraft.engines.flower.server import StoppedError
from fedgraft.methods import METHODS
from fedgraft.methods.scaffold import SCAFFOLD
from fedgraft.runs.run import Run, resume, run
from flower_support import FAST, Federated, Handler, InProcessGrid

ROUNDS = 4
SETTINGS: dict[str, Any] = {
    "model": "mlp:5", "rounds": ROUNDS, "training": {"lr": 0.1, "epochs": 1, "batch_size": 4},
}  # fmt: skip
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
    monkeypatch.setitem(METHODS, "odd", Odd)


def begin(tmp_path: Path, fed: Federation, how: str = "", **rules: float) -> Federated:
    return Federated(tmp_path, fed, {"method": "odd", "params": {"how": how}, **SETTINGS}, replace(FAST, **rules))


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
    assert_rolled_back(federated, done, fed)


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
    assert_rolled_back(federated, done, fed)


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
        reply.content["tag"] = ConfigRecord({**reply.content["tag"], **change})
        return [reply]

    federated = begin(tmp_path, fed)
    federated.node("b").meddle = in_round(1, forge)
    done = federated.serve()
    assert [each["reason"] for each in done.records[1]["refused"]] == [f"odd, round 2: {reason}"]
    assert_rolled_back(federated, done, fed)


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
    assert "1 replies came too late" in said
    assert_rolled_back(federated, done, fed)


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
    assert_same_bits(federated, done, run(Odd(), fed, workers=1, **SETTINGS))


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
    assert_rolled_back(federated, done, fed)


def assert_rolled_back(federated: Federated, done: Run, fed: Federation) -> None:
    """Site b trained in round 2, in vain: everything is as if it had been absent."""

    @dataclass(frozen=True)
    class Absent(Odd):
        def reply(self, client: Client, received: Tensor, trained: Tensor) -> Reply:
            if (client.id, client.round) == (1, 1):
                raise ZeroDivisionError
            return super().reply(client, received, trained)

    alone = run(Absent(), fed, workers=1, retries=0, failed_client="absent", **SETTINGS)
    assert_same_bits(federated, done, alone)


# ---- machines come and go


def on_message(grid: InProcessGrid, kind: str, number: int, act: Callable[[], None]) -> None:
    """Do something once, right before the first message of a kind in a round is delivered."""
    push, over = grid.push_messages, []

    def pushed(messages: Any) -> Any:
        hit = [m for m in messages if m.metadata.message_type == kind and m.content["tag"]["round"] == number]
        if hit and not over:
            over.append(True)
            act()
        return push(messages)

    grid.push_messages = pushed  # type: ignore[method-assign]


def test_a_node_that_comes_back_under_another_id_goes_on_where_it_was(fed: Federation, tmp_path: Path) -> None:
    federated = begin(tmp_path, fed)

    def restart() -> None:
        del federated.grid.nodes[101]
        federated.join("b", node=900)

    on_message(federated.grid, "evaluate", 1, restart)
    done = federated.serve()
    reasons = [each["reason"] for record in done.records for each in record["refused"]]
    assert reasons == ["odd, round 2: the client's model could not be tested"]
    assert_same_bits(federated, done, run(Odd(), fed, workers=1, **SETTINGS))


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
    assert_same_bits(federated, done, run(Odd(), fed, workers=1, **SETTINGS))


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
    federated = begin(tmp_path, fed)
    on_message(federated.grid, kind, number, Stop())
    with pytest.raises(KeyboardInterrupt):
        federated.serve()
    federated.grid = InProcessGrid(federated.grid.nodes)
    done = federated.serve()
    assert done.result["refused"] == 0
    assert_same_bits(federated, done, run(Odd(), fed, workers=1, **SETTINGS))


def test_a_server_whose_newest_checkpoint_is_damaged_goes_back_two_rounds(
    fed: Federation, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    federated = begin(tmp_path, fed)
    on_message(federated.grid, "evaluate", 3, Stop())
    with pytest.raises(KeyboardInterrupt):
        federated.serve()
    (tmp_path / "run" / "checkpoints" / "round-000003" / "server.safetensors").unlink()
    federated.grid = InProcessGrid(federated.grid.nodes)
    done = federated.serve()
    assert "lacks server.safetensors; an older one is used" in capsys.readouterr().out
    assert_same_bits(federated, done, run(Odd(), fed, workers=1, **SETTINGS))


def test_a_round_below_the_quorum_is_repeated_when_sites_are_back(
    fed: Federation, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    federated = begin(tmp_path, fed, quorum=3, patience=5.0)
    gone: dict[int, Any] = {}

    def leave() -> None:
        gone.update({node: federated.grid.nodes.pop(node) for node in (101, 102)})

    on_message(federated.grid, "evaluate", 0, leave)
    on_message(federated.grid, "evaluate", 1, lambda: federated.grid.nodes.update(gone))
    done = federated.serve()
    said = capsys.readouterr().out
    assert "round 2 had 2 of the 3 answers that it needs: odd, round 2: site b is not connected" in said
    assert [record["round"] for record in done.records] == [1, 2, 3, 4]
    assert all(not record["refused"] for record in done.records[1:])
    assert_same_bits(federated, done, run(Odd(), fed, workers=1, **SETTINGS))


def test_a_run_without_a_quorum_stops_and_can_be_resumed(fed: Federation, tmp_path: Path) -> None:
    federated = begin(tmp_path, fed, quorum=3, patience=0.1)
    gone: dict[int, Any] = {}

    def leave() -> None:
        gone.update({node: federated.grid.nodes.pop(node) for node in (101, 102)})

    on_message(federated.grid, "train", 1, leave)
    with pytest.raises(StoppedError, match=r"round 2 needs 3 sites, and after 0.1 s b, c are not there"):
        federated.serve()
    federated.grid = InProcessGrid({**federated.grid.nodes, **gone})
    assert_same_bits(federated, federated.serve(), run(Odd(), fed, workers=1, **SETTINGS))


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
    assert list((tmp_path / "run").iterdir()) == []


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
    federated = begin(tmp_path, fed)
    federated.join("b", called="b-again", node=900)
    on_message(federated.grid, "evaluate", 0, lambda: federated.grid.nodes.pop(101))
    done = federated.serve()
    assert [record["refused"] for record in done.records[1:]] == [[]] * (ROUNDS - 1)
    assert_same_bits(federated, done, run(Odd(), fed, workers=1, **SETTINGS))


def unknown_site(folder: Path) -> None:
    (folder / "d.toml").write_text('name = "z"\ndata = "d.npz"\nstate = "state-d"\n', "utf-8")


def no_data(folder: Path) -> None:
    (folder / "d.npz").unlink()


def other_shape(folder: Path) -> None:
    import numpy as np

    x, y = np.zeros((3, 7), np.float32), np.arange(3)
    np.savez(folder / "d.npz", x_train=x, y_train=y, x_test=x, y_test=y)


def more_classes(folder: Path) -> None:
    import numpy as np

    x, y = np.zeros((5, 6), np.float32), np.arange(5)
    np.savez(folder / "d.npz", x_train=x, y_train=y, x_test=x, y_test=y)


BEGINNINGS = {
    unknown_site: "this federation has no site 'z'; it has a, b, c, d",
    no_data: "it raised UserError; the site's own log says more",
    other_shape: r"its samples are features of \[7\], the federation's features of \[6\]",
    more_classes: "it has labels beyond the federation's 3 classes",
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
    federated, left = begin(tmp_path, fed), []

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
    assert hello.keys() == {"site", "samples", "fedgraft", "settings"}
    assert (hello["site"], hello["samples"]) == ("b", 13)
    assert set(left[1][1]["message"]) == set(done.method.expects(done.server, 1))  # type: ignore[arg-type]
    assert set(left[1][1]["figures"]) == {"loss", "steps", "seconds"}
    counts = ("correct", "total", "loss", "broken")
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
    assert f"what crosses with odd: {Odd.sends}. In a round 424 bytes leave a site" in said
    assert said.index("what crosses") < said.index("round 1/4")


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
        assert accuracy == pytest.approx(done.records[-1]["received"]["per_client"][client])


def test_a_federations_run_is_reported_without_what_nobody_may_know(fed: Federation, tmp_path: Path) -> None:
    from rich.console import Console

    from fedgraft.report import page, text
    from fedgraft.report.reading import read_all

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
