"""`fedgraft deploy demo` as people type it: real processes, TLS, keys; and none of them is left."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import torch

pytest.importorskip("flwr", reason="the extra fedgraft[flower] is not installed")

from typer.testing import CliRunner

import fedgraft as fg
from fedgraft.base.errors import UserError
from fedgraft.cli import app

pytestmark = [
    pytest.mark.xdist_group("demo"),
    pytest.mark.skipif(not Path("/proc/self/environ").exists(), reason="looks processes up in /proc"),
]
SECONDS = 600.0
DEMO = [sys.executable, "-m", "fedgraft", "deploy", "demo", "--sites", "2"]


def processes_of(folder: Path) -> list[str]:
    """The programs that work in this folder: each of Flower's has a home in it."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if os.fsencode(folder) in (process / "environ").read_bytes() and "Z" not in (process / "stat").read_text():
                found.append((process / "cmdline").read_bytes().replace(b"\0", b" ").decode())
        except OSError:
            continue
    return found


@pytest.fixture(scope="module")
def demonstration(
    tmp_path_factory: pytest.TempPathFactory,
) -> "tuple[Path, subprocess.CompletedProcess[str]]":
    folder = tmp_path_factory.mktemp("demonstration") / "demo"
    command = [*DEMO, "--rounds", "1", "--out", str(folder)]
    return folder, subprocess.run(command, capture_output=True, text=True, timeout=SECONDS, check=False)


@pytest.mark.slow
def test_it_trains_shows_how_it_goes_and_leaves_nothing_running(
    demonstration: "tuple[Path, subprocess.CompletedProcess[str]]",
) -> None:
    folder, done = demonstration
    assert done.returncode == 0, done.stderr
    assert processes_of(folder) == []
    result = json.loads((folder / "server" / "run" / "result.json").read_text())
    assert (result["method"], len(result["rounds"]), result["refused"]) == ("fedapa", 1, 0)
    assert result["rounds"][0]["participants"] == [0, 1]
    assert "<html" in (folder / "server" / "run" / "report.html").read_text()
    told = " ".join(done.stderr.split())
    for phrase in (
        "starting the SuperLink", "site site-2 is registered, with the key SHA256:", "of 2 sites: ",
        "connected: site-1, site-2; the run begins", "site site-1 is there", "round 1/1: loss", "ending every program",
    ):  # fmt: skip
        assert phrase in told
    pooled = f"{100 * result['rounds'][0]['trained']['metrics']['accuracy']['pooled']:.1f}"
    assert pooled in next(line for line in done.stdout.splitlines() if "all, pooled" in line)


@pytest.mark.slow
def test_everything_was_encrypted_and_every_node_had_to_show_its_key(
    demonstration: "tuple[Path, subprocess.CompletedProcess[str]]",
) -> None:
    folder, _ = demonstration
    said = (folder / "server" / "logs" / "superlink.log").read_text()
    assert "Uvicorn running on https://127.0.0.1" in said
    assert said.count("Activated node_id") == 2
    assert "--insecure" not in said


@pytest.mark.slow
def test_a_site_has_its_own_model_and_it_is_the_one_that_was_tested(
    demonstration: "tuple[Path, subprocess.CompletedProcess[str]]", tmp_path: Path
) -> None:
    folder, _ = demonstration
    home = folder / "sites" / "site-2"
    words = ["deploy", "model", str(home / "site-2.toml"), "--out", str(tmp_path / "own.safetensors")]
    done = CliRunner().invoke(app, words, catch_exceptions=False)
    assert "fedapa, round 1" in done.stdout
    network = fg.load_model(tmp_path / "own.safetensors")
    with np.load(home / "data.npz") as data, torch.no_grad():
        x = (torch.from_numpy(data["x_test"]).float().unsqueeze(1) / 255 - 0.5) / 0.5
        right = network(x).argmax(1).numpy() == data["y_test"]
    result = json.loads((folder / "server" / "run" / "result.json").read_text())
    assert right.mean() == pytest.approx(
        result["rounds"][-1][result["headline"]]["metrics"]["accuracy"]["per_client"][1]
    )
    with pytest.raises(UserError, match="is there already"):
        CliRunner().invoke(app, words, catch_exceptions=False)


@pytest.mark.slow
def test_every_program_has_a_log_with_times_and_without_colours(
    demonstration: "tuple[Path, subprocess.CompletedProcess[str]]",
) -> None:
    folder, _ = demonstration
    home = folder / "sites" / "site-1"
    logs = [*(folder / "server" / "logs").iterdir(), *(home / "logs").iterdir()]
    assert {log.stem for log in logs} == {"superlink", "superexec", "serverapp", "site", "supernode"}
    for log in logs:
        for line in log.read_text().splitlines():
            assert re.match(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d[+-]\d\d:\d\d ", line), (log, line)
            assert "\x1b" not in line
    said = (home / "logs" / "site.log").read_text()
    for phrase in ("as agreed", "has let this site in", "what leaves: weights [13056], 52,224 bytes", "done: "):
        assert phrase in said
    named = [line for line in (folder / "logs" / "site-1.log").read_text().splitlines() if "own model: " in line]
    assert Path(named[-1].split("own model: ")[1]).is_relative_to(home / "state")


def test_what_is_no_model_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="there is no file"):
        fg.load_model(tmp_path / "none")
    (tmp_path / "some").write_text("text")
    with pytest.raises(UserError, match="holds no model"):
        fg.load_model(tmp_path / "some")


@pytest.mark.parametrize(
    ("words", "complaint"), [(["--method", "fedap"], "did you mean 'fedapa'"), (["--out", "taken"], "not empty")]
)
def test_a_demo_that_cannot_be_done_starts_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: list[str], complaint: str
) -> None:
    (tmp_path / "taken").mkdir()
    (tmp_path / "taken" / "thesis.tex").write_text("mine")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError, match=complaint):
        CliRunner().invoke(app, ["deploy", "demo", *words], catch_exceptions=False)
    assert [str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*")] == ["taken", "taken/thesis.tex"]


@pytest.mark.slow
def test_ctrl_c_ends_everything(tmp_path: Path) -> None:
    folder = tmp_path / "demo"
    with subprocess.Popen(
        [*DEMO, "--out", str(folder)], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
    ) as running:
        assert running.stderr is not None
        for line in running.stderr:
            if "waiting for" in line:
                break
        time.sleep(1)
        assert any("flower-superlink" in each for each in processes_of(folder))
        running.send_signal(signal.SIGINT)
        assert running.wait(timeout=60) == 128 + signal.SIGINT
        assert "stopped" in running.stderr.read()
    assert processes_of(folder) == []
