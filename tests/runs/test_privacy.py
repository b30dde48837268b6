"""Private runs as a user meets them: the budget, what stands in results, what an interruption does to it."""

import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import blobs, small_network
from typer.testing import CliRunner

from fedgraft.base.errors import UserError
from fedgraft.cli import app
from fedgraft.core.budget import epsilon, multiplier
from fedgraft.report.export import table
from fedgraft.runs.run import Run, load, resume, run

SETTINGS: dict[str, Any] = {
    "rounds": 3, "workers": 1, "lr": 0.1, "epochs": 1, "batch_size": 4, "participation": 0.5, "checkpoint_every": 1,
}  # fmt: skip


def private(out: Path | None = None, **more: Any) -> Run:
    return run(
        "fedper", blobs(), model=small_network(), out=out, progress=False, **{"epsilon": 4.0, **SETTINGS, **more}
    )


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return private(tmp_path_factory.mktemp("private") / "run")


def test_the_result_tells_what_each_client_has_spent(done: Run) -> None:
    (found,) = done.facts.privacy
    assert (found.unit, found.delta, found.budget, found.clip) == ("sample", 1e-5, 4.0, 1.0)
    asked = [sum(client in record["participants"] for record in done.records) for client in range(4)]
    assert sorted(set(asked)) != [3]  # half of the clients take part in a round
    assert [each.steps for each in found.per_client] == [n * k for n, k in zip(asked, (5, 4, 8, 2), strict=True)]
    for times, each in zip(asked, found.per_client, strict=True):
        assert each.epsilon == 0.0 if not times else 3.99 < each.epsilon <= 4.0
    assert found.epsilon == max(each.epsilon or 0.0 for each in found.per_client)
    assert all(record["loss"] is None for record in done.records)


def test_it_stands_in_tables_and_report(done: Run, tmp_path: Path) -> None:
    sentence = r"epsilon 4 for each sample \(delta 1e-05\)"
    assert re.search(f"differential privacy: {sentence}", re.sub(r"\s+", " ", str(done)))
    assert re.search(f"Differential privacy, {sentence}: fedper", done.report(tmp_path / "r.html").read_text("utf-8"))
    assert "epsilon_sample" in table(done._alone, "csv")


def test_prototypes_have_their_share_of_the_budget() -> None:
    done = run("fedproto", blobs(), model=small_network(), progress=False, **{**SETTINGS, "epsilon": 4.0})
    (found,) = done.facts.privacy
    for each in found.per_client:
        times = each.sums  # one in each round
        assert each.steps % max(times, 1) == 0
        assert each.epsilon == 0.0 if not times else 3.99 < each.epsilon <= 4.0
        if times:
            assert epsilon(1.0, each.sum_noise, times, 1e-5) == pytest.approx(0.3 * 4.0, rel=2e-3)
            assert each.noise > multiplier(4.0, 1e-5, each.rate, each.steps)


def test_interrupted_it_spends_neither_twice_nor_less(done: Run, tmp_path: Path) -> None:
    place = tmp_path / "run"
    shutil.copytree(done.directory or "", place)
    (place / "result.json").unlink()
    shutil.rmtree(max((place / "checkpoints").glob("*0*")))
    again = resume(place, blobs(), model=small_network())
    assert again.result["privacy"] == done.result["privacy"]
    assert again.result["last"] == done.result["last"]  # the repeated round has the same noise
    with pytest.raises(UserError, match="resuming cannot change epsilon"):
        resume(place, blobs(), model=small_network(), epsilon=8.0)


def test_other_settings_are_another_budget(done: Run, tmp_path: Path) -> None:
    place = tmp_path / "run"
    shutil.copytree(done.directory or "", place)
    (place / "result.json").unlink()
    text = (place / "config.toml").read_text("utf-8")
    (place / "config.toml").write_text(text.replace("epsilon = 4.0", "epsilon = 400.0"), "utf-8")
    with pytest.raises(UserError, match=r"epsilon is 4\.0 there and 400\.0 here"):
        resume(place, blobs(), model=small_network())


def test_a_forged_result_is_refused(done: Run, tmp_path: Path) -> None:
    place = tmp_path / "run"
    shutil.copytree(done.directory or "", place)
    forged = json.loads((place / "result.json").read_text("utf-8"))
    forged["privacy"][0]["per_client"].pop()
    (place / "result.json").write_text(json.dumps(forged), "utf-8")
    with pytest.raises(UserError, match="privacy 1 has 3 entries for 4 clients"):
        load(place, blobs(), model=small_network())


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["fedas", "--epsilon", "4"], "'fisher' in its replies is the size of the samples' gradients"),
        (["fedproto:distance=euclidean", "--epsilon", "4"], "'prototypes' in its replies is made by training on"),
        (["fedavg", "--delta", "1e-5"], "delta is a setting of differential privacy: name epsilon or noise too"),
        (["fedavg", "--epsilon", "0"], "epsilon"),
        (["fedapa", "--client-epsilon", "8"], "its server needs what each client sends (weights), not only the sum"),
        (["fedavg", "--client-clip", "1"], "client_clip is a setting of clients' privacy: name client_epsilon or"),
        (["fedavg", "--client-epsilon", "1", "--client-noise", "1"], "would spend epsilon"),
        (["fedavg", "--epsilon", "0.1", "--noise", "1"], "would spend epsilon"),
    ],
)
def test_what_cannot_be_private_is_refused_and_nothing_is_written(
    arguments: list[str], sentence: str, tmp_path: Path
) -> None:
    out = tmp_path / "run"
    told = CliRunner().invoke(app, ["run", *arguments, "--out", str(out), "--rounds", "2", "--clients", "3"])
    assert isinstance(told.exception, UserError)  # which ends with exit code 2
    assert sentence in str(told.exception)
    assert not out.exists()


# ---- whole clients


@pytest.fixture(scope="module")
def crowd(tmp_path_factory: pytest.TempPathFactory) -> Run:
    place = tmp_path_factory.mktemp("crowd") / "run"
    return private(place, epsilon=None, client_epsilon=8.0, delta=1e-6, client_quantile=0.5)


def test_the_result_tells_what_the_clients_have_spent(crowd: Run, tmp_path: Path) -> None:
    (found,) = crowd.facts.privacy
    assert (found.unit, found.delta, found.budget, found.clip) == ("client", 1e-6, 8.0, 1.0)
    assert {(each.rate, each.steps) for each in found.per_client} == {(0.5, 3)}  # whoever was asked: that is a secret
    assert found.epsilon is not None
    assert 7.98 < found.epsilon <= 8.0
    assert all(record["loss"] is None for record in crowd.records)
    sentence = r"epsilon 8 for each client \(delta 1e-06\)"
    assert re.search(f"differential privacy: {sentence}", re.sub(r"\s+", " ", str(crowd)))
    assert re.search(f"Differential privacy, {sentence}: fedper", crowd.report(tmp_path / "r.html").read_text("utf-8"))
    assert "epsilon_client" in table(crowd._alone, "csv")


def test_interrupted_it_releases_the_same_bits_again(crowd: Run, tmp_path: Path) -> None:
    place = tmp_path / "run"
    shutil.copytree(crowd.directory or "", place)
    (place / "result.json").unlink()
    shutil.rmtree(max((place / "checkpoints").glob("*0*")))
    again = resume(place, blobs(), model=small_network())
    assert again.result["privacy"] == crowd.result["privacy"]
    assert again.server is not None
    assert crowd.server is not None
    assert float(again.server["privacy.clip"]) != 1.0  # it adapts, and is part of a checkpoint
    for name, tensor in crowd.server.items():
        assert torch.equal(again.server[name], tensor), name
    with pytest.raises(UserError, match="resuming cannot change client_noise"):
        resume(place, blobs(), model=small_network(), client_noise=8.0)


def test_samples_and_clients_can_be_protected_at_once() -> None:
    both = private(client_epsilon=8.0)
    assert [(each.unit, each.budget) for each in both.facts.privacy] == [("sample", 4.0), ("client", 8.0)]
