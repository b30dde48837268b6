"""Worker processes that somebody stops."""

import os
import signal
from dataclasses import dataclass
from pathlib import Path
from random import Random

import torch
from torch import Tensor

import fedgraft
from fedgraft.core.client import Client
from fedgraft.core.rounds import Participation, rounds
from fedgraft.engines.local import Faults, LocalEngine
from fedgraft.methods.fedavg import FedAvg
from fedgraft.runs.config import configure
from fedgraft.runs.run import plan
from trials.attack import BreachError, attack


@dataclass(frozen=True)
class Stopped(FedAvg):
    """A FedAvg one of whose clients is suspended, with the whole of its worker, the first time it trains."""

    victim: int = 0
    mark: str = ""

    def fit(self, client: Client, received: Tensor) -> Tensor:
        if client.id == self.victim and not Path(self.mark).exists():
            Path(self.mark).touch()
            os.kill(os.getpid(), signal.SIGSTOP)
        return super().fit(client, received)


@attack("workers: a worker is suspended, and there is no deadline", "the run goes on, to the same bits", processes=True)
def suspended(folder: Path, rng: Random) -> str:
    fed, ended = fedgraft.federate("digits", 4), []
    for method in (Stopped(victim=rng.randrange(4), mark=str(folder / "mark")), FedAvg()):
        spec = plan(method, fed, configure({"rounds": 2}), None).spec
        server = method.setup(spec)
        with LocalEngine(method, spec, fed.clients, workers=2, faults=Faults(idle=2.0)) as engine:
            list(rounds(method, server, engine, Participation()))
        ended.append(server["weights/0"])
    if not torch.equal(*ended):
        raise BreachError("other bits than without the suspension")
    return "replaced, and the same bits"
