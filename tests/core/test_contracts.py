"""The eight contracts of the engine. Each test drives a method that breaks one, or would notice if the engine did."""

import itertools
from collections.abc import Mapping
from dataclasses import dataclass, fields

import pytest
import torch
from conftest import blobs, classified, simulate, specification, visit
from torch import Tensor

from fedgraft.base.errors import ContractError
from fedgraft.core.client import Client, ClientId, Predictor
from fedgraft.core.evaluation import Summary
from fedgraft.core.message import Field, Message
from fedgraft.core.method import Inbox, Method, Server
from fedgraft.core.rounds import Participation
from fedgraft.core.task import Classification
from fedgraft.data.federation import Federation
from fedgraft.engines.local import LocalEngine
from fedgraft.methods import METHODS
from fedgraft.methods.fedavg import FedAvg
from fedgraft.methods.fedper import FedPer
from fedgraft.methods.local import Local


def final_bits(server: Server, engine: LocalEngine) -> dict[str, Tensor]:
    bits = {f"server/{name}": tensor for name, tensor in server.items()}
    for client, state in engine.states.items():
        bits |= {f"{client}/{name}": tensor for name, tensor in state.items()}
    return bits


def assert_same_bits(a: Mapping[str, Tensor], b: Mapping[str, Tensor]) -> None:
    assert a.keys() == b.keys()
    for name in a:
        assert torch.equal(a[name], b[name]), name


# 1. everything that crosses is a message, copied at the crossing, its bytes counted there and nowhere else


@dataclass(frozen=True)
class Vandal(FedAvg):
    """Scribbles over what it received, and answers with a tensor that it goes on changing."""

    def assemble(self, client: Client, message: Message) -> Tensor:
        weights = super().assemble(client, message)
        message["weights"].zero_()
        return weights

    def reply(self, client: Client, received: Tensor, trained: Tensor) -> Message:
        return Message(weights=trained)


@pytest.mark.parametrize("workers", [1, 2])
def test_a_client_cannot_reach_the_server_through_what_it_received(fed: Federation, workers: int) -> None:
    spec = specification(fed)
    _, honest, _ = simulate(FedAvg(), fed, spec)
    _, server, _ = simulate(Vandal(), fed, spec, workers=workers)
    assert torch.equal(server["weights/0"], honest["weights/0"])


def test_the_server_cannot_reach_a_client_through_its_reply(fed: Federation) -> None:
    @dataclass(frozen=True)
    class Grabber(Vandal):
        def merge(self, server: Server, inbox: Inbox) -> None:
            super().merge(server, inbox)
            for message in inbox.values():
                message["weights"].zero_()

    spec = specification(fed)
    _, _, honest = simulate(FedAvg(), fed, spec)
    _, _, engine = simulate(Grabber(), fed, spec)
    for client in engine.states:
        assert torch.equal(engine.states[client]["own"], honest.states[client]["own"])


@pytest.mark.parametrize("workers", [1, 2])
def test_what_was_received_is_there_for_the_reply_whatever_training_did_to_it(fed: Federation, workers: int) -> None:
    @dataclass(frozen=True)
    class Scribbler(FedAvg):
        def fit(self, client: Client, received: Tensor) -> Tensor:
            trained = super().fit(client, received)
            received.zero_()
            return trained

    @dataclass(frozen=True)
    class Comparing(Scribbler):
        def reply(self, client: Client, received: Tensor, trained: Tensor) -> Message:
            return Message(weights=received + (trained - received))

    @dataclass(frozen=True)
    class Tidy(FedAvg):
        def reply(self, client: Client, received: Tensor, trained: Tensor) -> Message:
            return Message(weights=received + (trained - received))

    spec = specification(fed)
    for scribbling, honest in ((Scribbler(), FedAvg()), (Comparing(), Tidy())):
        _, wanted, _ = simulate(honest, fed, spec)
        _, server, _ = simulate(scribbling, fed, spec, workers=workers)
        assert torch.equal(server["weights/0"], wanted["weights/0"])


def test_bytes_are_those_of_the_messages(fed: Federation) -> None:
    spec = specification(fed)
    done, _, _ = simulate(FedAvg(), fed, spec)
    width = spec.layout(0).size  # 6 * 5 + 5 + 5 * 3 + 3
    assert width == 53
    assert {(r.bytes_up, r.bytes_down) for r in done} == {(4 * 4 * width, 4 * 4 * width)}
    done, _, _ = simulate(FedPer(), fed, spec)
    assert {(r.bytes_up, r.bytes_down) for r in done} == {(4 * 4 * 35, 4 * 4 * 35)}
    done, _, _ = simulate(Local(), fed, spec)
    assert {(r.bytes_up, r.bytes_down) for r in done} == {(0, 0)}


# 2. the inbox is keyed by client


def test_replies_are_keyed_by_client_whoever_finished_first(fed: Federation) -> None:
    seen: list[dict[ClientId, float]] = []

    @dataclass(frozen=True)
    class Signed(FedAvg):
        def reply(self, client: Client, received: Tensor, trained: Tensor) -> Message:
            return Message(weights=torch.full_like(trained, float(client.id)))

        def merge(self, server: Server, inbox: Inbox) -> None:
            seen.append({client: float(message["weights"][0]) for client, message in inbox.items()})

    simulate(Signed(), fed, specification(fed, rounds=1), workers=2)
    assert seen == [{0: 0.0, 1: 1.0, 2: 2.0, 3: 3.0}]


# 3. a method holds no state


@pytest.mark.parametrize("name", METHODS)
def test_a_method_is_frozen_hashable_and_printable(name: str) -> None:
    method = METHODS[name]()
    assert hash(method) == hash(METHODS[name]())
    assert repr(method).startswith(METHODS[name].__name__)
    for field in fields(method):
        assert not isinstance(getattr(method, field.name), Tensor)
    with pytest.raises(AttributeError):
        method.anything = 1  # type: ignore[attr-defined]


def test_state_is_named_tensors_and_nothing_else(fed: Federation) -> None:
    _, server, engine = simulate(FedPer(), fed, specification(fed))
    for state in (server, *engine.states.values()):
        assert all(isinstance(name, str) and isinstance(value, Tensor) for name, value in state.items())


def test_what_is_put_into_state_leaves_its_graph_behind(fed: Federation) -> None:
    server = FedAvg().setup(specification(fed))
    server["doubled"] = 2 * torch.ones(3, requires_grad=True)
    assert not server["doubled"].requires_grad


# 4. the same seed gives the same bits, whatever the workers, the scheduling and the evaluation


@pytest.mark.parametrize("name", METHODS)
def test_bits_do_not_depend_on_workers_or_evaluation(fed: Federation, name: str) -> None:
    spec = specification(fed, rounds=2, norm=True)
    _, *plain = simulate(METHODS[name](), fed, spec, share=0.75)
    _, *parallel = simulate(METHODS[name](), fed, spec, share=0.75, workers=2)
    _, *rarely = simulate(METHODS[name](), fed, spec, share=0.75, evaluate_every=10)
    assert_same_bits(final_bits(*plain), final_bits(*parallel))
    assert_same_bits(final_bits(*plain), final_bits(*rarely))


def test_torchs_own_random_numbers_are_keyed_too(fed: Federation) -> None:
    def dropping() -> torch.nn.Module:
        return torch.nn.Sequential(torch.nn.Linear(6, 5), torch.nn.Dropout(0.5), torch.nn.Linear(5, 3))

    spec = specification(fed, rounds=2, build=dropping)
    _, alone, _ = simulate(FedAvg(), fed, spec)
    torch.manual_seed(99)
    _, again, _ = simulate(FedAvg(), fed, spec)
    _, parallel, _ = simulate(FedAvg(), fed, spec, workers=2)
    assert torch.equal(alone["weights/0"], again["weights/0"])
    assert torch.equal(alone["weights/0"], parallel["weights/0"])


def test_every_seed_task_purpose_round_and_client_has_numbers_of_its_own(fed: Federation) -> None:
    names = list(itertools.product((0, 1), ("train", "evaluate"), ("batches", "portion"), (0, 1), (0, 1)))

    def draw(kind: str, seed: int, task: str, purpose: str, round: int, client: int) -> int:
        subject = visit(fed, specification(fed, seed=seed), client, round=round, purpose=task)
        if kind == "numpy":
            return int(subject.stream(purpose).integers(2**62))
        return int(torch.randint(2**62, (), generator=subject.torch_stream(purpose)))

    for kind in ("numpy", "torch"):
        assert len({draw(kind, *name) for name in names}) == len(names)
        assert draw(kind, *names[5]) == draw(kind, *names[5])


def test_who_takes_part_is_drawn_anew_in_every_round_and_by_the_seed() -> None:
    half = Participation(0.5, 0.5)
    picked = {(seed, number): tuple(half.pick(seed, number, 20)) for seed in range(3) for number in range(4)}
    assert len(set(picked.values())) == len(picked)
    assert all(len(set(clients)) == 10 for clients in picked.values())
    assert half.pick(2, 3, 20) == list(picked[2, 3])


def test_another_seed_gives_other_bits(fed: Federation) -> None:
    _, one, _ = simulate(FedAvg(), fed, specification(fed, seed=0))
    _, two, _ = simulate(FedAvg(), fed, specification(fed, seed=1))
    assert not torch.equal(one["weights/0"], two["weights/0"])


def test_the_callers_random_numbers_are_left_alone(fed: Federation) -> None:
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    simulate(FedAvg(), fed, specification(fed))
    assert torch.equal(torch.rand(3), expected)


# 5. evaluation works on a fork and changes nothing


@dataclass(frozen=True)
class Trespasser(FedPer):
    """Trains and leaves traces while it is being tested."""

    def personal(self, client: Client, message: Message, trained: Tensor | None = None) -> Predictor:
        client["own"] = torch.zeros_like(client.own)
        client["trace"] = torch.ones(1)
        client.own.fill_(7.0)
        self.fit(client, client.own)
        return super().personal(client, message, trained)


@pytest.mark.parametrize("workers", [1, 2])
def test_evaluation_leaves_no_trace(fed: Federation, workers: int) -> None:
    spec = specification(fed)
    _, *honest = simulate(FedPer(), fed, spec, evaluate_every=10)
    _, *tested = simulate(Trespasser(), fed, spec, workers=workers)
    assert_same_bits(final_bits(*honest), final_bits(*tested))


def test_the_two_points_do_not_see_each_other(fed: Federation) -> None:
    @dataclass(frozen=True)
    class Forgetful(FedAvg):
        def personal(self, client: Client, message: Message, trained: Tensor | None = None) -> Predictor:
            predict = super().personal(client, message, trained)
            client.own.zero_()
            return predict

    spec = specification(fed, rounds=2)
    honest, *_ = simulate(FedAvg(), fed, spec)
    tested, *_ = simulate(Forgetful(), fed, spec)
    assert tested[-1].test["trained"] == honest[-1].test["trained"]


def test_send_may_not_change_the_server(fed: Federation) -> None:
    @dataclass(frozen=True)
    class Restless(FedAvg):
        def send(self, server: Server, client: ClientId) -> Message:
            server["weights/0"].add_(1.0)
            return super().send(server, client)

    with pytest.raises(ContractError, match=r"send changed the server"):
        simulate(Restless(), fed, specification(fed))


def test_both_points_cover_all_clients_and_mean_what_they_say(fed: Federation) -> None:
    spec = specification(fed, rounds=2)
    done, server, engine = simulate(FedAvg(), fed, spec, share=0.5)
    last = done[-1].test
    assert len(last["received"].per_client) == len(last["trained"].per_client) == 4
    live = spec.architectures[0].model()
    for client, data in enumerate(fed.clients):
        x, y = data.test.batch(slice(None))
        for point, weights in (("received", server["weights/0"]), ("trained", engine.states[client]["own"])):
            with live.load(weights).evaluating():
                right = (live(x).argmax(1) == y).float().mean()
            assert last[point].per_client[client] == pytest.approx(float(right))


def test_the_mean_is_over_clients_and_pooled_is_over_samples() -> None:
    # 9 of 10 and 1 of 2: the mean of .9 and .5, and 10 of 12; the losses are sums
    scores = {0: classified(9, 10, 5.0), 2: classified(1, 2, 1.0)}
    summary = Summary.of(scores, 3, Classification(3).judges())
    assert (summary.mean, summary.pooled) == pytest.approx((0.7, 10 / 12))
    losses = summary.figures["log_loss"]
    assert (losses.mean, losses.pooled) == pytest.approx((0.5, 6 / 12))
    assert summary.per_client == pytest.approx((0.9, float("nan"), 0.5), nan_ok=True)


# 6. optimizers live inside fit; whether momentum survives is a setting of the run


def test_momentum_is_forgotten_unless_the_run_keeps_it(fed: Federation) -> None:
    fresh = specification(fed, rounds=2, momentum=0.9)
    kept = specification(fed, rounds=2, momentum=0.9, optimizer_state="kept")
    _, _, forgetful = simulate(Local(), fed, fresh)
    _, _, mindful = simulate(Local(), fed, kept)
    assert "momentum/batches" not in forgetful.states[0]
    assert "momentum/batches" in mindful.states[0]
    assert not torch.equal(forgetful.states[0]["own"], mindful.states[0]["own"])


def test_one_round_does_not_see_the_momentum_setting(fed: Federation) -> None:
    _, _, a = simulate(Local(), fed, specification(fed, rounds=1, momentum=0.9))
    _, _, b = simulate(Local(), fed, specification(fed, rounds=1, momentum=0.9, optimizer_state="kept"))
    assert torch.equal(a.states[2]["own"], b.states[2]["own"])


# 7. buffers have a policy; integers are never averaged


def test_buffers_are_averaged_kept_at_home_or_left_as_they_began(fed: Federation) -> None:
    sent, statistics = {}, {}
    for policy in ("average", "local", "keep"):
        spec = specification(fed, rounds=1, norm=True, buffers=policy)
        _, server, engine = simulate(FedAvg(), fed, spec)
        sent[policy] = server["weights/0"].numel()
        statistics[policy] = [state["own"][spec.layout(0).trained :] for state in engine.states.values()]
    trained = specification(fed, norm=True).layout(0).trained
    assert sent == {"average": trained + 10, "local": trained, "keep": trained}
    began = torch.cat([torch.zeros(5), torch.ones(5)])
    assert all(torch.equal(own, began) for own in statistics["keep"])
    for policy in ("average", "local"):
        assert not torch.equal(statistics[policy][0], statistics[policy][1])


def test_integer_buffers_stay_with_their_client(fed: Federation) -> None:
    _, _, engine = simulate(FedAvg(), fed, specification(fed, rounds=2, norm=True))
    # two epochs, batches of four, two rounds; a last batch of one sample joins its neighbour: 13 = 4 + 4 + 5
    assert [int(engine.states[c]["integers"][0]) for c in range(4)] == [20, 12, 32, 8]
    assert engine.states[0]["integers"].dtype == torch.int64


# 8. a reply that is not finite, or not of the right shape, is refused, named and counted; the round goes on


def spoiled(kind: str) -> Method:
    @dataclass(frozen=True)
    class Spoiled(FedAvg):
        def reply(self, client: Client, received: Tensor, trained: Tensor) -> Message:
            good = super().reply(client, received, trained)
            if client.id != 2:
                return good
            return {
                "nan": Message(weights=torch.full_like(trained, torch.nan)),
                "infinite": Message(weights=trained / 0),
                "shape": Message(weights=trained[:-1]),
                "type": Message(weights=trained.double()),
                "missing": Message(),
                "surplus": Message(weights=trained, more=1.0),
            }[kind]

    return Spoiled()


REASONS = {
    "nan": "not finite",
    "infinite": "not finite",
    "shape": "has shape [52], expected [53]",
    "type": "has dtype float64",
    "missing": "lacks weights",
    "surplus": "nobody asked for",
}


@pytest.mark.parametrize(("kind", "reason"), REASONS.items())
def test_a_bad_reply_is_refused_and_the_round_goes_on(fed: Federation, kind: str, reason: str) -> None:
    done, server, engine = simulate(spoiled(kind), fed, specification(fed, rounds=2))
    for number, this in enumerate(done, start=1):
        assert [refusal.client for refusal in this.refused] == [2]
        assert reason in this.refused[0].reason
        assert f"fedavg, round {number}" in this.refused[0].reason
    assert bool(torch.isfinite(server["weights/0"]).all())
    assert torch.equal(engine.states[2]["own"], specification(fed).initial(2)), "its state is as if it had been absent"


def test_a_refused_client_counts_as_absent(fed: Federation) -> None:
    @dataclass(frozen=True)
    class Without(FedAvg):
        def merge(self, server: Server, inbox: Inbox) -> None:
            super().merge(server, {client: message for client, message in inbox.items() if client != 2})

    spec = specification(fed, rounds=1)
    _, refused, _ = simulate(spoiled("nan"), fed, spec)
    _, absent, _ = simulate(Without(), fed, spec)
    assert torch.equal(refused["weights/0"], absent["weights/0"])


def test_values_out_of_range_are_refused(fed: Federation) -> None:
    @dataclass(frozen=True)
    class Counting(FedAvg):
        def expects(self, server: Server, client: ClientId) -> Mapping[str, Field]:
            return {**super().expects(server, client), "count": Field((), torch.int64, low=0)}

        def reply(self, client: Client, received: Tensor, trained: Tensor) -> Message:
            return Message(weights=trained, count=-1 if client.id == 1 else 1)

    done, _, _ = simulate(Counting(), fed, specification(fed, rounds=1))
    assert [(r.client, "below 0" in r.reason) for r in done[0].refused] == [(1, True)]


def test_a_method_that_returns_the_wrong_vector_is_told_so(fed: Federation) -> None:
    @dataclass(frozen=True)
    class Short(FedAvg):
        def fit(self, client: Client, received: Tensor) -> Tensor:
            return received[:-1]

    with pytest.raises(Exception, match=r"Short|shape \[52\]; the network has 53 weights"):
        simulate(Short(), blobs(), specification(fed))
