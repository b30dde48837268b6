"""pFedLA: mixtures and row gradients by hand and by finite differences, and its siblings at frozen rows."""

from dataclasses import dataclass, replace

import pytest
import torch
from conftest import blobs, simulate, slope, small_network, specification, visit
from torch import Tensor

from fedgraft.core.message import Message
from fedgraft.core.method import Server, Spec
from fedgraft.data.federation import Federation
from fedgraft.engines.newcomer import Newcomer, welcome
from fedgraft.methods.fedavg import FedAvg
from fedgraft.methods.local import Local
from fedgraft.methods.pfedla import PFedLA, layers

LAST = "psi/3"  # the output layer at the default depth


def rows(method: PFedLA, server: Server) -> Tensor:
    return method.observe(server)["alpha"]


def steer(server: Server, logits: Tensor) -> None:
    """Make the hypernetworks give these logits (client, layer, client), whatever the embedding."""
    server[f"{LAST}/weight"] = torch.zeros_like(server[f"{LAST}/weight"])
    server[f"{LAST}/bias"] = logits.flatten(1).to(server[f"{LAST}/bias"].dtype)


@dataclass(frozen=True)
class Frozen(PFedLA):
    """Rows fixed at the uniform mean, or (``selfish``) at the client's own model."""

    eta: float = 0.0
    selfish: bool = False

    def setup(self, spec: Spec) -> Server:
        server = super().setup(spec)
        own = 1e4 * torch.eye(spec.clients)[:, None].expand(-1, 2, -1)
        steer(server, own if self.selfish else torch.zeros_like(own))
        return server


def test_a_layer_has_one_row_for_weight_bias_and_statistics(fed: Federation) -> None:
    spec = specification(fed, norm=True)
    found = [(row, slot.name) for row, slot in layers(spec.layout(0), spec.layout(0).size)]
    assert found == [
        (0, "0.weight"), (0, "0.bias"), (1, "1.weight"), (1, "1.bias"), (2, "3.weight"), (2, "3.bias"),
        (1, "1.running_mean"), (1, "1.running_var"),
    ]  # fmt: skip
    assert len(layers(spec.layout(0), spec.layout(0).trained)) == 6


def test_a_mixture_by_hand() -> None:
    fed = blobs((8, 8))
    method, spec = PFedLA(), specification(fed)
    server = method.setup(spec)
    server["bank"] = torch.stack([torch.full((53,), 1.0), torch.full((53,), 5.0)])
    # rows (3/4, 1/4) for the first layer and (1/2, 1/2) for the second
    steer(server, torch.tensor([[3.0, 1.0], [1.0, 1.0]]).log().repeat(2, 1, 1))
    weights = method.send(server, 0)["weights"]
    torch.testing.assert_close(weights[:35], torch.full((35,), 2.0))
    torch.testing.assert_close(weights[35:], torch.full((18,), 3.0))


@pytest.mark.parametrize("retained", [0, 1])
def test_the_gradient_is_that_of_finite_differences(fed: Federation, retained: int) -> None:
    spec = specification(fed, build=lambda: small_network()().double())
    method = PFedLA(eta=1.0, hidden=6, embedding=5, depth=2, retained=retained)
    server, rng = method.setup(spec), torch.Generator().manual_seed(3)
    server["bank"] = torch.randn(4, 53, generator=rng, dtype=torch.float64)
    upload = torch.randn(53, generator=rng, dtype=torch.float64)
    before = {name: tensor.clone() for name, tensor in server.items()}
    m, kept = method.mixture(server, 1)
    d = m - upload
    free = [(slot.start, slot.stop, row) for row, slot in layers(spec.layout(0), 53) if not kept[row]]
    method.merge(server, {1: Message(weights=upload)})
    for name in before.keys() - {"bank"}:
        step = (before[name] - server[name])[1]

        def inner(values: Tensor, name: str = name) -> float:
            alpha = method.rows({n: t[1] for n, t in before.items() if n != "bank"} | {name: values}, 4)
            return sum(float(d[a:b] @ (alpha[row] @ before["bank"][:, a:b])) for a, b, row in free)

        for entry in {0, step.numel() // 2, step.numel() - 1}:
            assert float(step.view(-1)[entry]) == pytest.approx(
                slope(inner, before[name][1], entry), rel=1e-5, abs=1e-8
            )
        assert torch.equal(before[name][[0, 2, 3]], server[name][[0, 2, 3]]), "other clients' hypernetworks stay"


def test_descent_moves_the_mixture_towards_the_upload() -> None:
    fed = blobs((8, 8))
    method, spec = PFedLA(eta=0.1), specification(fed)
    server = method.setup(spec)
    theta = torch.zeros(2, 53)
    theta[0, 0] = theta[1, 1] = 1.0
    server["bank"] = theta
    steer(server, torch.zeros(2, 2, 2))
    # m = (1/2, 1/2), the upload is theta_0: d = (-1/2, 1/2), so the own weight has slope -1/2 and grows
    method.merge(server, {0: Message(weights=theta[0])})
    alpha = rows(method, server)[0]
    assert float(alpha[0, 0]) > 0.5
    assert alpha[1].tolist() == [0.5, 0.5], "the other layer was right already"


def test_rows_are_on_the_simplex_and_leave_the_start(fed: Federation) -> None:
    done, _, _ = simulate(PFedLA(), fed, specification(fed, rounds=5), share=0.75)
    for this in done:
        alpha = this.observed["alpha"]
        assert alpha.shape == (4, 2, 4)
        assert bool((alpha >= 0).all())
        torch.testing.assert_close(alpha.sum(2), torch.ones(4, 2))
    first, last = done[0].observed["alpha"], done[-1].observed["alpha"]
    assert float((last - first).abs().max()) > 0.1


def test_equal_models_leave_the_rows_alone(fed: Federation) -> None:
    method, spec = PFedLA(eta=1.0), specification(fed)
    server = method.setup(spec)
    before = rows(method, server)
    torch.testing.assert_close(method.send(server, 0)["weights"], spec.initial(0))
    method.merge(server, {0: Message(weights=spec.initial(0) + 1)})
    torch.testing.assert_close(rows(method, server), before, rtol=1e-4, atol=1e-5)


def test_uniform_rows_are_fedavg_without_weights(fed: Federation) -> None:
    spec = specification(fed, rounds=3)
    method = Frozen()
    _, server, _ = simulate(method, fed, spec)
    _, average, _ = simulate(FedAvg(weighting="uniform"), fed, spec)
    for client in range(4):
        torch.testing.assert_close(method.send(server, client)["weights"], average["weights/0"], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("method", [Frozen(selfish=True), PFedLA(retained=2), PFedLA(retained=9)], ids=repr)
def test_the_own_model_alone_is_local_training_bit_for_bit(fed: Federation, method: PFedLA) -> None:
    spec = specification(fed, rounds=3)
    _, _, ours = simulate(method, fed, spec, share=0.75)
    _, _, alone = simulate(Local(), fed, spec, share=0.75)
    for client in range(4):
        assert torch.equal(ours.states[client]["own"], alone.states[client]["own"])


def test_a_retained_layer_is_the_one_with_most_own_weight_and_does_not_travel(fed: Federation) -> None:
    method, spec = PFedLA(retained=1), specification(fed)
    server = method.setup(spec)
    logits = torch.zeros(4, 2, 4)
    logits[0, 1, 0] = 1.0
    logits[1, 0, 1] = 1.0
    steer(server, logits)
    server["bank"] = torch.randn(4, 53, generator=torch.Generator().manual_seed(0))
    for client, kept, travelling in ((0, slice(35, 53), 35), (1, slice(0, 35), 18)):
        message = method.send(server, client)
        assert message["weights"].shape == (travelling,)
        holder = visit(fed, spec, client)
        weights = method.assemble(holder, message)
        assert torch.equal(weights[kept], holder.own[kept])
        rest = torch.ones(53, dtype=torch.bool)
        rest[kept] = False
        torch.testing.assert_close(weights[rest], server["bank"].mean(0)[rest])
    done, _, _ = simulate(PFedLA(retained=1), fed, specification(fed, rounds=1))
    assert done[0].bytes_up == 4 * 4 * 53
    assert done[0].bytes_down < done[0].bytes_up


def test_a_newcomer_gets_all_layers_until_its_first_upload(fed: Federation) -> None:
    few = replace(fed, clients=fed.clients[:3], names=fed.names[:3])
    method = PFedLA(retained=1)
    _, server, _ = simulate(method, few, specification(few))
    idle = server.spec.settings.but(epochs=0)
    joined = welcome(method, server, Newcomer("ulm", fed.clients[3]), 1, settings=idle)
    # rows begin nearly uniform: what it holds of either layer is nearly everybody's mean
    torch.testing.assert_close(joined.state["own"], server["bank"].mean(0), rtol=0, atol=0.05)
    for layer in (slice(0, 35), slice(35, 53)):
        assert float((server["bank"].mean(0) - server.spec.initial(0))[layer].abs().max()) > 0.5
    assert torch.equal(joined.server["bank"][3], joined.state["own"])
    assert int(method.send(joined.server, 3)["kept"].sum()) == 1, "from then on it keeps a layer, as anybody does"


def test_the_row_of_a_retained_layer_does_not_learn(fed: Federation) -> None:
    method, spec = PFedLA(retained=1), specification(fed)
    server = method.setup(spec)
    logits = torch.zeros(4, 2, 4)
    logits[0, 1, 0] = 1.0
    steer(server, logits)
    server["bank"] = torch.randn(4, 53, generator=torch.Generator().manual_seed(0))
    method.merge(server, {0: Message(weights=torch.randn(53, generator=torch.Generator().manual_seed(1)))})
    learned = server[f"{LAST}/bias"][0].view(2, 4)
    assert torch.equal(learned[1], logits[0, 1])
    assert not torch.equal(learned[0], logits[0, 0])


def test_absent_clients_keep_rows_and_models(fed: Federation) -> None:
    method, spec = PFedLA(), specification(fed)
    server = method.setup(spec)
    method.merge(server, {2: Message(weights=spec.initial(0) + 1)})
    before = {name: tensor.clone() for name, tensor in server.items()}
    method.merge(server, {0: Message(weights=spec.initial(0) - 1)})
    for name, tensor in before.items():
        assert torch.equal(server[name][1:], tensor[1:]), name
    assert torch.equal(server["bank"][0], spec.initial(0) - 1)


def test_statistics_are_mixed_with_their_layer_but_do_not_steer(fed: Federation) -> None:
    method, spec = PFedLA(eta=1.0), specification(fed, norm=True)
    trained, server = spec.layout(0).trained, method.setup(spec)
    bank = server["bank"].clone()
    bank[1, trained:] += 8
    server["bank"] = bank
    share = rows(method, server)[0, 1, 1]
    m = method.send(server, 0)["weights"]
    torch.testing.assert_close(m[trained:], bank[0, trained:] + 8 * share)
    before = server["v"].clone()
    upload = m.clone()
    upload[trained:] -= 3
    method.merge(server, {0: Message(weights=upload)})
    assert torch.equal(server["v"], before)


def test_caveats_name_settings_that_switch_it_off() -> None:
    assert not PFedLA().caveats()
    assert PFedLA(eta=0).caveats()
