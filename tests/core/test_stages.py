"""Stages at the crossing: what was meant arrives, as exactly as can be; what is not coded as agreed is refused."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
import torch
from conftest import HOSTILE, Wire, simulate, small_network, specification
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from typer.testing import CliRunner

import fedgraft as fg
from fedgraft.base.errors import UserError
from fedgraft.cli import app
from fedgraft.core.bound import Bound
from fedgraft.core.client import Client
from fedgraft.core.compression import Coding, Float16, Int8, TopK
from fedgraft.core.message import Field, Message
from fedgraft.core.rounds import Participation, rounds
from fedgraft.core.spec import Spec
from fedgraft.core.stages import Pipeline, Stage, StageError
from fedgraft.data.federation import Federation
from fedgraft.methods.fedavg import FedAvg
from trials.federated import Federated

STAGES = [Float16(), Int8(), TopK(share=0.3)]


def drawn(size: int, seed: int = 0, scale: float = 1.0) -> Tensor:
    return scale * torch.randn(size, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("stage", STAGES, ids=lambda stage: stage.name)
@given(size=st.integers(0, 3000), seed=st.integers(0, 10**6), scale=st.sampled_from([1e-6, 1.0, 1e4]))
@settings(max_examples=30, deadline=None)
def test_names_shapes_types_and_other_entries_arrive(stage: Stage, size: int, seed: int, scale: float) -> None:
    sent = Message(weights=drawn(size, seed, scale), counts=torch.arange(5), loss=0.5)
    pipe, known = Pipeline([stage]), {"weights": torch.zeros(size)}
    got = pipe.decode("up", pipe.encode("up", sent, known, {}), known)
    assert set(got) == set(sent)
    for name in sent:
        assert (got[name].shape, got[name].dtype) == (sent[name].shape, sent[name].dtype)
    assert torch.equal(got["counts"], sent["counts"])


def test_what_travels_is_as_small_as_it_says() -> None:
    message = Message(weights=drawn(10_240))
    known = {"weights": torch.zeros(10_240)}
    sizes = {stage.name: stage.encode(message, known, {}).nbytes for stage in STAGES}
    assert sizes == {"float16": 2 * 10_240, "int8": 10_240 + 4 * 10, "topk": 8 * 3072 + 8}


def test_a_change_travels_against_what_the_other_side_has() -> None:
    """The known part is large and exact; only the small change is rounded."""
    known = {"weights": drawn(500, 1, 100.0)}
    sent = Message(weights=known["weights"] + drawn(500, 2, 1e-3))
    for stage in (Float16(), Int8()):
        got = stage.decode(stage.encode(sent, known, {}), known)
        assert float((got["weights"] - sent["weights"]).abs().max()) < 2e-4


def test_rounding_to_a_byte_errs_by_half_a_step_at_most() -> None:
    sent = drawn(2000)
    got = Int8().decode(Int8().encode(Message(w=sent), {}, {}), {})["w"]
    steps = torch.stack([block.abs().max() / 127 for block in sent.split(1024)]).repeat_interleave(1024)[:2000]
    assert bool(((got - sent).abs() <= steps / 2 + 1e-7).all())


def test_the_largest_entries_are_chosen_and_the_rest_is_remembered() -> None:
    memory: dict[str, Tensor] = {}
    stage, known = TopK(share=0.5), {"w": torch.zeros(4)}
    first = stage.decode(stage.encode(Message(w=torch.tensor([4.0, -1.0, 2.0, -3.0])), known, memory), known)["w"]
    assert first.tolist() == [4, 0, 0, -3]
    assert memory["w"].tolist() == [0, -1, 2, 0]
    second = stage.decode(stage.encode(Message(w=torch.tensor([0.0, -1.0, 0.5, 0.25])), known, memory), known)["w"]
    assert second.tolist() == [0, -2, 2.5, 0]


@pytest.mark.parametrize("stage", [Int8(), TopK(share=0.1)], ids=lambda stage: stage.name)
def test_with_error_feedback_nothing_is_lost_for_good(stage: Coding) -> None:
    """The sum of what arrived is the sum of what was meant, but for what is still remembered."""
    memory, known = dict[str, Tensor](), {"w": torch.zeros(300)}
    meant, arrived = torch.zeros(300), torch.zeros(300)
    for seed in range(20):
        change = drawn(300, seed)
        meant += change
        arrived += stage.decode(stage.encode(Message(w=change), known, memory), known)["w"]
    torch.testing.assert_close(arrived + memory["w"], meant, rtol=1e-4, atol=1e-4)


def test_stages_follow_each_other_and_are_undone_in_turn() -> None:
    pipe, state = Pipeline([TopK(share=0.2), Int8()]), dict[str, Tensor]()
    known = {"weights": drawn(4000, 1)}
    sent = Message(weights=known["weights"] + drawn(4000, 2, 0.01))
    wire = pipe.encode("up", sent, known, state)
    assert wire.nbytes < 0.35 * sent.nbytes
    got = pipe.decode("up", wire, known)
    largest = (sent["weights"] - known["weights"]).abs().topk(800).indices
    torch.testing.assert_close(got["weights"][largest], sent["weights"][largest], rtol=0, atol=2e-4)
    assert {name.split("/")[1] for name in state} == {"topk", "int8"}


def test_a_stage_works_on_the_ways_it_is_told() -> None:
    message = Message(w=drawn(10))
    assert Pipeline([Float16()]).encode("down", message, {}, {}) is message
    assert Pipeline([Float16(up=False, down=True)]).encode("down", message, {}, {}).nbytes == 20


@pytest.mark.parametrize(
    ("stage", "wire", "words"),
    [
        (Float16(), {"w@float16:float32": torch.zeros(3)}, "not coded as agreed"),
        (Float16(), {"w@float16:complex64": torch.zeros(3).half()}, "no kind of floats"),
        (Float16(), {"w@float16:float32": torch.zeros(3).half(), "w": torch.zeros(3)}, "twice"),
        (Int8(), {"w@int8:float32": torch.zeros(3, dtype=torch.int8)}, "not coded as agreed"),
        (
            Int8(),
            {"w@int8:float32": torch.zeros(3, dtype=torch.int8), "w@int8.scale": torch.zeros(2)},
            "2 scales for 1 blocks",
        ),
    ],
)
def test_what_is_not_coded_as_agreed_is_refused(stage: Stage, wire: dict[str, Tensor], words: str) -> None:
    with pytest.raises(StageError, match=words):
        stage.decode(Message(**wire), {})


@pytest.mark.parametrize(
    ("places", "shape", "words"),
    [
        ([0, 99], [20], "places that are not there"),
        ([3, 3], [20], "one twice"),
        ([-1, 3], [20], "places that are not there"),
        ([0, 1], [10**12], "not the agreed share"),
        ([0, 1], [4, -5], "do not belong together"),
    ],
)
def test_places_that_lie_are_refused_before_memory_is_taken(places: list[int], shape: list[int], words: str) -> None:
    wire = Message(
        **{
            "w@topk:float32": torch.ones(2),
            "w@topk.places": torch.tensor(places, dtype=torch.int32),
            "w@topk.shape": torch.tensor(shape),
        }
    )
    with pytest.raises(StageError, match=words):
        TopK(share=0.1).decode(wire, {})


def test_beyond_the_range_of_two_bytes_is_the_largest_there_is() -> None:
    got = Float16().decode(Float16().encode(Message(w=torch.tensor([1e9, -1e9, 1.0])), {}, {}), {})["w"]
    assert got.tolist() == [65504, -65504, 1]
    assert math.isfinite(float(got.sum()))


# ---- in a run


def test_the_size_of_a_valid_reply_on_its_way() -> None:
    expected = {"a": Field((3, 2)), "b": Field((), torch.int64), "c": Field((0,))}
    assert Pipeline().size(expected) == 32
    assert Pipeline([Float16()]).size(expected) == 20
    assert Pipeline([TopK(share=1.0)]).size(expected) >= 24 + 24 + 8, "every entry with its place"


@pytest.mark.parametrize(
    "stages", [("float16",), ("int8",), ("topk:0.3",), ("topk:0.5", "int8"), ("float16:down=true",)]
)
def test_a_run_with_stages_learns_with_the_same_bits_at_any_number_of_workers(
    fed: Federation, stages: tuple[str, ...]
) -> None:
    spec = specification(fed, rounds=8, stages=stages)
    done, server, engine = simulate(FedAvg(), fed, spec)
    plain, *_ = simulate(FedAvg(), fed, specification(fed, rounds=8))
    assert not any(this.refused for this in done)
    assert done[-1].bytes_up < plain[-1].bytes_up
    assert (done[-1].bytes_down < plain[-1].bytes_down) == ("down" in stages[0])
    assert abs(done[-1].test["received"].pooled - plain[-1].test["received"].pooled) < 0.2
    assert done[-1].test["received"].pooled > 0.6
    _, others, apart = simulate(FedAvg(), fed, spec, workers=2)
    assert torch.equal(server["weights/0"], others["weights/0"])
    for client, state in engine.states.items():
        assert state.keys() == apart.states[client].keys()
        assert all(torch.equal(tensor, apart.states[client][name]) for name, tensor in state.items())


def test_what_a_stage_remembers_is_taken_back_with_a_refused_reply(fed: Federation) -> None:
    @dataclass(frozen=True)
    class Spoiled(FedAvg):
        def reply(self, client: Client, received: Tensor, trained: Tensor) -> Message:
            return super().reply(client, received, trained * (math.nan if client.id == 2 else 1))

    done, _, engine = simulate(Spoiled(), fed, specification(fed, rounds=2, stages=("topk:0.3",)))
    assert [{refusal.client for refusal in this.refused} for this in done] == [{2}, {2}]
    assert "stage/topk/weights" in engine.states[0]
    assert "stage/topk/weights" not in engine.states[2]


def test_a_reply_that_is_not_coded_as_agreed_is_refused(fed: Federation, monkeypatch: pytest.MonkeyPatch) -> None:
    class Careless(Wire):
        forge = staticmethod(
            lambda _, outcomes: {
                c: replace(o, reply=Message(**{"weights@topk:float32": torch.ones(3)})) if c == HOSTILE else o
                for c, o in outcomes.items()
            }
        )

    spec = specification(fed, rounds=1, stages=("topk:0.3",))
    server = FedAvg().setup(spec)
    with Careless(FedAvg(), spec, fed.clients) as engine:
        (this,) = rounds(FedAvg(), server, engine, Participation())
    assert [(refusal.client, "not coded as agreed" in refusal.reason) for refusal in this.refused] == [(HOSTILE, True)]


def test_a_stage_that_has_nothing_to_do_is_refused(fed: Federation) -> None:
    with pytest.raises(UserError, match="topk does nothing for apple: topk codes changes"):
        fg.run("apple", fed, model=small_network(), rounds=1, stages=["topk:0.1"])
    with pytest.raises(UserError, match="no stage is called 'topkk'; did you mean 'topk'"):
        fg.run("fedavg", fed, model=small_network(), rounds=1, stages=["topkk"])
    with pytest.raises(UserError, match="share has to be above 0"):
        fg.run("fedavg", fed, model=small_network(), rounds=1, stages=["topk:0"])
    with pytest.raises(UserError, match="there twice"):
        fg.run("fedavg", fed, model=small_network(), rounds=1, stages=["int8", "int8"])


def test_the_bound_is_there_in_every_run_and_is_set_by_naming_it() -> None:
    def stages(*texts: str) -> tuple[str, ...]:
        return fg.Training(stages=texts).stages

    assert fg.Training().stages == ("bound",)
    assert stages("int8") == ("bound", "int8")
    assert stages("int8", "bound:factor=3") == ("int8", "bound:factor=3")
    assert fg.Training(stages="median").stages == ("bound", "median")


def test_replies_are_judged_stage_by_stage(fed: Federation) -> None:
    @dataclass(frozen=True, kw_only=True)
    class Picky(Stage):
        seen: list[list[int]]

        def judge(self, spec: Spec, sent: Mapping[int, Message], replies: Mapping[int, Message]) -> dict[int, str]:
            self.seen.append(list(replies))
            return {client: "is even" for client in replies if client % 2 == 0}

    spec, seen = specification(fed), list[list[int]]()
    replies = {client: Message(w=torch.full((3,), 10.0**client)) for client in range(4)}
    pipe = Pipeline([Bound(norm=500.0, factor=0), Picky(seen=seen)])
    complaints = pipe.judge(spec, {}, replies)
    assert complaints == {3: "'w' has norm 1.73e+03, above bound:norm=500", 0: "is even", 2: "is even"}
    assert seen == [[0, 1, 2]]


STAGE = """
from dataclasses import dataclass
import torch
import fedgraft as fg

@dataclass(frozen=True, kw_only=True)
class Quarters(fg.Stage):
    name = "quarters"
    parts: int = 4
    def encode(self, message, known, memory):
        memory["sent"] = memory.get("sent", torch.zeros(())) + 1
        return fg.Message(**{n: (self.parts * t).round() / self.parts if t.is_floating_point() else t
                             for n, t in message.items()})
    def judge(self, spec, sent, replies):
        return {client: "comes from client 2" for client in replies if client == 2}

@dataclass(frozen=True, kw_only=True)
class Largest(fg.Averaging):
    name = "largest"
    def average(self, rows, weights):
        return rows.max(dim=0).values
"""


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Two stages in a file of one's own, named from the folder in which it lies."""
    monkeypatch.chdir(tmp_path)
    Path("mine.py").write_text(STAGE)
    return ["./mine.py:Quarters:parts=8", "./mine.py:Largest"]


def bits(run: fg.Run) -> dict[str, list[float]]:
    assert run.server is not None
    return {name: tensor.tolist() for name, tensor in run.server.items()}


def test_a_stage_of_ones_own_is_one_file(
    fed: Federation, own: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It codes, remembers, judges and averages; on this machine and on Flower, with the same bits."""
    settings = {"model": "mlp:5", "rounds": 2, "training": {"lr": 0.1, "epochs": 1, "stages": own}}
    local = fg.run("fedavg", fed, workers=1, **settings)
    refused = [[each["client"] for each in record["refused"]] for record in local.records]
    assert refused == [[2], [2]]
    assert "fedavg, round 1: the reply comes from client 2" in local.records[0]["refused"][0]["reason"]
    assert [float(local._states[c].get("stage/quarters/sent", 0)) for c in range(4)] == [2, 2, 0, 2]
    weights = torch.tensor(bits(local)["weights/0"])
    assert torch.equal(weights, (8 * weights).round() / 8), "the largest of rounded numbers"
    assert bits(local) != bits(fg.run("fedavg", fed, workers=1, **{**settings, "training": {"lr": 0.1, "epochs": 1}}))

    # a module that every machine has; a file would travel with the app (tests/extending)
    Path("ownstages.py").write_text(STAGE)
    monkeypatch.syspath_prepend(tmp_path)
    settings["training"]["stages"] = [stage.replace("./mine.py", "ownstages") for stage in own]  # type: ignore[index]
    federated = Federated(tmp_path, fed, {"method": "fedavg", **settings}).serve()
    assert bits(federated) == bits(local)
    apart = [[each["client"] for each in record["refused"]] for record in federated.records]
    assert apart == refused


def test_from_the_command_line_and_found_again_from_another_folder(
    own: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = ["run", "fedavg", "--clients", "4", "--rounds", "2", "--model", "linear", "--workers", "1", "--out", "run"]
    words += [word for stage in own for word in ("--stage", stage)]
    done = CliRunner().invoke(app, words)
    assert done.exit_code == 0, done.output
    assert "the reply comes from client 2" in Path("run/result.json").read_text()
    for name in ("result.json", "checkpoints/round-000002/server.safetensors"):
        Path("run", name).unlink()
    monkeypatch.chdir("/")
    resumed = fg.resume(tmp_path / "run")
    assert resumed.config.training.stages[1:] == (f"{tmp_path}/mine.py:Quarters:parts=8", f"{tmp_path}/mine.py:Largest")
    assert len(resumed.records) == 2


def test_what_is_no_stage_is_refused(fed: Federation, tmp_path: Path) -> None:
    (tmp_path / "other.py").write_text(
        "from dataclasses import dataclass\n\n@dataclass\nclass Nothing:\n    x: int = 0\n"
    )
    with pytest.raises(UserError, match="is not a stage: it has to be a class that derives from fedgraft"):
        fg.run("fedavg", fed, model=small_network(), rounds=1, stages=[f"{tmp_path}/other.py:Nothing"])
