"""The benchmarks at the smallest scale: their bare loop is the engine's training, their figures are all there."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from benchmarks import clients, crowds, engine, growth, machine, million, page, ranks, server, steps, work
from benchmarks.peers import race
from fedgraft import kernels
from fedgraft.engines.local import LocalEngine

ROOT = Path(__file__).parents[2]
CHOICES = ("torch", "native") if kernels.available() else ("torch",)


@pytest.mark.parametrize("choice", CHOICES)
def test_the_bare_loop_ends_in_the_bits_of_the_engine_s_training(choice: str) -> None:
    run, _ = work.planned("fedapa", recipe="fedapa", tiny=True, kernels=choice, clients=3, batch_size=16)
    spec, server_state = run.spec, run.method.setup(run.spec)
    with LocalEngine(run.method, spec, work.clients(run)) as local:
        outcomes = local.train(0, {c: run.method.send(server_state, c) for c in range(3)})
        local.commit(range(3))
    model = spec.architecture(0).model()
    for client in range(3):
        taken = engine.bare_steps(model, work.clients(run)[client].train, spec, spec.initial(0), 0, client)
        assert taken == outcomes[client].steps  # type: ignore[union-attr]
        assert torch.equal(model.vector, local.states[client]["own"])


def test_jobs_go_to_the_next_idle_worker() -> None:
    # 5 | 3 2, then 2 to the second: it is idle at 5 as well, and both end at 5 or later
    assert engine.makespan([5, 3, 2], 2) == 5
    assert engine.makespan([5, 3, 2, 2], 2) == 7
    assert engine.makespan([1, 2], 1) == 3


def test_the_shares_of_a_round_add_up() -> None:
    shares = engine._shares(wall=10, server=1, wave=8, jobs=[6, 4, 3], together=12, alone=11)
    assert shares["efficiency"] == pytest.approx(12 / 20)
    assert shares["share_idle"] == pytest.approx((2 * 7 - 13) / 20)
    named = [value for name, value in shares.items() if name.startswith("share_")]
    assert shares["efficiency"] + sum(named) == pytest.approx(1)


@pytest.mark.slow
def test_our_step_and_the_textbook_s_reach_the_same_weights() -> None:
    row = steps.compare(batch=16, seconds=0.0, epochs=3)
    assert row["steps"] == 24
    assert row["moved"] > 1e-3
    for choice in CHOICES:
        assert row[f"{choice}_apart"] < 1e-3 * row["moved"]
        assert row[f"{choice}_ms"] > 0


@pytest.fixture(scope="module")
def figures(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Every part once, with as little work as it can have."""
    small = {"method": "fedapa", "dataset": "mnist", "model": "mlp:4", "clients": 3, "rounds": 2, "tiny": True}
    point = {**small, **growth.simulate(small), "peak_mib": 1}
    long = {"method": "fedapa", "dataset": "digits", "model": "mlp:4", "clients": 3, "rounds": 5}
    long |= {**growth.whole(long), "peak_mib": 1}
    many: dict[str, Any] = {"method": "ditto", "clients": 20, "storage": "disk", "rounds": 3}
    many |= crowds.alone(many)
    turns = crowds.in_turns({"method": "ditto", "crowds": [(10, "memory"), (20, "disk")], "rounds": 4})
    both = [{**many, "round_seconds": seconds, "times": n} for n, seconds in enumerate(turns["round_seconds"], start=1)]
    merged = [{"method": n, "clients": 3, **server.step(n, 3, 1)} for n, *_ in server.STEPS]
    ours = race.measure(tmp_path_factory.mktemp("peers"), tiny=True, field=race.FIELD[:1])
    results = {
        "engine": {"efficiency": [engine.efficiency("torch", 1, tiny=True)]},
        "clients": {"costs": [clients.cost("fedavg", workers, tiny=True) for workers in (1, 2)]},
        "steps": {"model": "LeNet-5", "steps": [steps.compare(8, 0.0, 1)], "peak": 100.0},
        "server": {
            "beside_fedavg": server.beside_fedavg(1, tiny=True),
            "steps": merged,
            "apple_mixing": [server.apple_mixing(3, 8, 0.0)],
        },
        "growth": {"clients": [point], "parameters": [point], "rounds": [long]},
        "crowds": both,
        "agenda": {
            "runs": 4, "setting": "small", "table": [{"processes": 2, "workers": 1, "seconds": 2.0, "ratio": 1.8}],
            "killed": {"every": 5, "kills": 1, "lost": 0, "twice": 0, "same": True, "seconds": 3.0},
        },
        "peers": ours,
    }  # fmt: skip
    about = {"command": "pytest", "date": machine.stamp(), "seconds": 1.0, "tiny": True, "machine": machine.facts()}
    return {part: {**about, "result": result} for part, result in results.items()}


@pytest.mark.slow
def test_every_part_gives_its_figures(figures: dict[str, Any]) -> None:
    json.dumps(figures)
    row = figures["engine"]["result"]["efficiency"][0]
    assert row["efficiency"] > 0
    assert row["rounds"] == 1
    for row in figures["clients"]["result"]["costs"]:
        assert row["steps_ms"] > 0, "the clock of the steps runs in workers too"
        assert row["cost_ms"] > 0
    assert figures["server"]["result"]["beside_fedavg"]["clients"] == 4
    assert figures["growth"]["result"]["clients"][0]["parameters"] == 784 * 4 + 4 + 4 * 10 + 10
    assert [row["met"] for row in figures["crowds"]["result"]] == [20, 20]
    assert all(row["round_seconds"] > 0 for row in figures["crowds"]["result"])
    assert figures["growth"]["result"]["rounds"][0]["written_mib"] > 0
    assert [row["method"] for row in figures["server"]["result"]["steps"]] == [name for name, *_ in server.STEPS]


@pytest.mark.slow
def test_a_contestant_does_the_steps_of_the_work_and_ours_is_the_measure(figures: dict[str, Any]) -> None:
    rows = figures["peers"]["result"]["silos"]["contestants"]
    # 4 clients of 100 samples: 7 batches of 16, twice
    assert [row["steps"] for row in rows] == [4 * 7 * 2]
    assert rows[0]["ratio"] == 1
    assert [len(row["each_seconds"]) for row in rows] == [2]


@pytest.mark.slow
def test_the_page_tells_the_figures(figures: dict[str, Any]) -> None:
    text = page.render(figures)
    row = figures["engine"]["result"]["efficiency"][0]
    assert f"{row['efficiency']:.3f}" in text
    assert "Side by side with peers" in text
    assert "| 2 | 1 | 2.0 | 120.0 | 1.80 | 1.7: met |" in text
    assert text.count("Reduced scale") == 8
    assert figures["engine"]["machine"]["torch"] in text
    assert "Growth" not in page.render({"engine": figures["engine"]}), "what was not measured is not told"


@pytest.mark.slow
def test_a_crowd_is_simulated_from_mapped_pictures(tmp_path: Path, figures: dict[str, Any]) -> None:
    """Twelve thousand clients, two thousandths of them for two rounds, and the page has a line for it."""
    million.pictures(tmp_path, 12_000)
    point = {"clients": 12_000, "share": 0.002, "rounds": 2, "engine": "local", "ranks": 1}
    row = million.measured(point, tmp_path)
    assert row["accepted"] == [24, 24]
    assert len(row["round_seconds"]) == 2
    text = page.render({"million": {**figures["engine"], "result": [row]}})
    assert f"| 12,000 | 24 | local | {row['planned_seconds']:.1f} |" in text
    assert f"`{row['checksum']}` |" in text


@pytest.mark.slow
@pytest.mark.long
def test_models_are_mixed_on_ranks_to_the_same_bits(figures: dict[str, Any]) -> None:
    alone, two = ranks.measure(tiny=True)
    assert alone["checksum"] == two["checksum"]
    assert two["accepted"] == [300] * 4
    text = page.render({"ranks": {**figures["engine"], "result": [alone, two]}})
    assert f"| distributed, 2 ranks | {two['round']:.2f} | {two['server']:.2f} |" in text


def test_the_page_can_be_made_again_of_the_figures_that_are_kept() -> None:
    """A part that was measured before it had all its figures shows those it has."""
    docs = Path(page.__file__).parents[1] / "docs"
    assert page.render(json.loads((docs / "benchmarks.json").read_text())) == (docs / "benchmarks.md").read_text()


@pytest.mark.slow
def test_the_page_says_where_a_bar_is_missed(figures: dict[str, Any]) -> None:
    for value, word in ((0.89, "**missed**"), (0.91, "met")):
        row = {**figures["engine"]["result"]["efficiency"][0], "efficiency": value}
        part = {**figures["engine"], "result": {"efficiency": [row]}}
        assert f"| {word} |" in page.render({"engine": part})
    assert page.verdict(0.03, "server") == "**missed**"
    assert page.verdict(0.01, "server") == "met"


def test_memory_is_that_of_a_process_and_its_children(tmp_path: Path) -> None:
    if not Path("/proc/self/smaps_rollup").exists():
        pytest.skip("memory is read from /proc")
    child = "import time; block = bytearray(40 * 2**20); print(flush=True); time.sleep(30)"
    parent = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {child!r}])"
    with subprocess.Popen([sys.executable, "-c", parent], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        members = machine.family(process.pid)
        assert len(members) == 2
        assert sum(map(machine.held, members)) > 40 * machine.MEBI > machine.held(members[0])
        for member in reversed(members):
            subprocess.run(["kill", str(member)], check=True)


def test_an_unknown_part_is_refused_in_a_sentence(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks", "engin", "--figures", str(tmp_path / "f.json")],
        cwd=ROOT, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 2
    assert "there is no part 'engin'" in done.stderr
    assert not list(tmp_path.iterdir())
