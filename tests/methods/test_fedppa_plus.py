"""FedPPA+: label entropies, the weights made of them, and the printed formula that shrinks every model."""

import math
from collections import OrderedDict

import numpy as np
import pytest
import torch
from conftest import blobs, fleet, simulate, specification
from torch import nn

from fedgraft.core.message import Message, objection
from fedgraft.core.method import Server, Spec
from fedgraft.core.model import Architecture
from fedgraft.core.settings import Training
from fedgraft.core.task import Classification
from fedgraft.data.federation import Federation, Site, own_data
from fedgraft.methods.fedppa import FedPPA
from fedgraft.methods.fedppa_plus import FedPPAPlus, entropy, weights

LN2 = math.log(2)


def chain(*names: str) -> Architecture:
    def build() -> nn.Module:
        return nn.Sequential(OrderedDict((name, nn.Linear(1, 1, bias=False)) for name in names))

    return Architecture(build, torch.zeros(2, 1))


def merged(method: FedPPAPlus, spec: Spec, uploads: dict[int, list[float]], H: dict[int, float]) -> Server:
    server = method.setup(spec)
    method.merge(server, {c: Message(weights=torch.tensor(values), entropy=H[c]) for c, values in uploads.items()})
    return server


def three() -> Spec:
    return Spec((5,) * 3, (chain("x", "y"),), (0, 0, 0), Classification(3), 1, 0, Training())


@pytest.mark.parametrize(
    ("counts", "expected"),
    [
        ((5, 5), LN2),
        ((10, 0), 0),
        ((7,) * 10, math.log(10)),
        ((1, 0, 3), -0.25 * math.log(0.25) - 0.75 * math.log(0.75)),
    ],
)
def test_entropies_by_hand(counts: tuple[int, ...], expected: float) -> None:
    H = entropy(torch.tensor(counts))
    assert float(H) == pytest.approx(expected)
    assert float(H) >= 0
    assert H.dtype == torch.float64


def test_weights_by_hand() -> None:
    assert weights(torch.tensor([LN2, 0.0, LN2])).tolist() == pytest.approx([0.5, 0, 0.5])
    assert weights(torch.zeros(3)).tolist() == pytest.approx([1 / 3] * 3)
    assert weights(torch.tensor([1.0, 3.0])).tolist() == pytest.approx([0.25, 0.75])


def test_a_client_with_one_class_receives_and_gives_nothing() -> None:
    server = merged(FedPPAPlus(), three(), {0: [1.0, 2], 1: [100.0, 100], 2: [3.0, 6]}, {0: LN2, 1: 0.0, 2: LN2})
    assert [server[f"weights/{client}"].tolist() for client in range(3)] == 3 * [[2, 4]]
    assert FedPPAPlus().observe(server)["e"].tolist() == pytest.approx([0.5, 0, 0.5])


def test_contributors_without_entropy_count_alike() -> None:
    server = merged(FedPPAPlus(), three(), {0: [1.0, 2], 1: [4.0, 4], 2: [4.0, 6]}, {0: 0.0, 1: 0.0, 2: 0.0})
    assert [server[f"weights/{client}"].tolist() for client in range(3)] == 3 * [[3, 4]]
    # also if others, who do not contribute to the layer, have some: x over all, y over the last two alone
    spec = Spec((5,) * 3, (chain("x"), chain("x", "y")), (0, 1, 1), Classification(3), 1, 0, Training())
    server = merged(FedPPAPlus(), spec, {0: [7.0], 1: [1.0, 2], 2: [3.0, 6]}, {0: 1.0, 1: 0.0, 2: 0.0})
    assert [server[f"weights/{client}"].tolist() for client in range(3)] == [[7], [7, 4], [7, 4]]


def test_weights_are_normalised_over_the_contributors_of_each_layer() -> None:
    # x: (1 * 9 + 1 * 1 + 3 * 5) / 5; y: (1 * 2 + 3 * 6) / 4
    spec = Spec((5,) * 3, (chain("x"), chain("x", "y")), (0, 1, 1), Classification(100), 1, 0, Training())
    server = merged(FedPPAPlus(), spec, {0: [9.0], 1: [1.0, 2], 2: [5.0, 6]}, {0: 1.0, 1: 1.0, 2: 3.0})
    assert [server[f"weights/{client}"].tolist() for client in range(3)] == [[5], [5, 5], [5, 5]]
    # a partner without entropy leaves a layer as it was
    server = merged(FedPPAPlus(), spec, {0: [9.0], 1: [1.0, 2], 2: [5.0, 6]}, {0: 0.0, 1: 2.0, 2: 0.0})
    assert [server[f"weights/{client}"].tolist() for client in range(3)] == [[1], [1, 2], [1, 2]]


def test_the_printed_formula_shrinks_every_shared_weight() -> None:
    uploads = {0: [3.0, 6], 1: [6.0, 9], 2: [9.0, 12]}
    server = merged(FedPPAPlus(weight="literal"), three(), uploads, {0: LN2, 1: LN2, 2: LN2})
    for client in range(3):
        assert server[f"weights/{client}"].tolist() == pytest.approx([6 / 3, 9 / 3]), "the mean, divided by M"
    # the receiver's own weight scales: 1/4, 0, 3/4
    server = merged(FedPPAPlus(weight="literal"), three(), uploads, {0: 0.25, 1: 0.0, 2: 0.75})
    assert [server[f"weights/{c}"].tolist() for c in range(3)] == [[1.5, 2.25], [0, 0], [4.5, 6.75]]
    # e sums to one over all clients, not over the contributors of a layer; a layer without partner is left alone
    spec = Spec((5,) * 3, (chain("x"), chain("x", "y")), (0, 1, 1), Classification(3), 1, 0, Training())
    server = merged(FedPPAPlus(weight="literal"), spec, {0: [9.0], 1: [1.0, 2], 2: [5.0, 6]}, {0: 1.0, 1: 0.5, 2: 0.5})
    assert [server[f"weights/{c}"].tolist() for c in range(3)] == [[2.5], [1.25, 1], [1.25, 1]]
    alone = merged(FedPPAPlus(weight="literal"), spec, {1: [1.0, 2]}, {1: 0.5})
    assert alone["weights/1"].tolist() == [1, 2]


def test_equal_entropies_are_fedppa_bit_for_bit() -> None:
    fed = blobs((12, 16, 20, 8))  # two classes each, in equal numbers
    spec = fleet(fed, rounds=3, norm=True)
    _, server, ours = simulate(FedPPAPlus(), fed, spec, share=0.75)
    _, _, theirs = simulate(FedPPA(), fed, spec, share=0.75)
    assert {round(float(h), 6) for h in server["H"]} <= {0.0, round(LN2, 6)}
    for client in range(4):
        assert torch.equal(ours.states[client]["own"], theirs.states[client]["own"])


def uneven() -> Federation:
    """One class, two in equal parts, two in unequal ones."""
    rng = np.random.default_rng(0)
    labels = [np.zeros(8, dtype=int), np.arange(8) % 2, np.array([0] * 6 + [1] * 2)]
    sites = [Site(*(rng.standard_normal((8, 6)).astype(np.float32), y) * 2) for y in labels]
    return own_data(sites, task="classification:3")


def test_a_run_weighs_by_the_training_labels() -> None:
    fed = uneven()
    done, server, engine = simulate(FedPPAPlus(), fed, specification(fed, rounds=1))
    H = [0, LN2, -0.75 * math.log(0.75) - 0.25 * math.log(0.25)]
    assert server["H"].tolist() == pytest.approx(H)
    assert done[0].observed["e"].tolist() == pytest.approx([h / sum(H) for h in H])
    models = [engine.states[client]["own"] for client in range(3)]
    expected = (H[1] * models[1] + H[2] * models[2]) / (H[1] + H[2])
    for client in range(3):
        torch.testing.assert_close(server[f"weights/{client}"], expected)
    # one more number in the reply, the entropy: 8 bytes
    _, plain, _ = simulate(FedPPA(), fed, specification(fed, rounds=1))
    assert done[0].bytes_up == 3 * (4 * len(plain["weights/0"]) + 8)


def test_clients_not_heard_of_have_no_weight(fed: Federation) -> None:
    done, _, _ = simulate(FedPPAPlus(), fed, specification(fed, rounds=1), share=0.5)
    e = done[0].observed["e"]
    absent = set(range(4)) - set(done[0].participants)
    assert float(e.sum()) == pytest.approx(1)
    assert all(float(e[client]) == 0 for client in absent)


@pytest.mark.parametrize(("H", "reason"), [(-0.1, "below 0"), (1.2, "above 1.09"), (math.nan, "not finite")])
def test_impossible_entropies_are_refused(fed: Federation, H: float, reason: str) -> None:
    server = FedPPAPlus().setup(specification(fed))
    reply = Message(weights=torch.zeros_like(server["weights/0"]), entropy=H)
    assert reason in (objection(reply, FedPPAPlus().expects(server, 0)) or "")
    fine = Message(weights=torch.zeros_like(server["weights/0"]), entropy=math.log(3))
    assert objection(fine, FedPPAPlus().expects(server, 0)) is None
