"""FedAMP: the attention worked out by hand, its gradient, the proximal pull, and local training at the limits."""

import math

import pytest
import torch
from conftest import blobs, simulate, slope, specification, visit
from torch import Tensor
from torch.nn import functional

from fedgraft.core.message import Message
from fedgraft.data.federation import Federation
from fedgraft.methods.fedamp import FedAMP
from fedgraft.methods.local import Local

LINE = torch.tensor([[0.0], [1.0], [3.0]])  # squared distances 1, 4 and 9


def test_printed_attention_by_hand() -> None:
    xi = FedAMP(scale="printed", sigma=2.0, alpha=0.5).attention(LINE, 0.5)
    # alpha exp(-d / sigma) / sigma for d = 1, 9, 4
    a, b, c = 0.25 * math.exp(-0.5), 0.25 * math.exp(-4.5), 0.25 * math.exp(-2)
    expected = [[1 - a - b, a, b], [a, 1 - a - c, c], [b, c, 1 - b - c]]
    torch.testing.assert_close(xi, torch.tensor(expected, dtype=torch.float64))


def test_distances_are_measured_in_their_median_and_peers_averaged() -> None:
    # the median of 1, 4, 9 is 4, and each client has two peers
    xi = FedAMP(sigma=1.0).attention(LINE, 1.0)
    assert float(xi[0, 1]) == pytest.approx(math.exp(-1 / 4) / 2)
    assert float(xi[0, 2]) == pytest.approx(math.exp(-9 / 4) / 2)
    assert float(xi[1, 1]) == pytest.approx(1 - math.exp(-1 / 4) / 2 - math.exp(-1) / 2)
    torch.testing.assert_close(FedAMP(sigma=1.0).attention(1000 * LINE, 1.0), xi)


@pytest.mark.parametrize("scale", ["median", "printed"])
def test_rows_sum_to_one_and_attention_is_mutual(scale: str) -> None:
    W = torch.randn(6, 9, generator=torch.Generator().manual_seed(0))
    xi = FedAMP(scale=scale, sigma=3.0).attention(W, 0.7)
    assert xi.sum(1).tolist() == pytest.approx([1] * 6)
    assert torch.equal(xi, xi.T)
    if scale == "median":
        assert bool((xi >= 0).all())


def test_the_server_descends_the_attraction() -> None:
    # u_i = w_i - alpha/2 d/dw_i sum_j A(||w_i - w_j||^2)
    W = torch.randn(4, 5, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    sigma, alpha = 3.0, 0.4

    def attraction(models: Tensor) -> float:
        d = (models[:, None] - models[None]).square().sum(2)
        return float((1 - torch.exp(-d / sigma)).triu(1).sum())

    moved = W - FedAMP(scale="printed", sigma=sigma).attention(W, alpha) @ W
    for entry in (0, 7, 19):
        assert float(moved.view(-1)[entry]) == pytest.approx(alpha / 2 * slope(attraction, W, entry), rel=1e-6)


def test_equal_models_stay(fed: Federation) -> None:
    method = FedAMP()
    xi = method.attention(torch.ones(4, 3), 1.0)
    assert bool(torch.isfinite(xi).all())
    torch.testing.assert_close(xi.float() @ torch.ones(4, 3), torch.ones(4, 3))
    server = method.setup(specification(fed))
    assert torch.equal(method.send(server, 2)["weights"], specification(fed).initial(2))


def test_the_default_attention_mixes_and_discriminates(fed: Federation) -> None:
    done, _, _ = simulate(FedAMP(), fed, specification(fed, rounds=4))
    xi = done[-1].observed["xi"]
    own, others = xi.diagonal(), xi[~torch.eye(4, dtype=torch.bool)]
    assert bool((own > 0.1).all())
    assert bool((own < 0.95).all())
    assert float(others.max() / others.min()) > 1.2


@pytest.mark.parametrize("share", [0.5, 1.0])
def test_without_attention_and_pull_it_is_local_training_bit_for_bit(fed: Federation, share: float) -> None:
    spec = specification(fed, rounds=3, norm=True)
    _, _, alone = simulate(Local(), fed, spec, share=share)
    far = FedAMP(scale="printed", sigma=1e-9, alpha=1e-9, lam=0.0)  # exp(-d / sigma) is zero
    for method in (far, FedAMP(lam=0.0, start="own")):
        _, _, ours = simulate(method, fed, spec, share=share)
        for client in range(len(fed)):
            assert torch.equal(ours.states[client]["own"], alone.states[client]["own"])


def test_a_lone_client_without_pull_is_local_training() -> None:
    fed = blobs((12,))
    spec = specification(fed, rounds=3)
    _, server, ours = simulate(FedAMP(lam=0.0), fed, spec)
    _, _, alone = simulate(Local(), fed, spec)
    assert server["xi"].tolist() == [[1.0]]
    assert torch.equal(ours.states[0]["own"], alone.states[0]["own"])


def one_step(fed: Federation, method: FedAMP, *, round: int = 0) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """One full-batch step of plain SGD, away from the cloud model: start, cloud model, gradient of the data, result."""
    spec = specification(fed, momentum=0.0, epochs=1, batch_size=100, lr=0.1)
    client = visit(fed, spec, round=round)
    x, y = client.data.train.batch(slice(None))
    model = client.model(client.own)
    gradient = model.differentiate(functional.cross_entropy(model(x), y)).clone()
    cloud = client.own + torch.linspace(-1, 1, len(client.own))
    return client.own.clone(), cloud, gradient, method.fit(client, cloud)


def test_the_pull_acts_on_the_step(fed: Federation) -> None:
    own, cloud, gradient, trained = one_step(fed, FedAMP(start="own", lam=0.6, alpha=2.0))
    torch.testing.assert_close(trained, own - 0.1 * (gradient + 0.3 * (own - cloud)))


def test_training_starts_at_the_cloud_model_unless_told(fed: Federation) -> None:
    # there the pull is zero, and the gradient that of the cloud model
    spec = specification(fed, momentum=0.0, epochs=1, batch_size=100, lr=0.1)
    client = visit(fed, spec)
    cloud = client.own + 0.2
    x, y = client.data.train.batch(slice(None))
    model = client.model(cloud)
    gradient = model.differentiate(functional.cross_entropy(model(x), y)).clone()
    torch.testing.assert_close(FedAMP().fit(client, cloud), cloud - 0.1 * gradient)


def test_the_pull_grows_as_alpha_falls_and_stops_at_the_learning_rate(fed: Federation) -> None:
    method = FedAMP(start="own", lam=0.6, alpha=2.0)
    own, cloud, gradient, trained = one_step(fed, method, round=30)
    torch.testing.assert_close(trained, own - 0.1 * (gradient + 3.0 * (own - cloud)))
    for late in (90, 10**6):
        _, _, _, trained = one_step(fed, method, round=late)
        torch.testing.assert_close(trained, cloud - 0.1 * gradient)


def test_alpha_falls_tenfold_every_thirty_rounds() -> None:
    method = FedAMP(alpha=1.0)
    assert [method.step(k) for k in (0, 29, 30, 60)] == pytest.approx([1, 1, 0.1, 0.01])
    assert method.step(10**7) > 0


def test_absent_clients_count_with_their_last_upload(fed: Federation) -> None:
    method, spec = FedAMP(), specification(fed)
    server = method.setup(spec)
    first, second = spec.initial(0) + 1, spec.initial(0) - 2
    method.merge(server, {1: Message(weights=first)})
    method.merge(server, {3: Message(weights=second)})
    assert torch.equal(server["bank"][1], first)
    assert torch.equal(server["bank"][0], spec.initial(0))
    assert float(server["xi"][3, 1]) == float(server["xi"][1, 3]) > 0
    mixture = server["xi"][3].float() @ server["bank"]
    torch.testing.assert_close(method.send(server, 3)["weights"], mixture)


def test_clients_hold_the_cloud_model_then_their_trained_one(fed: Federation) -> None:
    spec = specification(fed, rounds=2)
    method = FedAMP()
    _, server, engine = simulate(method, fed, spec)
    for client in range(len(fed)):
        assert torch.equal(engine.states[client]["own"], server["bank"][client])
        message = method.send(server, client)
        assert torch.equal(method.assemble(visit(fed, spec, client), message), message["weights"])


def test_batchnorm_statistics_are_mixed_but_do_not_steer(fed: Federation) -> None:
    spec = specification(fed, norm=True)
    method, layout = FedAMP(), spec.layout(0)
    server = method.setup(spec)
    statistics = spec.initial(0).clone()
    statistics[layout.trained :] += 5
    method.merge(server, {0: Message(weights=statistics), 1: Message(weights=spec.initial(0) + 1)})
    xi = server["xi"]
    assert float(xi[0, 2]) == float(xi[3, 2]), "models that differ in statistics alone are equally far from others"
    torch.testing.assert_close(method.send(server, 1)["weights"], xi[1].float() @ server["bank"])


def test_caveats_name_settings_that_switch_it_off() -> None:
    assert not FedAMP().caveats()
    assert any("local training" in sentence for sentence in FedAMP(lam=0, start="own").caveats())
    assert not any("local training" in sentence for sentence in FedAMP(lam=0).caveats())
    assert any("below zero" in sentence for sentence in FedAMP(alpha=2).caveats())
