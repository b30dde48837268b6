"""Flower's contestant: its FedAvg strategy on its simulation engine, with client actors of one core and one thread.

The client half is one of two modules: flower_client trains on whole tensors with a network that stays in its actor,
flower_tutorial is written like Flower's own tutorials.
"""

import importlib
import importlib.metadata
import os
import sys
import time
from collections.abc import Iterable

import torch
from contest import OverError, Turns, Work

os.environ |= {
    "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",  # else it listens on all interfaces
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_DISABLE_DOCKER_CPU_WARNING": "1",
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
}

from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MetricRecord
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg
from flwr.simulation import run_simulation


class Clocked(FedAvg):
    """FedAvg as it is, whose rounds begin when their turn comes."""

    turns: Turns
    arrays: ArrayRecord
    started: float

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        self.arrays = arrays
        self.turns.insist()
        self.started = time.perf_counter()
        return super().configure_train(server_round, arrays, config, grid)

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        replies = list(replies)
        result = super().aggregate_train(server_round, replies)
        seconds = time.perf_counter() - self.started
        steps = sum(int(reply.content["metrics"]["steps"]) for reply in replies)
        self.turns.answer(seconds=seconds, steps=steps)
        return result


def main(path: str, actors: int, client: str) -> None:
    turns, work = Turns(), Work.read(path)
    torch.set_num_threads(1)
    torch.manual_seed(0)
    app = ServerApp()

    @app.main()
    def serve(grid: Grid, context: Context) -> None:
        strategy = Clocked(
            fraction_train=work.cohort / work.clients,
            fraction_evaluate=0.0,
            min_train_nodes=work.cohort,
            min_available_nodes=work.clients,
        )
        strategy.turns = turns
        version = importlib.metadata.version("flwr")
        turns.answer(ready=True, name=f"flwr {version}, simulation", threads=1, processes=actors)
        net = work.network()
        try:
            strategy.start(grid, ArrayRecord(net.state_dict()), num_rounds=10**6, timeout=3600)
        except OverError:
            net.load_state_dict(strategy.arrays.to_torch_state_dict())
            turns.answer(accuracy=work.accuracy(net))

    resources = {"client_resources": {"num_cpus": 1, "num_gpus": 0.0}, "init_args": {"num_cpus": actors}}
    run_simulation(app, importlib.import_module(client).app, work.clients, backend_config=resources)


if __name__ == "__main__":
    os.environ["CONTEST_WORK"] = os.path.abspath(sys.argv[1])  # noqa: PTH100
    main(sys.argv[1], int(sys.argv[2]), sys.argv[3])
