"""A method of one's own on several machines: its file travels with the app, and no site runs it that has not agreed."""

import io
import json
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path
from typing import Any

import pytest
import torch

pytest.importorskip("flwr", reason="the extra fedgraft[flower] is not installed")

from typer.testing import CliRunner

from fedgraft.base.errors import UserError
from fedgraft.cli import app
from fedgraft.data.federation import Federation
from fedgraft.deploy.charter import read
from fedgraft.deploy.serving import branch, largest_reply, planned, serve
from fedgraft.engines.flower.site import SiteError, describe
from fedgraft.runs.run import run
from trials.federated import FAST, InProcessGrid, Node, write_sites
from trials.federated import app as client_app

METHOD = Path(__file__).with_name("halfway.py").read_text()
KIT = ["--method", "./mine.py:Halfway:part=0.25", "--features", "6", "--task", "classification:3", "--model", "mlp:5",
       "--rounds", "2", "--lr", "0.1", "--batch-size", "4", "--epochs", "1"]  # fmt: skip


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    Path("mine.py").write_text(METHOD)
    return tmp_path


def typed(*words: str) -> str:
    done = CliRunner().invoke(app, list(words), catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return done.output


def result(place: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(Path(place, "result.json").read_text())
    return found


def kit(fed: Federation) -> list[str]:
    """Write the app's folder, and sites with their data beside it."""
    names = write_sites(Path("data"), fed)
    typed("deploy", "init", "kit", "--sites", ",".join(names), *KIT, "--out", str(Path("deployed").absolute()))
    return names


def agree(name: str) -> Path:
    """Do at a site what its operator does: describe the data, and agree to the code."""
    given = Path(f"kit/sites/{name}.toml").read_text().replace(f"{name}.npz", str(Path(f"data/{name}.npz").absolute()))
    lines = given.splitlines()
    at = lines.index("# [code]")
    lines[lines.index('state = "state"')] = f'state = "state-{name}"'
    place = Path(f"data/{name}.toml")
    place.write_text("\n".join([*lines[:at], *(line.removeprefix("# ") for line in lines[at:])]))
    return place.absolute()


def test_it_travels_with_the_app_and_its_digest_with_the_charter(fed: Federation) -> None:
    from flwr.cli.build import build_fab_from_disk

    kit(fed)
    with zipfile.ZipFile(io.BytesIO(build_fab_from_disk(Path("kit")))) as fab:
        shipped = {name: fab.read(name).decode() for name in fab.namelist() if not name.startswith(".info")}
    assert shipped.keys() == {"pyproject.toml", "server_app.py", "client_app.py", "charter.toml", "code/mine.py"}
    assert shipped["code/mine.py"] == METHOD
    charter = tomllib.loads(shipped["charter.toml"])
    assert charter["run"]["method"] == "./code/mine.py:Halfway"
    assert charter["code"].keys() == {"code/mine.py"}
    manual, site = Path("kit/README.md").read_text(), Path("kit/sites/a.toml").read_text()
    assert "Read code/mine.py: it is not fedgraft's" in manual
    assert charter["code"]["code/mine.py"] in site
    assert not describe(Path("kit/sites/a.toml")).code, "to agree is for the site to do"


def test_both_halves_run_it_and_end_in_the_bits_of_one_machine(
    fed: Federation, here: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    names = kit(fed)
    Path("mine.py").rename("elsewhere.py")
    places = [agree(name) for name in names]
    monkeypatch.chdir("/")
    charter = read(here / "kit" / "charter.toml")
    grid = InProcessGrid()
    for number, place in enumerate(places):
        grid.nodes[100 + number] = Node(client_app(charter), {"site": str(place)})
    done = serve(grid, charter, FAST)
    assert "this federation runs code that is not fedgraft's: code/mine.py (sha256:" in capsys.readouterr().out
    assert not done.result["refused"]
    settings = {"model": "mlp:5", "rounds": 2, "lr": 0.1, "batch_size": 4, "epochs": 1, "workers": 1}
    local = run(f"{here}/elsewhere.py:Halfway:part=0.25", fed, **settings)
    assert local.server is not None
    for name, tensor in local.server.items():
        assert torch.equal(done.server[name], tensor), name  # type: ignore[index]
    written = tomllib.loads((here / "deployed" / "config.toml").read_text())
    assert written["method"] == "./code/mine.py:Halfway", "the name that the file has on every machine"
    assert "halfway" in (CliRunner().invoke(app, ["report", str(here / "deployed"), "--text"]).output)


def test_a_site_that_has_not_agreed_runs_nothing(fed: Federation, here: Path) -> None:
    names = kit(fed)
    place = agree(names[0])
    Path("kit/code/mine.py").write_text(f"from pathlib import Path\nPath({str(here / 'harm')!r}).touch()\n{METHOD}")
    with pytest.raises(SiteError, match=r"code/mine\.py is not the file that the federation agreed on"):
        branch(read(Path("kit/charter.toml")), place)
    with pytest.raises(UserError, match="is not the file that the federation agreed on"):
        planned(read(Path("kit/charter.toml")), (1,) * len(names))
    assert not Path("harm").exists()
    Path("kit/code/mine.py").write_text(METHOD)
    assert branch(read(Path("kit/charter.toml")), place).site == "a"
    place.write_text("".join(line for line in place.read_text().splitlines(keepends=True) if "code" not in line))
    with pytest.raises(SiteError, match="site a has not agreed to run code that is not fedgraft's") as refused:
        branch(read(Path("kit/charter.toml")), place)
    assert str(here) not in str(refused.value), "the sentence leaves the site"


def test_a_site_is_shown_the_code(fed: Federation) -> None:
    place = agree(kit(fed)[0])
    words = ["deploy", "check", str(place), "--federation", "kit/charter.toml", "--server", "127.0.0.1:9"]
    told = CliRunner().invoke(app, words).output
    assert "code: code/mine.py beside charter.toml is not fedgraft's" in told
    assert "samples to train on" in told


@pytest.mark.parametrize(
    ("old", "new", "complaint"),
    [
        ("./code/mine.py:Halfway", "./code/other.py:Halfway", "./code/other.py is not under .code."),
        ("./code/mine.py:Halfway", "/tmp/mine.py:Halfway", "/tmp/mine.py is not under .code."),
        ('"code/mine.py" =', '"code/../mine.py" =', "code is named as 'code/mine.py' = 'sha256:...'"),
        ("sha256:", "md5:", "code is named as 'code/mine.py' = 'sha256:...'"),
    ],
)
def test_a_charter_names_no_other_file(fed: Federation, old: str, new: str, complaint: str) -> None:
    names = kit(fed)
    path = Path("kit/charter.toml")
    path.write_text(path.read_text().replace(old, new))
    with pytest.raises(UserError, match=complaint):
        planned(read(path), (1,) * len(names))


def test_a_model_of_one_s_own_travels_too(fed: Federation) -> None:
    layers = "nn.Linear(6, 4), nn.ReLU(), nn.Linear(4, 3)"
    Path("net.py").write_text(f"from torch import nn\n\n\ndef build():\n    return nn.Sequential({layers})\n")
    words = ["--method", "fedavg", "--features", "6", "--task", "classification:3", "--model", "./net.py:build"]
    typed("deploy", "init", "other", "--sites", "a,b", *words)
    Path("net.py").unlink()
    charter = read(Path("other/charter.toml"))
    assert (charter.run.model, list(charter.code)) == ("./code/net.py:build", ["code/net.py"])
    assert largest_reply(charter) == 4 * (6 * 4 + 4 + 4 * 3 + 3)
    assert planned(charter, (1, 1)).config.model == "./code/net.py:build"


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.xdist_group("own-method")
@pytest.mark.skipif(not Path("/proc/self/environ").exists(), reason="as the demonstration's other tests")
def test_the_demonstration_runs_it_in_processes_of_their_own(here: Path) -> None:
    command = [sys.executable, "-m", "fedgraft", "deploy", "demo", "--sites", "2", "--rounds", "1", "--out", "demo",
               "--method", "./mine.py:Halfway"]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False, cwd=here)
    assert done.returncode == 0, done.stderr
    assert result("demo/server/run")["method"] == "halfway"
    assert "code that is not fedgraft's: code/mine.py" in " ".join(done.stderr.split())
