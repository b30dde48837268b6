"""HeurFedAMP: cosine attention by hand and its invariants."""

import math

import pytest
import torch
from conftest import blobs, simulate, specification

from fedgraft.core.message import Message
from fedgraft.data.federation import Federation
from fedgraft.methods.fedavg import FedAvg
from fedgraft.methods.heurfedamp import HeurFedAMP
from fedgraft.methods.local import Local


def test_attention_by_hand() -> None:
    # cosines: 0 between the axes, sqrt(1/2) of each with the diagonal; lengths do not matter
    W = torch.tensor([[2.0, 0.0], [0.0, 3.0], [1.0, 1.0]])
    xi = HeurFedAMP(s=0.4, sigma=2.0).attention(W, 1.0)
    near = math.exp(2 * math.sqrt(0.5))
    expected = [
        [0.4, 0.6 / (1 + near), 0.6 * near / (1 + near)],
        [0.6 / (1 + near), 0.4, 0.6 * near / (1 + near)],
        [0.3, 0.3, 0.4],
    ]
    torch.testing.assert_close(xi, torch.tensor(expected, dtype=torch.float64))


def test_a_client_gets_its_row_of_the_attention(fed: Federation) -> None:
    # models 1, 2, 4, 8; row 1 is (1/10, 2/10, 3/10, 4/10), column 1 something else
    method = HeurFedAMP()
    server = method.setup(specification(fed))
    server["bank"] = torch.tensor([1.0, 2.0, 4.0, 8.0])[:, None].expand_as(server["bank"]).clone()
    server["xi"] = torch.eye(4, dtype=torch.float64)
    server["xi"][1] = torch.tensor([0.1, 0.2, 0.3, 0.4])
    received = [float(method.send(server, client)["weights"][0]) for client in range(4)]
    assert received == pytest.approx([1, 0.1 + 0.4 + 1.2 + 3.2, 4, 8])


@pytest.mark.parametrize("sigma", [0.0, 25.0, 1e4])
def test_rows_sum_to_one_with_the_self_attention_exactly(sigma: float) -> None:
    W = torch.randn(5, 7, generator=torch.Generator().manual_seed(0))
    xi = HeurFedAMP(s=0.3, sigma=sigma).attention(W, 1.0)
    assert xi.diagonal().tolist() == [0.3] * 5
    assert xi.sum(1).tolist() == pytest.approx([1] * 5)
    assert bool((xi >= 0).all())
    assert sigma > 100 or bool((xi > 0).all())


def test_equal_similarities_and_an_equal_share_give_the_uniform_mean() -> None:
    fed = blobs((12, 12, 12))
    method, spec = HeurFedAMP(s=1 / 3), specification(fed)
    W = torch.eye(3)
    torch.testing.assert_close(method.attention(W, 1.0), torch.full((3, 3), 1 / 3, dtype=torch.float64))
    # one round from a common start with sigma = 0, which makes all similarities equal: one aggregation of FedAvg
    _, average, engine = simulate(FedAvg(), fed, specification(fed, rounds=1))
    even = HeurFedAMP(s=1 / 3, sigma=0.0)
    server = even.setup(spec)
    even.merge(server, {c: Message(weights=engine.states[c]["own"]) for c in range(3)})
    for client in range(3):
        torch.testing.assert_close(even.send(server, client)["weights"], average["weights/0"])


def test_zero_and_equal_vectors_have_finite_attention() -> None:
    W = torch.tensor([[0.0, 0.0], [1.0, 0.0], [1.0, 0.0]])
    xi = HeurFedAMP(s=0.5, sigma=100.0).attention(W, 1.0)
    assert bool(torch.isfinite(xi).all())
    assert xi[0].tolist() == pytest.approx([0.5, 0.25, 0.25])
    assert float(xi[1, 2]) == pytest.approx(0.5)


def test_a_lone_client_is_its_own_cloud() -> None:
    fed = blobs((12,))
    spec = specification(fed, rounds=3)
    _, server, ours = simulate(HeurFedAMP(lam=0.0), fed, spec)
    _, _, alone = simulate(Local(), fed, spec)
    assert server["xi"].tolist() == [[1.0]]
    assert torch.equal(ours.states[0]["own"], alone.states[0]["own"])


def test_full_self_attention_without_pull_is_local_training_bit_for_bit(fed: Federation) -> None:
    spec = specification(fed, rounds=3)
    _, _, ours = simulate(HeurFedAMP(s=1.0, lam=0.0), fed, spec, share=0.5)
    _, _, alone = simulate(Local(), fed, spec, share=0.5)
    for client in range(len(fed)):
        assert torch.equal(ours.states[client]["own"], alone.states[client]["own"])


def test_similar_clients_attend_to_each_other(fed: Federation) -> None:
    # clients 0 and 3 lack the same class
    done, _, _ = simulate(HeurFedAMP(), fed, specification(fed, rounds=6))
    xi = done[-1].observed["xi"]
    assert int(xi[0, 1:].argmax()) + 1 == 3
    assert int(xi[3, :3].argmax()) == 0


def test_caveats_name_settings_that_switch_it_off() -> None:
    assert not HeurFedAMP().caveats()
    assert any("local training" in sentence for sentence in HeurFedAMP(s=1).caveats())
    assert any("same weight" in sentence for sentence in HeurFedAMP(sigma=0).caveats())
    assert any("out of its cloud" in sentence for sentence in HeurFedAMP(s=0).caveats())
