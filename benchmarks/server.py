"""What the server halves cost: FedAPA's beside FedAvg's round, and steps of many clients as matrix products."""

import json
import sys
import time
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from benchmarks import work
from benchmarks.clock import in_turns
from benchmarks.machine import MEBI, measured, median, own_peak
from fedgraft.core import bank
from fedgraft.core.message import Field, Message
from fedgraft.core.method import Spec
from fedgraft.core.rounds import Participation, deliver, rounds
from fedgraft.engines.local import LocalEngine
from fedgraft.engines.workshop import single_thread
from fedgraft.methods import METHODS

STEPS = (("fedavg", 1000, 3), ("fedapa", 1000, 2), ("fedgpa", 100, 3), ("fedpac", 100, 3), ("fedamp", 100, 3))
"""Methods, clients, and how often the step is taken."""


def beside_fedavg(cycles: int, *, tiny: bool = False) -> dict[str, Any]:
    """Rounds of both methods on the same clients in turns: what FedAPA's server takes, in FedAvg's rounds."""
    small: dict[str, Any] = {"clients": 4, "batch_size": 16} if tiny else {}
    dataset, origin = work.images("cifar10", tiny=tiny)
    done: dict[str, list[Any]] = {}
    going, engines = {}, []
    with single_thread():
        for name in ("fedavg", "fedapa"):
            run, _ = work.planned(
                name, recipe="fedapa", dataset=dataset, rounds=cycles + 2, evaluate_every=cycles + 2, **small
            )
            engine = LocalEngine(run.method, run.spec, work.clients(run), workers=2)
            engines.append(engine)
            going[name] = rounds(
                run.method, run.method.setup(run.spec), engine, Participation(), evaluate_every=cycles + 2
            )
            done[name] = [next(going[name])]
        for _ in range(cycles):
            for name, ours in going.items():
                done[name].append(next(ours))
        for engine in engines:
            engine.close()
    fedavg, fedapa = (done[name][1:] for name in ("fedavg", "fedapa"))
    whole = median(this.seconds for this in fedavg)
    servers = [median(this.server_seconds for this in some) for some in (fedavg, fedapa)]
    return {
        "data": origin, "clients": len(fedavg[0].participants), "rounds": cycles,
        "fedavg_round_seconds": whole, "fedapa_round_seconds": median(this.seconds for this in fedapa),
        "fedavg_server_seconds": servers[0], "fedapa_server_seconds": servers[1],
        "fedapa_share": servers[1] / whole, "fedapa_adds": (servers[1] - servers[0]) / whole,
    }  # fmt: skip


def specification(clients: int) -> Spec:
    """LeNet-5 for CIFAR-10 at so many clients, without their data."""
    run, _ = work.planned("fedavg", tiny=True, dataset=work.images("cifar10", tiny=True)[0], clients=2, partition="iid")
    return replace(run.spec, samples=(50,) * clients, assignment=(0,) * clients, rounds=10)


def reply(sent: Message, expected: Mapping[str, Field], random: torch.Generator) -> Message:
    """A reply as a client might send it: what was sent, moved a little; statistics at random."""

    def entry(name: str, field: Field) -> Tensor:
        if not field.dtype.is_floating_point:
            return torch.randint(1, 20, field.shape, generator=random, dtype=field.dtype)
        noise = torch.randn(field.shape, generator=random, dtype=field.dtype)
        if name in sent and sent[name].shape == noise.shape:
            return noise.mul_(0.01).add_(sent[name])
        return noise.abs() * 0.1

    return Message(**{name: entry(name, field) for name, field in expected.items()})


def step(name: str, clients: int, repeats: int) -> dict[str, Any]:
    """Messages for everybody, then everybody's replies merged; the CPU seconds of one thread."""
    torch.set_num_threads(1)
    method, spec = METHODS.make(name), specification(clients)
    server, random = method.setup(spec), torch.Generator().manual_seed(0)
    sends, merges = [], []
    for _ in range(repeats):
        began = time.thread_time()
        sent = deliver(method, server, range(clients))
        sends.append(time.thread_time() - began)
        inbox = {client: reply(sent.pop(client), method.expects(server, client), random) for client in range(clients)}
        began = time.thread_time()
        method.merge(server, inbox)
        merges.append(time.thread_time() - began)
        del inbox
        server.round += 1
    return {
        "shared_parameters": spec.layout(0).width(method.shared(), spec.settings.buffers),
        "send_seconds": median(sends),
        "merge_seconds": median(merges),
        "peak_parent_mib": round(own_peak() / MEBI),
    }


def apple_mixing(cores: int, batch: int, seconds: float) -> dict[str, Any]:
    """What APPLE's learned mixture adds to a step, against asking each of the ``cores`` models by itself."""
    spec = specification(cores)
    model, random = spec.architecture(0).model(), torch.Generator().manual_seed(0)
    x = torch.randn(batch, 3, 32, 32, generator=random)
    W = torch.randn(cores, spec.layout(0).trained, generator=random)
    p, gradient = torch.full((cores,), 1 / cores), torch.randn(W.shape[1], generator=random)

    def forward() -> None:
        with torch.no_grad():
            model(x)

    def mixing() -> None:
        bank.inner(gradient, W)
        bank.mix(p, W)

    once, mixed = in_turns([forward, mixing], seconds)
    return {"cores": cores, "batch": batch, "mixing_ms": mixed, "forwards_ms": cores * once}


def measure(*, tiny: bool = False) -> dict[str, Any]:
    sizes = [(name, 6, 1) for name, *_ in STEPS] if tiny else STEPS
    with single_thread():
        mixing = [apple_mixing(cores, 64, 0.1 if tiny else 2.0) for cores in ((4,) if tiny else (20, 100))]
    return {
        "beside_fedavg": beside_fedavg(1 if tiny else 5, tiny=tiny),
        "steps": [
            measured("benchmarks.server", {"method": name, "clients": clients, "repeats": repeats})
            for name, clients, repeats in sizes
        ],
        "apple_mixing": mixing,
    }


if __name__ == "__main__":
    point = json.loads(sys.argv[1])
    print(json.dumps(step(point["method"], point["clients"], point["repeats"])))
