"""Does it pay to train clients together? Seconds of the processor for the training of a round, in turns.

    python -m benchmarks.together [--clients 100] [--samples 20] [--seconds 20]

Every client has as many made-up images of 28x28 pixels, batches of 10 and one epoch; one process, one thread.
"""

import argparse
from collections.abc import Callable

import numpy as np
import torch

import fedgraft as fg
from benchmarks.clock import in_turns
from fedgraft.engines.local import LocalEngine
from fedgraft.engines.workshop import single_thread
from fedgraft.methods.fedavg import FedAvg
from fedgraft.runs.config import configure
from fedgraft.runs.run import plan

MODELS = ("linear", "mlp:32", "mlp:256", "lenet5")
GROUPS = (None, 10, 100)


def round_of(model: str, clients: int, samples: int, together: int | None) -> Callable[[], object]:
    """Make something that does the training of a round."""
    rng = np.random.default_rng(0)
    sites = [
        fg.Site(
            rng.integers(0, 256, (samples, 28, 28), dtype=np.uint8), rng.integers(0, 10, samples),
            rng.integers(0, 256, (2, 28, 28), dtype=np.uint8), np.arange(2),
        )
        for _ in range(clients)
    ]  # fmt: skip
    fed = fg.own_data(sites, task="classification:10")
    config = configure({"model": model, "batch_size": 10, "epochs": 1, "together": together})
    run = plan(FedAvg(), fed, config, None, given=True)
    engine = LocalEngine(run.method, run.spec, fed.clients, together=together)
    server = run.method.setup(run.spec)
    messages = run.method.dispatch(server, range(clients))
    return lambda: engine.train(0, messages)


def main() -> None:
    told = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    told.add_argument("--clients", type=int, default=100)
    told.add_argument("--samples", type=int, default=20)
    told.add_argument("--seconds", type=float, default=20.0, help="for each network")
    args = told.parse_args()
    print(f"{args.clients} clients with {args.samples} images each, torch {torch.__version__}: milliseconds of a round")
    print("network    " + "".join(f"{'alone' if most is None else f'by {most}':>12}" for most in GROUPS))
    for model in MODELS:
        with single_thread():
            ways = [round_of(model, args.clients, args.samples, most) for most in GROUPS]
            found = in_turns(ways, args.seconds, stretch=2)
        print(f"{model:11}" + "".join(f"{each:12.1f}" for each in found), flush=True)


if __name__ == "__main__":
    main()
