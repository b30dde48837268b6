"""A federation of separate processes on this machine, from nothing to a report.

Everything is as on several machines: encryption, a key for each site, data and private state in folders that only the
site's own process reads. Only the distance is missing.
"""

import shutil
import sys
from pathlib import Path

import numpy as np
import tomli_w
import typer
from rich.console import Console

from fedgraft.base.errors import UserError
from fedgraft.data.datasets import Dataset, load
from fedgraft.data.partition import SCHEMES
from fedgraft.deploy import certificates, code, server
from fedgraft.deploy.application import write_kit
from fedgraft.deploy.charter import Charter, charter
from fedgraft.deploy.processes import HOST, Programs, Say, free_port
from fedgraft.deploy.serving import FILE, largest_reply, planned
from fedgraft.deploy.voice import telling
from fedgraft.flags import default_directory
from fedgraft.runs import directory
from fedgraft.runs.comparison import Reading
from fedgraft.runs.config import configure

PARTITION = "dirichlet:0.3"
FAREWELL = 60.0
"""Seconds that the sites have to end after the server has its result."""


def show(out: Path | None, *, method: str, sites: int, rounds: int, seed: int, verbose: bool = False) -> None:
    """Do the demonstration, telling what happens, and print what came of it."""
    place = out or default_directory(f"deploy-{method}-digits")
    names = [f"site-{number + 1}" for number in range(sites)]
    digits = load("digits")
    tables, files = code.pack({
        "directory": "run",
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
    with telling() as say:
        reading = _federate(place, agreed, digits, say, verbose=verbose)
    Console().print(server.table(reading, agreed.sites))
    run, logs = place / "server" / "run", f"{place / 'server' / 'logs'}, {place / 'sites'}/*/logs"
    typer.echo(f"run directory: {run}\nreport: {run / 'report.html'}\nlogs of all programs: {logs}")
    typer.echo(f"a site's own model: fedgraft deploy model {_home(place, names[0]) / f'{names[0]}.toml'}")


def _home(place: Path, name: str) -> Path:
    return place / "sites" / name


def _federate(place: Path, agreed: Charter, digits: Dataset, say: Say, *, verbose: bool) -> Reading:
    """Write the server's folder and the sites', then do what their people would: `deploy server`, `deploy site`."""
    kit = place / "server"
    write_kit(kit, agreed, f"{HOST}:{free_port()}", largest_reply(agreed))
    say(f"{len(agreed.sites)} sites from {digits.name} ({PARTITION}), each with a folder in {place / 'sites'}")
    say("an authority, the server's certificate and a key for each site")
    certificates.make(kit / "certificates", server=[HOST], sites=agreed.sites)
    _make_sites(place, agreed, digits)
    with Programs(place, say=say) as sites:
        for name in agreed.sites:
            say(f"site {name}: fedgraft deploy site {_home(place, name) / f'{name}.toml'}")
            words = ["-m", "fedgraft", "deploy", "site", str((_home(place, name) / f"{name}.toml").absolute())]
            sites.start(name, sys.executable, *words, may_end=True)
        say(f"the server: fedgraft deploy server {kit}")
        reading = server.serve(server.read(kit), say, verbose=verbose, meanwhile=lambda: _insist(sites))
        sites.wait_until(lambda: all(each.code == 0 for each in sites.processes), "all sites have ended", FAREWELL)
        return reading


def _insist(sites: Programs) -> None:
    """Do not wait for a site that is not coming: each ends by itself when the run is over, and not before."""
    for site in sites.processes:
        if site.code:
            raise UserError(f"site {site.name} ended with exit code {site.code}; it said:\n{site.last_words()}")


def _make_sites(place: Path, agreed: Charter, digits: Dataset) -> None:
    """Give each site its own samples, its key, and a file that says where they lie."""
    kit, names = place / "server", agreed.sites
    drawn = SCHEMES.make(PARTITION).split(digits.y_train, digits.y_test, len(names), agreed.run.seed)
    x, y = np.concatenate([digits.x_train, digits.x_test]), np.concatenate([digits.y_train, digits.y_test])
    address = server.read(kit).address
    facts = {"data": "data.npz", "state": "state", "server": address, "code": agreed.code}
    for name, train, test in zip(names, drawn.train, drawn.test, strict=True):
        home = _home(place, name)
        shutil.copytree(kit / "certificates" / "sites" / name, home)
        shutil.copy2(kit / FILE, home)
        for each, path in agreed.files.items():
            (home / each).parent.mkdir(exist_ok=True)
            shutil.copy2(path, home / each)
        np.savez(home / "data.npz", x_train=x[train], y_train=y[train], x_test=x[test], y_test=y[test])
        (home / f"{name}.toml").write_text(tomli_w.dumps(facts | {"name": name}), "utf-8")
