"""A federation of separate processes on this machine, from nothing to a report.

Everything is as on several machines: encryption, a key for each site, data and private state in folders that only the
site's own process reads. Only the distance is missing.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import tomli_w
import typer
from rich.console import Console
from rich.table import Table

from fedgraft.base.errors import UserError
from fedgraft.core.evaluation import POINTS
from fedgraft.data.datasets import Dataset, load
from fedgraft.data.partition import SCHEMES
from fedgraft.deploy import certificates, code
from fedgraft.deploy.application import write_app
from fedgraft.deploy.charter import Charter, charter
from fedgraft.deploy.processes import HOST, Deployment, Process
from fedgraft.deploy.serving import planned
from fedgraft.flags import default_directory
from fedgraft.report.page import write as write_report
from fedgraft.runs import directory
from fedgraft.runs.comparison import Reading
from fedgraft.runs.config import configure
from fedgraft.runs.reading import read_all
from fedgraft.runs.table import last_figures
from fedgraft.terminal import facts_table

Say = Callable[[str], None]
PARTITION = "dirichlet:0.3"
SILENCE = 700.0
"""Seconds without a word from the server's half after which something must be wrong."""
LAST_WORDS = 10.0
"""Seconds that the last words of a run may take to get here."""
_SPOKEN, _FAILED = "fedgraft: ", "raised an exception"


def show(out: Path | None, *, method: str, sites: int, rounds: int, seed: int) -> None:
    """Do the demonstration, telling what happens, and print what came of it."""
    place = out or default_directory(f"deploy-{method}-digits")
    names = [f"site-{number + 1}" for number in range(sites)]
    digits = load("digits")
    tables, files = code.pack({
        "directory": str(place.absolute() / "run"),
        "sites": names,
        "data": {
            "name": digits.name, "kind": "pixels", "shape": digits.shape, "task": f"classification:{digits.classes}"
        },
        "rules": {"quorum": sites, "deadline": 600, "patience": 600},
        "run": configure({"method": method, "rounds": rounds, "seed": seed, "lr": 0.05}),
    })  # fmt: skip
    agreed = charter(tables).at(files)
    planned(agreed, (1,) * sites)
    directory.fresh(place)
    with _telling(Console(stderr=True)) as say:
        _federate(place, agreed, digits, say)
    reading = read_all([place / "run"])
    report = write_report(reading, place / "run" / "report.html")
    Console().print(_table(reading, names))
    typer.echo(f"run directory: {place / 'run'}\nreport: {report}\nlogs of all processes: {place / 'logs'}")
    typer.echo(f"a site's own model: fedgraft deploy model {place / 'sites' / names[0] / 'site.toml'}")


def _federate(place: Path, agreed: Charter, digits: Dataset, say: Say) -> None:
    """Make sites, start their processes and the server's, train, end what was started."""
    names = agreed.sites
    say(f"{len(names)} sites from {digits.name} ({PARTITION}), each with a folder in {place / 'sites'}")
    described = _make_sites(place / "sites", agreed, digits)
    write_app(place / "app", agreed)
    say("an authority, the server's certificate and a key for each site")
    certificates.make(place / "certificates", server=[HOST], sites=names)
    with Deployment(place, place / "certificates") as flower:
        say("starting the SuperLink")
        flower.superlink()
        flower.superexec()
        for name in names:
            say(f"registering the key of {name} and starting its SuperNode")
            flower.register(name)
            flower.supernode(name, {"site": str(described[name])})
        say("submitting the app")
        serverapp = flower.follow(flower.submit(place / "app"))
        _listen(flower, serverapp, place / "run" / "result.json", say)
        say("ending every process that was started")


def _make_sites(folder: Path, agreed: Charter, digits: Dataset) -> dict[str, Path]:
    """Give each site its own samples, and a file that says where they lie."""
    names = agreed.sites
    drawn = SCHEMES.make(PARTITION).split(digits.y_train, digits.y_test, len(names), agreed.run.seed)
    x, y = np.concatenate([digits.x_train, digits.x_test]), np.concatenate([digits.y_train, digits.y_test])
    facts = {"data": "data.npz", "state": "state", "code": agreed.code}
    described = {}
    for name, train, test in zip(names, drawn.train, drawn.test, strict=True):
        home = folder / name
        home.mkdir(parents=True)
        np.savez(home / "data.npz", x_train=x[train], y_train=y[train], x_test=x[test], y_test=y[test])
        described[name] = home / "site.toml"
        described[name].write_text(tomli_w.dumps(facts | {"name": name}), "utf-8")
    return {name: path.absolute() for name, path in described.items()}


def _listen(flower: Deployment, serverapp: Process, result: Path, say: Say) -> None:
    """Pass on what the server's half says, until it is done, has failed or has been silent for too long."""
    heard, news, finished = 0, time.monotonic(), False

    def over() -> bool:
        nonlocal heard, news, finished
        said = serverapp.said
        whole = said[: said.rfind("\n") + 1]
        lines = [line for line in whole.splitlines() if line.startswith(_SPOKEN)]
        for line in lines[heard:]:
            say(line.removeprefix(_SPOKEN))
        if len(lines) > heard or result.exists() > finished:
            heard, finished, news = len(lines), result.exists(), time.monotonic()
        silent = time.monotonic() - news
        if finished:
            return serverapp.code is not None or silent > LAST_WORDS
        if _FAILED in said:
            raise UserError(f"the server's half failed; it said, in {serverapp.log}:\n{serverapp.last_words(20)}")
        if silent > SILENCE:
            raise UserError(f"not a word from the server's half for {SILENCE:.0f} s; see {serverapp.log.parent}")
        return False

    flower.wait_until(over, "the run is over", seconds=float("inf"))


@contextmanager
def _telling(console: Console) -> Iterator[Say]:
    """Lend a voice: a line for everything that happens, with the time; in a terminal also a sign of life."""
    started = time.monotonic()
    with console.status("") as status:

        def say(sentence: str) -> None:
            console.print(f"{time.monotonic() - started:5.0f} s  {sentence}", highlight=False, markup=False)
            status.update(sentence.partition(":")[0])

        yield say


def _table(reading: Reading, names: Sequence[str]) -> Table:
    """How good each site's own model is on the site's own test samples."""
    facts = reading.runs[0].facts
    metric = facts.leading

    def row(site: str, count: int, received: float | None, trained: float | None) -> dict[str, str]:
        shown = ("" if value is None else metric.shown(value) for value in (received, trained))
        return dict(zip(("site", "samples", "received", "trained"), (site, f"{count:,}", *shown), strict=True))

    own = zip(names, facts.samples, *(last_figures(facts, metric, point) for point in POINTS), strict=True)
    rows = [row(*each) for each in own]
    pooled = [facts.last.figures(point, metric.name) for point in POINTS]
    rows.append(row("all, pooled", sum(facts.samples), *(each and each.pooled for each in pooled)))
    headings = {point: f"{point}: {metric.heading}" for point in ("received", "trained")}
    return facts_table(rows, {"site": "site", "samples": "training samples", **headings})
