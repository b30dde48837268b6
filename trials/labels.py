"""What the server learns of its clients' labels with FedAvg, though nobody tells it: a measurement, with a figure.

    python -m trials.labels [--dataset digits] [--clients 10] [--seeds 3]

The gradient of a classifier's bias is, for each class, how often the model says it less how often it occurs. So the
first upload's change of the bias, which the server sees, says how many samples of each class the client has: the first
weights are known, and what the untrained model says of anything is all but the same. `fedgraft audit` makes the same
guess of any run (`fedgraft.audit.labels`).
"""

import argparse

import numpy as np
import torch

import fedgraft as fg
from fedgraft.audit.labels import from_bias
from fedgraft.core.exchange import Outcome
from fedgraft.core.rounds import deliver
from fedgraft.core.streams import generator
from fedgraft.engines.local import LocalEngine
from fedgraft.methods import METHODS
from fedgraft.runs.config import configure
from fedgraft.runs.run import Run, plan

PARTITIONS = ("dirichlet:0.1", "dirichlet:0.5", "pathological:2")


def guessed(run: Run, client: int, upload: torch.Tensor) -> np.ndarray:
    """Guess how many samples of each class a client has, from the settings, the first weights and its upload."""
    spec = run.spec
    first, layout = spec.initial(client), spec.layout(client)
    bias = next(slot for slot in layout.slots if slot.part == "head" and slot.shape == (spec.classes,))
    change = (upload - first)[bias.start : bias.stop].double().numpy()
    noise = torch.from_numpy(generator(0, "noise").standard_normal((200, *run.federation.input_shape), np.float32))
    with torch.no_grad():
        said = spec.architecture(client).model().load(first)(noise).softmax(1).double().mean(0).numpy()
    return spec.samples[client] * from_bias(change, said)


def misplaced(partition: str, dataset: str, clients: int, seed: int) -> tuple[float, float]:
    """Return the share of all clients' samples that the guess puts into a wrong class, and that of a uniform guess."""
    federation = fg.federate(dataset, clients, partition, seed)
    run = plan(METHODS.make("fedavg"), federation, configure({"method": "fedavg", "rounds": 1, "seed": seed}), None)
    server = run.method.setup(run.spec)
    with LocalEngine(run.method, run.spec, federation.clients) as engine:
        outcomes = engine.train(0, deliver(run.method, server, range(clients)))
    wrong = blind = 0.0
    for client, counts in enumerate(federation.counts()):
        outcome = outcomes[client]
        assert isinstance(outcome, Outcome)
        wrong += np.abs(guessed(run, client, outcome.reply["weights"]) - counts).sum() / 2
        blind += np.abs(counts.sum() / len(counts) - counts).sum() / 2
    return wrong / sum(federation.samples), blind / sum(federation.samples)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m trials.labels")
    parser.add_argument("--dataset", default="digits")
    parser.add_argument("--clients", type=int, default=10)
    parser.add_argument("--seeds", type=int, default=3)
    given = parser.parse_args()
    torch.set_num_threads(1)
    print("| partition | misplaced, from the first upload | misplaced, if all classes were equal |\n|---|---|---|")
    for partition in PARTITIONS:
        found = [misplaced(partition, given.dataset, given.clients, seed) for seed in range(given.seeds)]
        shown = [f"{100 * min(each):.1f} to {100 * max(each):.1f} %" for each in zip(*found, strict=True)]
        print(f"| {partition} | {' | '.join(shown)} |", flush=True)


if __name__ == "__main__":
    main()
