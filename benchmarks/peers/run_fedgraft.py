"""fedgraft's own contestant: the local engine with two workers of one thread each."""

import sys
import time

import torch
from contest import Turns, Work

from fedgraft.core.method import Spec
from fedgraft.core.model import Architecture
from fedgraft.core.rounds import Participation, rounds
from fedgraft.core.samples import ClientData, Preparation, Samples
from fedgraft.core.settings import Training
from fedgraft.core.task import Classification
from fedgraft.engines.local import LocalEngine
from fedgraft.kernels import accelerate, describe
from fedgraft.methods.fedavg import FedAvg
from fedgraft.models import build


def main(path: str, workers: int, choice: str) -> None:
    turns, work = Turns(), Work.read(path)
    torch.set_num_threads(1)
    images, labels = torch.from_numpy(work.images), torch.from_numpy(work.labels)
    preparation = Preparation((0.5,), (0.5,))
    nobody = Samples(images[:0], labels[:0], preparation)
    held = [slice(int(a), int(b)) for a, b in zip(work.edges[:-1], work.edges[1:], strict=True)]
    data = [ClientData(Samples(images[h], labels[h], preparation), nobody, nobody) for h in held]

    def network() -> torch.nn.Module:
        net = build("lenet5", (3, 32, 32), 10)
        values = iter(work.weights.values())
        net.load_state_dict({name: torch.from_numpy(next(values)) for name in net.state_dict()})
        return accelerate(net, choice=choice).module

    architecture = Architecture(network, preparation.apply(images[:2]), "head", "lenet5")
    settings = Training(lr=work.lr, momentum=0.0, epochs=work.epochs, batch_size=work.batch_size)
    many = 10**9  # the last round would be evaluated
    spec = Spec(
        tuple(h.stop - h.start for h in held), (architecture,), (0,) * len(data), Classification(10), many, 0, settings
    )
    method, share = FedAvg(), work.cohort / work.clients
    server = method.setup(spec)
    with LocalEngine(method, spec, data, workers=workers) as engine:
        ours = rounds(method, server, engine, Participation(share, share), evaluate_every=many)
        turns.answer(ready=True, name="fedgraft", kernels=describe(choice), threads=1, processes=workers)
        for _ in turns.taken():
            started = time.perf_counter()
            this = next(ours)
            seconds = time.perf_counter() - started
            batches = [-(-spec.samples[client] // work.batch_size) for client in this.participants]
            turns.answer(seconds=seconds, steps=work.epochs * sum(batches))
    model = architecture.model().load(server["weights/0"])
    turns.answer(accuracy=work.accuracy(model.module))


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), sys.argv[3])
