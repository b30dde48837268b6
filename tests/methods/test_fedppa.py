"""FedPPA: the alignment worked out by hand, what it may and may not move, and its siblings at degenerate settings."""

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import pytest
import torch
from conftest import blobs, fleet, simulate, specification, visit
from torch import Tensor, nn

from fedgraft.core.client import Client
from fedgraft.core.layers import layers_of, take
from fedgraft.core.message import Message
from fedgraft.core.method import Spec
from fedgraft.core.model import Architecture
from fedgraft.core.settings import Training
from fedgraft.core.task import Classification
from fedgraft.data.federation import Federation, Site, own_data
from fedgraft.methods.fedppa import FedPPA
from fedgraft.methods.flexifed import FlexiFed
from fedgraft.methods.local import Local


def scalars() -> nn.Module:
    """Three layers of one weight each; the last is the classifier."""
    return nn.Sequential(OrderedDict((name, nn.Linear(1, 1, bias=False)) for name in ("x", "y", "end")))


def alone(build: Callable[[], nn.Module], inputs: Tensor, own: Tensor, **settings: object) -> Client:
    """A client with the given data and previous model."""
    labels = np.zeros(len(inputs), dtype=np.int64)
    fed = own_data([Site(inputs.float().numpy(), labels, inputs.float().numpy(), labels)], task="classification:1")
    spec = specification(fed, build=build, **settings)
    client = visit(fed, spec)
    client["own"] = own
    return client


def averaged(client: Client, weights: Tensor, contributors: list[int]) -> Message:
    """What the server sends if ``weights`` are the averaged model."""
    shared = layers_of(client.architecture)[: len(contributors)]
    return Message(weights=take(weights, shared, client.settings.buffers), contributors=torch.tensor(contributors))


# ---- by hand


@pytest.mark.parametrize(
    ("align", "expected", "undone"),
    [
        # Teacher x = y = 1, student x = 2, y = 3, data v = 1, 2 with mean v^2 = 5/2, step .1.
        # Layer x: gradient 2 (2 - 1) 5/2 = 5, so x = 1.5. Then layer y, fed by the aligned x:
        # 2 (3 * 1.5 - 1) 1.5 * 5/2 = 26.25, so y = .375. Displacement (1, 2), taken back (.5, 2.625): 5.75 / 5.
        ("layer", [1.5, 0.375, 7], 1.15),
        # At y, x moves too: 2 (4.5 - 1) 3 * 5/2 = 52.5 down from 1.5. Taken back (5.75, 2.625): 11 / 5.
        ("prefix", [-3.75, 0.375, 7], 2.2),
        # At once: x by 5 + 2 (6 - 1) 3 * 5/2 = 80, y by 2 (6 - 1) 2 * 5/2 = 50. Taken back (8, 5): 18 / 5.
        ("joint", [-6, -2, 7], 3.6),
    ],
)
def test_alignment_by_hand(align: str, expected: list[float], undone: float) -> None:
    method = FedPPA(align_lr=0.1, align=align)  # type: ignore[arg-type]
    client = alone(scalars, torch.tensor([[1.0], [2.0]]), torch.tensor([1.0, 1.0, 5.0]))
    aligned = method.assemble(client, averaged(client, torch.tensor([2.0, 3.0, 7.0]), [2, 2, 2]))
    assert aligned.tolist() == pytest.approx(expected), "the classifier 7 is averaged, but not aligned"
    assert float(client["undone"]) == pytest.approx(undone)
    assert float(method.observe_client(client)["undone"]) == pytest.approx(undone)


def test_the_classifier_is_aligned_on_demand() -> None:
    # after x = 1.5 and y = .375 the end: teacher 5 v, student 7 * .5625 v; 2 (3.9375 - 5) .5625 * 5/2
    method = FedPPA(align_lr=0.1, align_classifier=True)
    client = alone(scalars, torch.tensor([[1.0], [2.0]]), torch.tensor([1.0, 1.0, 5.0]))
    aligned = method.assemble(client, averaged(client, torch.tensor([2.0, 3.0, 7.0]), [2, 2, 2]))
    assert aligned.tolist() == pytest.approx([1.5, 0.375, 7 + 0.1 * 2 * 1.0625 * 0.5625 * 2.5])


def test_only_layers_averaged_with_somebody_are_aligned() -> None:
    method = FedPPA(align_lr=0.1)
    client = alone(scalars, torch.tensor([[1.0], [2.0]]), torch.tensor([1.0, 1.0, 5.0]))
    aligned = method.assemble(client, averaged(client, torch.tensor([2.0, 1.0, 5.0]), [2, 1]))
    assert aligned.tolist() == pytest.approx([1.5, 1, 5])
    aligned = method.assemble(client, averaged(client, torch.tensor([2.0, 3.0, 5.0]), [1, 1]))
    assert aligned.tolist() == [2, 3, 5]
    assert float(client["undone"]) == 0


def test_epochs_and_batches_by_hand() -> None:
    # batches of one sample: 2 (w - 1) v^2 .1, in whatever order: factors (1 - .2)(1 - .8) = .16 on w - 1
    client = alone(scalars, torch.tensor([[1.0], [2.0]]), torch.tensor([1.0, 1.0, 5.0]))
    message = averaged(client, torch.tensor([2.0, 1.0, 5.0]), [2])
    assert float(FedPPA(align_lr=0.1, align_batch=1).assemble(client, message)[0]) == pytest.approx(1.16)
    # two epochs of one batch: (1 - .5)^2
    assert float(FedPPA(align_lr=0.1, align_epochs=2).assemble(client, message)[0]) == pytest.approx(1.25)


def test_alignment_run_to_its_end_undoes_the_averaging() -> None:
    client = alone(scalars, torch.tensor([[1.0], [2.0]]), torch.tensor([1.0, 1.0, 5.0]))
    message = averaged(client, torch.tensor([2.0, 3.0, 7.0]), [2, 2, 2])
    aligned = FedPPA(align_lr=0.1, align_epochs=60).assemble(client, message)
    assert aligned.tolist() == pytest.approx([1, 1, 7], abs=1e-5)
    assert float(client["undone"]) == pytest.approx(1, abs=1e-5)


def test_the_step_is_the_gradient_of_the_distance_between_features() -> None:
    """Against finite differences, in float64: layer 1 at the averaged model, layer 2 behind the aligned layer 1."""
    rng = torch.Generator().manual_seed(0)

    def build() -> nn.Module:
        return nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2), nn.Tanh(), nn.Linear(2, 2)).double()

    x = torch.randn(5, 3, generator=rng)
    own, mean = (torch.randn(32, dtype=torch.float64, generator=rng) for _ in range(2))
    client = alone(build, x, own)
    lr, x = 0.01, x.double()
    aligned = FedPPA(align_lr=lr).assemble(client, averaged(client, mean, [2, 2]))
    teacher, student = (client.architecture.model() for _ in range(2))

    def loss(weights: Tensor, depth: int) -> float:
        with torch.no_grad():
            theirs, ours = (model.load(v).module[:depth](x) for model, v in ((teacher, own), (student, weights)))
        return float((ours - theirs).square().sum() / ours.numel())

    halfway = torch.cat([aligned[:16], mean[16:]])
    for start, depth, span in ((mean, 2, range(16)), (halfway, 4, range(16, 26))):
        for i in span:
            e = torch.zeros_like(start)
            e[i] = 1e-6
            slope = (loss(start + e, depth) - loss(start - e, depth)) / 2e-6
            assert float(mean[i] - aligned[i]) / lr == pytest.approx(slope, rel=1e-4, abs=1e-9)
    assert torch.equal(aligned[26:], own[26:])


# ---- what may move


@pytest.mark.parametrize("align", ["layer", "prefix", "joint"])
@pytest.mark.parametrize("statistics", ["refresh", "frozen"])
def test_nothing_moves_but_the_common_layers(fed: Federation, align: str, statistics: str) -> None:
    spec = fleet(fed, norm=True)
    method = FedPPA(align_lr=0.5, align_batch=4, align=align, statistics=statistics)  # type: ignore[arg-type]
    client = visit(fed, spec, 2)
    network = layers_of(client.architecture)
    mean = spec.initial(2, True)
    mean[spec.layout(2).trained :] += 0.1
    aligned = method.assemble(client, averaged(client, mean, [4, 4, 2, 2]))
    assert torch.equal(take(aligned, network[3:], "average"), take(mean, network[3:], "average")), "the classifier"
    for layer in network[:3]:
        assert not torch.equal(take(aligned, [layer], "keep"), take(mean, [layer], "keep"))
    statistics_moved = not torch.equal(aligned[spec.layout(2).trained :], mean[spec.layout(2).trained :])
    assert statistics_moved == (statistics == "refresh")
    behind = method.assemble(client, averaged(client, mean, [4, 4]))
    assert torch.equal(take(behind, network[2:], "average"), take(client.own, network[2:], "average"))


@pytest.mark.parametrize("align", ["layer", "prefix", "joint"])
def test_a_student_equal_to_its_teacher_stays(fed: Federation, align: str) -> None:
    """Loss and gradients are exactly zero: in a plain network, and with frozen statistics."""
    for norm, statistics in ((False, "refresh"), (True, "frozen")):
        spec = fleet(fed, norm=norm)
        method = FedPPA(align_lr=10.0, align=align, statistics=statistics)  # type: ignore[arg-type]
        client = visit(fed, spec, 0)
        same = method.aligned(client, client.own, layers_of(client.architecture))
        assert torch.equal(same, client.own)
    refreshed = FedPPA(align=align).aligned(client, client.own, layers_of(client.architecture))  # type: ignore[arg-type]
    assert not torch.equal(refreshed, client.own)


def test_identical_clients_are_left_as_they_are(fed: Federation) -> None:
    spec = specification(fed, norm=True)
    method = FedPPA(align_lr=10.0)
    server, own = method.setup(spec), spec.initial(0)
    method.merge(
        server, {client: Message(weights=take(own, layers_of(spec.architecture(0)), "average")) for client in range(4)}
    )
    client = visit(fed, spec, 1)
    message = method.send(server, 1)
    assert message["contributors"].tolist() == [4, 4]
    assert torch.equal(method.assemble(client, message), own)
    assert float(client["undone"]) == 0


def test_the_teacher_is_in_evaluation_mode_and_statistics_follow_the_batches() -> None:
    """One layer, BatchNorm at its start: the student's running mean moves by .1 towards the batch mean."""

    def build() -> nn.Module:
        return nn.Sequential(nn.Linear(1, 1, bias=False), nn.BatchNorm1d(1), nn.Linear(1, 1))

    # [w, gamma, beta | head | running mean, running variance]; teacher w = 1 with statistics (0, 1)
    own = torch.tensor([1.0, 1.0, 0.0, 0.0, 0.0, 0.0, 1.0])
    mean = torch.tensor([2.0, 1.0, 0.0, 0.0, 0.0, 0.0, 1.0])
    client = alone(build, torch.tensor([[0.0], [1.0], [2.0]]), own)
    message = averaged(client, mean, [2])
    aligned = FedPPA(align_lr=0.1).assemble(client, message)
    # outputs 0, 2, 4 of the student: mean 2, variance 4
    assert aligned[5:].tolist() == pytest.approx([0.2, 1.3])
    # beta: mean of 2 (normalised - v) over v = 0, 1, 2 = -2
    assert float(aligned[2]) == pytest.approx(0.2, abs=1e-4)
    # frozen: 2 mean((2 v - v)) = 2
    frozen = FedPPA(align_lr=0.1, statistics="frozen").assemble(client, message)
    assert float(frozen[2]) == pytest.approx(-0.2, abs=1e-4)
    assert frozen[5:].tolist() == [0, 1]
    kept = alone(build, torch.tensor([[0.0], [1.0], [2.0]]), own, buffers="keep")
    assert FedPPA(align_lr=0.1).assemble(kept, averaged(kept, mean, [2]))[5:].tolist() == [0, 1]


class Detour(nn.Sequential):
    """The same network, in which no module gets the very tensor that the one before gave."""

    def forward(self, x: Tensor) -> Tensor:
        for module in self:
            x = module(x).clone()
        return x


@pytest.mark.parametrize("align", ["layer", "prefix", "joint"])
@pytest.mark.parametrize("statistics", ["refresh", "frozen"])
def test_a_network_that_cannot_be_run_by_layers_is_aligned_alike(fed: Federation, align: str, statistics: str) -> None:
    def layers() -> list[nn.Module]:
        return [
            nn.Linear(6, 5),
            nn.BatchNorm1d(5),
            nn.ReLU(),
            nn.Dropout(),
            nn.Linear(5, 4),
            nn.ReLU(),
            nn.Linear(4, 3),
        ]

    method = FedPPA(align_lr=0.5, align_batch=4, align=align, statistics=statistics)  # type: ignore[arg-type]
    results = []
    for container in (nn.Sequential, Detour):
        spec = specification(fed, build=lambda container=container: container(*layers()))  # type: ignore[misc]
        client = visit(fed, spec, 0)
        chained = [layer.chained for layer in layers_of(client.architecture)]
        assert chained == ([True] * 3 if container is nn.Sequential else [False] * 3)
        results.append(method.assemble(client, averaged(client, spec.initial(0, True), [2, 2, 2])))
    torch.testing.assert_close(*results)


# ---- siblings


@pytest.mark.parametrize("off", [{"align_epochs": 0}, {"align_lr": 0.0, "statistics": "frozen"}])
@pytest.mark.parametrize("strategy", ["basic-common", "max-common"])
def test_without_steps_it_is_flexifed_bit_for_bit(fed: Federation, off: dict[str, float], strategy: str) -> None:
    spec = fleet(fed, rounds=3, norm=True)
    _, server, ours = simulate(FedPPA(strategy=strategy, **off), fed, spec, share=0.75)  # type: ignore[arg-type]
    _, expected, theirs = simulate(FlexiFed(strategy=strategy), fed, spec, share=0.75)  # type: ignore[arg-type]
    for client in range(4):
        assert torch.equal(ours.states[client]["own"], theirs.states[client]["own"])
        assert torch.equal(server[f"weights/{client}"], expected[f"weights/{client}"])
    _, _, moved = simulate(FedPPA(strategy=strategy), fed, spec, share=0.75)  # type: ignore[arg-type]
    assert not all(torch.equal(moved.states[client]["own"], theirs.states[client]["own"]) for client in range(4))


def test_without_a_common_layer_it_is_local_training_bit_for_bit(fed: Federation) -> None:
    @dataclass(frozen=True)
    class Alone(Local):
        independent_start = True

    def named(name: str) -> Architecture:
        def build() -> nn.Module:
            return nn.Sequential(OrderedDict([(name, nn.Linear(6, 4)), ("act", nn.ReLU()), ("head", nn.Linear(4, 3))]))

        return Architecture(build, fed.example)

    kinds = tuple(named(name) for name in "abcd")
    spec = replace(specification(fed, rounds=3), architectures=kinds, assignment=(0, 1, 2, 3))
    _, _, ours = simulate(FedPPA(), fed, spec)
    _, _, theirs = simulate(Alone(), fed, spec)
    for client in range(4):
        assert torch.equal(ours.states[client]["own"], theirs.states[client]["own"])


# ---- whole runs


def test_the_received_model_is_the_aligned_one(fed: Federation) -> None:
    spec = fleet(fed, rounds=3)
    method = FedPPA(align_lr=1.0)  # all data in one batch: its order does not matter
    done, server, engine = simulate(method, fed, spec)
    losses = []
    for client, data in enumerate(fed.clients):
        guest = visit(fed, spec, client)
        guest["own"] = engine.states[client]["own"]
        aligned = method.assemble(guest, method.send(server, client))
        x, y = data.test.batch(slice(None))
        live = spec.architecture(client).model().load(aligned)
        with live.evaluating():
            losses.append(float(nn.functional.cross_entropy(live(x), y)))
    assert done[-1].test["received"].figures["log_loss"].pooled == pytest.approx(sum(losses) / 4, rel=1e-5)


def test_what_alignment_undoes_is_kept_for_every_round_and_client(fed: Federation) -> None:
    done, _, _ = simulate(FedPPA(align_lr=0.1), fed, fleet(fed, rounds=4), share=0.5)
    kept = torch.stack([this.observed["undone"] for this in done])
    assert kept.shape == (4, 4)
    for number in range(4):
        earlier = {client for before in done[:number] for client in before.participants}
        for client in range(4):
            if client not in earlier:
                assert kept[number, client] == 0, "nothing was averaged before its first training"
    full, _, _ = simulate(FedPPA(align_lr=0.1), fed, fleet(fed, rounds=2))
    assert bool((full[1].observed["undone"] > 0).all())
    assert bool((full[1].observed["undone"] < 1).all())


def test_larger_steps_undo_more(fed: Federation) -> None:
    undone = []
    for lr in (0.01, 0.1, 0.5):
        done, _, _ = simulate(FedPPA(align_lr=lr), fed, fleet(fed, rounds=2))
        undone.append(float(done[1].observed["undone"].mean()))
    assert 0 < undone[0] < undone[1] < undone[2]


def test_a_client_with_one_sample_is_aligned_without_batch_statistics() -> None:
    fed = blobs((1, 12))
    spec = specification(fed, rounds=3, norm=True)
    done, _, engine = simulate(FedPPA(), fed, spec)
    assert not any(this.refused for this in done)
    assert all(bool(torch.isfinite(state["own"]).all()) for state in engine.states.values())


def test_images_and_convolutions() -> None:
    """Stages of convolution, normalisation, pooling, ReLU in channels_last order."""
    rng = np.random.default_rng(0)
    sites = [
        Site(rng.integers(0, 256, (9, 8, 8, 1), dtype=np.uint8), np.arange(9) % 3, *_images(rng, 3)) for _ in range(4)
    ]
    fed = own_data(sites, task="classification:3")

    def network(*channels: int) -> Callable[[], nn.Module]:
        def build() -> nn.Module:
            layers: list[nn.Module] = []
            for before, after in zip((1, *channels), channels, strict=False):
                layers += [nn.Conv2d(before, after, 3, padding=1), nn.BatchNorm2d(after), nn.MaxPool2d(2), nn.ReLU()]
            return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels[-1], 3))

        return build

    kinds = tuple(Architecture(network(*channels), fed.example) for channels in ((4, 5), (4, 5, 6)))
    assert kinds[0].channels_last
    settings = Training(lr=0.05, batch_size=4)
    spec = Spec(fed.samples, kinds, (0, 0, 1, 1), Classification(3), 3, 0, settings)
    done, server, _ = simulate(FedPPA(align_lr=0.1, align_batch=4), fed, spec)
    assert server["contributors/0"].tolist() == [4, 4, 2]
    assert server["contributors/2"].tolist() == [4, 4, 2, 2]
    assert bool((done[-1].observed["undone"] != 0).all())


def _images(rng: np.random.Generator, count: int) -> tuple[np.ndarray, np.ndarray]:
    return rng.integers(0, 256, (count, 8, 8, 1), dtype=np.uint8), np.arange(count) % 3


def test_caveats_name_settings_that_switch_it_off() -> None:
    assert not FedPPA().caveats()
    for off in ({"align_lr": 0.0}, {"align_epochs": 0}):
        assert any("FlexiFed" in sentence for sentence in FedPPA(**off).caveats())  # type: ignore[arg-type]
