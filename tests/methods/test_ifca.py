"""IFCA: who takes which model, whose model that makes, and how clusters find themselves."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from conftest import CLASSES, blobs, on_digits, simulate, specification, visit
from torch import Tensor

from fedgraft.core.evaluation import mean_loss
from fedgraft.core.exchange import train
from fedgraft.core.message import Message
from fedgraft.core.method import average
from fedgraft.core.samples import Samples
from fedgraft.data.federation import Federation, Site, own_data
from fedgraft.methods.fedavg import FedAvg
from fedgraft.methods.ifca import IFCA


def filled(*values: float) -> Tensor:
    return torch.stack([torch.full((53,), value) for value in values])


@pytest.mark.parametrize("norm", [False, True], ids=["plain", "batchnorm"])
def test_one_cluster_is_fedavg_bit_for_bit(fed: Federation, norm: bool) -> None:
    spec = specification(fed, rounds=3, norm=norm)
    ours, server, engine = simulate(IFCA(k=1), fed, spec, share=0.75)
    fedavg, expected, plain = simulate(FedAvg(), fed, spec, share=0.75)
    assert torch.equal(server["theta/0"], expected["weights/0"][None])
    for client in range(len(fed)):
        assert torch.equal(engine.states[client]["own"], plain.states[client]["own"])
    assert [this.test for this in ours] == [this.test for this in fedavg]
    assert IFCA(k=1).caveats()
    assert not IFCA().caveats()


def test_models_start_apart_and_the_first_is_the_runs(fed: Federation) -> None:
    spec = specification(fed)
    theta = IFCA(k=3).setup(spec)["theta/0"]
    assert torch.equal(theta[0], spec.initial(0))
    assert all(not torch.equal(theta[a], theta[b]) for a, b in ((0, 1), (0, 2), (1, 2)))
    assert torch.equal(theta, IFCA(k=3).setup(spec)["theta/0"])


def test_a_client_takes_the_model_with_the_least_loss_on_its_training_samples(fed: Federation) -> None:
    spec = specification(fed)
    client, method = visit(fed, spec, 1), IFCA(k=4)
    x, y = client.data.test.batch(slice(None))
    client.data = replace(client.data, test=Samples(-x, (y + 1) % CLASSES))
    message = method.send(method.setup(spec), 1)
    F, tested = (
        [mean_loss(client, client.predictor(theta), samples) for theta in message["models"]]
        for samples in (client.data.train, client.data.test)
    )
    best = int(np.argmin(F))
    assert best != int(np.argmin(tested))
    assert torch.equal(method.assemble(client, message), message["models"][best])
    moved = message["models"].roll(1, 0)
    assert torch.equal(method.assemble(client, Message(models=moved)), message["models"][best]), "wherever it stands"
    assert int(client["cluster"]) == (best + 1) % 4
    broken = message["models"].clone()
    broken[best] = torch.nan
    method.assemble(client, Message(models=broken))
    assert int(client["cluster"]) != best


def test_a_cluster_is_the_mean_of_those_who_chose_it(fed: Federation) -> None:
    # 20, 13 and 31 samples: (20 * 1 + 31 * 4) / 51 for cluster 2, 13 * 7 / 13 for cluster 0; nobody chose cluster 1
    spec = specification(fed)
    for weighting, mean in (("samples", 144 / 51), ("uniform", 2.5)):
        method = IFCA(k=3, weighting=weighting)  # type: ignore[arg-type]
        server = method.setup(spec)
        stays = server["theta/0"][1].clone()
        chosen = {0: (1.0, 2), 1: (7.0, 0), 2: (4.0, 2)}
        method.merge(server, {c: Message(weights=filled(w)[0], cluster=j) for c, (w, j) in chosen.items()})
        torch.testing.assert_close(server["theta/0"], torch.stack([filled(7)[0], stays, filled(mean)[0]]))
        assert server["clusters"].tolist() == [[0, 0, 1], [1, 0, 0], [0, 0, 1], [0, 0, 0]]


def test_the_reply_is_the_trained_model_and_its_cluster(fed: Federation) -> None:
    spec = specification(fed)
    client, method = visit(fed, spec), IFCA(k=2)
    server = method.setup(spec)
    reply = train(method, client, method.send(server, 0))
    assert torch.equal(reply["weights"], client.own)
    expects = method.expects(server, 0)
    assert expects.keys() == reply.keys()
    assert expects["cluster"].objection(reply["cluster"]) is None
    assert expects["cluster"].objection(torch.tensor(2)) == "holds values above 1"
    assert expects["cluster"].objection(torch.tensor(-1)) == "holds values below 0"


def test_both_points(fed: Federation) -> None:
    spec = specification(fed)
    client, method = visit(fed, spec), IFCA(k=3)
    message = method.send(method.setup(spec), 0)
    train(method, client, message)
    best = method.assemble(client.fork(), message)
    method.personal(client, message)
    assert torch.equal(client.model().vector, best), "the best of the newest models"
    method.personal(client, message, client.own)
    assert torch.equal(client.model().vector, client.own)


def test_all_models_go_down_and_one_goes_up(fed: Federation) -> None:
    done, _, _ = simulate(IFCA(k=3), fed, specification(fed, rounds=1))
    assert done[0].bytes_down == 4 * 3 * 53 * 4
    assert done[0].bytes_up == 4 * (53 * 4 + 8)


def opposites() -> Federation:
    """Clients of two kinds, who call the same two clouds by each other's names: no single model can serve both."""
    rng = np.random.default_rng(0)

    def site(swapped: bool) -> Site:
        def draw(count: int) -> tuple[np.ndarray, np.ndarray]:
            y = rng.integers(0, 2, count)
            x = rng.standard_normal((count, 6)) + 3 * np.where(y, 1, -1)[:, None]
            return x.astype(np.float32), 1 - y if swapped else y

        return Site(*draw(40), *draw(20))

    return own_data([site(bool(client % 2)) for client in range(6)], task="classification:3")


def test_clusters_find_themselves() -> None:
    fed = opposites()
    spec = specification(fed, rounds=8)
    done, server, _ = simulate(IFCA(k=2), fed, spec)
    cluster = server["clusters"].argmax(1).tolist()
    assert cluster in ([0, 1] * 3, [1, 0] * 3)
    assert done[-1].test["received"].pooled > 0.95
    fedavg, _, _ = simulate(FedAvg(), fed, spec)
    assert fedavg[-1].test["received"].pooled < 0.7


def test_a_round_is_fedavgs_within_each_cluster() -> None:
    fed = blobs()
    spec, method = specification(fed, rounds=1), IFCA(k=3)
    _, server, engine = simulate(method, fed, spec)
    chosen = {client: int(state["cluster"]) for client, state in engine.states.items()}
    for j in set(chosen.values()):
        members = {c: Message(weights=engine.states[c]["own"]) for c in chosen if chosen[c] == j}
        assert torch.equal(server["theta/0"][j], average(spec, members))


@pytest.mark.slow
def test_on_digits_it_is_far_better_than_a_guess() -> None:
    accuracy, guess = on_digits(IFCA())
    assert guess < 0.5
    assert accuracy > 0.8
