"""Private training, on what leaves a client: nothing of the samples but clipped and noised gradients."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np
import pytest
import torch
from conftest import blobs, fleet, specification
from scipy import stats
from torch import Tensor, nn

from fedgraft.base.errors import ContractError, UserError
from fedgraft.core import exchange, features, noise
from fedgraft.core.client import Client
from fedgraft.core.gradients import Separate
from fedgraft.core.message import Message
from fedgraft.core.message import objection as refusal
from fedgraft.core.method import Method, Spec
from fedgraft.core.privacy import objection, planned
from fedgraft.core.rounds import Participation
from fedgraft.core.samples import ClientData
from fedgraft.core.state import State
from fedgraft.core.workbench import Workbench
from fedgraft.data.federation import Federation
from fedgraft.engines.states import first_states
from fedgraft.methods import METHODS
from fedgraft.methods.ditto import Ditto
from fedgraft.methods.fedavg import FedAvg

PRIVATE = {"epsilon": None, "noise": 2.0, "delta": 1e-5, "sample_clip": 0.5}
COVERED = sorted(name for name in METHODS if objection(METHODS.make(name)) is None)
REFUSED = sorted(set(METHODS) - set(COVERED))
NAMED = {  # what no noise covers, by the names of SECURITY.md
    "dbe": "mean", "fedala": "weights", "fedas": "fisher", "fedfomo": "gains", "fedppa": "weights",
    "fedppa+": "weights", "per-fedavg": "weights", "pfedamf": "weights",
    "pfedme": "weights",
}  # fmt: skip


def private(method: Method, spec: Spec, **settings: object) -> Spec:
    spec = replace(spec, settings=spec.settings.but(**(PRIVATE | settings)))
    return replace(spec, budget=planned(method, spec, Participation()))


def work(
    method: Method, spec: Spec, data: ClientData, message: Message, state: State, round: int = 0, secret: str = "a"
) -> tuple[Message, State]:
    client = Client(0, dict(state), data, spec, Workbench(), round=round, secret=secret)
    torch.manual_seed(0)
    return exchange.train(method, client, message), dict(client.items())


def others(fed: Federation) -> ClientData:
    """Other samples, as many: other inputs, other labels."""
    data = fed.clients[0]
    return replace(data, train=replace(data.train, inputs=-3 * data.train.inputs, labels=(data.train.labels + 1) % 3))


# ---- nothing leaves but by noised gradients


@pytest.mark.parametrize("name", COVERED)
def test_replies_know_the_samples_by_clipped_gradients_and_sums_alone(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With clipped gradients and sums that say nothing, clients with other samples send the same bits in all rounds."""
    monkeypatch.setattr(Separate, "clipped", lambda self, x, y, norm: torch.zeros(self._span.stop - self._span.start))
    monkeypatch.setattr(noise, "drawn_in", lambda parts: torch.zeros(next(iter(parts)).shape[1], dtype=torch.float64))
    method, fed = METHODS.make(name), blobs()
    spec = private(method, fleet(fed) if name == "flexifed" else specification(fed))
    server = method.setup(spec)
    state = other = first_states(method, spec, [0])[0]
    for number in range(3):
        server.round = number
        sent = method.send(server, 0).copy()
        reply, state = work(method, spec, fed.clients[0], sent, state, number)
        twin, other = work(method, spec, others(fed), sent, other, number)
        assert reply.keys() == twin.keys() == method.expects(server, 0).keys()
        for entry in reply:
            assert torch.equal(reply[entry], twin[entry]), entry
        method.merge(server, {0: reply})


def test_every_method_is_covered_or_refused_for_something_that_leaves() -> None:
    assert len(COVERED) >= 23
    assert sorted(NAMED) == REFUSED
    fed = blobs()
    for name in REFUSED:
        method = METHODS.make(name)
        with pytest.raises(UserError, match=f"{name.replace('+', '.')} cannot be run with .*'{NAMED[name]}' in its"):
            private(method, specification(fed))


def test_settings_that_disclose_something_are_refused() -> None:
    for text in ("scaffold:option=I", "fedphp:transfer=mmd"):
        assert objection(METHODS.make(text)) is not None
        assert objection(METHODS.make(text.partition(":")[0])) is None


def test_a_client_half_of_ones_own_has_to_say_what_it_discloses() -> None:
    @dataclass(frozen=True)
    class Leaky(Ditto):
        def reply(self, client: Client, received: Tensor, trained: Tensor) -> Message:
            return Message(weights=client["v"])

    assert "has its own reply" in str(objection(Leaky()))

    class Honest(Leaky):
        def discloses(self) -> Mapping[str, str]:
            return {}

    assert objection(Honest()) is None
    assert private(Honest(), specification(blobs())).budget.aside == frozenset()  # what Ditto said is not its own word
    assert private(Ditto(), specification(blobs())).budget.aside == {"personal"}


# ---- clipping and noise in the bytes that leave


def wide() -> nn.Module:
    return nn.Sequential(nn.Linear(6, 300), nn.ReLU(), nn.Linear(300, 3))


def one_step(multiple: float = 2.0, clip: float = 0.5) -> tuple[Spec, Federation]:
    """One step on all 20 samples at rate 1, without momentum: the change that is sent is the noised mean itself."""
    fed = blobs()
    spec = specification(fed, build=wide, lr=1.0, momentum=0.0, epochs=1, batch_size=20, rounds=1)
    return private(FedAvg(), spec, noise=multiple, sample_clip=clip), fed


def change(spec: Spec, fed: Federation, secret: str, data: ClientData | None = None) -> Tensor:
    method = FedAvg()
    sent = method.send(method.setup(spec), 0)
    state = first_states(method, spec, [0])[0]
    return work(method, spec, data or fed.clients[0], sent, state, secret=secret)[0]["weights"] - sent["weights"]


def test_the_noise_that_leaves_has_the_variance_it_was_promised() -> None:
    spec, fed = one_step()
    apart = (change(spec, fed, "one") - change(spec, fed, "two")).double()
    promised = np.sqrt(2) * 2.0 * 0.5 / 20  # of the difference of two draws, in a mean of 20
    count = len(apart)
    assert count == 3003
    assert abs(float((apart / promised).square().sum()) - count) < 4 * np.sqrt(2 * count)
    assert stats.kstest((apart / promised).numpy(), "norm").pvalue > 0.01
    assert torch.equal(change(spec, fed, "one"), change(spec, fed, "one"))


def test_no_sample_moves_what_leaves_by_more_than_the_clip() -> None:
    spec, fed = one_step(clip=0.5)
    data = fed.clients[0]
    whole = change(spec, fed, "one")
    for i in (0, 7, 19):
        inputs = data.train.inputs.clone()
        inputs[i] *= 1000
        moved = change(spec, fed, "one", replace(data, train=replace(data.train, inputs=inputs)))
        assert 0 < float((moved - whole).norm()) <= 2 * 0.5 / 20 * 1.001  # it is replaced: once out, once in
    assert spec.budget is not None
    quiet = replace(spec, budget=replace(spec.budget, noises=(1e-9,) * 4))
    assert float(change(quiet, fed, "one").norm()) <= 0.5 * 1.001


def test_batches_are_poisson_samples_and_the_mean_is_by_their_expected_size() -> None:
    fed = blobs((400,))
    spec = private(FedAvg(), specification(fed, batch_size=40, epochs=10))
    client = Client(0, {"own": spec.initial(0)}, fed.clients[0], spec, Workbench(), round=0)
    noising = client._noising("batches", None)
    sizes = np.array([len(noising.draw(400)) for _ in range(100)])
    assert noising.expected == 40
    assert abs(sizes.mean() - 40) < 4 * np.sqrt(400 * 0.1 * 0.9 / 100)
    assert 0.6 < sizes.var() / (400 * 0.1 * 0.9) < 1.5


# ---- sums over samples: prototypes, class counts, losses


def test_no_sample_brings_more_than_one_to_a_sum_and_the_noise_is_as_promised() -> None:
    rows = [torch.tensor([[3.0, 4.0], [0.3, 0.4]]), torch.tensor([[math.nan, 1.0], [0.0, -1.0]])]
    assert noise.drawn_in(rows).tolist() == pytest.approx([0.6 + 0.3, 0.8 + 0.4 - 1.0])
    telling = noise.Telling(2.5, 1, np.random.default_rng(0))
    found = telling.sum([torch.zeros(3, 4000)]) / 2.5
    assert stats.kstest(found.numpy(), "norm").pvalue > 0.01
    with pytest.raises(ContractError, match="more sums of its samples"):
        telling.sum([torch.zeros(3, 4)])


@pytest.mark.parametrize("name", ["fedproto", "fedgh", "fedpac", "fedgpa", "fedrod", "ifca"])
def test_sums_are_counted_and_what_is_made_of_them_is_valid(name: str) -> None:
    method, fed = METHODS.make(name), blobs()
    spec = private(method, specification(fed), noise=None, epsilon=4.0)
    assert spec.budget is not None
    assert spec.budget.sums == ((2,) * 4 if name in ("fedpac", "fedgpa") else (1,) * 4)
    assert all(3.99 < spec.budget.spent(client) <= 4.0 for client in range(4))
    server = method.setup(spec)
    reply, _ = work(method, spec, fed.clients[0], method.send(server, 0).copy(), first_states(method, spec, [0])[0])
    assert refusal(reply, method.expects(server, 0)) is None


def test_prototypes_come_near_to_the_class_means_where_the_noise_is_small() -> None:
    fed, method = blobs(), METHODS.make("fedproto")
    spec = private(method, specification(fed), feature_clip=1e3)
    assert spec.budget is not None
    spec = replace(spec, budget=replace(spec.budget, sum_noises=(1e-9,) * 4))
    client = Client(0, {"own": spec.initial(0)}, fed.clients[0], spec, Workbench(), round=0)
    means, counts = features.prototypes(client, client.own)
    exact = features.class_means(*features.features(client, client.own), 3)
    assert torch.allclose(means, exact, atol=1e-3)
    assert torch.equal(counts, client.counts)
    told = features.moments(client, client.own, "prototypes")
    assert torch.equal(told.means, means)  # asked again, it is the same sum
    rows, _ = features.features(client, client.own)
    assert float(told.square) == pytest.approx(float(rows.double().square().sum(1).mean()), abs=1e-2)
    assert spec.budget is not None
    narrow = replace(spec, budget=replace(spec.budget, feature_clip=0.01))
    again = Client(0, {"own": spec.initial(0)}, fed.clients[0], narrow, Workbench(), round=0)
    assert float(features.prototypes(again, again.own)[0].norm(dim=1).max()) <= 0.0101


def test_noised_counts_add_up_to_what_is_known() -> None:
    assert features.adding_up(torch.tensor([2.6, -1.0, 7.9]), 10).tolist() == [2, 0, 8]  # 2.48 and 7.52 of ten
    assert int(features.adding_up(torch.tensor([-1.0, -2.0]), 7).sum()) == 7


# ---- what is counted


def test_steps_are_counted_before_anybody_trains() -> None:
    fed = blobs()
    count = {
        name: private(METHODS.make(name), specification(fed)).budget.steps for name in ("fedavg", "ditto", "local")
    }
    assert count == {"fedavg": (10, 8, 16, 4), "ditto": (10, 8, 16, 4), "local": (0, 0, 0, 0)}
    rep = private(METHODS.make("fedrep:tau_h=3,tau_b=1"), specification(fed)).budget
    assert rep.steps == (20, 16, 32, 8)
    assert rep.rounds == (3, 3, 3, 3)
    assert rep.rates == (4 / 20, 4 / 13, 4 / 31, 4 / 8)


def test_a_budget_decides_the_noise_of_each_client_and_is_not_exceeded() -> None:
    fed, method = blobs(), FedAvg()
    budget = private(method, specification(fed), noise=None, epsilon=3.0).budget
    assert all(2.99 < budget.spent(client) <= 3.0 for client in range(4))
    assert budget.noises[3] > budget.noises[2]  # who has few samples needs more of it
    with pytest.raises(UserError, match=r"client 0 would spend epsilon .* in 3 rounds, more than 1: .* asked 0 times"):
        private(method, specification(fed), noise=1.0, epsilon=1.0)


def test_networks_in_which_samples_meet_are_refused() -> None:
    with pytest.raises(UserError, match="BatchNorm mixes the samples"):
        private(FedAvg(), specification(blobs(), norm=True))

    class Counting(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.head = nn.Linear(6, 3)
            self.register_buffer("seen", torch.zeros(6))

        def forward(self, x: Tensor) -> Tensor:
            return self.head(x)

    with pytest.raises(UserError, match="buffers that training may change"):
        private(FedAvg(), specification(blobs(), build=Counting))
    assert private(FedAvg(), specification(blobs(), build=Counting, buffers="keep")).budget is not None
