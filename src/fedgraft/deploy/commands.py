"""`fedgraft deploy`: what the operator of a server and whoever answers for a site type."""

import os
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Any

import typer

from fedgraft.base.errors import UserError
from fedgraft.deploy.elsewhere import ELSEWHERE
from fedgraft.flags import Commands, ConfigFile, Recipe, Set, with_settings
from fedgraft.methods import METHODS
from fedgraft.runs import names
from fedgraft.runs.config import configure, read

app = typer.Typer(
    cls=Commands,
    name="deploy",
    help="Run a method on several machines with Flower: certificates, the server, the sites, a demonstration.",
    no_args_is_help=True,
    context_settings={"help_option_names": ["-h", "--help"]},
)
Folder = Annotated[Path, typer.Option("--folder", help="The server's folder.")]
Verbose = Annotated[
    bool, typer.Option("--verbose", "-v", help="Show the output of all programs; it is also in `logs`.")
]
Description = Annotated[Path, typer.Argument(metavar="SITE", help="The site's own description, such as a.toml.")]
Server = Annotated[
    str | None,
    typer.Option(help="Where the server is reached (default: as the description says).", metavar="HOST:PORT"),
]
Authority = Annotated[
    Path | None, typer.Option(help="The authority's certificate (default: ca.crt next to the description).")
]
Key = Annotated[Path | None, typer.Option(help="The site's key (default: node.key next to it).")]
Agreed = Annotated[
    Path | None, typer.Option(help="The charter of the federation (default: charter.toml next to it, if there is one).")
]
Sites = Annotated[str, typer.Option("--sites", help="Names of the sites, such as a,b,c.", metavar="NAME,...")]


@app.command()
@partial(with_settings, without=ELSEWHERE)
def init(
    directory: Annotated[Path, typer.Argument(help="Folder to create, for the server and its operator.")],
    sites: Sites = "",
    method: Annotated[
        str | None, typer.Option(help="A method by name, or ./mine.py:Mine, which is sent with the app.")
    ] = None,
    set_: Set = None,
    config: ConfigFile = None,
    recipe: Recipe = None,
    pixels: Annotated[
        str | None, typer.Option(help="The data are images of bytes, such as 28x28 or 32x32x3.", metavar="HxW[xC]")
    ] = None,
    features: Annotated[
        str | None, typer.Option(help="The data are floats, such as 30 or 12x1500.", metavar="N[xM...]")
    ] = None,
    tokens: Annotated[
        int | None, typer.Option(help="The data are texts, in windows of this many tokens, such as 20.", min=1)
    ] = None,
    task: Annotated[
        str | None, typer.Option(help="What is predicted, and with how many outputs.", metavar="classification:10")
    ] = None,
    mean: Annotated[
        str | None, typer.Option(help="Mean of each channel, for --normalise standard.", metavar="X[,Y,Z]")
    ] = None,
    std: Annotated[str | None, typer.Option(help="Standard deviation of each channel.", metavar="X[,Y,Z]")] = None,
    name: Annotated[str, typer.Option(help="The name of the data in reports.")] = "own data",
    quorum: Annotated[
        int | None, typer.Option(help="Replies that a round needs (default: more than half of the sites).", min=1)
    ] = None,
    deadline: Annotated[float, typer.Option(help="Seconds that sites have to answer a message.", min=1)] = 600,
    patience: Annotated[float, typer.Option(help="Seconds that the server waits for absent sites.", min=0)] = 3600,
    address: Annotated[
        str, typer.Option(help="Where sites reach the server.", metavar="HOST:PORT")
    ] = "server.example.org:8000",
    out: Annotated[str, typer.Option(help="The run's directory on the server.")] = "run",
    *,
    settings: dict[str, Any],
) -> None:
    """Write the Flower app of a federation, a description for each site, and the commands for everybody."""
    _require("flwr")
    layers = [read(config) if config else {}, _from_the_folder(settings, directory), _method(method)]
    if set_:
        from fedgraft.base.registry import assignments

        layers.append({"params": assignments(set_)})
    if method is None and "method" not in layers[0]:
        raise UserError("name a method, such as --method fedapa; `fedgraft methods` lists them")
    run = configure(*layers, recipe_name=recipe)
    names.insist_on_learning(run)

    from fedgraft.deploy.application import write_kit
    from fedgraft.deploy.charter import charter
    from fedgraft.deploy.code import pack, told
    from fedgraft.deploy.serving import beginning, largest_reply, planned

    data = {"name": name, "mean": _numbers(mean), "std": _numbers(std)} | _described(pixels, features, tokens, task)
    rules = {"quorum": quorum, "deadline": deadline, "patience": patience}
    tables, files = pack({"directory": out, "sites": _listed(sites), "data": data, "rules": rules, "run": run})
    made = charter(tables).at(files)
    if run.start_from is not None:
        planned(made, (1,) * len(made.sites), beginning(made, directory))
    write_kit(directory, made, address, largest_reply(made))
    if made.code:
        typer.echo(f"code that is not fedgraft's travels with the app, and every site has to agree: {told(made.code)}")
    typer.echo(f"the app is in {directory}; {directory / 'README.md'} has the commands for the server and each site")


@app.command()
def certificates(
    directory: Annotated[Path, typer.Argument(help="Folder for the certificates and keys.")],
    server: Annotated[
        str, typer.Option(help="Names and addresses by which sites reach the server.", metavar="HOST_OR_IP,...")
    ] = "",
    sites: Sites = "",
    days: Annotated[int, typer.Option(help="How long the server's certificate is valid.", min=1, max=3650)] = 825,
    force: Annotated[bool, typer.Option("--force", help="Replace existing keys; the authority stays.")] = False,
) -> None:
    """Make a certificate authority, the server's certificate and a key for each site."""
    _require("cryptography")
    from fedgraft.deploy.certificates import make
    from fedgraft.engines.flower.site import NAME

    hosts, names = _listed(server), _listed(sites)
    for name in names:
        if not NAME.fullmatch(name):
            raise UserError(f"a site's name is made of letters, digits, '.', '_' and '-', not {name!r}")
    for path in make(directory, server=hosts, sites=names, days=days, force=force):
        typer.echo(path)
    for_server = [directory / "server"] if hosts else [directory / "server" / f"{name}.pub" for name in names]
    typer.echo(f"to the server: {', '.join(map(str, for_server))}")
    for name in names:
        typer.echo(f"to site {name}: {directory / 'sites' / name}")
    typer.echo(f"to nobody: {directory / 'ca.key'}")


@app.command(name="server")
def serve(
    folder: Annotated[Path, typer.Argument(help="The folder that `deploy init` made.")] = Path(),
    *,
    verbose: Verbose = False,
) -> None:
    """On the server: start what it needs, let the sites' keys in, wait for the sites, train, end with a report."""
    _require("flwr")
    from rich.console import Console

    from fedgraft.deploy.server import read, serve, table
    from fedgraft.deploy.voice import telling

    kit = read(folder)
    with telling(kit.folder / "logs" / "server.log") as say:
        reading = serve(kit, say, verbose=verbose)
    Console().print(table(reading, kit.agreed.sites))
    typer.echo(f"run directory: {kit.run}\nreport: {kit.run / 'report.html'}")
    typer.echo(f"logs of all programs: {kit.folder / 'logs'}")


@app.command()
def register(
    keys: Annotated[list[Path], typer.Argument(help="Public keys of sites, such as certificates/server/*.pub.")],
    name: Annotated[str | None, typer.Option(help="The site (default: as the file is called).")] = None,
    replace: Annotated[bool, typer.Option("--replace", help="Exclude the keys that the site had before.")] = False,
    folder: Folder = Path(),
) -> None:
    """On the server: let the nodes with these keys in, one for each site."""
    _require("flwr")
    from fedgraft.deploy.control import operate_in
    from fedgraft.deploy.nodes import register

    operate_in(folder)
    if name is not None and len(keys) > 1:
        raise UserError("--name is for one key; several are registered under the names of their files")
    for file in keys:
        node, earlier = register(file, name or file.stem, replace=replace)
        typer.echo(f"site {node.site}: {node.key} is registered, as node {node.id}")
        for old in earlier:
            typer.echo(f"site {old.site}: {old.key} is shut out, node {old.id}")


@app.command()
def nodes(folder: Folder = Path()) -> None:
    """On the server: list the sites that are registered, with their keys and node ids."""
    _require("flwr")
    from rich.console import Console

    from fedgraft.base.listing import facts_table
    from fedgraft.deploy.control import operate_in
    from fedgraft.deploy.nodes import listed

    operate_in(folder)
    rows = [{"site": each.site, "status": each.status, "key": each.key, "node": str(each.id)} for each in listed()]
    if not rows:
        raise UserError("no site is registered; `fedgraft deploy register certificates/server/NAME.pub` lets one in")
    headings = {"site": "site", "status": "status", "key": "key", "node": "node id"}
    Console(soft_wrap=True).print(facts_table(rows, headings))


@app.command()
def remove(
    which: Annotated[str, typer.Argument(help="The name of a site, or a node id.")], folder: Folder = Path()
) -> None:
    """On the server: shut a site out, by removing its keys."""
    _require("flwr")
    from fedgraft.deploy.control import operate_in
    from fedgraft.deploy.nodes import remove

    operate_in(folder)
    for node in remove(which):
        typer.echo(f"site {node.site}: {node.key} is shut out, node {node.id}")


@app.command()
def check(
    site: Description, server: Server = None, authority: Authority = None, key: Key = None, federation: Agreed = None
) -> None:
    """At a site: see whether its data fit, the server answers, the clocks agree and the key is registered."""
    _require("flwr")
    from fedgraft.deploy.check import Check

    Check(site, server, authority, key, federation).run(typer.echo)


@app.command(name="site")
def take_part(
    site: Description,
    server: Server = None,
    authority: Authority = None,
    key: Key = None,
    federation: Agreed = None,
    *,
    verbose: Verbose = False,
) -> None:
    """At a site: take part in the federation until it is over, and end with the site's own model."""
    _require("flwr")
    from fedgraft.deploy.check import Check
    from fedgraft.deploy.site import take_part
    from fedgraft.deploy.voice import telling

    checked = Check(site, server, authority, key, federation)
    with telling(site.absolute().parent / "logs" / "site.log") as say:
        own = take_part(checked, say, verbose=verbose)
    if own is None:
        typer.echo("the site has no model of its own: the method's personal model is more than a network")
    else:
        typer.echo(f"the site's own model: {own}\na copy of it: fedgraft deploy model {site} --out model.safetensors")


@app.command()
def demo(
    sites: Annotated[int, typer.Option(help="Number of sites.", min=1, max=20)] = 3,
    rounds: Annotated[int, typer.Option(help="Communication rounds.", min=1)] = 3,
    method: Annotated[str, typer.Option(help="Name of a method; see `fedgraft methods`.")] = "fedapa",
    seed: Annotated[int, typer.Option(help="Seed of everything random.", min=0)] = 0,
    out: Annotated[Path | None, typer.Option(help="Directory for all results.")] = None,
    *,
    verbose: Verbose = False,
) -> None:
    """Start a server and sites as separate processes on this machine, with TLS and keys, and train on digits."""
    _require("flwr")
    METHODS.insist(method)
    from fedgraft.deploy.demo import show

    show(out, method=method, sites=sites, rounds=rounds, seed=seed, verbose=verbose)


@app.command()
def model(
    site: Description,
    out: Annotated[Path, typer.Option(help="Where to copy the model.")] = Path("model.safetensors"),
) -> None:
    """At a site: fetch the site's own model, as its last evaluation left it."""
    from fedgraft.deploy.model import fetch

    facts = fetch(site, out)
    typer.echo(f"{out}: {facts['model']} of {facts['method']}, round {facts['round']}, as {facts['point']}")
    typer.echo(f"in Python: network = fedgraft.load_model({str(out)!r})")


def _method(text: str | None) -> dict[str, Any]:
    """The settings that a method and the parameters behind its name are."""
    if text is None:
        return {}
    name, params = METHODS.read(text)
    return {"method": name, **({"params": params} if params else {})}


def _from_the_folder(settings: dict[str, Any], directory: Path) -> dict[str, Any]:
    """Name the run to start from as it is found from the server's folder, where a charter's paths begin."""
    if (earlier := settings.get("start_from")) is None:
        return settings
    return {**settings, "start_from": os.path.relpath(Path(earlier).expanduser().resolve(), directory.resolve())}


def _described(pixels: str | None, features: str | None, tokens: int | None, task: str | None) -> dict[str, Any]:
    """What the samples look like, and what is learned from them."""
    told = {"pixels": pixels, "features": features, "tokens": None if tokens is None else str(tokens)}
    named = {kind: shape for kind, shape in told.items() if shape is not None}
    if len(named) != 1 or task is None:
        raise UserError(
            "say what the data look like: --pixels 28x28, --features 30 or --tokens 20, and what is learned, such as "
            "--task classification:10 for ten classes"
        )
    ((kind, shape),) = named.items()
    return {"kind": kind, "shape": _shape(shape), "task": task}


def _listed(text: str) -> list[str]:
    return [word.strip() for word in text.split(",")] if text.strip() else []


def _shape(text: str) -> list[int]:
    words = text.lower().split("x")
    if not all(word.isdigit() for word in words):
        raise UserError(f"a shape is written like 28x28 or 32x32x3, not {text!r}")
    return [int(word) for word in words]


def _numbers(text: str | None) -> list[float] | None:
    try:
        return None if text is None else [float(word) for word in text.split(",")]
    except ValueError:
        raise UserError(f"one number for each channel is written like 0.49,0.48,0.45, not {text!r}") from None


def _require(package: str) -> None:
    if find_spec(package) is None:
        raise UserError("deployment needs Flower, which is an extra: pip install 'fedgraft[flower]'")
