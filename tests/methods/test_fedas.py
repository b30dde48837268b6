"""FedAS: alignment and Fisher traces against hand and finite differences, and FedPer at its degenerate settings."""

from collections.abc import Callable

import numpy as np
import pytest
import torch
from conftest import blobs, fleet, simulate, specification, visit
from torch import Tensor, nn
from torch.nn import functional

from fedgraft.base.errors import UserError
from fedgraft.core.client import Client
from fedgraft.core.message import Message
from fedgraft.core.method import Server
from fedgraft.data.federation import Federation, Site, own_data
from fedgraft.methods.fedas import FedAS
from fedgraft.methods.fedper import FedPer


def scalar() -> nn.Module:
    """Feature w x, head (a, b) without bias: the vector is [w | a, b]."""
    return nn.Sequential(nn.Linear(1, 1, bias=False), nn.Linear(1, 2, bias=False))


def alone(build: Callable[[], nn.Module], inputs: Tensor, labels: list[int], own: Tensor) -> Client:
    x, y = inputs.float().numpy(), np.array(labels)
    fed = own_data([Site(x, y, x, y)], task="classification:2")
    client = visit(fed, specification(fed, build=build))
    client["own"] = own
    return client


# ---- alignment


@pytest.mark.parametrize(
    ("pull", "expected"),
    [
        # Old extractor 1, inputs 1, 3 | 4: prototypes 2 and 4. Received 2, features 2, 6 | 8, one batch.
        # Each feature: [2 (2 - 2) 1 + 2 (6 - 2) 3] / 2 + 2 (8 - 4) 4 = 12 + 32 = 44
        ("samples", 2 - 0.01 * 44),
        # Class means: 2 (4 - 2) 2 + 2 (8 - 4) 4 = 8 + 32 = 40
        ("means", 2 - 0.01 * 40),
    ],
)
def test_alignment_by_hand(pull: str, expected: float) -> None:
    client = alone(scalar, torch.tensor([[1.0], [3.0], [4.0]]), [0, 0, 1], torch.tensor([1.0, 5.0, 6.0]))
    aligned = FedAS(pull=pull).assemble(client, Message(weights=torch.tensor([2.0])))  # type: ignore[arg-type]
    assert aligned.tolist() == pytest.approx([expected, 5, 6]), "the head stays"


def test_the_loss_by_hand() -> None:
    # two features of class 0 (prototype 0), one of class 2 (prototype 1); nobody of class 1
    f, y = torch.tensor([[1.0, 1.0], [3.0, 1.0], [1.0, 3.0]]), torch.tensor([0, 0, 2])
    c = torch.tensor([[0.0, 0.0], [9.0, 9.0], [1.0, 1.0]])
    # (2/2 + 10/2) / 2 + 4/2, and for the means (2, 1) and (1, 3): 5/2 + 4/2
    assert float(FedAS().distance(f, y, c)) == pytest.approx(5)
    assert float(FedAS(pull="means").distance(f, y, c)) == pytest.approx(4.5)


def test_its_target_is_the_class_mean_so_it_contracts_classes() -> None:
    client = alone(scalar, torch.tensor([[1.0], [3.0], [4.0]]), [0, 0, 1], torch.tensor([1.0, 5.0, 6.0]))
    same = Message(weights=torch.tensor([1.0]))
    # features 1, 3 around their mean 2: [2 (1 - 2) 1 + 2 (3 - 2) 3] / 2 = 2
    assert float(FedAS().assemble(client, same)[0]) == pytest.approx(1 - 0.01 * 2)
    assert float(FedAS(pull="means").assemble(client, same)[0]) == pytest.approx(1), "no pull where theta = theta_i"
    # a class whose features are all alike has no pull either
    client = alone(scalar, torch.tensor([[2.0], [2.0], [4.0]]), [0, 0, 1], torch.tensor([1.0, 5.0, 6.0]))
    assert float(FedAS(align_lr=1.0).assemble(client, same)[0]) == 1


@pytest.mark.parametrize("pull", ["samples", "means"])
def test_the_step_is_the_gradient_of_the_printed_loss(pull: str) -> None:
    """Against finite differences, in float64, with the loss written class by class."""
    rng = torch.Generator().manual_seed(0)

    def build() -> nn.Module:
        return nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2)).double()

    x, labels = torch.randn(6, 3, generator=rng), [0, 1, 1, 0, 1, 1]
    own, theta = (torch.randn(26, dtype=torch.float64, generator=rng) for _ in range(2))
    client = alone(build, x, labels, own)
    aligned = FedAS(pull=pull).assemble(client, Message(weights=theta[:16]))  # type: ignore[arg-type]
    x, y, model = x.double(), torch.tensor(labels), client.architecture.model()

    def features(weights: Tensor) -> Tensor:
        with torch.no_grad():
            return model.load(weights).module[:2](x)

    def loss(extractor: Tensor) -> float:
        old, new, total = features(own), features(torch.cat([extractor, own[16:]])), 0.0
        for k in (0, 1):
            c = old[y == k].mean(0)
            moved = new[y == k] if pull == "samples" else new[y == k].mean(0, keepdim=True)
            total += float((moved - c).square().sum() / (4 * len(moved)))
        return total

    for i in range(16):
        e = torch.zeros(16, dtype=torch.float64)
        e[i] = 1e-6
        slope = (loss(theta[:16] + e) - loss(theta[:16] - e)) / 2e-6
        assert float(theta[i] - aligned[i]) / 0.01 == pytest.approx(slope, rel=1e-4, abs=1e-9)
    assert torch.equal(aligned[16:], own[16:])


def test_alignment_is_plain_sgd_whatever_the_run_says(fed: Federation) -> None:
    plain = specification(fed, momentum=0.0)
    rich = specification(
        fed, momentum=0.9, weight_decay=0.1, clip_norm=1e-3, schedule="exponential:0.5", optimizer_state="kept"
    )
    results = []
    for spec in (plain, rich):
        client = visit(fed, spec, 0, round=2)
        results.append(FedAS().assemble(client, Message(weights=spec.initial(0, True)[:35])))
        assert "momentum/alignment" not in client
    assert torch.equal(*results)


@pytest.mark.parametrize("off", [{"align_epochs": 0}, {"align_lr": 0.0}])
def test_without_steps_nothing_is_aligned(fed: Federation, off: dict[str, float]) -> None:
    spec = specification(fed)
    client, theta = visit(fed, spec, 0), spec.initial(0, True)[:35]
    assert torch.equal(FedAS(**off).assemble(client, Message(weights=theta))[:35], theta)  # type: ignore[arg-type]
    assert not torch.equal(FedAS().assemble(client, Message(weights=theta))[:35], theta)


def test_a_client_aligns_a_copy(fed: Federation) -> None:
    """What one client gets does not depend on another's alignment, and the server's extractor stays as it is."""
    method, spec = FedAS(), specification(fed)
    server = method.setup(spec)
    before = server["weights/0"].clone()
    first = method.assemble(visit(fed, spec, 1), method.send(server, 1).copy())
    method.assemble(visit(fed, spec, 0), method.send(server, 0).copy())
    assert torch.equal(server["weights/0"], before)
    assert torch.equal(method.assemble(visit(fed, spec, 1), method.send(server, 1).copy()), first)


# ---- Fisher information


@pytest.mark.parametrize(
    ("size", "over", "expected"),
    [
        # w = a = b = 0: both classes have probability 1/2, gradient of the logits (-1/2, 1/2) for class 0.
        # d/da = w x (...) = 0, d/dw = (a, b) (...) = 0: nothing. With w = 1, d/d(a, b) = x (-1/2, 1/2),
        # squared x^2 / 2: for x = 1 and x = 2 each alone .5 + 2, together their mean (3/2)^2 / 2
        (1, "all", 2.5),
        (2, "all", 1.125),
        (2, "extractor", 0.0),
    ],
)
def test_traces_by_hand(size: int, over: str, expected: float) -> None:
    client = alone(scalar, torch.tensor([[1.0], [2.0]]), [0, 0], torch.tensor([1.0, 0.0, 0.0]))
    method = FedAS(fisher_batch=size, fisher_over=over)  # type: ignore[arg-type]
    F = method.trace(client, client.own)
    assert float(F) == pytest.approx(expected)
    assert F.dtype == torch.float64
    assert float(method.trace(client, torch.zeros(3))) == 0


def test_the_trace_is_the_squared_slope_of_every_batch() -> None:
    """Against finite differences, in float64; a ragged last batch; evaluation mode."""
    rng = torch.Generator().manual_seed(1)

    def build() -> nn.Module:
        return nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3), nn.Tanh(), nn.Dropout(), nn.Linear(3, 2)).double()

    x, labels = torch.randn(5, 2, generator=rng), [0, 1, 1, 0, 1]
    trained = torch.rand(29, dtype=torch.float64, generator=rng)
    client = alone(build, x, labels, trained)
    assert client.layout.trained == 23
    model, x, y = client.architecture.model(), x.double(), torch.tensor(labels)

    def loss(weights: Tensor, batch: slice) -> float:
        with model.load(weights).evaluating():
            return float(functional.cross_entropy(model(x[batch]), y[batch]))

    total = 0.0
    for batch in (slice(0, 2), slice(2, 4), slice(4, 6)):
        for i in range(23):
            e = torch.zeros_like(trained)
            e[i] = 1e-6
            total += ((loss(trained + e, batch) - loss(trained - e, batch)) / 2e-6) ** 2
    assert float(FedAS(fisher_batch=2).trace(client, trained)) == pytest.approx(total, rel=1e-5)


def server_with(fed: Federation, method: FedAS, first: tuple[float, float], F: tuple[float, float]) -> Server:
    server = method.setup(specification(fed))
    width = len(server["weights/0"])
    method.merge(server, {c: Message(weights=torch.full((width,), first[c]), fisher=F[c]) for c in range(2)})
    return server


def test_the_mean_is_weighed_by_traces(fed: Federation) -> None:
    # F = 1 and 3, theta = 0 and 4: 3
    assert server_with(fed, FedAS(), (0.0, 4.0), (1.0, 3.0))["weights/0"].tolist() == [3.0] * 35
    assert server_with(fed, FedAS(), (0.0, 4.0), (0.0, 0.0))["weights/0"].tolist() == [2.0] * 35
    assert server_with(fed, FedAS(), (0.0, 4.0), (2.0, 0.0))["weights/0"].tolist() == [0.0] * 35
    # sizes 20 and 13
    assert server_with(fed, FedAS(fisher=False), (0.0, 4.0), (1.0, 3.0))["weights/0"].tolist() == pytest.approx(
        [4 * 13 / 33] * 35
    )


# ---- siblings and whole runs


@pytest.mark.parametrize("weighting", ["samples", "uniform"])
def test_without_both_halves_it_is_fedper_bit_for_bit(fed: Federation, weighting: str) -> None:
    spec = specification(fed, rounds=3, norm=True)
    method = FedAS(align_epochs=0, fisher=False, weighting=weighting)  # type: ignore[arg-type]
    done, server, ours = simulate(method, fed, spec, share=0.75)
    other, expected, theirs = simulate(FedPer(weighting=weighting), fed, spec, share=0.75)  # type: ignore[arg-type]
    assert [this.bytes_up for this in done] == [this.bytes_up for this in other], "no trace is sent"
    assert torch.equal(server["weights/0"], expected["weights/0"])
    for client in range(4):
        assert torch.equal(ours.states[client]["own"], theirs.states[client]["own"])


def test_equal_traces_are_equal_weights(fed: Federation) -> None:
    uniform = FedPer(weighting="uniform")
    spec = specification(fed)
    server, expected = FedAS().setup(spec), uniform.setup(spec)
    uploads = [torch.randn(35, generator=torch.Generator().manual_seed(c)) for c in range(4)]
    FedAS().merge(server, {c: Message(weights=w, fisher=0.7) for c, w in enumerate(uploads)})
    uniform.merge(expected, {c: Message(weights=w) for c, w in enumerate(uploads)})
    assert torch.equal(server["weights/0"], expected["weights/0"])


def test_one_participant_leaves_its_extractor(fed: Federation) -> None:
    done, server, engine = simulate(FedAS(), fed, specification(fed, rounds=1), share=0.25)
    (client,) = done[0].participants
    assert torch.equal(server["weights/0"], engine.states[client]["own"][:35])
    # 35 floats down; the same and the trace up
    assert (done[0].bytes_down, done[0].bytes_up) == (140, 148)


def test_trained_is_the_own_model_and_received_the_aligned_one(fed: Federation) -> None:
    spec, method = specification(fed, rounds=2), FedAS(align_batch=64)
    done, server, engine = simulate(method, fed, spec)
    losses: dict[str, list[float]] = {"received": [], "trained": []}
    for client, data in enumerate(fed.clients):
        guest = visit(fed, spec, client)
        guest["own"] = engine.states[client]["own"]
        x, y = data.test.batch(slice(None))
        live = spec.architecture(0).model()
        aligned = method.assemble(guest, method.send(server, client))
        assert torch.equal(aligned[35:], guest.own[35:])
        for point, weights in (("received", aligned), ("trained", guest.own)):
            with live.load(weights).evaluating():
                losses[point].append(float(functional.cross_entropy(live(x), y)))
    for point in ("received", "trained"):
        assert done[-1].test[point].figures["log_loss"].pooled == pytest.approx(sum(losses[point]) / 4, rel=1e-5)  # type: ignore[index]


def test_fewer_samples_than_a_batch_are_one_smaller_batch() -> None:
    fed = blobs((5,))
    spec = specification(fed, drop_last=True)
    client = visit(fed, spec, 0)
    theta = spec.initial(0, True)[:35]
    assert not torch.equal(FedAS(align_batch=16).assemble(client, Message(weights=theta))[:35], theta)


def test_all_clients_need_one_architecture(fed: Federation) -> None:
    with pytest.raises(UserError, match="fedas mixes whole models, so all clients need the same architecture"):
        FedAS().setup(fleet(fed))


def test_caveats_name_settings_that_switch_it_off() -> None:
    assert not FedAS().caveats()
    assert not FedAS(fisher=False).caveats()
    assert any("FedPer" in sentence for sentence in FedAS(fisher=False, align_epochs=0).caveats())
