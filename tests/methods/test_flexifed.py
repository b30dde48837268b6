"""FlexiFed: who averages which layers, on nets small enough for paper, on the VGG family, and in whole runs."""

from collections import OrderedDict
from dataclasses import dataclass, replace
from itertools import pairwise

import pytest
import torch
from conftest import blobs, fleet, simulate, specification, visit
from torch import Tensor, nn

from fedgraft import models
from fedgraft.core import bank
from fedgraft.core.client import Client
from fedgraft.core.layers import layers_of, take
from fedgraft.core.message import Message
from fedgraft.core.method import Server, Spec
from fedgraft.core.model import Architecture
from fedgraft.core.settings import Training
from fedgraft.core.task import Classification
from fedgraft.data.federation import Federation
from fedgraft.engines.local import LocalEngine
from fedgraft.methods.fedavg import FedAvg
from fedgraft.methods.flexifed import FlexiFed
from fedgraft.methods.local import Local

STRATEGIES = ("basic-common", "clustered-common", "max-common")


def chain(*names: str) -> Architecture:
    """One weight in each named layer."""

    def build() -> nn.Module:
        return nn.Sequential(OrderedDict((name, nn.Linear(1, 1, bias=False)) for name in names))

    return Architecture(build, torch.zeros(2, 1))


def spec_of(kinds: list[Architecture], assignment: tuple[int, ...] | None = None, *, buffers: str = "average") -> Spec:
    assignment = assignment or tuple(range(len(kinds)))
    settings = Training(buffers=buffers)  # type: ignore[arg-type]
    return Spec((5,) * len(assignment), tuple(kinds), assignment, Classification(2), 1, 0, settings)


def toy() -> Spec:
    return spec_of([chain("x"), chain("x", "y"), chain("x", "y", "z")])


def round_trip(method: FlexiFed, spec: Spec, models: list[Tensor]) -> list[Tensor]:
    """Everybody uploads the shared layers of a model and puts what comes back in their place."""
    server = method.setup(spec)
    upload(method, server, models)
    received = []
    for client, own in enumerate(models):
        guest = visit_alone(spec, client, own)
        received.append(method.assemble(guest, method.send(server, client)))
    return received


def upload(method: FlexiFed, server: Server, models: list[Tensor], senders: tuple[int, ...] | None = None) -> None:
    inbox = {}
    for client in senders if senders is not None else range(len(models)):
        guest = visit_alone(server.spec, client, models[client])
        method.assemble(guest, method.send(server, client))
        inbox[client] = method.reply(guest, models[client], models[client])
    method.merge(server, inbox)


def visit_alone(spec: Spec, client: int, own: Tensor) -> Client:
    guest = visit(blobs((4,) * spec.clients), spec, client)
    guest["own"] = own
    return guest


def contributors(method: FlexiFed, spec: Spec) -> list[list[set[int]]]:
    """C_il of every client and layer, itself included."""
    sets = method.contributors(spec)
    return [
        [
            next((set(C) for C in (sets[depth] if depth < len(sets) else []) if client in C), {client})
            for depth in range(len(layers_of(spec.architecture(client))))
        ]
        for client in range(spec.clients)
    ]


def vggs(width: str = "0.0625") -> Spec:
    shape = (3, 32, 32)
    kinds = [
        Architecture(lambda name=name: models.build(f"{name}:{width}", shape, 10), torch.zeros(2, *shape), "head")  # type: ignore[misc]
        for name in ("vgg11", "vgg13", "vgg16", "vgg19")
    ]
    return spec_of(kinds, (0, 0, 1, 1, 2, 2, 3, 3))


# ---- by hand


@pytest.mark.parametrize(
    ("strategy", "expected"),
    [
        ("basic-common", [[3], [3, 5], [3, 7, 9]]),
        ("clustered-common", [[3], [3, 5], [3, 7, 9]]),  # no two are identical
        ("max-common", [[3], [3, 6], [3, 6, 9]]),
    ],
)
def test_toy_nets_by_hand(strategy: str, expected: list[list[float]]) -> None:
    # A = (x: 1), B = (x: 3, y: 5), C = (x: 5, y: 7, z: 9)
    received = round_trip(
        FlexiFed(strategy=strategy),  # type: ignore[arg-type]
        toy(),
        [torch.tensor([1.0]), torch.tensor([3.0, 5.0]), torch.tensor([5.0, 7.0, 9.0])],
    )
    assert [vector.tolist() for vector in received] == expected


def test_clusters_of_identical_nets_by_hand() -> None:
    # two B and two C: x over all four; behind it max-common mixes y over all, clustered-common within each pair
    spec = spec_of([chain("x", "y"), chain("x", "y", "z")], (0, 0, 1, 1))
    own = [torch.tensor(values) for values in ([1.0, 1], [3.0, 5], [5.0, 7, 1], [7.0, 11, 3])]
    # y is common to all four, so it belongs to the prefix of everybody too
    for strategy in STRATEGIES:
        received = round_trip(FlexiFed(strategy=strategy), spec, own)  # type: ignore[arg-type]
        assert [vector[:2].tolist() for vector in received] == 4 * [[4, 6]]
        z = [1, 3] if strategy == "basic-common" else [2, 2]
        assert [float(received[client][2]) for client in (2, 3)] == z
    # with an A in the fleet, the prefix of everybody ends at x
    spec = spec_of([chain("x"), chain("x", "y"), chain("x", "y", "z")], (0, 1, 1, 2, 2))
    own = [torch.tensor([9.0]), *own]
    clustered = round_trip(FlexiFed(strategy="clustered-common"), spec, own)
    largest = round_trip(FlexiFed(strategy="max-common"), spec, own)
    assert [vector.tolist() for vector in clustered] == [[5], [5, 3], [5, 3], [5, 9, 2], [5, 9, 2]]
    assert [vector.tolist() for vector in largest] == [[5], [5, 6], [5, 6], [5, 6, 2], [5, 6, 2]]


def test_equal_layers_behind_a_difference_stay_apart() -> None:
    spec = spec_of([chain("x", "y", "end"), chain("x", "other", "end")])
    received = round_trip(FlexiFed(), spec, [torch.tensor([1.0, 2, 3]), torch.tensor([3.0, 4, 5])])
    assert [vector.tolist() for vector in received] == [[2, 2, 3], [2, 4, 5]]


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_nothing_in_common_is_the_identity_and_sends_nothing(strategy: str) -> None:
    spec = spec_of([chain("x", "y"), chain("u", "y"), chain("v")])
    own = [torch.tensor([1.0, 2]), torch.tensor([3.0, 4]), torch.tensor([5.0])]
    method = FlexiFed(strategy=strategy)  # type: ignore[arg-type]
    assert all(torch.equal(a, b) for a, b in zip(round_trip(method, spec, own), own, strict=True))
    server = method.setup(spec)
    assert all(method.send(server, client).nbytes == 0 for client in range(3))


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_one_architecture_is_the_plain_mean_of_whole_models(fed: Federation, strategy: str) -> None:
    spec = specification(fed, norm=True)
    own = [torch.randn(spec.layout(0).size, generator=torch.Generator().manual_seed(c)) for c in range(4)]
    received = round_trip(FlexiFed(strategy=strategy), spec, own)  # type: ignore[arg-type]
    mean = bank.mean(torch.stack(own), torch.ones(4))
    assert all(torch.equal(vector, mean) for vector in received), "whatever the sizes 20, 13, 31, 8"
    fedavg = FedAvg(weighting="uniform")
    server = fedavg.setup(spec)
    fedavg.merge(server, {client: Message(weights=vector) for client, vector in enumerate(own)})
    assert torch.equal(received[0], server["weights/0"])


def test_averaging_twice_is_averaging_once_and_keeps_the_mean() -> None:
    spec = toy()
    own = [torch.tensor([1.0]), torch.tensor([3.0, 5.0]), torch.tensor([8.0, 7.0, 9.0])]
    once = round_trip(FlexiFed(), spec, own)
    twice = round_trip(FlexiFed(), spec, once)
    assert all(torch.equal(a, b) for a, b in zip(once, twice, strict=True))
    assert sum(float(v[0]) for v in once) == sum(float(v[0]) for v in own)


# ---- the VGG family


def test_contributors_of_the_eight_vggs() -> None:
    spec = vggs()
    sizes = [[len(C) for C in row] for row in contributors(FlexiFed(), spec)]
    assert sizes[0] == sizes[1] == [8] + 10 * [2]
    assert sizes[2] == sizes[3] == [8] + 5 * [6] + 7 * [2]
    assert sizes[4] == sizes[5] == [8] + 5 * [6] + [4] + 9 * [2]
    assert sizes[6] == sizes[7] == [8] + 5 * [6] + [4] + 12 * [2]
    assert contributors(FlexiFed(), spec)[4][6] == {4, 5, 6, 7}
    basic = contributors(FlexiFed(strategy="basic-common"), spec)
    clustered = contributors(FlexiFed(strategy="clustered-common"), spec)
    assert [[len(C) for C in row] for row in basic] == [[8] + (n - 1) * [1] for n in (11, 11, 13, 13, 16, 16, 19, 19)]
    assert [len(C) for C in clustered[7]] == [8] + 18 * [2]


def test_the_strategies_nest() -> None:
    for spec in (vggs(), toy(), spec_of([chain("x"), chain("x", "y"), chain("x", "y", "z")], (0, 1, 1, 2, 2))):
        basic, clustered, largest = (contributors(FlexiFed(strategy=s), spec) for s in STRATEGIES)  # type: ignore[arg-type]
        for client in range(spec.clients):
            for depth in range(len(layers_of(spec.architecture(client)))):
                assert basic[client][depth] <= clustered[client][depth] <= largest[client][depth]
            assert all(a >= b for a, b in pairwise(largest[client])), "contributors only get fewer with depth"


def test_what_travels_of_the_eight_vggs() -> None:
    spec = vggs()

    def sent(method: FlexiFed, client: int) -> int:
        return len(method.setup(spec)[f"weights/{client}"])

    # the first convolution and its normalisation, c = 4 channels: 27 c + c + 2 c weights (1,920 at 64), 2 c statistics
    assert sent(FlexiFed(strategy="basic-common"), 0) == sent(FlexiFed(strategy="basic-common"), 7) == 30 * 4 + 2 * 4
    for strategy in ("clustered-common", "max-common"):
        assert sent(FlexiFed(strategy=strategy), 5) == spec.layout(5).size, "every layer has a partner"  # type: ignore[arg-type]
    without = sent(FlexiFed(include_classifier=False), 5)
    classifier = (32 + 1) * 256 + (256 + 1) * 256 + (256 + 1) * 10
    assert without == spec.layout(5).size - classifier


# ---- whole runs


@dataclass(frozen=True)
class Alone(Local):
    """Local training in which everybody begins with weights of his own."""

    independent_start = True


def run(method: FlexiFed | Alone, fed: Federation, spec: Spec, **more: float) -> tuple[Server, LocalEngine]:
    _, server, engine = simulate(method, fed, spec, **more)  # type: ignore[arg-type]
    return server, engine


def test_everybody_begins_with_its_own_weights_and_trains_before_anything_is_averaged(fed: Federation) -> None:
    spec = fleet(fed, rounds=1)
    server, ours = run(FlexiFed(), fed, spec)
    _, alone = run(Alone(), fed, spec)
    for client in range(4):
        assert torch.equal(ours.states[client]["own"], alone.states[client]["own"]), "round 1 is local training"
    assert not torch.equal(ours.states[0]["own"], ours.states[1]["own"])
    assert server["contributors/0"].tolist() == [4, 4, 2]
    assert server["contributors/3"].tolist() == [4, 4, 2, 2]


@pytest.mark.parametrize("norm", [False, True], ids=["plain", "batchnorm"])
def test_without_anything_in_common_it_is_local_training_bit_for_bit(fed: Federation, norm: bool) -> None:
    spec = fleet(fed, rounds=3, norm=norm)
    kinds = [spec.architectures[0], spec.architectures[1]]
    spec = replace(spec, architectures=tuple(_renamed(kind, str(i)) for i, kind in enumerate(kinds * 2)))
    spec = replace(spec, assignment=(0, 1, 2, 3))
    _, ours = run(FlexiFed(), fed, spec, share=0.75)
    _, alone = run(Alone(), fed, spec, share=0.75)
    for client in range(4):
        assert torch.equal(ours.states[client]["own"], alone.states[client]["own"])


def _renamed(kind: Architecture, name: str) -> Architecture:
    def build() -> nn.Module:
        return nn.Sequential(OrderedDict([(name, kind.build())]))

    return Architecture(build, kind.example)


def test_the_next_training_begins_at_the_averaged_layers(fed: Federation) -> None:
    """The ``received`` model: averaged where somebody shares, the client's own behind."""
    seen: list[tuple[int, Tensor, Tensor]] = []

    @dataclass(frozen=True)
    class Watched(FlexiFed):
        def fit(self, client, received):  # type: ignore[no-untyped-def]
            seen.append((client.id, client.own.clone(), received.clone()))
            return super().fit(client, received)

    spec = fleet(fed, rounds=2)
    simulate(Watched(strategy="basic-common"), fed, spec)
    second = {client: (own, received) for client, own, received in seen[4:]}
    layers = {client: layers_of(spec.architecture(client))[:2] for client in range(4)}
    parts = [take(second[client][0], layers[client], "keep") for client in range(4)]
    mean = bank.mean(torch.stack(parts), torch.ones(4))
    for client in range(4):
        own, received = second[client]
        assert torch.equal(take(received, layers[client], "keep"), mean)
        rest = layers_of(spec.architecture(client))[2:]
        assert torch.equal(take(received, rest, "keep"), take(own, rest, "keep"))


def test_received_and_trained_are_the_averaged_and_the_trained_model(fed: Federation) -> None:
    spec = fleet(fed, rounds=2, norm=True)
    method = FlexiFed()
    done, server, engine = simulate(method, fed, spec)
    for client, data in enumerate(fed.clients):
        guest = visit(fed, spec, client)
        guest["own"] = engine.states[client]["own"]
        averaged = method.assemble(guest, method.send(server, client))
        x, y = data.test.batch(slice(None))
        for point, weights in (("received", averaged), ("trained", engine.states[client]["own"])):
            live = spec.architecture(client).model().load(weights)
            with live.evaluating():
                right = float((live(x).argmax(1) == y).float().mean())
            assert done[-1].test[point].per_client[client] == pytest.approx(right)


def test_absent_clients_neither_give_nor_get() -> None:
    spec = spec_of([chain("x", "y")], (0, 0, 0))
    method, own = FlexiFed(), [torch.tensor([v, v]) for v in (1.0, 3.0, 8.0)]
    server = method.setup(spec)
    before = server["weights/2"].clone()
    upload(method, server, own, senders=(0, 1))
    assert server["weights/0"].tolist() == server["weights/1"].tolist() == [2, 2]
    assert torch.equal(server["weights/2"], before)
    assert [server[f"contributors/{client}"].tolist() for client in range(3)] == [[2, 2], [2, 2], [1, 1]]
    upload(method, server, own, senders=(2,))
    assert server["weights/2"].tolist() == [8, 8], "alone in a round: its own model"
    assert server["weights/0"].tolist() == [2, 2]


@pytest.mark.parametrize("buffers", ["average", "local", "keep"])
def test_statistics_travel_by_the_policy_of_the_run(fed: Federation, buffers: str) -> None:
    spec = fleet(fed, rounds=2, norm=True, buffers=buffers)
    done, server, engine = simulate(FlexiFed(), fed, spec)
    layout = spec.layout(0)
    assert len(server["weights/0"]) == (layout.size if buffers == "average" else layout.trained)
    # up: every layer of everybody; down: the same and a count for each layer, of which there are 3, 3, 4, 4
    assert done[-1].bytes_up == 4 * sum(len(server[f"weights/{client}"]) for client in range(4))
    assert done[-1].bytes_down == done[-1].bytes_up + 8 * 14
    statistics = [engine.states[client]["own"][layout.trained :] for client in (0, 1)]
    assert torch.equal(*statistics) == (buffers == "keep")
    counters = [engine.states[client]["integers"].tolist() for client in (0, 3)]
    assert counters == [[20, 20], [8, 8, 8]], "integers count each client's own batches"
