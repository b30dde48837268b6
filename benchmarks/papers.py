"""Measure the papers' settings: make the runs that docs/results tells of, and gather what they gave.

    python benchmarks/papers.py list [GROUP ...]
    python benchmarks/papers.py run DIR [GROUP ...]       # goes on where it stopped
    python benchmarks/papers.py gather DIR                # writes docs/results/GROUP.json and prints the tables

A run is an ordinary `fedgraft run`; `list` prints the commands. GROUP may also name single runs by their directory,
such as 'fedapa-variants/authors-*'. What DIR does not have stays in docs/results as it was. The datasets have to lie in
FEDGRAFT_DATA.
"""

import argparse
import json
import re
import statistics
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).parents[1] / "docs" / "results"

FEDAPA = "--recipe fedapa --evaluate-every 5"
FEDGPA = "--recipe fedgpa --evaluate-every 10 --kernels native"
APPLE = "--recipe apple --rounds 20 --evaluate-every 5"
FEDPPA = "--recipe fedppa --model vgg-family:0.0625 --rounds 6 --epochs 2 --evaluate-every 6"

TABLE_1 = ("fedphp", "fedamp", "apple", "fedala", "pfedhn", "pfedla", "fedpac", "dbe", "fedproto", "fedgh")
DRAWS = (0, 1, 2)


@dataclass(frozen=True)
class Measurement:
    """One run: what it belongs to, what its row is called, and the arguments that make it."""

    group: str
    label: str
    arguments: str
    seed: int = 0

    @property
    def place(self) -> str:
        """The run's directory."""
        return f"{self.group}/{re.sub('[^a-z0-9.=+]+', '-', self.label.lower())}-{self.seed}"

    @property
    def command(self) -> str:
        return f"fedgraft run {self.arguments} --seed {self.seed}"


def measurements() -> list[Measurement]:
    """Everything that docs/results tells of the papers' settings."""
    return [*_fedapa(), *_fedgpa(), *_apple(), *_fedppa()]


def _fedapa() -> Iterable[Measurement]:
    for seed in DRAWS:
        for method in ("local", "fedavg", "fedper", "fedapa"):
            yield Measurement("fedapa-draws", method, f"{method} {FEDAPA}", seed)
        yield Measurement("fedapa-draws", "fedapa, kernels torch", f"fedapa {FEDAPA} --kernels torch", seed)
    for method in (*TABLE_1, "fedavg-ft"):
        yield Measurement("fedapa-table1", method, f"{method} {FEDAPA}")
    variants = {
        "share all": "share=all",
        "no clip": "clip=false",
        "mu 0": "mu=0",
        "no normalise": "normalise=false",
        "none of the three": "clip=false mu=0 normalise=false",
        "none of the three, own weight as learned": "clip=false self_weight=false normalise=false",
        "mu 0.3": "mu=0.3",
        "mu 0.7": "mu=0.7",
        "mu 1": "mu=1",
        "authors' code": "order=sequential server_momentum=0.9 mu=1",
    }
    for seed in DRAWS:
        for label, values in variants.items():
            yield Measurement("fedapa-variants", label, f"fedapa {FEDAPA} {_set(values)}", seed)


def _fedgpa() -> Iterable[Measurement]:
    settings = {
        similar: f"{FEDGPA} --rounds {rounds} --partition dominant:n=600,k=5,s={similar}"
        for similar, rounds in ((20, 60), (80, 40))
    }
    for similar, setting in settings.items():
        for method in ("local", "fedavg", "fedavg-ft", "fedgpa"):
            yield Measurement("fedgpa", f"s={similar} {method}", f"{method} {setting}")
    yield Measurement("fedgpa", "s=20 LGA", f"fedgpa {settings[20]} {_set('gpa_f=false gpa_c=false')}")
    yield Measurement("fedgpa", "s=20 LGA and GPA(c)", f"fedgpa {settings[20]} {_set('gpa_f=false')}")


def _apple() -> Iterable[Measurement]:
    for method in ("local", "fedavg-local"):
        yield Measurement("apple", method, f"{method} {APPLE}")
    for budget in (11, 5, 1):
        yield Measurement("apple", f"apple budget {budget}", f"apple {APPLE} {_set(f'budget={budget}')}")
    for budget in (11, 5, 1):
        yield Measurement("apple", f"apple mu 0, budget {budget}", f"apple {APPLE} {_set(f'mu=0 budget={budget}')}")


def _fedppa() -> Iterable[Measurement]:
    for alpha in (0.5, 0.1, 0.01):
        setting = f"{FEDPPA} --partition dirichlet-balanced:{alpha}"
        for method in ("fedavg", "flexifed", "fedppa", "fedppa+"):
            yield Measurement("fedppa", f"alpha={alpha} {method}", f"{method} {setting}")
    setting = f"{FEDPPA} --partition dirichlet-balanced:0.01"
    yield Measurement("fedppa", "alpha=0.01 fedppa, align_lr 1", f"fedppa {setting} {_set('align_lr=1')}")
    for method in ("flexifed", "fedppa"):
        arguments = f"{method} {setting} {_set('include_classifier=false')}"
        yield Measurement("fedppa", f"alpha=0.01 {method}, own classifiers", arguments)


def _set(values: str) -> str:
    return " ".join(f"--set {value}" for value in values.split())


def chosen(names: Sequence[str]) -> list[Measurement]:
    """The measurements of the named groups or directories; all without a name."""
    known = measurements()
    for name in names:
        if not any(name == one.group or fnmatch(one.place, name) for one in known):
            raise SystemExit(f"there is no group {name}; there are {', '.join(sorted({one.group for one in known}))}")
    return [one for one in known if not names or any(one.group == n or fnmatch(one.place, n) for n in names)]


def run(root: Path, wanted: Sequence[Measurement], workers: str) -> int:
    """Make the runs that are missing; an interrupted one goes on from its checkpoint."""
    for one in wanted:
        place = root / one.place
        if (place / "result.json").exists():
            continue
        print(f"{one.group}, {one.label}, seed {one.seed}", flush=True)
        whole = [sys.executable, "-m", "fedgraft"]
        if (place / "config.toml").exists():
            command = [*whole, "resume", str(place)]
        else:
            command = [*whole, "run", *one.arguments.split(), "--seed", str(one.seed), "--out", str(place)]
            command += ["--workers", workers]  # it does not change a bit of the result
        if code := subprocess.run(command).returncode:
            return code
    return 0


def gather(root: Path) -> None:
    """Write what the finished runs gave, a file for each group, and print it."""
    groups: dict[str, list[dict[str, Any]]] = {}
    for one in measurements():
        path = root / one.place / "result.json"
        facts = _facts(one, json.loads(path.read_text("utf-8"))) if path.exists() else _earlier(one)
        if facts is not None:
            groups.setdefault(one.group, []).append(facts)
    for group, runs in groups.items():
        (RESULTS / f"{group}.json").write_text(json.dumps({"runs": runs}, indent=1) + "\n", "utf-8")
        print(f"\n## {group}\n{_table(runs)}")


def _earlier(one: Measurement) -> dict[str, Any] | None:
    """What docs/results has of a run already."""
    path = RESULTS / f"{one.group}.json"
    runs = json.loads(path.read_text("utf-8"))["runs"] if path.exists() else []
    return next((run for run in runs if run["command"] == one.command), None)


def _facts(one: Measurement, result: Mapping[str, Any]) -> dict[str, Any]:
    kept = ("fedgraft", "method", "params", "seed", "headline", "clients", "model", "partition", "kernels")
    figures = ("bytes_up_per_client", "bytes_down_per_client", "refused", "best")
    points, leading = ("received", "trained"), result["metrics"][0]["name"]

    def shares(by_metric: Mapping[str, Any]) -> dict[str, float]:
        return {figure: by_metric[leading][figure] for figure in ("mean", "pooled")}

    evaluated = [
        {"round": r["round"], **{point: shares(r[point]["metrics"]) for point in points}}
        for r in result["rounds"]
        if "received" in r
    ]
    facts = {"label": one.label, "command": one.command} | {name: result[name] for name in (*kept, *figures)}
    last = {"last": {point: shares(result["last"][point]) for point in points} | {"round": result["last"]["round"]}}
    return facts | last | {"evaluated": evaluated}


def _table(runs: Sequence[Mapping[str, Any]]) -> str:
    """Rows by label: the last round in percent, a column for each seed and their mean."""
    rows = [
        "| row | received mean | received pooled | trained mean | trained pooled | draws |",
        "|---|---|---|---|---|---|",
    ]
    for label in dict.fromkeys(run["label"] for run in runs):
        each = [run for run in runs if run["label"] == label]
        cells = []
        for point in ("received", "trained"):
            for figure in ("mean", "pooled"):
                values = [100 * run["last"][point][figure] for run in each]
                single = " ".join(f"{value:.2f}" for value in values)
                cells.append(single if len(values) == 1 else f"{single} ({statistics.fmean(values):.2f})")
        rows.append(f"| {label} | {' | '.join(cells)} | {' '.join(str(run['seed']) for run in each)} |")
    return "\n".join(rows)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="task", required=True)
    for task in ("list", "run", "gather"):
        command = commands.add_parser(task)
        if task != "list":
            command.add_argument("dir", type=Path)
        if task != "gather":
            command.add_argument("groups", nargs="*")
        if task == "run":
            command.add_argument("--workers", default="auto")
    given = parser.parse_args()
    if given.task == "gather":
        gather(given.dir)
        return 0
    wanted = chosen(given.groups)
    if given.task == "list":
        print("\n".join(one.command for one in wanted))
        return 0
    return run(given.dir, wanted, given.workers)


if __name__ == "__main__":
    sys.exit(main())
