"""An engine of one's own is one file, named on the command line: the same bits, resumed, compared, with parameters."""

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import fedgraft as fg
from fedgraft.base.errors import UserError
from fedgraft.cli import app

ENGINE = '''
from dataclasses import dataclass, field
from pathlib import Path

from fedgraft import Simulation
from fedgraft.core import streams


@dataclass(eq=False)
class Sequential(Simulation):
    """One client after another, in this process."""

    name = "sequential"
    backwards: bool = field(default=False, kw_only=True)

    def perform(self, jobs):
        ordered = sorted(jobs, key=lambda job: job.client, reverse=self.backwards)
        with Path("log.txt").open("a") as log:
            print(*(job.client for job in ordered), file=log)
        with streams.untouched():
            return {job.client: self.workshop.perform(job) for job in ordered}


@dataclass
class Nothing:
    method: object
    spec: object
    data: object
    everyone: object


class Plain:
    pass
'''
MINE = "./mine.py:Sequential"
SHORT = ["--clients", "4", "--rounds", "3", "--model", "mlp:8", "--validation", "0.2", "--checkpoint-every", "1"]
CLOCKS = ("seconds", "server_seconds", "evaluation_seconds")


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    Path("mine.py").write_text(ENGINE)
    return tmp_path


def ran(*words: str, out: str) -> dict[str, Any]:
    done = CliRunner().invoke(app, ["run", *words, *SHORT, "--out", out], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return left(Path(out))


def left(place: Path) -> dict[str, Any]:
    """All that a run leaves, but for the clocks."""
    last = place / "checkpoints" / "round-000003"
    result = json.loads((place / "result.json").read_text())
    rounds = [{key: value for key, value in record.items() if key not in CLOCKS} for record in result["rounds"]]
    return {"rounds": rounds} | {name: (last / f"{name}.safetensors").read_bytes() for name in ("server", "clients")}


@pytest.mark.parametrize("method", ["fedapa", "apple", "dbe"])
def test_it_runs_a_method_with_the_same_bits_as_the_local_one(method: str) -> None:
    local = ran(method, "--workers", "2", "--engine", "local", out="local")
    mine = ran(method, "--engine", MINE, out="mine")
    assert mine == local
    assert Path("log.txt").read_text().splitlines()[0] == "0 1 2 3"
    assert ran(method, "--engine", f"{MINE}:backwards=true", out="back") == local
    assert Path("log.txt").read_text().splitlines()[-1] == "3 2 1 0"


def cut_short(place: Path) -> None:
    """As a run is that was killed in its last round."""
    (place / "result.json").unlink()
    (place / "checkpoints" / "round-000003" / "server.safetensors").unlink()


def test_it_is_found_again_from_another_folder(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = ran("fedapa", "--engine", f"{MINE}:backwards=true", out="run")
    (here / "elsewhere").mkdir()
    monkeypatch.chdir(here / "elsewhere")
    for changes in ({}, {"engine": "local", "workers": 1}, {"engine": f"{here}/mine.py:Sequential"}):
        cut_short(here / "run")
        assert fg.resume(here / "run", **changes).config.engine.startswith(("local", str(here)))
        assert left(here / "run") == whole
    assert Path("log.txt").read_text().splitlines() == ["3 2 1 0"] * 2 + ["0 1 2 3"] * 2


def test_in_a_comparison_and_from_python() -> None:
    short = {"clients": 3, "rounds": 1, "model": "linear", "partition": "iid"}
    local, mine = (fg.compare(["fedper"], seeds=1, engine=engine, **short) for engine in ("local", MINE))
    assert [run.value for runs in mine.runs.values() for run in runs] == [
        run.value for runs in local.runs.values() for run in runs
    ]
    assert len(Path("log.txt").read_text().splitlines()) == 6, "three methods trained and tested"


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"engine": "lokal"}, "engine names what is not there: no engine is called 'lokal'; did you mean 'local'"),
        ({"engine": "flower"}, "clients of the engine flower are sites on other machines: `fedgraft deploy init`"),
        ({"engine": MINE, "workers": 2}, "workers means nothing to the engine ./mine.py:Sequential"),
        ({"engine": MINE, "deadline": 9.0}, "deadline means nothing to the engine"),
        ({"engine": f"{MINE}:device=cpu"}, "device of the engine ./mine.py:Sequential is given by the run"),
        ({"engine": f"{MINE}:forwards=true"}, "has no parameter 'forwards'; did you mean 'backwards'"),
        ({"engine": "local:workers=3"}, "workers of the engine local is given by the run, not behind its name"),
        ({"engine": "./mine.py:Nothing"}, "'./mine.py:Nothing' is not an engine: it has no close, commit, evaluate"),
        ({"engine": "./mine.py:Plain"}, "'./mine.py:Plain' is not an engine"),
        ({"engine": "./mine.py:Sequentiel"}, "did you mean 'Sequential'"),
    ],
)
def test_mistakes_are_sentences(settings: dict[str, Any], sentence: str) -> None:
    with pytest.raises(UserError) as error:
        fg.run("fedavg", clients=2, rounds=1, out="run", **settings)
    assert sentence in str(error.value)
    assert not Path("run").exists(), "nothing is written before all is known to fit"
