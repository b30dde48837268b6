"""An interrupted comparison goes on at its first missing run, and ends in the bits of one that was never disturbed."""

import json
import shutil
import signal
from pathlib import Path
from typing import Any

import pytest
from conftest import blobs, small_network, timeless
from program import Program, fedgraft, wait_for

import fedgraft as fg
from fedgraft.base.errors import UserError
from fedgraft.core.rounds import Round
from fedgraft.runs import compare as comparisons
from fedgraft.runs.comparison import Comparison
from fedgraft.runs.run import Run

SETTINGS: dict[str, Any] = {"rounds": 3, "lr": 0.1, "batch_size": 8, "workers": 1, "checkpoint_every": 1}


class Interrupt:
    """Stops a comparison after a number of rounds, and notes which rounds it saw."""

    def __init__(self, after: int = 10**9) -> None:
        self.left, self.seen = after, list[tuple[str, int, int]]()

    def begin(self, run: Run) -> None: ...

    def round(self, run: Run, this: Round) -> None:
        self.seen.append((run.method.name, run.config.seed, this.number))
        self.left -= 1
        if not self.left:
            raise KeyboardInterrupt

    def end(self, run: Run) -> None: ...


def compared(out: Path, watcher: Interrupt | None = None, **changes: Any) -> Comparison[Run]:
    return fg.compare(
        ["fedapa"], federation=lambda seed: blobs(seed=seed), model=small_network(), out=out,
        watchers=[watcher or Interrupt()], **({"seeds": 2} | SETTINGS | changes),
    )  # fmt: skip


def bits(place: Path) -> dict[str, Any]:
    """Everything that a comparison left but the times it took and the workers it had."""
    found: dict[str, Any] = {}
    for file in sorted(place.rglob("*")):
        name = str(file.relative_to(place))
        if file.suffix == ".json" and file.name != "manifest.json":
            found[name] = timeless(json.loads(file.read_text()))
        elif file.suffix == ".safetensors":
            found[name] = file.read_bytes()
    return found


def test_it_goes_on_where_it_was(tmp_path: Path) -> None:
    whole = compared(tmp_path / "whole")
    with pytest.raises(KeyboardInterrupt):
        compared(tmp_path / "torn", Interrupt(after=14))  # all of seed 0, then local and two rounds of fedavg
    assert not (tmp_path / "torn" / "comparison.json").exists()
    rest = Interrupt()
    resumed = compared(tmp_path / "torn", rest)
    assert rest.seen == [("fedavg", 1, 2), ("fedapa", 1, 0), ("fedapa", 1, 1), ("fedapa", 1, 2)]
    assert bits(tmp_path / "torn") == bits(tmp_path / "whole")
    for one, two in zip(resumed.rows(), whole.rows(), strict=True):
        assert (one.method, one.pooled, one.mean, one.difference) == (two.method, two.pooled, two.mean, two.difference)
    kept = resumed.runs["fedapa"][0]
    assert kept.observed["A"].shape == (3, 4, 4)
    kept.module(0)  # a finished run that was read back is as good as new
    assert resumed.report(tmp_path / "report.html").exists()


@pytest.mark.parametrize("after", [1, 3, 9])
def test_at_any_moment(tmp_path: Path, after: int) -> None:
    compared(tmp_path / "whole", seeds=1)
    with pytest.raises(KeyboardInterrupt):
        compared(tmp_path / "torn", Interrupt(after), seeds=1)
    compared(tmp_path / "torn", seeds=1)
    assert bits(tmp_path / "torn") == bits(tmp_path / "whole")


def test_what_a_killed_process_may_leave_of_a_run_is_no_obstacle(tmp_path: Path) -> None:
    compared(tmp_path / "whole", seeds=1)
    with pytest.raises(KeyboardInterrupt):
        compared(tmp_path / "torn", Interrupt(4), seeds=1)
    shutil.rmtree(tmp_path / "torn" / "fedavg-seed0")
    (tmp_path / "torn" / "fedavg-seed0").mkdir()
    (tmp_path / "torn" / "fedavg-seed0" / ".lock").touch()
    (tmp_path / "torn" / "fedavg-seed0" / "config.tomlabc.part").write_text("rounds = ")
    compared(tmp_path / "torn", seeds=1)
    assert bits(tmp_path / "torn") == bits(tmp_path / "whole")


@pytest.mark.slow
def test_other_settings_are_another_comparison(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        compared(tmp_path / "torn", Interrupt(4))
    before = {file: file.read_bytes() for file in (tmp_path / "torn").rglob("*") if file.is_file()}
    for change, difference in (
        ({"lr": 0.2}, "lr is 0.1 there and 0.2 here"),
        ({"seeds": 1}, "seeds is 2 there and 1 here"),
        ({"seeds": 3, "lr": 0.2}, "lr is 0.1 there and 0.2 here, seeds is 2 there and 3 here"),
        ({"seed": 1}, "seed is 0 there and 1 here"),
        ({"rounds": 4}, "rounds is 3 there and 4 here"),
    ):
        with pytest.raises(UserError, match=rf"holds another comparison \({difference}\)"):
            compared(tmp_path / "torn", **change)
    with pytest.raises(UserError, match=r"another comparison \(methods differ\)"):
        fg.compare(["fedper"], seeds=2, federation=lambda s: blobs(), model=small_network(), out=tmp_path / "torn",
                   **SETTINGS)  # fmt: skip
    assert before == {file: file.read_bytes() for file in before}
    compared(tmp_path / "torn", workers=2, checkpoint_every=2)  # the machine's settings may change
    with pytest.raises(UserError, match="complete"):
        compared(tmp_path / "torn")


def test_one_more_method_and_one_more_seed_extend_a_comparison(tmp_path: Path) -> None:
    settings = SETTINGS | {"federation": lambda seed: blobs(seed=seed), "model": small_network()}
    fg.compare(["fedper", "fedapa"], seeds=2, out=tmp_path / "whole", **settings)
    fg.compare("fedapa", seeds=1, out=tmp_path / "grown", **settings)
    kept = {file: file.stat().st_mtime_ns for file in (tmp_path / "grown").glob("*/result.json")}
    torn = Interrupt(after=5)
    with pytest.raises(KeyboardInterrupt):
        fg.compare(["fedper", "fedapa"], seeds=2, out=tmp_path / "grown", watchers=[torn], **settings)
    assert torn.seen[:4] == [("fedper", 0, 0), ("fedper", 0, 1), ("fedper", 0, 2), ("local", 1, 0)]
    assert not (tmp_path / "grown" / "comparison.json").exists(), "it would pass for complete"
    with pytest.raises(UserError, match="seeds is 2 there and 1 here"):
        fg.compare("fedapa", seeds=1, out=tmp_path / "grown", **settings)
    grown = fg.compare(["fedper", "fedapa"], seeds=2, out=tmp_path / "grown", **settings)
    assert [row.method for row in grown.rows()] == ["local", "fedavg", "fedper", "fedapa"]
    assert kept == {file: file.stat().st_mtime_ns for file in kept}, "finished runs are kept"
    assert bits(tmp_path / "grown") == bits(tmp_path / "whole")
    with pytest.raises(UserError, match="nothing left to do"):
        fg.compare(["fedper", "fedapa"], seeds=2, out=tmp_path / "grown", **settings)
    with pytest.raises(UserError, match=r"holds another comparison \(methods differ\)"):
        fg.compare(["ditto"], seeds=2, out=tmp_path / "grown", **settings)


def test_one_method_and_one_federation_are_taken_as_they_are() -> None:
    fed = blobs()
    settings = {"seeds": 2, "rounds": 1, "workers": 1, "model": small_network()}
    alone = fg.compare(federation=fed, **settings)
    assert list(alone.runs) == ["local", "fedavg"]
    assert [run.federation for run in alone.runs["local"]] == [fed, fed]
    assert list(fg.compare("fedper", federation=fed, **settings).runs) == ["local", "fedavg", "fedper"]
    assert list(fg.compare(fg.FedPer(), federation=fed, **settings).runs) == ["local", "fedavg", "fedper"]


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({"chosen": 7}, "name methods to compare"),
        ({"chosen": [fg.FedPer]}, "a method is a name, such as 'fedapa:mu=0.3', or an object"),
        ({"chosen": [blobs()]}, "a method is a name"),
        ({"federation": [1, 2]}, "federation is a Federation, or a function"),
        ({"federation": lambda seed: None}, "made no Federation"),
        ({"seeds": "3"}, "at least one seed, not '3'"),
        ({"seeds": 2, "seed": 10**18}, "seeds go up to 1000000000000000000, and 2 from 1000000000000000000 on are"),
    ],
)
def test_what_is_no_method_and_no_federation_is_a_sentence(given: dict[str, Any], sentence: str) -> None:
    with pytest.raises(UserError, match=sentence):
        fg.compare(**given)


def test_what_cannot_go_on_is_said(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        compared(tmp_path / "torn", Interrupt(4))
    with pytest.raises(UserError, match="were given data, a model or a method from Python"):
        comparisons.resume(tmp_path / "torn")
    with pytest.raises(UserError, match="cannot change lr"):
        comparisons.resume(tmp_path / "torn", lr=1.0)
    with pytest.raises(UserError, match="holds several runs"):
        fg.resume(tmp_path / "torn")
    (tmp_path / "torn" / "local-seed0" / "result.json").write_text("{")
    with pytest.raises(UserError, match=r"local-seed0/result.json is damaged"):
        compared(tmp_path / "torn")
    (tmp_path / "torn" / "agenda.toml").write_text("seeds = 2\n")
    with pytest.raises(UserError, match="is not an agenda of runs"):
        comparisons.resume(tmp_path / "torn")


def test_a_run_that_is_gone_from_a_complete_comparison_is_made_again(tmp_path: Path) -> None:
    settings: dict[str, Any] = {"seeds": 1, "clients": 3, "partition": "iid", "out": tmp_path / "c"} | SETTINGS
    fg.compare(**settings)
    before = bits(tmp_path / "c")
    for ask in (lambda: comparisons.resume(tmp_path / "c"), lambda: fg.compare(**settings)):
        with pytest.raises(UserError, match="is complete, there is nothing left to do"):
            ask()
        shutil.rmtree(tmp_path / "c" / "fedavg-seed0")
        ask()
        assert bits(tmp_path / "c") == before
    result = tmp_path / "c" / "local-seed0" / "result.json"
    result.write_bytes(result.read_bytes()[:100])
    for ask in (
        lambda: comparisons.resume(tmp_path / "c"),
        lambda: fg.compare(**settings),
        lambda: fg.read(result.parent),
    ):
        with pytest.raises(UserError, match=r"local-seed0/result.json is damaged: .*; without it, the run can be resu"):
            ask()
    result.unlink()
    comparisons.resume(tmp_path / "c")
    assert bits(tmp_path / "c") == before


def test_other_data_is_noticed(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        compared(tmp_path / "torn", Interrupt(4))
    with pytest.raises(
        UserError, match=r"had other data: client 0 had 20 training samples and has 9 \(and those of 3 more"
    ):
        fg.compare(["fedapa"], seeds=2, federation=lambda seed: blobs((9, 9, 9, 9)), model=small_network(),
                   out=tmp_path / "torn", **SETTINGS)  # fmt: skip


def test_a_method_that_cannot_work_is_noticed_before_the_first_run(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="same architecture"):
        fg.compare(["fedapa"], federation=lambda seed: blobs(), model="mlp:8,mlp:8-8", out=tmp_path / "new", **SETTINGS)
    assert not (tmp_path / "new").exists()


COMMAND = [
    "compare", "fedapa:mu=0.3", "--seeds", "1", "--clients", "3",
    "--partition", "iid", "--rounds", "4", "--checkpoint-every", "1", "--evaluate-every", "100", "--workers", "1",
]  # fmt: skip


def test_a_killed_program_goes_on_by_its_directory(tmp_path: Path) -> None:
    fg.compare(
        ["fedapa:mu=0.3"], seeds=1, clients=3, partition="iid", rounds=4, checkpoint_every=1, evaluate_every=100,
        workers=1, out=tmp_path / "whole",
    )  # fmt: skip
    running = Program(*COMMAND, "--out", "torn", cwd=tmp_path)
    wait_for(tmp_path / "torn" / "fedavg-seed0" / "checkpoints" / "round-000002", running)
    running.send_signal(signal.SIGKILL)
    running.wait()
    kept = (tmp_path / "torn" / "local-seed0" / "result.json").stat().st_mtime_ns
    done = fedgraft("resume", "torn", "--workers", "2", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "fedapa:mu=0.3" in done.stdout
    assert "local seed 0" not in done.stderr, "a finished run is not repeated"
    assert (tmp_path / "torn" / "local-seed0" / "result.json").stat().st_mtime_ns == kept
    assert bits(tmp_path / "torn") == bits(tmp_path / "whole")
    with pytest.raises(UserError, match="complete"):
        comparisons.resume(tmp_path / "torn")
