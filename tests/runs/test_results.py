"""What a run leaves behind, also when something could not be measured or nobody was heard."""

import io
import json
import math
import re
import shutil
import struct
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import Wire, blobs, classified, small_network
from rich.console import Console
from safetensors.torch import save_file

import fedgraft as fg
from fedgraft import cli, models
from fedgraft.base.errors import UserError
from fedgraft.core.client import ClientId
from fedgraft.core.evaluation import Scores, Summary
from fedgraft.core.message import Message
from fedgraft.core.rounds import Round
from fedgraft.core.task import Classification
from fedgraft.data.federation import Federation
from fedgraft.report import figures
from fedgraft.report.page import render
from fedgraft.report.text import show
from fedgraft.report.watch import watch
from fedgraft.runs import results
from fedgraft.runs.metric import ACCURACY
from fedgraft.runs.reading import read_all
from fedgraft.runs.resultfile import Record, complaint
from fedgraft.runs.run import Run
from fedgraft.trackers import tracker

QUICK: dict[str, Any] = {"rounds": 3, "workers": 1, "lr": 0.1, "batch_size": 8}


def evaluated(number: int, mean: float | None, validation: float | None = None) -> dict[str, Any]:
    """The record of a round in which both points had the same figures."""
    parts = {"received": mean, "trained": mean}
    if validation is not None:
        parts |= {f"{point}_validation": validation for point in parts}
    figures = {part: {"metrics": {"accuracy": {"mean": value, "pooled": value}}} for part, value in parts.items()}
    return {"round": number, **figures}


def test_best_and_last_skip_rounds_without_a_figure() -> None:
    records = [evaluated(1, 0.5), {"round": 2}, evaluated(3, 0.4), evaluated(4, None)]
    found = results.best_and_last(records, [ACCURACY])
    assert found["best"]["trained"]["mean"] == {"round": 1, "value": 0.5}
    assert found["last"]["trained"] == {"accuracy": {"mean": 0.4, "pooled": 0.4}}
    assert found["last"]["round"] == 3


def test_the_best_is_the_least_where_less_is_better() -> None:
    less = ACCURACY.model_copy(update={"higher": False})
    found = results.best_and_last([evaluated(1, 0.5), evaluated(2, 0.2), evaluated(3, 0.4)], [less])
    assert found["best"]["trained"]["mean"] == {"round": 2, "value": 0.2}


@pytest.mark.parametrize("missing", [0, 1, 2])
def test_best_is_chosen_among_the_rounds_that_have_validation_figures(missing: int) -> None:
    records = [evaluated(1, 0.5, 0.7), evaluated(2, 0.6, 0.8), evaluated(3, 0.4, 0.6)]
    records[missing] = evaluated(missing + 1, 0.9)
    found = results.best_and_last(records, [ACCURACY])
    assert found["best"]["chosen_on"] == "validation"
    assert found["best"]["received"]["pooled"]["round"] == (1 if missing == 1 else 2)
    assert found["last"]["round"] == 3


def test_a_run_in_which_nobody_was_tested_has_no_figures() -> None:
    found = results.best_and_last([{"round": 1}, {"round": 2}], [ACCURACY])
    nothing = {"accuracy": {"mean": None, "pooled": None}}
    assert found["last"] == {"received": nothing, "trained": nothing, "round": None}
    assert found["best"]["trained"] == {"mean": None, "pooled": None}


@pytest.fixture
def in_rounds(monkeypatch: pytest.MonkeyPatch) -> Callable[[set[int]], None]:
    """Let nobody be tested but in some rounds."""

    def only(chosen: set[int]) -> None:
        class Seldom(Wire):
            def evaluate(self, round: int, messages: Mapping[ClientId, Message]) -> Mapping[ClientId, Scores]:
                return super().evaluate(round, messages) if round in chosen else {}

        monkeypatch.setattr("fedgraft.engines.local.LocalEngine", Seldom)

    return only


def untested(fed: Federation, out: Path, **more: Any) -> Run:
    return fg.run("fedapa", fed, model=small_network(), out=out, progress=True, **QUICK, **more)


@pytest.mark.slow
def test_a_result_is_written_also_when_nobody_could_be_tested(
    fed: Federation, tmp_path: Path, in_rounds: Callable[[set[int]], None]
) -> None:
    in_rounds(set())
    pytest.importorskip("tensorboard")
    with tracker("tensorboard") as watcher:
        run = untested(fed, tmp_path / "run", watchers=[watcher])
    assert json.loads((tmp_path / "run" / "result.json").read_text())["last"]["round"] is None
    assert run.value != run.value
    assert "no client's model could be tested in any round" in str(run)
    reading = read_all([tmp_path / "run"])
    assert "fedapa" in render(reading)
    console = Console(width=80)
    with console.capture() as shown:
        show(reading, console)
    assert "not tested" in shown.get()
    pytest.importorskip("matplotlib")
    assert figures.write(reading, tmp_path / "figures")
    compared = fg.compare([], seeds=1, federation=lambda _: fed, model=small_network(), progress=True, **QUICK)
    assert compared.to_json()["rows"][0]["mean"]["trained"] == {"mean": None, "deviation": None}


def test_a_result_keeps_the_rounds_in_which_somebody_was_tested(
    fed: Federation, tmp_path: Path, in_rounds: Callable[[set[int]], None]
) -> None:
    in_rounds({1})
    run = untested(fed, tmp_path / "run")
    assert run.result["last"]["round"] == 2
    measured = run.records[1]["trained"]["metrics"]
    expected = {name: {figure: found[figure] for figure in results.FIGURES} for name, found in measured.items()}
    assert run.result["last"]["trained"] == expected
    assert "trained" in str(run)
    render(read_all([tmp_path / "run"]))


DEAF = {**QUICK, "stages": ["bound:norm=1e-6"]}


def test_a_run_in_which_no_reply_was_taken_is_no_success(fed: Federation, tmp_path: Path) -> None:
    sentence = r"took no reply in any round \(the first: fedavg, round 1: .*\), so nobody .*; the result is in .*run"
    with pytest.raises(UserError, match=sentence):
        fg.run("fedavg", fed, model=small_network(), out=tmp_path / "run", **DEAF)
    written = json.loads((tmp_path / "run" / "result.json").read_text())
    assert [record["accepted"] for record in written["rounds"]] == [0, 0, 0]
    assert written["refused"] >= 12
    assert "took no reply in any round" in render(read_all([tmp_path / "run"]))
    with pytest.raises(UserError, match="took no reply"):
        fg.run("fedavg", fed, model=small_network(), **DEAF)
    one = fg.run("local", fed, model=small_network(), **DEAF)
    assert [record["accepted"] for record in one.records] == [4, 4, 4], "alone, nothing is sent and nothing refused"


def test_a_resumed_run_in_which_no_reply_was_taken_is_no_success(fed: Federation, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="took no reply"):
        fg.run("fedavg", fed, model=small_network(), out=tmp_path / "run", checkpoint_every=1, **DEAF)
    (tmp_path / "run" / "result.json").unlink()
    with pytest.raises(UserError, match="took no reply"):
        fg.resume(tmp_path / "run", fed, model=small_network())
    assert (tmp_path / "run" / "result.json").exists()


WORDS = ["--rounds", "1", "--clients", "3", "--partition", "iid", "--workers", "1", "--stage", "bound:norm=1e-6"]


def test_the_command_line_ends_with_code_2_where_no_reply_was_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("fedgraft.cli.signal.signal", lambda *_: None)  # the tests keep their own
    for words in (["run", "fedavg"], ["compare", "--seeds", "1"]):
        out = str(tmp_path / words[0])
        monkeypatch.setattr("sys.argv", ["fedgraft", *words, *WORDS, "--out", out])
        with pytest.raises(SystemExit) as ended:
            cli.main()
        assert ended.value.code == 2
        assert "took no reply in any round" in capsys.readouterr().err.splitlines()[-1]
    assert (tmp_path / "run" / "result.json").exists()
    assert (tmp_path / "compare" / "comparison.json").exists()


def test_a_comparison_says_in_which_runs_no_reply_was_taken() -> None:
    fed = blobs()
    compared = fg.compare(["fedper"], seeds=2, federation=lambda _: fed, model=small_network(), **DEAF)
    assert [row.unheard for row in compared.rows()] == [0, 2, 2]
    assert "nobody learned anything from others: fedavg (2 runs), fedper (2" in " ".join(str(compared).split())


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that has everything: matrices, validation figures, everybody's data."""
    place = tmp_path_factory.mktemp("finished") / "run"
    settings = {"clients": 3, "rounds": 2, "workers": 1, "validation": 0.2, "global_test": True, "checkpoint_every": 1}
    fg.run("fedapa", out=place, **settings)
    return place


@pytest.fixture
def copy(finished: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(finished, tmp_path / "copy"))


def accuracy(result: dict[str, Any]) -> Any:
    return result["rounds"][0]["trained"]["metrics"]["accuracy"]


FIGURES = {"mean": 0.5, "pooled": 0.5, "per_client": [0.5] * 3}
FORGERIES: dict[str, tuple[Callable[[dict[str, Any]], object], str]] = {
    "wrong type": (lambda r: r.update(clients="3"), "clients: input should be a valid integer"),
    "truth": (lambda r: r.update(seconds=True), "seconds: input should be a valid number"),
    "missing": (lambda r: r.pop("headline"), "it lacks headline"),
    "missing in a round": (lambda r: r["rounds"][1].pop("bytes_up"), "rounds.1.bytes_up: field required"),
    "null": (lambda r: r["rounds"][1].update(trained=None), "rounds.1.trained: input should be"),
    "one point": (lambda r: r["rounds"][1].pop("trained"), "one of the two points is missing"),
    "too few clients": (
        lambda r: accuracy(r)["per_client"].pop(),
        "has 2 entries for 3 clients",
    ),
    "too many names": (lambda r: r["names"].append("x"), "names has 4 entries for 3 clients"),
    "no classes": (lambda r: r.update(label_counts=[[], [], []]), "tells of no classes"),
    "ragged": (lambda r: r["label_counts"][0].pop(), "rows of different lengths"),
    "NaN": (lambda r: r["last"]["trained"]["accuracy"].update(mean=math.nan), "last.trained.accuracy.mean: "),
    "infinity": (lambda r: r.update(seconds=math.inf), "seconds: "),
    "above one": (
        lambda r: accuracy(r).update(mean=7.0),
        "accuracy that cannot be",
    ),
    "below nothing": (lambda r: r["last"]["trained"]["accuracy"].update(pooled=-0.5), "accuracy that cannot be"),
    "another metric": (lambda r: r["rounds"][1]["trained"]["metrics"].update(x=FIGURES), "other metrics than accuracy"),
    "no metric": (lambda r: r.update(metrics=[]), "metrics: list should have at least 1 item"),
    "a metric twice": (lambda r: r["metrics"].append(r["metrics"][0]), "two metrics have one name"),
    "no direction": (lambda r: r["metrics"][0].pop("higher"), "metrics.0.higher: field required"),
    "huge": (lambda r: r.update(bytes_up_per_client=1e300), "bytes_up_per_client: "),
    "beyond a long": (lambda r: r["rounds"][0].update(bytes_up=10**30), "rounds.0.bytes_up: "),
    "a round twice": (lambda r: r["rounds"].append(r["rounds"][1]), "does not hold every round"),
    "a round gone": (lambda r: r["rounds"].pop(), "does not hold every round"),
    "other clients": (lambda r: r["diverged"].update(trained=[3]), "diverged who is no client"),
    "another seed": (lambda r: r.update(seed=5), "seed is 5 there and 0 in config.toml"),
    "nested": (lambda r: r.update(params={"a": nested(100)}), "nested too deeply"),
}


def nested(depth: int) -> list[Any]:
    found: list[Any] = []
    for _ in range(depth):
        found = [found]
    return found


@pytest.mark.parametrize("name", FORGERIES)
def test_resume_and_report_agree_that_a_forged_result_is_damaged(copy: Path, name: str) -> None:
    forge, sentence = FORGERIES[name]
    result = json.loads((copy / "result.json").read_text())
    forge(result)
    (copy / "result.json").write_text(json.dumps(result))
    for work in (lambda: read_all([copy]), lambda: fg.resume(copy)):
        with pytest.raises(UserError, match=f"result.json is damaged: .*{re.escape(sentence)}") as caught:
            work()
        assert "\n" not in str(caught.value)


def test_resume_and_report_agree_that_a_run_is_complete_and_a_damaged_one_is_mended(copy: Path) -> None:
    before = json.loads((copy / "result.json").read_text())
    render(read_all([copy]))
    with pytest.raises(UserError, match="is complete"):
        fg.resume(copy)
    (copy / "result.json").write_text("{")
    with pytest.raises(UserError, match=r"result.json is damaged"):
        fg.resume(copy)
    (copy / "result.json").unlink()
    assert fg.resume(copy, workers=1).result == before


def first_format(result: dict[str, Any]) -> dict[str, Any]:
    """A result as the first format had it: accuracy and a loss, and no word of metrics."""

    def test(found: dict[str, Any]) -> dict[str, Any]:
        accuracy, loss = found["metrics"]["accuracy"], found["metrics"]["log_loss"]["pooled"]
        return {**accuracy, "loss": loss, "diverged": found["diverged"]}

    old = {key: value for key, value in result.items() if key not in ("task", "metrics")} | {"format": 1}
    old["rounds"] = [
        {key: test(value) if isinstance(value, dict) else value for key, value in record.items()}
        for record in result["rounds"]
    ]
    points = ("received", "trained")
    old["last"] = result["last"] | {point: result["last"][point]["accuracy"] for point in points}
    old["best"] = result["best"] | {
        point: {
            figure: {"round": chosen["round"], "accuracy": chosen["value"]}
            for figure, chosen in result["best"][point].items()
        }
        for point in points
    }
    return old


def test_a_result_of_the_first_format_is_read_as_one_of_the_second(copy: Path) -> None:
    new = results.read_json(copy / "result.json")
    before = read_all([copy]).runs[0].facts
    (copy / "result.json").write_text(json.dumps(first_format(new)))
    (copy / "metrics.jsonl").write_text("".join(json.dumps(r) + "\n" for r in first_format(new)["rounds"]))
    after = read_all([copy]).runs[0].facts
    assert (after.format, after.task) == (2, "classification")
    for point in ("received", "trained"):
        assert after.last.figures(point, "accuracy") == before.last.figures(point, "accuracy")
        assert after.best.choice(point) == before.best.choice(point)
        old, now = (facts.rounds[1].test(point, "_global") for facts in (before, after))
        assert old is not None
        assert now is not None
        assert now.metrics["accuracy"] == old.metrics["accuracy"]
        assert now.metrics["log_loss"].pooled == old.metrics["log_loss"].pooled
        last = after.last.figures(point, "log_loss")
        assert last is not None
        assert last.pooled == new["last"][point]["log_loss"]["pooled"]
    assert "accuracy" in render(read_all([copy]))
    shown = Console(file=io.StringIO(), force_terminal=True, width=100)
    watch(copy, shown, poll_seconds=0.01)
    assert "2/2" in shown.file.getvalue()  # type: ignore[attr-defined]


def test_a_result_of_a_later_format_is_refused_in_a_sentence(copy: Path) -> None:
    (copy / "result.json").write_text(json.dumps({**results.read_json(copy / "result.json"), "format": 3}))
    with pytest.raises(UserError, match="has format 3, but this fedgraft reads formats 1 and 2"):
        read_all([copy])


@pytest.mark.parametrize(
    ("tensor", "sentence"),
    [
        (torch.zeros(2, 3, 3, dtype=torch.float64), "numbers of type torch.float64"),
        (torch.zeros(2, 3, 3, dtype=torch.bfloat16), "numbers of type torch.bfloat16"),
        (torch.zeros(3, 3, 3), "does not hold 2 rounds"),
        (torch.zeros(()), "does not hold 2 rounds"),
        (torch.zeros(2, 0), "does not hold 2 rounds"),
    ],
)
def test_forged_observations_are_damaged(copy: Path, tensor: torch.Tensor, sentence: str) -> None:
    save_file({"A": tensor}, copy / "observed.safetensors")
    with pytest.raises(UserError, match=f"observed.safetensors is damaged: 'A' .*{sentence}"):
        read_all([copy])


@pytest.mark.parametrize("shape", [(2, 3), (2, 3, 3), (2, 3, 4, 3)])
@pytest.mark.parametrize("value", [math.nan, math.inf, 3e38])
def test_figures_that_are_none_or_huge_are_shown(copy: Path, shape: tuple[int, ...], value: float) -> None:
    shown = torch.full(shape, value)
    shown[0] = -value
    save_file({"A": shown}, copy / "observed.safetensors")
    reading = read_all([copy])
    render(reading)
    show(reading, Console(width=80, file=io.StringIO()))


def test_metrics_that_are_a_folder_are_a_sentence(copy: Path) -> None:
    (copy / "result.json").unlink()
    (copy / "metrics.jsonl").unlink()
    (copy / "metrics.jsonl").mkdir()
    with pytest.raises(UserError, match=r"metrics.jsonl is a folder where a file belongs; take it away"):
        fg.resume(copy, workers=1)
    with pytest.raises(UserError, match=r"metrics.jsonl cannot be read: Is a directory"):
        watch(copy, Console(file=io.StringIO()))
    assert not list(copy.glob("*.part"))


@pytest.mark.parametrize("line", ["[]", "{}", '{"round": "1"}', "[" * 9999])
def test_metrics_that_are_none_are_a_sentence(copy: Path, line: str) -> None:
    (copy / "metrics.jsonl").write_text(line + "\n")
    with pytest.raises(UserError, match=r"metrics.jsonl is damaged"):
        watch(copy, Console(file=io.StringIO()))


def test_a_loss_that_is_beyond_all_numbers_does_not_spoil_the_result() -> None:
    summary = Summary.of({0: classified(1, 2, 1e200)}, 1, Classification(3).judges())
    written = results.record(Round(0, (0,), loss=1e300, test={"received": summary, "trained": summary}))
    assert written["loss"] is None
    assert complaint(Record, json.loads(json.dumps(written))) is None


@pytest.mark.parametrize("name", ["mlp:8-8", "lenet5", "vgg11:0.0625"])
def test_a_model_file_that_holds_what_it_describes_is_loaded(tmp_path: Path, name: str) -> None:
    network = models.build(name, (3, 32, 32), 10)
    told = {"model": name, "input": "3,32,32", "outputs": "10"}
    save_file(network.state_dict(), tmp_path / "model", told)
    loaded = fg.load_model(tmp_path / "model")
    assert not loaded.training
    for key, tensor in network.state_dict().items():
        assert torch.equal(loaded.state_dict()[key], tensor)


def test_a_model_file_that_asks_for_more_than_it_holds_is_refused(tmp_path: Path) -> None:
    for size in (17 * 10**9 // 4 // 10, 2**62):
        told = {"model": "mlp:10", "input": str(size), "outputs": "10"}
        text = json.dumps({"__metadata__": told}).encode()
        (tmp_path / "model").write_bytes(struct.pack("<Q", len(text)) + text)
        with pytest.raises(UserError, match="it describes another network than it holds"):
            fg.load_model(tmp_path / "model")
