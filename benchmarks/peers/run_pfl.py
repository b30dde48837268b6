"""pfl's contestant: its FederatedAveraging on its simulated backend, in processes of one thread each."""

import importlib.metadata
import os
import socket
import subprocess
import sys
import time
from unittest.mock import MagicMock

import numpy as np
import torch
from contest import Turns, Work

# the privacy accountants are imported with the package and have no part in this work
for absent in ("dp_accounting", "dp_accounting.pld", "dp_accounting.rdp", "prv_accountant"):
    sys.modules.setdefault(absent, MagicMock())


def main(path: str, processes: int, rank: int) -> None:
    turns, work = Turns(), Work.read(path)
    torch.set_num_threads(1)
    # imported late: pfl joins its group of processes when it is imported
    from pfl.aggregate.simulate import SimulatedBackend
    from pfl.aggregate.weighting import WeightByDatapoints
    from pfl.algorithm.base import NNAlgorithmParams
    from pfl.algorithm.federated_averaging import FederatedAveraging
    from pfl.callback.base import TrainingProcessCallback
    from pfl.data.dataset import Dataset
    from pfl.data.federated_dataset import FederatedDataset
    from pfl.data.sampling import get_user_sampler
    from pfl.hyperparam import NNEvalHyperParams, NNTrainHyperParams
    from pfl.metrics import Metrics, Weighted
    from pfl.model.pytorch import PyTorchModel

    class Network(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = work.network()

            self.steps = 0

        def loss(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
            self.steps += 1
            return torch.nn.functional.cross_entropy(self.net(x), y)

        def metrics(self, x: torch.Tensor, y: torch.Tensor) -> dict:
            """Asked for in the first round, which does not count."""
            return {"samples": Weighted(0.0, len(y))}

    class Clock(TrainingProcessCallback):
        """Starts a round when its turn comes, and tells how long it took; the other processes follow."""

        def on_train_begin(self, *, model: object) -> Metrics:
            self.wait()
            return Metrics()

        def after_central_iteration(self, metrics: Metrics, model: object, *, central_iteration: int) -> tuple:
            seconds = time.perf_counter() - self.started
            steps, network.steps = torch.tensor([network.steps]), 0
            if processes > 1:
                torch.distributed.all_reduce(steps)
            if rank == 0:
                turns.answer(seconds=seconds, steps=int(steps))
            return not self.wait(), Metrics()

        def wait(self) -> bool:
            goes_on = torch.tensor([turns.wait() if rank == 0 else True], dtype=torch.int64)
            if processes > 1:
                torch.distributed.broadcast(goes_on, 0)
            self.started = time.perf_counter()
            return bool(goes_on)

    np.random.seed(0)  # noqa: NPY002  (pfl draws its users from it)
    torch.manual_seed(0)
    users = [str(client) for client in range(work.clients)]
    sizes = {user: int(work.edges[int(user) + 1] - work.edges[int(user)]) for user in users}
    held: dict[str, Dataset] = {}

    def dataset(user: str) -> Dataset:
        if user not in held:
            held[user] = Dataset(work.samples(int(user)), user_id=user)
        return held[user]

    data = FederatedDataset(dataset, get_user_sampler("minimize_reuse", users), user_id_to_weight=sizes)
    network = Network()
    model = PyTorchModel(network, torch.optim.SGD, torch.optim.SGD(network.parameters(), lr=1.0))
    for user in users:
        dataset(user)
    if rank == 0:
        version = importlib.metadata.version("pfl")
        turns.answer(ready=True, name=f"pfl {version}", threads=1, processes=processes)
    FederatedAveraging().run(
        NNAlgorithmParams(10**6, 10**6, work.cohort, None),
        SimulatedBackend(data, data, postprocessors=[WeightByDatapoints()]),
        model,
        NNTrainHyperParams(
            local_num_epochs=work.epochs, local_learning_rate=work.lr, local_batch_size=work.batch_size
        ),
        NNEvalHyperParams(local_batch_size=None),
        callbacks=[Clock()],
        send_metrics_to_platform=False,
    )  # fmt: skip
    if rank == 0:
        turns.answer(accuracy=work.accuracy(network.net))


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


if __name__ == "__main__":
    processes, rank = int(sys.argv[2]), int(os.environ.get("RANK", "0"))
    if processes > 1 and "RANK" not in os.environ:
        os.environ |= {
            "TORCHELASTIC_RUN_ID": "race", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()),
            "WORLD_SIZE": str(processes), "LOCAL_WORLD_SIZE": str(processes), "RANK": "0", "LOCAL_RANK": "0",
            "GLOO_SOCKET_IFNAME": "lo", "PFL_PYTORCH_DEVICE": "cpu",
        }  # fmt: skip
        for other in range(1, processes):
            mine = os.environ | {"RANK": str(other), "LOCAL_RANK": str(other)}
            subprocess.Popen([sys.executable, *sys.argv], env=mine, stdin=subprocess.DEVNULL)
    main(sys.argv[1], processes, rank)
