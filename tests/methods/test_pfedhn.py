"""pFedHN: the vector-Jacobian product against finite differences, its sign, and the server's optimizer by hand."""

import pytest
import torch
from conftest import blobs, simulate, slope, small_network, specification, visit
from torch import Tensor

from fedgraft.core.message import Message, objection
from fedgraft.core.method import Server, Spec
from fedgraft.data.federation import Federation
from fedgraft.methods.pfedhn import PFedHN

PLAIN = {"server_lr": 1.0, "server_momentum": 0.0, "server_decay": 0.0, "clip": 1e9}


def learned(server: Server) -> dict[str, Tensor]:
    return {name: tensor.clone() for name, tensor in server.items() if not name.startswith("velocity/")}


def exact(fed: Federation) -> Spec:
    return specification(fed, build=lambda: small_network()().double())


def change(spec: Spec, seed: int = 0) -> Message:
    values = torch.randn(spec.layout(0).trained, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return Message(change=values.to(spec.layout(0).dtype))


def test_the_gradient_is_that_of_finite_differences(fed: Federation) -> None:
    method, spec = PFedHN(**PLAIN, hidden=7, depth=2), exact(fed)
    server = method.setup(spec)
    before, d = learned(server), change(spec)
    method.merge(server, {2: d})
    for name, tensor in before.items():
        gradient = tensor - server[name]

        def inner(values: Tensor, name: str = name) -> float:
            return float(method.write({**before, name: values}, 2) @ d["change"])

        for entry in {0, tensor.numel() // 2, tensor.numel() - 1}:
            assert float(gradient.view(-1)[entry]) == pytest.approx(slope(inner, tensor, entry), rel=1e-6, abs=1e-8), (
                name
            )
    assert torch.equal(server["v"][[0, 1, 3]], before["v"][[0, 1, 3]]), "other embeddings stay"


def test_the_hypernetwork_by_hand() -> None:
    def state(*weights: float) -> dict[str, Tensor]:
        layers = {f"phi/{layer}/weight": torch.tensor([[w]]) for layer, w in enumerate(weights)}
        biases = {f"phi/{layer}/bias": torch.tensor([0.5]) for layer in range(len(weights))}
        return {"v": torch.tensor([[1.0], [-1.0]]), **layers, **biases}

    # -1 -> -2 + .5 -> ReLU 0 -> 0 * 3 + .5 -> ReLU .5 -> .5 * -4 + .5 -> no ReLU before the output -> -1.5 * 5 + .5
    assert PFedHN(depth=2).write(state(2.0, 3.0, -4.0, 5.0), 1).tolist() == [-7.0]
    assert PFedHN(depth=0).write(state(2.0, 3.0), 1).tolist() == [-4.0]


def identity(fed: Federation, **parameters: float) -> tuple[PFedHN, Server]:
    """A hypernetwork that writes the embedding itself: positive numbers pass its ReLU unchanged."""
    spec = specification(fed)
    width = spec.layout(0).trained
    method = PFedHN(**{**PLAIN, **parameters}, embedding=width, hidden=width, depth=1)
    server = method.setup(spec)
    server["v"] = torch.linspace(1, 2, width).repeat(len(fed), 1)
    for layer in range(3):
        server[f"phi/{layer}/weight"], server[f"phi/{layer}/bias"] = torch.eye(width), torch.zeros(width)
    return method, server


def test_an_identity_hypernetwork_takes_the_client_at_its_word(fed: Federation) -> None:
    method, server = identity(fed)
    theta = method.send(server, 1)["weights"]
    trained = theta - 0.3 * (theta - 0.5)  # a step on the quadratic around 0.5
    method.merge(server, {1: Message(change=theta - trained)})
    torch.testing.assert_close(server["v"][1], trained)


def test_old_minus_new_descends_a_quadratic_and_the_reverse_climbs_it(fed: Federation) -> None:
    for sign, closer in ((1, True), (-1, False)):
        method, server = identity(fed, server_lr=1e-3)
        target = torch.full_like(server["v"][0], 1.2)
        distances = []
        for _ in range(5):
            theta = method.send(server, 0)["weights"]
            distances.append(float((theta - target).norm()))
            method.merge(server, {0: Message(change=sign * 0.1 * (theta - target))})
        assert (distances[-1] < distances[0]) is closer


def test_the_reply_is_old_minus_new(fed: Federation) -> None:
    method, spec = PFedHN(), specification(fed)
    client = visit(fed, spec)
    received = method.assemble(client, method.send(method.setup(spec), 0))
    trained = method.fit(client, received)
    assert torch.equal(method.reply(client, received, trained)["change"], received - trained)


def test_without_local_steps_nothing_moves(fed: Federation) -> None:
    method, spec = PFedHN(**PLAIN), specification(fed, epochs=0)
    before = learned(method.setup(spec))
    _, server, _ = simulate(method, fed, spec)
    for name, tensor in before.items():
        assert torch.equal(server[name], tensor), name


def test_momentum_and_decay_are_those_of_sgd_and_own_every_embedding(fed: Federation) -> None:
    method, spec = PFedHN(server_lr=0.1, server_momentum=0.9, server_decay=0.01, hidden=7), exact(fed)
    server, plain = method.setup(spec), PFedHN(**PLAIN, hidden=7)
    p = learned(server)
    buffers = {name: torch.zeros_like(tensor) for name, tensor in p.items()}
    for client, seed in ((0, 1), (3, 2)):
        bare = plain.setup(spec)
        bare.update(p)
        plain.merge(bare, {client: change(spec, seed)})
        for name, tensor in p.items():
            buffers[name] = 0.9 * buffers[name] + (tensor - bare[name]) + 0.01 * tensor
        p = {name: tensor - 0.1 * buffers[name] for name, tensor in p.items()}
        method.merge(server, {client: change(spec, seed)})
    for name, tensor in p.items():
        torch.testing.assert_close(server[name], tensor)
    assert not torch.equal(server["v"][1], method.setup(spec)["v"][1]), "decay reaches a client that was never served"


def test_the_gradient_is_clipped_as_a_whole(fed: Federation) -> None:
    method, spec = PFedHN(**{**PLAIN, "clip": 0.5}), exact(fed)
    server = method.setup(spec)
    before = learned(server)
    method.merge(server, {0: change(spec)})
    moved = torch.cat([(before[name] - server[name]).view(-1) for name in before])
    assert float(moved.norm()) == pytest.approx(0.5)


def test_local_gradients_are_clipped_too(fed: Federation) -> None:
    spec = specification(fed, lr=1.0, momentum=0.0, epochs=1, batch_size=100)
    client = visit(fed, spec)
    for clip, norm in ((1e-3, 1e-3), (50.0, None)):
        moved = float((PFedHN(clip=clip).fit(client, client.own.clone()) - client.own).norm())
        assert moved == pytest.approx(norm, rel=1e-3) if norm else moved > 1e-2


def test_averaged_takes_the_mean_gradient(fed: Federation) -> None:
    method, spec = PFedHN(**PLAIN, order="averaged", hidden=7), exact(fed)
    steps = []
    for inbox in ({0: change(spec, 1)}, {2: change(spec, 2)}, {0: change(spec, 1), 2: change(spec, 2)}):
        server = method.setup(spec)
        before = learned(server)
        method.merge(server, inbox)
        steps.append({name: before[name] - server[name] for name in before})
    for name in steps[0]:
        torch.testing.assert_close(steps[2][name], (steps[0][name] + steps[1][name]) / 2)


def test_clients_are_served_in_turn_or_at_once(fed: Federation) -> None:
    spec = specification(fed, rounds=2)
    method = PFedHN()
    waves = [list(wave) for wave in method.waves(method.setup(spec), 0, [0, 1, 3])]
    assert sorted(waves) == [[0], [1], [3]]
    assert list(PFedHN(order="averaged").waves(method.setup(spec), 0, [0, 1, 3])) == [[0, 1, 3]]
    for share, same in ((0.25, True), (1.0, False)):  # one client in a round has no order
        _, sequential, _ = simulate(method, fed, spec, share=share)
        _, averaged, _ = simulate(PFedHN(order="averaged"), fed, spec, share=share)
        assert torch.equal(sequential["v"], averaged["v"]) is same


def test_the_client_holds_what_was_written_for_it(fed: Federation) -> None:
    spec = specification(fed, norm=True)
    layout, client = spec.layout(0), visit(fed, spec, 2)
    client["own"] = client.own + 1
    for private_head, part in ((False, "all"), (True, "extractor")):
        method = PFedHN(private_head=private_head)
        message = method.send(method.setup(spec), 2)
        weights = method.assemble(client, message)
        assert torch.equal(weights[layout.span(part)], message["weights"])
        assert torch.equal(weights[layout.trained :], client.own[layout.trained :]), "statistics stay"
        assert torch.equal(weights[layout.span("head")], client.own[layout.span("head")]) is private_head


def test_only_what_is_written_travels(fed: Federation) -> None:
    for method, width in ((PFedHN(), 53), (PFedHN(private_head=True), 35)):
        done, server, _ = simulate(method, fed, specification(fed, rounds=1))
        assert done[0].bytes_up == done[0].bytes_down == 4 * 4 * width
        short = Message(change=torch.zeros(width - 1))
        assert "has shape" in str(objection(short, method.expects(server, 0)))


@pytest.mark.parametrize(("clients", "length"), [(1, 1), (2, 1), (4, 2), (9, 3)])
def test_embeddings_are_never_empty(clients: int, length: int) -> None:
    spec = specification(blobs((5,) * clients))
    assert PFedHN().setup(spec)["v"].shape == (clients, length)
    assert PFedHN(embedding=6).setup(spec)["v"].shape == (clients, 6)


def test_caveats_name_settings_that_switch_it_off() -> None:
    assert not PFedHN().caveats()
    assert PFedHN(server_lr=0).caveats()
