"""FedGH: the server's steps on the head by hand, what travels, and the bugs of other implementations."""

from dataclasses import replace

import pytest
import torch
from conftest import CLASSES, fleet, simulate, slope, small_network, specification, visit
from torch import Tensor, nn
from torch.nn import functional

from fedgraft.base.errors import UserError
from fedgraft.core.message import Message
from fedgraft.core.method import Server, Spec
from fedgraft.core.model import Architecture
from fedgraft.data.federation import Federation
from fedgraft.methods.fedgh import FedGH


def exact(fed: Federation) -> Spec:
    return specification(fed, build=lambda: small_network()().double())


def upload(held: list[bool], seed: int = 0) -> Message:
    rng = torch.Generator().manual_seed(seed)
    mask = torch.tensor(held)
    prototypes = torch.randn(CLASSES, 5, generator=rng, dtype=torch.float64) * mask[:, None]
    return Message(prototypes=prototypes, held=mask)


def head(server: Server) -> tuple[Tensor, Tensor]:
    """Weight (a row for each class) and bias."""
    return server["head"][:15].view(3, 5), server["head"][15:]


def test_a_step_by_hand(fed: Federation) -> None:
    # one pair (mu, 1): the gradient of the cross-entropy is (p - e_1) mu^T for the weight and p - e_1 for the bias
    method = FedGH(server_lr=0.5)
    server = method.setup(exact(fed))
    W, b = (tensor.clone() for tensor in head(server))
    pair = upload([False, True, False])
    mu = pair["prototypes"][1]
    error = torch.softmax(W @ mu + b, 0) - torch.eye(3, dtype=torch.float64)[1]
    method.merge(server, {2: pair})
    torch.testing.assert_close(head(server)[0], W - 0.5 * error[:, None] * mu)
    torch.testing.assert_close(head(server)[1], b - 0.5 * error)


def test_a_batch_of_all_pairs_descends_their_mean_loss(fed: Federation) -> None:
    method = FedGH(server_lr=1.0, server_batch=100)
    server = method.setup(exact(fed))
    start, inbox = server["head"].clone(), {0: upload([True, True, False], 1), 3: upload([True, False, True], 2)}
    mu = torch.cat([inbox[0]["prototypes"][[0, 1]], inbox[3]["prototypes"][[0, 2]]])

    def loss(values: Tensor) -> float:
        logits = mu @ values[:15].view(3, 5).T + values[15:]
        return float(functional.cross_entropy(logits, torch.tensor([0, 1, 0, 2])))

    method.merge(server, inbox)
    for entry in range(18):
        assert float((start - server["head"])[entry]) == pytest.approx(slope(loss, start, entry), rel=1e-5, abs=1e-9)


def test_passes_and_batches_count_the_steps(fed: Federation) -> None:
    inbox = {0: upload([True, True, False])}
    moved = {}
    for passes, batch in ((0, 1), (1, 1), (1, 2), (2, 2)):
        method = FedGH(server_epochs=passes, server_batch=batch)
        server = method.setup(exact(fed))
        start = server["head"].clone()
        method.merge(server, inbox)
        moved[passes, batch] = float((server["head"] - start).norm())
    assert moved[0, 1] == 0
    assert moved[1, 1] == pytest.approx(2 * moved[1, 2], rel=0.05), "two single steps, or one with their mean"
    assert moved[2, 2] == pytest.approx(2 * moved[1, 2], rel=0.05)


@pytest.mark.parametrize("norm", [False, True])
def test_the_head_is_trained_and_by_the_server_alone(fed: Federation, norm: bool) -> None:
    spec = specification(fed, rounds=3, norm=norm)
    start = FedGH().setup(spec)["head"]
    _, trained, _ = simulate(FedGH(), fed, spec)
    assert not torch.equal(trained["head"], start)
    _, still, engine = simulate(FedGH(server_lr=0.0), fed, spec)
    assert torch.equal(still["head"], start), "no client reaches the server's head"
    assert not torch.equal(engine.states[0]["own"][spec.layout(0).span("head")], start), "though it trains its own"


def test_the_head_answers_the_class_means_better(fed: Federation) -> None:
    method, inbox = FedGH(server_lr=0.1, server_epochs=20), {0: upload([True] * 3, 4)}
    server = method.setup(exact(fed))
    W, b = head(server)
    mu, c = inbox[0]["prototypes"], torch.arange(3)
    before = float(functional.cross_entropy(mu @ W.T + b, c))
    method.merge(server, inbox)
    W, b = head(server)
    assert float(functional.cross_entropy(mu @ W.T + b, c)) < before


def test_a_class_that_nobody_has_is_only_pushed_down(fed: Federation) -> None:
    method = FedGH(server_lr=0.1)
    server = method.setup(exact(fed))
    biases = []
    for seed in range(4):
        method.merge(server, {1: upload([True, True, False], seed)})
        biases.append(float(head(server)[1][2]))
    assert biases == sorted(biases, reverse=True)
    assert biases[0] > biases[-1]


def test_the_reply_holds_class_means_after_training(fed: Federation) -> None:
    method, spec = FedGH(), specification(fed, norm=True)
    client = visit(fed, spec, 1)  # classes 0 and 2; batches of four leave a ragged last one
    trained = method.fit(client, client.own)
    reply = method.reply(client, client.own, trained)
    model = client.model(trained)
    x, y = client.data.train.batch(slice(None))
    with model.evaluating():
        z, _ = model.score(x)
    assert set(reply) == {"prototypes", "held"}
    assert reply["held"].tolist() == [True, False, True]
    torch.testing.assert_close(reply["prototypes"][2], z[y == 2].mean(0))
    assert torch.equal(client.model().vector, trained), "measuring moves no statistics"


def test_received_is_the_own_extractor_under_the_new_head(fed: Federation) -> None:
    spec = specification(fed, rounds=2)
    method = FedGH()
    done, server, engine = simulate(method, fed, spec, share=0.5)
    for client in range(4):
        holder = visit(fed, spec, client)
        holder["own"] = engine.states[client]["own"]
        received = method.assemble(holder, method.send(server, client))
        assert torch.equal(received[spec.layout(0).span("extractor")], holder.own[spec.layout(0).span("extractor")])
        assert torch.equal(received[spec.layout(0).span("head")], server["head"])
    assert done[-1].bytes_down == 2 * 18 * 4
    assert done[-1].bytes_up == 2 * (3 * 5 * 4 + 3)


def test_extractors_may_differ_but_not_heads(fed: Federation) -> None:
    done, _, _ = simulate(FedGH(), fed, fleet(fed, rounds=2, norm=True))
    assert not any(this.refused for this in done)
    mixed = fleet(fed)

    def deep_head() -> nn.Module:
        return nn.Sequential(nn.Linear(6, 4), nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, CLASSES)))

    other = Architecture(deep_head, fed.example, head="1")
    with pytest.raises(UserError, match="fedgh shares the head"):
        FedGH().setup(replace(mixed, architectures=(mixed.architectures[0], other)))


def test_a_head_with_dropout_maps_and_statistics_is_trained_the_same_way_twice(fed: Federation) -> None:
    def build() -> nn.Module:
        head = nn.Sequential(nn.BatchNorm1d(2), nn.Dropout(), nn.AvgPool1d(3), nn.Flatten(), nn.Linear(2, CLASSES))
        return nn.Sequential(nn.Linear(6, 6), nn.Unflatten(1, (2, 3)), head)

    spec = replace(specification(fed), architectures=(Architecture(build, fed.example, head="2"),))
    assert spec.architectures[0].features == (2, 3)
    results = []
    for seed in (1, 2):
        torch.manual_seed(seed)
        _, server, _ = simulate(FedGH(), fed, spec)
        results.append(server["head"])
    assert torch.equal(*results)


def test_replies_without_any_class_change_nothing(fed: Federation) -> None:
    method = FedGH()
    server = method.setup(exact(fed))
    before = server["head"].clone()
    method.merge(server, {0: upload([False] * 3)})
    assert torch.equal(server["head"], before)


def test_caveats_name_settings_that_switch_it_off() -> None:
    assert not FedGH().caveats()
    assert FedGH(server_lr=0).caveats()
    assert FedGH(server_epochs=0).caveats()
