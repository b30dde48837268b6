"""The Flower app of a federation: a small folder of files to read, to change and to start."""

import re
from collections.abc import Mapping
from importlib.resources import files
from pathlib import Path
from typing import Any

import tomli_w
from jinja2 import Environment, StrictUndefined

from fedgraft.base.errors import UserError
from fedgraft.deploy.charter import Charter
from fedgraft.deploy.elsewhere import ELSEWHERE
from fedgraft.engines.flower.limits import AHEAD, BEHIND, PIECE
from fedgraft.runs import directory

ROOM = 2**20
"""Bytes that a request to the gate may have besides a piece of an array."""
CONNECTIONS = 4
"""Connections to the gate for each site: a node asks for work, sends a sign of life, and moves two pieces at a time."""
LOOPBACK = ("127.0.0.1", "localhost")
"""A server with this name has all its sites on its own machine, and needs no gate."""
_APP = ("pyproject.toml", "server_app.py", "client_app.py", "charter.toml")


def write_app(folder: Path, charter: Charter) -> None:
    """Write what Flower needs into a fresh folder."""
    _write(folder, {name: _render(name, _facts(charter)) for name in _APP} | _code(charter))


def write_kit(folder: Path, charter: Charter, address: str, reply: int) -> None:
    """Write the app, a description of the server and of each site, the gate, and how to use them.

    ``address`` is the server's, ``reply`` the bytes of a site's largest reply.
    """
    host, port = host_and_port(address)
    here = host in LOOPBACK
    facts = _facts(charter) | {"host": host, "port": port, "address": f"{host}:{port}", "gate": not here}
    facts |= {"behind_gate": port + 1, "inner": port if here else port + 1, "outer": f"{host}:{port}" if here else port}
    facts |= {"ahead": AHEAD, "behind": BEHIND}
    facts |= {"reply": reply, "piece": PIECE, "room": ROOM, "body": min(reply, PIECE) + ROOM}
    facts["connections"] = CONNECTIONS * (len(charter.sites) + 1)
    texts = {name: _render(name, facts) for name in (*_APP, "README.md", "server.toml", "gate.conf")}
    texts[".gitignore"] = _render("gitignore", facts)
    texts |= {f"sites/{site}.toml": _render("site.toml", facts | {"site": site}) for site in charter.sites}
    _write(folder, texts | _code(charter))


def _code(charter: Charter) -> dict[str, str]:
    """The files that are not fedgraft's, as they are."""
    return {name: path.read_bytes().decode("utf-8") for name, path in charter.files.items()}


def _facts(charter: Charter) -> dict[str, Any]:
    """What the templates ask for; tables are whole, so that everything that can be changed is there to see."""
    run = charter.run.model_dump(mode="json", exclude_none=True, exclude=set(ELSEWHERE))
    rules = {**charter.rules.model_dump(mode="json"), "quorum": charter.quorum}
    tables = {"data": charter.data.model_dump(mode="json", exclude_none=True), "rules": rules, "run": run}
    return {
        "method": charter.run.method,
        "sites": charter.sites,
        "directory": charter.directory,
        "head": _toml({"directory": charter.directory}),
        "names": _toml({"sites": list(charter.sites)}),
        "code": charter.code,
        "code_table": _toml({"code": charter.code}) if charter.code else "",
        **{f"{name}_table": _toml({name: table}) for name, table in tables.items()},
    }


def _toml(table: Mapping[str, Any]) -> str:
    """Write TOML with a list on one line."""
    one_item_a_line = re.compile(r"\[\n(?: +.*,\n)+\]")
    return one_item_a_line.sub(
        lambda found: "[" + " ".join(found[0][2:-3].split()) + "]",
        tomli_w.dumps(table),
    )


def _render(name: str, facts: Mapping[str, Any]) -> str:
    template = (files("fedgraft.deploy") / "app" / f"{name}.jinja").read_text("utf-8")
    environment = Environment(undefined=StrictUndefined, keep_trailing_newline=True, autoescape=False)
    return environment.from_string(template).render(facts)


def _write(folder: Path, texts: Mapping[str, str]) -> None:
    directory.fresh(folder)
    for name, text in texts.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(text, "utf-8", newline="")


def host_and_port(address: str) -> tuple[str, int]:
    """Read ``host:port``; an IPv6 address stands in brackets."""
    host, colon, port = address.rpartition(":")
    if not colon or not host or not port.isdigit() or not 0 < int(port) < 65535 or "/" in host:
        raise UserError(
            f"the server's address is its name or address and a port, such as fed.example.org:8000, not {address!r}"
        )
    return host, int(port)
