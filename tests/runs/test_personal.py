"""The clients' own models, out of a run that is over: in the same process, and read back from its directory."""

import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from conftest import a_few_first, small_network

import fedgraft as fg
from fedgraft.base.errors import UserError
from fedgraft.core.evaluation import POINTS
from fedgraft.data.federation import Federation
from fedgraft.methods import METHODS

QUICK: dict[str, Any] = {"rounds": 2, "workers": 1, "lr": 0.1, "batch_size": 8, "progress": False}


def accuracy(predict: Any, fed: Federation, client: int) -> float:
    x, y = fed.clients[client].test.batch(slice(None))
    return float((predict(x).argmax(1) == y).float().mean())


@pytest.mark.parametrize("name", a_few_first(METHODS))
def test_every_method_gives_the_models_of_its_figures(name: str, fed: Federation, tmp_path: Path) -> None:
    kept = fg.run(name, fed, model=small_network(), out=tmp_path / "run", **QUICK)
    run = fg.load(tmp_path / "run", fed, model=small_network())
    x, _ = fed.clients[1].test.batch(slice(None))
    for point in POINTS:
        figures = run.records[-1][point]["metrics"]["accuracy"]["per_client"]
        assert accuracy(run.predictor(1, point), fed, 1) == pytest.approx(figures[1])
        with torch.no_grad():
            outputs = run.module(1, point)(x)
        assert torch.allclose(outputs, kept.predictor("client 1", point)(x), atol=1e-5)


@pytest.mark.slow
def test_a_model_is_there_in_another_process(tmp_path: Path) -> None:
    settings: dict[str, Any] = {"model": "mlp:16", "clients": 4, "seed": 3, **QUICK}
    run = fg.compare("dbe", dataset="digits", seeds=1, out=tmp_path / "both", **settings).runs["dbe"][0]
    code = (
        "import sys, numpy, fedgraft as fg\n"
        "run = fg.load(sys.argv[1])\n"
        "x, _ = run.federation.clients[2].test.batch(slice(None))\n"
        "numpy.save(sys.argv[2], run.module(2, 'received')(x).detach().numpy())"
    )
    subprocess.run([sys.executable, "-c", code, tmp_path / "both" / "dbe-seed3", tmp_path / "x.npy"], check=True)
    assert isinstance(run.federation, Federation)
    x, _ = run.federation.clients[2].test.batch(slice(None))
    assert np.allclose(np.load(tmp_path / "x.npy"), run.predictor(2, "received")(x).numpy(), atol=1e-5)


def test_received_is_not_trained(fed: Federation) -> None:
    run = fg.run("fedavg", fed, model=small_network(), **QUICK)
    received, trained = (run.module(0, point).state_dict() for point in POINTS)
    assert all(torch.equal(tensor, run.module(1, "received").state_dict()[name]) for name, tensor in received.items())
    assert not all(torch.equal(tensor, received[name]) for name, tensor in trained.items())


def test_what_cannot_be_opened_is_said_in_a_sentence(fed: Federation, tmp_path: Path) -> None:
    fg.run("fedavg", fed, model=small_network(), out=tmp_path / "bare", checkpoint_every=0, **QUICK)
    run = fg.load(tmp_path / "bare", fed, model=small_network())
    with pytest.raises(UserError, match=r"kept no checkpoint of its last round \(checkpoint_every = 0\)"):
        run.module(0)
    fg.run("fedavg", fed, model=small_network(), out=tmp_path / "cut", **QUICK)
    [file] = (tmp_path / "cut" / "checkpoints").glob("round-*/server.safetensors")
    file.write_bytes(file.read_bytes()[:40])
    run = fg.load(tmp_path / "cut", fed, model=small_network())
    lost = (
        r"was altered or cut short: .*, so its models are lost: without its result.json, `fedgraft resume .*cut` makes"
    )
    for ask in (lambda: run.module(0), lambda: fg.join(run, tmp_path)):
        with pytest.raises(UserError, match=lost):
            ask()
    shutil.rmtree(tmp_path / "cut")
    with pytest.raises(UserError, match="model of your own, given from Python: give it again as model="):
        fg.load(tmp_path / "bare", fed)
    with pytest.raises(UserError, match=r"holds several runs: name one of them, such as .*bare"):
        fg.load(tmp_path)
    with pytest.raises(UserError, match="holds no run"):
        fg.load(tmp_path / "bare" / "nothing")
    (tmp_path / "bare" / "result.json").unlink()
    with pytest.raises(UserError, match="has not finished: `fedgraft resume` continues it"):
        fg.load(tmp_path / "bare", fed, model=small_network())
    done = fg.run("fedavg", fed, model=small_network(), **QUICK)
    with pytest.raises(UserError, match="no point is called 'send'"):
        done.module(0, "send")  # type: ignore[arg-type]
    with pytest.raises(UserError, match="no client is called 'client x'; did you mean"):
        done.module("client x")
    with pytest.raises(UserError, match="no client 9; there are 0 to 3"):
        done.module("9")
