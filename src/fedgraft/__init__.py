"""fedgraft: personalized federated learning.

    import fedgraft as fg

    fed = fg.federate("digits", clients=10, partition=fg.Dirichlet(0.1), seed=0)
    run = fg.run(fg.FedAPA(eta=0.01, mu=0.5), fed, rounds=20)
    print(run.value)

Names are loaded when they are first used, so that importing the package (and asking the command line for help) does
not wait for torch.
"""

import importlib
from functools import cache
from typing import Any

from fedgraft.base.version import __version__ as __version__

_PLACES = {
    "fedgraft.base.errors": ["UserError"],
    "fedgraft.core.message": ["Field", "Message"],
    "fedgraft.core.method": ["Method", "Server", "hyper"],
    "fedgraft.core.client": ["Client"],
    "fedgraft.core.engine": ["Engine"],
    "fedgraft.core.metrics": ["Metric"],
    "fedgraft.core.spec": ["Spec"],
    "fedgraft.core.stages": ["Averaging", "Stage"],
    "fedgraft.core.task": ["Task"],
    "fedgraft.core.optimizer": ["Optimizer"],
    "fedgraft.core.settings": ["Training"],
    "fedgraft.core.schedules": ["Schedule"],
    "fedgraft.core.training": ["Phase"],
    "fedgraft.data.datasets": ["Dataset"],
    "fedgraft.data.federation": ["Federation", "Site", "federate", "own_data"],
    "fedgraft.data.sources.source": ["Source"],
    "fedgraft.data.sources.torchsets": ["torch_site"],
    "fedgraft.data.partition.partition": ["Partition"],
    "fedgraft.data.partition.scheme": ["Scheme"],
    "fedgraft.deploy.model": ["load_model"],
    "fedgraft.engines.simulation": ["Simulation"],
    "fedgraft.exports.joining": ["Join", "join"],
    "fedgraft.runs.compare": ["compare", "sweep"],
    "fedgraft.runs.comparison": ["Comparison"],
    "fedgraft.runs.reading": ["read"],
    "fedgraft.runs.recommend": ["recommend"],
    "fedgraft.runs.recommendation": ["Recommendation"],
    "fedgraft.runs.sweep": ["Sweep"],
    "fedgraft.runs.tune": ["tune"],
    "fedgraft.runs.run": ["Run", "load", "resume", "run"],
}
_HOME = {name: place for place, names in _PLACES.items() for name in names}


@cache
def _named() -> dict[str, str]:
    """The module of every name, also of methods and schemes, at whose files nobody looks before."""
    from fedgraft.data.partition import SCHEMES
    from fedgraft.methods import METHODS

    return _HOME | METHODS.classes | SCHEMES.classes


def __getattr__(name: str) -> Any:
    if name == "__all__":
        return ["__version__", *_named()]
    if name.startswith("__") or name not in _named():
        raise AttributeError(f"fedgraft has no {name!r}")
    return getattr(importlib.import_module(_named()[name]), name)


def __dir__() -> list[str]:
    return sorted(["__version__", *_named()])
