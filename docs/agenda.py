"""The agenda of the measurements in docs/results: what is run next, by any number of processes, at low priority.

    python -m docs.agenda --list      # how far every step is
    nice python -m docs.agenda        # make the runs that are left, one after another

After a stop the same command goes on; started twice, two processes share the work. `make results FROM=DIR` takes in
what is finished.
"""

import argparse
import sys
import tomllib
from collections.abc import Iterable
from dataclasses import replace
from functools import cached_property
from pathlib import Path

from pydantic import BaseModel, ConfigDict

from docs.tables import table
from fedgraft.base import characters
from fedgraft.papers.tables import Cell, Paper, Scale, paper
from fedgraft.runs import reproduce
from fedgraft.runs.config import configure
from fedgraft.runs.measurement import Measurement
from fedgraft.runs.reproduce import Evidence, Request
from fedgraft.terminal import Display

RESULTS = Path(__file__).parent / "results"
FILE = RESULTS / "agenda.toml"
Key = tuple[str, str, str, str, int]
"""A run by paper, scale, column, method and seed."""


class Step(BaseModel):
    """Cells of a paper's table, and how many draws of them are wanted."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    what: str
    paper: str
    item: str
    cells: list[str]
    draws: int
    scale: Scale = "full"
    evaluate_every: int | None = None
    """In which rounds a run is tested; without, as the paper's recipe says."""

    @cached_property
    def told(self) -> Paper:
        return paper(self.paper)

    @cached_property
    def chosen(self) -> tuple[Cell, ...]:
        return self.told.item(self.item).chosen(self.cells)

    @property
    def runs(self) -> set[Key]:
        """Those that it wants; a step may share some with others."""
        return {self._key(cell, seed) for cell in self.chosen for seed in range(self.draws)}

    def done(self, evidence: Evidence) -> set[Key]:
        """Those that are measured."""
        found = {self._key(cell, run.seed) for cell in self.chosen for run in evidence.of(cell, self.scale)}
        return found & self.runs

    def _key(self, cell: Cell, seed: int) -> Key:
        return self.paper, self.scale, cell.column, cell.method, seed

    def left(self, evidence: Evidence, root: Path, workers: str) -> list[Request]:
        """The runs that are not measured, of datasets that are here."""
        every = reproduce.requests(self.told, self.chosen, range(self.draws), self.scale, root, alone=False)
        wanted = [each for each in every if not reproduce.lacking(each.config.dataset)]
        changes: dict[str, int | str] = {"workers": workers}
        changes |= {} if self.evaluate_every is None else {"evaluate_every": self.evaluate_every}
        return [
            replace(each, config=configure(each.config, changes))
            for each in reproduce.left(wanted, evidence, self.scale)
        ]


def steps(file: Path = FILE) -> list[Step]:
    """The agenda, in its order."""
    return [Step.model_validate(each) for each in tomllib.loads(file.read_text("utf-8"))["step"]]


class Progress:
    """What the page is written with: how far every step is."""

    def __init__(self, found: Iterable[Measurement], file: Path = FILE) -> None:
        runs = list(found)
        self.steps = [(step, step.done(Evidence(step.told, runs))) for step in steps(file)]

    @property
    def done(self) -> int:
        return len(set().union(*(done for _, done in self.steps)))

    @property
    def runs(self) -> int:
        return len(set().union(*(step.runs for step, _ in self.steps)))

    def table(self) -> str:
        rows = [
            [step.what, str(step.draws), step.scale, f"{len(done)} of {len(step.runs)}"] for step, done in self.steps
        ]
        return table(["step", "draws", "scale", "runs measured"], rows)


def measured(root: Path, places: list[Path]) -> list[Measurement]:
    """All that is there, in these places and in the folder of all runs, which the first run makes."""
    return reproduce.found_in([*places, *([root] if root.exists() else [])])


def work(root: Path, places: list[Path], workers: str, file: Path = FILE) -> None:
    """Make what is left, step by step."""
    for step in steps(file):
        if todo := step.left(Evidence(step.told, measured(root, places)), root, workers):
            print(f"{step.what}: {len(todo)} left to run", flush=True)
            with Display(characters.console(), total_runs=len(todo)) as display:
                reproduce.make(todo, [display])


def main() -> None:
    """Do what was asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--list", action="store_true")
    parser.add_argument("--root", type=Path, default=Path("runs/reproduce"), help="the folder of all runs")
    parser.add_argument("--from", dest="taken", type=Path, action="append", default=[], help="finished runs elsewhere")
    parser.add_argument("--workers", default="1", help="processes of each run")
    asked = parser.parse_args()
    places = [RESULTS, *asked.taken]
    if asked.list:
        print(Progress(measured(asked.root, places)).table())
        return
    try:
        work(asked.root, places, asked.workers)
    except KeyboardInterrupt:
        sys.exit("stopped; the same command goes on")


if __name__ == "__main__":
    main()
