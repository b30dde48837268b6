"""TensorBoard and MLflow, against the files and the database that they write themselves."""

import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from conftest import blobs, small_network
from typer.testing import CliRunner

import fedgraft as fg
from fedgraft.base.errors import UserError
from fedgraft.cli import app
from fedgraft.trackers import metrics, tracker
from fedgraft.trackers.images import image

QUICK = {"rounds": 2, "workers": 1, "lr": 0.1, "batch_size": 8}


def test_matrices_become_images_from_pale_to_dark() -> None:
    picture = image(torch.eye(4))
    assert picture is not None
    assert picture.shape == (256, 256, 3)
    assert picture[0, 0].tolist() == [8, 48, 107]
    assert picture[0, -1].tolist() == [247, 249, 251]
    assert image(torch.ones(3)) is None
    assert image(torch.full((2, 2), torch.nan)) is None


def test_metrics_have_flat_names_and_no_holes() -> None:
    figures = {
        "auc": {"mean": 0.25, "pooled": None, "per_client": [0.25]},
        "rmse": {"mean": 1.5, "pooled": 2.5, "per_client": [1.5]},
        "hits@5/ü": {"mean": 0.5, "pooled": None, "per_client": [0.5]},
    }
    record = {"loss": None, "bytes_up": 3, "bytes_down": 4, "seconds": 0.5, "refused": [1], "round": 1,
              "trained": {"metrics": figures, "diverged": [0]}}  # fmt: skip
    assert metrics(record) == {
        "bytes_up": 3, "bytes_down": 4, "seconds": 0.5, "refused": 1,
        "trained/auc/mean": 0.25, "trained/rmse/mean": 1.5, "trained/rmse/pooled": 2.5,
        "trained/hits_5__/mean": 0.5, "trained/diverged": 1,
    }  # fmt: skip


def test_tensorboard_reads_what_was_written(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard", reason="needs TensorBoard: pip install '.[tensorboard]'")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    with tracker("tensorboard") as watcher:
        run = fg.run("fedapa", blobs(), model=small_network(), out=tmp_path / "run", watchers=[watcher], **QUICK)
    events = EventAccumulator(str(tmp_path / "run" / "tensorboard"), size_guidance={"images": 0}).Reload()
    curve = [(event.step, event.value) for event in events.Scalars("trained/accuracy/pooled")]
    assert curve == [(r["round"], pytest.approx(r["trained"]["metrics"]["accuracy"]["pooled"])) for r in run.records]
    assert [event.step for event in events.Images("A")] == [1, 2]
    text = events.Tensors("parameters/text_summary")[0].tensor_proto.string_val[0].decode()
    assert "| param/mu | 0.5 |" in text
    assert "| lr | 0.1 |" in text
    assert (tmp_path / "run" / "tensorboard" / "report.html").exists()


@pytest.mark.slow
def test_mlflow_reads_what_was_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mlflow = pytest.importorskip("mlflow", reason="needs MLflow: pip install '.[mlflow]'")
    from fedgraft.trackers.mlflow import MLflow

    monkeypatch.chdir(tmp_path)
    store = f"sqlite:///{tmp_path / 'mlflow.db'}"
    with MLflow(store) as watcher:
        run = fg.run("fedapa", blobs(), model=small_network(), watchers=[watcher], **QUICK)
    client = mlflow.MlflowClient(store)
    experiment = client.get_experiment_by_name("fedgraft")
    (kept,) = client.search_runs([experiment.experiment_id])
    assert kept.info.status == "FINISHED"
    history = client.get_metric_history(kept.info.run_id, "trained/accuracy/pooled")
    assert [(m.step, m.value) for m in history] == [
        (r["round"], r["trained"]["metrics"]["accuracy"]["pooled"]) for r in run.records
    ]
    assert kept.data.params["param/mu"] == "0.5"
    assert kept.data.params["lr"] == "0.1"
    artifacts = {artifact.path for artifact in client.list_artifacts(kept.info.run_id)}
    assert {"report.html", "images"} <= artifacts
    assert len([a for a in client.list_artifacts(kept.info.run_id, "images") if a.path.endswith(".png")]) == 2

    class Breaks(fg.Method):
        name = "breaks"

        def send(self, server: fg.Server, client: int) -> fg.Message:
            raise RuntimeError("on purpose")

    with pytest.raises(RuntimeError, match="on purpose"), MLflow(store) as watcher:
        fg.run(Breaks(), blobs(), model=small_network(), watchers=[watcher], **QUICK)
    assert {each.info.status for each in client.search_runs([experiment.experiment_id])} == {"FINISHED", "FAILED"}


def test_a_tracker_that_is_not_there_is_a_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UserError, match="did you mean 'mlflow'"):
        tracker("mlflo")
    monkeypatch.setitem(sys.modules, "mlflow.tracking", None)
    monkeypatch.delitem(sys.modules, "fedgraft.trackers.mlflow", raising=False)
    done = CliRunner().invoke(app, ["run", "local", "--track", "mlflow", "--out", str(tmp_path / "run")])
    assert isinstance(done.exception, UserError)
    assert "pip install 'fedgraft[mlflow]'" in str(done.exception)
    assert not (tmp_path / "run").exists()


def test_images_are_bytes() -> None:
    picture = image(torch.tensor([[0.0, 0.5, 1.0]]))
    assert picture is not None
    assert picture.dtype == np.uint8
