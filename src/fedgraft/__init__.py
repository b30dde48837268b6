"""fedgraft: personalized federated learning.

    import fedgraft as fg

    fed = fg.federate("digits", clients=10, partition=fg.Dirichlet(0.1), seed=0)
    run = fg.run(fg.FedAPA(eta=0.01, mu=0.5), fed, rounds=20)
    print(run.value)

Names are loaded when they are first used, so that importing the package (and asking the command line for help) does
not wait for torch.
"""

import importlib
from typing import Any

from fedgraft.base.version import __version__
from fedgraft.data.partition import SCHEMES
from fedgraft.methods import METHODS

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
    "fedgraft.runs.compare": ["compare"],
    "fedgraft.runs.comparison": ["Comparison"],
    "fedgraft.runs.reading": ["read"],
    "fedgraft.runs.run": ["Run", "load", "resume", "run"],
}
_HOME = {name: place for place, names in _PLACES.items() for name in names} | METHODS.classes | SCHEMES.classes

__all__ = ["__version__", *_HOME]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"fedgraft has no {name!r}")
    return getattr(importlib.import_module(_HOME[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)
