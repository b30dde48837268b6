"""Make the tables of README.md, SECURITY.md and docs/ from the registries and from what was measured: `make tables`.

A table stands between `<!-- table: NAME -->` and `<!-- end -->`; a test holds that none is stale.
"""

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from docs import private
from fedgraft import models
from fedgraft.base.errors import UserError
from fedgraft.core.client import ClientId
from fedgraft.core.evaluation import POINTS
from fedgraft.core.exchange import Failure, Outcome
from fedgraft.core.growth import Growth
from fedgraft.core.message import Message
from fedgraft.core.method import Method
from fedgraft.core.model import Shared
from fedgraft.core.privacy import sums_objection
from fedgraft.core.rounds import Participation, rounds
from fedgraft.data.datasets import DATASETS
from fedgraft.data.partition import listing
from fedgraft.engines.local import LocalEngine
from fedgraft.engines.workshop import single_thread
from fedgraft.methods import METHODS
from fedgraft.papers import recipes
from fedgraft.testing import blobs, fleet, specification

ROOT = Path(__file__).parents[1]
FAMILIES = (
    "one global model, fine-tuning, and training alone",
    "split models",
    "a global model and a personal model",
    "mixed on the server for each client",
    "many models to each client",
    "prototypes and features",
    "clients with different architectures",
)
"""In this order; a family that is not here comes last."""
SHAPES = ((1, 28, 28), (3, 32, 32))


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Write a table as Markdown has it."""
    bar = "|" + "---|" * len(head)
    lines = [f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |" for cells in (head, *rows)]
    return "\n".join([lines[0], bar, *lines[1:]])


# ---- methods


def methods() -> str:
    """Methods by family; those with a recipe in bold."""
    shipped = [METHODS[name] for name in METHODS.shipped]
    families = dict.fromkeys((*FAMILIES, *(method.family for method in shipped)))
    return table(
        ("family", "methods"),
        [(family, ", ".join(_called(method) for method in shipped if method.family == family)) for family in families],
    )


def _called(method: type[Method]) -> str:
    name = f"**{method.name}**" if method.name in recipes() else method.name
    return f"{name} (a reconstruction)" if method.reconstruction else name


def crossing() -> str:
    """What crosses with each method, in words."""
    return table(("method", "what is sent"), [(name, METHODS[name].sends) for name in METHODS.shipped])


def entries() -> str:
    """What crosses with each method, by the names of the entries, as two rounds show it."""
    rows = []
    for name in METHODS.shipped:
        method = METHODS.make(name)
        up, down = crossed(method)
        secure = ("yes" if method.sums() else "no") if up else "nothing is sent"
        refused = ", ".join(method.discloses())
        covered = f"refused: {refused}" if refused else "yes" if up else "nothing to noise"
        whole = secure if sums_objection(method, specification(blobs())) is None else "no"
        rows.append((name, ", ".join(up) or "nothing", ", ".join(down) or "nothing", secure, covered, whole))
    heads = (
        "method",
        "client to server",
        "server to client",
        "secure sum",
        "with `--epsilon`",
        "with `--client-epsilon`",
    )
    return table(heads, rows)


def growths() -> str:
    """How the memory of each method's server grows with the clients."""
    found: dict[str, list[str]] = {"O(1)": [], "O(clients)": [], "O(clients^2)": []}
    for name in METHODS.shipped:
        found[Growth.of(METHODS.make(name), specification(blobs())).order].append(name)
    return table(("the server keeps", "methods"), [(order, ", ".join(names)) for order, names in found.items()])


class Tap(LocalEngine):
    """Notes everything that crosses, and whose it is."""

    def listen(self) -> None:
        self.up, self.down = dict[str, None](), dict[str, None]()

    def train(self, round: int, messages: Mapping[ClientId, Message]) -> Mapping[ClientId, Outcome | Failure]:
        outcomes = super().train(round, messages)
        for client, message in messages.items():
            self.down |= self._entries(client, message)
        for client, outcome in outcomes.items():
            if isinstance(outcome, Outcome):
                self.up |= self._entries(client, outcome.reply)
        return outcomes

    def _entries(self, client: ClientId, message: Message) -> dict[str, None]:
        return dict.fromkeys(self._entry(client, *each) for each in message.items())

    def _entry(self, client: ClientId, name: str, value: torch.Tensor) -> str:
        """An entry's name; with weights, which part of the network they are."""
        layout, buffers = self.spec.layout(client), self.spec.settings.buffers
        if name != "weights" or value.numel() == layout.width("all", buffers):
            return name
        parts: tuple[Shared, ...] = ("extractor", "head") if self.method.shared() == "extractor" else ("head",)
        part = next((each for each in parts if value.numel() == layout.width(each, buffers)), "common layers")
        return f"{name} ({part})"


def crossed(method: Method) -> tuple[list[str], list[str]]:
    """Run two rounds, with clients of different architectures where the method can, and tell what crossed."""
    for made, fed in ((fleet, blobs((20, 13))), (specification, blobs())):
        spec = made(fed, rounds=2, epochs=1)
        engine = Tap(method, spec, fed.clients)
        engine.listen()
        try:
            with single_thread():
                list(rounds(method, method.setup(spec), engine, Participation(), evaluate_every=9))
        except UserError:  # it needs the same architecture everywhere
            continue
        return list(engine.up), list(engine.down)
    raise AssertionError(f"{method.name} ran on neither federation")


# ---- where models are tested


def headlines() -> str:
    """Methods by the point at which their papers measure."""
    named = {point: [name for name in METHODS.shipped if METHODS[name].headline == point] for point in POINTS}
    return table(("point", "methods"), [(f"`{point}`", ", ".join(names)) for point, names in named.items()])


def points() -> str:
    """What the runs of FedAPA's CIFAR-10 setting reach at both points."""
    found = json.loads((ROOT / "docs" / "results" / "fedapa-table1.json").read_text("utf-8"))
    runs: dict[str, list[dict[str, Any]]] = {}
    for run in found["runs"]:
        if run["settings"] == {"evaluate_every": 5} and run["scale"] == "full":
            runs.setdefault(run["method"], []).append(run)
    shown = [(name, [_last(each, point) for point in POINTS], len(each)) for name, each in runs.items()]
    rows = [(name, str(draws), *(f"{value:.1f}" for value in values)) for name, values, draws in shown]
    return table(("method", "draws", "received", "trained"), rows)


def _last(runs: Sequence[Mapping[str, Any]], point: str) -> float:
    """The mean over runs of what the last round reached, in percent."""
    return 100 * sum(run[point]["pooled"][-1] for run in runs) / len(runs)


# ---- data and models


def schemes() -> str:
    """The partition schemes."""
    shown = [(f"`{s.syntax}`", f"`{s.python}`", s.about, s.paper) for s in listing()]
    return table(("text", "Python", "what a client gets", "from"), shown)


def datasets() -> str:
    """The datasets that are known by name."""
    shown = []
    for name in DATASETS.shipped:
        entry = DATASETS[name]
        called = f"`{name}`" + (f" ({entry.variant})" if entry.variant else "")
        sizes = (f"{size:,}" for size in (entry.outputs, entry.train, entry.test))
        sites = str(getattr(entry, "sites", ""))
        shown.append((called, sites, "x".join(map(str, entry.shape)), entry.task, *sizes, entry.licence))
    return table(("name", "sites", "sample", "task", "outputs", "train", "test", "licence"), shown)


def networks() -> str:
    """The models, with their parameters for ten classes: extractor + head."""
    shown = [
        (f"`{entry.syntax}`", entry.inputs, entry.description, *(_size(entry.name, shape) for shape in SHAPES))
        for entry in models.catalogue()
    ]
    sizes = [f"parameters for {'x'.join(map(str, shape))}" for shape in SHAPES]
    return table(("name", "takes", "what it is", *sizes), shown)


def _size(name: str, shape: tuple[int, ...]) -> str:
    if name in models.FAMILIES or models.MODELS[name].tokens:
        return ""
    with torch.device("meta"):
        network = models.build(name, shape, 10)
    whole, head = (sum(p.numel() for p in part.parameters()) for part in (network, network.get_submodule("head")))
    return f"{whole - head:,} + {head:,}"


def accuracy() -> str:
    """Accuracy by epsilon, and what can be said of it."""
    return private.accuracy_page(table)


def attacks() -> str:
    """What audits of runs with and without privacy found."""
    return private.attacks_page(table)


TABLES: dict[str, Callable[[], str]] = {
    "methods": methods,
    "crossing": crossing,
    "entries": entries,
    "headlines": headlines,
    "points": points,
    "schemes": schemes,
    "datasets": datasets,
    "networks": networks,
    "growths": growths,
    "accuracy": accuracy,
    "attacks": attacks,
}
PAGES = (
    "README.md", "SECURITY.md", "docs/deployment.md", "docs/points.md", "docs/partitions.md", "docs/datasets.md",
    "docs/models.md", "docs/clusters.md", "docs/privacy.md",
)  # fmt: skip


def fresh(text: str) -> str:
    """A page with its tables as they have to be."""
    pieces = text.split("<!-- table: ")
    whole = [pieces[0]]
    for piece in pieces[1:]:
        name, _, rest = piece.partition(" -->")
        _, end, after = rest.partition("<!-- end -->")
        assert end, f"the table {name} has no end"
        whole.append(f"{name} -->\n{TABLES[name]()}\n{end}{after}")
    return "<!-- table: ".join(whole)


def main() -> None:
    """Write every page anew."""
    for page in PAGES:
        path = ROOT / page
        path.write_text(fresh(path.read_text("utf-8")), "utf-8")


if __name__ == "__main__":
    main()
