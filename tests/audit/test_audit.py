"""Audits of finished runs: planted leaks are found, privacy hides them, and every wrong turn is a sentence."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

import fedgraft as fg
from fedgraft.audit.auditing import audit
from fedgraft.audit.eavesdrop import Candidates, heard, shadows
from fedgraft.audit.picture import picture, sentences
from fedgraft.base import characters
from fedgraft.base.errors import UserError
from fedgraft.cli import app

LEARN: dict[str, Any] = {
    "clients": 3, "partition": "iid", "rounds": 2, "epochs": 30, "lr": 0.1, "momentum": 0.9, "batch_size": 30,
    "model": "mlp:32", "workers": 1, "progress": False, "evaluate_every": 2,
}  # fmt: skip


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Labels that nothing tells: whatever a model knows of them, it has by heart. And a run that learned them so."""
    place, rng = tmp_path_factory.mktemp("audited"), np.random.default_rng(0)
    x, y = rng.standard_normal((240, 40)).astype(np.float32), rng.integers(0, 4, 240)
    np.savez(place / "chance.npz", x_train=x[:120], y_train=y[:120], x_test=x[120:], y_test=y[120:])
    fg.run("fedavg", dataset=str(place / "chance.npz"), out=place / "plain", **LEARN)
    return place


def command(*parts: Any) -> Any:
    return CliRunner().invoke(app, [str(part) for part in parts])


def test_what_was_learned_by_heart_is_found(home: Path) -> None:
    done = command("audit", home / "plain", "--shadows", "3", "--json")
    assert done.exit_code == 0, done.output
    told = json.loads((home / "plain" / "audit.json").read_text())
    assert (told["epsilon"], told["shadows"], told["view"], told["notes"]) == (None, 3, "all", [])
    for attack in ("loss", "LiRA"):
        found = told["membership"][attack]
        assert found["auc"] > 0.9
        assert found["at_least"]["epsilon"] > 1
        assert found["auc_interval"][0] <= found["auc"] <= found["auc_interval"][1]
    assert len(told["per_client"]) == 3
    assert {"client", "loss", "LiRA", "labels"} == told["per_client"][0].keys()


@pytest.mark.slow
def test_privacy_hides_it_and_the_attack_stays_below_epsilon(home: Path) -> None:
    pytest.importorskip("dp_accounting")
    private = {**LEARN, "epochs": 3, "epsilon": 1.0, "delta": 1e-5}
    run = fg.run("fedper", dataset=str(home / "chance.npz"), out=home / "private", **private)
    found = audit(home / "private", shadows=2)
    assert found.epsilon == run.result["privacy"][0]["epsilon"] <= 1
    assert found.view == "extractor"
    for attack in ("loss", "LiRA"):
        bound, verdict = found.bound(attack), found.verdict(attack)
        assert bound is not None
        assert verdict is not None
        assert bound.epsilon <= 1
        assert verdict.area.value < 0.7
    text = characters.as_text(picture(found))
    assert f"the run's is {found.epsilon:.3g}" in " ".join(text.split())
    assert "fitted a head" in " ".join(sentences(found))
    candidates = [Candidates.of(data) for data in run.federation.clients]
    noisy = [each.heard.last[0].reply["weights"] for each in shadows(run, candidates, 2)]
    assert not torch.equal(*noisy)


def test_what_is_heard_is_what_the_run_was_made_of(home: Path) -> None:
    run = fg.load(home / "plain")
    told = heard(run, run.federation.clients)
    assert sorted(told.last) == [0, 1, 2]
    assert {each.round for each in told.first.values()} == {0}
    assert {each.round for each in told.last.values()} == {1}
    replies = torch.stack([told.last[client].reply["weights"] for client in range(3)])
    assert run.server is not None
    weights = torch.tensor(run.spec.samples, dtype=torch.float32) / sum(run.spec.samples)
    torch.testing.assert_close(weights @ replies, run.method.send(run.server, 0)["weights"])


def test_shadows_have_as_many_samples_drawn_from_a_client_s_own(home: Path) -> None:
    run = fg.load(home / "plain")
    candidates = [Candidates.of(data) for data in run.federation.clients]
    one, other = shadows(run, candidates, 2)
    for client, each in enumerate(candidates):
        assert len(one.trained[client]) == each.members == run.spec.samples[client]
        assert 0 <= int(one.trained[client].min()) <= int(one.trained[client].max()) < len(each.samples)
        assert not torch.equal(one.trained[client], other.trained[client])


def test_what_cannot_be_audited_is_refused_in_a_sentence(home: Path, tmp_path: Path) -> None:
    data = {"dataset": str(home / "chance.npz"), **LEARN, "epochs": 1}
    fg.run("local", out=tmp_path / "alone", **data)
    (tmp_path / "unfinished").mkdir()
    (tmp_path / "unfinished" / "config.toml").write_bytes((home / "plain" / "config.toml").read_bytes())
    (tmp_path / "here.npz").write_bytes((home / "chance.npz").read_bytes())
    fg.run("fedavg", out=tmp_path / "gone", **{**data, "dataset": str(tmp_path / "here.npz")})
    (tmp_path / "here.npz").unlink()
    for place, words in (
        ("alone", "the clients send nothing"), ("unfinished", "has not finished"), ("gone", "here.npz"),
        ("nothing", "holds no run"),
    ):  # fmt: skip
        done = command("audit", tmp_path / place)
        assert isinstance(done.exception, UserError), done.output
        assert words in str(done.exception)
        assert not (tmp_path / place / "audit.json").exists()
