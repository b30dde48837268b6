"""One run on several processes: the bits of one, started by torchrun."""

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from conftest import Interrupt, final
from typer.testing import CliRunner

from fedgraft.base.errors import UserError
from fedgraft.cli import app
from fedgraft.core import bank, inbox
from fedgraft.methods import METHODS
from fedgraft.runs.run import resume, run

SETTINGS: dict[str, Any] = {
    "dataset": "digits", "clients": 5, "partition": "dirichlet:0.5", "model": "mlp:8", "rounds": 2, "epochs": 1,
    "batch_size": 64, "participation": "0.8", "checkpoint_every": 1, "workers": 1, "seed": 3,
}  # fmt: skip
SCRIPT = """
import os
import sys
from pathlib import Path
import fedgraft as fg
from fedgraft.core import bank, inbox
settings, names, out = eval(sys.argv[1]), sys.argv[2].split(), Path(sys.argv[3])
inbox.BLOCK, bank.ROWS = map(int, sys.argv[4:])
made, in_blocks = [], bank.in_blocks
bank.in_blocks = lambda rows, *rest, **how: made.append(len(rows)) or in_blocks(rows, *rest, **how)
for name in names:
    try:
        fg.run(name, engine="distributed", out=out / name, progress=False, **settings)
    except SystemExit as left:  # what ends the other ranks; here they serve the next run
        assert left.code == 0
print("rank", os.environ["RANK"], "made products of", sum(made), "rows")
"""
RAISING = """
from fedgraft.methods.fedavg import FedAvg

class Raising(FedAvg):
    def fit(self, client, received):
        if client.id == 1:
            raise ValueError("the second client cannot")
        return super().fit(client, received)
"""


def torchrun(ranks: int, *words: str, cwd: Path) -> "subprocess.CompletedProcess[str]":
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks)]
    alone = {name: value for name, value in os.environ.items() if not name.startswith("SLURM_")}
    return subprocess.run(
        [*launcher, *words], cwd=cwd, capture_output=True, text=True, timeout=600, check=False,
        env={**alone, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"},
    )  # fmt: skip


DIVERGING = """
import torch
from fedgraft.core.message import Message
from fedgraft.methods.fedavg import FedAvg

class Diverging(FedAvg):
    def reply(self, client, received, trained):
        reply = super().reply(client, received, trained)
        return reply if client.id != 3 else Message(weights=torch.full_like(reply["weights"], torch.nan))
"""
KILLED = """
import os, signal
from fedgraft.methods.fedavg import FedAvg

class Killed(FedAvg):
    def fit(self, client, received):
        if client.id == 1 and client.round == 1 and os.environ.get("RANK") == "1":
            os.kill(os.getpid(), signal.SIGKILL)
        return super().fit(client, received)
"""


def same_bits(ranks: int, names: list[str], place: Path) -> "subprocess.CompletedProcess[str]":
    (place / "ranks.py").write_text(SCRIPT)
    words = ["ranks.py", repr(SETTINGS), " ".join(names), "distributed", str(inbox.BLOCK), str(bank.ROWS)]
    done = torchrun(ranks, *words, cwd=place)
    assert done.returncode == 0, done.stderr[-2000:]
    for name in names:
        if not (place / "local" / name).exists():
            run(name, out=place / "local" / name, progress=False, **SETTINGS)
        assert final(place / "distributed" / name) == final(place / "local" / name), name
    return done


@pytest.mark.slow
def test_two_ranks_have_the_bits_of_one_process(tmp_path: Path) -> None:
    same_bits(2, ["fedavg", "ditto", "fedapa", "apple", "local"], tmp_path)


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.parametrize("ranks", [1, 2, 4])
def test_every_method_has_the_same_bits_at_any_number_of_ranks(ranks: int, tmp_path: Path) -> None:
    same_bits(ranks, list(METHODS), tmp_path)


@pytest.mark.slow
def test_means_in_several_blocks_have_the_same_bits_on_ranks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Four of five clients in a round, in blocks of two; one of them sends what is no number."""
    (tmp_path / "mine.py").write_text(DIVERGING)
    own = f"{tmp_path / 'mine.py'}:Diverging"
    monkeypatch.setattr(inbox, "BLOCK", 2)
    (tmp_path / "ranks.py").write_text(SCRIPT.replace("out / name", "out / name.rpartition(':')[2]"))
    words = ["ranks.py", repr(SETTINGS), f"fedavg scaffold dbe {own}", "distributed", "2", "256"]
    done = torchrun(2, *words, cwd=tmp_path)
    assert done.returncode == 0, done.stderr[-2000:]
    for name in ("fedavg", "scaffold", "dbe", own):
        folder = name.rpartition(":")[2]
        run(name, out=tmp_path / "local" / folder, progress=False, **SETTINGS)
        assert final(tmp_path / "distributed" / folder) == final(tmp_path / "local" / folder), name
    result = final(tmp_path / "local" / "Diverging")["result"]
    assert result["refused"] == sum(3 in record["participants"] for record in result["rounds"]) > 0


@pytest.mark.slow
@pytest.mark.parametrize(
    ("block", "idle"),
    [
        pytest.param(1, 0, id="more blocks than ranks"),
        pytest.param(3, 1, id="more ranks than blocks", marks=pytest.mark.long),
    ],
)
def test_products_in_several_blocks_are_made_by_all_ranks_with_the_same_bits(
    block: int, idle: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bank, "ROWS", block)
    done = same_bits(3, ["fedapa", "fedamp", "heurfedamp", "fedgpa", "fedpac"], tmp_path)
    made = [int(rows) for rows in re.findall(r"made products of (\d+) rows", done.stdout)]
    assert len(made) == 3
    assert made.count(0) == idle


@pytest.mark.slow
def test_a_run_of_which_a_rank_was_killed_ends_and_goes_on_from_its_checkpoint(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(KILLED)
    settings = SETTINGS | {"participation": "1"}
    (tmp_path / "ranks.py").write_text(SCRIPT.replace("out / name", "out / 'killed'"))
    own = f"{tmp_path / 'mine.py'}:Killed"
    done = torchrun(2, "ranks.py", repr(settings), own, "distributed", "1024", "256", cwd=tmp_path)
    assert done.returncode != 0
    begun = tmp_path / "distributed" / "killed"
    assert not (begun / "result.json").exists()
    resume(begun, engine="local")
    run(own, out=tmp_path / "whole", progress=False, **settings)
    assert final(begun) == final(tmp_path / "whole")


@pytest.mark.slow
def test_the_command_resumes_what_one_process_began_and_the_other_ranks_are_silent(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        run("fedper", out=tmp_path / "begun", watchers=[Interrupt(after=2)], progress=False, **SETTINGS | {"rounds": 3})
    run("fedper", out=tmp_path / "whole", progress=False, **SETTINGS | {"rounds": 3})
    words = ["-m", "fedgraft", "resume", "begun"]
    text = (tmp_path / "begun" / "config.toml").read_text()
    assert 'engine = "local"' in text
    (tmp_path / "begun" / "config.toml").write_text(text.replace('engine = "local"', 'engine = "distributed"'))
    done = torchrun(2, *words, cwd=tmp_path)
    assert done.returncode == 0, done.stderr[-2000:]
    assert done.stdout.count("run directory: begun") == 1
    assert final(tmp_path / "begun") == final(tmp_path / "whole")


@pytest.mark.slow
def test_what_a_client_of_another_rank_raises_ends_the_run_with_its_name(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(RAISING)
    words = ["--dataset", "digits", "--clients", "4", "--model", "mlp:8", "--rounds", "2", "--retries", "0"]
    done = torchrun(2, "-m", "fedgraft", "run", "./mine.py:Raising", *words, "--engine", "distributed", cwd=tmp_path)
    assert done.returncode != 0
    assert "the second client cannot" in done.stderr


def test_many_runs_are_not_shared_out_by_ranks(tmp_path: Path) -> None:
    out = tmp_path / "comparison"
    done = CliRunner().invoke(app, ["compare", "fedper", "--engine", "distributed", "--out", str(out), "--later"])
    assert isinstance(done.exception, UserError)
    assert "for one run" in str(done.exception)
    assert not out.exists()
