"""The list of the papers' measurements, and what gathering them keeps."""

import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks import papers
from fedgraft.runs.config import configure
from fedgraft.runs.run import run


def test_every_measurement_has_a_place_and_a_command_of_its_own() -> None:
    everything = papers.measurements()
    assert len({one.place for one in everything}) == len({one.command for one in everything}) == len(everything)


def test_runs_are_chosen_by_group_or_by_directory() -> None:
    assert {one.group for one in papers.chosen(["apple", "fedppa"])} == {"apple", "fedppa"}
    assert [one.seed for one in papers.chosen(["fedapa-variants/authors-*"])] == [0, 1, 2]
    assert len(papers.chosen([])) == len(papers.measurements())
    with pytest.raises(SystemExit, match="there is no group fedapa-varaints; there are apple, fedapa-draws"):
        papers.chosen(["fedapa-varaints"])


def test_both_readings_of_none_of_the_three_and_the_budgets_of_the_papers_table_are_there() -> None:
    commands = [one.command for one in papers.measurements()]
    for reading in ("mu=0", "self_weight=false"):
        assert any(f"--set clip=false --set {reading} --set normalise=false" in command for command in commands)
    assert sum("--set mu=0 --set budget=" in command for command in commands) == 3


@pytest.fixture
def results(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "results"
    folder.mkdir()
    monkeypatch.setattr(papers, "RESULTS", folder)
    return folder


def test_what_was_measured_before_stays_and_what_is_new_replaces_it(results: Path, tmp_path: Path) -> None:
    one, other = papers.chosen(["fedapa-draws/local-[01]"])
    earlier: list[dict[str, Any]] = [
        {"label": m.label, "command": m.command, "seed": m.seed, "last": _figures(0.25)} for m in (one, other)
    ]
    earlier.append({"label": "no such row any more", "command": "fedgraft run nothing", "seed": 0})
    (results / "fedapa-draws.json").write_text(json.dumps({"runs": earlier}), "utf-8")
    done = run("local", config=configure({"rounds": 1, "clients": 3, "workers": 1}), out=tmp_path / "runs" / one.place)
    papers.gather(tmp_path / "runs")
    found = json.loads((results / "fedapa-draws.json").read_text("utf-8"))["runs"]
    assert [row["command"] for row in found] == [one.command, other.command]
    assert found[0]["last"]["trained"] == done.result["last"]["trained"]["accuracy"]
    assert found[1] == earlier[1]


def _figures(value: float) -> dict[str, dict[str, float]]:
    return {point: {"mean": value, "pooled": value} for point in ("received", "trained")}
