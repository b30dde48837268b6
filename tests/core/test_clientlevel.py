"""Privacy of whole clients: what leaves is within the clip, what is released has the noise, and the two are counted."""

import math
import warnings
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from conftest import Wire, blobs, fleet, small_network, specification
from scipy import stats
from torch import Tensor, nn

from fedgraft.base.errors import UserError
from fedgraft.core.clientlevel import WITHIN, ClientPrivacy, changes, norm
from fedgraft.core.message import Message
from fedgraft.core.method import Method, Spec
from fedgraft.core.privacy import planned_for_clients, sums_objection
from fedgraft.core.rounds import Participation, rounds
from fedgraft.core.samples import ClientData
from fedgraft.data.federation import Federation
from fedgraft.engines.local import LocalEngine
from fedgraft.engines.states import first_states
from fedgraft.engines.workshop import Job, single_thread
from fedgraft.methods import METHODS

CLIENTS = {"client_epsilon": None, "client_noise": 2.0, "client_clip": 0.5, "client_quantile": None, "delta": 1e-5}
SERVED = sorted(name for name in METHODS if sums_objection(METHODS.make(name), specification(blobs())) is None)


def private(method: Method, fed: Federation, *, share: float = 1.0, build: Any = None, **settings: Any) -> Spec:
    wanted = {**CLIENTS, **settings}
    secure = "secure" in wanted.get("stages", ())
    made = specification(fed, rounds=3, epochs=1, **({} if build is None else {"build": build}))
    spec = replace(made, settings=made.settings.but(**wanted))
    part = Participation(share, share, poisson=not secure)
    return replace(spec, client_privacy=planned_for_clients(method, spec, part), share=share)


def released(method: Method, fed: Federation, spec: Spec, number: int = 1) -> Tensor:
    """Everything that the server's next messages hold after some rounds."""
    secure = spec.client_privacy is not None and spec.client_privacy.sharing > 0
    with single_thread(), LocalEngine(method, replace(spec, rounds=number), fed.clients) as engine:
        server = method.setup(engine.spec)
        for _ in rounds(method, server, engine, Participation(spec.share, spec.share, not secure), evaluate_every=9):
            pass
    return torch.cat([part.flatten() for part in method.send(server, 0).values()]).double()


def wide() -> nn.Module:
    return nn.Sequential(nn.Linear(6, 300), nn.ReLU(), nn.Linear(300, 3))


def louder(fed: Federation) -> Federation:
    """The same federation, but the first client's samples are a thousand times as large."""
    first: ClientData = fed.clients[0]
    train = replace(first.train, inputs=1000 * first.train.inputs)
    return replace(fed, clients=[replace(first, train=train), *fed.clients[1:]])


# ---- what leaves a client


@pytest.mark.parametrize("name", ["fedavg", "fedper", "scaffold", "lg-fedavg", "apfl"])
def test_what_leaves_is_an_update_within_the_clip(name: str) -> None:
    method, fed = METHODS.make(name), blobs()
    for clip, within in ((0.01, 0.0), (1e4, 1.0)):
        spec = private(method, fed, client_clip=clip, client_quantile=0.5)
        engine = LocalEngine(method, spec, fed.clients)
        sent = method.send(method.setup(spec), 0)
        state = first_states(method, spec, [0])[0]
        done = engine.workshop.perform(Job("train", 0, 0, sent, state))
        assert done.outcome is not None
        assert math.isnan(done.outcome.loss)
        reply = Message(**{entry: tensor for entry, tensor in done.outcome.reply.items() if entry != WITHIN})
        size = norm(changes(reply, spec.client_privacy.base(reply, sent)))
        assert float(done.outcome.reply[WITHIN]) == within
        assert size == pytest.approx(clip, rel=1e-4) if not within else 0 < size < clip
        plain = LocalEngine(method, replace(spec, client_privacy=None), fed.clients)
        free = plain.workshop.perform(Job("train", 0, 0, sent, state)).outcome
        assert free is not None
        ways = [changes(each, spec.client_privacy.base(each, sent)) for each in (reply, free.reply)]
        a, b = (torch.cat([part.flatten() for _, part in sorted(way.items())]) for way in ways)
        assert float(a @ b / a.norm() / b.norm()) == pytest.approx(1.0, abs=1e-5)  # shorter, and in the same direction


# ---- what is released


@pytest.mark.parametrize(
    ("stages", "noise"), [(("bound",), 2.0 / 4), (("bound", "secure"), 2.0 * math.sqrt(4 / 3) / 4)]
)
def test_the_noise_in_what_is_released_has_the_variance_it_was_promised(stages: tuple[str, ...], noise: float) -> None:
    """At the server: of 2 clips in the sum of 4. At the clients: 3 of 4 have to answer and bring it, and all 4 do."""
    method, fed = METHODS.make("fedavg"), blobs()
    loud, quiet = (private(method, fed, build=wide, client_noise=z, stages=stages) for z in (2.0, 1e-9))
    noises = (released(method, fed, loud) - released(method, fed, quiet)) / (noise * 0.5)
    assert len(noises) == 3003
    assert abs(float(noises.square().sum()) - 3003) < 4 * math.sqrt(2 * 3003)
    assert stats.kstest(noises.numpy(), "norm").pvalue > 0.01


@pytest.mark.parametrize("name", ["fedavg", "fedper", "apfl", "fedrod", "pfedme"])
def test_no_client_moves_what_is_released_by_more_than_its_clip(name: str) -> None:
    """A private head, a loss that knows the classes, inner loops: whatever a client does, one clipped update leaves."""
    method, fed = METHODS.make(name), blobs()
    spec = private(method, fed)
    moved = released(method, louder(fed), spec) - released(method, fed, spec)
    assert 0 < float(moved.norm()) <= 2 * 0.5 / 4 * 1.0001  # it is replaced: once out, once in


def test_all_clients_count_alike_and_the_sum_is_divided_by_who_was_to_be_expected() -> None:
    fed = blobs()
    same = [
        released(METHODS.make(f"fedavg:weighting={how}"), fed, private(METHODS.make("fedavg"), fed))
        for how in ("samples", "uniform")
    ]
    assert torch.allclose(same[0], same[1], atol=1e-6)
    privacy = ClientPrivacy(1.0, 1e-9, 1e-5, 0.5, 2.0, (1,) * 4)
    form, sent = Message(weights=torch.zeros(2)), Message(weights=torch.tensor([1.0, 1.0]))
    replies = [
        (Message(weights=torch.tensor([4.0, 5.0])), sent, 0.0),
        (Message(weights=torch.tensor([1.0, 1.5])), sent, 1.0),
    ]
    total = privacy.total(form, replies, 1.0)
    assert total["weights"].tolist() == pytest.approx([0.6, 0.8 + 0.5])  # the first is five long, and clipped to one
    mean, _ = privacy.released(form, sent, total, 1.0, np.random.default_rng(0))
    assert mean["weights"].tolist() == pytest.approx([1.3, 1.65])
    alone, _ = privacy.released(form, sent, privacy.total(form, [], 1.0), 1.0, np.random.default_rng(0))
    assert alone["weights"].tolist() == pytest.approx([1.0, 1.0])  # a round without anybody is noise, and is released


def test_participants_are_drawn_by_chance_and_a_round_without_any_goes_on() -> None:
    picked = [len(Participation(0.3, 0.3, poisson=True).pick(0, number, 50)) for number in range(200)]
    assert abs(np.mean(picked) - 15) < 4 * math.sqrt(50 * 0.3 * 0.7 / 200)
    assert 0.7 < np.var(picked) / (50 * 0.3 * 0.7) < 1.4
    assert Participation(1.0, 1.0, poisson=True).pick(0, 0, 5) == [0, 1, 2, 3, 4]
    method, fed = METHODS.make("scaffold"), blobs()
    spec = private(method, fed, share=1e-6)
    assert not Participation(1e-6, 1e-6, poisson=True).pick(spec.seed, 0, 4)
    first = torch.cat([part.flatten() for part in method.send(method.setup(spec), 0).values()])
    assert not torch.equal(released(method, fed, spec), first.double())


# ---- what it costs


def test_a_second_accountant_agrees() -> None:
    from opacus.accountants import PRVAccountant

    privacy = ClientPrivacy(1.0, 1.2, 1e-6, 0.1, 10.0, (200,) * 100)
    other = PRVAccountant()
    other.history = [(1.2, 0.1, 200)]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert privacy.spent(7) == pytest.approx(other.get_epsilon(1e-6), rel=0.01)
    assert privacy.spent(7, 100) < privacy.spent(7)


def test_a_budget_decides_the_noise_and_secrecy_of_who_is_asked_makes_it_less() -> None:
    method, fed = METHODS.make("fedavg"), blobs()
    trusted = private(method, fed, share=0.5, client_noise=None, client_epsilon=8.0).client_privacy
    secure = private(method, fed, share=0.75, client_noise=None, client_epsilon=8.0, stages=("bound", "secure"))
    assert secure.client_privacy is not None
    assert trusted is not None
    assert 7.98 < trusted.spent(0) <= 8.0
    assert (trusted.rate, trusted.rounds, trusted.sharing) == (0.5, (3, 3, 3, 3), 0)
    assert (secure.client_privacy.rate, secure.client_privacy.sharing) == (1.0, 3)  # three of four take part
    assert 7.98 < max(secure.client_privacy.spent(client) for client in range(4)) <= 8.0
    assert trusted.noise < secure.client_privacy.noise
    with pytest.raises(
        UserError, match=r"with client_noise 1 a client would spend epsilon .* in 3 rounds, more than 1"
    ):
        private(method, fed, client_noise=1.0, client_epsilon=1.0)


@pytest.mark.slow
def test_the_clip_finds_the_quantile_and_that_is_paid_for() -> None:
    """Updates of norms 0.1, 0.2 .. 10: nine in ten are within 9.05, and half of them within 5.05."""
    sent, form = Message(weights=torch.zeros(1)), Message(weights=torch.zeros(1))
    for quantile in (0.5, 0.9):
        privacy = ClientPrivacy(0.1, 1.0, 1e-5, 1.0, 100.0, (60,) * 100, quantile=quantile)
        assert privacy.bit_noise == 5.0
        assert 1 / privacy.update_noise**2 + 1 / (2 * privacy.bit_noise) ** 2 == pytest.approx(1.0)
        clip, rng, last = privacy.clip, np.random.default_rng(1), list[Any]()
        for _ in range(120):
            replies = []
            for i in range(1, 101):
                reply = privacy.leaving(
                    Message(weights=torch.tensor([i / 10])),
                    Message(**sent, **{"privacy.clip": torch.tensor(clip)}),
                    rng,
                )
                bit = float(reply[WITHIN])
                replies.append((Message(weights=reply["weights"]), sent, bit))
            total = privacy.total(form, replies, clip)
            _, within = privacy.released(form, sent, total, clip, rng)
            assert within is not None
            clip = privacy.adapted(clip, within)
            last = [*last[-39:], clip]
        assert np.mean(last) == pytest.approx(10 * quantile, rel=0.05)
    assert ClientPrivacy(1.0, 4.0, 1e-5, 1.0, 4.0, (3,), quantile=0.5).update_noise == pytest.approx(
        4 / math.sqrt(0.75)
    )


# ---- who can have it


def test_every_method_that_needs_but_a_sum_is_served_and_the_others_say_what_would_leave() -> None:
    fed = blobs()
    assert set(SERVED) == {name for name in METHODS if METHODS.make(name).sums()} - {"dbe"} | {"local"}
    for name in METHODS:
        method = METHODS.make(name)
        if name in SERVED:
            assert torch.isfinite(released(method, fed, private(method, fed))).all() if name != "local" else True
            continue
        with pytest.raises(UserError, match="cannot be run with differential privacy of clients: its ") as told:
            private(method, fed)
        expected = method.expects(method.setup(specification(fed)), 0)
        assert name == "dbe" or f"({', '.join(expected)})" in str(told.value)


def test_what_cannot_be_counted_is_refused() -> None:
    fedavg, fed = METHODS.make("fedavg"), blobs()
    with pytest.raises(UserError, match="is not the same part of the network in every round"):
        private(METHODS.make("lg-fedavg:warm_rounds=1"), fed)
    with pytest.raises(UserError, match="median has nothing to do"):
        private(fedavg, fed, stages=("bound", "median"))
    with pytest.raises(UserError, match="buffers = local, or keep"):
        private(fedavg, fed, build=small_network(norm=True))
    assert private(fedavg, fed, build=small_network(norm=True), buffers="local").client_privacy is not None
    spec = replace(specification(fed), settings=specification(fed).settings.but(**CLIENTS))
    with pytest.raises(UserError, match="not for a range"):
        planned_for_clients(fedavg, spec, Participation(0.5, 1.0, poisson=True))
    mixed = fleet(fed)
    with pytest.raises(UserError, match="all clients need the same architecture"):
        planned_for_clients(fedavg, replace(mixed, settings=mixed.settings.but(**CLIENTS)), Participation())


def test_fewer_clients_than_bring_the_noise_give_no_sum() -> None:
    """Three of four have to answer: with three there is a sum, with all of the noise; with two there is none."""
    method, fed = METHODS.make("fedavg"), blobs()
    spec = replace(private(method, fed, stages=("bound", "secure")), rounds=1)
    for lost, refused in (((0,), 1), ((0, 1), 4)):
        engine = Wire(method, spec, fed.clients)
        engine.forge = partial(lambda gone, _, outcomes: {c: o for c, o in outcomes.items() if c not in gone}, lost)
        server = method.setup(spec)
        first = server["weights/0"].clone()
        with single_thread():
            (this,) = rounds(method, server, engine, Participation(), evaluate_every=9)
        assert len(this.refused) == refused
        assert torch.equal(server["weights/0"], first) == (len(lost) == 2)
    assert any("it takes 3 to bring the noise" in each.reason for each in this.refused)
