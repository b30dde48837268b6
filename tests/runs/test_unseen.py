"""Clients that are held out of training: they leave no trace in it, join afterwards, and are reported by themselves."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import fedgraft as fg
from fedgraft.base.errors import UserError
from fedgraft.core.client import Client
from fedgraft.methods.fedavg import FedAvg
from fedgraft.report.export import table
from fedgraft.runs.config import RunConfig
from fedgraft.runs.population import held_out

QUICK: dict[str, Any] = {"rounds": 2, "workers": 1, "model": "mlp:8", "progress": False}


def sites(count: int, seed: int = 0) -> fg.Federation:
    rng = np.random.default_rng(seed)

    def site(number: int) -> fg.Site:
        x, y = rng.standard_normal((30, 4)).astype(np.float32), rng.integers(3, size=30)
        return fg.Site(x[:20], y[:20], x[20:], y[20:], name=f"site {number}")

    return fg.own_data([site(number) for number in range(count)], task="classification:3")


FIVE = sites(5)


@pytest.mark.parametrize(
    ("count", "share", "held"), [(5, 0.2, 1), (5, 0.01, 1), (5, 0.99, 4), (2, 0.9, 1), (10, 0.25, 2)]
)
def test_never_less_than_one_and_never_all(count: int, share: float, held: int) -> None:
    fed = held_out(RunConfig(hold_out=share), sites(count))
    assert isinstance(fed, fg.Federation)
    assert (len(fed), len(fed.unseen)) == (count - held, held)
    assert sorted([*fed.names, *(name for name, _ in fed.unseen)]) == [f"site {n}" for n in range(count)]


def test_who_is_held_out_follows_the_seed_of_the_data() -> None:
    def names(**seeds: int) -> list[str]:
        fed = held_out(RunConfig(hold_out=0.3, **seeds), sites(10))
        assert isinstance(fed, fg.Federation)
        return [name for name, _ in fed.unseen]

    assert names(seed=1) == names(seed=1)
    assert names(seed=5, data_seed=1) == names(seed=1)
    assert len({tuple(names(seed=seed)) for seed in range(6)}) > 1


@pytest.mark.parametrize("method", ["fedapa", "apple", "fedgpa", "scaffold", "pfedhn", "lg-fedavg"])
def test_they_leave_no_trace_in_training(method: str) -> None:
    """Server and clients are, bit for bit, those of a federation that never had them."""
    held = fg.run(method, FIVE, hold_out=0.4, **QUICK)
    gone = {FIVE.names.index(name) for name in held.result["unseen"]["names"]}
    without = fg.own_data(
        [fg.Site(*(getattr(part, kind) for part in (c.train, c.test) for kind in ("inputs", "labels")), name=name)
         for number, (name, c) in enumerate(zip(FIVE.names, FIVE.clients, strict=True)) if number not in gone],
        task="classification:3",
    )  # fmt: skip
    plain = fg.run(method, without, **QUICK)
    assert held.server is not None
    assert plain.server is not None
    assert list(held.server) == list(plain.server)
    assert all(torch.equal(held.server[name], plain.server[name]) for name in plain.server)
    for client, state in plain._states.items():
        assert all(torch.equal(state[name], held._states[client][name]) for name in state)
    assert held.result["last"] == plain.result["last"]
    assert held.result["samples"] == plain.result["samples"]
    assert held.config.clients == 5


def test_each_joins_as_if_it_were_the_only_one() -> None:
    run = fg.run("fedapa", FIVE, hold_out=0.4, **QUICK)
    told = run.result["unseen"]
    for number, name in enumerate(told["names"]):
        data = FIVE.clients[FIVE.names.index(name)]
        site = fg.Site(data.train.inputs, data.train.labels, data.test.inputs, data.test.labels, name=name)
        joined = fg.join(run, site).joined
        for point in ("received", "trained"):
            value = joined.scores.test[point].value(run.spec.metrics[0])  # type: ignore[index]
            assert told[point]["metrics"]["accuracy"]["per_client"][number] == value
    per_client = told["trained"]["metrics"]["accuracy"]["per_client"]
    assert told["trained"]["metrics"]["accuracy"]["mean"] == pytest.approx(sum(per_client) / 2)
    assert told["test_samples"] == [10, 10]


@pytest.fixture(scope="module")
def compared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("comparison") / "out"
    settings = {"dataset": "digits", "clients": 5, "partition": "iid", "metrics": "accuracy,log_loss", **QUICK}
    fg.compare("fedper", seeds=2, hold_out=0.2, out=place, **settings)
    return place


@pytest.mark.slow
def test_a_column_of_their_own_everywhere(compared: Path, tmp_path: Path) -> None:
    found = fg.read(compared)
    told = [json.loads((compared / f"fedper-seed{seed}" / "result.json").read_text())["unseen"] for seed in (0, 1)]
    for metric in ("accuracy", "log_loss"):
        row = next(row for row in found.rows(metric=metric) if row.method == "fedper")
        for name, spread in (("mean", row.unseen["trained"]), ("pooled", row.unseen_pooled["trained"])):
            assert spread.mean == pytest.approx(sum(t["trained"]["metrics"][metric][name] for t in told) / 2)
    assert "Unseen: 1 client in each seed" in str(found)
    for form, heading in (("md", "| unseen | unseen, pooled |"), ("latex", "& unseen & unseen, pooled &"),
                          ("csv", "unseen,unseen_deviation,unseen_pooled"), ("text", "Unseen: 1 client")):  # fmt: skip
        assert heading in table(found, form)  # type: ignore[arg-type]
    assert '"unseen_pooled"' in table(found, "json")
    rows = found.frame()
    rows = rows if isinstance(rows, list) else rows.to_dict("records")
    assert {row["client"] for row in rows if row["set"] == "unseen" and row["seed"] == 0} == {
        "mean", "pooled", *told[0]["names"],
    }  # fmt: skip
    assert "Unseen clients" in found.report(tmp_path / "report.html").read_text()
    assert "held out of training, joined afterwards" in str(fg.load(compared / "fedper-seed0"))


def test_without_them_nothing_is_said(tmp_path: Path) -> None:
    run = fg.run("fedavg", FIVE, **QUICK)
    assert "unseen" not in run.result
    assert "nseen" not in str(run) + run.report(tmp_path / "report.html").read_text().partition("<script")[0]


def test_resuming_gives_the_same_bits(tmp_path: Path) -> None:
    """Also of a run that was cut short when training was over, and its clients were joining."""
    settings = {"dataset": "digits", "clients": 4, "partition": "iid", **QUICK}
    whole = fg.run("fedapa", hold_out=0.25, out=tmp_path / "out", **settings)
    (tmp_path / "out" / "result.json").unlink()
    again = fg.resume(tmp_path / "out")
    first, second = ({k: v for k, v in run.result["unseen"].items() if k != "seconds"} for run in (whole, again))
    assert first == second
    assert fg.load(tmp_path / "out").config.hold_out == 0.25


def test_a_damaged_result_is_refused(tmp_path: Path) -> None:
    fg.run("fedavg", dataset="digits", clients=4, partition="iid", hold_out=0.25, out=tmp_path / "out", **QUICK)
    path = tmp_path / "out" / "result.json"
    told = json.loads(path.read_text())
    for change, sentence in (
        ({"samples": [1, 2]}, "samples has 2 entries for 1 clients that joined"),
        ({"names": ["a", "b"]}, "entries for 2 clients that joined"),
        ({"names": []}, "unseen.names"),
        ({"trained": {"metrics": {}}}, "unseen.trained tells of other metrics"),
    ):
        path.write_text(json.dumps({**told, "unseen": {**told["unseen"], **change}}))
        with pytest.raises(UserError, match=sentence):
            fg.load(tmp_path / "out")
    path.write_text(json.dumps({key: value for key, value in told.items() if key != "unseen"}))
    with pytest.raises(UserError, match=r"clients is 3 there and 4 in config|held out"):
        fg.load(tmp_path / "out")


@dataclass(frozen=True)
class Closed(FedAvg):
    name = "closed"
    refuses_newcomers = "its members are sworn in at the start"


@dataclass(frozen=True)
class Stumbling(FedAvg):
    name = "stumbling"

    def fit_newcomer(self, client: Client, received: torch.Tensor) -> torch.Tensor:
        raise ZeroDivisionError("oh")


def test_what_cannot_be_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    for wrong, sentence in (
        (lambda: fg.run(Closed(), FIVE, hold_out=0.2, out=tmp_path / "out", **QUICK), "closed cannot serve a client"),
        (lambda: fg.run("fedavg", sites(1), hold_out=0.5, out=tmp_path / "out", **QUICK), "there is only one"),
        (lambda: fg.run("fedavg", FIVE, hold_out=1.0, out=tmp_path / "out", **QUICK), "hold_out should be less than 1"),
        (lambda: fg.run("fedavg", FIVE, hold_out=0, out=tmp_path / "out", **QUICK), "hold_out should be greater"),
        (lambda: fg.recommend(FIVE, hold_out=0.2, out=tmp_path / "out"), "hold_out is for run and compare"),
    ):
        with pytest.raises(UserError, match=sentence):
            wrong()
    assert not list(tmp_path.iterdir())


def test_a_client_that_fails_to_join_ends_the_run_or_is_absent() -> None:
    with pytest.raises(UserError, match=r"site \d could not join stumbling: ZeroDivisionError: oh"):
        fg.run(Stumbling(), FIVE, hold_out=0.2, **QUICK)
    run = fg.run(Stumbling(), FIVE, hold_out=0.2, failed_client="absent", **QUICK)
    assert run.result["unseen"]["trained"]["metrics"]["accuracy"]["per_client"] == [None]
    assert run.facts.unseen is not None


def test_a_federation_that_is_not_here_has_nobody_to_hold_out() -> None:
    class Elsewhere:
        """All that a plan knows of sites on other machines."""

        def __len__(self) -> int:
            return 3

    with pytest.raises(UserError, match="hold_out takes clients out of a federation"):
        held_out(RunConfig(hold_out=0.2), Elsewhere())  # type: ignore[arg-type]
