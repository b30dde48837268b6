"""fluke's contestant: its FedAVG with its FastDataLoader; clients are served one after another in one process."""

import importlib.metadata
import sys
import time
from unittest.mock import MagicMock

import torch
import torchmetrics  # noqa: F401  (looks for torchvision when it is imported, so it comes before the stand-ins)
from contest import OverError, Turns, Work

# fluke imports trackers, plots and dataset downloads at once; none of them has a part in this work
for absent in (
    "clearml", "datasets", "matplotlib", "matplotlib.pyplot", "seaborn", "torch.utils.tensorboard", "torchvision",
    "torchvision.models", "wandb",
):  # fmt: skip
    sys.modules.setdefault(absent, MagicMock())

from fluke import DDict, FlukeENV  # noqa: E402
from fluke.algorithms.fedavg import FedAVG  # noqa: E402
from fluke.data import FastDataLoader  # noqa: E402
from fluke.utils import FederationObserver  # noqa: E402


class Splitter:
    """Hands out the clients as they are."""

    def __init__(self, work: Work) -> None:
        self.loaders = [
            FastDataLoader(
                *work.samples(client), num_labels=10, batch_size=work.batch_size, shuffle=True, skip_singleton=False
            )
            for client in range(work.clients)
        ]

    def assign(self, clients: int, batch_size: int) -> tuple:
        return (self.loaders, [None] * clients), None


class Clock(FederationObserver):
    """Starts a round when its turn comes, and tells how long it took."""

    def __init__(self, turns: Turns, work: Work) -> None:
        self.turns, self.work, self.picked = turns, work, []

    def start_round(self, round: int, global_model: object) -> None:
        self.turns.insist()
        self.started = time.perf_counter()

    def selected_clients(self, round: int, clients: list) -> None:
        self.picked = clients

    def end_round(self, round: int) -> None:
        seconds = time.perf_counter() - self.started
        batches = sum(client.train_set.n_batches for client in self.picked)
        self.turns.answer(seconds=seconds, steps=self.work.epochs * batches)


def main(path: str, threads: int) -> None:
    turns, work = Turns(), Work.read(path)
    torch.set_num_threads(threads)
    FlukeENV().set_seed(0)
    FlukeENV().set_eval_cfg(pre_fit=False, post_fit=False, locals=False, server=False)
    settings = DDict(
        model=work.network(),
        server=DDict(weighted=True),
        client=DDict(
            batch_size=work.batch_size, local_epochs=work.epochs, loss="CrossEntropyLoss",
            optimizer=DDict(name="SGD", lr=work.lr), scheduler=DDict(name="StepLR", step_size=1, gamma=1.0),
        ),
    )  # fmt: skip
    algorithm = FedAVG(work.clients, Splitter(work), settings)
    algorithm.set_callbacks(Clock(turns, work))
    version = importlib.metadata.version("fluke-fl")
    turns.answer(ready=True, name=f"fluke {version}", threads=threads, processes=1)
    try:
        algorithm.run(10**6, work.cohort / work.clients)
    except OverError:
        turns.answer(accuracy=work.accuracy(algorithm.server.model))


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
