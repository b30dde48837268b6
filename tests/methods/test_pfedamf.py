"""pFedAMF, our reading of it: fusion and distillation on paper, the matrix's derivative, its limits."""

import math
from dataclasses import dataclass

import pytest
import torch
from conftest import simulate, slope, small_network, specification, visit
from torch import Tensor
from torch.nn import functional

from fedgraft.core.client import Client
from fedgraft.core.message import Message
from fedgraft.data.federation import Federation
from fedgraft.methods import describe
from fedgraft.methods.fedala import portion
from fedgraft.methods.fedavg import FedAvg
from fedgraft.methods.pfedamf import PFedAMF, fuse, layers, softened_kl

NOT = -math.inf


def forced(row: list[float], **parameters: float) -> PFedAMF:
    """The method with a knowledge matrix that says ``row`` for every layer, and never learns."""

    @dataclass(frozen=True)
    class Forced(PFedAMF):
        def join(self, client: Client) -> None:
            super().join(client)
            client["A"] = torch.tensor(row).repeat(len(client["A"]), 1)

    return Forced(fusion_epochs=0, **parameters)  # type: ignore[arg-type]


def test_fusion_by_hand(fed: Federation) -> None:
    # first layer (1/2, 1/4, 1/4) of 4, 8, 16 is 8; second layer the history alone
    layout = specification(fed).layout(0)
    assert layers(layout) == ["0", "2"]
    A = torch.tensor([[math.log(2), 0.0, 0.0], [NOT, NOT, 0.0]])
    fused = fuse(layout, A, torch.tensor([[4.0], [8.0], [16.0]]).expand(3, 53))
    assert fused[:35].tolist() == pytest.approx([8.0] * 35)
    assert fused[35:].tolist() == [16.0] * 18


def test_statistics_are_mixed_with_their_layer(fed: Federation) -> None:
    layout = specification(fed, norm=True).layout(0)
    A = torch.zeros(3, 3)
    A[layers(layout).index("1")] = torch.tensor([NOT, 0.0, NOT])
    fused = fuse(layout, A, torch.tensor([[0.0], [3.0], [6.0]]).expand(3, layout.size))
    assert fused[layout.trained :].tolist() == [3.0] * 10


def test_distillation_by_hand() -> None:
    # at T = 2 the teacher's (2 ln 3, 0) is (3/4, 1/4); the student does not know
    teacher, student = torch.tensor([[2 * math.log(3), 0.0]]), torch.zeros(1, 2)
    expected = 4 * (0.75 * math.log(1.5) + 0.25 * math.log(0.5))
    assert float(softened_kl(teacher, student, 2.0)) == pytest.approx(expected)
    assert float(softened_kl(teacher, teacher, 2.0)) == pytest.approx(0, abs=1e-6)


def test_the_temperature_keeps_the_gradient_s_size() -> None:
    # for small logits the gradient is (student - teacher) / classes whatever T, thanks to T^2
    teacher = torch.tensor([[0.01, -0.01]])
    for T in (1.0, 2.0, 8.0):
        student = torch.zeros(1, 2, requires_grad=True)
        (gradient,) = torch.autograd.grad(softened_kl(teacher, student, T), student)
        assert gradient[0].tolist() == pytest.approx([-0.005, 0.005], rel=1e-3)


def test_the_matrix_steps_along_its_derivative(fed: Federation) -> None:
    spec = specification(fed, build=lambda: small_network()().double(), batch_size=100)
    client = visit(fed, spec)
    method = PFedAMF(eta=0.01)
    generator = torch.Generator().manual_seed(0)
    client["A"] = A = torch.randn(2, 3, dtype=torch.float64, generator=generator)
    knowledge = 0.5 * torch.randn(3, 53, dtype=torch.float64, generator=generator)
    x, y = portion(client, 0.8).batch(slice(None))
    step = (A - method.learn(client, knowledge)) / 0.01
    model = spec.architectures[0].model()

    def f(A: Tensor) -> float:
        with model.load(fuse(spec.layout(0), A, knowledge)).evaluating():
            return float(functional.cross_entropy(model(x), y))

    for entry in range(6):
        assert float(step.view(-1)[entry]) == pytest.approx(slope(f, A, entry), rel=1e-5, abs=1e-9)
    # and by its shares themselves: dCE/da = <grad CE(m), theta_i>
    gradient = model.load(fuse(spec.layout(0), A, knowledge)).differentiate(functional.cross_entropy(model(x), y))
    by_share = torch.stack([knowledge[:, :35] @ gradient[:35], knowledge[:, 35:] @ gradient[35:]])
    shares = A.softmax(1)
    chain = shares * (by_share - (shares * by_share).sum(1, keepdim=True))
    torch.testing.assert_close(step, chain)


def test_the_distillation_descends_its_loss(fed: Federation) -> None:
    spec = specification(fed, build=lambda: small_network()().double(), momentum=0.0, batch_size=100)
    client = visit(fed, spec)
    theta, m = spec.initial(0), spec.initial(0, independent=True)
    step = (theta - PFedAMF(rho=0.3, T=3.0).distil(client, theta, m)) / 0.1
    (x, y), model = client.data.train.batch(slice(None)), spec.architectures[0].model()
    with model.load(m).evaluating():
        target = (model(x) / 3).softmax(1)

    def f(at: Tensor) -> float:
        with model.load(at).evaluating():
            logits = model(x)
        kl = (target * (target.log() - (logits / 3).log_softmax(1))).sum(1).mean()
        return float(0.7 * functional.cross_entropy(logits, y) + 0.3 * 9 * kl)

    for entry in (0, 17, 33, 40, 52):
        assert float(step[entry]) == pytest.approx(slope(f, theta, entry), rel=1e-5, abs=1e-9)


@pytest.mark.parametrize("norm", [False, True])
@pytest.mark.parametrize("off", [{"rho": 0.0}, {"distil_epochs": 0}])
def test_without_distillation_the_global_model_is_fedavg_s_bit_for_bit(
    fed: Federation, off: dict[str, float], norm: bool
) -> None:
    spec = specification(fed, norm=norm, optimizer_state="kept")
    _, ours, mine = simulate(PFedAMF(**off), fed, spec, share=0.75)  # type: ignore[arg-type]
    _, theirs, other = simulate(FedAvg(), fed, spec, share=0.75)
    assert torch.equal(ours["weights/0"], theirs["weights/0"])
    for client in range(4):
        assert torch.equal(mine.states[client]["own"], other.states[client]["own"])


def test_all_weight_on_the_local_model_is_fedavg_s_trained_model(fed: Federation) -> None:
    spec = specification(fed)
    done, _, engine = simulate(forced([0.0, NOT, NOT], rho=0.0), fed, spec)
    average, _, other = simulate(FedAvg(), fed, spec)
    for client in range(4):
        assert torch.equal(engine.states[client]["q"], other.states[client]["own"])
    assert done[-1].test["trained"] == average[-1].test["trained"] == done[-1].test["received"]


def test_all_weight_on_the_global_model_is_the_download(fed: Federation) -> None:
    spec = specification(fed)
    before, server, _ = simulate(forced([NOT, 0.0, NOT]), fed, specification(fed, rounds=2))
    done, _, engine = simulate(forced([NOT, 0.0, NOT]), fed, spec)
    for client in range(4):
        assert torch.equal(engine.states[client]["q"], server["weights/0"]), "the model of the round's beginning"
    assert done[-1].test["trained"] == before[-1].test["received"]


def test_all_weight_on_the_history_keeps_it(fed: Federation) -> None:
    """What a client fused the first time is what it fuses for ever, whatever it downloads."""
    method = forced([NOT, NOT, 0.0])
    _, _, once = simulate(method, fed, specification(fed, rounds=1))
    _, server, thrice = simulate(method, fed, specification(fed, rounds=3))
    for client in range(len(fed)):
        assert torch.equal(thrice.states[client]["q"], once.states[client]["q"])
        assert not torch.equal(thrice.states[client]["q"], server["weights/0"])


def test_the_first_time_there_is_no_history_and_nothing_is_learned(fed: Federation) -> None:
    spec = specification(fed)
    client = visit(fed, spec)
    method = PFedAMF(distil_epochs=0)
    method.join(client)
    g = spec.initial(0, independent=True)
    theta = method.fit(client, g)
    assert not bool(client["A"].any())
    torch.testing.assert_close(client["q"], theta / 3 + 2 * g / 3)
    method.fit(client, g)
    assert bool(client["A"].any()), "the second time it is learned"


def test_equal_models_leave_the_matrix_alone(fed: Federation) -> None:
    spec = specification(fed)
    client = visit(fed, spec)
    client["A"] = A = torch.tensor([[0.5, -0.5, 0.0], [0.0, 1.0, 0.0]])
    torch.testing.assert_close(PFedAMF().learn(client, spec.initial(0).repeat(3, 1)), A, atol=1e-5, rtol=0)


def test_the_received_model_is_fused_anew(fed: Federation) -> None:
    spec = specification(fed)
    client = visit(fed, spec)
    method = PFedAMF()
    method.join(client)
    client["A"] = torch.tensor([[math.log(2), 0.0, 0.0]]).repeat(2, 1)
    client["own"], client["q"] = torch.full((53,), 4.0), torch.full((53,), 16.0)
    method.personal(client, Message(weights=torch.full((53,), 8.0)))
    assert client.model().vector.tolist() == pytest.approx([8.0] * 53)
    method.personal(client, Message(weights=torch.full((53,), 8.0)), client.own)
    assert client.model().vector.tolist() == [16.0] * 53


def test_absent_clients_keep_history_and_matrix(fed: Federation) -> None:
    spec = specification(fed, rounds=2)
    _, _, engine = simulate(PFedAMF(), fed, spec, share=0.5)
    longer, _, later = simulate(PFedAMF(), fed, specification(fed, rounds=3), share=0.5)
    for client in set(engine.states) - set(longer[-1].participants):
        for name in set(engine.states[client]):
            assert torch.equal(engine.states[client][name], later.states[client][name])


def test_one_that_was_never_picked_holds_the_global_model(fed: Federation) -> None:
    spec = specification(fed)
    client = visit(fed, spec)
    method, w = PFedAMF(), torch.full((53,), 0.1)
    method.join(client)
    method.personal(client, Message(weights=w))
    assert torch.equal(client.model().vector, w)
    method.personal(client, Message(weights=w), client.own)
    assert torch.equal(client.model().vector, spec.initial(0))


def test_the_distillation_has_batches_and_momentum_of_its_own(fed: Federation) -> None:
    _, _, engine = simulate(PFedAMF(), fed, specification(fed, rounds=1, optimizer_state="kept"))
    _, _, average = simulate(FedAvg(), fed, specification(fed, rounds=1, optimizer_state="kept"))
    state = engine.states[0]
    assert torch.equal(state["momentum/batches"], average.states[0]["momentum/batches"])
    assert not torch.equal(state["momentum/distillation"], state["momentum/batches"])


def test_it_sends_what_fedavg_sends(fed: Federation) -> None:
    ours, *_ = simulate(PFedAMF(), fed, specification(fed, rounds=1))
    theirs, *_ = simulate(FedAvg(), fed, specification(fed, rounds=1))
    assert (ours[0].bytes_up, ours[0].bytes_down) == (theirs[0].bytes_up, theirs[0].bytes_down)


def test_it_is_marked_as_a_reconstruction() -> None:
    assert describe(PFedAMF)["reconstruction"]


def test_caveats() -> None:
    assert not PFedAMF().caveats()
    for off in (PFedAMF(rho=0), PFedAMF(distil_epochs=0)):
        assert any("FedAvg" in sentence for sentence in off.caveats())
    for off in (PFedAMF(eta=0), PFedAMF(fusion_epochs=0)):
        assert any("thirds" in sentence for sentence in off.caveats())
